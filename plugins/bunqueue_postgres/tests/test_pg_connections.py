"""Which connection a statement gets: the one that was used last, and the pool's when that is taken or has been kept for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.database import Connection
from bunqueue_postgres.testing import PostgresServer
from pg_waiting import until

LONG = 600_000


@pytest.fixture
def kept_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets for how long connections are kept, seconds."""
    return lambda seconds: monkeypatch.setattr("bunqueue_postgres.connections.KEPT_S", seconds)


async def quiet(start: Any, pool_size: int) -> PostgresBroker:
    """A broker that runs next to nothing by itself, with all connections that it may have."""
    broker: PostgresBroker = await start(pool_size=pool_size, lease_duration_ms=LONG, poll_interval_ms=LONG)
    together = asyncio.Barrier(pool_size)

    async def body(_: Connection) -> None:
        await together.wait()

    async with asyncio.timeout(20):
        await asyncio.gather(*(broker.database.transaction(body) for _ in range(pool_size)))
    return broker


async def process(broker: PostgresBroker) -> int:
    """The database's process that a statement runs in."""
    ((pid,),) = await broker.run(b"SELECT pg_backend_pid()", ())
    return int(pid)


async def test_the_connection_used_last_is_used_again(start: Any, kept_for: Callable[[float], None]) -> None:
    kept_for(600)
    broker = await quiet(start, 4)
    pids = [await process(broker) for _ in range(20)]
    pids += [await broker.database.transaction(_process_of), await process(broker)]
    # In turn it would be all four. What the broker does by itself may come between.
    assert len(set(pids)) <= 2


async def test_connections_go_back_to_the_pool(start: Any, kept_for: Callable[[float], None]) -> None:
    kept_for(0.05)
    broker = await quiet(start, 3)
    connections = broker.database._connections
    assert connections is not None

    async def all_are_there() -> bool:
        return connections.pool.get_stats()["pool_available"] == 3

    await until(all_are_there)
    figures = broker.database.figures()
    assert (figures["databaseConnections"], figures["databaseConnectionsIdle"]) == (3, 3)
    # Used all the time, they take turns as the pool gives them out.
    pids: set[int] = set()

    async def all_were_used() -> bool:
        pids.add(await process(broker))
        return len(pids) == 3

    await until(all_were_used)


async def test_whoever_waits_for_the_pool_gets_what_is_given_back(
    start: Any, kept_for: Callable[[float], None]
) -> None:
    kept_for(600)
    broker = await quiet(start, 2)
    held = [asyncio.Event() for _ in range(2)]
    begun = asyncio.Barrier(3)

    def holding(until: asyncio.Event) -> Callable[[Connection], Any]:
        async def body(_: Connection) -> None:
            await begun.wait()
            await until.wait()

        return body

    async with asyncio.timeout(20):
        holders = [asyncio.create_task(broker.database.transaction(holding(event))) for event in held]
        await begun.wait()
        third = asyncio.create_task(process(broker))
        await until(lambda: _true(broker.database.figures()["databaseConnectionsWaitedFor"] == 1))
        held[1].set()
        assert await third > 0
        held[0].set()
        await asyncio.gather(*holders)


async def test_a_connection_in_which_something_failed_is_left_to_the_pool(
    start: Any, kept_for: Callable[[float], None], postgres: PostgresServer
) -> None:
    kept_for(600)
    broker = await quiet(start, 2)
    pid = await process(broker)

    async def fail(connection: Connection) -> None:
        await connection.execute("SELECT 1 / 0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        await broker.database.transaction(fail)
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as admin:
        await admin.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
    async with asyncio.timeout(20):
        while True:
            try:
                assert await process(broker) != pid
                break
            except psycopg.OperationalError:
                await broker.database.returned(20)
    assert broker.health().ready


async def test_a_connection_is_given_back_by_whoever_is_cancelled_meanwhile(
    start: Any, kept_for: Callable[[float], None]
) -> None:
    kept_for(0)
    broker = await quiet(start, 2)
    connections = broker.database._connections
    assert connections is not None
    taken = [await connections.take() for _ in range(2)]
    async with connections.pool._lock:  # as when others take and give at the same time
        giving = [asyncio.create_task(connections.give(connection, True)) for connection in taken]
        await asyncio.sleep(0)
        for task in giving:
            task.cancel()
        await asyncio.wait(giving)
    for connection in [await connections.take(20) for _ in range(2)]:
        await connections.give(connection, True)


async def test_a_turn_that_comes_to_somebody_who_gave_up_goes_on_to_the_next(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker: PostgresBroker = await start(
        max_concurrent_operations=1, lease_duration_ms=LONG, poll_interval_ms=LONG, pool_size=2
    )
    database = broker.database
    begun, end = asyncio.Event(), asyncio.Event()

    async def body(_: Connection) -> None:
        begun.set()
        await end.wait()

    async with asyncio.timeout(20):
        first = asyncio.create_task(database.transaction(body))
        await begun.wait()
        gives_up, last = asyncio.create_task(process(broker)), asyncio.create_task(process(broker))
        await until(lambda: _true(database.load[1] >= 2))
        give_turn = database._next

        def give_turn_and_cancel() -> None:
            give_turn()
            gives_up.cancel()

        monkeypatch.setattr(database, "_next", give_turn_and_cancel)
        end.set()
        await first
        monkeypatch.undo()
        with pytest.raises(asyncio.CancelledError):
            await gives_up
        assert await last > 0


async def test_nothing_is_left_open(start: Any, kept_for: Callable[[float], None], postgres: PostgresServer) -> None:
    kept_for(600)
    broker = await quiet(start, 3)
    await process(broker)
    await broker.close()

    async def none_is_there() -> bool:
        async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as admin:
            cursor = await admin.execute(
                "SELECT FROM pg_stat_activity WHERE application_name = %s", (f"bunqueue:{broker.broker_id}"[:63],)
            )
            return await cursor.fetchone() is None

    await until(none_is_there)


async def _process_of(connection: Connection) -> int:
    return connection.info.backend_pid


async def _true(value: bool) -> bool:
    return value
