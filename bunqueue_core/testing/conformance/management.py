"""Managing queues and single jobs (rules S-260 to S-299)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue_core.model.errors import Conflict, LeaseLost, NotFound, ValidationError
from bunqueue_core.model.job import Retention, timeline_of
from bunqueue_core.model.requests import Ack, Counts, Pushed
from bunqueue_core.testing.conformance.harness import Harness, ids_of, job, pack, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule

#: States in which the matrix of commands puts a job.
STATES = ("waiting", "delayed", "waiting-children", "active", "completed", "failed", "unknown")


class ManagementCases(Kit):
    """Drain, clean, obliterate; cancel, discard, promote, move, change, update, retry."""

    def _in_state(self, h: Harness, state: str) -> tuple[str, str | None]:
        """A job in a state: (id, token of its lease)."""
        if state == "unknown":
            return "never-existed", None
        if state == "waiting":
            return h.push_one(), None
        if state == "delayed":
            return h.push_one(delay=100 * h.unit), None
        if state == "waiting-children":
            dependency = h.push_one("elsewhere")
            return h.push_one(depends_on=(dependency,)), None
        delivery = h.taken(max_attempts=1)
        if state == "completed":
            h.complete(delivery)
        elif state == "failed":
            h.lose(delivery)
        return delivery.job.id, delivery.token

    # -- queues -------------------------------------------------------------------------------------------------------

    @rule("S-260")
    def test_the_count_is_that_of_queued_jobs(self, h: Harness) -> None:
        h.taken()
        h.push("q", job(), job(priority=1), job(delay=100 * h.unit))
        assert h.call("count", "q") == 3
        assert h.call("count", "never-seen") == 0

    @rule("S-261")
    def test_draining_removes_queued_jobs(self, h: Harness) -> None:
        active = h.taken()
        done = h.taken()
        h.complete(done)
        gone = h.push("q", job(), job(priority=1), job(delay=100 * h.unit))
        gated = h.push_one(depends_on=(active.job.id,))
        assert h.call("drain_queue", "q") == 3
        assert h.states(*gone) == ["unknown"] * 3
        assert h.states(active.job.id, done.job.id, gated) == ["active", "completed", "waiting-children"]
        assert h.call("drain_queue", "q") == 0
        assert h.call("drain_queue", "never-seen") == 0

    @rule("S-262")
    def test_cleaning_queued_jobs_takes_the_oldest_first(self, h: Harness) -> None:
        ids = h.push("q", *(job(n, timestamp=1_000 + n) for n in range(4)))
        h.taken("other")
        assert h.call("clean", "q", 0, "waiting", 2) == ids[:2]
        assert h.call("clean", "q", 10**13, "waiting", 10) == []
        assert h.call("clean", "q", None, "waiting", 10) == []
        assert h.call("clean", "q", 0, None, 10) == ids[2:]
        assert h.call("clean", "q", 0, "active", 10) == []

    @rule("S-262")
    def test_cleaning_ended_jobs(self, h: Harness) -> None:
        done, dead = h.taken(), h.taken(max_attempts=1)
        h.complete(done, 1)
        h.lose(dead)
        waiting = h.push_one()
        assert h.call("clean", "q", 0, "completed", 0) == []
        assert h.call("clean", "q", 0, "completed", 10) == [done.job.id]
        assert h.call("clean", "q", 0, "failed", 10) == [dead.job.id]
        assert h.states(done.job.id, dead.job.id, waiting) == ["unknown", "unknown", "waiting"]
        assert h.results(done.job.id) == [None]

    @rule("S-262")
    def test_cleaning_spares_what_others_wait_for(self, h: Harness) -> None:
        done = h.taken()
        h.complete(done)
        other = h.push_one("elsewhere")
        waiting = h.push_one(depends_on=(done.job.id, other))
        assert h.call("clean", "q", 0, "completed", 10) == []
        h.complete(h.take("elsewhere"))
        h.until_state(waiting, "waiting")

    @rule("S-263")
    def test_obliterating_removes_everything(self, h: Harness) -> None:
        jobs = [self._in_state(h, state)[0] for state in STATES]
        h.call("pause", "q")
        h.call("obliterate", "q")
        assert h.states(*jobs) == ["unknown"] * len(jobs)
        assert h.call("counts", "q") == Counts()
        assert h.call("is_paused", "q") is False
        assert "q" not in h.call("queues")
        h.call("obliterate", "never-seen")

    @rule("S-263")
    def test_a_job_of_an_obliterated_queue_cannot_be_acknowledged(self, h: Harness) -> None:
        delivery = h.taken()
        h.call("obliterate", "q")
        with pytest.raises(NotFound, match="not in processing state"):
            h.complete(delivery)
        id = h.push_one()
        assert ids_of(h.pull()) == [id]

    # -- single jobs --------------------------------------------------------------------------------------------------

    @rule("S-265")
    @pytest.mark.parametrize("state", STATES)
    def test_cancelling(self, h: Harness, state: str) -> None:
        id, _ = self._in_state(h, state)
        if state in ("waiting", "delayed", "waiting-children"):
            h.call("cancel", id)
            assert h.state(id) == "unknown"
        else:
            h.refused("cancel", id, error=NotFound, text="Job not found or cannot be cancelled")
            assert h.state(id) == state

    @rule("S-266")
    @pytest.mark.parametrize("state", STATES)
    def test_discarding(self, h: Harness, state: str) -> None:
        id, token = self._in_state(h, state)
        if state in ("waiting", "delayed", "active"):
            h.call("discard", id, token)
            assert h.state(id) == "failed"
            (entry,) = h.dead_letters()
            assert (entry.reason, entry.error) == ("unknown", None)
        else:
            h.refused("discard", id, token, error=NotFound, text="Job not found")

    @rule("S-267")
    @pytest.mark.parametrize("state", STATES)
    def test_promoting(self, h: Harness, state: str) -> None:
        id, _ = self._in_state(h, state)
        if state == "delayed":
            waiting = h.park()
            h.call("promote", id)
            assert ids_of(h.value(waiting)) == [id]
        else:
            h.refused("promote", id, error=NotFound, text="Job not found or not delayed")

    @rule("S-267")
    def test_promoting_many_takes_the_oldest_first(self, h: Harness) -> None:
        delays = [100 * h.unit, 90 * h.unit, 80 * h.unit]
        ids = h.push("q", *(job(delay=delay) for delay in delays), job())
        assert h.call("promote_jobs", "q", 2) == 2
        assert h.states(*ids) == ["waiting", "waiting", "delayed", "waiting"]
        assert h.call("promote_jobs", "q") == 1
        assert h.call("promote_jobs", "q") == 0

    @rule("S-268")
    @pytest.mark.parametrize("state", STATES)
    def test_changing_the_delay(self, h: Harness, state: str) -> None:
        id, token = self._in_state(h, state)
        changed = h.call("change_delay", id, 50 * h.unit, token)
        assert changed == (state in ("waiting", "delayed", "active"))
        if changed:
            assert h.state(id) == "delayed"
            h.call("change_delay", id, 0)
            assert h.take().job.attempts == 0

    @rule("S-269")
    @pytest.mark.parametrize("state", STATES)
    def test_moving_to_waiting(self, h: Harness, state: str) -> None:
        id, token = self._in_state(h, state)
        if state in ("waiting-children", "completed", "unknown"):
            text = f"Cannot move job from state '{state}' to waiting"
            h.refused("move_to_wait", id, token, error=Conflict, text=text)
            return
        h.call("move_to_wait", id, token)
        assert h.state(id) == "waiting"
        again = h.take()
        assert (again.job.id, again.job.attempts) == (id, 0)

    @rule("S-270")
    @pytest.mark.parametrize("verb", ["discard", "change_delay", "move_to_wait", "move_to_waiting_children"])
    def test_an_active_job_is_managed_with_its_token_only(self, h: Harness, verb: str) -> None:
        id = h.taken().job.id
        arguments: tuple[Any, ...] = (id, 1_000) if verb == "change_delay" else (id,)
        h.refused(verb, *arguments, error=LeaseLost, text=f"Lock token required for job {id}")
        h.refused(verb, *arguments, "wrong", error=LeaseLost, text=f"Invalid or expired lock token for job {id}")
        assert h.state(id) == "active"

    @rule("S-271")
    @pytest.mark.parametrize("state", STATES)
    def test_parking(self, h: Harness, state: str) -> None:
        id, token = self._in_state(h, state)
        if state != "active":
            h.refused("move_to_waiting_children", id, token, error=NotFound, text="Job is not active")
            return
        h.call("move_to_waiting_children", id, token)
        assert h.state(id) == "waiting-children"
        assert h.counts() == {"waiting_children": 1}
        assert h.pull() == []
        with pytest.raises(NotFound, match="not in processing state"):
            h.ack(Ack(id, token))

    @rule("S-271")
    def test_a_parked_job_is_live(self, h: Harness) -> None:
        delivery = h.taken(custom_id="x")
        h.call("move_to_waiting_children", "x", delivery.token)
        assert h.call("push", "q", [job(custom_id="x")]).outcomes == ["found"]
        assert h.counts() == {"waiting_children": 1}

    @rule("S-272")
    @pytest.mark.parametrize("state", STATES)
    def test_changing_the_priority(self, h: Harness, state: str) -> None:
        id, _ = self._in_state(h, state)
        if state in ("waiting", "delayed"):
            h.call("change_priority", id, 7)
            assert h.job(id).job.priority == 7
        else:
            h.refused("change_priority", id, 7, error=NotFound, text="Job not found or not in queue")

    @rule("S-272")
    def test_a_changed_priority_changes_the_order(self, h: Harness) -> None:
        ids = h.push("q", job("a"), job("b"), job("c"))
        h.call("change_priority", ids[2], 5)
        h.call("change_priority", ids[1], 0, True)
        assert h.drain_order() == ["c", "b", "a"]

    @rule("S-273")
    @pytest.mark.parametrize("state", STATES)
    def test_updating_the_data(self, h: Harness, state: str) -> None:
        id, _ = self._in_state(h, state)
        if state in ("completed", "failed", "unknown"):
            h.refused("update_data", id, pack(2), error=NotFound, text="Job not found or cannot be updated")
        else:
            h.call("update_data", id, pack({"v": 2}))
            assert unpack(h.job(id).job.data) == {"v": 2}

    @rule("S-274")
    def test_completed_jobs_run_again(self, h: Harness) -> None:
        done = [h.taken(data=n) for n in range(3)]
        for delivery in done:
            h.complete(delivery, "result")
        first, second, third = (delivery.job.id for delivery in done)
        assert h.call("retry_completed", "q", second) == 1
        assert h.call("retry_completed", "q", second) == 0
        assert h.call("retry_completed", "q", "never-existed") == 0
        assert h.states(first, second, third) == ["completed", "waiting", "completed"]
        assert h.results(second) == [None]
        assert h.call("retry_completed", "q", None, 1) == 1
        assert h.states(first, third) == ["waiting", "completed"]
        assert h.call("retry_completed", "q") == 1
        assert {delivery.job.attempts for delivery in h.pull(count=3)} == {0}

    @rule("S-275")
    def test_what_was_managed_survives_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        promoted, urgent, changed, gone = h.push("q", job(delay=500 * h.unit), job(), job(), job())
        h.call("promote", promoted)
        h.call("change_priority", urgent, 9)
        h.call("update_data", changed, pack("new"))
        h.call("cancel", gone)
        buried = h.push_one()
        h.call("discard", buried)
        h.reopen()
        assert h.states(promoted, urgent, changed, gone, buried) == [
            "waiting",
            "prioritized",
            "waiting",
            "unknown",
            "failed",
        ]
        assert unpack(h.job(changed).job.data) == "new"

    @rule("S-276")
    def test_debounced_adds_become_one(self, h: Harness) -> None:
        first = h.push_one(data="old", debounce_id="d", debounce_ttl_ms=100 * h.unit)
        run_at = h.job(first).job.run_at
        newer = job("new", name="m", debounce_id="d", debounce_ttl_ms=300 * h.unit)
        pushed: Pushed = h.call("push", "q", [newer])
        assert (pushed.ids, pushed.outcomes) == ([first], ["found"])
        moved = h.job(first).job
        assert (moved.name, unpack(moved.data)) == ("m", "new")
        assert moved.run_at >= run_at + 200 * h.unit
        assert h.counts() == {"delayed": 1}
        assert h.push_one("other", debounce_id="d", debounce_ttl_ms=h.unit) != first

    @rule("S-276")
    def test_a_debounce_waits_no_longer_than_its_bound(self, h: Harness) -> None:
        settings: dict[str, Any] = {"debounce_id": "d", "debounce_max_wait_ms": 200 * h.unit}
        first = h.push_one(debounce_ttl_ms=100 * h.unit, **settings)
        h.push_one(debounce_ttl_ms=1_000 * h.unit, **settings)
        waiting = h.job(first).job
        assert waiting.run_at == waiting.admitted_at + 200 * h.unit

    @rule("S-276")
    def test_members_of_a_bulk_are_debounced(self, h: Harness) -> None:
        settings: dict[str, Any] = {"debounce_id": "d", "debounce_ttl_ms": 100 * h.unit}
        pushed: Pushed = h.call("push", "q", [job(1, **settings), job("else"), job(2, **settings)])
        assert pushed.outcomes == ["created", "created", "found"]
        assert pushed.ids[0] == pushed.ids[2]
        assert unpack(h.job(pushed.ids[0]).job.data) == 2

    @rule("S-276")
    def test_a_delivered_job_is_not_debounced_any_more(self, h: Harness) -> None:
        settings: dict[str, Any] = {"debounce_id": "d", "debounce_ttl_ms": h.unit}
        first = h.push_one(data="old", **settings)
        delivery = h.take()
        assert delivery.job.id == first
        assert h.push_one(data="new", **settings) != first
        h.lose(delivery)
        assert unpack(h.job(first).job.data) == "old"

    @rule("S-276")
    def test_a_debounce_survives_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        settings: dict[str, Any] = {"debounce_id": "d", "debounce_ttl_ms": 1_000 * h.unit}
        first = h.push_one(data="old", **settings)
        h.reopen()
        assert h.push_one(data="new", **settings) == first

    @rule("S-276")
    def test_a_debounce_survives_a_restart_beside_a_parent_of_its_id(self, h: Harness) -> None:
        h.require("persistent")
        settings: dict[str, Any] = {"debounce_id": "d", "debounce_ttl_ms": 1_000 * h.unit}
        first = h.push_one(**settings)
        h.push("children", job(parent_id=first, parent_queue="q"))
        second = h.push_one(priority=5, **settings)
        assert second != first
        h.reopen()
        assert h.push_one(priority=5, **settings) == second

    @rule("S-277")
    def test_new_data_is_held_to_the_size_limit(self, h: Harness) -> None:
        id = h.push_one(data="small", size_limit=20)
        text = "Job data exceeds its sizeLimit of 20 bytes"
        h.refused("update_data", id, pack("x" * 40), error=ValidationError, text=text)
        assert unpack(h.job(id).job.data) == "small"
        h.call("update_data", id, pack("fits"))
        assert unpack(h.job(id).job.data) == "fits"

    @rule("S-278")
    def test_a_job_says_what_blocks_it(self, h: Harness) -> None:
        needed = h.push_one(max_attempts=1)
        (waiter,) = h.push("p", job(depends_on=(needed,)))
        assert h.job(waiter).blocked_by == ()
        h.lose(h.take())
        assert h.job(waiter).blocked_by == (needed,)
        assert h.state(waiter) == "waiting-children"
        assert h.call("retry_dead_letters", "q") == 1
        assert h.job(waiter).blocked_by == ()
        h.complete(h.take())
        assert h.state(waiter) == "waiting"


class LifetimeCases(Kit):
    """Time to live, processing time-out, retention, logs, minute figures."""

    @rule("S-280")
    def test_a_job_is_gone_after_its_time_to_live(self, h: Harness) -> None:
        short, late, long = h.push(
            "q", job(ttl_ms=h.unit), job(ttl_ms=h.unit, delay=100 * h.unit), job("long", ttl_ms=1_000 * h.unit)
        )
        h.elapse(1.5 * h.unit)
        assert [unpack(delivery.job.data) for delivery in h.pull(count=3)] == ["long"]
        assert h.states(short, late, long) == ["unknown", "unknown", "active"]
        assert h.counts() == {"active": 1}

    @rule("S-281")
    def test_a_job_that_takes_too_long_has_failed(self, h: Harness) -> None:
        id = h.push_one(timeout_ms=h.unit, max_attempts=2, backoff_ms=0)
        first = h.take(lock_ttl_ms=600_000)
        h.until_state(id, "waiting", "delayed")
        second = h.take(lock_ttl_ms=600_000)
        assert (second.job.attempts, second.job.stall_count) == (1, 0)
        h.until_state(id, "failed")
        (entry,) = h.dead_letters()
        assert (entry.reason, entry.error) == ("timeout", "Job timeout exceeded")
        assert [record["reason"] for record in entry.attempts] == ["timeout", "timeout"]
        assert first.token != second.token

    @rule("S-281")
    def test_renewing_does_not_stop_the_clock(self, h: Harness) -> None:
        id = h.push_one(timeout_ms=2 * h.unit, max_attempts=1)
        delivery = h.take(lock_ttl_ms=600_000)
        h.elapse(h.unit)
        assert h.extend(id, delivery.token)
        h.until_state(id, "failed")

    @rule("S-282")
    def test_an_outcome_after_a_timeout_is_ignored(self, h: Harness) -> None:
        id = h.push_one(timeout_ms=h.unit, max_attempts=1)
        delivery = h.take(lock_ttl_ms=600_000)
        h.until_state(id, "failed")
        done = h.call("ack", [Ack(id, delivery.token, pack("late"))])
        assert (done.outcomes, done.errors) == (["already-finalized"], {})
        assert h.state(id) == "failed"

    @rule("S-283")
    def test_completed_jobs_are_kept_by_number(self, h: Harness) -> None:
        ids = []
        for n in range(4):
            delivery = h.taken(data=n, remove_on_complete=Retention(count=2))
            h.complete(delivery, n)
            ids.append(delivery.job.id)
        h.until(lambda: h.states(*ids) == ["unknown", "unknown", "completed", "completed"], "two completed jobs")
        assert h.counts() == {"completed": 2}

    @rule("S-283")
    def test_completed_jobs_are_kept_by_age(self, h: Harness) -> None:
        short, long = h.push(
            "q",
            job(remove_on_complete=Retention(age_ms=2 * h.unit)),
            job(remove_on_complete=Retention(age_ms=100_000 * h.unit)),
        )
        for delivery in h.pull(count=2):
            h.complete(delivery, 1)
        if h.setup.clock is not None:
            # On a clock that goes on by itself the time may be over before the question is asked.
            assert h.state(short) == "completed"
        kept = h.taken()
        h.complete(kept)
        h.until_state(short, "unknown")
        assert h.states(long, kept.job.id) == ["completed", "completed"]

    @rule("S-283")
    def test_dead_letters_are_kept_by_number(self, h: Harness) -> None:
        ids = []
        for _ in range(3):
            delivery = h.taken(max_attempts=1, remove_on_fail=Retention(count=1))
            h.lose(delivery)
            ids.append(delivery.job.id)
        h.until(lambda: h.states(*ids) == ["unknown", "unknown", "failed"], "one dead letter")

    @rule("S-285")
    @pytest.mark.parametrize("state", ["waiting", "active", "completed", "failed"])
    def test_lines_are_logged(self, h: Harness, state: str) -> None:
        id = h.push_one(max_attempts=1)
        if state != "waiting":
            delivery = h.take()
            if state == "completed":
                h.complete(delivery)
            elif state == "failed":
                h.lose(delivery)
        h.call("add_log", id, "one", "info")
        h.call("add_log", id, "two \0 \u2713", "warn")
        assert [(line.level, line.message) for line in h.call("logs", id)] == [
            ("info", "one"),
            ("warn", "two \0 \u2713"),
        ]

    @rule("S-285")
    def test_only_known_jobs_have_a_log(self, h: Harness) -> None:
        h.refused("add_log", "never-existed", "m", "info", error=NotFound, text="Job not found")
        assert h.call("logs", "never-existed") == []

    @rule("S-285")
    def test_a_log_keeps_the_newest_lines(self, h: Harness) -> None:
        many, few = h.push("q", job(), job(keep_logs=3))
        for n in range(105):
            h.call("add_log", many, str(n), "info")
        for n in range(5):
            h.call("add_log", few, str(n), "info")
        assert [line.message for line in h.call("logs", many)] == [str(n) for n in range(5, 105)]
        assert [line.message for line in h.call("logs", few)] == ["2", "3", "4"]
        h.call("clear_logs", many, 2)
        assert [line.message for line in h.call("logs", many)] == ["103", "104"]
        h.call("clear_logs", many)
        assert h.call("logs", many) == []

    @rule("S-286")
    def test_logs_survive_a_restart_and_end_with_their_job(self, h: Harness) -> None:
        h.require("persistent")
        id = h.push_one()
        h.call("add_log", id, "one", "info")
        h.reopen()
        assert [line.message for line in h.call("logs", id)] == ["one"]
        h.call("cancel", id)
        assert h.call("logs", id) == []

    @rule("S-287")
    def test_ended_jobs_are_counted_by_the_minute(self, h: Harness) -> None:
        for _ in range(3):
            h.complete(h.taken())
        h.lose(h.taken(max_attempts=1))
        h.lose(h.taken(backoff={"type": "fixed", "delay": 100 * h.unit}))
        assert h.call("queue_metrics", "q", "completed").count == 3
        assert h.call("queue_metrics", "q", "failed").count == 1
        assert sum(h.call("queue_metrics", "q", "completed").data) == 3
        assert h.call("queue_metrics", "never-seen", "completed").count == 0

    @rule("S-288")
    def test_a_repeated_timeline_keeps_its_steps(self, h: Harness) -> None:
        done = h.taken()
        h.complete(done)
        h.call("retry_completed", "q", done.job.id)
        steps = [entry["state"] for entry in timeline_of(h.job(done.job.id).job)]
        assert steps == ["waiting", "active", "completed", "waiting"]
