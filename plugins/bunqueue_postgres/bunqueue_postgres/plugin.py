"""What this distribution registers with bunqueue (entry point ``postgres`` in group ``bunqueue.plugins``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bunqueue_core.plugins.drivers import BrokerDriver, OpenContext, StorageDriver
from bunqueue_core.plugins.hookspecs import hookimpl
from bunqueue_postgres.settings import CAPABILITIES, PostgresStorage

if TYPE_CHECKING:
    from bunqueue_postgres.broker import PostgresBroker


@hookimpl
def bunqueue_storage_drivers() -> Iterable[StorageDriver]:
    """The driver ``postgres``."""
    return (
        BrokerDriver(
            name="postgres",
            settings=PostgresStorage,
            capabilities=CAPABILITIES,
            open=_open,
            describe=_describe,
        ),
    )


def _open(settings: PostgresStorage, context: OpenContext) -> PostgresBroker:
    # Imported when it is chosen: a server on another driver does not pay for loading libpq.
    from bunqueue_postgres.broker import PostgresBroker

    return PostgresBroker(settings, context)


def _describe(settings: PostgresStorage) -> str:
    return f"PostgreSQL · namespace {settings.namespace}"
