# Written by tools/async_to_sync.py from test_client_worker_async.py: edit that file and run the tool, not this one.
"""The worker against every kind of broker: one outcome for each delivery, leases, pausing, closing, cancelling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bunqueue_core.client._acompat import Event, spawn
from bunqueue_core.client._cancel_signal import ProcessorContext
from bunqueue_core.client.job import Job
from bunqueue_core.client.queue import Queue
from bunqueue_core.client.worker import Worker
from bunqueue_core.model.errors import (
    CommandError,
    DelayedError,
    LeaseLost,
    UnrecoverableError,
)

Target = dict[str, Any]

#: Nothing here takes longer, seconds.
PATIENCE = 20.0


class Log:
    """Collects what a worker tells, and waits for it."""

    def __init__(self, worker: Worker, *events: str) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self._changed = Event()
        for event in events:
            worker.on(event, self._listener(event))

    def _listener(self, event: str) -> Callable[..., None]:
        def told(*arguments: Any) -> None:
            self.entries.append((event, *arguments))
            self._changed.set()

        return told

    def of(self, event: str) -> list[tuple[Any, ...]]:
        """What came with that event, in order."""
        return [entry[1:] for entry in self.entries if entry[0] == event]

    def until(self, event: str, count: int = 1) -> list[tuple[Any, ...]]:
        """Wait until an event has come ``count`` times."""
        while len(self.of(event)) < count:
            self._changed.clear()
            if len(self.of(event)) < count:
                assert self._changed.wait(PATIENCE), f"{event} did not come; {self.entries}"
        return self.of(event)


def echo() -> Callable[[Job], Awaitable[Any]]:
    def process(job: Job) -> Any:
        return job.data

    return process


def test_jobs_are_processed_and_their_results_kept(target: Target, name: str) -> None:
    with Queue(name, **target) as queue, Worker(name, echo(), concurrency=5, **target) as worker:
        log = Log(worker, "active", "completed", "failed", "error")
        ids = queue.add_bulk([{"name": "a", "data": {"n": n}} for n in range(50)])
        completed = log.until("completed", 50)
        assert {job.id for job, _ in completed} == set(ids)
        assert all(job.data == result for job, result in completed)
        assert len(log.of("active")) == 50
        assert log.of("failed") == log.of("error") == []
        assert worker.processed == 50
        assert queue.get_result(ids[7]) == {"n": 7}
        assert (queue.get_job_counts())["completed"] == 50
        assert queue.wait_for_job(ids[0]) == {"n": 0}
        job = queue.get_job(ids[0])
        assert job is not None
        assert (job.state, job.returnvalue, job.data) == ("completed", {"n": 0}, {"n": 0})


def test_adds_wake_a_worker_that_waits(target: Target, name: str) -> None:
    with Queue(name, **target) as queue, Worker(name, echo(), **target) as worker:
        log = Log(worker, "completed")
        worker.wait_until_ready()
        for n in range(5):
            job = queue.add("a", n)
            assert job.wait_until_finished(ttl_ms=10_000) == n
        log.until("completed", 5)


def test_no_result_and_a_null_result_are_none(target: Target, name: str) -> None:
    def process(job: Job) -> None:
        return None

    with Queue(name, **target) as queue, Worker(name, process, **target) as worker:
        log = Log(worker, "completed")
        ids = queue.add_bulk([{"name": "a"} for _ in range(3)])
        log.until("completed", 3)
        assert [queue.get_result(id) for id in ids] == [None, None, None]


def test_a_failure_is_retried_and_then_dead(target: Target, name: str) -> None:
    def process(job: Job) -> None:
        raise ValueError(f"attempt {job.attempts + 1} went wrong")

    with Queue(name, **target) as queue, Worker(name, process, **target) as worker:
        log = Log(worker, "failed", "completed", "error")
        added = queue.add("a", {}, attempts=2, backoff=1)
        failures = log.until("failed", 2)
        assert [str(error) for _, error in failures] == ["attempt 1 went wrong", "attempt 2 went wrong"]
        assert queue.get_state(added.id) == "failed"
        job = queue.get_job(added.id)
        assert job is not None
        assert (job.failed_reason, job.attempts) == ("attempt 2 went wrong", 2)
        assert job.stacktrace is not None
        assert job.stacktrace[-1] == "ValueError: attempt 2 went wrong"
        assert "in process" in job.stacktrace[1]  # no frames of the client before it
        (entry,) = queue.get_dlq_entries()
        assert (entry["reason"], entry["error"], entry["job"]["id"]) == (
            "max_attempts_exceeded",
            "attempt 2 went wrong",
            added.id,
        )
        assert log.of("completed") == log.of("error") == []
        (record,) = queue.get_dlq()
        assert [type(record[key]) for key in ("createdAt", "runAt", "startedAt")] == [int, int, int]
        with pytest.raises(CommandError, match=f"job {added.id} failed before completion") as caught:
            queue.wait_for_job(added.id, 5000)
        assert caught.value.__notes__ == ["its last error: attempt 2 went wrong"]
        assert queue.retry_dlq(added.id) == 1
        log.until("failed", 4)


def test_a_failure_that_nobody_listens_to_is_logged(
    target: Target, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def process(job: Job) -> None:
        raise ValueError("went wrong")

    ids = []
    with Queue(name, **target) as queue:
        for level in ("WARNING", "DEBUG"):
            caplog.set_level(level, "bunqueue")
            with Worker(name, process, **target):
                job = queue.add("a", {}, attempts=1)
                with pytest.raises(CommandError):
                    job.wait_until_finished(ttl_ms=5000)
            ids.append(job.id)
    records = [record for record in caplog.records if "went wrong" in record.getMessage()]
    assert [record.getMessage() for record in records] == [
        f"job {id} of '{name}' failed: ValueError: went wrong" for id in ids
    ]
    assert [record.exc_info is not None for record in records] == [False, True]


def test_an_unrecoverable_failure_is_dead_at_once(target: Target, name: str) -> None:
    def process(job: Job) -> None:
        raise UnrecoverableError

    with Queue(name, **target) as queue, Worker(name, process, **target) as worker:
        log = Log(worker, "failed")
        job = queue.add("a", {}, attempts=5)
        log.until("failed")
        assert queue.get_state(job.id) == "failed"
        (dead,) = queue.get_failed()
        assert (dead.failed_reason, dead.attempts) == ("UnrecoverableError", 1)
        assert queue.purge_dlq() == 1


def test_a_result_that_cannot_be_encoded_fails_the_job(target: Target, name: str) -> None:
    def process(job: Job) -> Any:
        return {"what": object()} if job.name == "bad" else "fine"

    with Queue(name, **target) as queue, Worker(name, process, **target) as worker:
        log = Log(worker, "failed", "completed")
        queue.add_bulk([{"name": "bad", "attempts": 1}, {"name": "good"}])
        ((_, error),) = log.until("failed")
        assert "cannot be encoded" in str(error)
        ((job, result),) = log.until("completed")
        assert (job.name, result) == ("good", "fine")


def test_as_many_jobs_run_at_once_as_there_are_slots(target: Target, name: str) -> None:
    running: list[str] = []
    full, release = Event(), Event()

    def process(job: Job) -> None:
        running.append(job.id)
        if len(running) == 8:
            full.set()
        release.wait(PATIENCE)

    with Queue(name, **target) as queue, Worker(name, process, concurrency=8, **target) as worker:
        log = Log(worker, "completed")
        queue.add_bulk([{"name": "a"} for _ in range(20)])
        assert full.wait(PATIENCE)
        assert (queue.get_job_counts())["active"] == 8
        assert len(running) == 8
        release.set()
        log.until("completed", 20)
        assert len(running) == len(set(running)) == 20


def test_one_slot_runs_one_job_after_the_other(target: Target, name: str) -> None:
    order: list[int] = []

    def process(job: Job) -> None:
        order.append(job.data)

    with Queue(name, **target) as queue, Worker(name, process, concurrency=1, **target) as worker:
        log = Log(worker, "completed")
        queue.add_bulk([{"name": "a", "data": n} for n in range(30)])
        log.until("completed", 30)
        assert order == list(range(30))


def test_a_job_that_ends_itself_gets_no_other_outcome(target: Target, name: str) -> None:
    def process(job: Job) -> Any:
        if job.name == "done":
            job.move_to_completed({"by": "hand"})
        elif job.name == "failed":
            job.move_to_failed("by hand")
            raise RuntimeError("does not count")
        return "does not count"

    with Queue(name, **target) as queue, Worker(name, process, **target) as worker:
        log = Log(worker, "completed", "failed", "error")
        ids = queue.add_bulk(
            [{"name": "done"}, {"name": "failed", "attempts": 1}, {"name": "plain", "data": {}, "delay": 50}]
        )
        ((job, _),) = log.until("completed")
        assert job.name == "plain"
        assert queue.get_result(ids[0]) == {"by": "hand"}
        (dead,) = queue.get_failed()
        assert (dead.id, dead.failed_reason) == (ids[1], "by hand")
        assert log.of("failed") == log.of("error") == []


def test_progress_and_log_are_told(target: Target, name: str) -> None:
    seen: list[dict[str, Any]] = []

    with Queue(name, **target) as queue:

        def process(job: Job) -> None:
            job.update_progress(40, "nearly")
            seen.append(queue.get_progress(job.id))
            job.update_progress({"step": 2})
            seen.append(queue.get_progress(job.id))

        with Worker(name, process, **target) as worker:
            log = Log(worker, "progress", "completed", "failed")
            queue.add("a", {})
            log.until("completed")
            assert seen == [{"progress": 40, "message": "nearly"}, {"progress": 0, "message": '{"step": 2}'}]
            assert [progress for _, progress in log.of("progress")] == [40, {"step": 2}]


def test_a_paused_worker_takes_nothing(target: Target, name: str) -> None:
    with Queue(name, **target) as queue, Worker(name, echo(), **target) as worker:
        log = Log(worker, "completed", "drained")
        queue.add("a", 1)
        log.until("completed")
        log.until("drained")
        worker.pause()
        assert worker.is_paused()
        job = queue.add("a", 2)
        other = Worker(name, echo(), **target)
        job.wait_until_finished(ttl_ms=10_000)
        other.close()
        assert len(log.of("completed")) == 1
        job = queue.add("a", 3)
        worker.resume()
        log.until("completed", 2)
        assert queue.get_result(job.id) == 3


def test_closing_waits_for_jobs_that_run(target: Target, name: str) -> None:
    started, release = Event(), Event()

    def process(job: Job) -> str:
        started.set()
        release.wait(PATIENCE)
        return "finished"

    with Queue(name, **target) as queue:
        worker = Worker(name, process, **target)
        log = Log(worker, "completed", "closed", "error")
        job = queue.add("a", {})
        assert started.wait(PATIENCE)
        assert worker.close(timeout=0.05) is False
        assert not worker.is_closed()
        assert not worker.is_running()
        late = queue.add("a", {})
        release.set()
        assert worker.close(timeout=PATIENCE) is True
        assert worker.is_closed()
        assert log.entries[-1] == ("closed",)
        assert queue.get_result(job.id) == "finished"
        assert queue.get_state(late.id) == "waiting"
        assert log.of("error") == []
        assert worker.close() is True


def test_a_forced_close_gives_running_jobs_up(target: Target, name: str) -> None:
    started, release = Event(), Event()

    def process(job: Job) -> str:
        started.set()
        release.wait(PATIENCE)
        return "too late"

    with Queue(name, **target) as queue:
        worker = Worker(name, process, **target)
        log = Log(worker, "completed", "failed", "error")
        queue.add("a", {})
        assert started.wait(PATIENCE)
        assert worker.close(force=True) is True
        release.set()
        assert (queue.get_job_counts())["completed"] == 0
        assert log.entries == []


def test_a_worker_that_never_began_can_be_closed(target: Target, name: str) -> None:
    worker = Worker(name, echo(), autorun=False, **target)
    assert not worker.is_running()
    assert worker.close() is True
    worker.start()
    assert not worker.is_running()


def test_run_ends_when_the_worker_is_closed(target: Target, name: str) -> None:
    ended = Event()
    with Queue(name, **target) as queue:
        worker = Worker(name, echo(), autorun=False, **target)
        log = Log(worker, "completed")

        def work() -> None:
            worker.run()
            ended.set()

        task = spawn("runner", work)
        queue.add("a", 1)
        log.until("completed")
        worker.close()
        assert ended.wait(PATIENCE)
        assert task is not None


def test_a_cancelled_job_is_told_to_stop(target: Target, name: str) -> None:
    started = Event()

    with Queue(name, **target) as queue:

        def process(job: Job, context: ProcessorContext) -> str:
            stopped = Event()
            context.signal.on_abort(lambda reason: stopped.set())
            started.set()
            assert stopped.wait(PATIENCE)
            raise UnrecoverableError(context.signal.reason)

        with Worker(name, process, **target) as worker:
            log = Log(worker, "cancelled", "failed")
            job = queue.add("a", {})
            assert started.wait(PATIENCE)
            assert not worker.is_job_cancelled(job.id)
            assert worker.cancel_job(job.id, "no longer wanted")
            assert worker.cancel_job("nobody") is False
            log.until("failed")
            assert log.of("cancelled") == [({"jobId": job.id, "reason": "no longer wanted"},)]
            assert queue.get_state(job.id) == "failed"


def test_leases_are_renewed_while_a_job_runs(target: Target, name: str) -> None:
    deliveries: list[str] = []
    release = Event()

    def process(job: Job) -> str:
        deliveries.append(job.id)
        release.wait(1.2)
        return "once"

    with Queue(name, **target) as queue, Worker(name, process, lock_ttl_ms=300, **target) as worker:
        log = Log(worker, "completed", "failed", "error")
        job = queue.add("a", {})
        log.until("completed")
        assert deliveries == [job.id]
        assert log.of("error") == log.of("failed") == []
        assert queue.get_result(job.id) == "once"


def test_a_job_that_times_out_gets_no_outcome_from_the_worker(target: Target, name: str) -> None:
    reasons: list[str | None] = []

    def process(job: Job, context: ProcessorContext) -> str:
        stopped = Event()
        context.signal.on_abort(lambda reason: stopped.set())
        stopped.wait(PATIENCE)
        reasons.append(context.signal.reason)
        return "too late"

    with Queue(name, **target) as queue, Worker(name, process, **target) as worker:
        log = Log(worker, "completed", "failed", "error", "active")
        job = queue.add("a", {}, timeout=200, attempts=1)
        with pytest.raises(CommandError, match="failed before completion"):
            queue.wait_for_job(job.id, 10_000)
        dead = queue.get_job(job.id)
        assert dead is not None
        assert dead.failed_reason == "Job timeout exceeded"
        assert worker.close(PATIENCE)
        assert reasons == [f"Job {job.id} timed out after 200ms"]
        assert log.of("completed") == log.of("failed") == log.of("error") == []


def test_events_end_when_they_should(target: Target, name: str) -> None:
    seen: list[str] = []

    def always(job: Job, result: Any) -> None:
        seen.append("always")
        raise RuntimeError("a listener that fails is nobody else's trouble")

    def once(job: Job, result: Any) -> None:
        seen.append("once")

    with Queue(name, **target) as queue, Worker(name, echo(), concurrency=1, **target) as worker:
        worker.wait_until_ready()
        ready = Event()
        worker.on("ready", ready.set)
        assert ready.is_set()
        worker.on("completed", always).once("completed", once)
        log = Log(worker, "completed")
        for n in range(2):
            queue.add("a", n)
        log.until("completed", 2)
        assert seen == ["always", "once", "always"]
        worker.off("completed", always)
        queue.add("a", 3)
        log.until("completed", 3)
        assert len(seen) == 3


def test_a_limiter_bounds_the_starts(target: Target, name: str) -> None:
    with (
        Queue(name, **target) as queue,
        Worker(name, echo(), limiter={"max": 3, "duration": 60_000}, **target) as worker,
    ):
        log = Log(worker, "completed")
        queue.add_bulk([{"name": "a", "data": n} for n in range(6)])
        log.until("completed", 3)
        assert worker.is_rate_limited()
        assert worker.get_rate_limiter_info() == {"current": 3, "max": 3, "duration": 60_000}
        counts = queue.get_job_counts()
        assert (counts["waiting"], counts["active"]) == (3, 0)


def test_a_group_limiter_bounds_what_runs_of_a_group(target: Target, name: str) -> None:
    running: dict[str, int] = {"a": 0, "b": 0}
    most: dict[str, int] = {"a": 0, "b": 0}

    def process(job: Job) -> None:
        group = job.data["g"]
        running[group] += 1
        most[group] = max(most[group], running[group])
        Event().wait(0.005)
        running[group] -= 1

    limiter = {"max": 1, "group_key": "g"}
    with (
        Queue(name, **target) as queue,
        Worker(name, process, concurrency=6, limiter=limiter, **target) as worker,
    ):
        log = Log(worker, "completed", "failed")
        queue.add_bulk([{"name": "a", "data": {"g": "ab"[n % 2]}} for n in range(20)])
        log.until("completed", 20)
        assert most == {"a": 1, "b": 1}
        assert log.of("failed") == []


def test_jobs_can_be_taken_by_hand(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        worker = Worker(name, echo(), autorun=False, **target)
        assert worker.get_next_job() is None
        queue.add("a", 5)
        job = worker.get_next_job()
        assert job is not None
        assert job.token is not None
        assert queue.get_state(job.id) == "active"
        with pytest.raises(LeaseLost, match=f"Invalid or expired lock token for job {job.id}"):
            worker.process_job_manually(job, "another")
        worker.process_job_manually(job)
        assert queue.get_result(job.id) == 5
        queue.add("a", 6)
        ended = worker.get_next_job()
        assert ended is not None
        ended.move_to_completed("by hand")
        kept = queue.add("a", 7)
        assert worker.get_next_job() is not None
        worker.close()
        assert queue.get_result(ended.id) == "by hand"
        assert queue.get_state(kept.id) == "waiting"


def test_concurrency_can_be_changed_while_it_works(target: Target, name: str) -> None:
    running: list[str] = []
    three, release = Event(), Event()

    def process(job: Job) -> None:
        running.append(job.id)
        if len(running) == 3:
            three.set()
        release.wait(PATIENCE)

    with Queue(name, **target) as queue, Worker(name, process, concurrency=1, **target) as worker:
        started = Log(worker, "active", "completed")
        queue.add_bulk([{"name": "a"} for _ in range(3)])
        started.until("active")
        worker.concurrency = 3
        assert three.wait(PATIENCE)
        release.set()
        started.until("completed", 3)
        worker.concurrency = 0
        assert worker.concurrency == 1


def test_finished_jobs_are_acknowledged_while_others_run(target: Target, name: str) -> None:
    release = Event()

    def process(job: Job) -> str:
        if job.name == "slow":
            release.wait(PATIENCE)
        return job.name

    with Queue(name, **target) as queue, Worker(name, process, concurrency=3, **target) as worker:
        log = Log(worker, "completed", "error")
        slow = queue.add("slow", {})
        quick = queue.add("quick", {})
        assert queue.wait_for_job(quick.id, 10_000) == "quick"
        assert queue.get_state(slow.id) == "active"
        release.set()
        assert queue.wait_for_job(slow.id, 10_000) == "slow"
        log.until("completed", 2)
        assert log.of("error") == []


def test_gathered_acknowledgements(target: Target, name: str) -> None:
    ack_batch = {"max_size": 3, "max_delay_ms": 1}
    with (
        Queue(name, **target) as queue,
        Worker(name, echo(), concurrency=10, ack_batch=ack_batch, **target) as worker,
    ):
        log = Log(worker, "completed", "error")
        ids = queue.add_bulk([{"name": "a", "data": n} for n in range(31)])
        log.until("completed", 31)
        assert [queue.get_result(id) for id in ids] == list(range(31))
        assert log.of("error") == []


def test_jobs_can_be_removed_with_their_outcome(target: Target, name: str) -> None:
    def process(job: Job) -> None:
        if job.name == "bad":
            raise UnrecoverableError("gone")

    with (
        Queue(name, **target) as queue,
        Worker(name, process, remove_on_complete=True, remove_on_fail=True, **target) as worker,
    ):
        log = Log(worker, "completed", "failed")
        good = queue.add("good", {})
        bad = queue.add("bad", {})
        log.until("completed")
        log.until("failed")
        assert queue.get_state(good.id) == queue.get_state(bad.id) == "unknown"


def test_workers_share_a_queue_without_sharing_jobs(target: Target, name: str) -> None:
    seen: list[str] = []

    def process(job: Job) -> None:
        seen.append(job.id)

    with (
        Queue(name, **target) as queue,
        Worker(name, process, concurrency=3, **target) as one,
        Worker(name, process, concurrency=3, **target) as two,
    ):
        logs = Log(one, "completed"), Log(two, "completed")
        done = Event()

        def count(job: Job, result: Any) -> None:
            if sum(len(log.of("completed")) for log in logs) == 200:
                done.set()

        one.on("completed", count)
        two.on("completed", count)
        ids = queue.add_bulk([{"name": "a"} for _ in range(200)])
        assert done.wait(PATIENCE)
        assert sorted(seen) == sorted(ids)


def test_a_worker_registers(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        with Worker(name, echo(), name="the-worker", concurrency=7, **target) as worker:
            worker.wait_until_ready()
            (entry,) = [entry for entry in queue.get_workers() if entry["id"] == worker.id]
            assert (entry["name"], entry["queues"], entry["concurrency"]) == ("the-worker", [name], 7)
        assert [entry for entry in queue.get_workers() if entry["id"] == worker.id] == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency must be >= 1"),
        ({"lock_ttl_ms": 0}, "lock_ttl_ms must be a finite number of at least 1"),
        ({"lock_ttl_ms": float("nan")}, "lock_ttl_ms must be a finite number of at least 1"),
        ({"limiter": {"max": 0, "duration": 1}}, "Worker limiter max and duration must be positive finite values"),
        ({"limiter": {"max": 0, "group_key": "g"}}, "Worker group limiter max must be a positive integer"),
        ({"group": {"concurrency": 0}}, "group.concurrency must be a positive safe integer"),
        ({"group": {"limit": {"max": 1}}}, "group.limit.duration must be a positive safe integer"),
        ({"ack_batch": {"maximum": 1}}, "ack_batch has no option 'maximum'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Worker("q", echo(), embedded=True, autorun=False, **options)


def test_a_postponed_job_comes_again_uncharged(target: Target, name: str) -> None:
    attempts: list[int] = []

    def process(job: Job) -> str:
        attempts.append(job.attempts)
        if len(attempts) == 1:
            raise DelayedError
        return "second time"

    with Queue(name, **target) as queue, Worker(name, process, **target) as worker:
        log = Log(worker, "completed", "failed", "error")
        job = queue.add("a", {}, backoff=20)
        log.until("completed")
        assert attempts == [0, 0]
        assert queue.get_result(job.id) == "second time"
        assert log.of("failed") == log.of("error") == []


def test_a_stalled_job_is_told(target: Target, name: str) -> None:
    with Queue(name, **target) as queue:
        silent = Worker(name, echo(), autorun=False, lock_ttl_ms=100, skip_lock_renewal=True, **target)
        queue.add("a", {})
        job = silent.get_next_job()
        assert job is not None
        with Worker(name, echo(), concurrency=1, **target) as worker:
            log = Log(worker, "stalled", "completed")
            worker.wait_until_ready()
            ((job_id, state),) = log.until("stalled")
            assert (job_id, state) == (job.id, "active")
            log.until("completed")
        silent.close(force=True)
