"""What other plugins add reaches the broker: back-off strategies and kinds of schedule; and bounds of what is kept."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest
from bunqueue_postgres import enqueue
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.testing import PostgresServer
from pg_waiting import until

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.job import JobOptions, JobSpec
from bunqueue_core.model.requests import Ack, Failure, PullRequest
from bunqueue_core.plugins.drivers import ScheduleKind
from bunqueue_core.plugins.hookspecs import hookimpl
from bunqueue_core.plugins.manager import PluginManager
from bunqueue_core.storage.opening import open_broker


def _ignore(*_: Any, **__: Any) -> None:
    return


class Hours:
    """A kind of schedule: the value is the number of hours between runs."""

    def __init__(self, hours: int) -> None:
        self._pause = hours * 3_600_000

    def next_after(self, instant_ms: int) -> int:
        return instant_ms - instant_ms % self._pause + self._pause


def _parse(value: Any, timezone: str | None) -> Hours:
    if not isinstance(value, int):
        raise ValidationError("hours must be a number")
    return Hours(value)


class Plugin:
    """A distribution beside the driver's."""

    @hookimpl
    def bunqueue_backoff_strategies(self) -> dict[str, Any]:
        return {"eternal": lambda delay, attempts, random: 3_000_000 + attempts}

    @hookimpl
    def bunqueue_schedule_kinds(self) -> tuple[ScheduleKind, ...]:
        return (ScheduleKind("hours", "hours", _parse),)


@pytest.fixture
async def extended(postgres: PostgresServer) -> Any:
    """A started broker as a server opens it, with another plugin installed."""
    plugins = PluginManager({"acme": Plugin()})
    settings = plugins.driver("postgres").settings(
        driver="postgres", url=postgres.dsn, namespace=f"test-{uuid.uuid4()}"
    )  # type: ignore[call-arg]
    broker = open_broker(settings, plugins, log=_ignore)
    await broker.start()
    yield broker
    await broker.close()


async def test_a_plugins_strategy_backs_off(extended: PostgresBroker) -> None:
    options = JobOptions(backoff={"type": "eternal", "delay": 1})
    (id,) = (await extended.push("q", [JobSpec("n", None, options)])).ids
    (delivery,) = await extended.pull(PullRequest("q", 1, "w"))
    await extended.fail([Failure(id, "boom", delivery.token)])
    view = await extended.job(id)
    assert view is not None
    failed_at = [step["timestamp"] for step in view.job.timeline or () if step["state"] == "failed"]
    assert view.job.run_at - failed_at[0] == 3_000_001


async def test_a_producers_transaction_knows_the_names_of_strategies(
    extended: PostgresBroker, postgres: PostgresServer
) -> None:
    backoff = {"type": "eternal", "delay": 1}
    namespace = extended.settings.namespace
    with psycopg.connect(postgres.dsn) as connection:
        with pytest.raises(ValidationError):
            enqueue(connection, "q", "n", backoff=backoff, namespace=namespace)
        id = enqueue(connection, "q", "n", backoff=backoff, namespace=namespace, backoff_strategies=["eternal"])
    assert await extended.states([id]) == ["waiting"]


async def test_a_plugins_kind_of_schedule_is_read_and_stored(extended: PostgresBroker) -> None:
    entry = await extended.upsert_schedule({"name": "s", "queue": "q", "hours": 2})
    assert entry.next_run % 7_200_000 == 0
    stored = await extended.schedule("s")
    assert stored.next_run == entry.next_run
    assert await extended.preview_schedule("s", 3) == [entry.next_run + n * 7_200_000 for n in range(3)]
    with pytest.raises(ValidationError, match="hours must be a number"):
        await extended.upsert_schedule({"name": "t", "queue": "q", "hours": "two"})


async def test_no_more_events_than_configured_are_kept(open_broker: Any) -> None:
    broker = open_broker(max_queue_events=3)
    await broker.start()
    await broker.push("q", [JobSpec("n", None) for _ in range(20)])
    await broker.push("other", [JobSpec("n", None)])
    await broker.pull(PullRequest("q", 1, "w"))

    async def pruned() -> bool:
        with psycopg.connect(broker.settings.url.get_secret_value()) as look:
            rows = look.execute(
                "SELECT q.name, sum(e.size) FROM bunqueue.events e JOIN bunqueue.queues q ON q.id = e.queue_id "
                "WHERE e.ns = %s GROUP BY 1 ORDER BY 1",
                (broker.ns,),
            ).fetchall()
        return bool(rows == [("other", 1), ("q", 3)])

    await until(pruned)
    await broker.close()


async def test_proofs_that_nobody_needs_are_bounded(open_broker: Any) -> None:
    broker = open_broker(max_completed_jobs=2)
    await broker.start()
    options = JobOptions()
    ids = (await broker.push("q", [JobSpec("n", None, options) for _ in range(6)])).ids
    needed = ids[0]
    await broker.push("p", [JobSpec("n", None, depends_on=(needed, (await broker.push("x", [JobSpec()])).ids[0]))])
    for delivery in await broker.pull(PullRequest("q", 10, "w")):
        await broker.ack([Ack(delivery.job.id, delivery.token, None, remove=True)])
    await broker.coordinator.maintain()
    with psycopg.connect(broker.settings.url.get_secret_value()) as look:
        rows = look.execute("SELECT id FROM bunqueue.proofs WHERE ns = %s ORDER BY 1", (broker.ns,)).fetchall()
    assert [id for (id,) in rows] == sorted([needed, *ids[-2:]])
    await broker.close()
