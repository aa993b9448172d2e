"""Small adds: wherever they are in the file, they are there, in their order, and every reading sees them."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite import incoming as incoming_module
from bunqueue_sqlite.incoming import MOST_ROWS, SMALL_BYTES, SMALL_ROWS, Quiet, incoming
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_sqlite.maintenance import SqliteMaintenance
from bunqueue_sqlite.migration import Step
from bunqueue_sqlite.schema import INCOMING_TABLE, prepare
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bunqueue_core.model.errors import JournalError
from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.storage.changes import (
    REST_COLUMNS,
    TABLES,
    ChangeSet,
    DlqRow,
    JobRow,
    MoveRow,
    QueueRow,
    ResultRow,
    TableChange,
)
from bunqueue_core.testing import DictJournal

PATIENCE_S = 30


def rest(**columns: Any) -> tuple[Any, ...]:
    return tuple(columns.get(name, default) for name, default in REST_COLUMNS)


DURABLE = rest(extended_options=b"\x81\xa7durable\xc3")


def row(id: str, data: bytes = b"\xc0", rest: tuple[Any, ...] | None = DURABLE) -> JobRow:
    return JobRow(id, "q", "n", data, 0, 1, 1, "waiting", rest)


def rows_in(db: Path, table: str) -> list[str]:
    """What another process sees."""
    connection = sqlite3.connect(f"file:{db}?mode=ro", uri=True)
    try:
        return [id for (id,) in connection.execute(f"SELECT id FROM {table} ORDER BY rowid")]
    finally:
        connection.close()


@pytest.fixture
def unmoved(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What is there stays there however long a test takes, until the function is called: from then on, a moment."""
    monkeypatch.setattr(incoming_module, "QUIET_S", 3_600.0)
    return lambda: monkeypatch.undo()


@contextlib.contextmanager
def refusing_moves(db: Path) -> Iterator[None]:
    """Nobody else writes to the file of an owner; here somebody does, so that what is there cannot be moved."""
    with contextlib.closing(apsw.Connection(str(db))) as other:
        other.execute("CREATE TRIGGER stop BEFORE INSERT ON jobs BEGIN SELECT raise(ABORT, 'no'); END")
    yield
    with contextlib.closing(apsw.Connection(str(db))) as other:
        other.execute("DROP TRIGGER stop")


def read_by_another(db: Path, table: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _LOOK, str(db), table], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return done.stdout.split()


_LOOK = """
import sqlite3, sys
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
print(*(id for (id,) in connection.execute(f"SELECT id FROM {sys.argv[2]} ORDER BY rowid")))
connection.close()
"""


def copy_as_after_a_crash(db: Path, to: Path) -> None:
    """The files as they are now, while their owner has them open."""
    for suffix in ("", "-wal"):
        to.with_name(to.name + suffix).write_bytes(db.with_name(db.name + suffix).read_bytes())


# -- what goes there --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        ChangeSet(),
        ChangeSet(put=[row("a", rest=rest(ttl=1))]),
        ChangeSet(put=[row("a"), row("b", rest=rest(unique_key="k"))]),
        ChangeSet(put=[row("a", b"x" * (SMALL_BYTES + 1))]),
        ChangeSet(put=[row("a", b"x" * SMALL_BYTES), row("b", b"x")]),
        ChangeSet(put=[row("a", rest=rest(extended_options=b"x" * (SMALL_BYTES + 1)))]),
        ChangeSet(put=[row("a"), row("b", rest=rest(extended_options=b"x" * SMALL_BYTES))]),
        ChangeSet(put=[row(str(n)) for n in range(SMALL_ROWS + 1)]),
        ChangeSet(put=[row("a")], removed=["b"]),
        ChangeSet(put=[row("a")], moved=[MoveRow("b", "active", 1, None, None)]),
        ChangeSet(put=[row("a")], results=[ResultRow("b", b"r", 1)]),
        ChangeSet(put=[row("a")], dlq_put=[DlqRow(1, "b", "q", b"e", 1)]),
        ChangeSet(put=[row("a")], dlq_removed=[1]),
        ChangeSet(put=[row("a")], queues=[QueueRow("q", 1)]),
        ChangeSet(put=[row("a")], queues_removed=["q"]),
        ChangeSet(put=[row("a")], tables=[TableChange(TABLES[0])]),
        ChangeSet(put=[row("a")], obliterated=["q"]),
        ChangeSet(put=[row("a")._replace(state="active")]),
        ChangeSet(put=[row("a"), row("b", rest=None)._replace(state="completed")]),
    ],
)
def test_only_small_plain_adds_go_there(changes: ChangeSet) -> None:
    assert incoming(changes) is None


