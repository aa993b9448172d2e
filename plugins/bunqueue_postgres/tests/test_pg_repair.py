"""Derived data that somebody corrupted by hand: the check mends it, and the jobs behind it go on."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from pg_waiting import until

from bunqueue_core.model.job import JobOptions, JobSpec, Retention
from bunqueue_core.model.requests import Ack, DlqConfig, Failure, GroupDefaults, PullRequest, StallConfig


@pytest.fixture
async def broker(open_broker: Any) -> Any:
    """A started broker that has made its first check."""
    broker = open_broker()
    await broker.start()

    async def checked() -> bool:
        return bool(broker.checked)

    await until(checked)
    yield broker
    await broker.close()


def execute(broker: PostgresBroker, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Change the tables by hand."""
    with psycopg.connect(broker.settings.url.get_secret_value(), autocommit=True) as connection:
        cursor = connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description is not None else []


async def push(broker: PostgresBroker, queue: str = "q", options: dict[str, Any] | None = None, **settings: Any) -> str:
    spec = JobSpec("n", None, JobOptions(**(options or {})), **settings)
    return (await broker.push(queue, [spec])).ids[0]


async def pull(broker: PostgresBroker, queue: str = "q", group: GroupDefaults | None = None) -> list[str]:
    deliveries = await broker.pull(PullRequest(queue, 10, "w", group=group))
    return [delivery.job.id for delivery in deliveries]


async def test_nothing_is_mended_where_nothing_has_drifted(broker: PostgresBroker) -> None:
    first = await push(broker, priority=3, options={"lifo": True, "ttl_ms": 60_000})
    await push(broker, "p", depends_on=(first,), unique_key="k", group_id="g")
    await push(broker, "p", options={"debounce_id": "d"}, unique_key="l")
    await broker.add_log(first, "line", "info")
    await broker.set_rate_limit("q", 5)
    await broker.set_stall_config("q", StallConfig(stall_interval_ms=1_000))
    await broker.pause_group("p", "g")
    assert set((await broker.mend()).values()) == {0}


async def test_levels_of_priority_are_found_again(broker: PostgresBroker) -> None:
    ids = [await push(broker, priority=priority) for priority in (9, 5, 0)]
    last_in = await push(broker, priority=7, options={"lifo": True})
    execute(broker, "UPDATE bunqueue.queues SET priorities = '{5}' WHERE ns = %s", broker.ns)
    assert await pull(broker) == [ids[1]]
    assert (await broker.mend())["queues"] == 1
    assert await pull(broker) == [ids[0], last_in, ids[2]]


async def test_grouped_jobs_are_seen_again(broker: PostgresBroker) -> None:
    id = await push(broker, group_id="g")
    execute(broker, "UPDATE bunqueue.queues SET features = 0 WHERE ns = %s", broker.ns)
    assert await pull(broker) == []
    assert (await broker.mend())["queues"] == 1
    assert await pull(broker) == [id]


async def test_a_queue_with_jobs_is_listed_and_a_limited_one_is_limited(broker: PostgresBroker) -> None:
    await push(broker)
    await push(broker)
    await broker.set_concurrency("q", 1)
    execute(broker, "UPDATE bunqueue.queues SET listed = false, limited = false WHERE ns = %s", broker.ns)
    assert await broker.queues() == []
    await broker.mend()
    assert await broker.queues() == ["q"]
    assert len(await pull(broker)) == 1


async def test_how_long_a_job_may_be_silent_follows_the_policy(broker: PostgresBroker) -> None:
    await broker.set_stall_config("q", StallConfig(stall_interval_ms=20_000, grace_period_ms=0))
    execute(broker, "UPDATE bunqueue.queues SET stall_after = 1 WHERE ns = %s", broker.ns)
    assert (await broker.mend())["queues"] == 1
    rows = execute(broker, "SELECT stall_after FROM bunqueue.queues WHERE ns = %s", broker.ns)
    assert rows == [(25_000,)]


@pytest.mark.parametrize(
    "corruption",
    [
        "DELETE FROM bunqueue.edges WHERE ns = %s",
        "UPDATE bunqueue.edges SET met = false WHERE ns = %s",
        "UPDATE bunqueue.jobs SET flags = flags & ~4 WHERE ns = %s",
    ],
    ids=["lost", "unmet", "untold"],
)
@pytest.mark.parametrize("completed_first", [True, False])
async def test_jobs_that_wait_start_all_the_same(
    broker: PostgresBroker, corruption: str, completed_first: bool
) -> None:
    one, two = await push(broker, "q"), await push(broker, "other")
    waiter = await push(broker, "p", depends_on=(one, two))
    for queue in ("q", "other"):
        if queue == "other":
            execute(broker, corruption, broker.ns)
            if not completed_first:
                await broker.mend()
        (delivery,) = await broker.pull(PullRequest(queue, 1, "w"))
        await broker.ack([Ack(delivery.job.id, delivery.token)])
    await broker.mend()
    assert await broker.states([waiter]) == ["waiting"]
    assert await pull(broker, "p") == [waiter]


