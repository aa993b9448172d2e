"""Care of a database that no broker has open: what ``bunqueue db`` does."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apsw

from bunqueue_core.model.errors import ConfigurationError, JournalError
from bunqueue_core.storage.maintenance import StorageInfo, Vacuumed
from bunqueue_sqlite import schema
from bunqueue_sqlite.errors import journal_error
from bunqueue_sqlite.files import owner_of
from bunqueue_sqlite.incoming import copy_into
from bunqueue_sqlite.migration import PROGRESS_TABLE, VERSION_TABLE
from bunqueue_sqlite.settings import SqliteStorage
from bunqueue_sqlite.snapshots import SqliteFiles

#: What the integrity check reports at most.
FINDINGS: Final = 100

#: Part of the name of the compact copy while it is made; see :meth:`SqliteFiles.candidate`.
_TAG: Final = "vacuum"

#: Space that must be free beyond the size of the compact copy, of which the size is an estimate.
_MARGIN: Final = 1.1

#: Steps of SQLite's virtual machine between two reports of progress.
_STEPS: Final = 200_000

_OPTIONAL_STATES: Final = ("waiting", "prioritized", "delayed", "waiting-children", "active", "completed")


class SqliteMaintenance:
    """A :class:`~bunqueue_core.storage.maintenance.Maintenance` of the database that ``settings`` name.

    Args:
        settings: where it is.
    """

    def __init__(self, settings: SqliteStorage) -> None:
        self._files = SqliteFiles(settings)
        self._path = self._files.path

    # -- info ---------------------------------------------------------------------------------------------------------

    def info(self) -> StorageInfo:
        """Sizes, schema and contents. Another process may own the database meanwhile."""
        self._must_exist()
        schema.refuse_foreign(self._path)
        with _reported(schema.connect_to_look(self._path)) as connection:
            sizes = _sizes(connection)
            names = [
                name
                for name in sizes
                if connection.table_exists(None, name) and not name.startswith("sqlite_") and name != PROGRESS_TABLE
            ]
            tables = [(name, _number(connection, f'SELECT count(*) FROM "{name}"'), sizes[name]) for name in names]
            states: dict[str, int] = {
                str(state): int(count or 0) for state, count in connection.execute(_states(connection))
            }
            versions = connection.execute(f"SELECT version, applied_at FROM {VERSION_TABLE} ORDER BY 1").fetchall()
            page, pages, free = (
                _number(connection, f"PRAGMA {name}") for name in ("page_size", "page_count", "freelist_count")
            )
            migrating = connection.table_exists(None, PROGRESS_TABLE)
        facts: dict[str, Any] = {
            "path": str(self._path),
            "bytes": self._path.stat().st_size,
            "logBytes": _size(self._path.with_name(self._path.name + "-wal")),
            "pageBytes": page,
            "pages": pages,
            "freeBytes": free * page,
            "schemaVersion": versions[-1][0] if versions else None,
            "schemaAppliedAt": versions[-1][1] if versions else None,
            "supportedSchemaVersion": schema.SCHEMA_VERSION,
            "migrationUnderWay": migrating,
            "sqliteVersion": apsw.sqlite_lib_version(),
            "owner": owner_of(self._path),
        }
        jobs = {state: states.pop(state, 0) for state in _OPTIONAL_STATES}
        jobs.update(states)
        jobs["failed"] = next((rows for name, rows, _ in tables if name == "dlq"), 0)
        return StorageInfo(facts, sorted(tables), jobs)

    # -- check --------------------------------------------------------------------------------------------------------

    def check(self) -> Sequence[str]:
        """SQLite's integrity check, and whether the rows fit together."""
        self._must_exist()
        with self._files.own():
            schema.refuse_foreign(self._path)
            try:
                with _reported(self._connect()) as connection:
                    found = [str(text) for (text,) in connection.execute(f"PRAGMA integrity_check({FINDINGS})")]
                    return [text for text in found if text != "ok"] or list(_misfits(connection))
            except JournalError as error:
                if isinstance(error.__cause__, apsw.CorruptError | apsw.NotADBError):
                    return [f"the file cannot be read: {error.__cause__}"]
                raise

    # -- vacuum -------------------------------------------------------------------------------------------------------

    def vacuum(self, progress: Callable[[int, int], None]) -> Vacuumed:
        """Write a compact copy beside the database and put it in its place.

        Args:
            progress: called now and then with the bytes of the copy so far and in all, as far as that can be told beforehand.

        Raises:
            JournalError: there is too little space, the file is damaged, or it is in use; it is as it was.
        """
        self._must_exist()
        with self._files.own():
            schema.refuse_foreign(self._path)
            before = self._path.stat().st_size + _size(self._path.with_name(self._path.name + "-wal"))
            candidate = self._files.candidate(_TAG)
            try:
                with _reported(self._connect()) as connection:
                    self._copy(connection, candidate, progress)
                self._files.inspect(candidate)
                self._files.install(_TAG)
            except BaseException:
                self._files.discard(_TAG)
                raise
            return Vacuumed(before, self._path.stat().st_size)

    def _copy(self, connection: apsw.Connection, candidate: Path, progress: Callable[[int, int], None]) -> None:
        page, pages, free = (
            _number(connection, f"PRAGMA {name}") for name in ("page_size", "page_count", "freelist_count")
        )
        total = (pages - free) * page
        room = shutil.disk_usage(self._path.parent).free
        if room < total * _MARGIN:
            raise JournalError(
                f"vacuum needs {round(total * _MARGIN):,} bytes of free space beside the database, and there are {room:,}",
                disk_full=True,
            )

        def report() -> bool:
            progress(min(_size(candidate), total), total)
            return False

        connection.set_progress_handler(report, _STEPS)
        copy_into(connection, candidate)
        fd = os.open(candidate, os.O_RDWR)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        progress(total, total)

    # -- how ----------------------------------------------------------------------------------------------------------

    def _must_exist(self) -> None:
        if not self._path.is_file():
            raise ConfigurationError(f"storage.dataPath: there is no database '{self._path}'")

    def _connect(self) -> apsw.Connection:
        """A connection of the owner; what a crash left in the log is carried over."""
        return apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE)


