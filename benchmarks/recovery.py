"""How long a server needs to start on a large backlog, beside the original on one of its own.

    python -m benchmarks.recovery --reference DIR [--jobs 1000000] [--runs 3] [--out results.json]

Fills a database of each system with the same waiting jobs, through an embedded queue in a process of its own. Then the systems take
turns: start a server on the database, measure the time from the start of its process until it accepts connections, and ask it for
its counts. What a start takes on an empty database is measured as well: the difference is what the backlog costs. Medians are
compared.

``--profile`` measures nothing, but prints where a start of ours spends its time.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.embedded import QUEUE
from benchmarks.systems import Ours, Reference, System, machine

#: Least ratio of the original's time to ours that is aimed at.
GOAL: Final = 2.0

#: Functions that a profile shows.
PROFILED: Final = 30


def fill(system: System, file: Path, jobs: int) -> int:
    """Add jobs to a new file; the number that a server must find there."""
    system.embedded("add_bulk", jobs, file, "sync")
    return waiting_in(file)


def waiting_in(file: Path) -> int:
    """Jobs in a file that no process has open. Both systems name the table and the state alike."""
    import sqlite3

    connection = sqlite3.connect(file)
    ((count,),) = connection.execute("SELECT count(*) FROM jobs WHERE state = 'waiting'").fetchall()
    connection.close()
    return int(count)


def start(system: System, file: Path, expected: int) -> float:
    """Seconds from the start of a server on ``file`` until it listens; with ``expected`` waiting jobs, or it is an error."""
    from bunqueue_core import Queue

    begun = time.perf_counter()
    with system.server(file) as port:
        seconds = time.perf_counter() - begun
        with Queue(QUEUE, host="127.0.0.1", port=port, command_timeout=120) as queue:
            waiting = queue.get_job_counts()["waiting"]
    if waiting != expected:
        raise RuntimeError(f"{system.name}: {waiting} of {expected} jobs are there")
    return seconds


def measure(systems: list[System], scratch: Path, jobs: int, runs: int) -> dict[str, Any]:
    """Seconds of every start, by system."""
    files = {system.name: scratch / f"{number}.db" for number, system in enumerate(systems)}
    found = {}
    for system in systems:
        _say(f"filling {system.name}")
        found[system.name] = fill(system, files[system.name], jobs)
    results: dict[str, Any] = {
        system.name: {
            "jobs": found[system.name],
            "fileBytes": files[system.name].stat().st_size,
            "full": [],
            "empty": [],
        }
        for system in systems
    }
    for run in range(runs):
        for system in systems if run % 2 == 0 else reversed(systems):
            _say(f"{run + 1}/{runs} {system.name}")
            figures = results[system.name]
            figures["full"].append(start(system, files[system.name], found[system.name]))
            figures["empty"].append(start(system, scratch / f"empty-{system.name.replace(' ', '-')}-{run}.db", 0))
    _say("")
    for figures in results.values():
        full, empty = statistics.median(figures["full"]), statistics.median(figures["empty"])
        figures.update(fullMedian=round(full, 3), emptyMedian=round(empty, 3), backlogSeconds=round(full - empty, 3))
    return results


def profile(scratch: Path, jobs: int) -> None:
    """Print where the time goes when a broker of ours starts on the jobs."""
    from bunqueue_sqlite.plugin import SQLITE_DRIVER
    from bunqueue_sqlite.settings import SqliteStorage

    from bunqueue_core.broker.local import LocalBroker
    from bunqueue_core.model.ports import Ports
    from bunqueue_core.model.rules import BACKOFF_STRATEGIES
    from bunqueue_core.plugins.drivers import OpenContext

    file = scratch / "jobs.db"
    fill(Ours(), file, jobs)
    ports, settings = Ports(), SqliteStorage(data_path=file)

    def log(level: str, message: str, fields: dict[str, Any] | None = None, **more: Any) -> None:
        if level != "debug":
            print(message, {**(fields or {}), **more})

    context = OpenContext(ports=ports, version="0", role="server", log=log)
    for profiler in (None, cProfile.Profile()):
        broker = LocalBroker(
            SQLITE_DRIVER.open(settings, context),
            ports=ports,
            capabilities=SQLITE_DRIVER.capabilities,
            settings=settings,
            strategies=BACKOFF_STRATEGIES,
            log=log,
            role="manual",
        )
        begun = time.perf_counter()
        if profiler is not None:
            profiler.enable()
        broker.start().result()
        if profiler is not None:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(PROFILED)
        print(f"{time.perf_counter() - begun:.2f} s{' with the profiler' if profiler else ''}")
        broker.close().result()


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<50}\r", end="", file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reference", type=Path, default=os.environ.get("BUNQUEUE_REFERENCE"), metavar="DIR")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3, help="starts of each system; medians are taken (3)")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where data files go (the system's temporary folder)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--profile", action="store_true", help="show where a start of ours spends its time")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bunqueue-recovery-", dir=chosen.folder) as name:
        scratch = Path(name)
        if chosen.profile:
            profile(scratch, chosen.jobs)
            return
        systems: list[System] = [Ours()]
        if chosen.reference is not None:
            programs = scratch / "reference"
            programs.mkdir()
            try:
                systems.append(Reference(Path(chosen.reference), programs))
            except ValueError as error:
                parser.error(str(error))
        results = measure(systems, scratch, chosen.jobs, chosen.runs)
        document: dict[str, Any] = {
            "machine": machine(),
            "versions": {system.name: system.version() for system in systems},
            "jobs": chosen.jobs,
            "results": results,
        }
    for name, figures in results.items():
        spread = f"{min(figures['full']):.2f}..{max(figures['full']):.2f}"
        print(
            f"{name:<20} {figures['fullMedian']:>7.2f} s ({spread}), on an empty database {figures['emptyMedian']:.2f} s,"
            f" for {figures['jobs']:,} jobs {figures['backlogSeconds']:.2f} s"
        )
    if len(systems) == 2:
        ours, original = (results[system.name] for system in systems)
        document["ratio"] = round(original["fullMedian"] / ours["fullMedian"], 3)
        document["backlogRatio"] = round(original["backlogSeconds"] / ours["backlogSeconds"], 3)
        print(
            f"ratio {document['ratio']:.2f} of the whole start, {document['backlogRatio']:.2f} of what the backlog costs;"
            f" goal {GOAL}"
        )
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
