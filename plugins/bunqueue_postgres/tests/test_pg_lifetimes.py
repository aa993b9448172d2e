"""How long the broker waits for a connection, keeps one that nothing uses, and keeps one at all; when a silent one is given up."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, Final

import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.database import Connection
from bunqueue_postgres.settings import PostgresStorage
from pg_waiting import until
from postgres_contexts import open_context

from bunqueue_core.model.errors import StorageUnavailable

#: What the guide promises, s and ms.
CONNECT_S, IDLE_S, LIFETIME_S, UNCONFIRMED_MS = 10, 30, 3_600, 12_000

#: Options of the socket that libpq sets, where the system has them: seconds before the first look at a silent peer and between
#: looks, looks, and ms for which sent data may stay unconfirmed.
SOCKET: Final = {
    getattr(socket, name): value
    for name, value in {
        "TCP_KEEPIDLE": 5,
        "TCP_KEEPINTVL": 2,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": UNCONFIRMED_MS,
    }.items()
    if hasattr(socket, name)
}


def options(connection: Connection) -> dict[str, str | None]:
    """Connection options as libpq has them."""
    return {
        option.keyword.decode(): None if option.val is None else option.val.decode()
        for option in connection.pgconn.info
    }


async def pooled(broker: PostgresBroker, use: Callable[[Connection], Any]) -> Any:
    """What ``use`` gives of a connection of the pool."""

    async def body(connection: Connection) -> Any:
        return use(connection)

    return await broker.database.transaction(body)


async def process(broker: PostgresBroker) -> int:
    """The database's process that a statement runs in."""
    ((pid,),) = await broker.run(b"SELECT pg_backend_pid()", ())
    return int(pid)


def sockets(connection: Connection) -> dict[int, int]:
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as own:
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return {option: own.getsockopt(socket.IPPROTO_TCP, option) for option in SOCKET}


async def test_every_connection_gets_the_same_limits(start: Any) -> None:
    broker = await start()
    apart = await broker.database.connect(listening=True)
    try:
        for found in (options(apart), await pooled(broker, options)):
            assert (found["connect_timeout"], found["tcp_user_timeout"]) == (str(CONNECT_S), str(UNCONFIRMED_MS))
        assert sockets(apart) == await pooled(broker, sockets) == SOCKET
    finally:
        await apart.close()


async def test_the_url_does_not_change_them(start: Any, postgres: Any) -> None:
    broker = await start(url=f"{postgres.dsn}?connect_timeout=99&tcp_user_timeout=5&keepalives_idle=60")
    assert (await pooled(broker, options))["connect_timeout"] == str(CONNECT_S)
    assert await pooled(broker, sockets) == SOCKET


async def test_the_pool_gets_its_limits(start: Any) -> None:
    broker = await start(pool_size=7)
    pool = broker.database._connections.pool
    assert (pool.timeout, pool.max_idle, pool.max_lifetime) == (CONNECT_S, IDLE_S, LIFETIME_S)
    assert (pool.min_size, pool.max_size) == (1, 7)


async def test_connections_that_nothing_uses_close(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bunqueue_postgres.database.IDLE_CLOSE_S", 0.2)
    broker = await start(pool_size=4, lease_duration_ms=600_000, poll_interval_ms=600_000)
    together = asyncio.Barrier(4)

    async def body(_: Connection) -> None:
        await together.wait()  # four connections at once

    async with asyncio.timeout(20):
        await asyncio.gather(*(broker.database.transaction(body) for _ in range(4)))

    async def one_is_left() -> bool:
        return bool(broker.database.figures()["databaseConnections"] == 1)

    await until(one_is_left)
    assert await broker.queues() == []
    assert broker.health().ready


async def test_a_connection_that_has_lived_for_long_is_replaced(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bunqueue_postgres.database.MAX_LIFETIME_S", 0.5)
    broker = await start(pool_size=2)
    first = await process(broker)
    pids = {first}

    async def replaced() -> bool:
        pids.add(await process(broker))
        return len(pids) >= 4  # two at a time

    await until(replaced)
    assert broker.health().ready


async def test_a_database_that_says_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bunqueue_postgres.database.CONNECT_TIMEOUT_S", 2)  # libpq's least
    asked = asyncio.Event()
    over = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await over.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        settings = PostgresStorage.model_validate({"url": f"postgresql://u@127.0.0.1:{port}/jobs"})
        broker = PostgresBroker(settings, open_context())
        with pytest.raises(StorageUnavailable, match="did not answer"):
            await broker.start()
        assert asked.is_set()
        over.set()
