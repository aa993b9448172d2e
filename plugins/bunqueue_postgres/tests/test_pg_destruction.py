"""What removes jobs never removes one that a live job waits for, and so strands none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from pg_waiting import until

from bunqueue_core.model.errors import Conflict, NotFound
from bunqueue_core.model.job import JobOptions, JobSpec, Retention
from bunqueue_core.model.requests import Ack, DlqConfig, Event, Failure, PullRequest


@pytest.fixture
async def broker(open_broker: Any) -> Any:
    """A started broker."""
    broker = open_broker()
    await broker.start()
    yield broker
    await broker.close()


async def push(broker: PostgresBroker, queue: str = "q", *, depends_on: tuple[str, ...] = (), **options: Any) -> str:
    spec = JobSpec("n", None, JobOptions(**options), depends_on=depends_on)
    return (await broker.push(queue, [spec])).ids[0]


async def fail(broker: PostgresBroker, queue: str = "q") -> None:
    (delivery,) = await broker.pull(PullRequest(queue, 1, "w"))
    await broker.fail([Failure(delivery.job.id, "boom", delivery.token)])


async def needed_and_free(broker: PostgresBroker, **options: Any) -> tuple[str, str, str]:
    """A job that a live one of another queue waits for, that one, and a job that nobody waits for."""
    needed = await push(broker, **options)
    waiter = await push(broker, "p", depends_on=(needed,))
    return needed, waiter, await push(broker, **options)


Removal = Callable[[PostgresBroker], Awaitable[Any]]


@pytest.mark.parametrize(
    "remove",
    [lambda broker: broker.drain_queue("q"), lambda broker: broker.clean("q", 0, "waiting", 100)],
    ids=["drain", "clean"],
)
async def test_what_empties_a_queue_passes_by_needed_jobs(broker: PostgresBroker, remove: Removal) -> None:
    needed, waiter, free = await needed_and_free(broker)
    await remove(broker)
    assert await broker.states([needed, waiter, free]) == ["waiting", "waiting-children", "unknown"]


async def test_a_needed_job_outlives_its_time_to_live(broker: PostgresBroker) -> None:
    heard: list[Event] = []
    broker.subscribe(heard.append, "q")
    needed, waiter, free = await needed_and_free(broker, ttl_ms=1)

    async def expired() -> bool:
        await broker.pull(PullRequest("q", 1, "w"))
        return bool(await broker.states([free]) == ["unknown"])

    await until(expired)
    assert await broker.states([needed, waiter]) == ["waiting", "waiting-children"]
    removed = [event for event in heard if event.type == "removed"]
    assert [(event.job_id, event.extra) for event in removed] == [(free, {"error": "Job TTL expired"})]


@pytest.mark.parametrize("way", ["purge", "remove", "clean", "bound", "age"])
async def test_a_needed_dead_letter_stays(broker: PostgresBroker, way: str) -> None:
    needed, waiter, free = await needed_and_free(broker, max_attempts=1)
    if way == "age":
        await broker.set_dlq_config("q", DlqConfig(max_age_ms=1))
    for _ in range(2):
        await fail(broker)
    if way == "purge":
        assert await broker.purge_dead_letters("q") == 1
    elif way == "remove":
        assert [await broker.remove_dead_letter("q", id) for id in (needed, free)] == [False, True]
    elif way == "clean":
        assert await broker.clean("q", None, "failed", 100) == [free]
    elif way == "bound":
        await push(broker, max_attempts=1)
        await fail(broker)
        await broker.set_dlq_config("q", DlqConfig(max_entries=1))
    else:

        async def gone() -> bool:
            while await broker.maintain_dead_letters():
                pass
            return bool(await broker.states([free]) == ["unknown"])

        await until(gone)
    assert await broker.states([needed, waiter, free]) == ["failed", "waiting-children", "unknown"]


async def test_a_needed_job_is_kept_although_it_would_be_removed_when_it_fails(broker: PostgresBroker) -> None:
    needed, waiter, free = await needed_and_free(broker, max_attempts=1, remove_on_fail=Retention(remove=True))
    for _ in range(2):
        await fail(broker)
    assert await broker.states([needed, waiter, free]) == ["failed", "waiting-children", "unknown"]


async def test_a_needed_job_is_not_cancelled(broker: PostgresBroker) -> None:
    needed, _, free = await needed_and_free(broker)
    await broker.cancel(free)
    with pytest.raises(NotFound):
        await broker.cancel(needed)


async def test_a_completed_job_that_is_needed_outlives_its_age(broker: PostgresBroker) -> None:
    needed = await push(broker, remove_on_complete=Retention(age_ms=1))
    other = await push(broker, "other")
    waiter = await push(broker, "p", depends_on=(needed, other))
    (delivery,) = await broker.pull(PullRequest("q", 1, "w"))
    await broker.ack([Ack(needed, delivery.token)])

    async def due() -> bool:
        # Ends: what is needed is put off, not looked at again and again.
        while await broker.maintain_dead_letters():
            pass
        with psycopg.connect(broker.settings.url.get_secret_value()) as look:
            row = look.execute(
                "SELECT due_at > finished_at + 1 FROM bunqueue.jobs WHERE ns = %s AND id = %s", (broker.ns, needed)
            ).fetchone()
        return bool(row and row[0])

    await until(due)
    assert await broker.states([needed, waiter]) == ["completed", "waiting-children"]


async def test_a_queue_that_others_need_is_not_obliterated(broker: PostgresBroker) -> None:
    needed, waiter, free = await needed_and_free(broker)
    inside = await push(broker, depends_on=(free,))
    with pytest.raises(Conflict) as caught:
        await broker.obliterate("q")
    assert str(caught.value) == "Cannot obliterate queue q: 1 job(s) have live dependents"
    assert await broker.states([needed, free, inside]) == ["waiting", "waiting", "waiting-children"]
    await broker.cancel(waiter)
    await broker.obliterate("q")
    assert await broker.states([needed, free, inside]) == ["unknown"] * 3


async def test_completed_jobs_beyond_their_number_are_still_known_to_have_completed(broker: PostgresBroker) -> None:
    ids = [await push(broker, remove_on_complete=Retention(count=1)) for _ in range(3)]
    for _ in ids:
        (delivery,) = await broker.pull(PullRequest("q", 1, "w"))
        await broker.ack([Ack(delivery.job.id, delivery.token)])
    assert await broker.states(ids) == ["unknown", "unknown", "completed"]
    assert await broker.states([await push(broker, "p", depends_on=(ids[0],))]) == ["waiting"]


@pytest.mark.parametrize("way", ["drain", "clean", "expire", "obliterate"])
async def test_what_removed_jobs_leave_behind_goes_with_them(broker: PostgresBroker, way: str) -> None:
    needed = await push(broker)
    (delivery,) = await broker.pull(PullRequest("q", 1, "w"))
    spec = JobSpec("n", None, JobOptions(ttl_ms=1 if way == "expire" else None), depends_on=(needed,), unique_key="k")
    (id,) = (await broker.push("p", [spec])).ids
    await broker.add_log(id, "line", "info")
    await broker.ack([Ack(needed, delivery.token)])
    assert (await broker.clean("q", 0, "completed", 10)) == []  # it is needed
    if way == "drain":
        await broker.drain_queue("p")
    elif way == "clean":
        await broker.clean("p", 0, "waiting", 10)
    elif way == "obliterate":
        await broker.obliterate("p")
    else:

        async def expired() -> bool:
            await broker.pull(PullRequest("p", 1, "w"))
            return bool(await broker.states([id]) == ["unknown"])

        await until(expired)
    assert await broker.key_owner("p", "k") is None
    assert await broker.logs(id) == []
    assert (await broker.clean("q", 0, "completed", 10)) == [needed]
