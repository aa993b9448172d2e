"""Measure every workload, ours and the original's in turn, and print the ratios.

    python -m benchmarks --reference DIR [--runs 5] [--workloads tcp] [--out results.json]
    make bench ARGS="--reference DIR"

``DIR`` (or ``BUNQUEUE_REFERENCE``) is a folder in which ``npm install bun bunqueue`` was run; without it only the embedded
workloads of this project are measured, since the load over TCP comes from the original's client. Each run is a new process on
new data; the two systems take turns, so that a change of the machine's mood meets both. The ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.systems import Ours, Reference, System, machine
from benchmarks.workloads import WORKLOADS, Workload

#: A quick run has this part of the jobs, and only shows that everything works.
QUICK_PART = 20


@dataclass(slots=True)
class Measured:
    """Rates of one workload, jobs a second, in order of measurement."""

    workload: Workload
    rates: dict[str, list[float]] = field(default_factory=dict)

    def median(self, system: str) -> float | None:
        rates = self.rates.get(system)
        return statistics.median(rates) if rates else None

    @property
    def ratio(self) -> float | None:
        """Ours to the original: the synchronous classes where they are embedded."""
        ours = self.median("sync" if self.workload.kind == "embedded" else "ours")
        original = self.median("original")
        return ours / original if ours and original else None


class Bench:
    """Runs workloads on new data.

    Args:
        reference: the original, or None.
        scratch: folder for data files; the disk under it is what is measured.
    """

    def __init__(self, reference: Reference | None, scratch: Path) -> None:
        self._ours = Ours()
        self._reference = reference
        self._scratch = scratch
        self._turn = 0

    def once(self, workload: Workload, jobs: int, measured: Measured) -> None:
        """One turn of each system that can run it; who goes first changes from turn to turn."""
        turns: list[tuple[str, System, str]] = []
        if workload.kind == "embedded":
            turns += [("sync", self._ours, "sync"), ("asyncio", self._ours, "asyncio")]
        elif self._reference is not None:
            turns.append(("ours", self._ours, ""))
        if self._reference is not None:
            turns.append(("original", self._reference, ""))
        self._turn += 1
        if self._turn % 2 == 0:
            turns.reverse()
        for name, system, variant in turns:
            folder = Path(tempfile.mkdtemp(dir=self._scratch))
            try:
                rate = self._rate(workload, system, jobs, folder / "queue.db", variant)
            finally:
                shutil.rmtree(folder)
            measured.rates.setdefault(name, []).append(rate)

    def _rate(self, workload: Workload, system: System, jobs: int, file: Path, variant: str) -> float:
        if workload.kind == "embedded":
            return system.embedded(workload.verb, jobs, file, variant)
        assert self._reference is not None
        with system.server(file) as port:
            return self._reference.over_tcp(workload.verb, jobs, port)


def table(results: list[Measured]) -> str:
    """The results for people: medians, spread, ratio and goal."""
    lines = [f"{'workload':<22}{'ours':>10}{'asyncio':>10}{'original':>10}{'ratio':>8}{'goal':>7}   spread"]
    for measured in results:
        workload = measured.workload
        ours = "sync" if workload.kind == "embedded" else "ours"
        cells = [measured.median(name) for name in (ours, "asyncio", "original")]
        shown = "".join(f"{cell:>10,.0f}" if cell is not None else f"{'-':>10}" for cell in cells)
        ratio = f"{measured.ratio:>8.2f}" if measured.ratio is not None else f"{'-':>8}"
        goal = f"{workload.goal:>7.1f}" if workload.goal is not None else f"{'-':>7}"
        missed = measured.ratio is not None and workload.goal is not None and measured.ratio < workload.goal
        spread = ", ".join(f"{name} {min(rates):,.0f}..{max(rates):,.0f}" for name, rates in measured.rates.items())
        lines.append(f"{workload.name:<22}{shown}{ratio}{goal} {'!' if missed else ' '} {spread}")
    return "\n".join(lines)


def document(results: list[Measured], runs: int, part: int, reference: Reference | None) -> dict[str, Any]:
    """The results for programs, with what they depend on."""
    return {
        "measuredAt": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"ours": Ours().version(), "original": reference.version() if reference is not None else None},
        "settings": {"storage": "SQLite, synchronous normal", "runs": runs, "partOfJobs": f"1/{part}"},
        "workloads": [
            {
                "name": measured.workload.name,
                "what": measured.workload.what,
                "jobs": measured.workload.jobs // part,
                "ratio": round(measured.ratio, 3) if measured.ratio is not None else None,
                "goal": measured.workload.goal,
                "rates": measured.rates,
                "medians": {name: measured.median(name) for name in measured.rates},
            }
            for measured in results
        ],
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reference", type=Path, default=os.environ.get("BUNQUEUE_REFERENCE"), metavar="DIR")
    parser.add_argument("--runs", type=int, default=5, help="turns of each system; medians are taken (5)")
    parser.add_argument("--workloads", default="", metavar="PART", help="only those whose name holds this text")
    parser.add_argument("--quick", action="store_true", help="one short turn: shows that it works, measures nothing")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where data files go (the system's temporary folder)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    chosen = parser.parse_args(arguments)
    runs, part = (1, QUICK_PART) if chosen.quick else (chosen.runs, 1)
    with tempfile.TemporaryDirectory(prefix="bunqueue-bench-", dir=chosen.folder) as name:
        scratch = Path(name)
        reference = None
        if chosen.reference is not None:
            programs = scratch / "reference"
            programs.mkdir()
            try:
                reference = Reference(Path(chosen.reference), programs)
            except ValueError as error:
                parser.error(str(error))
        workloads = [
            workload
            for workload in WORKLOADS
            if chosen.workloads in workload.name and (workload.kind == "embedded" or reference is not None)
        ]
        bench = Bench(reference, scratch)
        results = [Measured(workload) for workload in workloads]
        for turn in range(runs):
            for measured in results:
                print(f"\r{turn + 1}/{runs} {measured.workload.name:<24}", end="", file=sys.stderr, flush=True)
                bench.once(measured.workload, measured.workload.jobs // part, measured)
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    print(table(results))
    if reference is None:
        print("Without --reference DIR there is nothing to compare with, and no load over TCP.")
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(document(results, runs, part, reference), indent=2) + "\n")


if __name__ == "__main__":
    main()
