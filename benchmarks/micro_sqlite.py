"""What the SQLite journal alone writes and reads a second, without the engine above it.

    python benchmarks/micro_sqlite.py [--jobs 100000] [--folder DIR] [--synchronous full] [--payload 81]

Every figure is the best of ``--runs`` runs: a noisy machine only ever makes them smaller. With ``--busy`` commits run beside a
thread that is busy in Python, which is what a commit meets in an embedded process.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgpack
import uuid_utils
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite.journal import SqliteJournal

from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.storage.changes import REST_COLUMNS, REST_DEFAULTS, ChangeSet, JobRow, MoveRow, ResultRow

RESULT = msgpack.packb({"ok": True})
START = 1_796_053_758_024

#: The change set of a part of the jobs.
Make = Callable[[slice], ChangeSet]


def timeline(*states: str) -> bytes:
    packed: bytes = msgpack.packb([{"state": state, "timestamp": float(START)} for state in states])
    return packed


ACTIVE = timeline("waiting", "active")
DONE = timeline("waiting", "active", "completed")


def payload(size: int) -> bytes:
    """The benchmarks' payload (81 bytes), or about ``size`` bytes of it."""
    packed: bytes = msgpack.packb({"to": "user@example.com", "n": 1, "body": "x" * max(50, size - 31)})
    return packed


