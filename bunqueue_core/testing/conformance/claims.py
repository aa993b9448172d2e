"""Claims: pulling one, many, none, and waiting for one (rules S-030 to S-049)."""

from __future__ import annotations

from bunqueue_core.model.job import timeline_of
from bunqueue_core.model.requests import PullRequest
from bunqueue_core.testing.conformance.harness import Harness, ids_of, job
from bunqueue_core.testing.conformance.rules import Kit, rule


class ClaimCases(Kit):
    """What a pull delivers, when it waits, and what cancelling it does."""

    @rule("S-030")
    def test_a_delivered_job_is_active(self, h: Harness) -> None:
        id = h.push_one()
        delivery = h.take()
        assert delivery.job.id == id
        assert h.state(id) == "active"
        assert h.counts() == {"active": 1}
        assert h.pull() == []

    @rule("S-030")
    def test_a_delivery_is_no_attempt(self, h: Harness) -> None:
        h.push_one()
        found = h.take().job
        assert (found.attempts, found.stall_count) == (0, 0)
        assert found.started_at is not None
        assert found.started_at >= found.created_at

    @rule("S-031")
    def test_a_delivery_stands_in_the_timeline(self, h: Harness) -> None:
        h.push_one()
        assert [entry["state"] for entry in timeline_of(h.take().job)] == ["waiting", "active"]

    @rule("S-032")
    def test_a_batch_takes_what_is_there(self, h: Harness) -> None:
        ids = h.push("q", *(job(n) for n in range(7)))
        assert ids_of(h.pull(count=3)) == ids[:3]
        assert ids_of(h.pull(count=100, wait_ms=100 * h.unit)) == ids[3:]

    @rule("S-033")
    def test_without_an_owner_there_is_no_token(self, h: Harness) -> None:
        h.push("q", job(), job())
        assert h.take(owner=None).token is None
        assert h.take(owner="w").token

    @rule("S-033")
    def test_every_delivery_has_a_token_of_its_own(self, h: Harness) -> None:
        h.push("q", *(job() for _ in range(10)))
        assert len({delivery.token for delivery in h.pull(count=10)}) == 10

    @rule("S-034")
    def test_an_empty_queue_answers_at_once(self, h: Harness) -> None:
        assert h.pull() == []
        assert h.pull("never-seen", count=10) == []

    @rule("S-034")
    def test_pulling_makes_no_queue(self, h: Harness) -> None:
        h.pull("never-seen")
        assert "never-seen" not in h.call("queues")

    @rule("S-035")
    def test_a_push_wakes_a_waiting_pull(self, h: Harness) -> None:
        waiting = h.park()
        id = h.push_one()
        assert ids_of(h.value(waiting)) == [id]
        assert h.state(id) == "active"

    @rule("S-035")
    def test_a_waiting_batch_takes_what_a_push_brings(self, h: Harness) -> None:
        waiting = h.park(count=10)
        ids = h.push("q", job(1), job(2), job(3))
        assert ids_of(h.value(waiting)) == ids

    @rule("S-035")
    def test_a_waiting_pull_is_not_woken_by_another_queue(self, h: Harness) -> None:
        waiting = h.park("one")
        h.push("two", job())
        assert h.is_waiting(waiting)
        assert h.counts("two") == {"waiting": 1}

    @rule("S-036")
    def test_a_waiting_pull_ends_empty(self, h: Harness) -> None:
        waiting = h.park(wait_ms=h.unit)
        h.elapse(1.2 * h.unit)
        assert h.value(waiting) == []
        id = h.push_one()
        assert h.state(id) == "waiting"

    @rule("S-037")
    def test_a_waiting_pull_takes_a_job_when_it_is_due(self, h: Harness) -> None:
        h.push_one(data="late", delay=h.unit)
        waiting = h.park()
        h.elapse(1.2 * h.unit)
        assert len(h.value(waiting)) == 1

    @rule("S-037")
    def test_a_job_that_becomes_due_earlier_is_taken_earlier(self, h: Harness) -> None:
        h.push_one(data="later", delay=50 * h.unit)
        waiting = h.park()
        id = h.push_one(data="sooner", delay=h.unit)
        assert h.is_waiting(waiting)
        h.elapse(1.2 * h.unit)
        assert ids_of(h.value(waiting)) == [id]

    @rule("S-038")
    def test_waiting_pulls_are_served_in_turn(self, h: Harness) -> None:
        first, second = h.park(owner="one"), h.park(owner="two")
        a = h.push_one()
        assert ids_of(h.value(first)) == [a]
        assert h.is_waiting(second)
        b = h.push_one()
        assert ids_of(h.value(second)) == [b]

    @rule("S-038")
    def test_a_batch_of_jobs_serves_several_waiting_pulls(self, h: Harness) -> None:
        waiting = [h.park(owner=f"w{n}") for n in range(3)]
        ids = h.push("q", job(), job(), job())
        assert sorted(id for answer in waiting for id in ids_of(h.value(answer))) == sorted(ids)

    @rule("S-039")
    def test_a_retry_that_is_due_wakes_a_waiting_pull(self, h: Harness) -> None:
        delivery = h.taken(backoff={"type": "fixed", "delay": h.unit})
        waiting = h.park()
        h.lose(delivery)
        h.elapse(1.5 * h.unit)
        assert ids_of(h.value(waiting)) == [delivery.job.id]

    @rule("S-039")
    def test_a_retry_without_backoff_wakes_a_waiting_pull(self, h: Harness) -> None:
        delivery = h.taken(backoff_ms=0)
        waiting = h.park()
        h.lose(delivery)
        assert ids_of(h.value(waiting)) == [delivery.job.id]

    @rule("S-040")
    def test_a_cancelled_pull_takes_nothing(self, h: Harness) -> None:
        waiting = h.park()
        h.world.call(waiting.cancel)
        id = h.push_one()
        assert h.state(id) == "waiting"
        assert ids_of(h.pull()) == [id]

    @rule("S-040")
    def test_a_cancelled_pull_leaves_the_turn_to_the_next(self, h: Harness) -> None:
        first, second = h.park(owner="one"), h.park(owner="two")
        h.world.call(first.cancel)
        id = h.push_one()
        assert ids_of(h.value(second)) == [id]

    @rule("S-041")
    def test_a_delivery_that_nobody_takes_is_handed_back_uncharged(self, h: Harness) -> None:
        id = h.push_one()
        answer = h.begin("pull", PullRequest("q", 1, "w"))
        h.value(answer)
        h.world.call(answer.cancel)
        h.until_state(id, "waiting")
        again = h.take()
        assert (again.job.id, again.job.attempts, again.job.stall_count) == (id, 0, 0)
        h.complete(again)

    @rule("S-041")
    def test_a_delivery_handed_back_wakes_a_waiting_pull(self, h: Harness) -> None:
        id = h.push_one()
        answer = h.begin("pull", PullRequest("q", 1, "one"))
        h.value(answer)
        waiting = h.park(owner="two")
        h.world.call(answer.cancel)
        assert ids_of(h.value(waiting)) == [id]

    @rule("S-042")
    def test_many_pulls_share_the_jobs(self, h: Harness) -> None:
        ids = h.push("q", *(job(n) for n in range(60)))
        answers = [h.begin("pull", PullRequest("q", 7, f"w{n}")) for n in range(10)]
        got = [id for answer in answers for id in ids_of(h.value(answer))]
        assert sorted(got) == sorted(ids)

    @rule("S-042")
    def test_two_brokers_share_the_jobs(self, h: Harness) -> None:
        other = h.another()
        ids = h.push("q", *(job(n) for n in range(40)))
        answers = [h.begin("pull", PullRequest("q", 3, f"w{n}"), broker=(h.broker, other)[n % 2]) for n in range(20)]
        got = [id for answer in answers for id in ids_of(h.value(answer))]
        assert sorted(got) == sorted(ids)

    @rule("S-043")
    def test_a_push_to_one_broker_wakes_a_pull_on_another(self, h: Harness) -> None:
        other = h.another()
        waiting = h.park(broker=other)
        id = h.push_one()
        assert ids_of(h.value(waiting)) == [id]

    @rule("S-044")
    def test_closing_answers_waiting_pulls_empty(self, h: Harness) -> None:
        waiting = h.park()
        h.stop(h.broker)
        assert h.value(waiting) == []
