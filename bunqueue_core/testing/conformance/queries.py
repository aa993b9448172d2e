"""Progress, views, listings, counts and waiting for an outcome (rules S-120 to S-149)."""

from __future__ import annotations

from bunqueue_core.model.errors import NotFound
from bunqueue_core.model.job import REMOVE
from bunqueue_core.model.requests import Ack, Counts, JobView, Page, Progress
from bunqueue_core.testing.conformance.harness import Harness, job, pack, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


class ProgressCases(Kit):
    """Progress of a job that is being processed."""

    @rule("S-120")
    def test_progress_is_what_was_last_said(self, h: Harness) -> None:
        id = h.taken().job.id
        assert h.call("progress_of", id) == Progress(0, None)
        h.call("progress", id, 40, "halfway", False)
        assert h.call("progress_of", id) == Progress(40, "halfway")
        h.call("progress", id, 62.5, None, True)
        assert h.call("progress_of", id) == Progress(62.5, "halfway")
        h.call("progress", id, 80, None, False)
        assert h.call("progress_of", id) == Progress(80, None)

    @rule("S-121")
    def test_only_active_jobs_progress(self, h: Harness) -> None:
        waiting = h.push_one("w")
        done = h.taken("d")
        h.complete(done)
        for id, state in ((waiting, "waiting"), (done.job.id, "completed")):
            text = f"Job is not active (current state: {state})"
            h.refused("progress", id, 10, None, True, error=NotFound, text=text)
            h.refused("progress_of", id, error=NotFound, text=text)
        h.refused("progress", "never-existed", 10, None, True, error=NotFound, text="Job not found")
        h.refused("progress_of", "never-existed", error=NotFound, text="Job not found")

    @rule("S-122")
    def test_progress_survives_a_retry(self, h: Harness) -> None:
        delivery = h.taken(backoff_ms=0)
        h.call("progress", delivery.job.id, 30, "so far", False)
        h.lose(delivery)
        again = h.take()
        assert (again.job.progress, again.job.progress_message) == (30, "so far")


class QueryCases(Kit):
    """What can be asked about jobs and queues."""

    @rule("S-125")
    def test_a_view_of_every_state(self, h: Harness) -> None:
        waiting, urgent, late = h.push("q", job(), job(priority=1), job(delay=100 * h.unit))
        active = h.taken("a")
        done = h.taken("d")
        h.complete(done, {"ok": True})
        dead = h.taken("f", max_attempts=1)
        h.lose(dead, "boom")
        expected = {
            waiting: ("waiting", None, None),
            urgent: ("prioritized", None, None),
            late: ("delayed", None, None),
            active.job.id: ("active", None, None),
            done.job.id: ("completed", {"ok": True}, None),
            dead.job.id: ("failed", None, "boom"),
        }
        for id, outcome in expected.items():
            view = h.job(id)
            assert (view.state, unpack(view.result), view.failed_reason) == outcome
            assert view.job.id == id

    @rule("S-125")
    def test_an_unknown_job_has_no_view(self, h: Harness) -> None:
        assert h.call("job", "never-existed") is None

    @rule("S-126")
    def test_states_are_in_line_with_the_ids(self, h: Harness) -> None:
        waiting = h.push_one()
        assert h.states("never-existed", waiting, "nor-this", waiting) == ["unknown", "waiting", "unknown", "waiting"]
        assert h.states() == []

    @rule("S-127")
    def test_a_job_is_found_by_its_custom_id(self, h: Harness) -> None:
        h.push("q", job("data", custom_id="x"))
        view: JobView = h.call("job_by_custom_id", "x")
        assert (view.job.id, unpack(view.job.data), view.state) == ("x", "data", "waiting")
        assert h.call("job_by_custom_id", "y") is None
        plain = h.push_one()
        assert h.call("job_by_custom_id", plain) is None

    @rule("S-127")
    def test_a_job_is_found_by_its_custom_id_as_long_as_it_is_kept(self, h: Harness) -> None:
        h.complete(h.taken("d", custom_id="done"))
        h.lose(h.taken("f", custom_id="dead", max_attempts=1))
        h.complete(h.taken("g", custom_id="gone", remove_on_complete=REMOVE))
        assert h.call("job_by_custom_id", "done").state == "completed"
        assert h.call("job_by_custom_id", "dead").state == "failed"
        assert h.call("job_by_custom_id", "gone") is None

    @rule("S-128")
    def test_a_listing_is_in_order_of_creation(self, h: Harness) -> None:
        ids = h.push("q", *(job(n, priority=n % 3) for n in range(6)))
        h.push("other", job())
        assert self._listed(h, ()) == ids
        assert self._listed(h, (), Page(ascending=False)) == ids[::-1]

    @rule("S-128")
    def test_equal_creation_times_are_ordered_by_id(self, h: Harness) -> None:
        h.push("q", *(job(timestamp=1_000, custom_id=name) for name in ("b", "a", "c")))
        assert self._listed(h, ()) == ["a", "b", "c"]
        assert self._listed(h, (), Page(ascending=False)) == ["c", "b", "a"]

    @rule("S-129")
    def test_pages_cover_a_listing_once(self, h: Harness) -> None:
        ids = h.push("q", *(job(n) for n in range(7)))
        pages = [self._listed(h, (), Page(offset, 3)) for offset in (0, 3, 6, 9)]
        assert pages == [ids[:3], ids[3:6], ids[6:], []]
        assert self._listed(h, (), Page(2, None)) == ids[2:]
        assert self._listed(h, (), Page(0, 0)) == []

    @rule("S-130")
    def test_a_listing_by_state(self, h: Harness) -> None:
        done, dead, active = h.taken(), h.taken(max_attempts=1), h.taken()
        h.complete(done, 1)
        h.lose(dead, "boom")
        waiting, urgent, late = h.push("q", job(), job(priority=1), job(delay=100 * h.unit))
        by_state = {
            "completed": [done.job.id],
            "failed": [dead.job.id],
            "active": [active.job.id],
            "waiting": [waiting],
            "prioritized": [urgent],
            "delayed": [late],
            "waiting-children": [],
            "paused": [],
        }
        for state, ids in by_state.items():
            assert self._listed(h, (state,)) == ids
        assert self._listed(h, ("delayed", "completed")) == [done.job.id, late]
        assert sorted(self._listed(h, ())) == sorted(id for ids in by_state.values() for id in ids)
        views = {view.job.id: view for view in h.call("jobs", "q", (), Page())}
        assert {view.state for view in views.values()} == {state for state, ids in by_state.items() if ids}
        assert unpack(views[done.job.id].result) == 1
        assert views[dead.job.id].failed_reason == "boom"

    @rule("S-131")
    def test_counts_partition_the_jobs(self, h: Harness) -> None:
        h.complete(h.taken())
        h.lose(h.taken(max_attempts=1))
        h.taken()
        h.push("q", job(), job(), job(priority=1), job(delay=100 * h.unit))
        assert h.call("counts", "q") == Counts(2, 1, 1, 1, 1, 1, 0, 0)

    @rule("S-131")
    def test_an_unknown_queue_counts_nothing(self, h: Harness) -> None:
        assert h.call("counts", "never-seen") == Counts()

    @rule("S-132")
    def test_counts_per_priority(self, h: Harness) -> None:
        h.push("q", job(priority=5), job(priority=5), job(), job(priority=-1, delay=100 * h.unit))
        assert h.call("counts_per_priority", "q") == {5: 2, 0: 1, -1: 1}
        assert h.call("counts_per_priority", "never-seen") == {}

    @rule("S-133")
    def test_queues_are_listed_once(self, h: Harness) -> None:
        h.push("b", job())
        h.push("a", job(), job())
        h.push("b", job())
        assert sorted(h.call("queues")) == ["a", "b"]

    def _listed(self, h: Harness, states: tuple[str, ...], page: Page | None = None) -> list[str]:
        views: list[JobView] = h.call("jobs", "q", states, page if page is not None else Page())
        return [view.job.id for view in views]


