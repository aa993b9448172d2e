"""Through a pooler of transactions: told apart at the start, its sessions left as they are, and polled instead of listened to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.testing import PostgresServer
from postgres_contexts import open_context
from wire_proxy import rewriting_proxy

from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import Ack, PullRequest

_KEY_DATA = b"K\x00\x00\x00"  # BackendKeyData, whose length fits one byte


def _as_pooler(data: bytes) -> bytes:
    """Another process id than the server's own, as poolers give out."""
    at = data.find(_KEY_DATA)
    return data if at < 0 else data[: at + 5] + b"\x7f\x00\x00\x01" + data[at + 9 :]


@pytest.fixture
async def pooler(postgres: PostgresServer) -> AsyncIterator[str]:
    """URL of something that looks like a pooler."""
    async with rewriting_proxy(postgres.dsn, _as_pooler) as url:
        yield url


async def _start(**settings: object) -> PostgresBroker:
    broker = PostgresBroker(PostgresStorage.model_validate(settings), open_context())
    await broker.start()
    return broker


def _backends(dsn: str, query: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE query ILIKE %s", (query,)).fetchone()
    assert row is not None
    return int(row[0])


async def test_work_goes_through_a_pooler(postgres: PostgresServer, pooler: str) -> None:
    broker = await _start(url=pooler, namespace="pooled", poll_interval_ms=25)
    other = await _start(url=postgres.dsn, namespace="pooled", poll_interval_ms=25)
    try:
        assert broker.database.pooled
        assert not other.database.pooled

        async def session(connection: psycopg.AsyncConnection[tuple[str, int]]) -> tuple[str, int] | None:
            cursor = await connection.execute(
                "SELECT current_setting('enable_seqscan'), (SELECT count(*) FROM pg_prepared_statements)"
            )
            return await cursor.fetchone()

        waiting = broker.pull(PullRequest("q", wait_ms=10_000, owner="w"))
        await asyncio.sleep(0.1)
        await other.push("q", [JobSpec("n", b"\x01")])
        (delivery,) = await asyncio.wait_for(waiting, 10)
        await broker.ack([Ack(delivery.job.id, delivery.token, None)])
        assert (await broker.states([delivery.job.id])) == ["completed"]
        assert await broker.database.transaction(session) == ("on", 0)
    finally:
        await broker.close()
        await other.close()


async def test_a_direct_way_is_listened_to(postgres: PostgresServer, pooler: str) -> None:
    broker = await _start(url=pooler, listen_url=postgres.dsn, namespace="direct", poll_interval_ms=60_000)
    other = await _start(url=postgres.dsn, namespace="direct")
    try:
        waiting = broker.pull(PullRequest("q", wait_ms=10_000, owner="w"))
        await asyncio.sleep(0.3)
        await other.push("q", [JobSpec("n", b"\x01")])
        assert len(await asyncio.wait_for(waiting, 10)) == 1
    finally:
        await broker.close()
        await other.close()


async def test_a_pooler_alone_is_not_listened_to(postgres: PostgresServer, pooler: str) -> None:
    broker = await _start(url=pooler, namespace="alone", poll_interval_ms=25)
    try:
        # What it does over and over has begun: a job of its own went all the way.
        await broker.push("q", [JobSpec("n", b"\x01")])
        (delivery,) = await broker.pull(PullRequest("q", owner="w"))
        await broker.ack([Ack(delivery.job.id, delivery.token, None)])
        channel = f"LISTEN%{broker.coordinator.channel}%"
        assert _backends(postgres.dsn, channel) == 0
        other = await _start(url=postgres.dsn, namespace="alone")
        try:
            async with asyncio.timeout(20):
                while _backends(postgres.dsn, channel) != 1:  # noqa: ASYNC110 - the database's doing
                    await asyncio.sleep(0.02)
        finally:
            await other.close()
    finally:
        await broker.close()
