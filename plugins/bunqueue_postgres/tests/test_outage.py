"""The database goes away, comes back, turns read-only, loses connections: nothing is stuck, nothing accepted is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.testing import PostgresServer
from postgres_contexts import open_context

from bunqueue_core.model.errors import BunqueueError, StorageUnavailable
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import Ack, Failure, PullRequest


@pytest.fixture(scope="module")
def fragile() -> Iterator[PostgresServer]:
    """A server that these tests may stop."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
async def broker(fragile: PostgresServer, request: pytest.FixtureRequest) -> AsyncIterator[PostgresBroker]:
    settings = PostgresStorage.model_validate(
        {"url": fragile.dsn, "namespace": request.node.name, "lease_duration_ms": 1_000, "poll_interval_ms": 50}
    )
    broker = PostgresBroker(settings, open_context())
    await broker.start()
    yield broker
    await broker.close()


async def push(broker: PostgresBroker, count: int = 1) -> list[str]:
    return (await broker.push("q", [JobSpec("n", b"\x01") for _ in range(count)])).ids


async def until(condition: Callable[[], Any], patience_s: float = 20.0) -> None:
    async with asyncio.timeout(patience_s):
        while not await condition():  # noqa: ASYNC110 - the database's doing
            await asyncio.sleep(0.02)


async def works(broker: PostgresBroker) -> bool:
    try:
        await push(broker)
    except BunqueueError:
        return False
    return True


async def is_ready(broker: PostgresBroker) -> bool:
    return broker.health().ready


async def is_degraded(broker: PostgresBroker) -> bool:
    return not broker.health().ready


async def test_a_restart_of_the_database(broker: PostgresBroker, fragile: PostgresServer) -> None:
    ids = await push(broker, 10)
    deliveries = await broker.pull(PullRequest("q", 4, "w", lock_ttl_ms=600_000))
    waiting = broker.pull(PullRequest("other", 1, "w", wait_ms=600_000))
    await asyncio.to_thread(fragile.stop)
    with pytest.raises(StorageUnavailable) as caught:
        await push(broker)
    assert "127.0.0.1" not in str(caught.value)
    await until(lambda: is_degraded(broker))
    health = broker.health()
    assert (health.ready, health.degraded) == (False, True)
    assert health.problem is not None
    assert health.since is not None
    # While it is known to be away, commands fail at once.
    async with asyncio.timeout(1):
        with pytest.raises(StorageUnavailable):
            await broker.counts("q")
    await asyncio.to_thread(fragile.start)
    await until(lambda: is_ready(broker))
    assert await broker.states(ids) == ["active"] * 4 + ["waiting"] * 6
    assert (await broker.ack([Ack(d.job.id, d.token) for d in deliveries])).errors == {}
    # The pull that waited either failed with the outage or still waits and is served.
    pushed = await broker.push("other", [JobSpec("n", None)])
    try:
        assert [delivery.job.id for delivery in await waiting] == pushed.ids
    except StorageUnavailable:
        assert len(await broker.pull(PullRequest("other", 1, "w"))) == 1


async def test_outcomes_survive_an_outage(broker: PostgresBroker, fragile: PostgresServer) -> None:
    done, failed = await push(broker, 2)
    one, two = await broker.pull(PullRequest("q", 2, "w", lock_ttl_ms=600_000))
    assert [one.job.id, two.job.id] == [done, failed]
    await asyncio.to_thread(fragile.stop)
    acknowledged = broker.ack([Ack(done, one.token, b"\x07")])
    recorded = broker.fail([Failure(failed, "boom", two.token)])
    await asyncio.to_thread(fragile.start)
    assert (await acknowledged).errors == {}
    assert (await recorded).errors == {}
    assert await broker.states([done, failed]) == ["completed", "delayed"]
    assert await broker.results([done]) == [b"\x07"]


async def test_connections_that_are_cut(broker: PostgresBroker, fragile: PostgresServer) -> None:
    await push(broker, 3)
    async with await psycopg.AsyncConnection.connect(fragile.dsn, autocommit=True) as admin:
        for _ in range(3):
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'bunqueue:%'"
            )
            await until(lambda: works(broker))
    await until(lambda: is_ready(broker))
    assert len(await broker.pull(PullRequest("q", 3, "w"))) == 3


async def test_the_listener_is_replaced(broker: PostgresBroker, fragile: PostgresServer) -> None:
    async def listeners() -> list[int]:
        async with await psycopg.AsyncConnection.connect(fragile.dsn, autocommit=True) as admin:
            cursor = await admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND application_name = %s",
                (f"bunqueue:{broker.broker_id}"[:63],),
            )
            return [row[0] for row in await cursor.fetchall()]

    await until(listeners)
    (old,) = await listeners()
    async with await psycopg.AsyncConnection.connect(fragile.dsn, autocommit=True) as admin:
        await admin.execute("SELECT pg_terminate_backend(%s)", (old,))

    async def replaced() -> bool:
        return bool(set(await listeners()) - {old})

    await until(replaced, patience_s=5.0)


