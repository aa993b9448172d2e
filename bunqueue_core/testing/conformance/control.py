"""Pausing a queue, and dead letters (rules S-150 to S-179)."""

from __future__ import annotations

from bunqueue_core.model.job import timeline_of
from bunqueue_core.model.requests import Counts, DlqConfig, DlqFilter, Page, StallConfig
from bunqueue_core.testing.conformance.harness import Harness, ids_of, job, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


class PauseCases(Kit):
    """Pause and resume."""

    @rule("S-150")
    def test_a_paused_queue_delivers_nothing(self, h: Harness) -> None:
        h.push_one()
        h.call("pause", "q")
        assert h.call("is_paused", "q") is True
        assert h.pull() == []
        assert h.call("is_paused", "other") is False

    @rule("S-150")
    def test_a_resumed_queue_delivers(self, h: Harness) -> None:
        id = h.push_one()
        h.call("pause", "q")
        h.call("resume", "q")
        assert h.call("is_paused", "q") is False
        assert ids_of(h.pull()) == [id]

    @rule("S-150")
    def test_pausing_and_resuming_twice_is_fine(self, h: Harness) -> None:
        for verb in ("pause", "pause", "resume", "resume"):
            h.call(verb, "q")
        assert h.call("is_paused", "q") is False

    @rule("S-151")
    def test_a_paused_queue_takes_jobs_and_outcomes(self, h: Harness) -> None:
        active = h.taken()
        h.call("pause", "q")
        h.push("q", job(1), job(2, priority=1), job(3, delay=100 * h.unit))
        h.complete(active)
        assert h.call("counts", "q") == Counts(delayed=1, completed=1, paused=2)

    @rule("S-152")
    def test_ready_jobs_of_a_paused_queue_count_as_paused(self, h: Harness) -> None:
        plain, urgent, late = h.push("q", job(), job(priority=1), job(delay=100 * h.unit))
        h.call("pause", "q")
        assert h.call("counts", "q") == Counts(paused=2, delayed=1)
        assert h.states(plain, urgent, late) == ["waiting", "prioritized", "delayed"]
        listed = {state: [v.job.id for v in h.call("jobs", "q", (state,), Page())] for state in ("paused", "waiting")}
        assert listed == {"paused": [plain, urgent], "waiting": []}

    @rule("S-153")
    def test_a_push_to_a_paused_queue_wakes_nobody(self, h: Harness) -> None:
        h.call("pause", "q")
        waiting = h.park()
        h.push_one()
        assert h.is_waiting(waiting)

    @rule("S-153")
    def test_resuming_wakes_every_waiting_pull(self, h: Harness) -> None:
        h.call("pause", "q")
        first, second = h.park(owner="one"), h.park(owner="two")
        ids = h.push("q", job(), job())
        h.call("resume", "q")
        assert ids_of([*h.value(first), *h.value(second)]) == ids


