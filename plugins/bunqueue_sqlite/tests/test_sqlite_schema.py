"""The file: its tables and settings, its version, and what happens to files that are not ours."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from bunqueue_sqlite import schema
from bunqueue_sqlite.checkpoints import LOG_SIZE_LIMIT
from bunqueue_sqlite.journal import SqliteJournal
from sqlite_utils import Database

from bunqueue_core.model.errors import ConfigurationError, JournalError
from bunqueue_core.storage.changes import JOB_COLUMNS, REST_DEFAULTS, TABLES, ChangeSet, JobRow, QueueRow


def columns_of(path: Path, table: str) -> list[tuple[str, str]]:
    """(name, declared type) of a table, read by the standard module as another program would."""
    connection = sqlite3.connect(path)
    try:
        return [(row[1], row[2]) for row in connection.execute(f'PRAGMA table_info("{table}")')]
    finally:
        connection.close()


def fingerprints(folder: Path) -> dict[str, str]:
    """Every file with what is in it."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def row(id: str) -> JobRow:
    return JobRow(id, "q", "n", b"\xc0", 0, 1, 1, "waiting")


# -- a new file -------------------------------------------------------------------------------------------------------


def test_a_new_file_has_every_table_with_its_columns(journal: SqliteJournal, db: Path) -> None:
    journal.close()
    assert [name for name, _ in columns_of(db, "jobs")] == list(JOB_COLUMNS)
    assert len(JOB_COLUMNS) == 38
    assert columns_of(db, "job_results") == [("job_id", "TEXT"), ("result", "BLOB"), ("completed_at", "INTEGER")]
    assert columns_of(db, "dlq") == [
        ("id", "INTEGER"),
        ("job_id", "TEXT"),
        ("queue", "TEXT"),
        ("entry", "BLOB"),
        ("entered_at", "INTEGER"),
    ]
    assert [name for name, _ in columns_of(db, "queue_state")] == list(QueueRow._fields)
    for table in TABLES:
        assert columns_of(db, table.name) == list(table.columns)


def test_the_short_form_of_a_row_gets_the_same_defaults_as_the_core_has(journal: SqliteJournal) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    assert journal.read_jobs(["a"])["a"].rest == REST_DEFAULTS


def test_connection_settings(journal: SqliteJournal) -> None:
    found = journal.pragmas()
    assert found["journal_mode"] == "wal"
    assert found["synchronous"] == 1
    assert found["cache_size"] == -64_000
    assert found["temp_store"] == 2
    assert found["mmap_size"] == 268_435_456
    assert found["page_size"] == 4_096
    assert found["busy_timeout"] == 5_000
    assert found["journal_size_limit"] == LOG_SIZE_LIMIT
    assert found["encoding"] == "UTF-8"


def test_full_synchronous(make_journal: Any, db: Path) -> None:
    journal = make_journal(db, synchronous="full")
    journal.open()
    assert journal.pragmas()["synchronous"] == 2


def test_the_file_says_whose_it_is_and_of_which_version(journal: SqliteJournal, db: Path) -> None:
    found = journal.pragmas()
    assert found["application_id"] == schema.APPLICATION_ID == 0x62756E51
    assert found["user_version"] == schema.SCHEMA_VERSION
    journal.close()
    connection = sqlite3.connect(db)
    assert connection.execute("SELECT * FROM bunqueue_schema").fetchall() == [
        (schema.SCHEMA_VERSION, 1_700_000_000_000)
    ]
    connection.close()
    assert db.read_bytes()[68:72] == b"bunQ"


