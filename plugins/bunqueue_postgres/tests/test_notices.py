"""What people who watch a broker are told besides job events, whichever broker did it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.testing import PostgresServer

from bunqueue_core.model.job import JobOptions, JobSpec
from bunqueue_core.model.requests import Ack, DlqConfig, Failure, PullRequest

if TYPE_CHECKING:
    from conftest import OpenBroker


class Watcher:
    """Notices as they come."""

    def __init__(self, broker: PostgresBroker) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._news = asyncio.Event()
        self.end = broker.subscribe_dashboard(self._take)

    def _take(self, name: str, fields: Mapping[str, Any]) -> None:
        self.told.append((name, dict(fields)))
        self._news.set()

    async def hears(self, name: str, /, **fields: Any) -> dict[str, Any]:
        """Wait for a notice of that name with at least these fields."""
        async with asyncio.timeout(20):
            while True:
                for told, given in self.told:
                    if told == name and fields.items() <= given.items():
                        return given
                self._news.clear()
                await self._news.wait()


Desk = tuple[PostgresBroker, Watcher, Watcher]


@pytest.fixture
async def desk(open_broker: OpenBroker) -> AsyncIterator[Desk]:
    """A broker, somebody who watches it, and somebody who watches another one of its namespace; both brokers know of both."""
    one, other = open_broker(broker_id="one"), open_broker(broker_id="other")
    await one.start()
    await other.start()
    here, there = Watcher(one), Watcher(other)
    async with asyncio.timeout(20):
        while not all(each.notices._watched_until and each.coordinator.brokers > 1 for each in (one, other)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    yield one, here, there
    here.end()
    there.end()
    await one.close()
    await other.close()


async def both(desk: Desk, name: str, /, **fields: Any) -> None:
    _, here, there = desk
    assert await here.hears(name, **fields) == await there.hears(name, **fields)


async def test_a_new_queue(desk: Desk) -> None:
    broker, here, there = desk
    await broker.push("first", [JobSpec("n", None)])
    await both(desk, "queue:created", queue="first")
    await broker.push("first", [JobSpec("n", None)])
    await broker.push("second", [JobSpec("n", None)])
    await both(desk, "queue:created", queue="second")
    for watcher in (here, there):
        assert sum(name == "queue:created" for name, _ in watcher.told) == 2
    await broker.obliterate("first")
    await broker.push("first", [JobSpec("n", None)])
    async with asyncio.timeout(20):
        while sum(given.get("queue") == "first" for _, given in here.told) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_job_that_fails_for_good(desk: Desk) -> None:
    broker = desk[0]
    options = JobOptions(max_attempts=1)
    (id,) = (await broker.push("q", [JobSpec("n", None, options=options)])).ids
    (delivery,) = await broker.pull(PullRequest("q", owner="w"))
    await broker.fail([Failure(id, "boom", delivery.token)])
    await both(desk, "dlq:added", queue="q", jobId=id, reason="max_attempts_exceeded")


async def test_a_job_that_expires(desk: Desk) -> None:
    broker = desk[0]
    (id,) = (await broker.push("q", [JobSpec("n", None, options=JobOptions(ttl_ms=1))])).ids
    await asyncio.sleep(0.01)
    assert await broker.pull(PullRequest("q", owner="w")) == []
    given = await desk[1].hears("job:expired", queue="q", jobId=id, ttl=1)
    assert given["age"] > 1
    await both(desk, "job:expired", jobId=id)


async def test_dead_letters_that_go_by_themselves(desk: Desk) -> None:
    broker = desk[0]
    await broker.set_dlq_config("old", DlqConfig(max_age_ms=1))
    await broker.set_dlq_config("again", DlqConfig(auto_retry=True, auto_retry_interval_ms=1))
    for queue in ("old", "again"):
        (id,) = (await broker.push(queue, [JobSpec("n", None, options=JobOptions(max_attempts=1))])).ids
        (delivery,) = await broker.pull(PullRequest(queue, owner="w"))
        await broker.fail([Failure(id, "boom", delivery.token)])
    await both(desk, "dlq:expired", queue="old", count=1)
    await both(desk, "dlq:auto-retried", queue="again", count=1)


async def test_a_lease_and_a_time_limit_that_run_out(desk: Desk) -> None:
    broker = desk[0]
    (lost,) = (await broker.push("a", [JobSpec("n", None)])).ids
    (late,) = (await broker.push("b", [JobSpec("n", None, options=JobOptions(timeout_ms=50))])).ids
    await broker.pull(PullRequest("a", owner="w", lock_ttl_ms=50))
    await broker.pull(PullRequest("b", owner="w", lock_ttl_ms=60_000))
    await both(desk, "job:lock-expired", jobId=lost, queue="a", renewalCount=0)
    await both(desk, "job:timeout", jobId=late, queue="b", timeout=50)


async def test_dependencies(desk: Desk) -> None:
    broker = desk[0]
    first, second = (
        await broker.push(
            "q", [JobSpec("n", None, custom_id="x"), JobSpec("n", None, custom_id="y", depends_on=("x",))]
        )
    ).ids
    await both(desk, "job:waiting-children", jobId=second, queue="q")
    (delivery,) = await broker.pull(PullRequest("q", owner="w"))
    assert delivery.job.id == first
    await broker.ack([Ack(first, delivery.token, None)])
    await both(desk, "job:dependencies-resolved", jobId=second, queue="q")


async def test_a_key_whose_time_is_extended(desk: Desk) -> None:
    broker = desk[0]
    options = JobOptions(dedup_ttl_ms=60_000, dedup_extend=True)
    spec = JobSpec("n", None, unique_key="k", options=options)
    (id,) = (await broker.push("q", [spec])).ids
    await broker.push("q", [spec])
    await both(desk, "job:deduplicated", queue="q", jobId=id, strategy="extend")


async def test_schedulers(desk: Desk) -> None:
    broker = desk[0]
    request = {"name": "s", "queue": "q", "repeatEvery": 50, "skipIfNoWorker": True}
    await broker.upsert_schedule(request)
    await both(desk, "cron:created", name="s", queue="q", every=50)
    await both(desk, "cron:skipped", name="s", reason="no-worker")
    await broker.upsert_schedule(request | {"skipIfNoWorker": False, "preventOverlap": False})
    await both(desk, "cron:updated", name="s")
    await both(desk, "cron:fired", name="s", queue="q")
    await broker.remove_schedule("s")


async def test_limits(desk: Desk) -> None:
    broker = desk[0]
    await broker.push("q", [JobSpec("n", None) for _ in range(4)])
    await broker.set_concurrency("q", 1)
    await broker.pull(PullRequest("q", owner="w"))
    assert await broker.pull(PullRequest("q", owner="w")) == []
    await both(desk, "concurrency:rejected", queue="q")
    await broker.clear_concurrency("q")
    await broker.set_rate_limit("q", 1, 60_000)
    await broker.pull(PullRequest("q", owner="w"))
    assert await broker.pull(PullRequest("q", owner="w")) == []
    await both(desk, "ratelimit:rejected", queue="q")


async def test_nobody_pays_while_nobody_watches(open_broker: OpenBroker) -> None:
    broker = open_broker()
    await broker.start()
    try:
        assert not broker.notices.active
        watcher = Watcher(broker)
        assert broker.notices.active
        watcher.end()
        assert not broker.notices.active
        assert not broker.feed.active
    finally:
        await broker.close()


async def test_payloads_that_nobody_can_read(desk: Desk, postgres: PostgresServer) -> None:
    broker = desk[0]
    with psycopg.connect(postgres.dsn, autocommit=True) as stranger:
        for payload in ("x", "{}", "[]", "1", '["s",1]', '["s",["a"]]', '["s",["-",{}]]', "\\x00"):
            stranger.execute("SELECT pg_notify(%s, %s)", (broker.coordinator.channel, payload))
    await broker.upsert_schedule({"name": "s", "queue": "q", "repeatEvery": 3_600_000})
    await both(desk, "cron:created", name="s")
    assert broker.health().ready


async def test_who_comes_and_goes_is_watched_for_once(desk: Desk) -> None:
    broker = desk[0]
    before = len(broker.tasks)
    for _ in range(5):
        desk[1].end()
        again = Watcher(broker)
        again.end()
        desk[1].end = Watcher(broker).end
    await broker.push("q", [JobSpec("n", None)])
    async with asyncio.timeout(20):
        while len(broker.tasks) > before + 1:  # noqa: ASYNC110 - those that were told to end end with their pause
            await asyncio.sleep(0.05)