async def test_an_edge_that_a_job_does_not_know_goes(broker: PostgresBroker) -> None:
    one, stranger = await push(broker), await push(broker, "other")
    waiter = await push(broker, "p", depends_on=(one,))
    execute(
        broker,
        "INSERT INTO bunqueue.edges (ns, dependency_id, job_id, met) VALUES (%s, %s, %s, false)",
        broker.ns,
        stranger,
        waiter,
    )
    assert (await broker.mend())["edges"] == 1  # the stranger is told first that it is waited for
    (delivery,) = await broker.pull(PullRequest("q", 1, "w"))
    await broker.ack([Ack(one, delivery.token)])
    assert await broker.states([waiter]) == ["waiting"]


# -- when ended jobs are due ----------------------------------------------------------------------------------------------

AGE_MS = 600_000


async def end(broker: PostgresBroker, way: str) -> str:
    """A job that has ended and is due at some time: to be removed or, a dead letter, retried."""
    if way == "completed":
        id = await push(broker, options={"remove_on_complete": Retention(age_ms=AGE_MS)})
    else:
        await broker.set_dlq_config("q", DlqConfig(auto_retry=way == "retried", auto_retry_interval_ms=AGE_MS))
        id = await push(broker, options={"max_attempts": 1})
    (delivery,) = await broker.pull(PullRequest("q", 1, "w"))
    if way == "completed":
        await broker.ack([Ack(id, delivery.token)])
    else:
        await broker.fail([Failure(id, "no", delivery.token)])
    return id


def due(broker: PostgresBroker, id: str) -> tuple[int, int]:
    """When the job is due, and when it had ended, epoch ms."""
    rows = execute(broker, "SELECT due_at, finished_at FROM bunqueue.jobs WHERE ns = %s AND id = %s", broker.ns, id)
    return rows[0][0], rows[0][1]


ENDS = pytest.mark.parametrize("way", ["completed", "buried", "retried"])


@ENDS
@pytest.mark.parametrize("drift", ["NULL", "due_at + 1", "due_at - 1", "4000000000000"])
async def test_ended_jobs_are_due_when_they_say(broker: PostgresBroker, way: str, drift: str) -> None:
    id = await end(broker, way)
    before = due(broker, id)
    assert before[0] - before[1] == (604_800_000 if way == "buried" else AGE_MS)
    assert (await broker.mend())["due"] == 0
    execute(broker, f"UPDATE bunqueue.jobs SET due_at = {drift} WHERE ns = %s AND id = %s", broker.ns, id)
    assert (await broker.mend())["due"] == 1
    assert due(broker, id) == before
    assert (await broker.mend())["due"] == 0


async def test_ended_jobs_that_are_never_due_are_not(broker: PostgresBroker) -> None:
    completed = await push(broker)
    (delivery,) = await broker.pull(PullRequest("q", 1, "w"))
    await broker.ack([Ack(completed, delivery.token)])
    await broker.set_dlq_config("q", DlqConfig(max_age_ms=None))
    dead = await push(broker)
    await broker.discard(dead)
    assert (await broker.mend())["due"] == 0
    execute(broker, "UPDATE bunqueue.jobs SET due_at = 4000000000000 WHERE ns = %s", broker.ns)
    assert (await broker.mend())["due"] == 2
    assert [due(broker, id)[0] for id in (completed, dead)] == [None, None]


@ENDS
async def test_a_job_whose_time_has_not_come_is_left_alone_and_mended(broker: PostgresBroker, way: str) -> None:
    id = await end(broker, way)
    before = due(broker, id)
    execute(broker, "UPDATE bunqueue.jobs SET due_at = 1 WHERE ns = %s AND id = %s", broker.ns, id)

    async def mended() -> bool:
        await broker.maintain_dead_letters()
        return due(broker, id)[0] != 1

    await until(mended)
    assert due(broker, id) == before
    assert (await broker.mend())["due"] == 0


async def test_a_job_that_nobody_came_for_goes_after_all(broker: PostgresBroker) -> None:
    id = await end(broker, "completed")
    execute(broker, "UPDATE bunqueue.jobs SET due_at = NULL, finished_at = 1 WHERE ns = %s AND id = %s", broker.ns, id)
    assert await broker.maintain_dead_letters() == 0
    assert (await broker.mend())["due"] == 1

    async def gone() -> bool:
        await broker.maintain_dead_letters()
        return await broker.states([id]) == ["unknown"]

    await until(gone)


