"""Admission: single and bulk pushes, custom ids, deduplication, group capacity, links to parents, whole flows.

A bulk is planned whole before anything changes: every decision is made against what is there plus what the same bulk has
planned, so a refusal of any member leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from bunqueue_core.engine.dependencies import DependencyRules
from bunqueue_core.engine.queue import QueueState, UniqueKey
from bunqueue_core.model.errors import CommandError, Conflict, NotFound
from bunqueue_core.model.job import DEFAULT_OPTIONS, DURABLE_OPTIONS, Job, JobSpec, JobState, Location
from bunqueue_core.model.requests import FlowJob, Pushed

_LIVE: Final = (Location.READY, Location.GATED, Location.PARKED, Location.ACTIVE)

PushOutcome = Literal["created", "found", "replaced"]


class _Plan:
    """What one push will do, and what it has decided so far."""

    __slots__ = ("groups", "ids", "jobs", "keys", "known", "outcomes", "removed")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.outcomes: list[PushOutcome] = []
        self.jobs: list[_Admission] = []
        self.known: dict[str, _Admission] = {}  #: planned jobs by id
        self.keys: dict[tuple[str, str], str] = {}  #: planned key owners
        self.removed: set[str] = set()  #: owners that will be replaced
        self.groups: dict[tuple[str, str], int] = {}  #: planned group sizes


class _Admission:
    """A job to be admitted, and what has to go for it."""

    __slots__ = ("gated", "job", "parent", "replaced", "retired", "unmet")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.unmet: list[str] = []
        self.gated = False
        self.retired: Job | None = None  #: finished generation of the same custom id
        self.replaced: Job | None = None  #: owner of the deduplication key, to be removed
        self.parent: str | None = None  #: existing job to link to


class Producing(DependencyRules):
    """The verbs ``push`` and ``push_flow``."""

    def push(self, name: str, specs: Sequence[JobSpec], now: int) -> Pushed:
        """Admit ``specs`` to queue ``name``, all or none. See ``Broker.push``."""
        for spec in specs:
            if not spec.plain and (
                (spec.options is not DEFAULT_OPTIONS and spec.options is not DURABLE_OPTIONS)
                or spec.custom_id is not None
                or spec.unique_key is not None
                or spec.group_id is not None
                or spec.depends_on
                or spec.parent_id is not None
                or spec.timestamp is not None
                or spec.children_ids
                or spec.tags
            ):
                return self._push_planned(name, specs, now)
        return self._push_plain(name, specs, now)

    def _push_plain(self, name: str, specs: Sequence[JobSpec], now: int) -> Pushed:
        """Jobs with nothing but data, priority, delay and durability: nothing can refuse them."""
        queue = self.queue(name)
        new_id = self.ports.new_id
        ready: list[Job] = []
        delayed: list[Job] = []
        ids: list[str] = []
        for spec in specs:
            id = new_id()
            ids.append(id)
            priority = spec.priority
            if spec.delay > 0:
                job = Job(id, name, spec.name, spec.data, spec.options, priority, now, now + spec.delay, "delayed", now)
                delayed.append(job)
            else:
                state: JobState = "prioritized" if priority > 0 else "waiting"
                job = Job(id, name, spec.name, spec.data, spec.options, priority, now, now, state, now)
                ready.append(job)
        for jobs in (ready, delayed):
            if jobs:
                by_id = {job.id: job for job in jobs}
                self.jobs.update(by_id)
                self.marks.admitted_plain(by_id)
        queue.ready.add_all(ready)
        for job in delayed:
            queue.insert(job, now)
        self.totals.pushed += len(ids)
        if self.listening:
            for id in ids:
                self.emit("pushed", self.jobs[id], now)
        else:
            queue.events += len(ids)
        self.wake(queue)
        return Pushed(ids, ["created"] * len(ids))

    # -- planning -----------------------------------------------------------------------------------------------------

    def _push_planned(self, name: str, specs: Sequence[JobSpec], now: int) -> Pushed:
        plan = _Plan()
        batch = {spec.custom_id for spec in specs if spec.custom_id is not None} if len(specs) > 1 else set()
        for position, spec in enumerate(specs):
            try:
                self._check_dependencies(spec, batch)
            except CommandError as error:
                error.position = position
                raise
        for spec in specs:
            if spec.parent_queue is not None:
                self._check_parent(spec, now)
        for spec in specs:
            self._plan_one(plan, name, spec, now)
        return self._apply(plan, now)

    def _check_dependencies(self, spec: JobSpec, batch: set[str]) -> None:
        for id in spec.depends_on:
            if id == spec.custom_id:
                raise Conflict(f"Job cannot depend on itself: {id}")
            if id not in self.jobs and id not in self.proofs and id not in batch:
                raise NotFound(f"Dependency job not found: {id}")

    def _plan_one(self, plan: _Plan, name: str, spec: JobSpec, now: int) -> None:
        custom_id = spec.custom_id
        retired: Job | None = None
        if custom_id is not None:
            if custom_id in plan.known:
                self._found(plan, custom_id)
                return
            existing = self.jobs.get(custom_id)
            if existing is not None and custom_id not in plan.removed:
                if existing.location in _LIVE:
                    self._found(plan, custom_id)
                    return
                retired = existing
            if custom_id in self.proofs and self.dependents.get(custom_id):
                raise Conflict(f"Custom ID {custom_id} still has unresolved dependency consumers")
        replaced: Job | None = None
        outcome: PushOutcome = "created"
        if spec.unique_key is not None:
            decision = self._deduplicate(plan, name, spec, now)
            if isinstance(decision, str):
                self._found(plan, decision)
                return
            if decision is not None:
                outcome = "replaced"
                if decision.location != Location.ACTIVE:
                    replaced = decision
        if spec.group_id is not None and outcome == "created":
            self._check_group_size(plan, name, spec)
        admission = _Admission(self._build(name, spec, now))
        admission.retired = retired
        admission.replaced = replaced
        job = admission.job
        admission.unmet = [
            id for id in dict.fromkeys(spec.depends_on) if id in plan.known or id == custom_id or not self.is_met(id)
        ]
        # A dependency on a member of the same bulk that comes later is unmet too: it is not complete, whatever it replaces.
        admission.gated = bool(admission.unmet)
        if admission.gated:
            job.admitted_as = "waiting-children"
        if spec.parent_queue is not None:
            admission.parent = spec.parent_id
        if replaced is not None:
            planned = plan.known.pop(replaced.id, None)
            if planned is not None:
                plan.jobs.remove(planned)
                admission.replaced = None
            else:
                plan.removed.add(replaced.id)
        plan.jobs.append(admission)
        plan.known[job.id] = admission
        if job.unique_key is not None:
            plan.keys[name, job.unique_key] = job.id
        if job.group_id is not None and not admission.gated:
            key = (name, job.group_id)
            plan.groups[key] = plan.groups.get(key, 0) + 1
        plan.ids.append(job.id)
        plan.outcomes.append(outcome)

    @staticmethod
    def _found(plan: _Plan, id: str) -> None:
        plan.ids.append(id)
        plan.outcomes.append("found")

    def _build(self, name: str, spec: JobSpec, now: int) -> Job:
        created_at = now if spec.timestamp is None else spec.timestamp
        run_at = created_at + spec.delay
        state: JobState = "delayed" if run_at > now else ("prioritized" if spec.priority > 0 else "waiting")
        id = spec.custom_id if spec.custom_id is not None else self.ports.new_id()
        job = Job(id, name, spec.name, spec.data, spec.options, spec.priority, created_at, run_at, state, now)
        job.custom_id = spec.custom_id
        job.unique_key = spec.unique_key
        job.group_id = spec.group_id
        job.parent_id = spec.parent_id
        job.depends_on = spec.depends_on
        job.children_ids = spec.children_ids
        job.tags = spec.tags
        return job

    def _deduplicate(self, plan: _Plan, name: str, spec: JobSpec, now: int) -> Job | str | None:
        """Decide on a deduplication key: the id that stands for the job, the owner that it replaces, or None (free)."""
        key = spec.unique_key
        assert key is not None
        options = spec.options
        planned_id = plan.keys.get((name, key))
        queue = self.queues.get(name)
        entry: UniqueKey | None = None
        owner: Job | None
        if planned_id is not None and planned_id in plan.known:
            owner = plan.known[planned_id].job
        else:
            entry = queue.unique.get(key) if queue is not None else None
            if entry is None or (entry.expires_at is not None and entry.expires_at <= now):
                return None
            owner = self.jobs.get(entry.job_id) if entry.job_id not in plan.removed else None
        if options.dedup_replace:
            if owner is None or owner.location not in _LIVE:
                return None
            if self.dependents.get(owner.id) or owner.id in spec.depends_on:
                raise Conflict(f"Cannot replace deduplicated job {owner.id} because live jobs depend on it")
            return owner
        if options.dedup_extend and options.dedup_ttl_ms:
            if owner is not None and owner.location == Location.READY:
                if entry is not None:
                    entry.expires_at = now + options.dedup_ttl_ms
                if self.noticing:
                    self.notice("job:deduplicated", queue=name, jobId=owner.id, strategy="extend")
                return owner.id
            raise Conflict("Duplicate unique_key (extended TTL)")
        if owner is None:
            # Only a window outlives its owner.
            return entry.job_id if entry is not None and options.dedup_scope == "window" else None
        if owner.queue in self.queues:
            self.emit("duplicated", owner, now)
        return owner.id

    def _check_group_size(self, plan: _Plan, name: str, spec: JobSpec) -> None:
        if spec.group_max_size is None:
            return
        queue = self.queues.get(name)
        group = queue.groups.by_id.get(spec.group_id or "") if queue is not None and queue.groups is not None else None
        size = (group.queued if group is not None else 0) + plan.groups.get((name, spec.group_id or ""), 0)
        if size >= spec.group_max_size:
            raise Conflict(f"Group {spec.group_id} has reached its maximum size of {spec.group_max_size}")

    # -- applying -----------------------------------------------------------------------------------------------------

    def _apply(self, plan: _Plan, now: int) -> Pushed:
        touched: dict[str, QueueState] = {}
        for admission in plan.jobs:
            job = admission.job
            queue = self.queue(job.queue)
            if admission.retired is not None:
                self.retire_generation(admission.retired)
            if admission.replaced is not None:
                self.remove_queued(admission.replaced)
            if job.custom_id is not None:
                self.proofs_discard(job.id)
                self.retired_jobs.pop(job.id, None)
            self.admit(queue, job, admission.unmet, now)
            touched[queue.name] = queue
            if admission.parent is not None:
                self.link_new_child(job, admission.parent, now)
        for queue in touched.values():
            self.wake(queue)
        return Pushed(plan.ids, plan.outcomes)

    def admit(self, queue: QueueState, job: Job, unmet: Sequence[str], now: int) -> None:
        """Publish a new job: index, key, run set or gate, mark, event."""
        self.jobs[job.id] = job
        self.claim_key(queue, job, now)
        if job.group_id is not None:
            groups = queue.group_set()
            job.group_order = groups.next_order
            groups.next_order += 1
        if unmet:
            self.gate(queue, job, unmet)
        else:
            queue.insert(job, now)
        self.marks.admitted(job)
        self.totals.pushed += 1
        self.emit("pushed", job, now)
        if unmet and self.noticing:
            self.notice("job:waiting-children", jobId=job.id, queue=queue.name, dependsOn=list(job.depends_on))

    def retire_generation(self, job: Job) -> None:
        """Remove a finished job whose custom id is used again, with its result, dead letter and memories."""
        queue = self.queue(job.queue)
        if job.location == Location.COMPLETED:
            self.forget_completed(queue, job)
        elif job.id in queue.dlq:
            self.forget_dead_letter(queue, job.id)
        self.retired_jobs.pop(job.id, None)

    def remove_queued(self, job: Job) -> None:
        """Remove a job that waits (in the run set, gated or parked), silently."""
        queue = self.queue(job.queue)
        self.take_out(queue, job)
        self.release_key(queue, job)
        self.forget(job)

    def push_flow(self, flow: Sequence[FlowJob], now: int) -> list[Job]:
        """Admit a whole graph, all or none; its topology has been validated. Gives snapshots in input order."""
        planned = {member.id for member in flow}
        sizes: dict[tuple[str, str], int] = {}
        for member in flow:
            if self.is_known(member.id) or self.dependents.get(member.id):
                raise Conflict(f"Flow job {member.id} already exists")
        for member in flow:
            spec = member.spec
            if spec.group_id is None or any(id in planned for id in spec.depends_on):
                continue
            plan = _Plan()
            plan.groups = sizes
            self._check_group_size(plan, member.queue, spec)
            sizes[member.queue, spec.group_id] = sizes.get((member.queue, spec.group_id), 0) + 1
        jobs: list[Job] = []
        for member in flow:
            spec = member.spec
            named, spec.custom_id = spec.custom_id, member.id
            job = self._build(member.queue, spec, now)
            job.custom_id = spec.custom_id = named  # a planned id is a custom id only if the producer calls it one
            if spec.depends_on:
                job.admitted_as = "waiting-children"
            jobs.append(job)
        for job in jobs:
            queue = self.queue(job.queue)
            self.admit(queue, job, job.depends_on, now)
        for job in jobs:
            self.wake(self.queue(job.queue))
        return [job.snapshot() for job in jobs]
