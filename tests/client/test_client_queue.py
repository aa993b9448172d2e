# Written by tools/async_to_sync.py from test_client_queue_async.py: edit that file and run the tool, not this one.
"""The queue against every kind of broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bunqueue_core.client.queue import Queue
from bunqueue_core.model.errors import CommandError, CommandTimeoutError, NotFound, SerializationError

Target = dict[str, Any]


def test_a_job_that_was_added_can_be_fetched(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        added = queue.add("send", {"to": "a", "n": 1}, priority=3, attempts=5, tags=["x"])
        assert (added.name, added.queue, added.data) == ("send", name, {"to": "a", "n": 1})
        fetched = queue.get_job(added.id)
        assert fetched is not None
        assert (fetched.id, fetched.name, fetched.queue, fetched.data) == (added.id, "send", name, {"to": "a", "n": 1})
        assert (fetched.priority, fetched.max_attempts, fetched.tags, fetched.attempts) == (3, 5, ["x"], 0)
        assert fetched.state == "prioritized"
        assert isinstance(fetched.created_at, int)
        assert fetched.opts == {"priority": 3, "attempts": 5, "tags": ["x"]}


def test_every_option_reaches_the_broker(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        moment = datetime(2030, 1, 1, tzinfo=UTC)
        added = queue.add(
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
        job = queue.get_job(added.id)
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


def test_default_options_are_overridden_key_by_key(target: Target, name: str) -> None:
    with Queue(name, default_job_options={"attempts": 7, "priority": 2}, **target) as queue:
        single = queue.get_job((queue.add("a", {}, priority=4)).id)
        assert single is not None
        assert (single.max_attempts, single.priority) == (7, 4)
        (bulk_id,) = queue.add_bulk([{"name": "b", "data": {}, "attempts": 2}])
        bulk = queue.get_job(bulk_id)
        assert bulk is not None
        assert (bulk.max_attempts, bulk.priority) == (2, 2)


def test_a_custom_id_is_added_once(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        first = queue.add("a", {"n": 1}, job_id=f"{name}-once")
        second = queue.add("a", {"n": 2}, job_id=f"{name}-once")
        assert first.id == second.id == f"{name}-once"
        assert queue.add_bulk([{"name": "a", "data": {}, "job_id": f"{name}-once"}]) == [first.id]
        assert queue.count() == 1
        found = queue.get_job_by_custom_id(f"{name}-once")
        assert found is not None
        assert found.data == {"n": 1}


def test_jobs_are_added_in_bulk_all_or_none(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        assert queue.add_bulk([]) == []
        ids = queue.add_bulk([{"name": f"j{n}", "data": {"n": n}} for n in range(5)])
        assert len(set(ids)) == 5
        jobs = queue.get_waiting()
        assert [(job.id, job.name, job.data) for job in jobs] == [(ids[n], f"j{n}", {"n": n}) for n in range(5)]
        with pytest.raises(CommandError, match=r"jobs\[1\]"):
            queue.add_bulk([{"name": "good", "data": {}}, {"name": "bad", "data": {}, "attempts": 0}])
        assert queue.count() == 5


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
def test_payloads_come_back_equal(target: Target, name: str, data: Any) -> None:
    with Queue(name, **target) as queue:
        one = queue.get_job((queue.add("a", data)).id)
        (id,) = queue.add_bulk([{"name": "b", "data": data}])
        other = queue.get_job(id)
        assert one is not None
        assert other is not None
        assert one.data == data
        assert other.data == data


def test_what_cannot_be_encoded_is_refused_before_it_is_sent(target: Target, name: str) -> None:
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    with Queue(name, **target) as queue:
        with pytest.raises(SerializationError, match="cyclic"):
            queue.add("a", cyclic)
        with pytest.raises(SerializationError):
            queue.add("a", {"what": object()}, priority=1)
        with pytest.raises(SerializationError):
            queue.add_bulk([{"name": "a", "data": {"what": object()}}])
        with pytest.raises(SerializationError):
            queue.add("a", 2**70)
        assert queue.count() == 0


def test_wrong_arguments_are_refused(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        with pytest.raises(TypeError, match=r"unknown job option 'colour'$"):
            queue.add("a", {}, colour="red")
        with pytest.raises(TypeError, match="unknown job option 'prioritty'; did you mean 'priority'"):
            queue.add("a", {}, prioritty=1)
        with pytest.raises(CommandError, match="Job name must be"):
            queue.add("", {})
        with pytest.raises(CommandError, match="maxAttempts must be at least 1"):
            queue.add("a", {}, attempts=0)
        with pytest.raises(CommandError, match="Dependency job not found: nobody"):
            queue.add("a", {}, depends_on=["nobody"])
        with pytest.raises(ValueError, match="state must be"):
            queue.retry_jobs("active")
    with pytest.raises(ValueError, match="invalid characters"):
        Queue("a b", **target)


def test_states_and_counts(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        waiting = queue.add("w", {})
        urgent = queue.add("u", {}, priority=9)
        later = queue.add("l", {}, delay=60_000)
        assert queue.get_state(waiting.id) == "waiting"
        assert urgent.get_state() == "prioritized"
        assert later.is_delayed()
        assert queue.get_state("nobody") == "unknown"
        assert queue.get_job("nobody") is None
        assert queue.get_job_by_custom_id("nobody") is None
        assert queue.get_result("nobody") is None
        counts = queue.get_job_counts()
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
        assert queue.get_waiting_count() == queue.get_prioritized_count() == queue.get_delayed_count() == 1
        assert queue.get_active_count() == queue.get_completed_count() == queue.get_failed_count() == 0
        assert queue.count() == 3
        assert queue.get_counts_per_priority() == {"0": 2, "9": 1}
        assert name in queue.list_queues()


def test_listings_are_windows(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        ids = queue.add_bulk([{"name": "a", "data": n} for n in range(7)])
        assert [job.id for job in queue.get_jobs("waiting", 2, 5)] == ids[2:5]
        assert [job.id for job in queue.get_jobs(["waiting", "delayed"], 0, 2, asc=False)] == [ids[6], ids[5]]
        assert queue.get_jobs("waiting", 3, 3) == []
        assert queue.get_completed() == []


def test_all_jobs_of_a_long_listing(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        ids = queue.add_bulk([{"name": "a", "data": n} for n in range(2003)])
        assert [job.id for job in queue.get_jobs("waiting", 0, -1)] == ids
        assert [job.id for job in queue.get_jobs(None, 2000, -1)] == ids[2000:]


def test_a_paused_queue_says_so(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        queue.add("a", {})
        assert not queue.is_paused()
        queue.pause()
        assert queue.is_paused()
        assert (queue.get_job_counts())["paused"] == 1
        queue.resume()
        assert not queue.is_paused()


def test_policies_are_read_and_changed_in_part(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        assert queue.get_stall_config() == {
            "enabled": True,
            "stallInterval": 30000,
            "maxStalls": 3,
            "gracePeriod": 5000,
        }
        queue.set_stall_config({"max_stalls": 9})
        assert (queue.get_stall_config())["maxStalls"] == 9
        queue.set_dlq_config({"maxEntries": 5})
        config = queue.get_dlq_config()
        assert (config["maxEntries"], config["autoRetry"], config["maxAge"]) == (5, False, 604_800_000)


def test_waiting_for_a_job_that_does_not_end(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        job = queue.add("a", {})
        with pytest.raises(CommandTimeoutError, match="waitUntilFinished timed out after 20ms"):
            queue.wait_for_job(job.id, 20)
        with pytest.raises(CommandTimeoutError):
            job.wait_until_finished(ttl_ms=-1)
        with pytest.raises(NotFound, match="Job not found"):
            queue.wait_for_job("nobody", 1000)


def test_a_prefix_separates_queues(target: Target, name: str) -> None:
    with Queue(name, **target) as plain, Queue(name, prefix_key="app:", **target) as prefixed:
        prefixed.add("a", {})
        assert (prefixed.name, prefixed.queue_key, prefixed.logical_name) == (f"app:{name}", f"app:{name}", name)
        assert plain.count() == 0
        assert prefixed.count() == 1


def test_dates_and_durations_of_a_job_added_in_the_past(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        job = queue.get_job((queue.add("a", {}, timestamp=1_000, delay=500)).id)
        assert job is not None
        assert (job.created_at, job.timestamp, job.delay, job.started_at, job.completed_at) == (
            1000,
            1000,
            500,
            None,
            None,
        )


def test_a_closed_queue_takes_nothing(target: Target, name: str) -> None:
    queue = Queue(name, **target)
    queue.wait_until_ready()
    assert queue.ping()
    queue.close()
    queue.close()
    assert not queue.ping()


def test_json_of_a_job(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        job = queue.get_job((queue.add("a", {"n": 1}, attempts=4)).id)
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
