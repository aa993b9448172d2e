"""What goes by number or age leaves an event in the journal, in the transaction that removes it; no listener is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.changes import INLINE_SURPLUS

from bunqueue_core.model.job import JobOptions, JobSpec, Retention
from bunqueue_core.model.requests import Ack, DlqConfig, Event, Failure, PullRequest

DLQ, COMPLETIONS = "queue-dlq-pruned", "queue-completions-pruned"


@pytest.fixture
async def broker(open_broker: Any) -> AsyncIterator[PostgresBroker]:
    broker: PostgresBroker = open_broker(max_completed_jobs=1)
    await broker.start()
    yield broker
    await broker.close()


def rows(broker: PostgresBroker, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(broker.settings.url.get_secret_value(), autocommit=True) as connection:
        cursor = connection.execute(statement, {"ns": broker.ns})
        return cursor.fetchall() if cursor.description is not None else []


def pruned(broker: PostgresBroker) -> list[tuple[str, str]]:
    """Queue and type of the events among brokers, oldest first."""
    return rows(
        broker,
        "SELECT q.name, e.type FROM bunqueue.events e JOIN bunqueue.queues q ON q.id = e.queue_id "
        "WHERE e.ns = %(ns)s AND e.type LIKE 'queue-%%' ORDER BY e.id",
    )


async def bury(broker: PostgresBroker, queue: str, count: int = 1) -> None:
    """Let jobs of ``queue`` fail for good."""
    await broker.push(queue, [JobSpec("n", None, JobOptions(max_attempts=1)) for _ in range(count)])
    deliveries = await broker.pull(PullRequest(queue, count, "w"))
    await broker.fail([Failure(delivery.job.id, "no", delivery.token) for delivery in deliveries])


async def complete(broker: PostgresBroker, queue: str, count: int, options: JobOptions) -> None:
    await broker.push(queue, [JobSpec("n", None, options) for _ in range(count)])
    deliveries = await broker.pull(PullRequest(queue, count, "w"))
    await broker.ack([Ack(delivery.job.id, delivery.token) for delivery in deliveries])


async def test_a_failure_beyond_the_bound(broker: PostgresBroker) -> None:
    for queue in ("a", "b"):
        await broker.set_dlq_config(queue, DlqConfig(max_entries=2))
    await bury(broker, "a", 2)
    await bury(broker, "b")
    assert pruned(broker) == []
    await bury(broker, "a", 3)
    assert pruned(broker) == [("a", DLQ)]
    # In the transaction of the failure.
    events = rows(
        broker, "SELECT array_agg(type ORDER BY type) FROM bunqueue.events WHERE ns = %(ns)s GROUP BY xid ORDER BY xid"
    )
    assert [types for (types,) in events if DLQ in types] == [["failed", DLQ]]


async def test_a_smaller_bound(broker: PostgresBroker) -> None:
    await bury(broker, "a", 4)
    await broker.set_dlq_config("a", DlqConfig(max_entries=1))
    assert pruned(broker) == [("a", DLQ)]
    await broker.set_dlq_config("a", DlqConfig(max_entries=1))
    assert pruned(broker) == [("a", DLQ)]


async def test_a_bound_that_maintenance_holds(broker: PostgresBroker) -> None:
    await bury(broker, "a", 3)
    rows(broker, "DELETE FROM bunqueue.events WHERE ns = %(ns)s")
    # Beyond what a failure looks at itself.
    await broker.set_dlq_config("a", DlqConfig(max_entries=INLINE_SURPLUS + 1))
    queue_id = await broker.queue_id("a")
    assert queue_id is not None
    broker.coordinator.crowded({queue_id})
    await broker.coordinator.maintain()
    assert pruned(broker) == []
    rows(
        broker,
        "INSERT INTO bunqueue.jobs (ns, id, queue_id, priority, created_at, run_at, admitted_at, status, admitted_as, flags, lifo, "
        "finished_at, dead) SELECT ns, 'd' || i, queue_id, priority, created_at, run_at, admitted_at, status, admitted_as, flags, "
        f"lifo, finished_at, dead FROM bunqueue.jobs, generate_series(1, {INLINE_SURPLUS}) i WHERE ns = %(ns)s AND id = ("
        "SELECT min(id) FROM bunqueue.jobs WHERE ns = %(ns)s)",
    )
    broker.coordinator.crowded({queue_id})
    await broker.coordinator.maintain()
    assert pruned(broker) == [("a", DLQ)]


async def test_age(broker: PostgresBroker) -> None:
    for queue in ("a", "b", "c"):
        await broker.set_dlq_config(queue, DlqConfig(max_age_ms=1 if queue != "c" else 600_000))
        await bury(broker, queue, 2)
    await complete(broker, "d", 2, JobOptions(remove_on_complete=Retention(age_ms=1)))
    await asyncio.sleep(0.01)  # the database's clock moves on by itself
    while await broker.maintain_dead_letters():
        pass
    assert sorted(pruned(broker)) == [("a", DLQ), ("b", DLQ), ("d", COMPLETIONS)]
    assert (await broker.counts("c")).failed == 2


async def test_completions_beyond_the_bound(broker: PostgresBroker) -> None:
    removed = JobOptions(remove_on_complete=Retention(remove=True))
    for queue in ("a", "b", "c"):
        await complete(broker, queue, 2, removed)
    assert pruned(broker) == []
    await broker.coordinator.maintain()
    # One completion of all may stay, the newest.
    assert sorted(pruned(broker)) == [("a", COMPLETIONS), ("b", COMPLETIONS), ("c", COMPLETIONS)]
    await broker.coordinator.maintain()
    assert len(pruned(broker)) == 3


async def test_listeners_are_not_told(broker: PostgresBroker, open_broker: Any) -> None:
    other = open_broker()
    await other.start()
    heard: list[Event] = []
    ends = [
        broker.subscribe(heard.append),
        other.subscribe(heard.append, "a"),
        broker.subscribe_share(heard.append),
    ]
    told: list[str] = []
    ends.append(broker.subscribe_dashboard(lambda name, _: told.append(name)))
    await broker.set_dlq_config("a", DlqConfig(max_entries=1))
    await bury(broker, "a", 3)
    await complete(broker, "b", 3, JobOptions(remove_on_complete=Retention(remove=True)))
    await broker.coordinator.maintain()
    assert pruned(broker) == [("a", DLQ), ("b", COMPLETIONS)]
    await broker.pause("a")
    async with asyncio.timeout(20):
        while [event.type for event in heard].count("paused") < 3:  # noqa: ASYNC110 - other brokers tell when they have looked
            await asyncio.sleep(0.01)
    assert {event.type for event in heard} == {"pushed", "pulled", "failed", "completed", "paused"}
    assert set(told) <= {"queue:created", "dlq:added", "queue:paused", "batch:pushed", "batch:pulled"}
    for end in ends:
        end()
    await other.close()
