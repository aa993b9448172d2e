"""Statements on the wire: several at once, errors of one among them, large values, cancelled and broken ones."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import psycopg
import pytest
from bunqueue_postgres import arrays
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.database import Database
from bunqueue_postgres.testing import PostgresServer
from bunqueue_postgres.wire import Wire, WireConnection
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int4


@pytest.fixture
async def database(open_broker: Callable[..., PostgresBroker]) -> AsyncIterator[Database]:
    """A broker's database, with two connections."""
    broker = open_broker(pool_size=2)
    await broker.start()
    yield broker.database
    await broker.close()


async def test_statements_go_together_and_are_answered_in_order(database: Database) -> None:
    answers = await database.run_all(
        (
            (b"SELECT $1::int4, $2::text", (Int4(1), "a")),
            (b"SELECT n FROM generate_series(1, $1::int4) n", (Int4(3),)),
            (b"SET SESSION application_name = 'wire'", ()),
        )
    )
    assert answers == [[(1, "a")], [(1,), (2,), (3,)], []]


async def test_an_error_of_a_later_statement_leaves_the_others_alone(database: Database) -> None:
    rows, error, more = await database.run_all(
        ((b"SELECT 1", ()), (b"SELECT 1 / $1::int4", (Int4(0),)), (b"SELECT 2", ()))
    )
    assert rows == [(1,)]
    assert isinstance(error, psycopg.errors.DivisionByZero)
    assert more == [(2,)]


async def test_an_error_of_the_first_statement_is_raised(database: Database) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await database.run_all(((b"SELECT 1 / $1::int4", (Int4(0),)), (b"SELECT 2", ())))
    with pytest.raises(psycopg.errors.SyntaxError):
        await database.run(b"SELECT FROM WHERE", ())
    assert await database.run(b"SELECT 3", ()) == [(3,)]


async def test_absent_and_present_values_of_a_parameter(database: Database) -> None:
    query = b"SELECT $1::text[], $2::int4"
    assert await database.run(query, (None, Int4(1))) == [(None, 1)]
    assert await database.run(query, (arrays.texts(["a", None]), None)) == [(["a", None], None)]


async def test_values_larger_than_any_buffer(database: Database) -> None:
    value = bytes(range(256)) * 40_000
    answers = await database.run_all([(b"SELECT $1::bytea", (value,))] * 2)
    assert answers == [[(value,)], [(value,)]]


async def test_a_cancelled_statement_gives_its_connection_up(database: Database) -> None:
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await database.run(b"SELECT pg_sleep(60)", ())
    assert await database.run(b"SELECT 1", ()) == [(1,)]
    assert database.load[0] <= 1  # beside it only what brokers do by themselves


@pytest.fixture
async def connection(postgres: PostgresServer) -> AsyncIterator[WireConnection]:
    opened = await WireConnection.connect(postgres.dsn, autocommit=True)
    yield opened
    await opened.close()


def stop_watching(connection: WireConnection) -> bool:
    """Take the loop's reader of the connection's socket away; gives whether there was one."""
    return asyncio.get_running_loop().remove_reader(connection.fileno())


async def test_a_closed_connection_is_forgotten(postgres: PostgresServer) -> None:
    connection = await WireConnection.connect(postgres.dsn, autocommit=True)
    assert await connection.wire.run(((b"SELECT 1", ()),)) == [[(1,)]]
    descriptor, known = connection.fileno(), weakref.ref(connection)
    await connection.close()
    assert not asyncio.get_running_loop().remove_reader(descriptor)
    del connection
    gc.collect()
    assert known() is None


async def test_the_socket_is_left_to_psycopg_when_that_waits_for_it(connection: WireConnection) -> None:
    assert await connection.wire.run(((b"SELECT 1", ()),)) == [[(1,)]]
    async with connection.transaction():
        cursor = await connection.execute("SELECT 2")
        assert await cursor.fetchone() == (2,)
    assert not stop_watching(connection)
    assert await connection.wire.run(((b"SELECT 3", ()),)) == [[(3,)]]
    assert stop_watching(connection)


async def test_a_connection_that_ends_while_nobody_uses_it_is_left_alone(
    connection: WireConnection, postgres: PostgresServer
) -> None:
    assert await connection.wire.run(((b"SELECT 1", ()),)) == [[(1,)]]
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as other:
        await other.execute("SELECT pg_terminate_backend(%s, 10000)", (connection.info.backend_pid,))
    # What the server said is there by now: the loop sees it in its next turns, and must not see it again and again.
    for _ in range(3):
        await asyncio.sleep(0)
    assert not stop_watching(connection)
    (error,) = await connection.wire.run(((b"SELECT 1", ()),))
    assert isinstance(error, psycopg.errors.AdminShutdown)


@pytest.mark.parametrize("count", [1, 2])
async def test_statements_that_are_cancelled_when_all_has_come(
    connection: WireConnection, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    statements = [(b"SELECT 1", ())] * count
    await connection.wire.run(statements)  # prepared
    stop = Wire._stop

    def stop_and_cancel(self: Wire, error: Exception | None) -> None:
        stop(self, error)
        task.cancel()

    with monkeypatch.context() as patched:
        patched.setattr(Wire, "_stop", stop_and_cancel)
        task = asyncio.create_task(connection.wire.run(statements))
        with pytest.raises(asyncio.CancelledError):
            await task
    async with asyncio.timeout(20):
        if count == 1:
            assert await connection.wire.run(statements) == [[(1,)]]
        else:
            # It would answer nothing any more, and look idle to its pool.
            assert connection.pgconn.transaction_status == TransactionStatus.UNKNOWN


async def test_a_connection_that_breaks_fails_its_statements(database: Database, postgres: PostgresServer) -> None:
    async def end() -> None:
        async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as other:
            while True:
                cursor = await other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(59)%'"
                )
                if await cursor.fetchone():
                    return

    ending = asyncio.create_task(end())
    with pytest.raises(psycopg.OperationalError):
        await database.run_all(((b"SELECT pg_sleep(59)", ()), (b"SELECT 1", ())))
    await ending
    async with asyncio.timeout(15):
        await database.returned(15)
    assert await database.run(b"SELECT 1", ()) == [(1,)]


def test_a_connection_that_is_reset_without_a_word_fails_its_statements_on_uvloop(postgres: PostgresServer) -> None:
    uvloop = pytest.importorskip("uvloop")
    target = urlsplit(postgres.dsn)

    async def use() -> None:
        served: list[asyncio.Task[None] | None] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served.append(asyncio.current_task())
            there, back = await asyncio.open_connection(target.hostname, target.port)

            async def answers() -> None:
                while data := await there.read(65_536):
                    writer.write(data)

            answering = asyncio.create_task(answers())
            while b"pg_sleep" not in (data := await reader.read(65_536)):
                back.write(data)
            # Closing with nothing to linger for resets a connection.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            back.transport.abort()
            await asyncio.gather(answering, return_exceptions=True)

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            url = target._replace(netloc=f"{target.netloc.rpartition(':')[0]}:{port}").geturl()
            connection = await WireConnection.connect(url, autocommit=True)
            async with asyncio.timeout(20):
                with pytest.raises(psycopg.OperationalError):
                    await connection.wire.run(((b"SELECT pg_sleep(59)", ()),))
            await connection.close()
            await asyncio.gather(*[task for task in served if task is not None])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(use())
