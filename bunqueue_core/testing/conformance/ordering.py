"""The order of delivery inside a queue (rules S-020 to S-029)."""

from __future__ import annotations

from bunqueue_core.testing.conformance.harness import Harness, job, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


class OrderingCases(Kit):
    """Priority, last-in-first-out, run time, and what a delay or a retry makes of them."""

    @rule("S-020")
    def test_first_in_first_out(self, h: Harness) -> None:
        for n in range(6):
            h.push_one(data=n)
        assert [unpack(h.take().job.data) for _ in range(6)] == list(range(6))

    @rule("S-021")
    def test_higher_priority_first(self, h: Harness) -> None:
        h.push("q", *(job(p, priority=p) for p in (0, 5, -3, 10, 5)))
        assert h.drain_order() == [10, 5, 5, 0, -3]

    @rule("S-021")
    def test_a_late_urgent_job_overtakes(self, h: Harness) -> None:
        h.push("q", job("a"), job("b"))
        h.push("q", job("urgent", priority=1))
        assert [unpack(d.job.data) for d in h.pull(count=2)] == ["urgent", "a"]

    @rule("S-022")
    def test_last_in_first_out_goes_ahead_within_a_priority(self, h: Harness) -> None:
        h.push("q", job("a"), job("l1", lifo=True), job("b"), job("l2", lifo=True), job("p", priority=1))
        assert h.drain_order() == ["p", "l2", "l1", "a", "b"]

    @rule("S-023")
    def test_an_older_timestamp_goes_ahead(self, h: Harness) -> None:
        h.push("q", job("new"), job("old", timestamp=1_000), job("older", timestamp=500))
        assert h.drain_order() == ["older", "old", "new"]

    @rule("S-020", "S-021", "S-022", "S-023")
    def test_all_rules_of_order_together(self, h: Harness) -> None:
        h.push(
            "q",
            job("a"),
            job("p5", priority=5),
            job("neg", priority=-1),
            job("l1", lifo=True),
            job("b"),
            job("l2", lifo=True),
            job("p5l", priority=5, lifo=True),
            job("old", timestamp=1_000),
        )
        assert h.drain_order() == ["p5l", "p5", "l2", "l1", "old", "a", "b", "neg"]

    @rule("S-024")
    def test_a_delayed_job_is_not_delivered_before_its_time(self, h: Harness) -> None:
        id = h.push_one(data="late", delay=2 * h.unit)
        assert h.pull() == []
        assert h.state(id) == "delayed"
        h.elapse(2.1 * h.unit)
        assert h.state(id) == "waiting"
        assert unpack(h.take().job.data) == "late"

    @rule("S-024")
    def test_a_delayed_urgent_job_does_not_block_others(self, h: Harness) -> None:
        h.push("q", job("late", delay=100 * h.unit, priority=100), job("now"))
        assert h.drain_order() == ["now"]

    @rule("S-024")
    def test_a_due_urgent_job_is_prioritized(self, h: Harness) -> None:
        id = h.push_one(delay=h.unit, priority=2)
        assert h.state(id) == "delayed"
        h.elapse(1.1 * h.unit)
        assert h.state(id) == "prioritized"
        assert h.counts() == {"prioritized": 1}

    @rule("S-025")
    def test_due_jobs_are_ordered_by_run_time(self, h: Harness) -> None:
        h.push("q", job("second", delay=2 * h.unit), job("first", delay=h.unit))
        h.elapse(3 * h.unit)
        assert h.drain_order() == ["first", "second"]

    @rule("S-026")
    def test_a_retried_job_goes_behind_its_peers(self, h: Harness) -> None:
        h.push("q", job("tried", backoff={"type": "fixed", "delay": h.unit}))
        h.lose(h.take())
        h.push("q", job("other"))
        h.elapse(1.5 * h.unit)
        assert h.drain_order() == ["other", "tried"]
