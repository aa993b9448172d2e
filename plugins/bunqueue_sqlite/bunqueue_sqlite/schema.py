"""The schema, its version, and how a file comes to have it.

Everything here happens before the live connection opens, through sqlite-utils on a connection of its own (the ``sqlite3`` module's
SQLite), which is closed again first: two builds of SQLite on one open file in one process drop each other's locks.

The jobs table
--------------

A table with rowids, not ``WITHOUT ROWID``: with payloads of 80 bytes both insert alike, but moving a job on rewrites its row,
which is 15 % faster with rowids; from payloads of 500 bytes on, ``WITHOUT ROWID`` loses by half (a row then is a key of an index
tree: a quarter as much of it stays on its page, and inner pages hold few). The same was measured for ``job_results``.

Indexes cost more than anything else (figures: plain rows inserted per second of CPU, 1,000 a commit): no index 540,000; those
below 390,000; with one more full index on (queue, created_at, id) 317,000. So there are only two that every row is in:

``idx_jobs_queue_state_created`` (queue, state, created_at, id)
    serves (queue, state), pages of one state, and pages of all states, too: a ``UNION ALL`` over the six states with
    ``ORDER BY created_at, id`` is merged from six walks of this index without sorting.
``idx_jobs_pending`` (queue, priority DESC, run_at, id), only waiting jobs
    serves the next job of a queue by priority and the load at start, which reads the keys from it in one pass.
``idx_jobs_completed`` (completed_at, id, queue), only completed jobs
    serves loading the newest (walked backwards), finding the oldest, and, because it holds the queue, finding the oldest of one
    queue without touching a row. A second index for that would cost every completion 7 %. It ascends, so that new entries go to
    the end of the tree, which SQLite has a short way for: 17 % more completions a second than in the other direction.

Jobs that are added a few at a time are first in a table without any index, and moved together; see ``incoming.py``.

The other paths belong to columns that are mostly null or to states that few jobs are in, so their indexes are partial and cost
nothing to a job that has no such value. The condition of ``idx_jobs_pending`` is written as two comparisons: with
``state IN (…)`` SQLite builds the list anew for every row, which halves the rate of inserts and of moves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import apsw
from sqlite_utils import Database

from bunqueue_core.model.errors import ConfigurationError, JournalError
from bunqueue_core.storage.changes import JOB_COLUMNS, PLAIN_COLUMNS, REST_COLUMNS, TABLES, Table
from bunqueue_sqlite.errors import journal_error
from bunqueue_sqlite.migration import PROGRESS_TABLE, Log, Migration, Step, mark
from bunqueue_sqlite.migration import VERSION_TABLE as VERSION_TABLE

#: Version of the schema that this package reads and writes.
SCHEMA_VERSION: Final = 1

#: ``PRAGMA application_id`` of our files: "bunQ".
APPLICATION_ID: Final = int.from_bytes(b"bunQ", "big")

#: How long to wait for another process that reads the file while it is migrated, ms.
LOCK_WAIT_MS: Final = 5_000

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100

_TEXT = {"id", "queue", "name", "state", "unique_key", "custom_id", "parent_id", "group_id", "progress_msg"}
_BLOB = {"data", "depends_on", "children_ids", "tags", "timeline", "stacktrace", "dlq_retry_state", "extended_options"}
_NULLABLE = {"data", "name", "progress", "remove_on_complete", "remove_on_fail"}

#: Controls of queues as a table like the further ones; its columns are the fields of
#: :class:`~bunqueue_core.storage.changes.QueueRow`.
QUEUE_TABLE: Final = Table(
    "queue_state",
    (
        ("name", "TEXT"),
        ("paused", "INTEGER NOT NULL DEFAULT 0"),
        ("rate_limit", "INTEGER"),
        ("concurrency_limit", "INTEGER"),
        ("rate_limit_duration", "INTEGER"),
        ("rate_limit_expires_at", "INTEGER"),
        ("stall_enabled", "INTEGER"),
        ("stall_interval", "INTEGER"),
        ("max_stalls", "INTEGER"),
        ("stall_grace_period", "INTEGER"),
        ("dlq_config", "BLOB"),
    ),
    order=("name",),
)

#: "Waiting" in the wide sense, as ``idx_jobs_pending`` has it: waiting, prioritized, delayed, waiting-children.
PENDING: Final = "state <> 'active' AND state <> 'completed'"

INDEXES: Final = (
    "CREATE INDEX idx_jobs_queue_state_created ON jobs (queue, state, created_at, id)",
    f"CREATE INDEX idx_jobs_pending ON jobs (queue, priority DESC, run_at, id) WHERE {PENDING}",
    "CREATE INDEX idx_jobs_completed ON jobs (completed_at, id, queue) WHERE state = 'completed'",
    "CREATE INDEX idx_jobs_active ON jobs (started_at) WHERE state = 'active'",
    "CREATE INDEX idx_jobs_delayed ON jobs (run_at) WHERE state = 'delayed'",
    "CREATE INDEX idx_jobs_unique ON jobs (queue, unique_key) WHERE unique_key IS NOT NULL",
    "CREATE INDEX idx_jobs_custom_id ON jobs (custom_id) WHERE custom_id IS NOT NULL",
    "CREATE INDEX idx_jobs_parent ON jobs (parent_id) WHERE parent_id IS NOT NULL",
    "CREATE INDEX idx_jobs_group ON jobs (group_id) WHERE group_id IS NOT NULL",
)


_DEFAULTS: Final[dict[str, Any]] = {"priority": 0, "state": "'waiting'", **dict(REST_COLUMNS)}


def _column(name: str) -> str:
    kind = "TEXT" if name in _TEXT else "BLOB" if name in _BLOB else "INTEGER"
    default = _DEFAULTS.get(name)
    if name == "id":
        kind += " PRIMARY KEY NOT NULL"
    elif name not in _NULLABLE and (name in PLAIN_COLUMNS or default is not None):
        kind += " NOT NULL"
    return f"{name} {kind}{'' if default is None else f' DEFAULT {default}'}"


def _jobs_table() -> str:
    return f"CREATE TABLE jobs ({', '.join(map(_column, JOB_COLUMNS))})"


#: Where small adds are until they are moved to ``jobs``, and its columns; see ``incoming.py``.
INCOMING_TABLE: Final = "jobs_incoming"
INCOMING_COLUMNS: Final = (*PLAIN_COLUMNS, "extended_options")


def _incoming_table() -> str:
    columns = ", ".join(_column(name) for name in PLAIN_COLUMNS).replace(" PRIMARY KEY", "")
    return f"CREATE TABLE IF NOT EXISTS {INCOMING_TABLE} (place INTEGER PRIMARY KEY, {columns}, extended_options BLOB)"


#: Moves everything there is, in the order in which it came. For one transaction.
MOVE_INCOMING: Final = (
    f"INSERT OR REPLACE INTO jobs({','.join(INCOMING_COLUMNS)})"
    f"SELECT {','.join(INCOMING_COLUMNS)} FROM {INCOMING_TABLE} ORDER BY place",
    f"DELETE FROM {INCOMING_TABLE}",
)

#: Tables with statements of their own; the further ones follow from their descriptions.
OWN_TABLES: Final = (
    _jobs_table(),
    _incoming_table(),
    "CREATE TABLE job_results (job_id TEXT PRIMARY KEY NOT NULL, result BLOB, completed_at INTEGER NOT NULL)",
    "CREATE TABLE dlq (id INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL, queue TEXT NOT NULL,"
    " entry BLOB NOT NULL, entered_at INTEGER NOT NULL)",
    "CREATE INDEX idx_dlq_entered_at ON dlq (entered_at)",
)

#: Tables that follow from their descriptions.
DESCRIBED_TABLES: Final[tuple[Table, ...]] = (QUEUE_TABLE, *TABLES)

#: Steps from version 1 on, ascending and without gaps.
STEPS: Final[tuple[Step, ...]] = ()


def prepare(
    path: Path,
    *,
    now: Callable[[], int],
    log: Log,
    vfs: str = "",
    steps: Sequence[Step] = STEPS,
    target: int = SCHEMA_VERSION,
) -> None:
    """Make the file at ``path`` one with our present schema. The caller owns it, and has no connection to it open.

    A file that is not ours, or newer than we know, is left as it is, to the byte.

    Args:
        path: the resolved path of the database.
        now: epoch ms, for the marks of applied versions.
        log: told about each step of a migration.
        vfs: SQLite's file layer for looking at the file; "" is the usual one.
        steps: the steps to older versions' successors.
        target: the version to end at.

    Raises:
        ConfigurationError: the file belongs to another program or to a newer version.
        JournalError: it cannot be read or written (disk full; locked by another process).
    """
    try:
        header = _header(path)
        if not header or (not any(header) and path.with_name(path.name + "-journal").exists()):
            # missing, empty, or all that a crash during its creation left (the journal takes that back when it is opened)
            _create(path, now, target)
            return
        _refuse(path, header)
        if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
            _create(path, now, target)  # a database without any table
            return
        version = int.from_bytes(header[60:64], "big")
        if version <= target:
            version, lacking = _look(path, vfs, target)
            if version == 0:
                _create(path, now, target)
                return
        if version > target:
            raise ConfigurationError(
                f"storage.dataPath: '{path}' has schema version {version}, and this version of bunqueue_sqlite knows versions up to"
                f" {target}; upgrade bunqueue_sqlite, or restore a backup that this version made. Nothing was changed"
            )
        if version < target or lacking:
            _migrate(path, version, now=now, log=log, steps=steps, target=target)
    except (apsw.Error, sqlite3.Error, OSError) as error:
        raise journal_error(error, "prepare the database") from error


def _header(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return b""


def refuse_foreign(path: Path) -> None:
    """Raise unless the file at ``path`` is ours.

    Raises:
        ConfigurationError: it is not; the message says what it is.
    """
    _refuse(path, _header(path))


def _refuse(path: Path, header: bytes) -> None:
    """Raise unless the file is ours, or is a database in which nobody has made anything yet."""
    if not header.startswith(_MAGIC):
        raise ConfigurationError(f"storage.dataPath: '{path}' is not a SQLite database; choose another file")
    application = int.from_bytes(header[68:72], "big")
    if application == APPLICATION_ID:
        return
    names = _table_names(path)
    if not application and names == []:
        return
    if names and {"jobs", "migrations", "queue_events"} <= set(names):
        what = "a database of the bunqueue server for Bun, whose schema is its own"
    elif names:
        what = f"a database of another program (tables: {', '.join(names[:5])}{', …' if len(names) > 5 else ''})"
    else:
        what = "a database of another program"
    raise ConfigurationError(f"storage.dataPath: '{path}' is {what}; choose another file. Nothing was changed")


def _table_names(path: Path) -> list[str] | None:
    """Names of the tables in a foreign file, None if it cannot be read. Nothing of it is changed."""
    try:
        if _log_of(path):  # all its tables may still be there
            connection = connect_to_look(path)
        else:
            # takes no locks and makes no files
            connection = apsw.Connection(
                f"file:{quote(str(path))}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            )
    except (apsw.Error, OSError):
        return None
    try:
        rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
        return [str(name) for (name,) in rows]
    except apsw.Error:
        return None
    finally:
        connection.close()


def _log_of(path: Path) -> bool:
    """True if there is a write-ahead log with something in it beside the file."""
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


def connect_to_look(path: Path, vfs: str = "") -> apsw.Connection:
    """A connection that leaves everything as it is: a log stays what it is, and files that were not there are not left behind."""
    try:
        # Alone, SQLite keeps the log's index in memory instead of making a file for it.
        return _connected(path, vfs, "PRAGMA locking_mode = EXCLUSIVE")
    except apsw.BusyError:
        return _connected(path, vfs, f"PRAGMA busy_timeout = {LOCK_WAIT_MS}")


def _connected(path: Path, vfs: str, pragma: str) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs or None)
    try:
        if _log_of(path):
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute(pragma).fetchall()
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # takes the locks
    except BaseException:
        connection.close()
        raise
    return connection


def _look(path: Path, vfs: str, target: int) -> tuple[int, bool]:
    """(recorded version, whether described tables or columns are lacking) of a file that is ours.

    Version 0 means that nothing is in it: a crash during its creation was taken back just now. A file whose migration was
    interrupted has the version that it came from, unless it was under way to a newer one than we know.

    What an earlier process left in the log beside the file counts; it is not carried over into the file yet, so that a file that
    turns out to be newer stays as it is.
    """
    connection = connect_to_look(path, vfs)
    try:
        if not connection.table_exists(None, VERSION_TABLE):
            if not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall():
                return 0, True
            raise JournalError("the database has no record of its schema version; it is damaged: restore a backup")
        ((version,),) = connection.execute(f"SELECT max(version) FROM {VERSION_TABLE}").fetchall()
        if version is None:
            raise JournalError("the database has no record of its schema version; it is damaged: restore a backup")
        if connection.table_exists(None, PROGRESS_TABLE):
            ((begun,),) = connection.execute(f"SELECT max(version) FROM {PROGRESS_TABLE}").fetchall()
            if begun is not None and int(begun) > target:
                return int(begun), True
        lacking = not connection.table_exists(None, INCOMING_TABLE) or any(
            set(table.column_names)
            - {str(row[1]) for row in connection.execute(f"PRAGMA table_info({_quoted(table.name)})")}
            for table in DESCRIBED_TABLES
        )
        return int(version), lacking
    finally:
        connection.close()


def _exclusive(path: Path) -> Database:
    """sqlite-utils on a connection that nobody else can use the file beside."""
    connection = sqlite3.connect(str(path), timeout=LOCK_WAIT_MS / 1000, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        connection.execute("PRAGMA page_size = 4096").fetchall()
        return Database(connection, recursive_triggers=False, execute_plugins=False)
    except BaseException:
        connection.close()
        raise


def _create(path: Path, now: Callable[[], int], version: int) -> None:
    """The whole schema in one transaction, with the file's marks in its first page."""
    db = _exclusive(path)
    try:
        db.execute("BEGIN EXCLUSIVE")
        for statement in (*OWN_TABLES, *INDEXES):
            db.execute(statement)
        _describe_tables(db)
        db.table(VERSION_TABLE).create({"version": int, "applied_at": int}, pk="version", not_null={"applied_at"})
        mark(db, version, now())
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    finally:
        db.close()


