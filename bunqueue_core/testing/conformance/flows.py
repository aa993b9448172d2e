"""Dependencies, parents and children, whole flows (rules S-320 to S-349)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue_core.model.errors import Conflict, NotFound
from bunqueue_core.model.job import REMOVE, JobSpec
from bunqueue_core.model.requests import FlowJob
from bunqueue_core.testing.conformance.harness import Harness, ids_of, job, pack, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


def child(parent: str, data: dict[str, Any] | None = None, *, parent_queue: str = "q", **settings: Any) -> JobSpec:
    """Input of a job that is to be linked to a parent."""
    payload = {**(data or {}), "__parentId": parent, "__parentQueue": parent_queue}
    return job(payload, parent_id=parent, parent_queue=parent_queue, **settings)


class DependencyCases(Kit):
    """Jobs that wait for others."""

    @rule("S-320")
    def test_a_job_waits_for_its_dependencies(self, h: Harness) -> None:
        one, two = h.push("d", job(), job())
        (id,) = h.push("q", job(depends_on=(one, two)))
        assert h.state(id) == "waiting-children"
        assert h.counts() == {"waiting_children": 1}
        assert h.pull() == []
        h.complete(h.take("d"))
        assert h.state(id) == "waiting-children"
        h.complete(h.take("d"))
        h.until_state(id, "waiting")
        assert ids_of(h.pull()) == [id]

    @rule("S-320")
    def test_a_released_job_wakes_a_waiting_pull(self, h: Harness) -> None:
        dependency = h.taken("d")
        (id,) = h.push("q", job(depends_on=(dependency.job.id,)))
        waiting = h.park()
        h.complete(dependency)
        assert ids_of(h.value(waiting)) == [id]

    @rule("S-320")
    def test_one_job_may_release_many(self, h: Harness) -> None:
        dependency = h.taken("d")
        ids = h.push("q", *(job(n, depends_on=(dependency.job.id,)) for n in range(20)))
        h.complete(dependency)
        h.until(lambda: h.counts() == {"waiting": 20}, "twenty released jobs")
        assert ids_of(h.pull(count=30)) == ids

    @rule("S-321")
    def test_a_released_job_keeps_its_time_and_priority(self, h: Harness) -> None:
        dependency = h.taken("d")
        late, urgent = h.push(
            "q",
            job(depends_on=(dependency.job.id,), delay=100 * h.unit),
            job(depends_on=(dependency.job.id,), priority=3),
        )
        h.complete(dependency)
        h.until_state(urgent, "prioritized")
        h.until_state(late, "delayed")

    @rule("S-322")
    def test_a_completed_dependency_is_met_at_once(self, h: Harness) -> None:
        kept, removed = h.taken("d"), h.taken("d", remove_on_complete=REMOVE)
        h.complete(kept)
        h.complete(removed)
        (id,) = h.push("q", job(depends_on=(kept.job.id, removed.job.id)))
        assert h.state(id) == "waiting"

    @rule("S-322")
    def test_a_removed_dependency_releases_too(self, h: Harness) -> None:
        dependency = h.taken("d", remove_on_complete=REMOVE)
        (id,) = h.push("q", job(depends_on=(dependency.job.id,)))
        h.complete(dependency)
        h.until_state(id, "waiting")

    @rule("S-322")
    @pytest.mark.parametrize("parked", [False, True])
    def test_what_was_met_stays_met_when_a_job_waits_again(self, h: Harness, parked: bool) -> None:
        first = h.taken("d")
        (id,) = h.push("q", job(depends_on=(first.job.id,)))
        h.complete(first)
        h.until_state(id, "waiting")
        h.call("clean", "d", 0, "completed", 10)  # a driver may keep what a live job once waited for
        if parked:
            h.call("move_to_waiting_children", id, h.take().token)
        h.push("d", job(parent_id=id, parent_queue="q"))
        h.until_state(id, "waiting-children")
        h.complete(h.take("d"))
        h.until_state(id, "waiting")

    @rule("S-323")
    def test_an_unknown_dependency_is_refused(self, h: Harness) -> None:
        text = "Dependency job not found: never-existed"
        h.refused("push", "q", [job(depends_on=("never-existed",))], error=NotFound, text=text)
        gone = h.push_one("d")
        h.call("cancel", gone)
        h.refused("push", "q", [job(depends_on=(gone,))], error=NotFound, text=f"Dependency job not found: {gone}")

    @rule("S-323")
    def test_a_batch_may_depend_on_its_own_members(self, h: Harness) -> None:
        pushed = h.push("q", job("second", custom_id="b", depends_on=("a",)), job("first", custom_id="a"))
        assert h.states(*pushed) == ["waiting-children", "waiting"]
        h.complete(h.take())
        h.until_state("b", "waiting")

    @rule("S-324")
    def test_a_failed_dependency_releases_nothing_until_it_completes(self, h: Harness) -> None:
        dependency = h.taken("d", max_attempts=1)
        (id,) = h.push("q", job(depends_on=(dependency.job.id,)))
        h.lose(dependency)
        assert h.state(id) == "waiting-children"
        h.call("retry_dead_letters", "d")
        h.complete(h.take("d"))
        h.until_state(id, "waiting")

    @rule("S-325")
    def test_a_waiting_job_can_be_cancelled(self, h: Harness) -> None:
        dependency = h.taken("d")
        (id,) = h.push("q", job(depends_on=(dependency.job.id,)))
        h.call("cancel", id)
        h.complete(dependency)
        assert h.state(id) == "unknown"
        assert h.counts() == {}

    @rule("S-326")
    def test_an_id_that_others_wait_for_cannot_be_used_again(self, h: Harness) -> None:
        dependency = h.taken("d", custom_id="x", remove_on_complete=REMOVE)
        other = h.push_one("d2")
        h.push_one(depends_on=("x", other))
        h.complete(dependency)
        text = "Custom ID x still has unresolved dependency consumers"
        h.refused("push", "d", [job(custom_id="x")], error=Conflict, text=text)

    @rule("S-327")
    def test_dependencies_survive_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        kept, removed = h.taken("d"), h.taken("d", remove_on_complete=REMOVE)
        open_one = h.push_one("e")
        (id,) = h.push("q", job(depends_on=(kept.job.id, removed.job.id, open_one)))
        h.complete(kept)
        h.complete(removed)
        h.reopen()
        assert h.state(id) == "waiting-children"
        h.complete(h.take("e"))
        h.until_state(id, "waiting")
        h.reopen()
        assert h.state(id) == "waiting"

    @rule("S-327")
    def test_a_crash_neither_releases_nor_strands(self, h: Harness) -> None:
        dependency = h.taken("d", durable=True)
        (gated,) = h.push("q", job(depends_on=(dependency.job.id,), durable=True))
        h.complete(dependency)
        other = h.push_one("e", durable=True)
        (waiting,) = h.push("q", job(depends_on=(other,), durable=True))
        h.crash()
        assert h.states(gated, waiting) == ["waiting", "waiting-children"]


class FamilyCases(Kit):
    """Parents and children: links, values, policies, atomic flows."""

    @rule("S-330")
    def test_a_linked_child_holds_its_parent(self, h: Harness) -> None:
        parent = h.push_one("q", {"v": 1})
        (id,) = h.push("c", child(parent))
        assert h.state(parent) == "waiting-children"
        view = h.job(parent).job
        assert (tuple(view.children_ids), tuple(view.depends_on)) == ((id,), (id,))
        assert unpack(view.data) == {"v": 1, "__childrenIds": [id]}
        h.complete(h.take("c"), {"n": 1})
        h.until_state(parent, "waiting")
        assert {key: unpack(value) for key, value in h.call("children_values", parent).items()} == {f"c:{id}": {"n": 1}}

    @rule("S-330")
    def test_links_that_cannot_be(self, h: Harness) -> None:
        h.refused("push", "c", [child("gone")], error=NotFound, text="Parent job not found: gone")
        active = h.taken()
        text = f"Parent job {active.job.id} is not linkable"
        h.refused("push", "c", [child(active.job.id)], error=Conflict, text=text)
        parent = h.push_one()
        text = f"Parent job {parent} belongs to queue q, not r"
        h.refused("push", "c", [child(parent, parent_queue="r")], error=Conflict, text=text)
        assert h.counts("c") == {}

    @rule("S-331")
    def test_a_parked_parent_runs_again_after_its_children(self, h: Harness) -> None:
        delivery = h.taken(data={})
        h.call("move_to_waiting_children", delivery.job.id, delivery.token)
        h.push("c", child(delivery.job.id))
        h.complete(h.take("c"))
        h.until_state(delivery.job.id, "waiting")

    @rule("S-332")
    @pytest.mark.parametrize("policy", ["none", "fail", "continue", "ignore", "remove"])
    def test_what_a_childs_failure_does_to_its_parent(self, h: Harness, policy: str) -> None:
        parent = h.push_one("q", {}, delay=100 * h.unit)
        option = {
            "fail": "fail_parent_on_failure",
            "continue": "continue_parent_on_failure",
            "ignore": "ignore_dependency_on_failure",
            "remove": "remove_dependency_on_failure",
        }.get(policy)
        options: dict[str, Any] = {option: True} if option is not None else {}
        failing, sibling = h.push("c", child(parent, max_attempts=1, **options), child(parent))
        first, second = h.pull("c", count=2)
        h.lose(first, "boom")
        values = {mode: h.call("children_failures", parent, mode) for mode in ("continue", "ignore")}
        if policy == "fail":
            h.until_state(parent, "failed")
            (entry,) = h.dead_letters()
            assert (entry.reason, entry.error) == ("unknown", f"Child job {failing} failed: boom")
        elif policy == "continue":
            h.until_state(parent, "waiting")
            assert values == {"continue": {f"c:{failing}": "boom"}, "ignore": {}}
        else:
            assert h.state(parent) == "waiting-children"
            assert values == {"continue": {}, "ignore": {f"c:{failing}": "boom"} if policy == "ignore" else {}}
        h.complete(second)
        if policy in ("ignore", "remove", "none"):
            h.until_state(parent, "waiting-children" if policy == "none" else "delayed")
        assert h.state(sibling) == "completed"

    @rule("S-332")
    def test_the_last_childs_failure_starts_the_parent_now(self, h: Harness) -> None:
        parent = h.push_one("q", {}, delay=100 * h.unit)
        h.push("c", child(parent, max_attempts=1, ignore_dependency_on_failure=True))
        h.lose(h.take("c"))
        h.until_state(parent, "waiting")

    @rule("S-163")
    def test_a_retried_dead_letter_waits_for_nobody(self, h: Harness) -> None:
        parent = h.push_one("q", {})
        h.push("c", child(parent, max_attempts=1, fail_parent_on_failure=True), child(parent))
        first, second = h.pull("c", count=2)
        h.lose(first)
        h.until_state(parent, "failed")
        assert h.call("retry_dead_letters", "q") == 1
        assert h.state(parent) == "waiting"
        delivery = h.take()
        assert delivery.job.id == parent
        h.complete(second)
        h.complete(delivery)
        assert h.states(parent, second.job.id) == ["completed", "completed"]

    @rule("S-333")
    def test_policies_hold_for_a_child_that_is_lost(self, h: Harness) -> None:
        parent = h.push_one("q", {})
        h.push("c", child(parent, max_attempts=1, fail_parent_on_failure=True))
        h.take("c", lock_ttl_ms=h.unit)
        h.until_state(parent, "failed")

    @rule("S-333")
    def test_policies_hold_for_a_child_that_took_its_process_along(self, h: Harness) -> None:
        if h.capabilities.multi_broker:
            h.not_offered("recovery at start (leases outlive a broker)")
        parents = h.push("q", job({}, durable=True), job({}, durable=True))
        failing, ignored = (
            child(parents[0], max_attempts=1, fail_parent_on_failure=True),
            child(parents[1], max_attempts=1, ignore_dependency_on_failure=True),
        )
        h.push("c", failing, ignored)
        assert len(h.pull("c", count=2)) == 2
        h.crash()
        assert h.states(*parents) == ["failed", "waiting"]

    @rule("S-334")
    def test_values_and_failures_survive_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        parent = h.push_one("q", {})
        h.push(
            "c",
            child(parent, max_attempts=1, ignore_dependency_on_failure=True),
            child(parent),
            child(parent),
        )
        first, second = h.pull("c", count=2)
        h.lose(first, "boom")
        h.complete(second, 2)
        h.reopen()
        assert h.state(parent) == "waiting-children"
        assert h.call("children_failures", parent, "ignore") == {f"c:{first.job.id}": "boom"}
        assert [unpack(value) for value in h.call("children_values", parent).values()] == [2]
        h.complete(h.take("c"))
        h.until_state(parent, "waiting")

    @rule("S-335")
    def test_an_existing_child_gets_its_parent(self, h: Harness) -> None:
        parent, kid = h.push("q", job({}), job({}))
        h.call("update_parent", kid, parent)
        assert h.states(parent, kid) == ["waiting-children", "waiting"]
        view = h.job(kid).job
        assert view.parent_id == parent
        assert unpack(view.data) == {"__parentId": parent, "__parentQueue": "q"}
        h.call("update_parent", kid, parent)
        other = h.push_one("q", {})
        text = f"Child job {kid} already belongs to parent {parent}"
        h.refused("update_parent", kid, other, error=Conflict, text=text)
        text = "A flow job cannot be its own parent"
        h.refused("update_parent", kid, kid, error=Conflict, text=text)
        h.refused("update_parent", "gone", parent, error=NotFound, text="Child job not found: gone")
        h.refused("update_parent", kid, "gone", error=NotFound, text="Parent job not found: gone")

    @rule("S-336")
    def test_a_child_is_detached(self, h: Harness) -> None:
        parent = h.push_one("q", {})
        one, two = h.push("c", child(parent), child(parent))
        assert h.call("remove_child_dependency", one) is True
        assert h.job(one).job.parent_id is None
        assert tuple(h.job(parent).job.children_ids) == (two,)
        assert h.call("remove_child_dependency", two) is True
        h.until_state(parent, "waiting")
        h.refused("remove_child_dependency", one, error=NotFound, text=f"Job {one} has no parent")
        h.refused("remove_child_dependency", "gone", error=NotFound, text="Job not found: gone")

    @rule("S-336")
    def test_children_that_still_wait_are_removed(self, h: Harness) -> None:
        parent = h.push_one("q", {})
        active, waiting = h.push("c", child(parent), child(parent))
        delivery = h.take("c")
        h.call("remove_unprocessed_children", parent)
        assert h.states(active, waiting) == ["active", "unknown"]
        assert h.state(parent) == "waiting-children"
        h.complete(delivery)
        h.until_state(parent, "waiting")
        h.call("remove_unprocessed_children", "never-existed")

    @rule("S-337")
    def test_updating_keeps_the_topology(self, h: Harness) -> None:
        parent = h.push_one("q", {"v": 1})
        (kid,) = h.push("c", child(parent, {"v": 2}))
        h.call("update_data", kid, pack({"v": 3}))
        assert unpack(h.job(kid).job.data) == {"v": 3, "__parentId": parent, "__parentQueue": "q"}
        h.call("update_data", parent, pack({"v": 4}))
        assert unpack(h.job(parent).job.data) == {"v": 4, "__childrenIds": [kid]}

    def _tree(self) -> list[FlowJob]:
        kid = {"parent_id": "root", "parent_queue": "q"}
        mirror = {"__parentId": "root", "__parentQueue": "q"}
        root = job({"__childrenIds": ["one", "two"]}, children_ids=("one", "two"), depends_on=("one", "two"))
        return [
            FlowJob("one", "c", job({"n": 1, **mirror}, **kid)),
            FlowJob("two", "c", job({"n": 2, **mirror}, **kid)),
            FlowJob("root", "q", root),
        ]

    @rule("S-340")
    def test_a_flow_is_admitted_whole(self, h: Harness) -> None:
        admitted = h.call("push_flow", self._tree())
        assert [member.id for member in admitted] == ["one", "two", "root"]
        assert h.states("one", "two", "root") == ["waiting", "waiting", "waiting-children"]
        for delivery in h.pull("c", count=2):
            h.complete(delivery, delivery.job.id)
        h.until_state("root", "waiting")
        values = {key: unpack(value) for key, value in h.call("children_values", "root").items()}
        assert values == {"c:one": "one", "c:two": "two"}

    @rule("S-340")
    def test_a_refused_flow_leaves_nothing(self, h: Harness) -> None:
        h.push("q", job(custom_id="two"))
        h.refused("push_flow", self._tree(), error=Conflict, text="Flow job two already exists")
        assert h.states("one", "root") == ["unknown", "unknown"]
        assert h.counts("c") == {}

    @rule("S-340")
    def test_a_flow_is_on_disk_when_it_is_answered(self, h: Harness) -> None:
        h.call("push_flow", self._tree())
        h.crash()
        assert h.states("one", "two", "root") == ["waiting", "waiting", "waiting-children"]
