"""What survives: an orderly stop, and the death of the process (rules S-200 to S-219)."""

from __future__ import annotations

import pytest

from bunqueue_core.model.errors import LeaseLost
from bunqueue_core.model.job import REMOVE, timeline_of
from bunqueue_core.model.requests import Ack, Counts, DlqConfig, StallConfig
from bunqueue_core.testing.conformance.harness import Harness, ids_of, job, pack, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


class RestartCases(Kit):
    """An orderly stop: everything accepted is there, nothing is charged."""

    @rule("S-200")
    def test_waiting_jobs_keep_their_order(self, h: Harness) -> None:
        h.require("persistent")
        h.push(
            "q",
            job("a"),
            job("p5", priority=5),
            job("neg", priority=-1),
            job("l1", lifo=True),
            job("l2", lifo=True),
            job("old", timestamp=1_000),
        )
        h.reopen()
        assert h.counts() == {"waiting": 5, "prioritized": 1}
        assert h.drain_order() == ["p5", "l2", "l1", "old", "a", "neg"]

    @rule("S-200")
    def test_input_survives(self, h: Harness) -> None:
        h.require("persistent")
        settings = {
            "priority": 4,
            "custom_id": "x",
            "max_attempts": 9,
            "backoff": {"type": "fixed", "delay": 7, "maxDelay": 9},
            "ttl_ms": 86_400_000,
            "timeout_ms": 11,
            "stall_timeout_ms": 12,
            "stack_trace_limit": 3,
            "remove_on_complete": REMOVE,
            "remove_on_fail": REMOVE,
            "durable": True,
            "tags": ("a", "b"),
        }
        h.push("q", job({"v": 1}, name="send", **settings))
        before = h.job("x").job
        h.reopen()
        after = h.take().job
        assert (after.id, after.name, unpack(after.data)) == ("x", "send", {"v": 1})
        assert after.options == before.options
        assert (after.priority, after.custom_id, tuple(after.tags)) == (4, "x", ("a", "b"))
        assert (after.created_at, after.run_at) == (before.created_at, before.run_at)

    @rule("S-201")
    def test_delayed_jobs_keep_their_time(self, h: Harness) -> None:
        h.require("persistent")
        late, soon = h.push("q", job("late", delay=500 * h.unit), job("soon", delay=2 * h.unit))
        h.reopen()
        assert h.states(late, soon) == ["delayed", "delayed"]
        assert h.pull() == []
        h.elapse(3 * h.unit)
        assert h.take().job.id == soon

    @rule("S-202")
    def test_completed_jobs_and_their_results_survive(self, h: Harness) -> None:
        h.require("persistent")
        h.push("q", job(), job(), job())
        one, two, three = h.pull(count=3)
        h.ack(
            Ack(one.job.id, one.token, pack({"n": 1})),
            Ack(two.job.id, two.token, None),
            Ack(three.job.id, three.token, pack(3), remove=True),
        )
        h.reopen()
        assert h.states(one.job.id, two.job.id, three.job.id) == ["completed", "completed", "unknown"]
        assert h.results(one.job.id, two.job.id, three.job.id) == [pack({"n": 1}), None, None]
        assert h.counts() == {"completed": 2}

    @rule("S-203")
    def test_unfinished_jobs_are_handed_back_uncharged(self, h: Harness) -> None:
        h.require("persistent")
        delivery = h.taken()
        h.reopen()
        assert h.state(delivery.job.id) == "waiting"
        again = h.take()
        assert (again.job.id, again.job.attempts, again.job.stall_count) == (delivery.job.id, 0, 0)

    @rule("S-204")
    def test_attempts_stack_and_progress_survive(self, h: Harness) -> None:
        h.require("persistent")
        delivery = h.taken(backoff={"type": "fixed", "delay": 100 * h.unit})
        if h.offers("progress"):
            h.call("progress", delivery.job.id, 30, "so far", False)
        h.lose(delivery, "boom", stack=["at one"])
        before = h.job(delivery.job.id)
        h.reopen()
        after = h.job(delivery.job.id)
        assert (after.state, after.failed_reason) == ("delayed", "boom")
        assert (after.job.attempts, after.job.stacktrace, after.job.run_at) == (1, ["at one"], before.job.run_at)
        assert (after.job.progress, after.job.progress_message) == (before.job.progress, before.job.progress_message)
        assert timeline_of(after.job) == timeline_of(before.job)

    @rule("S-205")
    def test_dead_letters_survive(self, h: Harness) -> None:
        h.require("persistent")
        h.push_one("q", {"v": 1}, max_attempts=2, backoff_ms=0)
        h.lose(h.take(), "first")
        h.lose(h.take(), "second")
        h.lose(h.taken(max_attempts=1), "other")
        before = h.dead_letters()
        h.reopen()
        after = h.dead_letters()
        assert [(e.job.id, e.reason, e.error, e.entered_at, e.expires_at, e.attempts) for e in after] == [
            (e.job.id, e.reason, e.error, e.entered_at, e.expires_at, e.attempts) for e in before
        ]
        assert [unpack(entry.job.data) for entry in after] == [{"v": 1}, None]
        assert h.counts() == {"failed": 2}
        assert h.call("retry_dead_letters", "q") == 2
        assert h.take().job.attempts == 0

    @rule("S-205")
    def test_a_failed_job_is_known_after_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        delivery = h.taken(max_attempts=1)
        h.lose(delivery)
        h.reopen()
        assert h.state(delivery.job.id) == "failed"
        assert h.counts() == {"failed": 1}
        assert h.pull() == []

    @rule("S-205")
    def test_removed_dead_letters_stay_removed(self, h: Harness) -> None:
        h.require("persistent")
        one, two = h.taken(max_attempts=1), h.taken(max_attempts=1)
        h.lose(one)
        h.lose(two)
        h.call("remove_dead_letter", "q", one.job.id)
        h.reopen()
        assert [entry.job.id for entry in h.dead_letters()] == [two.job.id]

    @rule("S-206")
    def test_a_paused_queue_stays_paused(self, h: Harness) -> None:
        h.require("persistent")
        h.push_one()
        h.call("pause", "q")
        h.call("pause", "r")
        h.call("resume", "r")
        h.reopen()
        assert (h.call("is_paused", "q"), h.call("is_paused", "r")) == (True, False)
        assert h.pull() == []
        assert h.call("counts", "q") == Counts(paused=1)

    @rule("S-206")
    def test_policies_survive(self, h: Harness) -> None:
        h.require("persistent")
        dlq, stall = DlqConfig(True, 5_000, 2, None, 7), StallConfig(False, 1_000, 9, 10)
        h.call("set_dlq_config", "q", dlq)
        h.call("set_stall_config", "q", stall)
        h.reopen()
        assert h.call("dlq_config", "q") == dlq
        assert h.call("stall_config", "q") == stall

    @rule("S-207")
    def test_custom_ids_survive(self, h: Harness) -> None:
        h.require("persistent")
        h.push("q", job("live", custom_id="live"))
        h.complete(h.taken("d", custom_id="done"))
        h.reopen()
        assert h.call("push", "q", [job("second", custom_id="live")]).outcomes == ["found"]
        assert h.call("push", "d", [job("second", custom_id="done")]).outcomes == ["created"]
        assert h.drain_order() == ["live"]
        assert h.drain_order("d") == ["second"]

    @rule("S-208")
    def test_new_ids_come_after_the_old(self, h: Harness) -> None:
        h.require("persistent")
        before = h.push("q", job(), job())
        h.reopen()
        after = h.push("q", job(), job())
        assert not set(before) & set(after)
        assert ids_of(h.pull(count=10)) == before + after

    @rule("S-209")
    def test_a_second_restart_changes_nothing(self, h: Harness) -> None:
        h.require("persistent")
        ids = h.push("q", *(job(n) for n in range(100)))
        h.complete(h.take())
        h.reopen()
        h.reopen()
        assert h.counts() == {"waiting": 99, "completed": 1}
        assert ids_of(h.pull(count=200)) == ids[1:]