def test_closing_leaves_the_file_alone(journal: SqliteJournal, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    assert {path.name for path in db.parent.iterdir()} == {"jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db.owner"}
    journal.close()
    assert [path.name for path in db.parent.iterdir()] == ["jobs.db"]


def test_creating_logs_nothing(journal: SqliteJournal, log: Any) -> None:
    assert log == []


def test_an_empty_file_becomes_a_database(make_journal: Any, db: Path) -> None:
    db.write_bytes(b"")
    journal = make_journal(db)
    journal.open()
    journal.commit(ChangeSet(put=[row("a")]))
    assert list(journal.read_jobs(["a"])) == ["a"]


DIES_WHILE_CREATING = """
import os, sys, apsw
from bunqueue_sqlite import schema

class DiesBeforeTheEnd(apsw.VFS):
    def xDelete(self, name, sync):
        os._exit(9)  # everything is in the file, and the journal that takes it back is still there

vfs = DiesBeforeTheEnd("dies", "")
connection = apsw.Connection(sys.argv[1], vfs="dies")
connection.execute(f"BEGIN; CREATE TABLE jobs(id); PRAGMA application_id = {schema.APPLICATION_ID}; COMMIT")
"""


def test_a_creation_that_was_cut_short_is_done_again(make_journal: Any, db: Path) -> None:
    died = subprocess.run([sys.executable, "-c", DIES_WHILE_CREATING, str(db)], check=False)
    assert died.returncode == 9
    assert db.read_bytes()[68:72] == b"bunQ"
    assert db.with_name("jobs.db-journal").exists()
    journal = make_journal(db)
    journal.open()
    journal.commit(ChangeSet(put=[row("a")]))
    assert list(journal.read_jobs(["a"])) == ["a"]


def test_a_database_without_tables_is_taken(make_journal: Any, db: Path) -> None:
    connection = sqlite3.connect(db)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t(a)")
    connection.execute("DROP TABLE t")
    connection.close()
    journal = make_journal(db)
    journal.open()
    assert journal.pragmas()["application_id"] == schema.APPLICATION_ID


# -- files that are not ours ------------------------------------------------------------------------------------------


def zeros(path: Path) -> None:
    path.write_bytes(bytes(8_192))


def foreign_text(path: Path) -> None:
    path.write_text("just notes\n" * 100)


def foreign_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs(title)")
    connection.execute("INSERT INTO songs VALUES('x')")
    connection.commit()
    connection.close()


def foreign_wal_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA application_id = 7")
    connection.execute("CREATE TABLE songs(title)")
    connection.commit()
    connection.close()


def database_of_the_bun_server(path: Path) -> None:
    connection = sqlite3.connect(path)
    for table in ("jobs", "migrations", "queue_events"):
        connection.execute(f"CREATE TABLE {table}(id)")
    connection.commit()
    connection.close()


def only_in_its_log(path: Path, *tables: str) -> None:
    """A database whose program died before anything was carried over from the log into the file."""
    source = path.parent.parent / f"dying-{path.parent.name}.db"
    connection = sqlite3.connect(source)
    connection.execute("PRAGMA journal_mode = WAL")
    for table in tables:
        connection.execute(f"CREATE TABLE {table}(id)")
    connection.commit()
    for suffix in ("", "-wal"):
        path.with_name(path.name + suffix).write_bytes(source.with_name(source.name + suffix).read_bytes())
    connection.close()
    assert path.stat().st_size == 4_096


def foreign_log(path: Path) -> None:
    only_in_its_log(path, "songs")


def log_of_the_bun_server(path: Path) -> None:
    only_in_its_log(path, "jobs", "migrations", "queue_events")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (foreign_log, "a database of another program (tables: songs)"),
        (log_of_the_bun_server, "a database of the bunqueue server for Bun"),
        (zeros, "is not a SQLite database"),
        (foreign_text, "is not a SQLite database"),
        (foreign_database, "a database of another program (tables: songs)"),
        (foreign_wal_database, "a database of another program (tables: songs)"),
        (database_of_the_bun_server, "a database of the bunqueue server for Bun"),
    ],
)
def test_a_foreign_file_is_refused_and_left_as_it_is(make_journal: Any, db: Path, make: Any, says: str) -> None:
    make(db)
    before = fingerprints(db.parent)
    with pytest.raises(ConfigurationError) as caught:
        make_journal(db).open()
    assert says in str(caught.value)
    assert str(caught.value).startswith("storage.dataPath: ")
    assert fingerprints(db.parent) == before


def test_a_newer_schema_is_refused_and_left_as_it_is(journal: SqliteJournal, make_journal: Any, db: Path) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    journal.close()
    newer(db)
    before = fingerprints(db.parent)
    with pytest.raises(ConfigurationError, match=r"schema version 2, .* versions up to\s+1; upgrade bunqueue_sqlite"):
        make_journal(db).open()
    assert fingerprints(db.parent) == before


def newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO bunqueue_schema VALUES(2, 1)")
    connection.execute("PRAGMA user_version = 2")
    connection.commit()
    connection.close()


def test_a_newer_schema_that_stands_only_in_the_log_is_refused(
    journal: SqliteJournal, make_journal: Any, db: Path, tmp_path: Path
) -> None:
    journal.close()
    # a process of the newer version died before its log was carried over into the file
    connection = apsw.Connection(str(db))
    connection.execute("INSERT INTO bunqueue_schema VALUES(2, 1); PRAGMA user_version = 2")
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in ("jobs.db", "jobs.db-wal"):
        (folder / name).write_bytes((tmp_path / name).read_bytes())
    connection.close()
    assert (folder / "jobs.db").read_bytes()[60:64] == (1).to_bytes(4, "big")
    before = fingerprints(folder)
    with pytest.raises(ConfigurationError, match="schema version 2"):
        make_journal(folder / "jobs.db").open()
    assert fingerprints(folder) == before


LOOKS_INSIDE = """
import sqlite3, sys

connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None)
connection.execute("BEGIN")
for _ in range(2):
    print([id for (id,) in connection.execute("SELECT id FROM jobs")], flush=True)
    sys.stdin.readline()
"""


