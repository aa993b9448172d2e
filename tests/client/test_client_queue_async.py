"""The queue against every kind of broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bunqueue_core.client.queue_async import Queue
from bunqueue_core.model.errors import CommandError, CommandTimeoutError, NotFound, SerializationError

Target = dict[str, Any]


async def test_a_job_that_was_added_can_be_fetched(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        added = await queue.add("send", {"to": "a", "n": 1}, priority=3, attempts=5, tags=["x"])
        assert (added.name, added.queue, added.data) == ("send", name, {"to": "a", "n": 1})
        fetched = await queue.get_job(added.id)
        assert fetched is not None
        assert (fetched.id, fetched.name, fetched.queue, fetched.data) == (added.id, "send", name, {"to": "a", "n": 1})
        assert (fetched.priority, fetched.max_attempts, fetched.tags, fetched.attempts) == (3, 5, ["x"], 0)
        assert fetched.state == "prioritized"
        assert isinstance(fetched.created_at, int)
        assert fetched.opts == {"priority": 3, "attempts": 5, "tags": ["x"]}


async def test_every_option_reaches_the_broker(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        moment = datetime(2030, 1, 1, tzinfo=UTC)
        added = await queue.add(
            "all",
            {"k": "v"},
            delay=timedelta(hours=1),
            backoff={"type": "fixed", "delay": 250},
            ttl=90_000_000,
            timeout=timedelta(seconds=30),
            stall_timeout=5000,
            job_id=f"{name}-custom",
            deduplication={"id": "dedup", "ttl": 1000},
            lifo=True,
            durable=True,
            remove_on_complete=True,
            remove_on_fail=True,
            stack_trace_limit=3,
            keep_logs=7,
            size_limit=1000,
            timestamp=moment,
            group={"id": 7},
        )
        assert added.id == f"{name}-custom"
        job = await queue.get_job(added.id)
        assert job is not None
        raw = job.raw
        assert job.delay == 3_600_000
        assert job.created_at == 1_893_456_000_000
        assert (raw["backoffConfig"], raw["ttl"], raw["timeout"]) == (
            {"type": "fixed", "delay": 250},
            90_000_000,
            30_000,
        )
        assert (raw["stallTimeout"], raw["uniqueKey"], raw["deduplicationTtl"]) == (5000, "dedup", 1000)
        assert (raw["lifo"], raw["durable"], raw["removeOnComplete"], raw["removeOnFail"]) == (True, True, True, True)
        assert (raw["stackTraceLimit"], raw["keepLogs"], raw["sizeLimit"], raw["groupId"]) == (3, 7, 1000, "7")


async def test_default_options_are_overridden_key_by_key(target: Target, name: str) -> None:
    async with Queue(name, default_job_options={"attempts": 7, "priority": 2}, **target) as queue:
        single = await queue.get_job((await queue.add("a", {}, priority=4)).id)
        assert single is not None
        assert (single.max_attempts, single.priority) == (7, 4)
        (bulk_id,) = await queue.add_bulk([{"name": "b", "data": {}, "attempts": 2}])
        bulk = await queue.get_job(bulk_id)
        assert bulk is not None
        assert (bulk.max_attempts, bulk.priority) == (2, 2)


async def test_a_custom_id_is_added_once(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        first = await queue.add("a", {"n": 1}, job_id=f"{name}-once")
        second = await queue.add("a", {"n": 2}, job_id=f"{name}-once")
        assert first.id == second.id == f"{name}-once"
        assert await queue.add_bulk([{"name": "a", "data": {}, "job_id": f"{name}-once"}]) == [first.id]
        assert await queue.count() == 1
        found = await queue.get_job_by_custom_id(f"{name}-once")
        assert found is not None
        assert found.data == {"n": 1}


async def test_jobs_are_added_in_bulk_all_or_none(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        assert await queue.add_bulk([]) == []
        ids = await queue.add_bulk([{"name": f"j{n}", "data": {"n": n}} for n in range(5)])
        assert len(set(ids)) == 5
        jobs = await queue.get_waiting()
        assert [(job.id, job.name, job.data) for job in jobs] == [(ids[n], f"j{n}", {"n": n}) for n in range(5)]
        with pytest.raises(CommandError, match=r"jobs\[1\]"):
            await queue.add_bulk([{"name": "good", "data": {}}, {"name": "bad", "data": {}, "attempts": 0}])
        assert await queue.count() == 5


@pytest.mark.parametrize(
    "data",
    [
        None,
        0,
        "text",
        [1, [2, {"a": None}]],
        {"large": 2**40, "larger": -(2**52), "float": 1.5},
        {"blob": b"\x00\xff", "": {"nested": {"deeper": True}}},
        {"unicode": "Ω漢字😀", "name": "kept"},
    ],
)
async def test_payloads_come_back_equal(target: Target, name: str, data: Any) -> None:
    async with Queue(name, **target) as queue:
        one = await queue.get_job((await queue.add("a", data)).id)
        (id,) = await queue.add_bulk([{"name": "b", "data": data}])
        other = await queue.get_job(id)
        assert one is not None
        assert other is not None
        assert one.data == data
        assert other.data == data


async def test_what_cannot_be_encoded_is_refused_before_it_is_sent(target: Target, name: str) -> None:
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    async with Queue(name, **target) as queue:
        with pytest.raises(SerializationError, match="cyclic"):
            await queue.add("a", cyclic)
        with pytest.raises(SerializationError):
            await queue.add("a", {"what": object()}, priority=1)
        with pytest.raises(SerializationError):
            await queue.add_bulk([{"name": "a", "data": {"what": object()}}])
        with pytest.raises(SerializationError):
            await queue.add("a", 2**70)
        assert await queue.count() == 0


async def test_wrong_arguments_are_refused(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        with pytest.raises(TypeError, match=r"unknown job option 'colour'$"):
            await queue.add("a", {}, colour="red")
        with pytest.raises(TypeError, match="unknown job option 'prioritty'; did you mean 'priority'"):
            await queue.add("a", {}, prioritty=1)
        with pytest.raises(CommandError, match="Job name must be"):
            await queue.add("", {})
        with pytest.raises(CommandError, match="maxAttempts must be at least 1"):
            await queue.add("a", {}, attempts=0)
        with pytest.raises(CommandError, match="Dependency job not found: nobody"):
            await queue.add("a", {}, depends_on=["nobody"])
        with pytest.raises(ValueError, match="state must be"):
            await queue.retry_jobs("active")
    with pytest.raises(ValueError, match="invalid characters"):
        Queue("a b", **target)


async def test_states_and_counts(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        waiting = await queue.add("w", {})
        urgent = await queue.add("u", {}, priority=9)
        later = await queue.add("l", {}, delay=60_000)
        assert await queue.get_state(waiting.id) == "waiting"
        assert await urgent.get_state() == "prioritized"
        assert await later.is_delayed()
        assert await queue.get_state("nobody") == "unknown"
        assert await queue.get_job("nobody") is None
        assert await queue.get_job_by_custom_id("nobody") is None
        assert await queue.get_result("nobody") is None
        counts = await queue.get_job_counts()
        assert counts == {
            "waiting": 1,
            "prioritized": 1,
            "delayed": 1,
            "active": 0,
            "completed": 0,
            "failed": 0,
            "waiting-children": 0,
            "paused": 0,
        }
        assert (
            await queue.get_waiting_count()
            == await queue.get_prioritized_count()
            == await queue.get_delayed_count()
            == 1
        )
        assert (
            await queue.get_active_count() == await queue.get_completed_count() == await queue.get_failed_count() == 0
        )
        assert await queue.count() == 3
        assert await queue.get_counts_per_priority() == {"0": 2, "9": 1}
        assert name in await queue.list_queues()


async def test_listings_are_windows(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        ids = await queue.add_bulk([{"name": "a", "data": n} for n in range(7)])
        assert [job.id for job in await queue.get_jobs("waiting", 2, 5)] == ids[2:5]
        assert [job.id for job in await queue.get_jobs(["waiting", "delayed"], 0, 2, asc=False)] == [ids[6], ids[5]]
        assert await queue.get_jobs("waiting", 3, 3) == []
        assert await queue.get_completed() == []


async def test_all_jobs_of_a_long_listing(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        ids = await queue.add_bulk([{"name": "a", "data": n} for n in range(2003)])
        assert [job.id for job in await queue.get_jobs("waiting", 0, -1)] == ids
        assert [job.id for job in await queue.get_jobs(None, 2000, -1)] == ids[2000:]


async def test_a_paused_queue_says_so(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        await queue.add("a", {})
        assert not await queue.is_paused()
        await queue.pause()
        assert await queue.is_paused()
        assert (await queue.get_job_counts())["paused"] == 1
        await queue.resume()
        assert not await queue.is_paused()


async def test_policies_are_read_and_changed_in_part(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        assert await queue.get_stall_config() == {
            "enabled": True,
            "stallInterval": 30000,
            "maxStalls": 3,
            "gracePeriod": 5000,
        }
        await queue.set_stall_config({"max_stalls": 9})
        assert (await queue.get_stall_config())["maxStalls"] == 9
        await queue.set_dlq_config({"maxEntries": 5})
        config = await queue.get_dlq_config()
        assert (config["maxEntries"], config["autoRetry"], config["maxAge"]) == (5, False, 604_800_000)


async def test_waiting_for_a_job_that_does_not_end(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        job = await queue.add("a", {})
        with pytest.raises(CommandTimeoutError, match="waitUntilFinished timed out after 20ms"):
            await queue.wait_for_job(job.id, 20)
        with pytest.raises(CommandTimeoutError):
            await job.wait_until_finished(ttl_ms=-1)
        with pytest.raises(NotFound, match="Job not found"):
            await queue.wait_for_job("nobody", 1000)


async def test_a_prefix_separates_queues(target: Target, name: str) -> None:
    async with Queue(name, **target) as plain, Queue(name, prefix_key="app:", **target) as prefixed:
        await prefixed.add("a", {})
        assert (prefixed.name, prefixed.queue_key, prefixed.logical_name) == (f"app:{name}", f"app:{name}", name)
        assert await plain.count() == 0
        assert await prefixed.count() == 1


async def test_dates_and_durations_of_a_job_added_in_the_past(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        job = await queue.get_job((await queue.add("a", {}, timestamp=1_000, delay=500)).id)
        assert job is not None
        assert (job.created_at, job.timestamp, job.delay, job.started_at, job.completed_at) == (
            1000,
            1000,
            500,
            None,
            None,
        )


async def test_a_closed_queue_takes_nothing(target: Target, name: str) -> None:
    queue = Queue(name, **target)
    await queue.wait_until_ready()
    assert await queue.ping()
    await queue.close()
    await queue.close()
    assert not await queue.ping()


async def test_json_of_a_job(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        job = await queue.get_job((await queue.add("a", {"n": 1}, attempts=4)).id)
        assert job is not None
        view = job.to_json()
        assert view["opts"] == {"maxAttempts": 4}
        assert (view["id"], view["name"], view["data"], view["queueQualifiedName"]) == (
            job.id,
            "a",
            {"n": 1},
            f"bull:{name}",
        )
        assert job.as_json()["data"] == '{"n": 1}'
