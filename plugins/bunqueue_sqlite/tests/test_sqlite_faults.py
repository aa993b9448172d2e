"""Faults of the disk, placed below SQLite: a commit is whole or not there, and the journal goes on and says what it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from bunqueue_sqlite.journal import SqliteJournal

from bunqueue_core.model.errors import JournalError
from bunqueue_core.storage.changes import ChangeSet, DlqRow, JobRow, MoveRow, ResultRow


class FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.step("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.step("sync")
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self._disk.step("truncate")
        super().xTruncate(size)


class FaultyDisk(apsw.VFS):
    """The usual file layer, whose ``n``-th operation from now on fails, and those after it as long as ``lasting``."""

    def __init__(self) -> None:
        self.name = "bunqueue-faulty"
        super().__init__(self.name, "")
        self.operations: tuple[str, ...] = ()
        self.error: type[apsw.Error] = apsw.IOError
        self.left = 0
        self.lasting = False
        self.failed = 0

    def xOpen(self, name: Any, flags: list[int]) -> FaultyFile:
        return FaultyFile(self, name, flags)

    def fail(self, error: type[apsw.Error], *operations: str, after: int = 0, lasting: bool = False) -> None:
        self.error, self.operations, self.left, self.lasting, self.failed = error, operations, after, lasting, 0

    def heal(self) -> None:
        self.operations = ()

    def step(self, operation: str) -> None:
        if operation not in self.operations:
            return
        if self.left > 0:
            self.left -= 1
            return
        self.failed += 1
        if not self.lasting:
            self.operations = ()
        raise self.error("placed here")


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    yield disk
    disk.heal()
    disk.unregister()


@pytest.fixture
def journal(make_journal: Any, db: Path, disk: FaultyDisk) -> Iterator[SqliteJournal]:
    journal: SqliteJournal = make_journal(db, vfs=disk.name)
    journal.open()
    yield journal
    disk.heal()
    journal.close()


def row(id: str, size: int = 100) -> JobRow:
    return JobRow(id, "q", "n", b"x" * size, 0, 1, 1, "waiting")


def changes(n: int, many: int) -> ChangeSet:
    """A change set of several kinds, small (one statement) or large (a transaction)."""
    return ChangeSet(
        removed=[f"old-{n}"],
        put=[row(f"new-{n}-{at}") for at in range(many)],
        moved=[MoveRow("moving", "active", n, None, None)],
        results=[ResultRow("moving", b"%d" % n, n)],
        dlq_put=[DlqRow(n + 1, "x", "q", b"e", n)],
    )


def state(journal: SqliteJournal, n: int) -> tuple[bool, bool, bool, bool, bool]:
    """What of ``changes(n, …)`` is there."""
    return (
        journal.read_jobs([f"old-{n}"]) == {},
        journal.read_jobs([f"new-{n}-0"]) != {},
        journal.read_jobs(["moving"])["moving"].rest[0] == n,
        journal.read_results(["moving"]) == {"moving": b"%d" % n},
        any(entry.id == n + 1 for batch in journal.load_dlq(1_000) for entry in batch),
    )


def refused(journal: SqliteJournal, changes: ChangeSet) -> JournalError | None:
    try:
        journal.commit(changes)
    except JournalError as error:
        return error
    return None


def check(db: Path) -> None:
    connection = apsw.Connection(str(db))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


@pytest.mark.parametrize("many", [3, 200], ids=["small", "large"])
@pytest.mark.parametrize(
    ("error", "disk_full", "says"),
    [
        (apsw.FullError, True, "cannot commit: the disk is full"),
        (apsw.IOError, False, "cannot commit: the disk reported an error"),
    ],
)
def test_a_write_that_fails_undoes_the_change_set(
    journal: SqliteJournal, disk: FaultyDisk, db: Path, many: int, error: Any, disk_full: bool, says: str
) -> None:
    journal.commit(ChangeSet(put=[row("moving"), *(row(f"old-{n}") for n in range(400))]))
    failures = 0
    for n in range(400):
        disk.fail(error, "write", after=n)
        refusal = refused(journal, changes(n, many))
        if refusal is not None:
            failures += 1
            assert str(refusal).startswith(says)
            assert refusal.disk_full is disk_full
            assert str(db) not in str(refusal)
            disk.heal()
            assert state(journal, n) == (False,) * 5
            journal.commit(changes(n, many))
        assert state(journal, n) == (True,) * 5
        if disk.failed == 0:
            break  # it needed fewer writes than there were before the fault
    else:
        pytest.fail("the fault was met at every place; there is no end to the writes of a commit")
    assert failures > 5
    disk.heal()
    journal.close()
    check(db)


def test_a_full_disk_refuses_until_there_is_room(journal: SqliteJournal, disk: FaultyDisk, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("before")]))
    disk.fail(apsw.FullError, "write", lasting=True)
    for _ in range(3):
        with pytest.raises(JournalError) as caught:
            journal.commit(ChangeSet(put=[row("during")]))
        assert caught.value.disk_full
    assert list(journal.read_jobs(["before", "during"])) == ["before"]
    disk.heal()
    journal.commit(ChangeSet(put=[row("during")]))
    assert sorted(journal.read_jobs(["before", "during"])) == ["before", "during"]
    journal.close()
    check(db)


def test_a_sync_that_fails_refuses_a_commit_that_promised_one(
    make_journal: Any, disk: FaultyDisk, tmp_path: Path
) -> None:
    journal = make_journal(tmp_path / "full.db", vfs=disk.name, synchronous="full")
    journal.open()
    disk.fail(apsw.IOError, "sync")
    with pytest.raises(JournalError, match="the disk reported an error"):
        journal.commit(ChangeSet(put=[row("a")]))
    assert journal.read_jobs(["a"]) == {}
    journal.commit(ChangeSet(put=[row("a")]))
    assert list(journal.read_jobs(["a"])) == ["a"]
    journal.close()
    check(tmp_path / "full.db")


def test_a_checkpoint_that_fails_loses_nothing(journal: SqliteJournal, disk: FaultyDisk, db: Path, log: Any) -> None:
    journal.commit(ChangeSet(put=[row(str(n)) for n in range(500)]))
    disk.fail(apsw.FullError, "write", lasting=True)
    journal.checkpoint_when_idle()
    assert journal.wait_for_checkpoint(30)
    assert log == [
        ("warn", "SQLite log could not be carried over", {"error": "cannot checkpoint: the disk is full"}),
    ]
    disk.heal()
    journal.commit(ChangeSet(put=[row("after")]))
    journal.checkpoint_when_idle()
    assert journal.wait_for_checkpoint(30)
    assert journal.log_bytes() == 0
    assert len(journal.read_jobs([*map(str, range(500)), "after"])) == 501


def test_closing_on_a_full_disk_leaves_the_log_for_the_next_opening(
    journal: SqliteJournal, make_journal: Any, disk: FaultyDisk, db: Path, log: Any
) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    disk.fail(apsw.FullError, "write", "truncate", lasting=True)
    journal.close()
    disk.heal()
    assert log.messages == ["SQLite log left beside the database"]
    assert log[0][2]["error"] == "cannot checkpoint: the disk is full"
    assert db.with_name("jobs.db-wal").exists()
    again = make_journal(db)
    again.open()
    assert list(again.read_jobs(["a"])) == ["a"]
    again.close()
    check(db)


def test_opening_on_a_full_disk_says_so_and_gives_the_file_back(
    make_journal: Any, disk: FaultyDisk, tmp_path: Path
) -> None:
    path = tmp_path / "new.db"
    disk.fail(apsw.FullError, "write", lasting=True)
    with pytest.raises(JournalError) as caught:
        make_journal(path, vfs=disk.name).open()
    assert caught.value.disk_full
    disk.heal()
    journal = make_journal(path)
    journal.open()
    assert journal.read_jobs(["a"]) == {}
