# Written by tools/async_to_sync.py from test_client_batches_async.py: edit that file and run the tool, not this one.
"""Batches: several jobs for one call of the processor, each with its own outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from client_servers import ScriptedServer

from bunqueue_core.client._acompat import Event
from bunqueue_core.client._cancel_signal import ProcessorContext
from bunqueue_core.client.job import Job
from bunqueue_core.client.queue import Queue
from bunqueue_core.client.worker import Worker
from bunqueue_core.model.errors import UnrecoverableError

Target = dict[str, Any]

PATIENCE = 20.0


class Ends:
    """Collects the ends of jobs."""

    def __init__(self, worker: Worker) -> None:
        self.entries: list[tuple[str, Any, Any]] = []
        self._changed = Event()
        worker.on("completed", lambda job, result: self._add("completed", job, result))
        worker.on("failed", lambda job, error: self._add("failed", job, error))

    def _add(self, event: str, job: Job, value: Any) -> None:
        self.entries.append((event, job.data, value))
        self._changed.set()

    def first(self, count: int) -> list[tuple[str, Any, Any]]:
        """Wait for that many."""
        while len(self.entries) < count:
            self._changed.clear()
            if len(self.entries) < count:
                assert self._changed.wait(PATIENCE), f"only {self.entries}"
        return self.entries


def test_every_member_has_its_own_outcome(target: Target, name: str) -> None:
    sizes: list[int] = []

    def process(leader: Job) -> Any:
        batch = leader.get_batch()
        assert batch[0] is leader
        sizes.append(len(batch))
        for job in batch:
            if job.data == 2:
                job.set_as_failed(UnrecoverableError("not this one"))
            if job.data == "all":
                raise UnrecoverableError("none of them")
        return len(batch)

    with (
        Queue(name, **target) as queue,
        Worker(name, process, batch={"size": 5, "minSize": 5}, **target) as worker,
    ):
        ends = Ends(worker)
        ids = queue.add_bulk([{"name": "a", "data": n} for n in range(5)])
        entries = ends.first(5)
        assert sorted(entry[:2] for entry in entries) == [
            ("completed", 0),
            ("completed", 1),
            ("completed", 3),
            ("completed", 4),
            ("failed", 2),
        ]
        assert sizes == [5]
        assert queue.get_result(ids[0]) == 5
        assert queue.get_state(ids[2]) == "failed"
        queue.add_bulk([{"name": "a", "data": "all"} for _ in range(5)])
        entries = ends.first(10)
        assert [event for event, _, _ in entries[5:]] == ["failed"] * 5


def test_a_batch_runs_short_after_its_time(target: Target, name: str) -> None:
    sizes: list[int] = []

    def process(leader: Job) -> None:
        sizes.append(len(leader.get_batch()))

    batch = {"size": 10, "min_size": 10, "timeout": 100}
    with Queue(name, **target) as queue, Worker(name, process, batch=batch, **target) as worker:
        ends = Ends(worker)
        queue.add_bulk([{"name": "a", "data": n} for n in range(23)])
        ends.first(23)
        assert sizes == [10, 10, 3]


def test_without_a_time_a_short_batch_waits(target: Target, name: str) -> None:
    def process(leader: Job) -> int:
        return len(leader.get_batch())

    with Queue(name, **target) as queue:
        worker = Worker(name, process, batch={"size": 4, "min_size": 3}, concurrency=1, **target)
        ends = Ends(worker)
        ids = queue.add_bulk([{"name": "a", "data": n} for n in range(2)])
        while (queue.get_job_counts())["active"] < 2:
            Event().wait(0.01)
        assert ends.entries == []
        queue.add("a", 2)
        assert [result for _, _, result in ends.first(3)] == [3, 3, 3]
        late = queue.add("a", 3)
        while queue.get_state(late.id) != "active":
            Event().wait(0.01)
        worker.close(PATIENCE)
        assert queue.get_state(late.id) == "waiting"
        assert queue.get_state(ids[0]) == "completed"


def test_batches_of_one_group(target: Target, name: str) -> None:
    batches: list[list[str]] = []

    def process(leader: Job) -> None:
        batches.append([job.group_id for job in leader.get_batch()])

    batch = {"size": 4, "group_affinity": True}
    with Queue(name, **target) as queue, Worker(name, process, batch=batch, concurrency=1, **target) as worker:
        ends = Ends(worker)
        queue.add_bulk([{"name": "a", "data": n, "group_id": "xy"[n % 2]} for n in range(12)])
        ends.first(12)
        assert all(len(set(groups)) == 1 for groups in batches)
        assert max(len(groups) for groups in batches) > 1


def test_cancelling_one_member_stops_the_processor(target: Target, name: str) -> None:
    started = Event()

    def process(leader: Job, context: ProcessorContext) -> None:
        stopped = Event()
        context.signal.on_abort(lambda reason: stopped.set())
        started.set()
        assert stopped.wait(PATIENCE)
        raise UnrecoverableError(context.signal.reason)

    with (
        Queue(name, **target) as queue,
        Worker(name, process, batch={"size": 2, "min_size": 2}, **target) as worker,
    ):
        ends = Ends(worker)
        ids = queue.add_bulk([{"name": "a", "data": n} for n in range(2)])
        assert started.wait(PATIENCE)
        worker.cancel_job(ids[1], "enough")
        assert [str(error) for _, _, error in ends.first(2)] == ["enough", "enough"]


def test_starts_are_counted_by_member(target: Target, name: str) -> None:
    def process(leader: Job) -> int:
        return len(leader.get_batch())

    options = {"batch": {"size": 2, "min_size": 2}, "limiter": {"max": 4, "duration": 60_000}}
    with Queue(name, **target) as queue, Worker(name, process, **options, **target) as worker:
        ends = Ends(worker)
        queue.add_bulk([{"name": "a", "data": n} for n in range(6)])
        assert [result for _, _, result in ends.first(4)] == [2, 2, 2, 2]
        assert (queue.get_job_counts())["waiting"] == 2


def test_a_batch_by_hand(target: Target, name: str) -> None:
    def process(leader: Job) -> int:
        return len(leader.get_batch())

    with Queue(name, **target) as queue:
        worker = Worker(name, process, batch={"size": 3}, autorun=False, **target)
        queue.add("a", {})
        job = worker.get_next_job()
        assert job is not None
        worker.process_job_manually(job)
        assert queue.get_result(job.id) == 1
        worker.close()


def test_affinity_is_asked_for(scripted: Callable[..., ScriptedServer]) -> None:
    from client_servers import obliging, wire_job

    pulls: list[dict[str, Any]] = []

    def script(command: dict[str, Any], connection: Any) -> Any:
        if command["cmd"] not in ("PULL", "PULLB"):
            return obliging(command, connection)
        pulls.append(command)
        if len(pulls) == 1:
            return {"ok": True, "job": wire_job("1", groupId="g"), "token": "t"}
        if len(pulls) == 2:
            jobs = [wire_job("2", groupId="g"), wire_job("3", groupId="g")]
            return {"ok": True, "jobs": jobs, "tokens": ["t", "t"]}
        return None if command["timeout"] else obliging(command, connection)

    def process(leader: Job) -> int:
        return len(leader.get_batch())

    server = scripted(script)
    batch = {"size": 5, "group_affinity": True}
    worker = Worker("q", process, batch=batch, concurrency=1, autorun=False, **server.address)
    ends = Ends(worker)
    with worker:
        assert [result for _, _, result in ends.first(3)] == [3, 3, 3]
    assert (pulls[0]["cmd"], pulls[0].get("group")) == ("PULL", None)
    assert (pulls[1]["count"], pulls[1]["timeout"], pulls[1]["group"]) == (4, 0, {"affinity": "g"})


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"batch": {}}, ValueError, "batch.size must be a positive safe integer no greater than 1000"),
        ({"batch": {"size": 1001}}, ValueError, "batch.size must be a positive safe integer no greater than 1000"),
        ({"batch": {"size": 2, "min_size": 3}}, ValueError, "batch.minSize must be between 1 and batch.size"),
        ({"batch": {"size": 2, "timeout": -1}}, ValueError, "batch.timeout must be a non-negative safe integer"),
        ({"batch": {"size": 2, "age": 1}}, TypeError, "batch has no option 'age'"),
        (
            {"batch": {"size": 5, "min_size": 3}, "limiter": {"max": 2, "duration": 1}},
            ValueError,
            "batch.minSize cannot exceed limiter.max",
        ),
    ],
)
def test_wrong_batches(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    def process(leader: Job) -> None:
        return None

    with pytest.raises(kind, match=text):
        Worker("q", process, embedded=True, autorun=False, **options)


def test_only_leaders_have_a_batch(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        job = queue.add("a", {})
        with pytest.raises(RuntimeError, match="Job does not lead a batch"):
            job.get_batch()
