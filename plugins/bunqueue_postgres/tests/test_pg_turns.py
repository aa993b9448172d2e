"""Turns at the database: commands are refused because of other commands only, and the broker's own work is never refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from pg_waiting import until

from bunqueue_core.model.errors import BackendBusy
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import Ack, PullRequest

#: One statement at a time, and no command that waits for its turn.
NARROW: dict[str, Any] = {"max_concurrent_operations": 1, "max_queued_operations": 0}


@asynccontextmanager
async def held(broker: PostgresBroker, table: str) -> AsyncIterator[Callable[[], Any]]:
    """Hold the namespace's rows of ``table``; gives a look whether a statement of the broker waits for them."""
    url = broker.settings.url.get_secret_value()
    async with (
        await psycopg.AsyncConnection.connect(url) as holder,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as admin,
    ):
        await holder.execute(f"SELECT FROM bunqueue.{table} WHERE ns = %s FOR UPDATE", (broker.ns,))

        async def waited_for() -> bool:
            cursor = await admin.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'",
                (f"bunqueue:{broker.broker_id}"[:63],),
            )
            row = await cursor.fetchone()
            return row is not None and row[0] > 0

        yield waited_for
        await holder.rollback()


async def use(broker: PostgresBroker, count: int) -> None:
    """Commands one after the other, as a single client sends them."""
    for n in range(count):
        (id,) = (await broker.push(f"q-{n}", [JobSpec("n", None)])).ids
        (delivery,) = await broker.pull(PullRequest(f"q-{n}", 1, "w"))
        await broker.ack([Ack(id, delivery.token)])
        assert await broker.states([id]) == ["completed"]


async def test_a_brokers_own_start_makes_no_command_fail(start: Any) -> None:
    # With listeners and watchers, and rounds that follow each other as closely as they may.
    broker = await start(**NARROW, poll_interval_ms=25)
    ends = [broker.subscribe(lambda _: None), broker.subscribe_dashboard(lambda *_: None)]
    broker.watch_webhooks(lambda _: None)
    broker.statistics()
    await use(broker, 10)
    for end in ends:
        end()
    assert broker.health().ready


async def test_a_command_waits_for_what_the_broker_does_itself(start: Any) -> None:
    broker = await start(**NARROW)
    await use(broker, 1)
    async with held(broker, "brokers") as waited_for:
        await until(waited_for)  # a heartbeat
        pushed = broker.push("q-0", [JobSpec("n", None)])
        await asyncio.sleep(0.05)
        assert not pushed.ready
        # It is the only one that may.
        with pytest.raises(BackendBusy):
            await broker.logs("j")
    assert (await pushed).outcomes == ["created"]
    assert broker.health().ready


async def test_the_broker_works_on_while_commands_take_every_turn(start: Any) -> None:
    broker = await start(**NARROW)
    await use(broker, 1)
    async with held(broker, "queues") as waited_for:
        limited = broker.set_concurrency("q-0", 5)
        await until(waited_for)

        async def own_work_waits() -> bool:
            return broker.database.load[1] > 0

        await until(own_work_waits)
        with pytest.raises(BackendBusy):
            await broker.logs("j")
    await limited
    await use(broker, 3)
    assert broker.health().ready


@pytest.mark.parametrize("place", ["new", "known"])
async def test_a_scheduled_job_takes_one_turn(start: Any, place: str) -> None:
    broker = await start(**NARROW)
    if place == "known":
        await broker.push("s", [JobSpec("n", None)])
    await broker.upsert_schedule({"name": "s", "queue": "s", "repeatEvery": 3_600_000, "immediately": True, "data": {}})

    async def admitted() -> bool:
        return (await broker.counts("s")).waiting == (2 if place == "known" else 1)

    # Well before a transaction that waits for a second turn would be ended by the database.
    await until(admitted, 10)
    assert broker.health().ready
