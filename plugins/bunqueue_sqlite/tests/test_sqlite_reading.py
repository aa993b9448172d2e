"""Loads, reads and snapshots beside commits, and the life of the connections behind them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from bunqueue_sqlite import reading
from bunqueue_sqlite.journal import SqliteJournal

from bunqueue_core.model.errors import JournalError
from bunqueue_core.storage.changes import REST_COLUMNS, REST_DEFAULTS, ChangeSet, JobRow, MoveRow, QueueRow, ResultRow


def row(
    id: str, state: str = "waiting", *, priority: int = 0, run_at: int = 1, queue: str = "q", size: int = 1
) -> JobRow:
    return JobRow(id, queue, "n", b"x" * size, priority, 1, run_at, state)


def done(id: str, completed_at: int, queue: str = "q") -> JobRow:
    return row(id, "completed", queue=queue)._replace(rest=(None, completed_at, *REST_DEFAULTS[2:]))


def test_pending_jobs_of_all_queues_come_in_one_order(journal: SqliteJournal) -> None:
    rows = [
        row(
            f"job-{n:03}", priority=n % 4 - 1, run_at=n // 7, queue=f"q{n % 5}", state="delayed" if n % 3 else "waiting"
        )
        for n in range(500)
    ]
    journal.commit(ChangeSet(put=rows))
    loaded = [job for batch in journal.load_pending(64) for job in batch]
    expected = sorted(rows, key=lambda job: (-job.priority, job.run_at, job.id))
    assert [job.id for job in loaded] == [job.id for job in expected]
    assert {type(job).__name__ for job in loaded} == {"StoredJob"}


def test_pending_jobs_come_with_every_column(journal: SqliteJournal) -> None:
    names = [name for name, _ in REST_COLUMNS]
    rows = []
    for n in range(200):
        rest = list(REST_DEFAULTS)
        if n % 3:  # one column differs from its default, each in turn; nulls where a column has another default
            name = names[n % len(names)]
            rest[names.index(name)] = None if name in ("progress", "remove_on_complete", "remove_on_fail") else b"7"
        rows.append(row(f"{n:03}", run_at=n)._replace(rest=tuple(rest)))
    journal.commit(ChangeSet(put=rows))
    loaded = [job for batch in journal.load_pending(64) for job in batch]
    assert loaded == [(*job[:8], job.rest) for job in rows]


def test_a_load_shows_what_there_was_when_it_began(journal: SqliteJournal) -> None:
    journal.commit(ChangeSet(put=[row(f"{n:03}") for n in range(100)]))
    batches = journal.load_pending(10)
    loaded = [job.id for job in next(batches)]
    journal.commit(
        ChangeSet(
            put=[row("500"), row("001", priority=-5)], removed=["050"], moved=[MoveRow("060", "active", 1, None, None)]
        )
    )
    loaded += [job.id for batch in batches for job in batch]
    assert loaded == [f"{n:03}" for n in range(100)]


def test_completed_jobs_of_one_queue_among_many(journal: SqliteJournal) -> None:
    journal.commit(ChangeSet(put=[done(f"{n:03}", n // 2, f"q{n % 3}") for n in range(300)]))
    assert journal.completed_before("q1", 20, 5) == [(f"{n:03}", "q1") for n in (1, 4, 7, 10, 13)]
    assert journal.completed_before("q1", 20, 1_000)[-1] == ("040", "q1")
    assert journal.completed_before(None, 1, 10) == [("000", "q0"), ("001", "q1"), ("002", "q2"), ("003", "q0")]
    assert journal.completed_before("other", 1_000, 10) == []
    newest = [job.id for batch in journal.load_completed(4, 3) for job in batch]
    assert newest == ["299", "298", "297", "296"]


def test_an_unfinished_load_does_not_hinder_closing(journal: SqliteJournal, make_journal: Any, db: Path) -> None:
    journal.commit(ChangeSet(put=[row(str(n)) for n in range(100)]))
    batches = journal.load_pending(10)
    next(batches)
    journal.close()
    with pytest.raises(JournalError):
        list(batches)
    assert [path.name for path in db.parent.iterdir()] == ["jobs.db"]
    make_journal(db).open()


def test_a_closed_journal_answers_nothing(journal: SqliteJournal, tmp_path: Path) -> None:
    journal.close()
    for use in (
        lambda: journal.read_jobs(["a"]),
        lambda: journal.load_queues(),
        lambda: list(journal.load_pending(1)),
        lambda: journal.snapshot(tmp_path / "snapshot"),
        lambda: journal.pragmas(),
    ):
        with pytest.raises(JournalError, match="closed"):
            use()
    assert journal.size_bytes() > 0


def test_many_threads_read_beside_commits(journal: SqliteJournal) -> None:
    journal.commit(ChangeSet(put=[row(str(n)) for n in range(200)]))
    problems: list[BaseException] = []
    ended = threading.Event()

    def read() -> None:
        try:
            while not ended.is_set():
                assert len(journal.read_jobs([str(n) for n in range(200)])) == 200
                assert len(journal.load_active(1_000)) in range(201)
                assert sum(map(len, journal.load_pending(50))) in range(201)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(200):
        journal.commit(
            ChangeSet(moved=[MoveRow(str(n), "active", n, None, None)], results=[ResultRow(str(n), b"r", 1)])
        )
    ended.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(journal.load_active(1_000)) == 200


# -- snapshots --------------------------------------------------------------------------------------------------------


def test_a_snapshot_beside_commits_is_consistent_and_small(
    journal: SqliteJournal, make_journal: Any, tmp_path: Path
) -> None:
    journal.commit(ChangeSet(put=[row(f"old-{n}", size=2_000) for n in range(2_000)]))
    journal.commit(ChangeSet(removed=[f"old-{n}" for n in range(2_000)], queues=[QueueRow("q", 1)]))
    journal.commit(ChangeSet(put=[row("a"), row("b")]))
    ended = threading.Event()

    def write() -> None:
        n = 0
        while not ended.is_set():
            journal.commit(ChangeSet(put=[row("a", priority=n), row("b", priority=n)]))
            n += 1

    writer = threading.Thread(target=write)
    writer.start()
    paths = [tmp_path / f"snapshot-{n}.db" for n in range(3)]
    for path in paths:
        journal.snapshot(path)
    ended.set()
    writer.join()
    for path in paths:
        assert path.stat().st_size < 200_000 < journal.size_bytes()
        connection = apsw.Connection(str(path))
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
        copy = make_journal(path)
        copy.open()
        found = copy.read_jobs(["a", "b"])
        assert found["a"].priority == found["b"].priority
        assert copy.load_queues() == [QueueRow("q", 1)]
        copy.close()


def test_a_snapshot_overwrites_nothing(journal: SqliteJournal, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(JournalError, match="exists already"):
        journal.snapshot(path)
    assert path.read_text() == "mine"


def test_a_snapshot_that_cannot_be_written_leaves_nothing(journal: SqliteJournal, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot make a snapshot") as caught:
        journal.snapshot(tmp_path / "missing" / "snapshot")
    assert str(tmp_path) not in str(caught.value)
    journal.commit(ChangeSet(put=[row("a")]))
    journal.snapshot(tmp_path / "snapshot")
    assert (tmp_path / "snapshot").exists()


def test_closing_ends_a_snapshot_that_is_under_way(journal: SqliteJournal, tmp_path: Path) -> None:
    for n in range(10):
        journal.commit(ChangeSet(put=[row(f"{n}-{at}", size=2_000) for at in range(1_000)]))
    outcome: list[JournalError | None] = []
    begun = threading.Event()

    def copy() -> None:
        begun.set()
        try:
            journal.snapshot(tmp_path / "snapshot")
            outcome.append(None)
        except JournalError as error:
            outcome.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    begun.wait()
    journal.close()
    thread.join()
    # it was interrupted, or it was quicker than the closing, or it had not begun; half a file is left in no case
    assert (tmp_path / "snapshot").exists() == (outcome == [None])
    assert not (tmp_path / "jobs.db-wal").exists()


def test_a_batch_is_whole_whatever_is_committed_while_it_is_put_together(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last one, behind which the first statement has nothing left to read."""
    columns = (*REST_DEFAULTS[:5], 7, *REST_DEFAULTS[6:])
    rows = [JobRow(f"{n}", "q", "n", b"old", 0, n, n, "waiting", columns) for n in range(3)]
    journal.commit(ChangeSet(put=rows))
    waiting = reading._waiting

    def beside_commits(*args: Any) -> Any:
        anew = [JobRow(f"{n}", "q", "n", b"new", 0, n, n, "waiting") for n in (1, 2)]
        journal.commit(ChangeSet(removed=["0"], put=anew))
        return waiting(*args)

    monkeypatch.setattr(reading, "_waiting", beside_commits)
    assert [tuple(job) for batch in journal.load_pending(2) for job in batch] == [tuple(row) for row in rows]
