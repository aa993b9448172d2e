"""PostgreSQL as the storage: two brokers beside two of the original over TCP, and one broker in process beside other Python queues.

    python -m benchmarks.postgres --reference DIR [--peers PYTHON] [--runs 3] [--workloads process] [--out results.json]

Starts a PostgreSQL of its own with ``fsync`` and ``synchronous_commit`` on; each run gets a new database in it. ``DIR`` (or
``BUNQUEUE_REFERENCE``) is a folder in which ``npm install bun bunqueue`` was run. ``PYTHON`` is an interpreter that has the peers
(``python -m venv V && V/bin/pip install pgqueuer asyncpg procrastinate``), this one by default. What is not installed is left out.
The systems take turns, the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
from bunqueue_postgres.testing import PostgresServer

from benchmarks.systems import ROOT, Ours, Reference, clean_environment, last_json, machine, run

#: A quick run has this part of the jobs, and only shows that everything works.
QUICK_PART: Final = 20

#: Brokers over TCP; the load is spread over them.
BROKERS: Final = 2

PEERS: Final = ("pgqueuer", "procrastinate")


@dataclass(frozen=True, slots=True)
class Workload:
    """What is measured.

    Attributes:
        name: as in results.
        verb: what the load programs call it.
        jobs: number of jobs of a full run.
        goals: least ratio to each other system that is aimed at.
    """

    name: str
    verb: str
    jobs: int
    goals: dict[str, float]


TCP: Final = (
    Workload("tcp_add_bulk", "add_bulk", 20_000, {"original": 3.0}),
    Workload("tcp_add", "add", 10_000, {"original": 2.0}),
    Workload("tcp_process", "process", 10_000, {"original": 8.0}),
    Workload("tcp_lifecycle", "lifecycle", 10_000, {"original": 8.0}),
)
IN_PROCESS: Final = (
    Workload("bulk", "add_bulk", 50_000, {"pgqueuer": 0.7}),
    Workload("process", "process", 20_000, {"pgqueuer": 1.0, "procrastinate": 5.0}),
)

#: The slower systems get fewer jobs where the rate does not depend on their number.
FEWER: Final[dict[tuple[str, str], int]] = {
    ("tcp_process", "original"): 5_000,
    ("tcp_lifecycle", "original"): 5_000,
    ("process", "procrastinate"): 5_000,
    ("bulk", "procrastinate"): 20_000,
}


@dataclass(slots=True)
class Measured:
    """Rates of one workload by system, jobs a second, in order of measurement."""

    workload: Workload
    rates: dict[str, list[float]] = field(default_factory=dict)

    def median(self, system: str) -> float | None:
        """The rate of a system that took part."""
        rates = self.rates.get(system)
        return statistics.median(rates) if rates else None

    def ratio(self, system: str) -> float | None:
        """Ours to another system's."""
        ours, other = self.median("ours"), self.median(system)
        return ours / other if ours and other else None


class Bench:
    """Runs workloads, each on a new database.

    Args:
        server: the PostgreSQL that all use.
        reference: the original, or None.
        interpreter: a Python that has (some of) the peers.
    """

    def __init__(self, server: PostgresServer, reference: Reference | None, interpreter: str) -> None:
        self._server = server
        self._ours = Ours()
        self._reference = reference
        self._interpreter = interpreter
        self.peers = {name: version for name in PEERS if (version := _version(interpreter, name)) is not None}
        self._turn = 0

    @contextlib.contextmanager
    def _database(self) -> Iterator[str]:
        name = f"bench_{uuid.uuid4().hex}"
        with psycopg.connect(self._server.dsn, autocommit=True) as admin:
            admin.execute(f'CREATE DATABASE "{name}"')
            try:
                # What earlier runs left to write is theirs.
                admin.execute("CHECKPOINT")
                yield self._server.dsn.rsplit("/", 1)[0] + f"/{name}"
            finally:
                admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _over_tcp(self, system: Ours | Reference, verb: str, jobs: int) -> float:
        assert self._reference is not None
        with self._database() as dsn, contextlib.ExitStack() as stack:
            ports = [stack.enter_context(system.broker(dsn, f"b{n}")) for n in range(BROKERS)]
            return self._reference.over_tcp(verb, jobs, *ports)

    def _in_process(self, system: str, verb: str, jobs: int) -> float:
        with self._database() as dsn:
            if system == "ours":
                command = [sys.executable, "-m", "benchmarks.broker_load"]
            else:
                command = [self._interpreter, str(ROOT / "benchmarks" / "peers" / f"{system}_load.py")]
            return float(run([*command, verb, str(jobs), dsn])["rate"])

    def once(self, measured: Measured, part: int) -> None:
        """One turn of each system that can run it; who goes first changes from turn to turn."""
        workload = measured.workload
        systems: dict[str, Callable[[str, int], float]] = {}
        if workload in TCP:
            if self._reference is not None:
                systems = {
                    "ours": partial(self._over_tcp, self._ours),
                    "original": partial(self._over_tcp, self._reference),
                }
        else:
            systems = {name: partial(self._in_process, name) for name in ("ours", *self.peers)}
        turns = list(systems.items())
        self._turn += 1
        if self._turn % 2 == 0:
            turns.reverse()
        for name, measure in turns:
            jobs = FEWER.get((workload.name, name), workload.jobs) // part
            measured.rates.setdefault(name, []).append(measure(workload.verb, jobs))


