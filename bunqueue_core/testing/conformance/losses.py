"""Lost connections: what becomes of the jobs that were delivered to them (rules S-180 to S-189)."""

from __future__ import annotations

import pytest

from bunqueue_core.model.requests import Ack, StallConfig
from bunqueue_core.testing.conformance.harness import Harness, ids_of, job
from bunqueue_core.testing.conformance.outcomes import not_active
from bunqueue_core.testing.conformance.rules import Kit, rule


class LossCases(Kit):
    """``release``: a connection ends, with or without an owner, renewed or not."""

    @rule("S-180")
    @pytest.mark.parametrize("owner", ["w", None])
    def test_a_lost_job_is_handed_back_uncharged(self, h: Harness, owner: str | None) -> None:
        id = h.push_one()
        h.take(owner=owner, session="s1")
        assert h.call("release", "s1") == 1
        assert h.state(id) == "waiting"
        again = h.take(owner=owner)
        assert (again.job.id, again.job.attempts, again.job.stall_count) == (id, 0, 0)

    @rule("S-180")
    def test_a_lost_job_wakes_a_waiting_pull(self, h: Harness) -> None:
        id = h.push_one()
        h.take(session="s1")
        waiting = h.park(session="s2")
        h.call("release", "s1")
        assert ids_of(h.value(waiting)) == [id]

    @rule("S-180")
    def test_the_token_of_a_lost_job_is_worth_nothing(self, h: Harness) -> None:
        h.push_one()
        delivery = h.take(session="s1")
        h.call("release", "s1")
        with pytest.raises(Exception, match="not in processing state") as caught:
            h.ack(Ack(delivery.job.id, delivery.token))
        assert str(caught.value) == not_active(delivery.job.id)

    @rule("S-181")
    def test_a_renewed_lease_is_left_alone(self, h: Harness) -> None:
        h.push("q", job(), job())
        renewed, other = h.pull(count=2, session="s1")
        assert h.extend(renewed.job.id, renewed.token)
        assert h.call("release", "s1") == 1
        assert h.states(renewed.job.id, other.job.id) == ["active", "waiting"]
        h.complete(renewed)

    @rule("S-182")
    def test_only_its_own_jobs_are_handed_back(self, h: Harness) -> None:
        h.push("q", job(), job(), job())
        (one,) = h.pull(session="s1")
        (two,) = h.pull(session="s2")
        (three,) = h.pull()
        assert h.call("release", "s1") == 1
        assert h.states(one.job.id, two.job.id, three.job.id) == ["waiting", "active", "active"]
        assert h.call("release", "s1") == 0
        assert h.call("release", "never-seen") == 0

    @rule("S-182")
    def test_finished_jobs_are_not_handed_back(self, h: Harness) -> None:
        h.push("q", job(), job(backoff={"type": "fixed", "delay": 100 * h.unit}))
        done, failed = h.pull(count=2, session="s1")
        h.complete(done)
        h.lose(failed)
        assert h.call("release", "s1") == 0
        assert h.states(done.job.id, failed.job.id) == ["completed", "delayed"]

    @rule("S-183")
    def test_its_waiting_pulls_take_nothing(self, h: Harness) -> None:
        lost = h.park(session="s1")
        h.call("release", "s1")
        id = h.push_one()
        assert h.state(id) == "waiting"
        assert h.value(lost) == []

    @rule("S-184")
    def test_a_second_loss_comes_back_later_and_behind_its_peers(self, h: Harness) -> None:
        h.require("clock")
        id = h.push_one(backoff_ms=1_000)
        self._lost(h)
        self._lost(h)
        assert h.state(id) == "delayed"
        other = h.push_one()
        h.elapse(3_600_000)
        first, second = h.pull(count=2)
        assert ids_of([first, second]) == [other, id]
        assert second.job.attempts == 0

    @rule("S-185")
    def test_the_last_loss_ends_the_job(self, h: Harness) -> None:
        h.require("clock")
        id = h.push_one(max_attempts=100)
        for _ in range(3):
            self._lost(h, "worker-7")
        assert h.state(id) == "failed"
        (entry,) = h.dead_letters()
        assert entry.reason == "stalled"
        assert entry.error is not None
        assert "worker-7" in entry.error
        assert entry.job.attempts == 0

    @rule("S-185")
    def test_the_stall_limit_of_the_queue_counts(self, h: Harness) -> None:
        h.require("clock")
        h.call("set_stall_config", "q", StallConfig(max_stalls=5))
        id = h.push_one()
        for _ in range(4):
            self._lost(h)
        assert h.state(id) == "delayed"

    @rule("S-186")
    def test_losses_are_counted_apart_from_failures(self, h: Harness) -> None:
        h.require("clock")
        id = h.push_one(max_attempts=2, backoff_ms=1_000)
        h.lose(h.take(session="s1"))
        self._lost(h)
        self._lost(h)
        assert h.state(id) == "delayed"
        h.elapse(3_600_000)
        delivery = h.take()
        assert delivery.job.attempts == 1
        h.complete(delivery)
        assert h.state(id) == "completed"

    def _lost(self, h: Harness, owner: str = "w") -> None:
        """Deliver the only job to a connection, waiting for it if need be, and lose that connection."""
        h.take(owner=owner, session="s1")
        assert h.call("release", "s1") == 1