class DeadLetterCases(Kit):
    """The dead-letter queue's basic path."""

    @rule("S-160")
    def test_an_entry_in_full(self, h: Harness) -> None:
        h.push_one("q", {"v": 1}, max_attempts=2, backoff_ms=0)
        h.lose(h.take(), "first")
        h.lose(h.take(), "second", stack=["at one"])
        (entry,) = h.dead_letters()
        assert unpack(entry.job.data) == {"v": 1}
        assert (entry.reason, entry.error, entry.retry_count) == ("max_attempts_exceeded", "second", 0)
        assert (entry.job.attempts, entry.job.stacktrace) == (2, ["at one"])
        records = [(record["attempt"], record["reason"], record["error"]) for record in entry.attempts]
        assert records == [(1, "explicit_fail", "first"), (2, "max_attempts_exceeded", "second")]
        assert (entry.last_retry_at, entry.next_retry_at) == (None, None)
        assert entry.expires_at == entry.entered_at + 604_800_000

    @rule("S-160")
    def test_an_unrecoverable_job_counts_as_exhausted(self, h: Harness) -> None:
        h.lose(h.taken(max_attempts=5), "boom", unrecoverable=True)
        (entry,) = h.dead_letters()
        assert (entry.reason, entry.error, len(entry.attempts)) == ("max_attempts_exceeded", "boom", 1)

    @rule("S-161")
    def test_entries_are_listed_in_order_of_arrival(self, h: Harness) -> None:
        ids = self._dead(h, 4)
        assert [entry.job.id for entry in h.dead_letters()] == ids
        assert [entry.job.id for entry in h.call("dead_letters", "q", 2, None)] == ids[:2]
        assert h.call("dead_letters", "q", 0, None) == []
        assert h.dead_letters("never-seen") == []

    @rule("S-162")
    def test_filters(self, h: Harness) -> None:
        ids = self._dead(h, 3)
        entered = [entry.entered_at for entry in h.dead_letters()]

        def found(**filter: object) -> list[str]:
            return [e.job.id for e in h.call("dead_letters", "q", None, DlqFilter(**filter))]  # type: ignore[arg-type]

        assert found(reason="max_attempts_exceeded") == ids
        assert found(reason="timeout") == []
        assert found(older_than=entered[0] - 1) == []
        assert found(newer_than=entered[0]) == ids
        assert found(offset=1, limit=1) == [ids[1]]
        assert found(expired=True) == []
        assert found(retriable=True) == []

    @rule("S-163")
    def test_a_retried_dead_letter_starts_afresh(self, h: Harness) -> None:
        (id,) = self._dead(h, 1)
        assert h.call("retry_dead_letters", "q") == 1
        assert h.state(id) == "waiting"
        assert h.dead_letters() == []
        delivery = h.take()
        assert (delivery.job.id, delivery.job.attempts, delivery.job.stall_count) == (id, 0, 0)
        assert timeline_of(delivery.job)[-2]["state"] == "waiting"
        h.complete(delivery)

    @rule("S-163")
    def test_a_retried_job_that_dies_again_has_only_its_new_attempts(self, h: Harness) -> None:
        (id,) = self._dead(h, 1)
        h.call("retry_dead_letters", "q")
        h.lose(h.take(), "again")
        (entry,) = h.dead_letters()
        assert (entry.job.id, entry.error) == (id, "again")
        assert [record["error"] for record in entry.attempts] == ["again"]

    @rule("S-164")
    def test_one_dead_letter_is_retried(self, h: Harness) -> None:
        ids = self._dead(h, 3)
        assert h.call("retry_dead_letters", "q", ids[1]) == 1
        assert h.states(*ids) == ["failed", "waiting", "failed"]
        assert h.call("retry_dead_letters", "q", ids[1]) == 0
        assert h.call("retry_dead_letters", "q", "never-existed") == 0

    @rule("S-164")
    def test_some_dead_letters_are_retried(self, h: Harness) -> None:
        ids = self._dead(h, 3)
        assert h.call("retry_dead_letters", "q", None, 2) == 2
        assert h.states(*ids) == ["waiting", "waiting", "failed"]
        assert h.call("retry_dead_letters", "q", None, None, DlqFilter(reason="timeout")) == 0
        assert h.call("retry_dead_letters", "q", None, None, DlqFilter(reason="max_attempts_exceeded")) == 1

    @rule("S-165")
    def test_a_retried_dead_letter_wakes_a_waiting_pull(self, h: Harness) -> None:
        (id,) = self._dead(h, 1)
        waiting = h.park()
        h.call("retry_dead_letters", "q")
        assert ids_of(h.value(waiting)) == [id]

    @rule("S-166")
    def test_a_dead_letter_is_removed(self, h: Harness) -> None:
        ids = self._dead(h, 2)
        assert h.call("remove_dead_letter", "q", ids[0]) is True
        assert h.call("remove_dead_letter", "q", ids[0]) is False
        assert h.states(*ids) == ["unknown", "failed"]

    @rule("S-166")
    def test_dead_letters_are_purged(self, h: Harness) -> None:
        ids = self._dead(h, 3)
        h.lose(h.taken("other", max_attempts=1))
        assert h.call("purge_dead_letters", "q") == 3
        assert h.call("purge_dead_letters", "q") == 0
        assert h.states(*ids) == ["unknown"] * 3
        assert h.counts("other") == {"failed": 1}

    @rule("S-167")
    def test_policies_have_defaults_and_can_be_set(self, h: Harness) -> None:
        assert h.call("dlq_config", "q") == DlqConfig()
        assert h.call("stall_config", "q") == StallConfig()
        dlq, stall = DlqConfig(max_age_ms=None, max_entries=5), StallConfig(True, 1_000, 9, 10)
        h.call("set_dlq_config", "q", dlq)
        h.call("set_stall_config", "q", stall)
        assert h.call("dlq_config", "q") == dlq
        assert h.call("stall_config", "q") == stall
        assert h.call("dlq_config", "other") == DlqConfig()

    @rule("S-168")
    def test_the_oldest_entries_make_room(self, h: Harness) -> None:
        h.call("set_dlq_config", "q", DlqConfig(max_entries=2))
        ids = self._dead(h, 4)
        assert [entry.job.id for entry in h.dead_letters()] == ids[2:]
        assert h.states(*ids) == ["unknown", "unknown", "failed", "failed"]

    @rule("S-168")
    def test_a_lower_bound_takes_effect_at_once(self, h: Harness) -> None:
        ids = self._dead(h, 3)
        h.call("set_dlq_config", "q", DlqConfig(max_entries=1))
        assert [entry.job.id for entry in h.dead_letters()] == ids[2:]

    @rule("S-169")
    def test_entries_expire(self, h: Harness) -> None:
        h.require("clock")
        h.call("set_dlq_config", "q", DlqConfig(max_age_ms=60_000))
        (id,) = self._dead(h, 1)
        h.elapse(59_000)
        assert h.state(id) == "failed"
        h.until_state(id, "unknown")
        assert h.counts() == {}

    @rule("S-170")
    def test_auto_retry_comes_back_by_itself(self, h: Harness) -> None:
        h.require("clock")
        h.call("set_dlq_config", "q", DlqConfig(auto_retry=True, auto_retry_interval_ms=60_000, max_auto_retries=1))
        (id,) = self._dead(h, 1)
        (entry,) = h.dead_letters()
        assert entry.next_retry_at == entry.entered_at + 60_000
        h.until_state(id, "waiting")
        h.lose(h.take(), "again")
        (again,) = h.dead_letters()
        assert (again.entered_at, again.retry_count, again.next_retry_at) == (entry.entered_at, 1, None)
        assert [record["error"] for record in again.attempts] == ["boom", "again"]

    def _dead(self, h: Harness, count: int) -> list[str]:
        ids = h.push("q", *(job(n, max_attempts=1) for n in range(count)))
        for delivery in h.pull(count=count):
            h.lose(delivery)
        return ids
