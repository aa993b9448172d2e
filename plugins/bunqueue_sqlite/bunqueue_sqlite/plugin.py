"""Registers the SQLite driver with bunqueue (entry point ``sqlite`` of the group ``bunqueue.plugins``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.plugins.drivers import JournalDriver, OpenContext, StorageDriver
from bunqueue_core.plugins.hookspecs import hookimpl
from bunqueue_sqlite.files import resolve
from bunqueue_sqlite.settings import SqliteStorage

if TYPE_CHECKING:
    from bunqueue_sqlite.journal import SqliteJournal
    from bunqueue_sqlite.maintenance import SqliteMaintenance
    from bunqueue_sqlite.snapshots import SqliteFiles


def _open(settings: SqliteStorage, context: OpenContext) -> SqliteJournal:
    # Imported here: a server on another storage need not load apsw and sqlite-utils because this package is installed.
    from bunqueue_sqlite.journal import SqliteJournal

    return SqliteJournal(settings, context)


def _describe(settings: SqliteStorage) -> str:
    return f"SQLite · {settings.data_path}"


def _identity(settings: SqliteStorage) -> str:
    return str(resolve(settings.data_path))


def _files(settings: SqliteStorage) -> SqliteFiles:
    from bunqueue_sqlite.snapshots import SqliteFiles

    return SqliteFiles(settings)


def _maintenance(settings: SqliteStorage) -> SqliteMaintenance:
    from bunqueue_sqlite.maintenance import SqliteMaintenance

    return SqliteMaintenance(settings)


#: The driver as it is registered.
SQLITE_DRIVER = JournalDriver(
    name="sqlite",
    settings=SqliteStorage,
    capabilities=Capabilities(driver="sqlite", snapshots=True),
    open=_open,
    describe=_describe,
    identity=_identity,
    files=_files,
    maintenance=_maintenance,
)


@hookimpl
def bunqueue_storage_drivers() -> Iterable[StorageDriver]:
    """``sqlite``: one file, owned by one process."""
    return [SQLITE_DRIVER]