def _version(interpreter: str, package: str) -> str | None:
    """Version of a package that another interpreter has."""
    program = (
        f"import importlib.metadata, json; print(json.dumps({{'version': importlib.metadata.version({package!r})}}))"
    )
    done = subprocess.run(
        [interpreter, "-c", program], capture_output=True, text=True, env=clean_environment(), check=False
    )
    return str(last_json(done.stdout)["version"]) if done.returncode == 0 else None


def table(results: list[Measured]) -> str:
    """The results for people: one line for each system that ours is compared with."""
    lines = [f"{'workload':<16}{'ours':>10}  {'other':<14}{'its rate':>10}{'ratio':>8}{'goal':>7}   spread"]
    for measured in results:
        ours = measured.median("ours")
        for name in [name for name in measured.rates if name != "ours"] or [""]:
            rate, ratio, goal = measured.median(name), measured.ratio(name), measured.workload.goals.get(name)
            cells = f"{rate:>10,.0f}{ratio:>8.2f}" if rate is not None and ratio is not None else f"{'-':>10}{'-':>8}"
            missed = "!" if ratio is not None and goal is not None and ratio < goal else " "
            shown = f"{goal:>7.1f} {missed}" if goal is not None else f"{'-':>7}  "
            spread = ", ".join(
                f"{key} {min(rates):,.0f}..{max(rates):,.0f}"
                for key, rates in measured.rates.items()
                if key in ("ours", name)
            )
            lines.append(f"{measured.workload.name:<16}{ours or 0:>10,.0f}  {name or '-':<14}{cells}{shown} {spread}")
    return "\n".join(lines)


def document(
    results: list[Measured], bench: Bench, reference: Reference | None, runs: int, part: int
) -> dict[str, Any]:
    """The results for programs, with what they depend on."""
    return {
        "measuredAt": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {
            "ours": Ours().version(),
            "original": reference.version() if reference is not None else None,
            **bench.peers,
        },
        "settings": {
            "storage": "PostgreSQL, fsync and synchronous_commit on",
            "brokers": BROKERS,
            "runs": runs,
            "partOfJobs": f"1/{part}",
        },
        "workloads": [
            {
                "name": measured.workload.name,
                "jobs": measured.workload.jobs // part,
                "goals": measured.workload.goals,
                "ratios": {
                    name: round(ratio, 3)
                    for name in measured.rates
                    if name != "ours" and (ratio := measured.ratio(name))
                },
                "medians": {name: measured.median(name) for name in measured.rates},
                "rates": measured.rates,
            }
            for measured in results
        ],
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.postgres", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reference", type=Path, default=os.environ.get("BUNQUEUE_REFERENCE"), metavar="DIR")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="an interpreter that has the peers")
    parser.add_argument("--runs", type=int, default=3, help="turns of each system; medians are taken (3)")
    parser.add_argument("--workloads", default="", metavar="PART", help="only those whose name holds this text")
    parser.add_argument("--quick", action="store_true", help="one short turn: shows that it works, measures nothing")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    chosen = parser.parse_args(arguments)
    runs, part = (1, QUICK_PART) if chosen.quick else (chosen.runs, 1)
    with tempfile.TemporaryDirectory(prefix="bunqueue-bench-") as scratch, contextlib.ExitStack() as stack:
        reference = None
        if chosen.reference is not None:
            try:
                reference = Reference(Path(chosen.reference), Path(scratch))
            except ValueError as error:
                parser.error(str(error))
        server = PostgresServer(durable=True)
        stack.callback(server.close)
        bench = Bench(server, reference, chosen.peers)
        workloads = (*(TCP if reference is not None else ()), *IN_PROCESS)
        results = [Measured(workload) for workload in workloads if chosen.workloads in workload.name]
        for measured in results:
            for turn in range(runs):
                print(f"\r{measured.workload.name} {turn + 1}/{runs}".ljust(30), end="", file=sys.stderr, flush=True)
                bench.once(measured, part)
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    print(table(results))
    if reference is None:
        print("Without --reference DIR there is no load over TCP, and no original to compare with.")
    for name in PEERS:
        if name not in bench.peers:
            print(f"{name} is not installed for {chosen.peers}.")
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(document(results, bench, reference, runs, part), indent=2) + "\n")


if __name__ == "__main__":
    main()
