"""Registers the driver (entry point ``lmdb`` of the group ``bunqueue.plugins``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.plugins import JournalDriver, OpenContext, StorageDriver, hookimpl
from bunqueue_lmdb.settings import LmdbStorage

if TYPE_CHECKING:
    from bunqueue_lmdb.journal import LmdbJournal


def _open(settings: LmdbStorage, context: OpenContext) -> LmdbJournal:
    # Imported here: a server on another storage need not load lmdb because this package is installed.
    from bunqueue_lmdb.journal import LmdbJournal

    return LmdbJournal(settings)


LMDB_DRIVER = JournalDriver(
    name="lmdb",
    settings=LmdbStorage,
    capabilities=Capabilities(driver="lmdb"),
    open=_open,
    describe=lambda settings: f"LMDB · {settings.file}",
    identity=lambda settings: str(settings.file.resolve()),
)


@hookimpl
def bunqueue_storage_drivers() -> Iterable[StorageDriver]:
    """The driver ``lmdb``."""
    return [LMDB_DRIVER]
