"""Adding jobs inside a transaction of the producer's own: they are there exactly when it commits, and gone when it rolls back.

::

    with psycopg.connect(...) as connection:
        connection.execute("INSERT INTO orders …")
        job_id = bunqueue_postgres.enqueue(connection, "mail", "send", {"order": 1})

The jobs' ids are known at once. Waiting pulls are woken at the commit. The transaction should be READ COMMITTED, PostgreSQL's
default: under a stricter isolation it may fail with a serialization error, as with any other write of such a transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.types.numeric import Int4

from bunqueue_core.model.errors import ConfigurationError, ValidationError
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.ports import uuid7
from bunqueue_core.model.rules import BACKOFF_STRATEGIES, check_queue_name
from bunqueue_postgres import arrays
from bunqueue_postgres.admission import Columns, needs_decision
from bunqueue_postgres.keys import to_key
from bunqueue_postgres.records import OptionsCodec
from bunqueue_postgres.sqlfiles import load_queries

#: Why an option is refused: what it means depends on jobs that other transactions are about to change.
_REFUSED: Final = "cannot be used inside a transaction of the producer's own; push it through the queue instead"

_QUERIES: Final = load_queries()


def enqueue(
    connection: Connection[Any],
    queue: str,
    name: str,
    data: Any = None,
    *,
    namespace: str = "default",
    backoff_strategies: Collection[str] = (),
    **options: Any,
) -> str:
    """Add one job in the connection's transaction.

    Args:
        connection: a psycopg connection to the database that the brokers use, once any of them has built the schema. In
            autocommit mode the job is there when this returns.
        queue: name of the queue.
        name: name of the job.
        data: its payload, anything that MessagePack can hold.
        namespace: of the brokers.
        backoff_strategies: names of strategies that the brokers have from plugins; a job may choose one of these, too.
        options: further fields of a job as on the wire: ``delay``, ``priority``, ``maxAttempts``, ``jobId``, …

    Returns:
        The job's id. With a ``jobId`` that a live job has already, that job stays as it is.

    Raises:
        ValidationError: a field is not allowed, or one that cannot hold inside a foreign transaction (``uniqueKey``,
            ``dependsOn``, a parent, ``groupMaxSize``, ``repeat``, ``debounceId``).
        ConfigurationError: the database has no such namespace: no broker has used it yet.
        psycopg.Error: the database refused; the transaction is aborted as by any other error.
    """
    job = {"name": name, "data": data, **options}
    return enqueue_many(connection, queue, [job], namespace=namespace, backoff_strategies=backoff_strategies)[0]


def enqueue_many(
    connection: Connection[Any],
    queue: str,
    jobs: Iterable[Mapping[str, Any]],
    *,
    namespace: str = "default",
    backoff_strategies: Collection[str] = (),
) -> list[str]:
    """Add jobs in the connection's transaction, in one statement. Each is a mapping of the fields of a job; see :func:`enqueue`."""
    batch = _Batch(queue, jobs, backoff_strategies)
    cursor = RawCursor(connection)
    arrays.register(cursor.adapters)
    found = cursor.execute(_LOOK_UP, (namespace, queue)).fetchone()
    ns, queue_id = _numbers(found, namespace)
    if queue_id is None:
        parameters = (Int4(ns), arrays.texts([queue]))
        # Twice: a name that somebody else registered at the same moment is in neither half of the first answer.
        registered = (
            cursor.execute(_QUERIES.register_queues, parameters).fetchall()
            or cursor.execute(_QUERIES.register_queues, parameters).fetchall()
        )
        queue_id = registered[0][0]
    cursor.execute(batch.query, batch.parameters(ns, queue_id))
    batch.check(cursor.fetchall())
    cursor.execute(_NOTIFY, (f"bunqueue_{ns}",))
    return batch.ids


async def enqueue_async(
    connection: AsyncConnection[Any],
    queue: str,
    name: str,
    data: Any = None,
    *,
    namespace: str = "default",
    backoff_strategies: Collection[str] = (),
    **options: Any,
) -> str:
    """As :func:`enqueue`, on an asynchronous connection."""
    job = {"name": name, "data": data, **options}
    ids = await enqueue_many_async(connection, queue, [job], namespace=namespace, backoff_strategies=backoff_strategies)
    return ids[0]


async def enqueue_many_async(
    connection: AsyncConnection[Any],
    queue: str,
    jobs: Iterable[Mapping[str, Any]],
    *,
    namespace: str = "default",
    backoff_strategies: Collection[str] = (),
) -> list[str]:
    """As :func:`enqueue_many`, on an asynchronous connection."""
    batch = _Batch(queue, jobs, backoff_strategies)
    cursor = AsyncRawCursor(connection)
    arrays.register(cursor.adapters)
    await cursor.execute(_LOOK_UP, (namespace, queue))
    ns, queue_id = _numbers(await cursor.fetchone(), namespace)
    if queue_id is None:
        parameters = (Int4(ns), arrays.texts([queue]))
        registered: list[Any] = []
        while not registered:  # as above
            await cursor.execute(_QUERIES.register_queues, parameters)
            registered = await cursor.fetchall()
        queue_id = registered[0][0]
    await cursor.execute(batch.query, batch.parameters(ns, queue_id))
    batch.check(await cursor.fetchall())
    await cursor.execute(_NOTIFY, (f"bunqueue_{ns}",))
    return batch.ids


_LOOK_UP: Final = (
    "SELECT n.id, q.id FROM bunqueue.namespaces n LEFT JOIN bunqueue.queues q ON q.ns = n.id AND q.name = $2::text "
    "WHERE n.name = $1::text"
)
_NOTIFY: Final = "SELECT pg_notify($1::text, '')"


class _Batch:
    """Jobs of one call, read and made columns."""

    def __init__(self, queue: str, jobs: Iterable[Mapping[str, Any]], strategies: Collection[str]) -> None:
        check_queue_name(queue)
        reader = JobReader([*BACKOFF_STRATEGIES, *strategies], None)
        codec = OptionsCodec()
        self._columns = Columns()
        self.ids: list[str] = []
        seen: set[str] = set()
        for fields in jobs:
            spec: JobSpec = reader.read(fields)
            for field in ("uniqueKey", "dependsOn", "parentId", "groupMaxSize", "repeat", "debounceId"):
                if fields.get(field):
                    raise ValidationError(f"{field} {_REFUSED}")
            assert not needs_decision(spec)
            id = spec.custom_id or uuid7()
            key = to_key(id)
            self.ids.append(id)
            if key not in seen:
                seen.add(key)
                self._columns.add(spec, id, key, codec)
        self.query = _QUERIES.push_named

    def parameters(self, ns: int, queue_id: int) -> tuple[Any, ...]:
        self._columns.queue_ids = [queue_id] * len(self._columns.keys)
        return self._columns.parameters(Int4(ns))

    @staticmethod
    def check(rows: list[tuple[Any, ...]]) -> None:
        """Refuse a job id that live jobs still depend on; nothing was added then."""
        blocked = [key for key, is_blocked in rows if is_blocked]
        if blocked:
            raise ValidationError(f"Custom ID {blocked[0]} still has unresolved dependency consumers")


def _numbers(found: tuple[Any, ...] | None, namespace: str) -> tuple[int, int | None]:
    if found is None:
        raise ConfigurationError(f'namespace "{namespace}" does not exist: start a broker on it first')
    return found[0], found[1]


__all__ = ["enqueue", "enqueue_async", "enqueue_many", "enqueue_many_async"]
