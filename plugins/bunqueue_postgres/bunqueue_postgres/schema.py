"""The schema's life: built or migrated under an advisory lock, refused when it is newer than this code.

Every change is a transaction that holds the lock, so brokers that start at once take turns, and what a broker that was killed
leaves is whole. Migrating means, for each version in turn: one transaction that changes the tables, ends the sessions of all
brokers of older versions and records the new version, from which moment on older code refuses the database; then transactions that
bring rows to the new version, a bounded number each. Each notes how far it came, and whichever broker starts next goes on there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.types.numeric import Int4

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_postgres import structure
from bunqueue_postgres.migrations import BEGINNING, FOLLOWS, OLDEST, ROWS, Place
from bunqueue_postgres.sqlfiles import load_migration, load_schema

#: Version of the schema that this code reads and writes. A change of ``schema.sql`` raises it.
VERSION: Final = 2

#: Key of the advisory lock of schema changes: the first 8 bytes of SHA-256("bunqueue:schema"), signed.
LOCK_KEY: Final = int.from_bytes(bytes.fromhex("c9e579d65184c063"), "big", signed=True)

#: Writes one log record: level, message, fields.
Log = Callable[..., None]


def _silent(*_: Any, **__: Any) -> None:
    return


async def initialise(connection: AsyncConnection[Any], log: Log = _silent, *, rows: int = ROWS) -> None:
    """Bring the database's schema to :data:`VERSION`.

    A database that has it already is only read: a broker that joins takes no lock on any table.

    Args:
        connection: in autocommit mode. ``lock_timeout`` bounds each wait for other brokers' changes.
        log: told of each step of a migration.
        rows: jobs that one transaction of a migration brings to the new version.

    Raises:
        ConfigurationError: the schema is newer than this code, or too old for it; nothing was changed.
        psycopg.Error: the database refused; what had been committed stands, and the next start goes on from there.
    """
    recorded, unfinished = await _recorded(connection)
    if recorded == VERSION and not unfinished:
        await _hold_structure(connection, log)
        return
    while recorded != VERSION:
        recorded = await _step(connection, log)
    for version in sorted(FOLLOWS):
        jobs = 0
        while (moved := await _follow(connection, version, rows)) is not None:
            jobs += moved
            if moved:
                log("info", "PostgreSQL schema: rows follow", version=version, jobs=jobs)


async def _step(connection: AsyncConnection[Any], log: Log) -> int:
    """Build the schema, or change its tables to the next version; gives the version that is recorded now."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", (LOCK_KEY,), prepare=False)
        # Once more: another broker may have been faster.
        recorded, _ = await _recorded(connection)
        if recorded == VERSION:
            return recorded
        version = recorded + 1 if recorded else VERSION
        if recorded:
            log("info", "PostgreSQL schema: migration", source=recorded, target=version)
            await connection.execute(load_migration(version), prepare=False)
        if version == VERSION:
            await connection.execute(load_schema(), prepare=False)
        if recorded and version in FOLLOWS:
            await connection.execute(
                "INSERT INTO bunqueue.schema_progress (version, ns, id) VALUES ($1, $2, $3)",
                (Int4(version), Int4(BEGINNING.ns), BEGINNING.id),
                prepare=False,
            )
        await connection.execute(
            "INSERT INTO bunqueue.schema_versions (version) VALUES ($1)", (Int4(version),), prepare=False
        )
        if version == VERSION:
            await _record_structure(connection)
    return version


async def _hold_structure(connection: AsyncConnection[Any], log: Log) -> None:
    """Mend objects of the schema that somebody has changed. Without such, nothing is locked."""
    if await _is_recorded(connection):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", (LOCK_KEY,), prepare=False)
        if await _is_recorded(connection):
            return
        mended = await structure.mend(connection)
        await _record_structure(connection)
    if mended:
        log("warn", "PostgreSQL schema had been changed and was mended", objects=mended)


async def _is_recorded(connection: AsyncConnection[Any]) -> bool:
    cursor = await connection.execute(
        "SELECT fingerprint FROM bunqueue.schema_versions WHERE version = $1", (Int4(VERSION),), prepare=False
    )
    row = await cursor.fetchone()
    return row is not None and row[0] == await structure.fingerprint(connection)


async def _record_structure(connection: AsyncConnection[Any]) -> None:
    await connection.execute(
        "UPDATE bunqueue.schema_versions SET fingerprint = $2 WHERE version = $1",
        (Int4(VERSION), await structure.fingerprint(connection)),
        prepare=False,
    )


async def _follow(connection: AsyncConnection[Any], version: int, rows: int) -> int | None:
    """Bring some rows to ``version``; gives their number, None when there is nothing left to do."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", (LOCK_KEY,), prepare=False)
        cursor = await connection.execute(
            "SELECT ns, id FROM bunqueue.schema_progress WHERE version = $1", (Int4(version),), prepare=False
        )
        row = await cursor.fetchone()
        if row is None:
            return None
        last = await FOLLOWS[version](connection, Place(*row), rows)
        if last is None:
            await connection.execute(
                "DELETE FROM bunqueue.schema_progress WHERE version = $1", (Int4(version),), prepare=False
            )
            return 0
        await connection.execute(
            "UPDATE bunqueue.schema_progress SET ns = $2, id = $3 WHERE version = $1",
            (Int4(version), Int4(last.ns), last.id),
            prepare=False,
        )
    return rows


async def _recorded(connection: AsyncConnection[Any]) -> tuple[int, bool]:
    """Version of the schema in the database, 0 if there is none; and whether rows have still to follow."""
    # From the catalog's rows: what looks names up (to_regclass) may remember that there was nothing when another broker waited.
    cursor = await connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'bunqueue' AND c.relname IN ('schema_versions', 'schema_progress')",
        prepare=False,
    )
    tables = {name for (name,) in await cursor.fetchall()}
    if "schema_versions" not in tables:
        return 0, False
    unfinished = "EXISTS (SELECT FROM bunqueue.schema_progress)" if "schema_progress" in tables else "false"
    cursor = await connection.execute(
        f"SELECT coalesce(max(version), 0), {unfinished} FROM bunqueue.schema_versions", prepare=False
    )
    row = await cursor.fetchone()
    version, pending = (int(row[0]), bool(row[1])) if row is not None else (0, False)
    if version > VERSION:
        raise ConfigurationError(f"PostgreSQL schema version {version} is newer than supported version {VERSION}")
    if 0 < version < OLDEST:
        raise ConfigurationError(
            f"PostgreSQL schema version {version} is older than {OLDEST}, the oldest that can be migrated"
        )
    return version, pending
