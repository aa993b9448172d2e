"""Jobs added inside the producer's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from bunqueue_postgres import enqueue, enqueue_async, enqueue_many
from bunqueue_postgres.broker import PostgresBroker

from bunqueue_core.model.errors import ConfigurationError, ValidationError
from bunqueue_core.model.payload import decode
from bunqueue_core.model.requests import PullRequest

OpenBroker = Callable[..., PostgresBroker]


@pytest.fixture
async def broker(open_broker: OpenBroker) -> AsyncIterator[PostgresBroker]:
    broker = open_broker()
    await broker.start()
    yield broker
    await broker.close()


def connect(broker: PostgresBroker) -> psycopg.Connection[Any]:
    return psycopg.connect(broker.settings.url.get_secret_value())


async def test_a_job_is_there_when_its_transaction_commits(broker: PostgresBroker) -> None:
    namespace = broker.settings.namespace
    waiting = broker.pull(PullRequest("mail", 1, "w", wait_ms=20_000))
    with connect(broker) as connection:
        id = enqueue(connection, "mail", "send", {"to": "a"}, namespace=namespace, priority=3, maxAttempts=7)
        assert await broker.states([id]) == ["unknown"]
    (delivery,) = await waiting
    assert (delivery.job.id, delivery.job.name, delivery.job.priority) == (id, "send", 3)
    assert delivery.job.options.max_attempts == 7
    assert delivery.job.data is not None
    assert decode(delivery.job.data) == {"to": "a"}
    assert await broker.queues() == ["mail"]


async def test_a_rolled_back_job_never_was(broker: PostgresBroker) -> None:
    with connect(broker) as connection:
        id = enqueue(connection, "mail", "send", namespace=broker.settings.namespace)
        connection.rollback()
    assert await broker.states([id]) == ["unknown"]
    assert (await broker.counts("mail")).waiting == 0


async def test_on_an_asynchronous_connection(broker: PostgresBroker) -> None:
    async with await psycopg.AsyncConnection.connect(broker.settings.url.get_secret_value()) as connection:
        id = await enqueue_async(connection, "mail", "send", namespace=broker.settings.namespace, delay=60_000)
    assert await broker.states([id]) == ["delayed"]


async def test_many_at_once_and_ids_of_live_jobs(broker: PostgresBroker) -> None:
    namespace = broker.settings.namespace
    with connect(broker) as connection:
        ids = enqueue_many(connection, "mail", [{"name": "n", "data": n} for n in range(500)], namespace=namespace)
        first = enqueue(connection, "mail", "named", 1, namespace=namespace, jobId="x")
        again = enqueue(connection, "mail", "named", 2, namespace=namespace, jobId="x")
    assert (first, again) == ("x", "x")
    assert (await broker.counts("mail")).waiting == 501
    deliveries = await broker.pull(PullRequest("mail", 1_000, "w"))
    assert sorted(delivery.job.id for delivery in deliveries) == sorted([*ids, "x"])
    assert {d.job.data for d in deliveries if d.job.id == "x"} == {b"\x01"}


@pytest.mark.parametrize(
    ("field", "value"),
    [("uniqueKey", "k"), ("dependsOn", ["x"]), ("parentId", "x"), ("repeat", {"every": 1_000}), ("debounceId", "d")],
)
async def test_what_cannot_hold_is_refused_by_name(broker: PostgresBroker, field: str, value: object) -> None:
    with connect(broker) as connection, pytest.raises(ValidationError, match=field):
        enqueue(connection, "mail", "send", namespace=broker.settings.namespace, **{field: value})
    assert (await broker.counts("mail")).waiting == 0


async def test_a_namespace_without_brokers_is_refused(broker: PostgresBroker) -> None:
    with connect(broker) as connection, pytest.raises(ConfigurationError, match="nowhere"):
        enqueue(connection, "mail", "send", namespace="nowhere")


async def test_a_queue_that_two_transactions_register_at_once(broker: PostgresBroker) -> None:
    namespace = broker.settings.namespace

    def second() -> str:
        with connect(broker) as connection:
            return enqueue(connection, "new", "two", namespace=namespace)

    with connect(broker) as connection:
        one = enqueue(connection, "new", "one", namespace=namespace)
        waiting = asyncio.ensure_future(asyncio.to_thread(second))

        async def waits() -> bool:
            rows = connection.execute(
                "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            ).fetchall()
            return bool(rows)

        async with asyncio.timeout(20):
            while not await waits():  # noqa: ASYNC110 - the other connection's doing
                await asyncio.sleep(0.01)
    assert await broker.states([one, await waiting]) == ["waiting"] * 2
