"""PostgreSQL storage for bunqueue: many brokers on one database.

:class:`PostgresStorage` are the driver's settings, :class:`PostgresBroker` is its broker. :func:`enqueue` and its siblings add jobs
inside a transaction of the producer's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bunqueue_postgres.broker import PostgresBroker
    from bunqueue_postgres.enqueueing import enqueue, enqueue_async, enqueue_many, enqueue_many_async
    from bunqueue_postgres.settings import PostgresStorage
    from bunqueue_postgres.threads import ThreadedBroker

__all__ = [
    "PostgresBroker",
    "PostgresStorage",
    "ThreadedBroker",
    "enqueue",
    "enqueue_async",
    "enqueue_many",
    "enqueue_many_async",
]

_HOMES = {
    "PostgresBroker": "broker",
    "PostgresStorage": "settings",
    "ThreadedBroker": "threads",
    "enqueue": "enqueueing",
    "enqueue_async": "enqueueing",
    "enqueue_many": "enqueueing",
    "enqueue_many_async": "enqueueing",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first used: a server on another driver does not pay for libpq."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)
