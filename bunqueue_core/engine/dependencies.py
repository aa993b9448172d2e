"""Dependencies: jobs that wait for others, parents and children, and what a child's failure does to its parent.

A dependency is met when its job is in the completed set, or has left a completion proof (completed and removed). Nothing
else is evidence: not a result, not a dead letter. A gated job is known to all its dependencies (``dependents``), met or not, so
that evidence it still needs is not thrown away; how many it still waits for is counted, so that completing a job costs what its
waiters cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bunqueue_core.engine.base import EngineBase, _bound
from bunqueue_core.engine.queue import QueueState
from bunqueue_core.model.errors import Conflict, NotFound
from bunqueue_core.model.job import Job, JobSpec, Location, admission_entry, ready_state
from bunqueue_core.model.payload import Packed, decode
from bunqueue_core.storage.changes import FLOW_FAILURE_TABLE, PROOF_TABLE

#: Text for a child's failure that came without one.
UNKNOWN_ERROR = "unknown error"

#: Payload keys in which clients see the topology of a flow.
FLOW_KEYS = ("__parentId", "__parentQueue", "__childrenIds", "__flowParentId", "__flowParentIds")


class DependencyRules(EngineBase):
    """Gating, release, links and failure policies."""

    # -- evidence -----------------------------------------------------------------------------------------------------

    def is_met(self, id: str) -> bool:
        """True if job ``id`` has completed."""
        if id in self.proofs:
            return True
        job = self.jobs.get(id)
        return job is not None and job.location == Location.COMPLETED

    def is_known(self, id: str) -> bool:
        """True if ``id`` is taken: by a job anywhere, or by a completion proof."""
        return id in self.jobs or id in self.proofs

    def unmet(self, ids: Iterable[str]) -> list[str]:
        return [id for id in dict.fromkeys(ids) if not self.is_met(id)]

    def add_proof(self, job: Job, now: int) -> None:
        """Remember that a job completed whose record goes away. Proofs that nobody waits for are bounded."""
        self.proofs.pop(job.id, None)
        self.proofs[job.id] = job.queue
        self.marks.table(PROOF_TABLE, (job.id, job.queue, now))
        limit = self.settings.max_completed_jobs
        if len(self.proofs) > limit + limit // 10 + len(self.dependents):
            excess = len(self.proofs) - limit
            for id in list(self.proofs):
                if excess <= 0:
                    break
                excess -= 1
                if not self.dependents.get(id):
                    self.proofs_discard(id)

    def proofs_discard(self, id: str) -> None:
        if self.proofs.pop(id, None) is not None:
            self.marks.table_removed(PROOF_TABLE, id)

    # -- the gate -----------------------------------------------------------------------------------------------------

    def gate(self, queue: QueueState, job: Job, unmet: Sequence[str]) -> None:
        """Hold a job that is in no container until ``unmet`` are met."""
        job.location = Location.GATED
        queue.gated[job.id] = job
        self.unmet_counts[job.id] = len(unmet)
        for id in job.depends_on:
            self.dependents.setdefault(id, {})[job.id] = None

    def ungate(self, queue: QueueState, job: Job) -> None:
        """Take a job out of the gate, with its reverse edges."""
        queue.gated.pop(job.id, None)
        self.unmet_counts.pop(job.id, None)
        for id in job.depends_on:
            self.drop_edge(id, job.id)

    def drop_edge(self, dependency: str, waiter: str) -> None:
        waiters = self.dependents.get(dependency)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self.dependents[dependency]

    def take_out(self, queue: QueueState, job: Job) -> None:
        """Take a waiting job out of the run set, the gate or the park."""
        if job.location == Location.READY:
            queue.remove(job)
        elif job.location == Location.GATED:
            self.ungate(queue, job)
        elif job.location == Location.PARKED:
            queue.parked.pop(job.id, None)

    def resolve(self, id: str, now: int) -> None:
        """Job ``id`` has completed: release what waited for nothing else."""
        for waiter in list(self.dependents.get(id, ())):
            self.unmet_counts[waiter] -= 1
            if not self.unmet_counts[waiter]:
                job = self.jobs[waiter]
                self.open_gate(self.queue(job.queue), job, now)

    def open_gate(self, queue: QueueState, job: Job, now: int) -> None:
        """Release a job whose dependencies are met: it keeps its ``run_at``."""
        self.ungate(queue, job)
        job = self.requeue(queue, job, now)
        self.timeline(job, ready_state(job, now), now)
        self.marks.changed(job)
        if self.noticing:
            self.notice("job:dependencies-resolved", jobId=job.id, queue=queue.name)
            if job.children_ids:
                count = len(job.children_ids)
                self.notice("flow:completed", parentJobId=job.id, queue=queue.name, childrenCount=count)

    # -- links --------------------------------------------------------------------------------------------------------

    def _check_parent(self, spec: JobSpec, now: int) -> None:
        """Refuse a link to a parent that is not there or cannot take a child any more."""
        parent_id = spec.parent_id
        assert parent_id is not None
        if spec.custom_id == parent_id:
            raise Conflict("A job cannot be its own parent")
        parent = self.jobs.get(parent_id)
        if parent is None:
            raise NotFound(f"Parent job not found: {parent_id}")
        if parent.location not in (Location.READY, Location.GATED, Location.PARKED):
            raise Conflict(f"Parent job {parent_id} is not linkable")
        if parent.queue != spec.parent_queue:
            raise Conflict(f"Parent job {parent_id} belongs to queue {parent.queue}, not {spec.parent_queue}")

    def link_new_child(self, child: Job, parent_id: str, now: int) -> None:
        """Let an existing parent wait for a child that has just been admitted."""
        self.add_child(self.jobs[parent_id], child, now)

    def add_child(self, parent: Job, child: Job, now: int) -> None:
        """Add an edge; the parent waits if the child has not completed yet."""
        queue = self.queue(parent.queue)
        met = self.is_met(child.id)
        if not met and parent.location != Location.GATED:
            self.take_out(queue, parent)
            if parent.where:
                parent = self.replace(parent)
            parent.location = Location.GATED
            queue.gated[parent.id] = parent
            self.timeline(parent, "waiting-children", now)
        if child.id not in parent.children_ids:
            parent.children_ids = (*parent.children_ids, child.id)
        if child.id not in parent.depends_on:
            parent.depends_on = (*parent.depends_on, child.id)
        if parent.location == Location.GATED:
            self.unmet_counts[parent.id] = len(self.unmet(parent.depends_on))
            for id in parent.depends_on:
                self.dependents.setdefault(id, {})[parent.id] = None
        self._set_data(parent, {"__childrenIds": list(parent.children_ids)})
        self.marks.changed(parent)

    def _set_data(self, job: Job, keys: dict[str, Any]) -> None:
        """Set (or with None delete) keys of a payload that is a map; other payloads are left alone."""
        value = decode(job.data) if job.data is not None else {}
        if not isinstance(value, dict):
            return
        for key, item in keys.items():
            if item is None:
                value.pop(key, None)
            else:
                value[key] = item
        job.data = self.marks.pack(value)

    def update_parent(self, child_id: str, parent_id: str, now: int) -> None:
        """Give an existing child its parent. See the wire command ``UpdateParent``."""
        if child_id == parent_id:
            raise Conflict("A flow job cannot be its own parent")
        child = self.jobs.get(child_id)
        parent = self.jobs.get(parent_id)
        if child is None:
            if parent is not None and child_id in parent.children_ids and child_id in self.proofs:
                return
            raise NotFound(f"Child job not found: {child_id}")
        if parent is None:
            raise NotFound(f"Parent job not found: {parent_id}")
        data = decode(child.data) if child.data is not None else {}
        marker = data.get("__parentId") if isinstance(data, dict) else None
        for owner in (child.parent_id, marker):
            if owner not in (None, "pending", parent_id):
                raise Conflict(f"Child job {child_id} already belongs to parent {owner}")
        declared = child_id in parent.children_ids
        if not declared and parent.location not in (Location.READY, Location.GATED, Location.PARKED):
            raise Conflict(f"Parent job {parent_id} is not linkable")
        child.parent_id = parent_id
        self._set_data(child, {"__parentId": parent_id, "__parentQueue": parent.queue})
        if child.location == Location.DEAD:
            row_id, entry = self.queue(child.queue).dlq[child_id]
            self.marks.dead_letter(row_id, entry)
        else:
            self.marks.changed(child)
        if not declared:
            self.add_child(parent, child, now)
        if child.location == Location.DEAD:
            entry = self.queue(child.queue).dlq[child_id][1]
            self.child_failed(child, entry.error or "Child job failed", now)

    def remove_child_dependency(self, child_id: str, now: int) -> bool:
        """Detach a child from its parent on both sides. True if the edge was there and could go."""
        child = self.jobs.get(child_id)
        if child is None:
            raise NotFound(f"Job not found: {child_id}")
        if child.parent_id is None:
            raise NotFound(f"Job {child_id} has no parent")
        parent = self.jobs.get(child.parent_id)
        if (
            parent is None
            or parent.location != Location.GATED
            or child_id not in parent.depends_on
            or child.location not in (Location.READY, Location.GATED, Location.PARKED, Location.ACTIVE)
        ):
            return False
        self.detach(child)
        self.drop_child(parent, child_id, now)
        return True

    def detach(self, child: Job) -> None:
        child.parent_id = None
        self._set_data(child, {"__parentId": None, "__parentQueue": None})
        self.marks.changed(child)

    def drop_child(self, parent: Job, child_id: str, now: int) -> None:
        """Remove the edge to a child; the parent starts when nothing is left to wait for."""
        for id in parent.depends_on:
            self.drop_edge(id, parent.id)
        parent.children_ids = tuple(id for id in parent.children_ids if id != child_id)
        parent.depends_on = tuple(self.unmet(id for id in parent.depends_on if id != child_id))
        self._regate(parent)
        self._set_data(parent, {"__childrenIds": list(parent.children_ids) or None})
        self.marks.changed(parent)
        if not parent.depends_on:
            self.promote_parent(parent, now)

    def _regate(self, parent: Job) -> None:
        """Edges and count of a gated job whose dependencies have changed."""
        self.unmet_counts[parent.id] = len(self.unmet(parent.depends_on))
        for id in parent.depends_on:
            self.dependents.setdefault(id, {})[parent.id] = None

    def promote_parent(self, parent: Job, now: int) -> None:
        """Start a parent that a policy or a detachment released: it runs now, whatever its delay was."""
        queue = self.queue(parent.queue)
        if parent.timeline is None:
            parent.timeline = [admission_entry(parent)]
        self.take_out(queue, parent)
        parent.run_at = now
        parent = self.requeue(queue, parent, now)
        self.timeline(parent, ready_state(parent, now), now)
        self.marks.changed(parent)
        self.emit("waiting", parent, now, prev="waiting-children")

    # -- failure policies ---------------------------------------------------------------------------------------------

    def child_failed(self, child: Job, error: str | None, now: int) -> None:
        """Apply the policy of a child that failed for good to its parent, if it waits."""
        options = child.options
        if child.parent_id is None:
            return
        if options.fail_parent_on_failure:
            mode = "fail"
        elif options.continue_parent_on_failure:
            mode = "continue"
        elif options.ignore_dependency_on_failure:
            mode = "ignore"
        elif options.remove_dependency_on_failure:
            mode = "remove"
        else:
            return
        parent = self.jobs.get(child.parent_id)
        if parent is None or parent.location not in (Location.READY, Location.GATED, Location.PARKED):
            return
        text = error or UNKNOWN_ERROR
        queue = self.queue(parent.queue)
        if mode == "fail":
            self.take_out(queue, parent)
            self.release_key(queue, parent)
            message = f"Child job {child.id} failed: {text}"
            parent.history = None
            self.record_attempt(parent, now, "unknown", message)
            self.bury(queue, parent, now, "unknown", message)
            self.clear_child_failures(parent.id)
            self.totals.failed += 1
            queue.total_failed += 1
            self.emit("failed", parent, now, error=message, data=_packed(parent))
            return
        if mode in ("continue", "ignore"):
            self.child_failures.setdefault(parent.id, {})[child.id] = (mode, text, child.queue)
            self.marks.table(FLOW_FAILURE_TABLE, (parent.id, child.id, child.queue, mode, text, now))
        if parent.location != Location.GATED:
            return
        if mode == "continue":
            for id in parent.depends_on:
                self.drop_edge(id, parent.id)
            parent.depends_on = ()
            self.promote_parent(parent, now)
            return
        self.drop_edge(child.id, parent.id)
        parent.depends_on = tuple(id for id in parent.depends_on if id != child.id)
        self._regate(parent)
        self.marks.changed(parent)
        if not self.unmet_counts[parent.id]:
            self.promote_parent(parent, now)

    # -- completed jobs -----------------------------------------------------------------------------------------------

    def forget_completed(self, queue: QueueState, job: Job) -> None:
        """Remove a completed job for good, from memory and storage."""
        if queue.completed.pop(job.id, None) is not None:
            self.completed_in_memory -= 1
        queue.completed_count -= 1
        self.evidence_lost(job.id)
        self.forget(job)

    def evidence_lost(self, id: str) -> None:
        """Job ``id`` no longer counts as completed (it is used again, or retried): who waits waits for it again."""
        if id not in self.proofs:
            for waiter in self.dependents.get(id, ()):
                self.unmet_counts[waiter] += 1

    def bound_memory(self, memory: dict[str, Any]) -> None:
        _bound(memory, self.settings.max_completed_jobs)


def _packed(job: Job) -> Any:
    return Packed(job.data) if job.data is not None else None
