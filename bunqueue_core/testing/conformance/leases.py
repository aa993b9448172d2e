"""Leases: who may finish a job, until when, and what happens after (rules S-050 to S-069)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue_core.model.errors import LeaseLost
from bunqueue_core.model.requests import Ack, Delivery, Failure, Renewal, StallConfig
from bunqueue_core.testing.conformance.harness import Harness, ids_of
from bunqueue_core.testing.conformance.rules import Kit, rule


class LeaseCases(Kit):
    """Tokens, renewal, expiry and silence."""

    # -- tokens -------------------------------------------------------------------------------------------------------

    @rule("S-050")
    @pytest.mark.parametrize("token", [None, "", "whatever"])
    def test_a_job_without_a_lease_takes_any_token(self, h: Harness, token: str | None) -> None:
        id = h.push_one()
        h.take(owner=None)
        assert h.ack(Ack(id, token)) == ["applied"]
        assert h.state(id) == "completed"

    @rule("S-051")
    @pytest.mark.parametrize("token", [None, ""])
    def test_a_leased_job_needs_its_token(self, h: Harness, token: str | None) -> None:
        id = h.taken().job.id
        text = f"Lock token required for job {id}"
        h.refused("ack", [Ack(id, token)], error=LeaseLost, text=text)
        h.refused("fail", [Failure(id, "e", token)], error=LeaseLost, text=text)
        assert h.state(id) == "active"

    @rule("S-052")
    def test_another_token_is_refused(self, h: Harness) -> None:
        id = h.taken().job.id
        text = f"Invalid or expired lock token for job {id}"
        h.refused("ack", [Ack(id, "wrong")], error=LeaseLost, text=text)
        h.refused("fail", [Failure(id, "e", "wrong")], error=LeaseLost, text=text)
        assert h.state(id) == "active"

    @rule("S-052")
    def test_the_token_of_an_earlier_delivery_is_refused(self, h: Harness) -> None:
        first = h.taken(backoff_ms=0)
        h.lose(first)
        second = h.take()
        assert second.job.id == first.job.id
        assert second.token != first.token
        text = f"Invalid or expired lock token for job {first.job.id}"
        h.refused("ack", [Ack(first.job.id, first.token)], error=LeaseLost, text=text)
        h.complete(second)

    @rule("S-053")
    def test_an_expired_lease_still_acknowledges(self, h: Harness) -> None:
        h.require("clock")
        delivery = self._taken_for(h, h.unit)
        assert h.setup.clock is not None
        # Only the clock moves: nothing has noticed yet that the lease is over.
        h.setup.clock.advance(2 * h.unit)
        h.complete(delivery, "late")
        assert h.state(delivery.job.id) == "completed"

    # -- renewal ------------------------------------------------------------------------------------------------------

    @rule("S-054")
    def test_a_renewed_lease_holds_on(self, h: Harness) -> None:
        delivery = self._taken_for(h, 4 * h.unit)
        for _ in range(4):
            h.elapse(1.5 * h.unit)
            assert h.extend(delivery.job.id, delivery.token)
        assert h.state(delivery.job.id) == "active"
        h.complete(delivery)

    @rule("S-054")
    def test_a_lease_is_renewed_for_a_duration(self, h: Harness) -> None:
        delivery = self._taken_for(h, 2 * h.unit)
        assert h.extend(delivery.job.id, delivery.token, 100 * h.unit)
        h.elapse(2.5 * h.unit)
        assert h.state(delivery.job.id) == "active"
        h.complete(delivery)

    @rule("S-055")
    def test_a_wrong_token_renews_nothing(self, h: Harness) -> None:
        delivery = h.taken()
        assert not h.extend(delivery.job.id, "wrong")
        assert h.extend(delivery.job.id, delivery.token)

    @rule("S-055")
    def test_without_a_token_the_lease_there_is_gets_renewed(self, h: Harness) -> None:
        delivery = h.taken()
        assert h.extend(delivery.job.id, None, 60_000)
        h.complete(delivery)

    @rule("S-055")
    def test_what_has_no_lease_cannot_be_renewed(self, h: Harness) -> None:
        waiting = h.push_one("w")
        h.push_one()
        unleased = h.take(owner=None).job.id
        done = h.taken("d")
        h.complete(done)
        for id in (waiting, unleased, done.job.id, "never-existed"):
            assert not h.extend(id, "t")
            assert not h.extend(id)

    @rule("S-056")
    def test_renewals_come_in_bulk(self, h: Harness) -> None:
        one, two = h.taken(), h.taken()
        renewals = [Renewal(one.job.id, one.token), Renewal(two.job.id, "wrong"), Renewal("never-existed", "t")]
        assert h.call("extend", renewals) == [True, False, False]
        assert h.call("extend", []) == []

    @rule("S-057")
    def test_an_expired_lease_cannot_be_renewed(self, h: Harness) -> None:
        h.require("clock")
        delivery = self._taken_for(h, h.unit)
        assert h.setup.clock is not None
        h.setup.clock.advance(2 * h.unit)
        assert not h.extend(delivery.job.id, delivery.token)

    @rule("S-058")
    def test_a_heartbeat_with_the_token_renews(self, h: Harness) -> None:
        delivery = self._taken_for(h, 4 * h.unit)
        for _ in range(3):
            h.elapse(2 * h.unit)
            assert h.call("heartbeat", [Renewal(delivery.job.id, delivery.token)]) == [True]
        assert h.state(delivery.job.id) == "active"

    @rule("S-058")
    def test_a_heartbeat_without_a_token_does_not_renew(self, h: Harness) -> None:
        delivery = self._taken_for(h, 3 * h.unit)
        assert h.call("heartbeat", [Renewal(delivery.job.id)]) == [True]
        h.elapse(2 * h.unit)
        assert h.call("heartbeat", [Renewal(delivery.job.id)]) == [True]
        h.until(lambda: h.state(delivery.job.id) != "active", "an end of the lease")

    @rule("S-058")
    def test_heartbeats_of_what_is_not_active(self, h: Harness) -> None:
        delivery = h.taken()
        waiting = h.push_one()
        beats = [
            Renewal(delivery.job.id, "wrong"),
            Renewal(waiting),
            Renewal("never-existed"),
            Renewal(delivery.job.id),
        ]
        assert h.call("heartbeat", beats) == [False, False, False, True]

    # -- expiry -------------------------------------------------------------------------------------------------------

    @rule("S-060")
    def test_a_job_whose_lease_expired_is_delivered_again(self, h: Harness) -> None:
        first = self._taken_for(h, h.unit)
        h.until_state(first.job.id, "waiting", "delayed")
        second = h.take()
        assert second.job.id == first.job.id
        assert (second.job.attempts, second.job.stall_count) == (1, 1)
        assert second.token != first.token
        h.refused("ack", [Ack(first.job.id, first.token)], error=LeaseLost)
        h.complete(second)

    @rule("S-060")
    def test_an_expired_lease_wakes_a_waiting_pull(self, h: Harness) -> None:
        first = self._taken_for(h, h.unit)
        waiting = h.park(owner="other", wait_ms=600_000)
        h.until(lambda: h.state(first.job.id) == "active" and not h.is_waiting(waiting), "a second delivery")
        assert ids_of(h.value(waiting)) == [first.job.id]

    @rule("S-061")
    def test_an_expired_lease_means_no_backoff(self, h: Harness) -> None:
        first = self._taken_for(h, h.unit, backoff={"type": "fixed", "delay": 10_000 * h.unit})
        h.until_state(first.job.id, "waiting")

    @rule("S-062")
    def test_a_lease_that_expires_at_the_last_attempt_ends_the_job(self, h: Harness) -> None:
        delivery = self._taken_for(h, h.unit, max_attempts=1)
        h.until_state(delivery.job.id, "failed")
        (entry,) = h.dead_letters()
        assert (entry.reason, entry.error) == ("max_attempts_exceeded", "Lock expired at max attempts (1)")
        assert entry.job.attempts == 1

    @rule("S-062")
    def test_the_third_expired_lease_ends_the_job(self, h: Harness) -> None:
        h.require("clock")
        id = h.push_one(max_attempts=100)
        for _ in range(3):
            h.take(lock_ttl_ms=h.unit)
            h.until(lambda: h.state(id) != "active", "an end of the lease")
        assert h.state(id) == "failed"
        (entry,) = h.dead_letters()
        assert (entry.reason, entry.error) == ("stalled", "Lock expired after 0 renewals")
        assert (entry.job.attempts, entry.job.stall_count) == (3, 3)
        assert [attempt["reason"] for attempt in entry.attempts] == ["stalled", "stalled", "stalled"]

    @rule("S-063")
    def test_a_lease_of_no_length_ends_at_once(self, h: Harness) -> None:
        h.push_one()
        delivery = h.take(lock_ttl_ms=0)
        h.until_state(delivery.job.id, "waiting")

    # -- silence ------------------------------------------------------------------------------------------------------

    @rule("S-065")
    def test_a_silent_job_without_a_lease_stalls(self, h: Harness) -> None:
        h.require("clock")
        h.call("set_stall_config", "q", StallConfig(True, 10_000, 3, 1_000))
        id = h.push_one(backoff={"type": "fixed", "delay": 1_000})
        h.take(owner=None)
        h.elapse(9_000)
        assert h.state(id) == "active"
        h.until(lambda: h.state(id) != "active", "a stall")
        again = h.take(owner=None)
        assert (again.job.attempts, again.job.stall_count) == (1, 1)

    @rule("S-065")
    def test_a_heartbeat_keeps_a_job_from_stalling(self, h: Harness) -> None:
        h.require("clock")
        h.call("set_stall_config", "q", StallConfig(True, 10_000, 3, 1_000))
        id = h.push_one()
        h.take(owner=None)
        for _ in range(6):
            h.elapse(8_000)
            assert h.call("heartbeat", [Renewal(id)]) == [True]
        assert h.state(id) == "active"

    @rule("S-065")
    def test_stall_detection_can_be_switched_off(self, h: Harness) -> None:
        h.require("clock")
        h.call("set_stall_config", "q", StallConfig(False, 10_000, 3, 1_000))
        id = h.push_one()
        h.take(owner=None)
        h.elapse(600_000)
        assert h.state(id) == "active"

    @rule("S-066")
    def test_the_last_stall_ends_the_job(self, h: Harness) -> None:
        h.require("clock")
        h.call("set_stall_config", "q", StallConfig(True, 10_000, 2, 1_000))
        id = h.push_one(max_attempts=100, backoff_ms=0)
        for _ in range(2):
            h.take(owner=None)
            h.until(lambda: h.state(id) != "active", "a stall")
        (entry,) = h.dead_letters()
        assert (entry.reason, entry.error) == ("stalled", "Job stalled 2 times")

    @rule("S-067")
    def test_an_acknowledged_job_does_not_expire(self, h: Harness) -> None:
        delivery = self._taken_for(h, h.unit)
        h.complete(delivery, 1)
        h.elapse(3 * h.unit)
        assert h.state(delivery.job.id) == "completed"
        assert h.counts() == {"completed": 1}

    def _taken_for(self, h: Harness, ttl_ms: int, **settings: Any) -> Delivery:
        h.push_one(**settings)
        return h.take(lock_ttl_ms=ttl_ms)
