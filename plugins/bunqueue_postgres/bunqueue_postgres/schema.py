"""The schema's life: built or migrated under an advisory lock, refused when it is newer than this code."""

from __future__ import annotations

from typing import Any, Final

from psycopg import AsyncConnection

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_postgres.sqlfiles import load_schema

#: Version of the schema that this code reads and writes. A change of ``schema.sql`` raises it.
VERSION: Final = 1

#: Key of the advisory lock of schema changes: the first 8 bytes of SHA-256("bunqueue:schema"), signed.
LOCK_KEY: Final = int.from_bytes(bytes.fromhex("c9e579d65184c063"), "big", signed=True)


async def initialise(connection: AsyncConnection[Any]) -> None:
    """Bring the database's schema to :data:`VERSION`.

    A database that has it already is only read: a broker that joins takes no lock on any table.

    Args:
        connection: in autocommit mode. ``lock_timeout`` bounds the wait for other brokers' changes.

    Raises:
        ConfigurationError: the schema is newer than this code.
        psycopg.Error: the database refused.
    """
    if await _recorded(connection) == VERSION:
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", (LOCK_KEY,))
        # Once more: another broker may have been faster.
        if await _recorded(connection) == VERSION:
            return
        await connection.execute(load_schema(), prepare=False)
        await connection.execute(
            "INSERT INTO bunqueue.schema_versions (version) VALUES ($1) ON CONFLICT (version) DO NOTHING", (VERSION,)
        )


async def _recorded(connection: AsyncConnection[Any]) -> int:
    """Version of the schema in the database, 0 if there is none."""
    cursor = await connection.execute("SELECT to_regclass('bunqueue.schema_versions') IS NOT NULL")
    row = await cursor.fetchone()
    if row is None or not row[0]:
        return 0
    cursor = await connection.execute("SELECT coalesce(max(version), 0) FROM bunqueue.schema_versions")
    row = await cursor.fetchone()
    version = int(row[0]) if row is not None else 0
    if version > VERSION:
        raise ConfigurationError(f"PostgreSQL schema version {version} is newer than supported version {VERSION}")
    return version
