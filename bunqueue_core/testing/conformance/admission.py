"""Admission: what a push makes of its input (rules S-001 to S-019)."""

from __future__ import annotations

from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.requests import Ack
from bunqueue_core.testing.conformance.harness import Harness, ids_of, job, pack, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


class AdmissionCases(Kit):
    """Push, single and in bulk; custom ids; states at admission."""

    @rule("S-001")
    def test_jobs_are_admitted_in_order(self, h: Harness) -> None:
        ids = h.push("q", *(job(n) for n in range(5)))
        assert len(set(ids)) == 5
        assert ids_of(h.pull(count=10)) == ids

    @rule("S-001")
    def test_outcomes_say_created(self, h: Harness) -> None:
        pushed = h.call("push", "q", [job(1), job(2)])
        assert pushed.outcomes == ["created", "created"]

    @rule("S-001")
    def test_nothing_pushed_is_nothing_done(self, h: Harness) -> None:
        pushed = h.call("push", "q", [])
        assert (pushed.ids, pushed.outcomes) == ([], [])
        assert h.counts() == {}

    @rule("S-002")
    def test_a_refused_member_refuses_the_batch(self, h: Harness) -> None:
        batch = [job(1, custom_id="first"), job(2, depends_on=("never-existed",)), job(3, custom_id="third")]
        h.refused("push", "q", batch, error=CommandError)
        assert h.counts() == {}
        assert h.states("first", "third") == ["unknown", "unknown"]
        assert h.pull(count=10) == []

    @rule("S-003")
    def test_ids_increase(self, h: Harness) -> None:
        ids = [*h.push("q", *(job(n) for n in range(20))), *(h.push_one() for _ in range(5))]
        assert ids == sorted(ids)

    @rule("S-004")
    def test_state_at_admission(self, h: Harness) -> None:
        plain, urgent, late, least = h.push("q", job(), job(priority=5), job(delay=100 * h.unit), job(priority=-5))
        assert h.states(plain, urgent, late, least) == ["waiting", "prioritized", "delayed", "waiting"]
        assert h.counts() == {"waiting": 2, "prioritized": 1, "delayed": 1}

    @rule("S-005")
    def test_a_given_timestamp_is_the_creation_time(self, h: Harness) -> None:
        h.push_one(timestamp=1_000, delay=500)
        delivery = h.take()
        assert (delivery.job.created_at, delivery.job.run_at) == (1_000, 1_500)

    @rule("S-005")
    def test_run_time_is_creation_plus_delay(self, h: Harness) -> None:
        plain, late = h.push("q", job(), job(delay=7_000))
        view = h.job(plain).job
        assert view.run_at == view.created_at
        view = h.job(late).job
        assert view.run_at == view.created_at + 7_000

    @rule("S-006")
    def test_input_comes_back_with_the_delivery(self, h: Harness) -> None:
        data = {"to": "user@example.com", "n": [1, 2.5, None, True], "blob": b"\x00\xff"}
        h.push("mail", job(data, name="send", max_attempts=7, timeout_ms=5_000, tags=("a", "b"), priority=3))
        found = h.take("mail").job
        assert (found.queue, found.name, unpack(found.data), found.priority) == ("mail", "send", data, 3)
        assert (found.options.max_attempts, found.options.timeout_ms) == (7, 5_000)
        assert tuple(found.tags) == ("a", "b")

    @rule("S-006")
    def test_no_data_is_not_null_data(self, h: Harness) -> None:
        without = job()
        without.data = None
        h.push("q", without, job(None))
        first, second = h.pull(count=2)
        assert (first.job.data, second.job.data) == (None, pack(None))

    @rule("S-007")
    def test_a_custom_id_is_the_id(self, h: Harness) -> None:
        assert h.push("q", job(1, custom_id="order-1")) == ["order-1"]
        delivery = h.take()
        assert (delivery.job.id, delivery.job.custom_id) == ("order-1", "order-1")

    @rule("S-008")
    def test_pushing_a_live_custom_id_changes_nothing(self, h: Harness) -> None:
        h.push("q", job("first", custom_id="x", priority=1))
        pushed = h.call("push", "q", [job("second", custom_id="x", priority=9)])
        assert (pushed.ids, pushed.outcomes) == (["x"], ["found"])
        assert h.counts() == {"prioritized": 1}
        found = h.take().job
        assert (unpack(found.data), found.priority) == ("first", 1)

    @rule("S-008")
    def test_custom_ids_are_shared_by_all_queues(self, h: Harness) -> None:
        h.push("one", job("first", custom_id="x"))
        assert h.call("push", "two", [job("second", custom_id="x")]).outcomes == ["found"]
        assert h.counts("two") == {}
        assert ids_of(h.pull("one")) == ["x"]

    @rule("S-008")
    def test_a_delayed_and_an_active_job_are_live(self, h: Harness) -> None:
        h.push("q", job(1, custom_id="late", delay=100 * h.unit), job(2, custom_id="busy"))
        assert ids_of(h.pull(count=2)) == ["busy"]
        pushed = h.call("push", "q", [job(3, custom_id="late"), job(4, custom_id="busy")])
        assert pushed.outcomes == ["found", "found"]
        assert h.counts() == {"delayed": 1, "active": 1}

    @rule("S-009")
    def test_a_batch_may_repeat_a_custom_id(self, h: Harness) -> None:
        pushed = h.call("push", "q", [job(1, custom_id="x"), job(2), job(3, custom_id="x")])
        assert pushed.outcomes == ["created", "created", "found"]
        assert (pushed.ids[0], pushed.ids[2]) == ("x", "x")
        assert sorted(h.drain_order()) == [1, 2]

    @rule("S-010")
    def test_a_completed_custom_id_is_free_again(self, h: Harness) -> None:
        h.complete(h.taken(data="old", custom_id="x"), {"old": True})
        pushed = h.call("push", "q", [job("new", custom_id="x")])
        assert (pushed.ids, pushed.outcomes) == (["x"], ["created"])
        assert h.state("x") == "waiting"
        assert h.results("x") == [None]
        assert h.counts() == {"waiting": 1}
        found = h.take()
        assert (unpack(found.job.data), found.job.attempts) == ("new", 0)
        h.complete(found, {"new": True})
        assert unpack(h.results("x")[0]) == {"new": True}

    @rule("S-010")
    def test_a_dead_custom_id_is_free_again(self, h: Harness) -> None:
        h.lose(h.taken(data="old", custom_id="x", max_attempts=1))
        assert h.state("x") == "failed"
        assert h.call("push", "q", [job("new", custom_id="x")]).outcomes == ["created"]
        assert h.counts() == {"waiting": 1}
        found = h.take()
        assert (unpack(found.job.data), found.job.attempts) == ("new", 0)

    @rule("S-010")
    def test_a_recycled_custom_id_leaves_no_dead_letter(self, h: Harness) -> None:
        h.lose(h.taken(custom_id="x", max_attempts=1))
        h.push_one(custom_id="x")
        assert h.dead_letters() == []

    @rule("S-011")
    def test_queues_are_apart(self, h: Harness) -> None:
        h.push("one", job(1))
        h.push("two", job(2))
        assert h.pull("three") == []
        assert h.drain_order("two") == [2]
        assert h.drain_order("one") == [1]

    @rule("S-012")
    def test_a_large_batch_is_one_admission(self, h: Harness) -> None:
        ids = h.push("q", *(job(n) for n in range(2_500)))
        assert len(set(ids)) == 2_500
        assert h.counts() == {"waiting": 2_500}
        assert h.drain_order() == list(range(1_000))

    @rule("S-013")
    def test_a_durable_job_is_accepted_like_any_other(self, h: Harness) -> None:
        (id,) = h.push("q", job(1, durable=True))
        delivery = h.take()
        assert delivery.job.id == id
        assert h.ack(Ack(id, delivery.token)) == ["applied"]
