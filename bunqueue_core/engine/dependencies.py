"""Dependencies: jobs that wait for others, parents and children, and what a child's failure does to its parent.

A dependency is met when its job is in the completed set, or has left a completion proof (completed and removed). Nothing
else is evidence: not a result, not a dead letter. A gated job is known to all its dependencies (``dependents``), met or not, so
that evidence it still needs is not thrown away; how many it still waits for is counted, so that completing a job costs what its
waiters cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from bunqueue_core.engine.base import EngineBase
from bunqueue_core.engine.queue import QueueState, StaleChildren
from bunqueue_core.model.errors import Conflict, NotFound
from bunqueue_core.model.job import Job, JobSpec, Location, admission_entry, ready_state
from bunqueue_core.model.payload import Packed, decode
from bunqueue_core.storage.changes import AGE_TABLE, FLOW_FAILURE_TABLE, PROOF_TABLE

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

    def wait_again(self, job: Job) -> list[str]:
        """What a job, all of whose dependencies had been met, has to wait for. Those whose records are gone had completed."""
        job.depends_on = tuple(id for id in job.depends_on if self.is_known(id))
        return self.unmet(job.depends_on)

    def unmet(self, ids: Iterable[str]) -> list[str]:
        return [id for id in dict.fromkeys(ids) if not self.is_met(id)]

    def add_proof(self, job: Job, now: int) -> None:
        """Remember that a job completed whose record goes away. Proofs that nobody waits for are bounded."""
        self.proofs.pop(job.id, None)
        self.proofs[job.id] = job.queue
        self.marks.table(PROOF_TABLE, (job.id, job.queue, now))
        limit = self.settings.max_remembered
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

    def keep_evidence(self, job: Job, now: int) -> None:
        """Keep of a completed job whose record goes what live jobs need: that it completed, and its result."""
        self.add_proof(job, now)
        result = self.results.get(job.id)
        if result is not None:
            self.pinned_results[job.id] = (job.queue, result)

    # -- the gate -----------------------------------------------------------------------------------------------------

    def gate(self, queue: QueueState, job: Job, unmet: Sequence[str]) -> None:
        """Hold a job that is in no container until ``unmet`` are met."""
        job.location = Location.GATED
        queue.gated[job.id] = job
        self.unmet_counts[job.id] = len(unmet)
        for id in job.depends_on:
            self.dependents.setdefault(id, {})[job.id] = None
        for id in unmet:
            dependency = self.jobs.get(id)
            if dependency is None or dependency.location == Location.DEAD:
                self.doom(id)

    def ungate(self, queue: QueueState, job: Job) -> None:
        """Take a job out of the gate, with its reverse edges."""
        queue.gated.pop(job.id, None)
        self.unmet_counts.pop(job.id, None)
        self.blocked.pop(job.id, None)
        for id in job.depends_on:
            self.drop_edge(id, job.id)
        self._settle_dropped(job)
        if job.id in self.stale_children:
            self.tell_children(job)

    def drop_edge(self, dependency: str, waiter: str) -> None:
        waiters = self.dependents.get(dependency)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self.dependents[dependency]
        if waiter in self.blocked:
            self._unblock(waiter, dependency)

    # -- dependencies that cannot complete ----------------------------------------------------------------------------

    def unblock(self, id: str) -> None:
        """Job ``id`` can complete again."""
        if self.blocked:
            for waiter in self.dependents.get(id, ()):
                self._unblock(waiter, id)

    def _unblock(self, waiter: str, dependency: str) -> None:
        blockers = self.blocked.get(waiter)
        if blockers is not None:
            blockers.pop(dependency, None)
            if not blockers:
                del self.blocked[waiter]

    def report_blocked(self, now: int) -> None:
        """Note for whom jobs that cannot complete any more stand in the way, and tell whoever listens."""
        doomed, self.doomed = self.doomed, {}
        for id in doomed:
            job = self.jobs.get(id)
            if id in self.proofs or (job is not None and job.location != Location.DEAD):
                continue
            for waiter in self.dependents.get(id, ()):
                blockers = self.blocked.get(waiter)
                if blockers is not None:
                    blockers[id] = None
                    continue
                self.blocked[waiter] = {id: None}
                self.emit("blocked", self.jobs[waiter], now, data={"blockedBy": [id]})

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

    def add_children(self, parent: Job, children: Sequence[Job], now: int) -> None:
        """Add edges; the parent waits if one of the children has not completed yet."""
        queue = self.queue(parent.queue)
        unmet = [child for child in children if not self.is_met(child.id)]
        if unmet and parent.location != Location.GATED:
            self.take_out(queue, parent)
            if parent.where:
                parent = self.replace(parent)
            self.timeline(parent, "waiting-children", now)
            self.gate(queue, parent, self.wait_again(parent))
        new = self._add_edges(parent, children) if parent.location == Location.GATED else children
        known = self.stale_children.get(parent.id)
        if known is None:
            # The payload names the children, too. It is written anew only when somebody looks: children may come one by one.
            known = self.stale_children[parent.id] = StaleChildren(parent)
        parent.children_ids = (*parent.children_ids, *[child.id for child in children if child.id not in known.ids])
        known.ids.update(child.id for child in children)
        listed = known.listed
        parent.depends_on = (*parent.depends_on, *[child.id for child in new if child.id not in listed])
        listed.update(child.id for child in children)
        if parent.location != Location.GATED:
            self.tell_children(parent)
        self.marks.changed(parent)

    def _add_edges(self, parent: Job, children: Sequence[Job]) -> list[Job]:
        """Edges from a gated job to further dependencies. Gives those children that it did not wait for before."""
        new: list[Job] = []
        failures = self.child_failures.get(parent.id)
        for child in children:
            waiters = self.dependents.setdefault(child.id, {})
            if parent.id in waiters:
                continue
            waiters[parent.id] = None
            new.append(child)
            if failures and child.id in failures:
                # It counts again, whatever became of it before.
                del failures[child.id]
                self.marks.table_removed(FLOW_FAILURE_TABLE, parent.id, child.id)
                self.dropped.get(parent.id, {}).pop(child.id, None)
            if not self.is_met(child.id):
                self.unmet_counts[parent.id] += 1
                if child.location == Location.DEAD:
                    self.doom(child.id)
        return new

    def tell_children(self, job: Job) -> None:
        """Write the ids of a job's children into its payload."""
        self.stale_children.pop(job.id, None)
        self._set_data(job, {"__childrenIds": list(job.children_ids) or None})

    def before_commit(self) -> None:
        for stale in list(self.stale_children.values()):
            self.tell_children(stale.parent)

    def _set_data(self, job: Job, keys: dict[str, Any]) -> None:
        """Set (or with None delete) keys of a payload that is a map; other payloads are left alone."""
        value = decode(job.data) if job.data is not None else {}
        if not isinstance(value, dict) or (not value and not any(keys.values())):
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
            self.add_children(parent, [child], now)
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
            or child_id in self.dropped.get(parent.id, ())  # it goes on without that one already
            or child.location not in (Location.READY, Location.GATED, Location.PARKED, Location.ACTIVE)
        ):
            return False
        self.detach(child)
        self.drop_children(parent, {child_id}, now)
        return True

    def detach(self, child: Job) -> None:
        child.parent_id = None
        self._set_data(child, {"__parentId": None, "__parentQueue": None})
        self.marks.changed(child)

    def drop_children(self, parent: Job, ids: Collection[str], now: int) -> None:
        """Remove the edges of a gated parent to children; it starts when nothing is left to wait for."""
        self._settle_dropped(parent)
        kept = [id for id in dict.fromkeys(parent.depends_on) if id not in ids and not self.is_met(id)]
        for id in set(parent.depends_on).difference(kept):
            self.drop_edge(id, parent.id)
        parent.depends_on = tuple(kept)
        self.unmet_counts[parent.id] = len(kept)
        parent.children_ids = tuple(id for id in parent.children_ids if id not in ids)
        self.stale_children[parent.id] = StaleChildren(parent)
        self.marks.changed(parent)
        if not kept:
            self.promote_parent(parent, now)

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
        """Apply the policy of a child that failed for good to its parent, if it waits.

        A parent that fails with its child is no failure of its own: its policy is not applied to the next generation, which shows
        what it is blocked by.
        """
        parent = self._parent_of_failed(child)
        if parent is None:
            return
        text = error or UNKNOWN_ERROR
        if child.options.fail_parent_on_failure:
            self._fail_parent(parent, f"Child job {child.id} failed: {text}", now)
        else:
            self._survive(parent, child, text, now)

    def _parent_of_failed(self, child: Job) -> Job | None:
        """The parent that a child's failure means something to."""
        options = child.options
        if child.parent_id is None or not (
            options.fail_parent_on_failure
            or options.continue_parent_on_failure
            or options.ignore_dependency_on_failure
            or options.remove_dependency_on_failure
        ):
            return None
        parent = self.jobs.get(child.parent_id)
        if parent is None or parent.location not in (Location.READY, Location.GATED, Location.PARKED):
            return None
        return parent

    def _fail_parent(self, parent: Job, error: str, now: int) -> None:
        """A parent fails with its child, whatever attempts it has left."""
        queue = self.queue(parent.queue)
        self.take_out(queue, parent)
        if parent.where:
            parent = self.replace(parent)
        self.release_key_finally(queue, parent)
        parent.history = None
        self.record_attempt(parent, now, "unknown", error)
        self.bury(queue, parent, now, "unknown", error)
        self.clear_child_failures(parent.id)
        self.totals.failed += 1
        queue.total_failed += 1
        self.count_metric(queue, "failed", now)
        self.emit("failed", parent, now, error=error, data=_packed(parent))

    def _survive(self, parent: Job, child: Job, error: str, now: int) -> None:
        """A parent goes on without what a failed child would have given."""
        options = child.options
        mode = (
            "continue"
            if options.continue_parent_on_failure
            else "ignore"
            if options.ignore_dependency_on_failure
            else "remove"
        )
        # What does not start the parent yet is stored as a row of its own: the parent's may be as long as it has children.
        self.child_failures.setdefault(parent.id, {})[child.id] = (mode, error, child.queue)
        self.marks.table(FLOW_FAILURE_TABLE, (parent.id, child.id, child.queue, mode, error, now))
        if parent.location != Location.GATED:
            return
        if mode == "continue":
            for id in parent.depends_on:
                self.drop_edge(id, parent.id)
            parent.depends_on = ()
            self.dropped.pop(parent.id, None)
            self.promote_parent(parent, now)
            return
        if parent.id not in self.dependents.get(child.id, ()):
            return
        self.drop_edge(child.id, parent.id)
        self.dropped.setdefault(parent.id, {})[child.id] = None
        self.unmet_counts[parent.id] -= 1
        if not self.unmet_counts[parent.id]:
            self.promote_parent(parent, now)

    def awaited_by(self, job: Job) -> tuple[str, ...]:
        """What a job depends on, without the children that it goes on without."""
        dropped = self.dropped.get(job.id)
        return job.depends_on if dropped is None else tuple(id for id in job.depends_on if id not in dropped)

    def _settle_dropped(self, job: Job) -> None:
        """Take the children that a job goes on without off the list of what it depends on."""
        if job.id in self.dropped:
            job.depends_on = self.awaited_by(job)
            del self.dropped[job.id]

    def released_by_failures(self, job: Job) -> bool:
        """Take from a stored gated job the dependencies that failed since its row was written; True if it starts for that."""
        failures = self.child_failures.get(job.id)
        if not failures:
            return False
        if any(mode == "continue" and child in job.depends_on for child, (mode, _, _) in failures.items()):
            job.depends_on = ()
            return True
        dropped = {id for id, (mode, _, _) in failures.items() if mode in ("ignore", "remove")}
        kept = tuple(id for id in job.depends_on if id not in dropped)
        released = kept != job.depends_on and not self.unmet(kept)
        job.depends_on = kept
        return released

    # -- completed jobs -----------------------------------------------------------------------------------------------

    def forget_completed(self, queue: QueueState, job: Job) -> None:
        """Remove a completed job for good, from memory and storage."""
        self.take_completed(queue, job)
        self.evidence_lost(job.id)
        if self.settings.persistent and job.options.remove_on_complete.age_ms is not None:
            self.marks.table_removed(AGE_TABLE, job.id)
        self.forget(job)

    def take_completed(self, queue: QueueState, job: Job) -> None:
        """Take a job out of the completed ones."""
        if queue.completed.pop(job.id, None) is not None:
            self.completed_in_memory -= 1
            self.completed_order.pop(job.id, None)
        queue.completed_count -= 1

    def evidence_lost(self, id: str) -> None:
        """Job ``id`` no longer counts as completed (it is used again, or retried): who waits waits for it again."""
        if id not in self.proofs:
            for waiter in self.dependents.get(id, ()):
                self.unmet_counts[waiter] += 1

    def lose_proofs(self, queue: str) -> None:
        """Forget that jobs of a queue have completed whose records are gone."""
        for id in [id for id, owner in self.proofs.items() if owner == queue]:
            self.proofs_discard(id)
            job = self.jobs.get(id)
            if id in self.dependents and (job is None or job.location != Location.COMPLETED):
                self.evidence_lost(id)
                self.doom(id)
            self.pinned_results.pop(id, None)


def _packed(job: Job) -> Any:
    return Packed(job.data) if job.data is not None else None