@contextlib.contextmanager
def _reported(connection: apsw.Connection) -> Iterator[apsw.Connection]:
    """Use a connection, then close it. It reads through a small cache, not mapped, which would count as resident memory."""
    try:
        try:
            connection.set_busy_timeout(schema.LOCK_WAIT_MS)
            for pragma in ("PRAGMA mmap_size = 0", "PRAGMA cache_size = -16000", "PRAGMA temp_store = MEMORY"):
                connection.execute(pragma).fetchall()
            yield connection
        finally:
            connection.close()
    except (apsw.Error, OSError) as error:
        raise journal_error(error, "work on the database") from error


def _misfits(connection: apsw.Connection) -> Iterator[str]:
    """What no commit can have left: rows that contradict each other."""
    for text, sql in (
        ("{} results belong to no job", "SELECT count(*) FROM job_results WHERE job_id NOT IN (SELECT id FROM jobs)"),
        ("{} jobs are in the dead letters and waiting or active, too", _both(connection)),
        ("{} jobs are completed without a time of completion", _NO_TIME),
        ("{} jobs are active without a start time", _NO_START),
    ):
        count = _number(connection, sql)
        if count:
            yield text.format(count)
    version = _number(connection, f"SELECT coalesce(max(version), 0) FROM {VERSION_TABLE}")
    if version == 0:
        yield "the schema version is not recorded"
    elif version > schema.SCHEMA_VERSION:
        yield f"the schema has version {version}, and this version of bunqueue_sqlite knows versions up to {schema.SCHEMA_VERSION}"


def _states(connection: apsw.Connection) -> str:
    """The statement for the number of jobs by state."""
    return _STATES if connection.table_exists(None, schema.INCOMING_TABLE) else _STATES_OF_JOBS


def _both(connection: apsw.Connection) -> str:
    """The statement for the number of jobs that are in the dead letters and wait or run, too."""
    return _BOTH.format(_ALL_JOBS if connection.table_exists(None, schema.INCOMING_TABLE) else "jobs")


_STATES_OF_JOBS: Final = "SELECT state, count(*) FROM jobs GROUP BY state"

#: Small adds that are not in ``jobs`` yet count as if they were.
_STATES: Final = (
    "SELECT state, count(*) FROM ("
    f"SELECT state FROM jobs WHERE id NOT IN (SELECT id FROM {schema.INCOMING_TABLE}) UNION ALL "
    f"SELECT state FROM (SELECT state, max(place) FROM {schema.INCOMING_TABLE} GROUP BY id)) GROUP BY state"
)
_ALL_JOBS: Final = f"(SELECT id, state FROM jobs UNION ALL SELECT id, state FROM {schema.INCOMING_TABLE})"
_BOTH: Final = "SELECT count(DISTINCT id) FROM {} WHERE state <> 'completed' AND id IN (SELECT job_id FROM dlq)"
_NO_TIME: Final = "SELECT count(*) FROM jobs WHERE state = 'completed' AND completed_at IS NULL"
_NO_START: Final = "SELECT count(*) FROM jobs WHERE state = 'active' AND started_at IS NULL"


def _sizes(connection: apsw.Connection) -> dict[str, int]:
    """Bytes of each table with its indexes."""
    rows = connection.execute(
        "SELECT coalesce(schema.tbl_name, pages.name), sum(pages.pgsize) FROM dbstat AS pages"
        " LEFT JOIN sqlite_schema AS schema ON schema.name = pages.name WHERE aggregate = TRUE GROUP BY 1"
    )
    return {str(name): int(size or 0) for name, size in rows}


def _number(connection: apsw.Connection, sql: str) -> int:
    ((value,),) = connection.execute(sql).fetchall()
    assert isinstance(value, int)
    return value


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


__all__ = ["SqliteMaintenance"]