def _migrate(path: Path, found: int, *, now: Callable[[], int], log: Log, steps: Sequence[Step], target: int) -> None:
    migration: Migration | None = None
    db = _exclusive(path)
    try:
        if found < target:
            # What an older version left there has the columns that its `jobs` has.
            _move_incoming(db)
            migration = Migration(db, path, now=now, log=log, found=found, target=target)
            migration.run(steps)
        db.execute("BEGIN EXCLUSIVE")
        _describe_tables(db)
        db.execute("COMMIT")
    finally:
        db.close()
    if migration is not None:
        migration.finished()


def _move_incoming(db: Database) -> None:
    if INCOMING_TABLE in db.table_names():
        db.execute("BEGIN EXCLUSIVE")
        for statement in MOVE_INCOMING:
            db.execute(statement)
        db.execute("COMMIT")


def _describe_tables(db: Database) -> None:
    """Make what is lacking of the described tables. They may gain columns and indexes without a version of their own."""
    db.execute(_incoming_table())
    present = set(db.table_names())
    for table in DESCRIBED_TABLES:
        if table.name not in present:
            db.execute(described(table))
        else:
            columns = set(db.table(table.name).columns_dict)
            for name, kind in table.columns:
                if name not in columns:
                    db.execute(f"ALTER TABLE {_quoted(table.name)} ADD COLUMN {_quoted(name)} {kind}")
        for index in table.indexes:
            db.table(table.name).create_index(
                index, index_name=f"idx_{table.name}_{'_'.join(index)}", if_not_exists=True
            )


def described(table: Table) -> str:
    """The ``CREATE TABLE`` of a described table."""
    keys = table.column_names[: table.key]
    columns = [
        f"{_quoted(name)} {kind}{' NOT NULL' if name in keys and 'NOT NULL' not in kind.upper() else ''}"
        for name, kind in table.columns
    ]
    return f"CREATE TABLE {_quoted(table.name)} ({', '.join(columns)}, PRIMARY KEY ({', '.join(_quoted(name) for name in keys)}))"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
