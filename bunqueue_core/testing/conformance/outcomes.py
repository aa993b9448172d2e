"""Outcomes: acknowledgement, failure, retry, the end of a job (rules S-070 to S-119)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue_core.model.errors import LeaseLost
from bunqueue_core.model.job import KEEP, REMOVE, timeline_of
from bunqueue_core.model.payload import NULL
from bunqueue_core.model.requests import Ack, Acknowledged, Delivery, Failure
from bunqueue_core.testing.conformance.harness import Harness, job, pack, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


def not_active(id: str) -> str:
    """Text of the error for a job that is not being processed."""
    return f"Job not found or not in processing state: {id}"


class CompletionCases(Kit):
    """Acknowledgements, single and in bulk; results; late completion."""

    @rule("S-070")
    def test_an_acknowledged_job_is_completed(self, h: Harness) -> None:
        delivery = h.taken()
        assert h.ack(Ack(delivery.job.id, delivery.token, pack({"sum": 3}))) == ["applied"]
        assert h.state(delivery.job.id) == "completed"
        assert h.counts() == {"completed": 1}
        assert unpack(h.results(delivery.job.id)[0]) == {"sum": 3}
        assert h.pull() == []

    @rule("S-070")
    def test_a_completed_job_says_when(self, h: Harness) -> None:
        delivery = h.taken()
        h.complete(delivery)
        view = h.job(delivery.job.id)
        assert view.job.completed_at is not None
        assert view.job.completed_at >= view.job.created_at
        assert [entry["state"] for entry in timeline_of(view.job)] == ["waiting", "active", "completed"]
        assert (view.job.attempts, view.failed_reason) == (0, None)

    @rule("S-071")
    def test_a_null_result_is_not_a_missing_one(self, h: Harness) -> None:
        h.push("q", job(), job())
        one, two = h.pull(count=2)
        h.ack(Ack(one.job.id, one.token, NULL), Ack(two.job.id, two.token, None))
        assert h.results(one.job.id, two.job.id) == [NULL, None]

    @rule("S-071")
    def test_results_of_what_has_none(self, h: Harness) -> None:
        waiting = h.push_one()
        assert h.results(waiting, "never-existed") == [None, None]
        assert h.results() == []

    @rule("S-072")
    @pytest.mark.parametrize("token", [None, "t"])
    def test_only_active_jobs_are_acknowledged(self, h: Harness, token: str | None) -> None:
        waiting, delayed = h.push("w", job(), job(delay=100 * h.unit))
        done = h.taken("d")
        h.complete(done)
        failed = h.taken("f", max_attempts=1)
        h.lose(failed)
        for id in (waiting, delayed, done.job.id, failed.job.id, "never-existed"):
            with pytest.raises(Exception, match="not in processing state") as caught:
                h.ack(Ack(id, token))
            assert str(caught.value) == not_active(id)
        assert h.states(waiting, delayed) == ["waiting", "delayed"]

    @rule("S-073")
    def test_a_batch_is_acknowledged_together(self, h: Harness) -> None:
        ids = h.push("q", *(job(n) for n in range(20)))
        acks = [Ack(d.job.id, d.token, pack(n)) for n, d in enumerate(h.pull(count=20))]
        assert h.ack(*acks) == ["applied"] * 20
        assert h.counts() == {"completed": 20}
        assert [unpack(result) for result in h.results(*ids)] == list(range(20))

    @rule("S-073")
    def test_nothing_acknowledged_is_nothing_done(self, h: Harness) -> None:
        done: Acknowledged = h.call("ack", [])
        assert (done.outcomes, done.errors) == ([], {})

    @rule("S-074")
    def test_one_bad_token_refuses_the_batch(self, h: Harness) -> None:
        h.push("q", job(), job(), job())
        one, two, three = h.pull(count=3)
        batch = [Ack(one.job.id, one.token), Ack(two.job.id, "wrong"), Ack(three.job.id, three.token)]
        h.refused("ack", batch, error=LeaseLost, text=f"Invalid or expired lock token for job {two.job.id}")
        assert h.counts() == {"active": 3}
        h.complete(one)

    @rule("S-075")
    def test_what_can_be_acknowledged_is(self, h: Harness) -> None:
        h.push("q", job(), job())
        one, two = h.pull(count=2)
        batch = [Ack(one.job.id, one.token), Ack("never-existed", "t"), Ack(two.job.id, two.token)]
        done: Acknowledged = h.call("ack", batch)
        assert list(done.errors) == [1]
        assert str(done.errors[1]) == not_active("never-existed")
        assert (done.outcomes[0], done.outcomes[2]) == ("applied", "applied")
        assert h.counts() == {"completed": 2}

    @rule("S-075")
    def test_a_job_twice_in_a_batch_is_applied_once(self, h: Harness) -> None:
        delivery = h.taken()
        batch = [Ack(delivery.job.id, delivery.token, pack("a")), Ack(delivery.job.id, delivery.token, pack("b"))]
        done: Acknowledged = h.call("ack", batch)
        assert list(done.errors) == [1]
        assert str(done.errors[1]) == not_active(delivery.job.id)
        assert h.counts() == {"completed": 1}
        assert unpack(h.results(delivery.job.id)[0]) == "a"

    @rule("S-076")
    def test_a_job_may_be_removed_by_its_acknowledgement(self, h: Harness) -> None:
        delivery = h.taken()
        assert h.ack(Ack(delivery.job.id, delivery.token, pack(1), remove=True)) == ["applied"]
        self._is_gone(h, delivery.job.id)

    @rule("S-076")
    def test_a_job_may_be_removed_by_its_options(self, h: Harness) -> None:
        delivery = h.taken(remove_on_complete=REMOVE)
        h.complete(delivery, 1)
        self._is_gone(h, delivery.job.id)

    @rule("S-076")
    def test_the_option_wins_over_the_acknowledgement(self, h: Harness) -> None:
        delivery = h.taken(remove_on_complete=REMOVE)
        h.ack(Ack(delivery.job.id, delivery.token, pack(1), remove=False))
        self._is_gone(h, delivery.job.id)

    def _is_gone(self, h: Harness, id: str) -> None:
        assert h.state(id) == "unknown"
        assert h.results(id) == [None]
        assert h.counts() == {}
        if h.offers("job"):
            assert h.call("job", id) is None

    # -- late completion ----------------------------------------------------------------------------------------------

    @rule("S-080")
    @pytest.mark.parametrize("with_token", [True, False])
    def test_a_late_acknowledgement_completes_a_job_that_waits_for_its_retry(
        self, h: Harness, with_token: bool
    ) -> None:
        delivery = h.taken(backoff={"type": "fixed", "delay": 100 * h.unit})
        h.lose(delivery)
        assert h.state(delivery.job.id) == "delayed"
        assert h.ack(Ack(delivery.job.id, delivery.token if with_token else None, pack("late"))) == ["applied"]
        assert h.state(delivery.job.id) == "completed"
        assert unpack(h.results(delivery.job.id)[0]) == "late"
        assert h.counts() == {"completed": 1}

    @rule("S-080")
    def test_a_late_completed_job_does_not_run_again(self, h: Harness) -> None:
        delivery = h.taken(backoff={"type": "fixed", "delay": h.unit})
        h.lose(delivery)
        h.ack(Ack(delivery.job.id, None))
        h.elapse(3 * h.unit)
        assert h.pull() == []

    @rule("S-081")
    def test_a_late_acknowledgement_after_an_expired_lease(self, h: Harness) -> None:
        h.push_one()
        delivery = h.take(lock_ttl_ms=h.unit)
        h.until_state(delivery.job.id, "waiting")
        assert h.ack(Ack(delivery.job.id, delivery.token, pack("late"))) == ["applied"]
        assert h.state(delivery.job.id) == "completed"

    @rule("S-082")
    def test_a_job_that_never_failed_is_not_completed_from_the_queue(self, h: Harness) -> None:
        id = h.push_one()
        with pytest.raises(Exception, match="not in processing state"):
            h.ack(Ack(id, "t"))
        assert h.state(id) == "waiting"


class FailureCases(Kit):
    """Failed attempts: retry, backoff, exhaustion, removal."""

    @rule("S-090")
    def test_a_failed_job_waits_for_its_retry(self, h: Harness) -> None:
        delivery = h.taken(backoff={"type": "fixed", "delay": 100 * h.unit})
        assert h.fail(Failure(delivery.job.id, "boom", delivery.token)) == ["applied"]
        assert h.state(delivery.job.id) == "delayed"
        assert h.counts() == {"delayed": 1}
        assert h.pull() == []

    @rule("S-090")
    def test_a_retried_job_carries_its_attempts(self, h: Harness) -> None:
        id = h.push_one(backoff_ms=0)
        for attempt in range(3):
            delivery = h.take()
            assert (delivery.job.id, delivery.job.attempts) == (id, attempt)
            if attempt < 2:
                h.lose(delivery)
        h.complete(delivery)
        assert h.state(id) == "completed"

    @rule("S-090")
    def test_a_failure_stands_in_the_timeline(self, h: Harness) -> None:
        delivery = h.taken(backoff={"type": "fixed", "delay": 100 * h.unit})
        h.lose(delivery, "boom")
        view = h.job(delivery.job.id)
        steps = [(entry["state"], entry.get("error"), entry.get("attempt")) for entry in timeline_of(view.job)]
        assert steps == [("waiting", None, None), ("active", None, None), ("failed", "boom", 1), ("waiting", None, 2)]
        assert (view.failed_reason, view.job.started_at) == ("boom", None)

    @rule("S-091")
    @pytest.mark.parametrize(
        ("settings", "bounds"),
        [
            ({"backoff": {"type": "fixed", "delay": 60_000}}, [(48_000, 72_000), (48_000, 72_000)]),
            ({"backoff": {"type": "exponential", "delay": 60_000}}, [(60_000, 180_000), (120_000, 360_000)]),
            ({"backoff_ms": 60_000}, [(60_000, 180_000), (120_000, 360_000)]),
            (
                {"backoff": {"type": "exponential", "delay": 60_000, "maxDelay": 70_000}},
                [(60_000, 70_000), (70_000, 70_000)],
            ),
            ({"backoff_ms": 86_400_000}, [(3_600_000, 3_600_000), (3_600_000, 3_600_000)]),
        ],
        ids=["fixed", "exponential", "number", "capped", "an-hour-at-most"],
    )
    def test_backoff_lies_in_its_bounds(
        self, h: Harness, settings: dict[str, Any], bounds: list[tuple[int, int]]
    ) -> None:
        h.require("clock")
        assert h.setup.clock is not None
        id = h.push_one(max_attempts=5, **settings)
        for least, most in bounds:
            delivery = h.take()
            h.lose(delivery)
            wait = h.job(id).job.run_at - h.setup.clock.now_ms
            assert least <= wait <= most
            h.elapse(wait)

    @rule("S-091")
    def test_a_retry_comes_after_its_backoff(self, h: Harness) -> None:
        delivery = h.taken(backoff={"type": "fixed", "delay": 2 * h.unit})
        h.lose(delivery)
        assert h.pull() == []
        h.elapse(2.5 * h.unit)
        assert h.take().job.id == delivery.job.id

    @rule("S-092")
    def test_without_backoff_a_retry_is_ready_at_once(self, h: Harness) -> None:
        delivery = h.taken(backoff_ms=0)
        h.lose(delivery)
        assert h.state(delivery.job.id) == "waiting"
        assert h.take().job.attempts == 1

    @rule("S-093")
    def test_the_last_attempt_ends_the_job(self, h: Harness) -> None:
        id = h.push_one(max_attempts=2, backoff_ms=0)
        h.lose(h.take())
        assert h.state(id) == "waiting"
        h.lose(h.take())
        assert h.state(id) == "failed"
        assert h.counts() == {"failed": 1}
        assert h.pull() == []

    @rule("S-093")
    def test_a_dead_job_says_why(self, h: Harness) -> None:
        delivery = h.taken(max_attempts=1)
        h.lose(delivery, "no such address")
        view = h.job(delivery.job.id)
        assert (view.state, view.failed_reason, view.job.attempts) == ("failed", "no such address", 1)

    @rule("S-094")
    def test_an_unrecoverable_failure_ends_the_job(self, h: Harness) -> None:
        delivery = h.taken(max_attempts=10)
        h.lose(delivery, unrecoverable=True)
        assert h.state(delivery.job.id) == "failed"

    @rule("S-095")
    def test_a_job_may_be_removed_at_its_last_failure_by_its_options(self, h: Harness) -> None:
        delivery = h.taken(max_attempts=1, remove_on_fail=REMOVE)
        h.lose(delivery)
        assert h.state(delivery.job.id) == "unknown"
        assert h.counts() == {}

    @rule("S-095")
    def test_a_job_may_be_removed_at_its_last_failure_by_the_failure(self, h: Harness) -> None:
        delivery = h.taken(max_attempts=1, remove_on_fail=KEEP)
        h.lose(delivery, remove=True)
        assert h.state(delivery.job.id) == "unknown"
        if h.offers("dead_letters"):
            assert h.dead_letters() == []

    @rule("S-095")
    def test_removal_waits_for_the_last_failure(self, h: Harness) -> None:
        delivery = h.taken(max_attempts=2, backoff_ms=0, remove_on_fail=REMOVE)
        h.lose(delivery, remove=True)
        assert h.state(delivery.job.id) == "waiting"

    @rule("S-096")
    def test_only_active_jobs_fail(self, h: Harness) -> None:
        waiting, delayed = h.push("w", job(), job(delay=100 * h.unit))
        done = h.taken("d")
        h.complete(done)
        failed = h.taken("f", max_attempts=1)
        h.lose(failed)
        for id in (waiting, delayed, done.job.id, failed.job.id, "never-existed"):
            with pytest.raises(Exception, match="not in processing state") as caught:
                h.fail(Failure(id, "e"))
            assert str(caught.value) == not_active(id)

    @rule("S-097")
    def test_a_second_failure_with_the_same_token_is_ignored(self, h: Harness) -> None:
        delivery = h.taken(backoff={"type": "fixed", "delay": 100 * h.unit})
        h.lose(delivery)
        assert h.fail(Failure(delivery.job.id, "again", delivery.token)) == ["already-finalized"]
        assert h.state(delivery.job.id) == "delayed"
        with pytest.raises(Exception, match="not in processing state"):
            h.fail(Failure(delivery.job.id, "again"))

    @rule("S-098")
    def test_a_failure_without_a_text_has_no_reason(self, h: Harness) -> None:
        delivery = h.taken(max_attempts=1)
        h.lose(delivery, None)
        assert h.job(delivery.job.id).failed_reason is None

    @rule("S-099")
    def test_a_stack_trace_is_kept_up_to_its_limit(self, h: Harness) -> None:
        h.push_one(backoff_ms=0, stack_trace_limit=2)
        h.lose(h.take(), stack=["  one  ", "", "two", "three"])
        delivery = h.take()
        assert delivery.job.stacktrace == ["one", "two"]
        h.lose(delivery)
        assert h.take().job.stacktrace == ["one", "two"]

    @rule("S-099")
    def test_an_empty_stack_trace_replaces_the_last(self, h: Harness) -> None:
        h.push_one(backoff_ms=0)
        h.lose(h.take(), stack=["one"])
        h.lose(h.take(), stack=["  "])
        assert h.take().job.stacktrace is None

    @rule("S-100")
    def test_failures_come_in_bulk(self, h: Harness) -> None:
        h.push("q", job(backoff_ms=0), job(max_attempts=1))
        one, two = h.pull(count=2)
        batch = [Failure(one.job.id, "a", one.token), Failure("never-existed"), Failure(two.job.id, "b", two.token)]
        done: Acknowledged = h.call("fail", batch)
        assert list(done.errors) == [1]
        assert h.states(one.job.id, two.job.id) == ["waiting", "failed"]

    @rule("S-100")
    def test_one_bad_token_refuses_the_failures(self, h: Harness) -> None:
        h.push("q", job(), job())
        one, two = h.pull(count=2)
        h.refused("fail", [Failure(one.job.id, "a", one.token), Failure(two.job.id, "b", "wrong")], error=LeaseLost)
        assert h.counts() == {"active": 2}

    @rule("S-101")
    def test_the_timeline_keeps_the_oldest_twenty_steps(self, h: Harness) -> None:
        id = h.push_one(max_attempts=20, backoff_ms=0)
        delivery: Delivery | None = None
        for _ in range(9):
            delivery = h.take()
            h.lose(delivery)
        steps = timeline_of(h.job(id).job)
        assert len(steps) == 20
        assert steps[0]["state"] == "waiting"
        assert [entry.get("attempt") for entry in steps if entry["state"] == "failed"] == [1, 2, 3, 4, 5, 6]
