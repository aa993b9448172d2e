"""Errors of the database, translated in one place into what a client may see.

A client learns that the storage is away or busy, never a host, a statement or an SQLSTATE; the cause is chained for the log.
"""

from __future__ import annotations

from typing import Final

import psycopg
import psycopg_pool

from bunqueue_core.model.errors import BackendBusy, CommandError, StorageUnavailable

#: Transient conflicts between transactions (serialization failure, deadlock, lock not available): nothing was applied, once more.
RETRIED_ONCE: Final = frozenset({"40001", "40P01", "55P03"})

#: SQLSTATE of a server, or a session, that takes no writes.
WRITES_REFUSED: Final = "25006"

#: SQLSTATE of a server that takes no more connections.
CONNECTIONS_REFUSED: Final = "53300"

#: SQLSTATE (or its class of two characters) → what a client is told. Longer entries win.
_REASONS: Final[dict[str, str]] = {
    "08": "the database connection was lost",
    WRITES_REFUSED: "the database takes no writes now",
    "28": "the database refuses the login",
    "3D000": "the database does not exist",
    "42": "the database schema does not fit",
    "53": "the database is out of resources",
    "53100": "the database's disk is full",
    CONNECTIONS_REFUSED: "the database takes no more connections",
    "57014": "a statement exceeded its time limit",
    "57P": "the database is going down or starting",
    "58": "the database reports a system error",
    "XX": "the database reports an internal error",
}

#: The same for contention, which is the database being busy rather than away.
_BUSY: Final[dict[str, str]] = {
    "40": "transactions collide",
    "55P03": "a lock is held for too long",
}


def sqlstate(error: BaseException) -> str | None:
    """The error's SQLSTATE, None if it has none (a lost or refused connection)."""
    return getattr(error, "sqlstate", None)


def is_disconnect(error: BaseException) -> bool:
    """Whether the connection was lost, so that the outcome of what ran on it is not known."""
    state = sqlstate(error)
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        state is None or state.startswith(("08", "57P"))
    )


def translate(error: BaseException) -> CommandError:
    """The error that a command ends with when the database raised ``error``."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, psycopg_pool.PoolTimeout):
        translated: CommandError = StorageUnavailable("no database connection became free in time")
    elif isinstance(error, psycopg_pool.PoolClosed):
        translated = StorageUnavailable("the broker is closed")
    else:
        translated = _by_state(sqlstate(error) or "")
    translated.__cause__ = error
    return translated


def _by_state(state: str) -> CommandError:
    for length in (5, 3, 2):
        prefix = state[:length]
        if prefix in _BUSY:
            return BackendBusy(_BUSY[prefix])
        if prefix in _REASONS:
            return StorageUnavailable(_REASONS[prefix])
    return StorageUnavailable("the database cannot be reached" if not state else "the database refused the operation")