class WaitCases(Kit):
    """Waiting for the outcome of a job."""

    @rule("S-140")
    def test_a_wait_ends_with_the_result(self, h: Harness) -> None:
        delivery = h.taken()
        waiting = h.begin("wait", delivery.job.id, 100 * h.unit)
        assert h.is_waiting(waiting)
        h.complete(delivery, {"n": 1})
        completed, result = h.value(waiting)
        assert (completed, unpack(result)) == (True, {"n": 1})

    @rule("S-140")
    def test_a_wait_for_a_completed_job_ends_at_once(self, h: Harness) -> None:
        delivery = h.taken()
        h.ack(Ack(delivery.job.id, delivery.token, None))
        assert h.call("wait", delivery.job.id, 100 * h.unit) == (True, None)

    @rule("S-140")
    def test_a_wait_ends_although_the_job_is_removed(self, h: Harness) -> None:
        delivery = h.taken(remove_on_complete=REMOVE)
        waiting = h.begin("wait", delivery.job.id, 100 * h.unit)
        h.ack(Ack(delivery.job.id, delivery.token, pack(1)))
        assert h.value(waiting)[0] is True

    @rule("S-141")
    def test_a_wait_ends_in_time(self, h: Harness) -> None:
        id = h.push_one()
        waiting = h.begin("wait", id, h.unit)
        assert h.is_waiting(waiting)
        h.elapse(1.2 * h.unit)
        assert h.value(waiting) == (False, None)

    @rule("S-142")
    def test_a_wait_ends_when_the_job_has_failed(self, h: Harness) -> None:
        delivery = h.taken(max_attempts=1)
        waiting = h.begin("wait", delivery.job.id, 100 * h.unit)
        h.lose(delivery)
        assert h.value(waiting) == (False, None)
        assert h.call("wait", delivery.job.id, 100 * h.unit) == (False, None)

    @rule("S-142")
    def test_a_wait_goes_on_through_a_retry(self, h: Harness) -> None:
        delivery = h.taken(backoff_ms=0)
        waiting = h.begin("wait", delivery.job.id, 100 * h.unit)
        h.lose(delivery)
        assert h.is_waiting(waiting)
        h.complete(h.take(), 2)
        assert unpack(h.value(waiting)[1]) == 2

    @rule("S-143")
    def test_an_unknown_job_cannot_be_waited_for(self, h: Harness) -> None:
        h.refused("wait", "never-existed", h.unit, error=NotFound, text="Job not found")