def plain_rows(count: int, data: bytes) -> list[JobRow]:
    return [
        JobRow(str(uuid_utils.uuid7()), "emails", "default", data, 0, START + n // 100, START + n // 100, "waiting")
        for n in range(count)
    ]


def full_rows(count: int, data: bytes) -> list[JobRow]:
    names = [name for name, _ in REST_COLUMNS]
    defaults = [default for _, default in REST_COLUMNS]
    rest = list(defaults)
    rest[names.index("max_attempts")] = 5
    rest[names.index("timeout")] = 30_000
    shared = tuple(rest)
    return [row._replace(rest=shared) for row in plain_rows(count, data)]


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.jobs: int = arguments.jobs
        self.runs: int = arguments.runs
        self.folder: str | None = arguments.folder
        self.synchronous: str = arguments.synchronous
        self.data = payload(arguments.payload)
        self.clock = time.process_time if arguments.cpu else time.perf_counter

    @contextmanager
    def journal(self) -> Iterator[SqliteJournal]:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        context = OpenContext(ports=Ports(), version="0", role="server", log=lambda *_, **__: None)
        settings = SqliteStorage.model_validate({"data_path": folder / "bench.db", "synchronous": self.synchronous})
        journal = SqliteJournal(settings, context)
        journal.open()
        try:
            yield journal
        finally:
            journal.close()
            shutil.rmtree(folder)

    def report(self, what: str, unit: str, run: Callable[[], float]) -> None:
        best = max(run() for _ in range(self.runs))
        print(f"{what:<44} {best:>10,.0f} {unit}/s", flush=True)

    def commits(self, count: int, size: int, make: Make, stored: list[JobRow]) -> float:
        """Rows a second of commits of ``size`` rows each, beside ``stored``."""
        with self.journal() as journal:
            fill(journal, stored)
            sets = [make(slice(start, start + size)) for start in range(0, count, size)]
            begun = self.clock()
            for changes in sets:
                journal.commit(changes)
            return count / (self.clock() - begun)

    def all(self) -> None:
        plain = plain_rows(self.jobs, self.data)
        full = full_rows(self.jobs, self.data)
        moves = [MoveRow(row.id, "active", START, None, ACTIVE) for row in plain]
        ends = [MoveRow(row.id, "completed", START, START + n, DONE) for n, row in enumerate(plain)]
        results = [ResultRow(row.id, RESULT, START) for row in plain]
        workloads: tuple[tuple[str, Make, list[JobRow]], ...] = (
            ("put, plain rows", lambda part: ChangeSet(put=plain[part]), []),
            ("put, full rows", lambda part: ChangeSet(put=full[part]), []),
            ("moved to active", lambda part: ChangeSet(moved=moves[part]), plain),
            ("moved to completed", lambda part: ChangeSet(moved=ends[part]), plain),
            ("completed with results", lambda part: ChangeSet(moved=ends[part], results=results[part]), plain),
            ("removed", lambda part: ChangeSet(removed=[row.id for row in plain[part]]), plain),
        )
        for size in (1_000, 100, 10, 1):
            count = min(self.jobs, size * 20_000)
            for what, make, stored in workloads:
                run = partial(self.commits, count, size, make, stored[:count])
                self.report(f"{what}, {size:,} a commit", "jobs", run)
        self.loads(plain)

    def loads(self, rows: list[JobRow]) -> None:
        ids = [row.id for row in rows[:10_000]]
        with self.journal() as journal:
            fill(journal, rows)
            self.report("load waiting jobs", "jobs", lambda: self.timed(journal.load_pending(10_000)))
            parts = [ids[at : at + 100] for at in range(0, len(ids), 100)]
            self.report("read jobs by id, 100 a call", "jobs", lambda: self.timed(map(journal.read_jobs, parts)))
            fill(journal, [done(row, n) for n, row in enumerate(rows)])
            self.report("load completed jobs", "jobs", lambda: self.timed(journal.load_completed(50_000, 10_000)))

    def timed(self, batches: Iterable[Sized]) -> float:
        begun = self.clock()
        count = sum(len(batch) for batch in batches)
        return count / (self.clock() - begun)

    def busy(self) -> None:
        """Commits beside a thread that never leaves the interpreter."""
        plain = plain_rows(60_000, self.data)
        stored, new = plain[:30_000], plain[30_000:]
        ends = [MoveRow(row.id, "completed", START, START, DONE) for row in stored]
        results = [ResultRow(row.id, RESULT, START) for row in stored]
        stop = threading.Event()

        def spin() -> None:
            turns = 0
            while not stop.is_set():
                turns += 1

        workloads: tuple[tuple[str, Make], ...] = (
            ("put", lambda part: ChangeSet(put=new[part])),
            ("completed with results", lambda part: ChangeSet(moved=ends[part], results=results[part])),
        )
        with self.journal() as journal:
            fill(journal, stored)
            thread = threading.Thread(target=spin)
            thread.start()
            try:
                at = 0
                for size in (1, 10, 24, 50, 100, 500, 1_000):
                    for what, make in workloads:
                        times = []
                        for start in range(at, at + 9 * size, size):
                            begun = time.perf_counter()
                            journal.commit(make(slice(start, start + size)))
                            times.append(time.perf_counter() - begun)
                        print(
                            f"busy: {what}, {size:,} a commit".ljust(44),
                            f"{sorted(times)[4] * 1000:>10.1f} ms a commit",
                        )
                    at += 9 * size
            finally:
                stop.set()
                thread.join()


def done(row: JobRow, completed_after: int) -> JobRow:
    return row._replace(state="completed", rest=(START, START + completed_after, *REST_DEFAULTS[2:]))


def fill(journal: SqliteJournal, rows: list[JobRow]) -> None:
    for start in range(0, len(rows), 1_000):
        journal.commit(ChangeSet(put=rows[start : start + 1_000]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--folder", help="where the databases are made (default: the system's folder for temporary files)"
    )
    parser.add_argument("--synchronous", choices=("normal", "full"), default="normal")
    parser.add_argument("--payload", type=int, default=81, help="bytes of a job's data")
    parser.add_argument(
        "--cpu", action="store_true", help="per second of CPU instead of real time: steadier on a shared machine"
    )
    parser.add_argument("--busy", action="store_true", help="only commits beside a busy thread")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    if arguments.busy:
        bench.busy()
    else:
        bench.all()


if __name__ == "__main__":
    main()
