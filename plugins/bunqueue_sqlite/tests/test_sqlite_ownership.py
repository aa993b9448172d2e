"""One process owns a file: real processes, their deaths and forks, and what others may still do."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bunqueue_sqlite.files import OwnerLock
from bunqueue_sqlite.journal import SqliteJournal

from bunqueue_core.model.errors import ConfigurationError, JournalError
from bunqueue_core.storage.changes import ChangeSet, JobRow, QueueRow

#: Opens a journal, says so, and waits for a line before it ends.
OWNER = """
import sys
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import OpenContext

context = OpenContext(ports=Ports(), version="0", role="server", log=lambda *_, **__: None)
journal = SqliteJournal(SqliteStorage(data_path=sys.argv[1]), context)
journal.open()
print("open", flush=True)
sys.stdin.readline()
journal.close()
"""


def row(id: str) -> JobRow:
    return JobRow(id, "q", "n", b"\xc0", 0, 1, 1, "waiting")


@pytest.fixture
def owner(db: Path) -> Any:
    """Another process that has the database open."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(db)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_and_told_who_the_owner_is(make_journal: Any, db: Path, owner: Any) -> None:
    before = db.read_bytes()
    with pytest.raises(JournalError) as caught:
        make_journal(db).open()
    assert caught.value.busy
    assert f"in use by process {owner.pid} on host {socket.gethostname()};" in str(caught.value)
    assert db.read_bytes() == before
    owner.communicate("\n")
    journal = make_journal(db)
    journal.open()
    journal.commit(ChangeSet(put=[row("a")]))


def test_a_killed_owner_leaves_nothing_in_the_way(make_journal: Any, db: Path, owner: Any) -> None:
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert db.with_name("jobs.db.owner").exists()
    journal = make_journal(db)
    journal.open()
    assert json.loads(db.with_name("jobs.db.owner").read_text())["pid"] == os.getpid()


def test_a_second_opening_in_one_process_is_refused(journal: SqliteJournal, make_journal: Any, db: Path) -> None:
    with pytest.raises(JournalError, match=rf"process {os.getpid()} on host .*, this process;"):
        make_journal(db).open()
    with pytest.raises(JournalError, match="open already"):
        journal.open()
    journal.commit(ChangeSet(put=[row("a")]))
    assert list(journal.read_jobs(["a"])) == ["a"]


def test_another_spelling_of_the_path_is_the_same_file(journal: SqliteJournal, make_journal: Any, db: Path) -> None:
    (db.parent / "link.db").symlink_to(db)
    with pytest.raises(JournalError, match="in use"):
        make_journal(db.parent / "link.db").open()


def test_a_closed_journal_can_be_opened_again(journal: SqliteJournal) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    for _ in range(3):
        journal.close()
        journal.open()
    assert list(journal.read_jobs(["a"])) == ["a"]


def test_a_refused_file_is_not_held(make_journal: Any, db: Path) -> None:
    db.write_text("notes")
    with pytest.raises(ConfigurationError):
        make_journal(db).open()
    assert [path.name for path in db.parent.iterdir()] == ["jobs.db"]
    db.unlink()
    make_journal(db).open()


def test_a_lock_file_that_says_nothing_does_not_hide_the_refusal(db: Path) -> None:
    first = OwnerLock(db)
    first.acquire()
    first.path.write_text("")
    with pytest.raises(JournalError, match="in use by another process;"):
        OwnerLock(db).acquire()
    first.release()
    first.release()


def test_a_lock_file_that_is_removed_while_it_is_taken_is_not_trusted(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the lock file and locking it its owner may remove it; the lock would then be on a file without a name."""
    late = OwnerLock(db)
    opened: list[Any] = []
    open_really = os.open

    def open_then_lose(path: Any, *arguments: Any) -> int:
        fd = open_really(path, *arguments)
        if not opened:
            opened.append(fd)
            os.unlink(path)
        return fd

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_then_lose)
        late.acquire()
    with pytest.raises(JournalError, match="in use"):
        OwnerLock(db).acquire()
    late.release()
    assert not late.path.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(make_journal: Any, db: Path) -> None:
    db.parent.chmod(0o500)
    try:
        with pytest.raises(ConfigurationError, match="the folder must be writable"):
            make_journal(db).open()
    finally:
        db.parent.chmod(0o700)


READS = """
import sqlite3, sys
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
print(connection.execute("SELECT id FROM jobs ORDER BY id").fetchall())
connection.close()
"""


def test_another_process_may_read_beside_the_owner(journal: SqliteJournal, db: Path) -> None:
    for n in range(3):
        # the queue's row beside it: a job alone is seen in another table first (see test_sqlite_incoming.py)
        journal.commit(ChangeSet(put=[row(f"job-{n}")], queues=[QueueRow("q", n)]))
        seen = subprocess.run(
            [sys.executable, "-c", READS, str(db)], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        assert seen.strip() == str([(f"job-{m}",) for m in range(n + 1)])
    journal.commit(ChangeSet(put=[row("last")]))
    assert len(journal.read_jobs(["job-0", "job-1", "job-2", "last"])) == 4


def test_a_reader_that_stays_does_not_hinder_opening(journal: SqliteJournal, make_journal: Any, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    journal.close()
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(c.execute('SELECT id FROM jobs').fetchall(), flush=True);"
        "sys.stdin.readline(); c.close()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", script, str(db)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "[('a',)]\n"
    again = make_journal(db)
    again.open()
    again.commit(ChangeSet(put=[row("b")]))
    again.close()
    reader.communicate("\n")
    connection = sqlite3.connect(db)
    assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (2,)
    connection.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_neither_uses_the_journal_nor_holds_the_lock(
    journal: SqliteJournal, make_journal: Any, db: Path
) -> None:
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    said = context.Queue()

    def child() -> None:
        try:
            journal.commit(ChangeSet(put=[row("child")]))
            said.put("committed")
        except JournalError as error:
            said.put(str(error))
        journal.close()
        ready.set()
        done.wait(60)

    process = context.Process(target=child)
    process.start()
    assert ready.wait(60)
    assert said.get(timeout=60) == "the journal is closed"
    # the parent's lock still holds …
    with pytest.raises(JournalError, match="in use"):
        make_journal(db).open()
    journal.commit(ChangeSet(put=[row("parent")]))
    # … and the child does not keep it when the parent lets go
    journal.close()
    again = make_journal(db)
    again.open()
    assert sorted(again.read_jobs(["child", "parent"])) == ["parent"]
    done.set()
    process.join()
    assert process.exitcode == 0