async def test_a_listener_that_breaks_takes_no_reader_of_others_along(
    fragile: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of its socket is free at once, and the next one's."""
    loop = asyncio.get_running_loop()
    add_reader = loop.add_reader
    ours, theirs = socket.socketpair()
    taken: list[int] = []
    heard, ended = asyncio.Event(), asyncio.Event()

    def watching(descriptor: int, callback: Callable[..., Any], *arguments: Any) -> None:
        def called() -> None:
            callback(*arguments)
            try:
                os.fstat(descriptor)
            except OSError:
                if not taken:
                    taken.append(os.dup2(ours.fileno(), descriptor))
                    add_reader(descriptor, heard.set)

        add_reader(descriptor, called if callback.__name__ == "readable" else callback, *arguments)

    monkeypatch.setattr(loop, "add_reader", watching)
    broker = PostgresBroker(
        PostgresStorage.model_validate({"url": fragile.dsn, "namespace": "numbers"}), open_context()
    )
    hear = broker.coordinator._hear

    async def hear_and_tell(connection: Any) -> None:
        await hear(connection)
        ended.set()

    monkeypatch.setattr(broker.coordinator, "_hear", hear_and_tell)
    await broker.start()
    async with await psycopg.AsyncConnection.connect(fragile.dsn, autocommit=True) as admin:
        while not taken:
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' AND application_name = %s",
                (f"bunqueue:{broker.broker_id}"[:63],),
            )
    async with asyncio.timeout(20):
        await ended.wait()
        theirs.send(b"x")
        await heard.wait()
    loop.remove_reader(taken[0])
    await broker.close()
    os.close(taken[0])
    ours.close()
    theirs.close()


async def test_connections_that_became_read_only_are_all_given_up(fragile: PostgresServer) -> None:
    # What a broker does by itself, with whatever connection, is far apart.
    settings = {"url": fragile.dsn, "namespace": "stale", "pool_size": 4, "lease_duration_ms": 600_000}
    broker = PostgresBroker(PostgresStorage.model_validate({**settings, "poll_interval_ms": 60_000}), open_context())
    await broker.start()

    async def on_each_of(connections: int, expression: bytes) -> list[Any]:
        query = b"SELECT %s, pg_sleep(0.2)" % expression
        return [rows[0][0] for rows in await asyncio.gather(*(broker.run(query, ()) for _ in range(connections)))]

    async def all_are_open() -> bool:
        return len(set(await on_each_of(4, b"pg_backend_pid()"))) == 4

    await until(all_are_open)
    await on_each_of(3, b"set_config('default_transaction_read_only', 'on', false)")
    with pytest.raises(StorageUnavailable):
        for _ in range(4):
            await push(broker)
    await until(lambda: works(broker))
    assert await on_each_of(4, b"current_setting('transaction_read_only')") == ["off"] * 4
    await broker.close()


async def test_a_database_that_turns_read_only(broker: PostgresBroker, fragile: PostgresServer) -> None:
    (id,) = await push(broker)
    async with await psycopg.AsyncConnection.connect(fragile.dsn, autocommit=True) as admin:
        await admin.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'bunqueue:%'"
        )

        async def refused() -> bool:
            try:
                await push(broker)
            except StorageUnavailable:
                return True
            return False

        await until(refused)
        await until(lambda: is_degraded(broker))
        await admin.execute("SET default_transaction_read_only = off")
        await admin.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
    await until(lambda: is_ready(broker))
    await until(lambda: works(broker))
    assert await broker.states([id]) == ["waiting"]


async def test_closing_while_the_database_is_away(fragile: PostgresServer) -> None:
    settings = PostgresStorage.model_validate({"url": fragile.dsn, "namespace": "closing"})
    broker = PostgresBroker(settings, open_context())
    await broker.start()
    await asyncio.to_thread(fragile.stop)
    try:
        async with asyncio.timeout(20):
            await broker.close(deadline_s=5.0)
    finally:
        await asyncio.to_thread(fragile.start)


async def test_a_broker_closes_beside_a_database_that_stands_still(fragile: PostgresServer) -> None:
    settings = PostgresStorage.model_validate({"url": fragile.dsn, "namespace": "still", "pool_size": 4})
    broker = PostgresBroker(settings, open_context())
    await broker.start()
    connections = broker.database._connections
    assert connections is not None
    taken = [await connections.take(20) for _ in range(4)]
    stopped = [connection.info.backend_pid for connection in taken]
    for connection in taken:
        await connections.give(connection, False)
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        broker.database.suspect()

        async def is_looked_at() -> bool:
            return connections.pool.get_stats()["pool_available"] == 0

        await until(is_looked_at)
        async with asyncio.timeout(60):
            await broker.close(1.0)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
