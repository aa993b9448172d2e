"""Limits of queues and groups, and the order of groups (rules S-360 to S-399)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue_core.model.errors import Conflict
from bunqueue_core.model.requests import Delivery, GroupDefaults
from bunqueue_core.testing.conformance.harness import Harness, ids_of, job, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


def data_of(deliveries: list[Delivery]) -> list[Any]:
    """Data of deliveries, in order."""
    return [unpack(delivery.job.data) for delivery in deliveries]


class LimitCases(Kit):
    """Rate and concurrency of a queue."""

    @rule("S-360")
    def test_no_more_jobs_are_active_than_the_limit(self, h: Harness) -> None:
        h.call("set_concurrency", "q", 2)
        h.push("q", *(job(n) for n in range(4)))
        first = h.pull(count=4)
        assert data_of(first) == [0, 1]
        assert h.pull() == []
        h.complete(first[0])
        assert data_of(h.pull(count=4)) == [2]

    @rule("S-360")
    def test_a_freed_slot_wakes_a_waiting_pull(self, h: Harness) -> None:
        h.call("set_concurrency", "q", 1)
        h.push("q", job("a"), job("b"))
        first = h.take()
        waiting = h.park()
        h.complete(first)
        assert data_of(h.value(waiting)) == ["b"]

    @rule("S-360")
    def test_a_raised_and_a_cleared_limit_wake_waiting_pulls(self, h: Harness) -> None:
        h.call("set_concurrency", "q", 1)
        h.push("q", job("a"), job("b"), job("c"))
        h.take()
        first, second = h.park(owner="one"), h.park(owner="two")
        h.call("set_concurrency", "q", 2)
        assert data_of(h.value(first)) == ["b"]
        assert h.is_waiting(second)
        h.call("clear_concurrency", "q")
        assert data_of(h.value(second)) == ["c"]

    @rule("S-361")
    def test_a_rate_lets_a_burst_through_and_then_one_at_a_time(self, h: Harness) -> None:
        h.require("clock")
        h.call("set_rate_limit", "q", 3, 3_000)
        h.push("q", *(job(n) for n in range(6)))
        assert data_of(h.pull(count=10)) == [0, 1, 2]
        h.elapse(900)
        assert h.pull() == []
        h.elapse(200)
        assert data_of(h.pull(count=10)) == [3]
        h.elapse(2_500)
        assert data_of(h.pull(count=10)) == [4, 5]

    @rule("S-361")
    def test_a_token_that_comes_wakes_a_waiting_pull(self, h: Harness) -> None:
        h.call("set_rate_limit", "q", 1, 2 * h.unit)
        h.push("q", job("a"), job("b"))
        h.take()
        waiting = h.park()
        h.elapse(2.5 * h.unit)
        assert data_of(h.value(waiting)) == ["b"]

    @rule("S-361")
    def test_a_cleared_rate_is_no_rate(self, h: Harness) -> None:
        h.call("set_rate_limit", "q", 1, 1_000_000)
        h.push("q", job("a"), job("b"))
        h.take()
        assert h.pull() == []
        waiting = h.park()
        h.call("clear_rate_limit", "q")
        assert data_of(h.value(waiting)) == ["b"]

    @rule("S-361")
    def test_a_temporary_rate_ends_by_itself(self, h: Harness) -> None:
        h.call("set_rate_limit", "q", 1, 1_000_000, 2 * h.unit)
        h.push("q", job("a"), job("b"))
        h.take()
        assert h.pull() == []
        h.elapse(2.5 * h.unit)
        assert data_of(h.pull()) == ["b"]

    @rule("S-362")
    def test_limits_are_shown(self, h: Harness) -> None:
        limits = h.call("queue_limits", "q")
        assert (limits.rate_max, limits.rate_ttl_ms, limits.concurrency, limits.maxed) == (None, -2, None, False)
        h.call("set_rate_limit", "q", 5, 2_000)
        h.call("set_concurrency", "q", 1)
        h.taken()
        limits = h.call("queue_limits", "q")
        assert (limits.rate_max, limits.rate_duration_ms, limits.concurrency, limits.maxed) == (5, 2_000, 1, True)

    @rule("S-362")
    @pytest.mark.parametrize("limit", [0.5, 5e-324, float(2**53 - 1)])
    def test_odd_limits_are_shown(self, h: Harness, limit: float) -> None:
        h.call("set_rate_limit", "q", limit, 2**53 - 1)
        h.call("set_concurrency", "q", limit)
        limits = h.call("queue_limits", "q")
        assert (limits.rate_max, limits.rate_duration_ms, limits.concurrency) == (limit, 2**53 - 1, limit)
        assert 0 <= limits.rate_ttl_ms <= 2**53 - 1

    @rule("S-363")
    def test_limits_are_of_one_queue(self, h: Harness) -> None:
        h.call("set_concurrency", "q", 0)
        h.call("set_rate_limit", "r", 0)
        for name in ("q", "r", "s"):
            h.push(name, job())
        assert [len(h.pull(name)) for name in ("q", "r", "s")] == [0, 0, 1]

    @rule("S-364")
    def test_limits_survive_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        h.call("set_concurrency", "q", 1)
        h.call("set_rate_limit", "r", 1, 1_000_000)
        h.push("q", job(), job())
        h.push("r", job(), job())
        h.reopen()
        assert [len(h.pull(name, 5)) for name in ("q", "r")] == [1, 1]
        assert h.call("queue_limits", "q").concurrency == 1
        assert h.call("queue_limits", "r").rate_max == 1

    @rule("S-365")
    def test_a_restart_refills_nothing(self, h: Harness) -> None:
        h.require("persistent")
        h.call("set_rate_limit", "q", 2, 10_000_000)
        h.push("q", *(job(n) for n in range(4)))
        assert data_of(h.pull()) == [0]
        h.complete(h.pull()[0])
        h.reopen()
        assert h.pull(count=5) == []
        h.call("clear_rate_limit", "q")
        h.call("set_rate_limit", "q", 1, 10_000_000)
        h.reopen()
        assert len(h.pull(count=5)) == 1


class GroupCases(Kit):
    """Rotation of groups, their limits and pauses."""

    def _push(self, h: Harness, *names: str, **settings: Any) -> list[str]:
        """Push jobs named ``A0``: group and number; ``u0`` has no group."""
        return h.push("q", *(job(name, group_id=None if name[0] == "u" else name[0], **settings) for name in names))

    @rule("S-370")
    def test_groups_take_turns_after_ungrouped_jobs(self, h: Harness) -> None:
        self._push(h, "A0", "B0", "C0", "A1", "B1", "C1", "u0")
        assert h.drain_order() == ["u0", "A0", "B0", "C0", "A1", "B1", "C1"]

    @rule("S-370")
    def test_a_large_group_does_not_hold_up_others(self, h: Harness) -> None:
        self._push(h, "A0", "A1", "A2", "B0", "C0")
        assert h.drain_order() == ["A0", "B0", "C0", "A1", "A2"]

    @rule("S-370")
    def test_a_new_group_joins_at_the_tail(self, h: Harness) -> None:
        self._push(h, "A0", "B0", "A1", "B1", "A2", "B2")
        assert data_of(h.pull()) == ["A0"]
        self._push(h, "C0")
        assert h.drain_order() == ["B0", "A1", "C0", "B1", "A2", "B2"]

    @rule("S-371")
    def test_inside_a_group_the_lower_priority_number_goes_first(self, h: Harness) -> None:
        h.push("q", *(job(name, group_id="A", priority=p) for name, p in (("five", 5), ("one", 1), ("zero", 0))))
        h.push("q", job("last in", group_id="A", lifo=True))
        assert h.drain_order() == ["zero", "last in", "one", "five"]

    @rule("S-371")
    def test_a_retried_job_regains_its_place(self, h: Harness) -> None:
        self._push(h, "A0", "A1", backoff_ms=0)
        h.lose(h.take())
        assert h.drain_order() == ["A0", "A1"]

    @rule("S-372")
    def test_a_paused_group_is_skipped(self, h: Harness) -> None:
        self._push(h, "A0", "B0", "A1")
        assert h.call("pause_group", "q", "A") is True
        assert h.call("pause_group", "q", "A") is False
        assert h.call("is_group_paused", "q", "A") is True
        assert h.drain_order() == ["B0"]
        waiting = h.park()
        assert h.call("resume_group", "q", "A") is True
        assert data_of(h.value(waiting)) == ["A0"]
        assert h.call("is_group_paused", "q", "A") is False

    @rule("S-373")
    def test_a_worker_bounds_the_active_jobs_of_each_group(self, h: Harness) -> None:
        self._push(h, "A0", "A1", "A2", "B0", "B1", "B2", "u0")
        defaults = GroupDefaults(concurrency=2)
        first = h.pull(count=10, group=defaults)
        assert data_of(first) == ["u0", "A0", "B0", "A1", "B1"]
        assert h.pull(group=defaults) == []
        waiting = h.park(group=defaults)
        h.complete(first[1])
        assert data_of(h.value(waiting)) == ["A2"]

    @rule("S-373")
    def test_a_groups_own_bound_counts_where_the_worker_gives_one(self, h: Harness) -> None:
        h.call("set_group_concurrency", "q", "A", 1)
        assert h.call("group_concurrency", "q", "A") == 1
        self._push(h, "A0", "A1", "A2")
        assert data_of(h.pull(count=3, group=GroupDefaults(concurrency=3))) == ["A0"]
        assert data_of(h.pull()) == ["A1"]
        assert h.call("remove_group_concurrency", "q", "A") is True
        assert h.call("remove_group_concurrency", "q", "A") is False
        assert h.call("group_concurrency", "q", "A") is None

    @rule("S-374")
    def test_a_worker_bounds_the_rate_of_each_group(self, h: Harness) -> None:
        self._push(h, "A0", "A1", "A2", "B0")
        defaults = GroupDefaults(limit_max=1, limit_duration_ms=2 * h.unit)
        assert data_of(h.pull(count=10, group=defaults)) == ["A0", "B0"]
        assert h.pull(group=defaults) == []
        assert 0 < h.call("group_rate_limit_ttl", "q", "A") <= 2 * h.unit
        waiting = h.park(group=defaults)
        h.elapse(2.5 * h.unit)
        assert data_of(h.value(waiting)) == ["A1"]

    @rule("S-374")
    def test_a_groups_own_rate_counts_where_the_worker_gives_one(self, h: Harness) -> None:
        h.call("set_group_rate_limit", "q", "A", 2, 1_000_000)
        assert h.call("group_rate_limit", "q", "A") == (2, 1_000_000)
        self._push(h, "A0", "A1", "A2", "A3")
        defaults = GroupDefaults(limit_max=1, limit_duration_ms=1_000_000)
        assert data_of(h.pull(count=10, group=defaults)) == ["A0", "A1"]
        assert data_of(h.pull()) == ["A2"]
        assert h.call("remove_group_rate_limit", "q", "A") is True
        assert h.call("group_rate_limit", "q", "A") is None

    @rule("S-375")
    def test_a_group_is_held_back_until_a_time(self, h: Harness) -> None:
        self._push(h, "A0", "B0")
        h.call("rate_limit_group", "q", "A", 2 * h.unit)
        assert 0 < h.call("group_rate_limit_ttl", "q", "A") <= 2 * h.unit
        assert h.drain_order() == ["B0"]
        waiting = h.park()
        h.elapse(2.5 * h.unit)
        assert data_of(h.value(waiting)) == ["A0"]
        assert h.call("group_rate_limit_ttl", "q", "A") == -2

    @rule("S-376")
    def test_a_pull_may_be_for_one_group_or_for_none(self, h: Harness) -> None:
        self._push(h, "A0", "B0", "u0", "A1")
        assert data_of(h.pull(count=9, group=GroupDefaults(affine=True, affinity="A"))) == ["A0", "A1"]
        assert data_of(h.pull(count=9, group=GroupDefaults(affine=True, affinity=None))) == ["u0"]
        assert h.pull(count=9, group=GroupDefaults(affine=True, affinity="C")) == []
        assert h.drain_order() == ["B0"]

    @rule("S-377")
    def test_a_full_group_takes_no_more(self, h: Harness) -> None:
        h.push("q", job(1, group_id="A", group_max_size=2), job(2, group_id="A", group_max_size=2))
        text = "Group A has reached its maximum size of 2"
        batch = [job("ok"), job(3, group_id="A", group_max_size=2)]
        h.refused("push", "q", batch, error=Conflict, text=text)
        assert h.counts() == {"waiting": 2}
        h.take()
        assert h.call("push", "q", batch).outcomes == ["created", "created"]

    @rule("S-378")
    def test_groups_are_counted(self, h: Harness) -> None:
        self._push(h, "A0", "A1", "B0", "u0")
        h.push("q", job(group_id="A", delay=100 * h.unit))
        assert h.call("group_jobs_count", "q", "A") == 3
        assert h.call("group_jobs_count", "q", None) == 4
        assert h.call("group_active_count", "q", "A") == 0
        h.pull(count=2)
        assert h.call("group_active_count", "q", "A") == 1
        assert h.call("group_jobs_count", "q", "A") == 2
        assert h.call("group_jobs_count", "q", "none") == 0

    @rule("S-379")
    def test_policies_and_places_survive_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        h.call("pause_group", "q", "P")
        h.call("set_group_concurrency", "q", "A", 1)
        h.call("set_group_rate_limit", "q", "B", 2, 3_000)
        self._push(h, "A0", "A1", "P0")
        h.reopen()
        assert h.call("is_group_paused", "q", "P") is True
        assert h.call("group_concurrency", "q", "A") == 1
        assert h.call("group_rate_limit", "q", "B") == (2, 3_000)
        assert h.drain_order() == ["A0", "A1"]

    @rule("S-365")
    def test_a_restart_opens_no_window_and_no_held_group(self, h: Harness) -> None:
        h.require("persistent")
        defaults = GroupDefaults(limit_max=2, limit_duration_ms=10_000_000)
        self._push(h, "A0", "A1", "A2", "B0", "C0")
        h.call("rate_limit_group", "q", "C", 10_000_000)
        for delivery in h.pull(count=5, group=defaults):
            h.complete(delivery)
        h.reopen()
        assert h.pull(count=5, group=defaults) == []
        assert h.call("group_rate_limit_ttl", "q", "A") > 0
        assert h.call("group_rate_limit_ttl", "q", "C") > 0
        self._push(h, "B1", "B2")
        assert data_of(h.pull(count=5, group=defaults)) == ["B1"]

    @rule("S-379")
    def test_a_groups_active_jobs_end_with_their_broker(self, h: Harness) -> None:
        h.require("persistent")
        ids = self._push(h, "A0", "A1")
        defaults = GroupDefaults(concurrency=1)
        assert ids_of(h.pull(group=defaults)) == ids[:1]
        h.reopen()
        assert h.call("group_active_count", "q", "A") == 0
        assert ids_of(h.pull(group=defaults)) == ids[:1]