class CrashCases(Kit):
    """The process dies: what was answered is there, what ran is charged."""

    @rule("S-210")
    def test_a_durable_job_is_there(self, h: Harness) -> None:
        ids = h.push("q", *(job(n, durable=True) for n in range(10)))
        h.crash()
        assert ids_of(h.pull(count=20)) == ids

    @rule("S-210")
    def test_one_durable_member_makes_the_batch_durable(self, h: Harness) -> None:
        ids = h.push("q", job(1), job(2, durable=True), job(3))
        h.crash()
        assert ids_of(h.pull(count=20)) == ids

    @rule("S-211")
    def test_an_acknowledged_job_never_runs_again(self, h: Harness) -> None:
        h.push("q", *(job(n) for n in range(10)))
        acks = [Ack(d.job.id, d.token, pack(n)) for n, d in enumerate(h.pull(count=10))]
        h.ack(*acks)
        h.crash()
        assert h.counts() == {"completed": 10}
        assert [unpack(r) for r in h.results(*(ack.id for ack in acks))] == list(range(10))
        h.elapse(3 * h.unit)
        assert h.pull(count=20) == []

    @rule("S-211")
    def test_an_answered_failure_is_there(self, h: Harness) -> None:
        retried = h.taken(backoff={"type": "fixed", "delay": 100 * h.unit})
        dead = h.taken(max_attempts=1)
        h.lose(retried)
        h.lose(dead)
        h.crash()
        assert h.states(retried.job.id, dead.job.id) == ["delayed", "failed"]

    @rule("S-212")
    def test_a_delivered_job_is_charged(self, h: Harness) -> None:
        if h.capabilities.multi_broker:
            h.not_offered("recovery at start (leases outlive a broker)")
        delivery = h.taken(backoff={"type": "fixed", "delay": 2 * h.unit})
        h.crash()
        assert h.state(delivery.job.id) == "delayed"
        h.elapse(3 * h.unit)
        again = h.take()
        assert (again.job.id, again.job.attempts, again.job.stall_count) == (delivery.job.id, 1, 1)

    @rule("S-212")
    def test_the_last_attempt_was_the_last(self, h: Harness) -> None:
        if h.capabilities.multi_broker:
            h.not_offered("recovery at start (leases outlive a broker)")
        delivery = h.taken(max_attempts=1)
        h.crash()
        assert h.state(delivery.job.id) == "failed"
        (entry,) = h.dead_letters()
        assert entry.reason == "max_attempts_exceeded"
        assert entry.error == "Job reached max attempts (1) during startup recovery"

    @rule("S-212")
    def test_a_job_that_takes_its_process_along_ends(self, h: Harness) -> None:
        if h.capabilities.multi_broker:
            h.not_offered("recovery at start (leases outlive a broker)")
        id = h.push_one(max_attempts=100, backoff_ms=0)
        for _ in range(3):
            assert h.take().job.id == id
            h.crash()
        assert h.state(id) == "failed"
        (entry,) = h.dead_letters()
        assert (entry.reason, entry.error) == ("stalled", "Job stalled 3 times (recovered at startup)")
        assert [record["error"] for record in entry.attempts[:2]] == ["Interrupted during recovery"] * 2

    @rule("S-205", "S-212")
    def test_a_crash_adds_to_the_dead_letters(self, h: Harness) -> None:
        if h.capabilities.multi_broker:
            h.not_offered("recovery at start (leases outlive a broker)")
        earlier = [h.taken(custom_id=f"earlier-{n}", max_attempts=1) for n in range(3)]
        for delivery in earlier:
            h.lose(delivery)
        last = h.taken(max_attempts=1)
        h.crash()
        ids = [*(delivery.job.id for delivery in earlier), last.job.id]
        assert [entry.job.id for entry in h.dead_letters()] == ids
        h.reopen()
        assert [entry.job.id for entry in h.dead_letters()] == ids

    @rule("S-213")
    def test_a_late_acknowledgement_reaches_a_recovered_job(self, h: Harness) -> None:
        if h.capabilities.multi_broker:
            h.not_offered("recovery at start (leases outlive a broker)")
        delivery = h.taken(backoff={"type": "fixed", "delay": 100 * h.unit})
        h.crash()
        assert h.ack(Ack(delivery.job.id, delivery.token, pack("late"))) == ["applied"]
        assert h.state(delivery.job.id) == "completed"
        assert unpack(h.results(delivery.job.id)[0]) == "late"

    @rule("S-214")
    def test_a_lease_outlives_the_broker_that_gave_it(self, h: Harness) -> None:
        h.require("multi_broker")
        delivery = h.taken()
        h.crash()
        assert h.state(delivery.job.id) == "active"
        h.complete(delivery, "done")
        assert h.state(delivery.job.id) == "completed"

    @rule("S-214")
    def test_a_dead_workers_job_runs_elsewhere(self, h: Harness) -> None:
        h.require("multi_broker")
        h.push_one()
        delivery = h.take(lock_ttl_ms=2 * h.unit)
        h.crash()
        again = h.take()
        assert again.job.id == delivery.job.id
        with pytest.raises(LeaseLost):
            h.ack(Ack(delivery.job.id, delivery.token))
        h.complete(again)

    @rule("S-215")
    def test_a_handed_back_job_is_not_charged(self, h: Harness) -> None:
        if h.capabilities.multi_broker:
            h.not_offered("recovery at start (leases outlive a broker)")
        id = h.push_one(durable=True)
        h.take(session="s1")
        h.call("release", "s1")
        h.crash()
        assert h.state(id) == "waiting"
        assert h.take().job.attempts == 0

    @rule("S-216")
    def test_a_pause_is_there(self, h: Harness) -> None:
        h.call("pause", "q")
        h.crash()
        assert h.call("is_paused", "q") is True