async def test_an_overdue_job_that_is_needed_is_no_drift(broker: PostgresBroker) -> None:
    id = await end(broker, "completed")
    await push(broker, "p", depends_on=(id, await push(broker, "other")))
    overdue = "UPDATE bunqueue.jobs SET due_at = %s, finished_at = 1 WHERE ns = %s AND id = %s"
    execute(broker, overdue, 1 + AGE_MS, broker.ns, id)
    assert (await broker.mend())["due"] == 0

    async def put_off() -> bool:
        await broker.maintain_dead_letters()
        return due(broker, id)[0] > 1 + AGE_MS

    await until(put_off)
    assert (await broker.mend())["due"] == 0
    assert await broker.states([id]) == ["completed"]


async def test_the_check_goes_through_ended_jobs_in_steps(
    broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bunqueue_postgres.verbs.repair.PAGE", 3)
    ids = [await end(broker, way) for way in ("completed", "retried") for _ in range(5)]
    before = [due(broker, id) for id in ids]
    execute(broker, "UPDATE bunqueue.jobs SET due_at = NULL WHERE ns = %s", broker.ns)
    assert (await broker.mend())["due"] == len(ids)
    assert [due(broker, id) for id in ids] == before


async def test_the_number_of_events_is_counted_anew(broker: PostgresBroker) -> None:
    await broker.push("q", [JobSpec() for _ in range(5)])
    execute(broker, "UPDATE bunqueue.events SET size = 1000000 WHERE ns = %s", broker.ns)
    assert (await broker.mend())["events"] == 1
    assert await broker.trim_events("q", 3) == 2


async def test_what_jobs_that_are_gone_leave_behind_is_removed(broker: PostgresBroker) -> None:
    ids = [await push(broker, unique_key=f"k{n}", options={"debounce_id": f"d{n}"}) for n in range(3)]
    await broker.add_log(ids[0], "line", "info")
    waiter = await push(broker, "p", depends_on=(ids[2],))
    execute(broker, "DELETE FROM bunqueue.jobs WHERE ns = %s AND id = ANY (%s)", broker.ns, [ids[0], ids[1], waiter])
    mended = await broker.mend()
    assert (mended["keys"], mended["remains"]) == (2, 3)
    for table in ("keys", "debounces"):
        rows = execute(
            broker,
            f"SELECT t.job_id FROM bunqueue.{table} t JOIN bunqueue.queues q ON q.id = t.queue_id WHERE q.ns = %s",
            broker.ns,
        )
        assert rows == [(ids[2],)]
    assert execute(broker, "SELECT count(*) FROM bunqueue.edges WHERE ns = %s", broker.ns) == [(0,)]
    assert await broker.drain_queue("q") == 1


async def test_expired_keys_and_idle_groups_go_but_policies_stay(broker: PostgresBroker) -> None:
    await push(broker, unique_key="short", options={"dedup_ttl_ms": 1})
    await push(broker, unique_key="long", options={"dedup_ttl_ms": 600_000})
    for group in ("idle", "paused", "busy"):
        await push(broker, "g", group_id=group)
    await broker.pause_group("g", "paused")
    await push(broker, "g", group_id="busy")
    deliveries = await broker.pull(PullRequest("g", 2, "w"))
    for delivery in deliveries:
        await broker.ack([Ack(delivery.job.id, delivery.token)])

    async def swept() -> bool:
        await broker.mend()
        rows = execute(
            broker,
            "SELECT k.key FROM bunqueue.keys k JOIN bunqueue.queues q ON q.id = k.queue_id WHERE q.ns = %s",
            broker.ns,
        )
        return rows == [("long",)]

    await until(swept)
    rows = execute(
        broker,
        "SELECT g.id FROM bunqueue.groups g JOIN bunqueue.queues q ON q.id = g.queue_id WHERE q.ns = %s ORDER BY 1",
        broker.ns,
    )
    assert rows == [("busy",), ("paused",)]


async def test_each_broker_checks_when_it_starts(broker: PostgresBroker, open_broker: Any) -> None:
    id = await push(broker, priority=4)
    execute(broker, "UPDATE bunqueue.queues SET priorities = '{}' WHERE ns = %s", broker.ns)
    other = open_broker()
    await other.start()
    (delivery,) = await other.pull(PullRequest("q", 1, "w", wait_ms=15_000))
    assert delivery.job.id == id
    await other.close()


async def test_blocked_jobs_are_counted(broker: PostgresBroker) -> None:
    needed = await push(broker, "q")
    await push(broker, "p", depends_on=(needed,))
    await broker.mend()
    assert broker.statistics()["blockedJobs"] == 0
    await broker.discard(needed)
    await broker.mend()
    assert broker.statistics()["blockedJobs"] == 1
