"""Offline care of a database: what is told of it, what damage is found, and how space is given back."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_sqlite.maintenance import SqliteMaintenance
from bunqueue_sqlite.snapshots import SqliteFiles

from bunqueue_core.model.errors import ConfigurationError, JournalError
from bunqueue_core.storage.changes import REST_DEFAULTS, ChangeSet, DlqRow, JobRow, MoveRow, ResultRow


def row(id: str, size: int = 500) -> JobRow:
    return JobRow(id, "q", "n", b"x" * size, 0, 1, 1, "waiting")


@pytest.fixture
def filled(journal: SqliteJournal, db: Path) -> Path:
    """A closed database: 2,000 jobs, of which 10 have completed and 3 are active, and a dead letter."""
    journal.commit(ChangeSet(put=[row(f"{n:04}") for n in range(2_000)], dlq_put=[DlqRow(1, "dead", "q", b"e", 1)]))
    journal.commit(
        ChangeSet(
            moved=[MoveRow(f"{n:04}", "completed", 1, 2, None) for n in range(10)]
            + [MoveRow(f"{n:04}", "active", 1, None, None) for n in range(10, 13)],
            results=[ResultRow(f"{n:04}", b"r", 2) for n in range(10)],
        )
    )
    journal.close()
    return db


def care(path: Path) -> SqliteMaintenance:
    return SqliteMaintenance(SqliteStorage(data_path=path))


def silent(done: int, total: int) -> None:
    """Nobody watches."""


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


# -- info -------------------------------------------------------------------------------------------------------------


def test_info_tells_sizes_schema_and_contents_and_changes_nothing(filled: Path) -> None:
    before = filled.read_bytes()
    found = care(filled).info()
    facts = found.facts
    assert facts["path"] == str(filled)
    assert facts["bytes"] == len(before) == facts["pages"] * facts["pageBytes"]
    assert (facts["logBytes"], facts["freeBytes"], facts["owner"]) == (0, 0, None)
    assert (facts["schemaVersion"], facts["schemaAppliedAt"]) == (1, 1_700_000_000_000)
    assert facts["migrationUnderWay"] is False
    assert found.jobs == {
        "waiting": 1_987,
        "prioritized": 0,
        "delayed": 0,
        "waiting-children": 0,
        "active": 3,
        "completed": 10,
        "failed": 1,
    }
    tables = {name: (rows, size) for name, rows, size in found.tables}
    assert tables["jobs"][0] == 2_000
    assert tables["jobs"][1] is not None
    assert tables["jobs"][1] > 1_000_000
    assert tables["job_results"][0] == 10
    assert not [name for name in tables if name.startswith("sqlite_")]
    assert filled.read_bytes() == before
    assert names(filled) == ["jobs.db"]


OWNER = """
import sys
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.storage.changes import ChangeSet, JobRow

