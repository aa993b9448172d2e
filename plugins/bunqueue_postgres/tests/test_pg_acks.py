"""Acknowledgements in one statement: what keeps a job from the cheap one, and rows that change while it waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.testing import PostgresServer
from pg_waiting import until

from bunqueue_core.model.errors import LeaseLost
from bunqueue_core.model.job import REMOVE, JobOptions, JobSpec
from bunqueue_core.model.requests import Ack, Delivery, PullRequest

Admin = psycopg.AsyncConnection[Any]

RESULT = b"\x07"
REMOVED = JobOptions(remove_on_complete=REMOVE)


@pytest.fixture
async def broker(start: Any) -> PostgresBroker:
    opened: PostgresBroker = await start(lease_duration_ms=60_000)
    return opened


@pytest.fixture
async def other(postgres: PostgresServer) -> AsyncIterator[Admin]:
    """Somebody else in the database, in a transaction until he commits."""
    async with await psycopg.AsyncConnection.connect(postgres.dsn) as connection:
        yield connection


@pytest.fixture
async def watcher(postgres: PostgresServer) -> AsyncIterator[Admin]:
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as connection:
        yield connection


async def delivered(broker: PostgresBroker, count: int, **settings: Any) -> list[Delivery]:
    """Jobs that were just pulled, in order of their ids."""
    await broker.push("q", [JobSpec("n", b"\x01", **settings) for _ in range(count)])
    deliveries = await broker.pull(PullRequest("q", count, "w"))
    return sorted(deliveries, key=lambda delivery: delivery.job.id)


def acks(deliveries: list[Delivery]) -> list[Ack]:
    return [Ack(delivery.job.id, delivery.token, RESULT) for delivery in deliveries]


async def states(broker: PostgresBroker, deliveries: list[Delivery]) -> list[str | None]:
    views = [await broker.job(delivery.job.id) for delivery in deliveries]
    return [None if view is None else view.state for view in views]


async def change_under_way(
    broker: PostgresBroker, deliveries: list[Delivery], other: Admin, watcher: Admin, change: str
) -> Any:
    """Acknowledge a batch while somebody else is changing its last job, and has not committed; gives its answer, or its error."""
    last = deliveries[-1].job.id
    await other.execute(f"UPDATE bunqueue.jobs SET {change} WHERE ns = %s AND id = %s", (broker.ns, last))
    answer = broker.ack(acks(deliveries))

    async def waits() -> bool:
        cursor = await watcher.execute(
            "SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
            "WHERE NOT l.granted AND a.application_name = %s",
            (f"bunqueue:{broker.broker_id}"[:63],),
        )
        return await cursor.fetchone() is not None

    await until(waits)
    await other.commit()
    return await answer


@pytest.fixture(params=["plain", "of any kind"])
async def way(broker: PostgresBroker, request: pytest.FixtureRequest) -> str:
    """Which statement is tried first: after one that met jobs of another kind, it is the one for jobs of any kind."""
    if request.param == "of any kind":
        (delivery,) = await delivered(broker, 1, options=REMOVED)
        assert (await broker.ack(acks([delivery]))).errors == {}
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "change", ["lease_until = 1", "lease_token = 'of another'", "status = 0, lease_until = NULL, lease_token = NULL"]
)
async def test_a_batch_is_left_alone_when_one_of_its_leases_goes_meanwhile(
    broker: PostgresBroker, other: Admin, watcher: Admin, change: str
) -> None:
    deliveries = await delivered(broker, 3)
    before = (await states(broker, deliveries))[:2]
    if change.startswith("status"):
        # The job waits again: it is no longer anybody's, which is no reason to refuse the others.
        answer = await change_under_way(broker, deliveries, other, watcher, change)
        assert list(answer.errors) == [2]
        assert (await states(broker, deliveries))[:2] == ["completed", "completed"]
    else:
        with pytest.raises(LeaseLost):
            await change_under_way(broker, deliveries, other, watcher, change)
        assert (await states(broker, deliveries))[:2] == before == ["active", "active"]


@pytest.mark.usefixtures("way")
async def test_a_batch_is_completed_when_one_of_its_leases_is_renewed_meanwhile(
    broker: PostgresBroker, other: Admin, watcher: Admin
) -> None:
    deliveries = await delivered(broker, 3)
    answer = await change_under_way(broker, deliveries, other, watcher, "lease_until = lease_until + 60000")
    assert (answer.outcomes, answer.errors) == (["applied"] * 3, {})
    assert await states(broker, deliveries) == ["completed"] * 3


async def test_jobs_of_every_kind_are_acknowledged_together(broker: PostgresBroker) -> None:
    plain, removed, keyed = (
        await delivered(broker, 2),
        await delivered(broker, 1, options=REMOVED),
        await delivered(broker, 1, unique_key="k"),
    )
    stale = await delivered(broker, 1)
    calls = [
        broker.ack(acks(plain)),
        broker.ack([*acks(removed), *acks(keyed)]),
        broker.ack([Ack(stale[0].job.id, "not its token", RESULT)]),
    ]
    assert (await calls[0]).outcomes == ["applied"] * 2
    assert (await calls[1]).errors == {}
    with pytest.raises(LeaseLost):
        await calls[2]
    assert await states(broker, [*plain, *removed, *keyed, *stale]) == [
        "completed",
        "completed",
        None,
        "completed",
        "active",
    ]
    assert await broker.results([delivery.job.id for delivery in plain]) == [RESULT, RESULT]
    # And each kind by itself, after one statement has met the others.
    for settings, state in (({}, "completed"), ({"options": REMOVED}, None), ({"unique_key": "k"}, "completed")):
        again = await delivered(broker, 1, **settings)
        assert (await broker.ack(acks(again))).errors == {}
        assert await states(broker, again) == [state]


async def test_plain_acknowledgements_come_back_to_one_statement(
    broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bunqueue_postgres.verbs.consume.ELABORATE_TURNS", 3)
    deliveries = await delivered(broker, 8)
    with pytest.raises(LeaseLost):
        await broker.ack([Ack(deliveries[0].job.id, "not its token", RESULT)])
    for delivery in deliveries:
        assert (await broker.ack(acks([delivery]))).errors == {}
    assert await states(broker, deliveries) == ["completed"] * 8
