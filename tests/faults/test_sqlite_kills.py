"""Processes that work on a SQLite file are killed at random moments, while they load it and while they migrate it.

After each kill: no durable add and no outcome that was answered is lost, nothing that has ended runs again, a parent never runs
before its children have ended, every row is rewritten once, and the file is sound.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgpack
import pytest
from bunqueue_sqlite.migration import PROGRESS_TABLE
from fixtures.sqlite_bench import check_integrity, open_broker, open_journal

from bunqueue_core.model.requests import PullRequest
from bunqueue_core.storage.changes import ChangeSet, DlqRow, JobRow

#: Kills in the suite, 25 in all; and in the campaign, 500 (``make test ARGS="-m campaign tests/faults/test_sqlite_kills.py"``).
LOAD_KILLS, MIGRATION_KILLS = 13, 12
CAMPAIGN_LOAD_KILLS, CAMPAIGN_MIGRATION_KILLS = 260, 240

#: A kill comes this long after the process has begun to work, at random, ms.
KILL_AFTER_MS = (10, 300)

TESTS = Path(__file__).parents[1]


def seed() -> int:
    """A new seed each run, or that of a run to be repeated."""
    value = int(os.environ.get("BUNQUEUE_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"repeat with BUNQUEUE_TEST_SEED={value}")
    return value


class Process:
    """A process that prints facts until it is killed."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments], cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        self._seen = b""

    def read_until(self, enough: int, until: float = float("inf")) -> bool:
        """Read what it prints until there are ``enough`` lines or a moment has come (monotonic s). False if it ended itself."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._out, selectors.EVENT_READ)
            while self._seen.count(b"\n") < enough:
                left = until - time.monotonic()
                if left <= 0:
                    return True
                if ready.select(None if left == float("inf") else left):
                    chunk = os.read(self._out.fileno(), 65_536)
                    if not chunk:
                        return False
                    self._seen += chunk
        return True

    def kill(self) -> list[str]:
        """Kill it, and give all that it has printed, whole lines only."""
        self._process.send_signal(signal.SIGKILL)
        rest, self.problem = self._process.communicate()
        return (self._seen + rest).decode().split("\n")[:-1]

    def end(self) -> tuple[int, str]:
        """Wait for its own end; exit code and what it complained about."""
        _, problem = self._process.communicate()
        return self._process.returncode, problem.decode()


# -- under load -------------------------------------------------------------------------------------------------------


class Ledger:
    """What has been answered."""

    def __init__(self) -> None:
        self.added: set[str] = set()
        self.parents: dict[str, str] = {}
        self.done: dict[str, str] = {}
        self.dead: set[str] = set()
        self.gone: set[str] = set()
        self.forgiven: set[str] = set()  #: removed by an acknowledgement that was stored but not answered any more

    def note(self, facts: list[str]) -> None:
        for fact in facts:
            match fact.split(" "):
                case ["add", id]:
                    self.added.add(id)
                case ["child", id, parent]:
                    self.parents[id] = parent
                case ["done", id, result]:
                    self.done[id] = result
                case ["dead", id]:
                    self.dead.add(id)
                case ["gone", id]:
                    self.gone.add(id)

    def check(self, path: Path) -> None:
        """Start a broker on what the kill left behind, and hold it against what was answered."""
        broker, _ = open_broker(path)
        ended = self.done.keys() | self.dead | self.gone
        ids = sorted(self.added | ended)
        states = dict(zip(ids, broker.states(ids).value, strict=True))
        # Whatever ended without an answer may have ended; whatever was answered has.
        assert {id for id in ids if states[id] == "unknown"} <= self.gone | self._may_be_removed(states)
        assert {states[id] for id in self.done} <= {"completed"}
        assert {states[id] for id in self.dead} <= {"failed"}
        assert {states[id] for id in self.gone} <= {"unknown"}
        results = broker.results(sorted(self.done)).value
        assert results == [msgpack.packb(self.done[id]) for id in sorted(self.done)]
        for queue in ("load", "parents"):
            taken = broker.pull(PullRequest(queue, count=1_000_000, owner="w", lock_ttl_ms=60_000)).result(30)
            assert not {job.id for job, _ in taken} & ended, "what had ended runs again"
            if queue == "parents":
                unfinished = [id for id in self.parents if states[id] not in ("completed", "unknown")]
                early = {job.id for job, _ in taken} & {self.parents[id] for id in unfinished}
                assert not early, "a parent runs before its children have completed"
        broker.close().result()
        check_integrity(path)

    def _may_be_removed(self, states: dict[str, str]) -> set[str]:
        """Acknowledgements with removal that were stored before the kill but answered to nobody: at most one of each thread."""
        unanswered = {id for id, state in states.items() if state == "unknown"} - self.gone
        assert len(unanswered - self.forgiven) <= 2
        self.forgiven |= unanswered
        return unanswered


def kill_under_load(path: Path, kills: int, chance: random.Random) -> Ledger:
    ledger = Ledger()
    for _ in range(kills):
        process = Process("-m", "fixtures.sqlite_load", str(path), str(chance.randrange(2**32)))
        alive = process.read_until(1)
        if alive:
            alive = process.read_until(10**9, time.monotonic() + chance.uniform(*KILL_AFTER_MS) / 1000)
        assert alive, process.end()[1]
        ledger.note(process.kill())
        assert not process.problem, process.problem.decode()
        ledger.check(path)
    return ledger


@pytest.mark.timeout(300)
def test_answered_work_of_an_embedded_broker_survives_kills(tmp_path: Path) -> None:
    ledger = kill_under_load(tmp_path / "jobs.db", LOAD_KILLS, random.Random(seed()))
    # The load was one: there was something of each kind to lose.
    for kind in (ledger.added, ledger.done, ledger.dead, ledger.gone, ledger.parents):
        assert len(kind) > LOAD_KILLS


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_answered_work_of_an_embedded_broker_survives_many_kills(tmp_path: Path) -> None:
    chance = random.Random(seed())
    for round in range(CAMPAIGN_LOAD_KILLS // LOAD_KILLS):
        kill_under_load(tmp_path / f"jobs-{round}.db", LOAD_KILLS, chance)


# -- during a migration -----------------------------------------------------------------------------------------------

#: Brings a file of version 1 to version 3: two times a mark is added to every payload. It says "batch" after each transaction. A
#: second argument is how many bytes files may grow to.
MIGRATES = """
import os, sys
from pathlib import Path
from bunqueue_sqlite import migration, schema
from bunqueue_sqlite.migration import Rewrite, Step