@pytest.mark.parametrize("count", range(1, SMALL_ROWS + 1))
def test_small_adds_go_there_and_are_read_at_once(journal: SqliteJournal, db: Path, count: int) -> None:
    rows = [row(f"{n}", rest=DURABLE if n % 2 else None) for n in range(count)]
    journal.commit(ChangeSet(put=rows))
    assert journal.read_jobs([*(put.id for put in rows), "unknown"]) == {
        put.id: (*put[:-1], put.rest or rest()) for put in rows
    }
    loaded = [job for batch in journal.load_pending(100) for job in batch]
    assert sorted(job.id for job in loaded) == [put.id for put in rows]


def test_the_last_of_several_rows_of_a_job_counts(journal: SqliteJournal, make_journal: Any, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("a", b"1", rest(ttl=5))]))
    journal.commit(ChangeSet(put=[row("a", b"2")]))
    journal.commit(ChangeSet(put=[row("b", b"1"), row("a", b"3", None)]))
    for found in (journal.read_jobs(["a"]), {job.id: job for batch in journal.load_pending(10) for job in batch}):
        assert (found["a"].data, found["a"].rest) == (b"3", rest())


def loaded(batches: Iterable[list[Any]]) -> list[str]:
    return [job.id for batch in batches for job in batch]


@pytest.mark.parametrize(
    "completed",
    [
        lambda journal: loaded(journal.load_completed(10, 10)),
        lambda journal: loaded([journal.read_completed("q", 0, 10, True)]),
        lambda journal: loaded([journal.read_completed("q", 0, 10, False)]),
        lambda journal: [id for id, _ in journal.completed_before(None, 10, 10)],
        lambda journal: [id for id, _ in journal.completed_before("q", 10, 10)],
        lambda journal: ["b"] * journal.completed_counts()["q"],
    ],
)
def test_a_job_that_is_added_anew_is_not_completed_any_more(journal: SqliteJournal, completed: Any) -> None:
    old = [row(id, rest=rest(completed_at=5))._replace(state="completed") for id in "ab"]
    journal.commit(ChangeSet(put=old))
    assert len(completed(journal)) == 2
    journal.commit(ChangeSet(put=[row("a")]))
    assert completed(journal) == ["b"]


@pytest.mark.parametrize("state", ["active", "completed"])
def test_a_plain_row_of_a_job_that_does_not_wait_is_read_at_once(journal: SqliteJournal, state: str) -> None:
    journal.commit(ChangeSet(put=[row("a", rest=None)._replace(state=state)]))
    found = journal.load_active(10) if state == "active" else journal.read_completed("q", 0, 10, True)
    assert [job.id for job in found] == ["a"]


def test_a_load_has_what_was_committed_before_its_first_batch_was_asked_for(journal: SqliteJournal) -> None:
    journal.commit(ChangeSet(put=[row("a", rest=rest(completed_at=5))._replace(state="completed"), row("b")]))
    pending, ended = journal.load_pending(10), journal.load_completed(10, 10)
    journal.commit(ChangeSet(put=[row("a")]))
    assert sorted(job.id for batch in pending for job in batch) == ["a", "b"]
    assert list(ended) == []