context = OpenContext(ports=Ports(), version="0", role="server", log=lambda *_, **__: None)
journal = SqliteJournal(SqliteStorage(data_path=sys.argv[1]), context)
journal.open()
journal.commit(ChangeSet(put=[JobRow("new", "q", "n", b"x", 0, 1, 1, "waiting")]))
print("open", flush=True)
sys.stdin.readline()
journal.close()
"""


def test_beside_an_owner_info_works_and_the_rest_is_refused(filled: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(filled)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "open\n"
    found = care(filled).info()
    assert found.facts["owner"].startswith(f"process {owner.pid} on host ")
    assert found.jobs["waiting"] == 1_988
    assert found.facts["logBytes"] > 0
    for refused in (care(filled).check, lambda: care(filled).vacuum(silent)):
        with pytest.raises(JournalError, match=f"in use by process {owner.pid} on host"):
            refused()
    owner.communicate("\n")
    assert care(filled).info().facts["owner"] is None
    assert care(filled).check() == []


def test_what_is_not_there_or_not_ours_is_said(tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    foreign = tmp_path / "foreign.db"
    change(foreign, "CREATE TABLE songs(title)")
    before = foreign.read_bytes()
    for use in ("info", "check", "vacuum"):
        arguments = (silent,) if use == "vacuum" else ()
        with pytest.raises(ConfigurationError, match="there is no database"):
            getattr(care(missing), use)(*arguments)
        with pytest.raises(ConfigurationError, match="a database of another program"):
            getattr(care(foreign), use)(*arguments)
    assert not missing.exists()
    assert foreign.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign.db"]


# -- check ------------------------------------------------------------------------------------------------------------


def test_a_sound_database_has_no_findings(filled: Path) -> None:
    assert care(filled).check() == []
    assert names(filled) == ["jobs.db"]


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("DELETE FROM jobs WHERE id = '0003'", "1 results belong to no job"),
        ("UPDATE dlq SET job_id = '0500'", "1 jobs are in the dead letters and waiting or active, too"),
        ("UPDATE jobs SET completed_at = NULL WHERE id = '0003'", "1 jobs are completed without a time of completion"),
        ("UPDATE jobs SET started_at = NULL WHERE id = '0011'", "1 jobs are active without a start time"),
        ("INSERT INTO bunqueue_schema VALUES(9, 1)", "the schema has version 9"),
    ],
)
def test_rows_that_contradict_each_other_are_found(filled: Path, statement: str, finding: str) -> None:
    change(filled, statement)
    (found,) = care(filled).check()
    assert found.startswith(finding)


def test_damaged_pages_are_found(filled: Path) -> None:
    content = bytearray(filled.read_bytes())
    chance = random.Random(2)
    for page in chance.sample(range(10, len(content) // 4_096), 5):
        content[page * 4_096 : (page + 1) * 4_096] = chance.randbytes(4_096)
    filled.write_bytes(content)
    assert care(filled).check()
    with pytest.raises(JournalError):
        care(filled).vacuum(silent)
    assert filled.read_bytes() == content
    assert names(filled) == ["jobs.db"]


def test_a_database_whose_schema_cannot_be_read_is_a_finding_too(filled: Path) -> None:
    content = bytearray(filled.read_bytes())
    content[100:4_096] = b"\xff" * 3_996
    filled.write_bytes(content)
    (found,) = care(filled).check()
    assert "cannot be read" in found


def test_what_a_crash_left_in_the_log_counts(journal: SqliteJournal, db: Path, tmp_path: Path) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    folder = tmp_path / "crashed"
    folder.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(db.with_name(db.name + suffix), folder)
    journal.close()
    crashed = folder / db.name
    assert care(crashed).info().jobs["waiting"] == 1
    assert names(crashed) == ["jobs.db", "jobs.db-wal"]
    assert care(crashed).check() == []
    assert names(crashed) == ["jobs.db"]


@pytest.mark.parametrize("what", ["check", "vacuum"])
def test_a_restore_that_was_interrupted_is_settled_first(
    journal: SqliteJournal, db: Path, tmp_path: Path, what: str
) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    crashed = tmp_path / "crashed" / db.name
    crashed.parent.mkdir()
    shutil.copy(db, crashed)
    # The log was put aside, and the candidate has not taken the database's place yet.
    shutil.copy(f"{db}-wal", f"{crashed}-wal.restore-quarantine-tag")
    shutil.copy(db, SqliteFiles(SqliteStorage(data_path=crashed)).candidate("tag"))
    if what == "check":
        assert care(crashed).check() == []
    else:
        care(crashed).vacuum(silent)
    assert names(crashed) == ["jobs.db"]
    assert care(crashed).info().jobs["waiting"] == 1, "what stood in the log only is there"


# -- vacuum -----------------------------------------------------------------------------------------------------------


def test_vacuum_gives_back_what_deleted_rows_left(filled: Path, make_journal: Any) -> None:
    change(filled, "DELETE FROM jobs WHERE id >= '0100'")
    os.chmod(filled, 0o640)
    before = filled.stat().st_size
    assert care(filled).info().facts["freeBytes"] > 1_000_000
    seen: list[tuple[int, int]] = []
    sizes = care(filled).vacuum(lambda done, total: seen.append((done, total)))
    assert (sizes.before, sizes.after) == (before, filled.stat().st_size)
    assert sizes.after < before / 5
    assert seen[-1][0] == seen[-1][1]
    assert all(0 <= done <= total for done, total in seen)
    assert filled.stat().st_mode & 0o777 == 0o640
    assert names(filled) == ["jobs.db"]
    found = care(filled).info()
    assert (found.facts["freeBytes"], found.facts["schemaVersion"]) == (0, 1)
    journal = make_journal(filled)
    journal.open()
    assert len(journal.read_jobs([f"{n:04}" for n in range(200)])) == 100
    journal.commit(ChangeSet(put=[row("more")._replace(rest=REST_DEFAULTS)]))


def test_vacuum_needs_room_for_the_copy(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = filled.read_bytes()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=len(before) // 2))
    with pytest.raises(JournalError, match=r"vacuum needs [\d,]+ bytes of free space beside the database") as caught:
        care(filled).vacuum(silent)
    assert caught.value.disk_full
    assert filled.read_bytes() == before
    assert names(filled) == ["jobs.db"]


def test_an_interrupted_vacuum_leaves_everything_as_it_was(filled: Path) -> None:
    before = filled.read_bytes()

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        care(filled).vacuum(interrupt)
    assert filled.read_bytes() == before
    assert names(filled) == ["jobs.db"]
    care(filled).vacuum(silent)
