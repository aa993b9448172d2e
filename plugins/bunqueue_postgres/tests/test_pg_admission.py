"""Admission where other jobs matter: debounce, windows of keys, chains of repeat jobs, and jobs that wait for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from bunqueue_postgres.broker import PostgresBroker

from bunqueue_core.model.errors import Conflict, NotFound, ValidationError
from bunqueue_core.model.job import Job, JobOptions, JobSpec
from bunqueue_core.model.payload import Packer, decode
from bunqueue_core.model.requests import Ack, Event, Failure, FlowJob, Page, PullRequest, Pushed


@pytest.fixture
async def broker(open_broker: Any) -> Any:
    """A started broker."""
    broker = open_broker()
    await broker.start()
    yield broker
    await broker.close()


def spec(data: Any = None, *, name: str = "n", options: dict[str, Any] | None = None, **settings: Any) -> JobSpec:
    return JobSpec(name, Packer().pack(data), JobOptions(**(options or {})), **settings)


def debounced(data: Any = None, ttl_ms: int = 60_000, **settings: Any) -> JobSpec:
    options = {"debounce_id": "d", "debounce_ttl_ms": ttl_ms, **settings.pop("options", {})}
    return spec(data, options=options, **settings)


async def push(broker: PostgresBroker, *specs: JobSpec, queue: str = "q") -> Pushed:
    return await broker.push(queue, specs)


async def job(broker: PostgresBroker, id: str) -> Job:
    view = await broker.job(id)
    assert view is not None
    return view.job


async def take(broker: PostgresBroker, queue: str = "q") -> Any:
    (delivery,) = await broker.pull(PullRequest(queue, 1, "w", wait_ms=10_000))
    return delivery


# -- debounce -------------------------------------------------------------------------------------------------------------


async def test_the_newest_data_wins_and_the_run_moves_out(broker: PostgresBroker) -> None:
    first = await push(broker, debounced("old", 30_000))
    id = first.ids[0]
    before = await job(broker, id)
    assert (first.outcomes, await broker.states([id])) == (["created"], ["delayed"])
    assert before.run_at == before.created_at + 30_000
    second = await push(broker, debounced("new", 90_000, name="other"))
    assert (second.ids, second.outcomes) == ([id], ["found"])
    after = await job(broker, id)
    assert (after.name, decode(after.data or b"")) == ("other", "new")
    assert before.run_at + 30_000 < after.run_at
    assert (await broker.counts("q")).delayed == 1


async def test_a_debounced_job_runs_when_nothing_more_comes(broker: PostgresBroker) -> None:
    (id,) = (await push(broker, debounced(1, 100))).ids
    await push(broker, debounced(2, 100))
    waiting = asyncio.ensure_future(take(broker))
    delivery = await waiting
    assert (delivery.job.id, decode(delivery.job.data)) == (id, 2)
    again = await push(broker, debounced(3, 100))
    assert again.outcomes == ["created"]


async def test_a_debounce_waits_no_longer_than_its_bound(broker: PostgresBroker) -> None:
    options = {"debounce_max_wait_ms": 5_000}
    (id,) = (await push(broker, debounced(1, 4_000, options=options))).ids
    admitted = await job(broker, id)
    await push(broker, debounced(2, 60_000, options=options))
    assert (await job(broker, id)).run_at == admitted.admitted_at + 5_000


async def test_members_of_a_bulk_are_debounced(broker: PostgresBroker) -> None:
    pushed = await push(broker, debounced(1), spec("else"), debounced(2), debounced(3))
    assert pushed.outcomes == ["created", "created", "found", "found"]
    assert pushed.ids[0] == pushed.ids[2] == pushed.ids[3]
    assert decode((await job(broker, pushed.ids[0])).data or b"") == 3


async def test_adds_of_several_brokers_are_debounced_to_one(broker: PostgresBroker, open_broker: Any) -> None:
    other = open_broker()
    await other.start()
    answers = [(broker, other)[n % 2].push("q", [debounced(n)]) for n in range(30)]
    outcomes = [(await answer).outcomes[0] for answer in answers]
    assert outcomes.count("created") == 1
    assert (await broker.counts("q")).delayed == 1
    await other.close()


async def test_a_debounced_job_that_others_have_tried_is_left_alone(broker: PostgresBroker) -> None:
    (id,) = (await push(broker, debounced(1, 1, options={"backoff_ms": 600_000}))).ids
    delivery = await take(broker)
    await broker.fail([Failure(id, "boom", delivery.token)])
    again = await push(broker, debounced(2))
    assert again.outcomes == ["created"]
    assert decode((await job(broker, id)).data or b"") == 1


async def test_debounce_ids_are_of_a_queue(broker: PostgresBroker) -> None:
    await push(broker, debounced(1))
    assert (await push(broker, debounced(1), queue="p")).outcomes == ["created"]


async def test_the_parts_of_a_flow_are_not_taken_over(broker: PostgresBroker) -> None:
    parent, child = debounced("parent", depends_on=("c",), children_ids=("c",)), spec("child", parent_id="p")
    await broker.push_flow([FlowJob("p", "q", parent), FlowJob("q", "c", child)])
    assert (await push(broker, debounced("other"))).outcomes == ["created"]


async def test_a_debounce_without_a_time_does_nothing(broker: PostgresBroker) -> None:
    for _ in range(2):
        assert (await push(broker, spec(options={"debounce_id": "d"}))).outcomes == ["created"]
    assert (await broker.counts("q")).waiting == 2


# -- deduplication --------------------------------------------------------------------------------------------------------


WINDOW = {"dedup_scope": "window", "dedup_ttl_ms": 600_000}


async def test_a_window_outlives_its_owner_for_every_add(broker: PostgresBroker) -> None:
    (id,) = (await push(broker, spec(unique_key="k", options=WINDOW))).ids
    delivery = await take(broker)
    await broker.ack([Ack(id, delivery.token, remove=True)])
    for options in (WINDOW, {}):
        again = await push(broker, spec(unique_key="k", options=options))
        assert (again.ids, again.outcomes) == ([id], ["found"])


async def test_a_job_that_comes_back_leaves_another_jobs_window_alone(broker: PostgresBroker) -> None:
    (dead,) = (await push(broker, spec(unique_key="k", options={"max_attempts": 1}))).ids
    await broker.fail([Failure(dead, "boom", (await take(broker)).token)])
    (owner,) = (await push(broker, spec(unique_key="k", options=WINDOW))).ids
    await broker.ack([Ack(owner, (await take(broker)).token)])
    assert await broker.retry_dead_letters("q") == 1
    assert await broker.key_owner("q", "k") == owner


async def test_a_refused_extension_starts_the_time_anew(broker: PostgresBroker) -> None:
    options = {"dedup_extend": True, "dedup_ttl_ms": 200}
    (id,) = (await push(broker, spec(unique_key="k", options=options))).ids
    await take(broker)
    longer = {"dedup_extend": True, "dedup_ttl_ms": 600_000}
    with pytest.raises(Conflict, match="extended TTL"):
        await push(broker, spec(unique_key="k", options=longer))
    await asyncio.sleep(0.25)
    assert await broker.key_owner("q", "k") == id


async def test_what_a_bulk_replaces_is_gone_for_its_later_members(broker: PostgresBroker) -> None:
    (owner,) = (await push(broker, spec(unique_key="k"))).ids
    with pytest.raises(NotFound, match=f"Dependency job not found: {owner}"):
        await push(broker, spec(unique_key="k", options={"dedup_replace": True}), spec(depends_on=(owner,)))
    assert await broker.states([owner]) == ["waiting"]


# -- data -----------------------------------------------------------------------------------------------------------------


async def test_new_data_is_held_to_the_size_limit(broker: PostgresBroker) -> None:
    (id,) = (await push(broker, spec("x", options={"size_limit": 20}))).ids
    with pytest.raises(ValidationError, match="sizeLimit"):
        await broker.update_data(id, Packer().pack("x" * 40))
    await broker.update_data(id, Packer().pack("fits"))
    assert decode((await job(broker, id)).data or b"") == "fits"


async def test_new_data_for_a_completed_repeat_job_reaches_its_successor(broker: PostgresBroker) -> None:
    repeat = {"every": 600_000, "count": 0}
    (id,) = (await push(broker, spec("old", options={"repeat": repeat}))).ids
    await broker.ack([Ack(id, (await take(broker)).token)])
    await broker.update_data(id, Packer().pack("new"))
    (successor,) = await broker.jobs("q", ("delayed",), _everything())
    assert decode(successor.job.data or b"") == "new"
    assert decode((await job(broker, id)).data or b"") == "old"
    await broker.cancel(successor.job.id)
    with pytest.raises(NotFound):
        await broker.update_data(id, Packer().pack("too late"))


# -- jobs that wait for ever ----------------------------------------------------------------------------------------------


async def test_a_job_says_what_it_is_blocked_by(broker: PostgresBroker) -> None:
    heard: list[Event] = []
    broker.subscribe(heard.append)
    one, two = (await push(broker, spec(options={"max_attempts": 1}), spec(options={"max_attempts": 1}))).ids
    (waiter,) = (await push(broker, spec(depends_on=(one, two)), queue="p")).ids
    assert await _blockers(broker, waiter) == ()
    for _ in range(2):
        delivery = await take(broker)
        await broker.fail([Failure(delivery.job.id, "boom", delivery.token)])
    assert await _blockers(broker, waiter) == (one, two)
    blocked = [event for event in heard if event.type == "blocked"]
    assert [(event.queue, event.job_id, event.extra) for event in blocked] == [
        ("p", waiter, {"data": {"blockedBy": [one]}})
    ]
    await broker.retry_dead_letters("q", one)
    assert await _blockers(broker, waiter) == (two,)
    await broker.ack([Ack(one, (await take(broker)).token)])
    assert await broker.states([waiter]) == ["waiting-children"]
    await broker.retry_dead_letters("q", two)
    assert await _blockers(broker, waiter) == ()


async def test_a_job_may_be_blocked_from_the_start(broker: PostgresBroker) -> None:
    heard: list[Event] = []
    (dead,) = (await push(broker, spec(options={"max_attempts": 1}))).ids
    await broker.fail([Failure(dead, "boom", (await take(broker)).token)])
    broker.subscribe(heard.append, "p")
    (waiter,) = (await push(broker, spec(depends_on=(dead,)), queue="p")).ids
    assert [(event.type, event.job_id) for event in heard] == [("pushed", waiter), ("blocked", waiter)]
    assert await _blockers(broker, waiter) == (dead,)


async def test_a_policy_leaves_nobody_blocked(broker: PostgresBroker) -> None:
    heard: list[Event] = []
    broker.subscribe(heard.append)
    child = spec("child", parent_id="p", options={"max_attempts": 1, "ignore_dependency_on_failure": True})
    await broker.push_flow(
        [FlowJob("p", "q", spec(depends_on=("c",), children_ids=("c",))), FlowJob("c", "kids", child)]
    )
    await broker.fail([Failure("c", "boom", (await take(broker, "kids")).token)])
    assert await broker.states(["p"]) == ["waiting"]
    assert not [event for event in heard if event.type == "blocked"]


async def test_a_job_that_is_parked_goes_on_when_what_it_needs_has_completed_again(broker: PostgresBroker) -> None:
    (needed,) = (await push(broker, spec())).ids
    (waiter,) = (await push(broker, spec(depends_on=(needed,)), queue="p")).ids
    await broker.ack([Ack(needed, (await take(broker)).token)])
    delivery = await take(broker, "p")
    assert await broker.retry_completed("q", needed) == 1
    await broker.move_to_waiting_children(waiter, delivery.token)
    assert await broker.states([waiter]) == ["waiting-children"]
    await broker.ack([Ack(needed, (await take(broker)).token)])
    assert await broker.states([waiter]) == ["waiting"]


async def _blockers(broker: PostgresBroker, id: str) -> tuple[str, ...]:
    view = await broker.job(id)
    assert view is not None
    (listed,) = await broker.jobs(view.job.queue, ("waiting-children",), _everything())
    assert listed.blocked_by == view.blocked_by
    return view.blocked_by


def _everything() -> Page:
    return Page(0, None, True)
