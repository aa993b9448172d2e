"""The log beside the database stays small: when nothing is written, and after somebody has read for long."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite.checkpoints import CHECKPOINT_PAGES, LARGE_LOG, LOG_SIZE_LIMIT
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_sqlite.plugin import SQLITE_DRIVER

from bunqueue_core.broker.frame import IDLE_MS
from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.model.job import JobOptions, JobSpec
from bunqueue_core.storage.changes import ChangeSet, JobRow
from bunqueue_core.testing import SettableClock, deterministic_ports

#: Longest wait for the thread, s.
PATIENCE_S = 60.0

READS = """
import sqlite3, sys

connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM jobs").fetchall()
print("reading", flush=True)
sys.stdin.readline()
"""


@contextmanager
def reading(db: Path) -> Iterator[None]:
    """Another process that reads what there is now, all the while."""
    reader = subprocess.Popen(
        [sys.executable, "-c", READS, str(db)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "reading\n"
    try:
        yield
    finally:
        reader.communicate("\n")


def row(id: str, size: int = 100) -> JobRow:
    return JobRow(id, "q", "n", b"x" * size, 0, 1, 1, "waiting")


def fill(journal: SqliteJournal, bytes: int) -> None:
    """Commit until the log is larger than ``bytes``."""
    n = 0
    while journal.log_bytes() <= bytes:
        journal.commit(ChangeSet(put=[row(f"{n}-{at}", 8_000) for at in range(100)]))
        n += 1


def test_a_pause_empties_the_log(journal: SqliteJournal) -> None:
    journal.commit(ChangeSet(put=[row(str(n), 500) for n in range(2_000)]))
    assert journal.log_bytes() > 1_000_000
    for _ in range(2):
        journal.checkpoint_when_idle()
        assert journal.wait_for_checkpoint(PATIENCE_S)
        assert journal.log_bytes() == 0
    journal.commit(ChangeSet(put=[row("a")]))
    assert len(journal.read_jobs(["0", "1999", "a"])) == 3


def test_what_a_reader_needs_stays_in_the_log(journal: SqliteJournal, db: Path, log: Any) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    with reading(db):
        journal.commit(ChangeSet(put=[row("b")]))
        journal.checkpoint_when_idle()
        assert journal.wait_for_checkpoint(PATIENCE_S)
        assert journal.log_bytes() > 0
    journal.checkpoint_when_idle()
    assert journal.wait_for_checkpoint(PATIENCE_S)
    assert journal.log_bytes() == 0
    assert log == []


def test_a_log_that_a_reader_made_large_is_cut_when_the_reader_ends(journal: SqliteJournal, db: Path, log: Any) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    with reading(db):
        fill(journal, LARGE_LOG + 20_000_000)
        assert not journal.wait_for_checkpoint(0)
        assert journal.pragmas()["wal_autocheckpoint"] == 0
    # nothing is written any more
    assert journal.wait_for_checkpoint(PATIENCE_S)
    assert journal.log_bytes() <= LOG_SIZE_LIMIT
    assert journal.pragmas()["wal_autocheckpoint"] == CHECKPOINT_PAGES
    assert [(level, message) for level, message, _ in log] == [
        ("warn", "SQLite log is large: the database is being read for long"),
        ("info", "SQLite log is small again"),
    ]
    assert log[0][2]["bytes"] > LARGE_LOG


def test_commits_go_on_while_a_large_log_is_cut(journal: SqliteJournal, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    with reading(db):
        fill(journal, LARGE_LOG + 20_000_000)
    n = 0
    while not journal.wait_for_checkpoint(0):
        journal.commit(ChangeSet(put=[row(f"more-{n}")]))
        n += 1
    assert journal.log_bytes() <= LOG_SIZE_LIMIT
    assert len(journal.read_jobs([f"more-{at}" for at in range(n)])) == n


def test_closing_does_not_wait_for_a_reader(journal: SqliteJournal, make_journal: Any, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    with reading(db):
        fill(journal, LARGE_LOG + 10_000_000)
        journal.close()
        assert journal.log_bytes() > LARGE_LOG  # it holds the latest commits
    again = make_journal(db)
    again.open()
    assert len(again.read_jobs(["a", "0-0"])) == 2
    again.close()
    assert [path.name for path in db.parent.iterdir()] == ["jobs.db"]


def test_sizes_of_file_and_log(journal: SqliteJournal, db: Path) -> None:
    journal.commit(ChangeSet(put=[row(str(n), 1_000) for n in range(100)]))
    assert journal.size_bytes() == db.stat().st_size
    assert journal.log_bytes() == db.with_name("jobs.db-wal").stat().st_size > 100_000
    journal.close()
    assert journal.log_bytes() == 0


# -- a broker ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def broker(make_journal: Any, db: Path, clock: SettableClock, log: Any) -> Iterator[tuple[LocalBroker, SqliteJournal]]:
    journal = make_journal(db)
    broker = LocalBroker(
        journal,
        ports=deterministic_ports(clock),
        capabilities=SQLITE_DRIVER.capabilities,
        settings=SqliteStorage(data_path=db),
        strategies={},
        log=log,
        role="manual",
    )
    broker.start().result()
    yield broker, journal
    broker.close().result()


def test_a_broker_has_its_log_emptied_once_nothing_is_written(
    broker: tuple[LocalBroker, SqliteJournal], clock: SettableClock
) -> None:
    serving, journal = broker

    def add() -> None:
        serving.push("q", [JobSpec("n", b"\x01", JobOptions(durable=True))]).result(5)

    add()
    for _ in range(5):  # never as long without a commit
        clock.advance(IDLE_MS - 1)
        serving.run_due()
        add()
        assert journal.wait_for_checkpoint(PATIENCE_S)
        assert journal.log_bytes() > 0
    assert serving.statistics()["storageLogBytes"] == journal.log_bytes()
    for _ in range(2):
        clock.advance(IDLE_MS)
        serving.run_due()
    assert journal.wait_for_checkpoint(PATIENCE_S)
    assert journal.log_bytes() == 0
    assert serving.statistics()["storageLogBytes"] == 0
    add()
    assert journal.log_bytes() > 0
    for _ in range(2):
        clock.advance(IDLE_MS)
        serving.run_due()
    assert journal.wait_for_checkpoint(PATIENCE_S)
    assert journal.log_bytes() == 0