migration.BATCH_ROWS = 10
migration.REPORT_S = 0.0

def log(level, message, **fields):
    if message == "SQLite migration progress":
        os.write(1, b"batch\\n")

def mark(values):
    return (values[0] + b"+",)

steps = (
    Step(
        2,
        lambda db: db.execute("ALTER TABLE jobs ADD COLUMN colour TEXT"),
        (Rewrite("payloads", "jobs", "id", ("data",), mark), Rewrite("letters", "dlq", "id", ("entry",), mark)),
    ),
    Step(3, lambda db: None, (Rewrite("payloads", "jobs", "id", ("data",), mark),)),
)
if len(sys.argv) > 2:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
schema.prepare(Path(sys.argv[1]), now=lambda: 1, log=log, steps=steps, target=3)
"""

ROWS = 1_500
LETTERS = 200


def file_of_version_1(path: Path) -> None:
    journal = open_journal(path)
    journal.commit(
        ChangeSet(
            put=[JobRow(f"{n:05}", "q", "n", b"+", 0, 1, 1, "waiting") for n in range(ROWS)],
            dlq_put=[DlqRow(n + 1, "x", "q", b"+", n) for n in range(LETTERS)],
        )
    )
    journal.close()


def marks(path: Path) -> tuple[list[int], list[int], int]:
    """How often each job's and each letter's payload was rewritten, and the version that is recorded."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    jobs = [len(data) - 1 for (data,) in connection.execute("SELECT data FROM jobs ORDER BY id")]
    letters = [len(entry) - 1 for (entry,) in connection.execute("SELECT entry FROM dlq ORDER BY id")]
    ((version,),) = connection.execute("SELECT max(version) FROM bunqueue_schema").fetchall()
    connection.close()
    return jobs, letters, version


def check_half_way(path: Path) -> None:
    """Batches go by key, and commit with how far they came: two levels at most, the higher one in front."""
    jobs, letters, version = marks(path)
    assert version in (1, 2, 3)
    assert jobs == sorted(jobs, reverse=True)
    assert jobs[0] - jobs[-1] <= 1
    assert letters == sorted(letters, reverse=True)
    assert version == 1 or jobs[-1] >= version - 1


def kill_while_migrating(folder: Path, kills: int, chance: random.Random) -> int:
    """Kill migrations until ``kills`` are done; a new file whenever one is through. Gives the number of files that were."""
    done = files = 0
    batches = 2 * ROWS // 10 + LETTERS // 10
    while done < kills:
        path = folder / f"{files}.db"
        if not path.exists():
            file_of_version_1(path)
        process = Process("-c", MIGRATES, str(path))
        if process.read_until(chance.randrange(1, batches // 2)):
            process.kill()
            done += 1
            check_half_way(path)
            continue
        code, problem = process.end()
        assert code == 0, problem
        assert marks(path) == ([2] * ROWS, [1] * LETTERS, 3)
        files += 1
    code, problem = Process("-c", MIGRATES, str(folder / f"{files}.db")).end()
    assert code == 0, problem
    assert marks(folder / f"{files}.db") == ([2] * ROWS, [1] * LETTERS, 3)
    connection = sqlite3.connect(folder / f"{files}.db")
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    connection.close()
    assert PROGRESS_TABLE not in names
    return files + 1


@pytest.mark.timeout(300)
def test_a_migration_that_is_killed_goes_on_and_rewrites_every_row_once(tmp_path: Path) -> None:
    assert kill_while_migrating(tmp_path, MIGRATION_KILLS, random.Random(seed())) >= 1


@pytest.mark.timeout(300)
def test_a_migration_on_a_full_disk_stops_the_start_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="no file size limits here")
    path = tmp_path / "jobs.db"
    file_of_version_1(path)
    stopped = 0
    for size in range(1, 10**7, 60_000):
        code, problem = Process("-c", MIGRATES, str(path), str(size)).end()
        check_half_way(path)
        if code == 0:
            break
        assert "JournalError: cannot prepare the database: the disk reported an error (SQLITE_IOERR_WRITE)" in problem
        stopped += 1
    assert stopped > 3
    assert marks(path) == ([2] * ROWS, [1] * LETTERS, 3)


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_a_migration_that_is_killed_often_goes_on_and_rewrites_every_row_once(tmp_path: Path) -> None:
    assert kill_while_migrating(tmp_path, CAMPAIGN_MIGRATION_KILLS, random.Random(seed())) > 10