@pytest.mark.parametrize(
    "odd",
    [
        {"data": None},
        {"data": "text"},
        {"name": None},
        {"name": 5},
        {"priority": None},
        {"priority": float("nan")},
        {"priority": True},
        {"priority": 2.0},
        {"priority": 2.5},
        {"priority": "7"},
        {"priority": 2**62 + 1},
        {"run_at": 1.5},
        {"run_at": 2.0**60},
        {"run_at": float("inf")},
        {"created_at": -(2**63)},
        {"rest": (*rest()[:13], False, *rest()[14:])},
        {"rest": (None, None, 0.0, 3.0, True + 999, *rest()[5:])},
        {"run_at": None},
        {"created_at": float("nan")},
        {"queue": None},
        {"created_at": 2**63},
        {"name": "\ud800"},
    ],
    ids=repr,
)
def test_values_become_what_they_become_in_jobs(journal: SqliteJournal, odd: dict[str, Any]) -> None:
    put = row("a", rest=None)._replace(**odd)

    def stored(changes: ChangeSet) -> list[Any]:
        try:
            journal.commit(changes)
        except JournalError as error:
            return [str(error)]
        at_first = journal.read_jobs(["a"])
        return [repr(at_first), repr(journal.read_jobs(["a"])), [len(batch) for batch in journal.load_pending(10)]]

    small = stored(ChangeSet(put=[put]))
    journal.commit(ChangeSet(removed=["a"]))
    assert small == stored(ChangeSet(put=[put], queues=[QueueRow("q", 1)]))


def test_many_jobs_are_read_at_once(journal: SqliteJournal) -> None:
    old = [row(f"{n}", b"old") for n in range(10_000)]
    journal.commit(ChangeSet(put=old))
    journal.commit(ChangeSet(put=[row("5", b"1"), row("9999", b"1"), row("new", b"1")]))
    journal.commit(ChangeSet(put=[row("5", b"2")]))
    found = journal.read_jobs([*(put.id for put in old), "5", "unknown", "new"])
    assert {id: job.data for id, job in found.items()} == {
        **{put.id: b"old" for put in old},
        "5": b"2",
        "9999": b"1",
        "new": b"1",
    }


# -- when it is moved -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unmoved")
def test_a_commit_of_another_kind_finds_them_moved(journal: SqliteJournal, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("a"), row("b"), row("c")]))
    journal.commit(ChangeSet(moved=[MoveRow("a", "active", 5, None, None)], removed=["b"]))
    assert {id: job.state for id, job in journal.read_jobs(["a", "b", "c"]).items()} == {"a": "active", "c": "waiting"}
    journal.commit(ChangeSet(put=[row("d")]))
    journal.commit(ChangeSet(obliterated=["q"]))
    assert journal.read_jobs(["a", "b", "c", "d"]) == {}


@pytest.mark.usefixtures("unmoved")
def test_so_many_are_moved_together(journal: SqliteJournal, db: Path) -> None:
    for n in range(3 * MOST_ROWS + 2):
        journal.commit(ChangeSet(put=[row(f"{n:04}")]))
        assert len(read_incoming(journal)) <= MOST_ROWS
    assert sorted(journal.read_jobs([f"{n:04}" for n in range(3 * MOST_ROWS + 2)])) == [
        f"{n:04}" for n in range(3 * MOST_ROWS + 2)
    ]