def test_somebody_who_looks_inside_does_not_keep_it_from_opening(
    journal: SqliteJournal, make_journal: Any, db: Path
) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    journal.close()
    looking = subprocess.Popen(
        [sys.executable, "-c", LOOKS_INSIDE, str(db)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert looking.stdout is not None
    assert looking.stdout.readline() == "['a']\n"
    again = make_journal(db)
    again.open()
    again.commit(ChangeSet(put=[row("b")]))
    assert looking.communicate("\n\n")[0] == "['a']\n"


def test_a_file_that_lost_its_version_is_refused(journal: SqliteJournal, make_journal: Any, db: Path) -> None:
    journal.close()
    connection = sqlite3.connect(db)
    connection.execute("DELETE FROM bunqueue_schema")
    connection.commit()
    connection.close()
    with pytest.raises(JournalError, match="no record of its schema version"):
        make_journal(db).open()


def test_a_damaged_file_is_named_as_such(journal: SqliteJournal, make_journal: Any, db: Path) -> None:
    journal.commit(ChangeSet(put=[row(str(n)) for n in range(500)]))
    journal.close()
    content = bytearray(db.read_bytes())
    content[100:4_096] = b"\xff" * 3_996
    db.write_bytes(content)
    with pytest.raises(JournalError, match="damaged"):
        make_journal(db).open()


# -- migration --------------------------------------------------------------------------------------------------------


def migrate(path: Path, steps: list[schema.Step], target: int, log: Any) -> None:
    schema.prepare(path, now=lambda: 5, log=log, steps=steps, target=target)


def test_steps_run_in_order_each_with_its_mark(journal: SqliteJournal, db: Path, log: Any) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    journal.close()

    def second(database: Database) -> None:
        database.execute("ALTER TABLE jobs ADD COLUMN colour TEXT")

    def third(database: Database) -> None:
        database.execute("UPDATE jobs SET colour = 'blue'")

    migrate(db, [schema.Step(2, second), schema.Step(3, third)], 3, log)
    connection = sqlite3.connect(db)
    assert connection.execute("SELECT id, colour FROM jobs").fetchall() == [("a", "blue")]
    assert [version for version, _ in connection.execute("SELECT * FROM bunqueue_schema")] == [1, 2, 3]
    assert connection.execute("PRAGMA user_version").fetchone() == (3,)
    connection.close()
    assert log.messages == [
        "Starting SQLite migration",
        "Applying SQLite migration step",
        "Completed SQLite migration step",
        "Applying SQLite migration step",
        "Completed SQLite migration step",
        "Completed SQLite migration",
    ]
    level, _, fields = log[-1]
    assert (level, fields["fromVersion"], fields["toVersion"]) == ("info", 1, 3)
    assert fields["databaseBytes"] > 0
    assert fields["durationMs"] >= 0
    assert [path.name for path in db.parent.iterdir()] == ["jobs.db"]


def test_a_failed_step_leaves_the_version_before_it_and_can_be_run_again(
    journal: SqliteJournal, db: Path, log: Any
) -> None:
    journal.close()

    def second(database: Database) -> None:
        database.execute("ALTER TABLE jobs ADD COLUMN colour TEXT")

    def broken(database: Database) -> None:
        database.execute("ALTER TABLE jobs ADD COLUMN shape TEXT")
        database.execute("UPDATE no_such_table SET x = 1")

    with pytest.raises(JournalError, match="cannot prepare the database"):
        migrate(db, [schema.Step(2, second), schema.Step(3, broken)], 3, log)
    assert log[-1][:2] == ("error", "SQLite migration failed")
    assert log[-1][2]["failedVersion"] == 3
    names = [name for name, _ in columns_of(db, "jobs")]
    assert "colour" in names
    assert "shape" not in names
    migrate(db, [schema.Step(2, broken), schema.Step(3, lambda _: None)], 3, log)
    assert log[-1][2]["fromVersion"] == 2


def test_a_version_without_a_way_forward_is_refused(journal: SqliteJournal, db: Path, log: Any) -> None:
    journal.close()
    with pytest.raises(ConfigurationError, match="no way to version 3"):
        migrate(db, [schema.Step(2, lambda _: None)], 3, log)


def test_what_a_later_core_describes_is_added(journal: SqliteJournal, make_journal: Any, db: Path, log: Any) -> None:
    journal.commit(ChangeSet(put=[row("a")], queues=[QueueRow("q", paused=1)]))
    journal.close()
    connection = sqlite3.connect(db)
    connection.execute("DROP TABLE job_logs")
    connection.execute("ALTER TABLE queue_state DROP COLUMN dlq_config")
    connection.commit()
    connection.close()
    again = make_journal(db)
    again.open()
    assert again.load_queues() == [QueueRow("q", paused=1)]
    assert [again.load_table(table) for table in TABLES] == [[] for _ in TABLES]
    assert list(again.read_jobs(["a"])) == ["a"]
    assert log == []


def test_the_steps_lead_to_the_version_that_is_written() -> None:
    assert [step.version for step in schema.STEPS] == list(range(2, schema.SCHEMA_VERSION + 1))