def read_incoming(journal: SqliteJournal) -> list[Any]:
    connection = apsw.Connection(str(journal.path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute(f"SELECT id FROM {INCOMING_TABLE}").fetchall()
    finally:
        connection.close()


def test_others_see_them_in_jobs_once_nothing_is_committed(journal: SqliteJournal, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    deadline = time.monotonic() + PATIENCE_S
    while read_by_another(db, "jobs") != ["a"]:
        assert time.monotonic() < deadline
    assert read_by_another(db, INCOMING_TABLE) == []
    assert list(journal.read_jobs(["a"])) == ["a"]


def test_a_move_that_failed_when_all_was_quiet_is_tried_again() -> None:
    tried: list[None] = []
    moved = threading.Event()

    def move() -> bool:
        tried.append(None)
        if len(tried) == 3:
            moved.set()
        return len(tried) >= 3

    quiet = Quiet(lambda: 0, move, retry_s=0.001)
    quiet.begin()
    assert moved.wait(PATIENCE_S)
    quiet.stop()
    assert len(tried) == 3


def test_a_journal_that_could_not_move_when_it_closed_moves_once_it_is_open_again(
    journal: SqliteJournal, db: Path, unmoved: Callable[[], None]
) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    with refusing_moves(db):
        journal.close()
    assert rows_in(db, INCOMING_TABLE) == ["a"]
    unmoved()
    journal.open()
    journal.commit(ChangeSet(put=[row("b")]))
    deadline = time.monotonic() + PATIENCE_S
    while read_by_another(db, "jobs") != ["a", "b"]:
        assert time.monotonic() < deadline


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_system_that_has_no_thread_left_fails_nothing(
    journal: SqliteJournal, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        journal.commit(ChangeSet(put=[row("a")]))
        journal.commit(ChangeSet(put=[row("b")]))
    journal.commit(ChangeSet(put=[row("c")]))
    deadline = time.monotonic() + PATIENCE_S
    while read_by_another(db, "jobs") != ["a", "b", "c"]:
        assert time.monotonic() < deadline


def test_a_journal_without_a_thread_closes(journal: SqliteJournal, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    journal.commit(ChangeSet(put=[row("a")]))
    journal.close()
    assert rows_in(db, "jobs") == ["a"]


def test_a_stop_beside_the_start_of_the_thread_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Quiet(lambda: 0, lambda: True)
    errors: list[BaseException] = []
    start = threading.Thread.start

    def stop() -> None:
        try:
            quiet.stop()
        except BaseException as error:
            errors.append(error)

    stopper = threading.Thread(target=stop)

    def start_late(thread: threading.Thread) -> None:
        if thread is not stopper:
            start(stopper)
            stopper.join(0.05)  # as far as it comes
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    quiet.begin()
    stopper.join(PATIENCE_S)
    assert errors == []
    assert not any(thread.name == "bunqueue-incoming" for thread in threading.enumerate())


@pytest.mark.usefixtures("unmoved")
def test_closing_moves_them(journal: SqliteJournal, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    journal.close()
    assert rows_in(db, "jobs") == ["a"]
    assert rows_in(db, INCOMING_TABLE) == []
    assert not any(thread.name == "bunqueue-incoming" for thread in threading.enumerate())


@pytest.mark.usefixtures("unmoved")
def test_opening_moves_what_a_crash_left(journal: SqliteJournal, make_journal: Any, db: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    journal.commit(ChangeSet(put=[row("old", rest=rest(ttl=1))]))
    journal.commit(ChangeSet(put=[row("a"), row("old", b"new")]))
    copy_as_after_a_crash(db, copy)
    opened = make_journal(copy)
    opened.open()
    found = {job.id: job.data for batch in opened.load_pending(10) for job in batch}
    assert found == {"a": b"\xc0", "old": b"new"}
    opened.close()
    assert rows_in(copy, INCOMING_TABLE) == []


def test_a_start_that_cannot_move_them_reads_them_where_they_are(
    journal: SqliteJournal, make_journal: Any, db: Path, tmp_path: Path, unmoved: Callable[[], None]
) -> None:
    """As on a disk that has become full."""
    copy = tmp_path / "copy.db"
    model = DictJournal()
    model.open()
    active, ended = rest(started_at=1), rest(completed_at=5)
    old = [row(f"{n}", b"old", rest(ttl=n))._replace(priority=n % 3) for n in range(20)]
    old += [row(f"active-{n}", rest=active)._replace(state="active") for n in range(3)]
    old += [row(f"ended-{n}", rest=ended)._replace(state="completed") for n in range(3)]
    anew = ["new-1", "3", "4", "active-1", "new-2", "ended-1", "3", "new-2"]
    commits = [ChangeSet(put=old)]
    for n, id in enumerate(anew):
        commits.append(ChangeSet(put=[row(id, b"%d" % n, DURABLE if n % 2 else None)._replace(priority=n % 4)]))
    for changes in commits:
        model.commit(changes)
        journal.commit(changes)
    copy_as_after_a_crash(db, copy)
    unmoved()
    opened = make_journal(copy)
    with refusing_moves(copy):
        opened.open()
        found, expected = (
            [
                [job for batch in each.load_pending(4) for job in batch],
                sorted(each.load_active(10)),
                [job for batch in each.load_completed(10, 4) for job in batch],
                each.completed_counts(),
                each.read_jobs([put.id for put in old] + anew),
            ]
            for each in (opened, model)
        )
        assert found == expected
        assert rows_in(copy, INCOMING_TABLE) == anew
    deadline = time.monotonic() + PATIENCE_S
    while read_by_another(copy, INCOMING_TABLE):
        assert time.monotonic() < deadline
    assert [job for batch in opened.load_pending(4) for job in batch] == expected[0]


@pytest.mark.usefixtures("unmoved")
def test_a_migration_finds_them_moved(journal: SqliteJournal, db: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    journal.commit(ChangeSet(put=[row("old", rest=rest(ttl=1))]))
    journal.commit(ChangeSet(put=[row("a"), row("old", b"new")]))
    copy_as_after_a_crash(db, copy)
    seen: list[Any] = []

    def look(database: Any) -> None:
        seen.extend(database.execute("SELECT id, data, ttl FROM jobs ORDER BY id").fetchall())

    prepare(copy, now=lambda: 5, log=lambda *_, **__: None, steps=[Step(2, look)], target=2)
    assert seen == [("a", b"\xc0", None), ("old", b"new", None)]
    assert rows_in(copy, INCOMING_TABLE) == []


@pytest.mark.usefixtures("unmoved")
def test_a_snapshot_holds_them(journal: SqliteJournal, make_journal: Any, tmp_path: Path) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    snapshot = tmp_path / "snapshot.db"
    journal.snapshot(snapshot)
    assert (rows_in(snapshot, "jobs"), rows_in(snapshot, INCOMING_TABLE)) == (["a"], [])
    opened = make_journal(snapshot)
    opened.open()
    assert list(opened.read_jobs(["a"])) == ["a"]


@pytest.mark.usefixtures("unmoved")
def test_what_is_told_of_the_file_counts_them(journal: SqliteJournal, db: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    journal.commit(ChangeSet(put=[row(f"{n}") for n in range(20)]))
    journal.commit(ChangeSet(put=[row("a"), row("3", b"again")]))
    journal.commit(ChangeSet(put=[row("a", b"again")]))
    copy_as_after_a_crash(db, copy)
    assert SqliteMaintenance(SqliteStorage(data_path=copy)).info().jobs["waiting"] == 21
    assert list(SqliteMaintenance(SqliteStorage(data_path=copy)).check()) == []


@pytest.mark.usefixtures("unmoved")
def test_what_contradicts_them_is_found(journal: SqliteJournal, db: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    journal.commit(ChangeSet(put=[row("a")], dlq_put=[DlqRow(1, "a", "q", b"e", 1), DlqRow(2, "b", "q", b"e", 1)]))
    journal.commit(ChangeSet(put=[row("a"), row("b"), row("c")]))
    journal.commit(ChangeSet(put=[row("b")]))
    copy_as_after_a_crash(db, copy)
    found = list(SqliteMaintenance(SqliteStorage(data_path=copy)).check())
    assert found == ["2 jobs are in the dead letters and waiting or active, too"]


def test_a_file_that_lacks_the_table_gains_it(journal: SqliteJournal, make_journal: Any, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    journal.close()
    connection = sqlite3.connect(db)
    connection.execute(f"DROP TABLE {INCOMING_TABLE}")
    connection.commit()
    connection.close()
    assert SqliteMaintenance(SqliteStorage(data_path=db)).info().jobs["waiting"] == 1
    assert list(SqliteMaintenance(SqliteStorage(data_path=db)).check()) == []
    opened = make_journal(db)
    opened.open()
    opened.commit(ChangeSet(put=[row("b")]))
    assert sorted(opened.read_jobs(["a", "b"])) == ["a", "b"]


# -- faults -----------------------------------------------------------------------------------------------------------

WRITER = """
import sys
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.storage.changes import ChangeSet, JobRow

context = OpenContext(ports=Ports(), version="0", role="server", log=lambda *_, **__: None)
journal = SqliteJournal(SqliteStorage(data_path=sys.argv[1]), context)
journal.open()
for n in range(int(sys.argv[2]), 1_000_000):
    journal.commit(ChangeSet(put=[JobRow(f"{n}-{at}", "q", "n", bytes(300), 0, n, n, "waiting") for at in range(1 + n % 3)]))
    sys.stdout.write(f"{n}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("commits", [1, MOST_ROWS // 2, MOST_ROWS + 3, 700])
def test_small_adds_survive_a_kill_and_are_whole(make_journal: Any, db: Path, commits: int) -> None:
    first = 0
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(db), str(first)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(commits):
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        acknowledged = int((writer.stdout.read().rpartition("\n")[0] or str(acknowledged)).rsplit("\n", 1)[-1])
        writer.wait()
        writer.stdout.close()
        journal = make_journal(db)
        journal.open()
        found = {job.id for batch in journal.load_pending(10_000) for job in batch}
        last = max(int(id.partition("-")[0]) for id in found)
        assert last in (acknowledged, acknowledged + 1)
        assert found == {f"{n}-{at}" for n in range(last + 1) for at in range(1 + n % 3)}
        journal.close()
        first = last + 1


@pytest.mark.usefixtures("unmoved")
def test_a_move_that_fails_keeps_them_and_fails_what_is_committed_with_it(
    journal: SqliteJournal, make_journal: Any, db: Path
) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    with refusing_moves(db):
        with pytest.raises(JournalError):
            journal.commit(ChangeSet(results=[ResultRow("x", b"r", 1)]))
        assert journal.read_results(["x"]) == {}
        assert list(journal.read_jobs(["a"])) == ["a"]
    journal.commit(ChangeSet(results=[ResultRow("x", b"r", 1)]))
    assert journal.read_results(["x"]) == {"x": b"r"}
    assert list(journal.read_jobs(["a"])) == ["a"]


@pytest.mark.parametrize("rows", [1, 3])
def test_what_follows_an_add_that_was_interrupted_late_does_not_come_before_it(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch, make_journal: Any, db: Path, rows: int
) -> None:
    """The add is in the file, although its caller was told of an interruption."""
    execute = journal._execute
    assert execute is not None

    def interrupted(sql: str, values: Any = ()) -> None:
        execute(sql, values)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.commit(ChangeSet(put=[row(f"{n}") for n in range(rows)]))
    assert list(journal.read_jobs(["0"])) == ["0"]
    journal.commit(ChangeSet(moved=[MoveRow("0", "active", 5, None, None)]))
    assert [job.state for job in journal.read_jobs(["0"]).values()] == ["active"]
    journal.close()
    opened = make_journal(db)
    opened.open()
    assert [job.id for job in opened.load_active(10)] == ["0"]


# -- all of it --------------------------------------------------------------------------------------------------------

IDS = [f"job-{n}" for n in range(12)]
ids = st.sampled_from(IDS)
small = st.lists(
    st.tuples(ids, st.booleans(), st.binary(max_size=20)), min_size=1, max_size=4, unique_by=lambda put: put[0]
)


class Committing(RuleBasedStateMachine):
    """Small adds among other commits, crashes and orderly stops: the file always holds what a plain reading says."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.model = DictJournal()
        self.model.open()
        self.path = self.folder / f"{id(self)}-0.db"
        self.journal = self._opened()

    def _opened(self) -> SqliteJournal:
        context = OpenContext(ports=Ports(), version="0", role="server", log=lambda *_, **__: None)
        journal = SqliteJournal(SqliteStorage(data_path=self.path), context)
        journal.open()
        return journal

    def _commit(self, changes: ChangeSet) -> None:
        self.model.commit(changes)
        self.journal.commit(changes)

    @rule(puts=small)
    def add(self, puts: list[tuple[str, bool, bytes]]) -> None:
        rows = [row(id, data, DURABLE if durable else None) for id, durable, data in puts]
        self._commit(ChangeSet(put=[put._replace(priority=len(put.data or b"") % 3) for put in rows]))

    @rule(id=ids, ttl=st.integers(1, 5))
    def add_with_options(self, id: str, ttl: int) -> None:
        self._commit(ChangeSet(put=[row(id, b"o", rest(ttl=ttl))]))

    @rule(puts=small, state=st.sampled_from(["prioritized", "delayed", "waiting-children", "active", "completed"]))
    def add_in_a_state(self, puts: list[tuple[str, bool, bytes]], state: str) -> None:
        self._commit(ChangeSet(put=[row(id, data, None)._replace(state=state) for id, _, data in puts]))

    @rule(id=ids, state=st.sampled_from(["waiting", "active", "delayed"]))
    def move(self, id: str, state: str) -> None:
        self._commit(ChangeSet(moved=[MoveRow(id, state, 1, None, None)]))

    @rule(id=ids, at=st.integers(1, 9), result=st.booleans())
    def complete(self, id: str, at: int, result: bool) -> None:
        results = [ResultRow(id, b"r", at)] if result else []
        self._commit(ChangeSet(moved=[MoveRow(id, "completed", 1, at, None)], results=results))

    @rule(id=ids, data=st.binary(max_size=20))
    def recycle(self, id: str, data: bytes) -> None:
        self._commit(ChangeSet(removed=[id], put=[row(id, data)]))

    @rule(puts=small)
    def be_interrupted_late(self, puts: list[tuple[str, bool, bytes]]) -> None:
        """What was to be committed is, but its caller does not learn it."""
        execute, live = self.journal._execute, self.journal._live
        assert execute is not None
        assert live is not None

        def interrupted(sql: str, values: Any = ()) -> None:
            execute(sql, values)
            if live.get_autocommit():
                raise KeyboardInterrupt

        self.journal._execute = interrupted
        with pytest.raises(KeyboardInterrupt):
            self._commit(ChangeSet(put=[row(id, data) for id, _, data in puts]))
        self.journal._execute = execute

    @rule(id=ids)
    def remove(self, id: str) -> None:
        self._commit(ChangeSet(removed=[id]))

    @rule(puts=small)
    def start_over(self, puts: list[tuple[str, bool, bytes]]) -> None:
        self._commit(ChangeSet(obliterated=["q"], put=[row(id, data) for id, _, data in puts]))

    @rule()
    def stop_and_start(self) -> None:
        self.journal.close()
        self.journal = self._opened()

    @rule()
    def crash_and_start(self) -> None:
        self.number += 1
        after = self.folder / f"{id(self)}-{self.number}.db"
        copy_as_after_a_crash(self.path, after)
        self.journal.close()
        self.path = after
        self.journal = self._opened()

    @rule()
    def load(self) -> None:
        ours = [job for batch in self.journal.load_pending(5) for job in batch]
        theirs = [job for batch in self.model.load_pending(5) for job in batch]
        assert ours == theirs
        assert sorted(self.journal.load_active(100)) == sorted(self.model.load_active(100))
        ours = [job for batch in self.journal.load_completed(100, 100) for job in batch]
        theirs = [job for batch in self.model.load_completed(100, 100) for job in batch]
        assert sorted(job.id for job in ours) == sorted(job.id for job in theirs)
        assert self.journal.completed_counts() == self.model.completed_counts()

    @invariant()
    def every_job_is_as_it_was_last_committed(self) -> None:
        assert self.journal.read_jobs(IDS) == self.model.read_jobs(IDS)

    @invariant()
    def what_has_ended_is_as_it_was_last_committed(self) -> None:
        ours, theirs = self.journal, self.model
        assert ours.read_results(IDS) == theirs.read_results(IDS)
        for ascending in (True, False):
            for offset, limit in ((0, 100), (1, 2)):
                assert ours.read_completed("q", offset, limit, ascending) == theirs.read_completed(
                    "q", offset, limit, ascending
                )
        for queue in ("q", None, "other"):
            for limit in (100, 2):
                assert ours.completed_before(queue, 5, limit) == theirs.completed_before(queue, 5, limit)

    def teardown(self) -> None:
        self.journal.close()


@pytest.fixture
def committing(tmp_path: Path) -> type[Committing]:
    class InFolder(Committing):
        folder = tmp_path

    return InFolder


def test_whatever_is_committed_in_between(committing: type[Committing]) -> None:
    case = committing.TestCase
    case.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
    case("runTest").runTest()
