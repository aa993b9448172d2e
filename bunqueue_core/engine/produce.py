"""Admission: single and bulk pushes, custom ids, deduplication, group capacity, links to parents, whole flows.

A bulk is planned whole before anything changes: every decision is made against what is there plus what the same bulk has
planned, so a refusal of any member leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bunqueue_core.engine.base import LIVE, MIN_UNIQUE_BOUND
from bunqueue_core.engine.dependencies import DependencyRules
from bunqueue_core.engine.queue import QueueState, UniqueKey
from bunqueue_core.model.errors import CommandError, Conflict, NotFound
from bunqueue_core.model.job import DEFAULT_OPTIONS, DURABLE_OPTIONS, Job, JobSpec, JobState, Location
from bunqueue_core.model.requests import FlowJob, Pushed

PushOutcome = Literal["created", "found", "replaced"]


class _Plan:
    """What one push will do, and what it has decided so far."""

    __slots__ = (
        "debounced",
        "duplicated",
        "extended",
        "groups",
        "ids",
        "keys",
        "known",
        "linked",
        "outcomes",
        "removed",
        "updates",
        "wanted",
    )

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.outcomes: list[PushOutcome] = []
        self.known: dict[str, _Admission] = {}  #: planned jobs by id, in order
        self.keys: dict[tuple[str, str], str] = {}  #: planned key owners
        self.removed: set[str] = set()  #: owners that will be replaced
        self.groups: dict[tuple[str, str], int] = {}  #: planned group sizes
        self.linked: set[str] = set()  #: existing jobs that planned ones are children of
        self.wanted: set[str] = set()  #: ids that planned jobs depend on
        self.duplicated: list[Job] = []  #: owners of keys that stand for what was to be added
        self.extended: list[tuple[UniqueKey, int, Job]] = []  #: keys, when they expire from now on, and their owners
        self.debounced: dict[str, str] = {}  #: planned jobs by debounce id
        self.updates: dict[
            str, tuple[JobSpec, int]
        ] = {}  #: by the id of a debounced job: what it becomes, and when it runs


class _Admission:
    """A job to be admitted, and what has to go for it."""

    __slots__ = ("job", "parent", "replaced", "retired", "unmet")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.unmet: list[str] = []
        self.retired: Job | None = None  #: finished generation of the same custom id
        self.replaced: Job | None = None  #: owner of the deduplication key, to be removed
        self.parent: str | None = None  #: existing job to link to


def _is_debounced(spec: JobSpec) -> bool:
    """The job waits for more of its kind before it runs."""
    return spec.options.debounce_id is not None and bool(spec.options.debounce_ttl_ms)


def _debounced_run(spec: JobSpec, first_at: int, now: int) -> int:
    """When a debounced job runs (epoch ms) if nothing more comes: its time from now, but not later than its longest wait allows.

    Args:
        spec: the newest of its kind.
        first_at: when the first was added (epoch ms).
        now: epoch ms.
    """
    run_at = now + (spec.options.debounce_ttl_ms or 0)
    if spec.options.debounce_max_wait_ms is not None:
        run_at = min(run_at, first_at + spec.options.debounce_max_wait_ms)
    return max(run_at, now)


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
        return self._push_one(name, specs[0], now) if len(specs) == 1 else self._push_plain(name, specs, now)

    def _push_one(self, name: str, spec: JobSpec, now: int) -> Pushed:
        """The same as :meth:`_push_plain` for one job, without what only many need."""
        queue = self.queues.get(name) or self.queue(name)
        id = self.ports.new_id()
        priority, delay = spec.priority, spec.delay
        state: JobState = "delayed" if delay > 0 else "prioritized" if priority > 0 else "waiting"
        run_at = now + delay if delay > 0 else now
        job = Job(id, name, spec.name, spec.data, spec.options, priority, now, run_at, state, now, now)
        self.jobs[id] = job
        self.marks.admitted_one(job)
        queue.insert(job, now)
        self.totals.pushed += 1
        if self.listening:
            self.emit("pushed", job, now)
        else:
            queue.events += 1
        if queue.waiters:
            self.wake(queue)
        return Pushed([id], ["created"])

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
                job = Job(
                    id, name, spec.name, spec.data, spec.options, priority, now, now + spec.delay, "delayed", now, now
                )
                delayed.append(job)
            else:
                state: JobState = "prioritized" if priority > 0 else "waiting"
                job = Job(id, name, spec.name, spec.data, spec.options, priority, now, now, state, now, now)
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
        return self._apply(plan, name, now)

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
                if existing.location in LIVE:
                    self._found(plan, custom_id)
                    return
                retired = existing
            if custom_id in self.proofs and self.dependents.get(custom_id):
                raise Conflict(f"Custom ID {custom_id} still has unresolved dependency consumers")
        for id in spec.depends_on:
            if id in plan.removed and id not in plan.known:
                raise NotFound(f"Dependency job not found: {id}")
        if spec.parent_queue is not None and spec.parent_id in plan.removed:
            raise NotFound(f"Parent job not found: {spec.parent_id}")
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
        if _is_debounced(spec) and outcome == "created" and self._debounce(plan, name, spec, now):
            return
        if spec.group_id is not None and outcome == "created":
            self._check_group_size(plan, name, spec)
        admission = _Admission(self._build(name, spec, now))
        admission.retired = retired
        admission.replaced = replaced
        job = admission.job
        if spec.parent_queue is not None:
            assert spec.parent_id is not None
            admission.parent = spec.parent_id
            plan.linked.add(spec.parent_id)
        if replaced is not None:
            if plan.known.pop(replaced.id, None) is not None:
                admission.replaced = None
            else:
                plan.removed.add(replaced.id)
        plan.known[job.id] = admission
        plan.wanted.update(spec.depends_on)
        if job.unique_key is not None:
            plan.keys[name, job.unique_key] = job.id
        if _is_debounced(spec):
            plan.debounced[spec.options.debounce_id or ""] = job.id
        if job.group_id is not None and all(id not in plan.known and self.is_met(id) for id in spec.depends_on):
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
        if _is_debounced(spec):
            run_at = max(run_at, _debounced_run(spec, now, now))
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
            if entry is None or entry.expired(now):
                return None
            owner = self.jobs.get(entry.job_id) if entry.job_id not in plan.removed else None
        if options.dedup_replace:
            if owner is None or owner.location not in LIVE:
                return None
            if (
                self.dependents.get(owner.id)
                or owner.id in spec.depends_on
                or owner.id in plan.wanted
                or owner.id in plan.linked
                or (spec.parent_queue is not None and owner.id == spec.parent_id)
            ):
                raise Conflict(f"Cannot replace deduplicated job {owner.id} because live jobs depend on it")
            return owner
        if options.dedup_extend and options.dedup_ttl_ms:
            if owner is not None and owner.location == Location.READY:
                if entry is not None:
                    plan.extended.append((entry, now + options.dedup_ttl_ms, owner))
                return owner.id
            if entry is not None and queue is not None:
                # As the text says, and as the reference does.
                self._prolong(queue, key, entry, now + options.dedup_ttl_ms)
            raise Conflict("Duplicate unique_key (extended TTL)")
        if owner is None:
            # Only a window outlives its owner.
            window = entry is not None and (entry.window or options.dedup_scope == "window")
            return entry.job_id if entry is not None and window else None
        plan.duplicated.append(owner)
        return owner.id

    def _prolong(self, queue: QueueState, key: str, entry: UniqueKey, expires_at: int) -> None:
        entry.expires_at = expires_at
        if entry.window:
            self.note_window(queue, key, entry)

    # -- debounce -----------------------------------------------------------------------------------------------------

    def _debounce(self, plan: _Plan, name: str, spec: JobSpec, now: int) -> bool:
        """Let the job that waits under the same debounce id take over what ``spec`` says. False if there is none."""
        debounce_id = spec.options.debounce_id or ""
        planned = plan.known.get(plan.debounced.get(debounce_id, ""))
        if planned is not None:
            job = planned.job
            job.name, job.data = spec.name, spec.data
            job.run_at = max(job.created_at, _debounced_run(spec, job.admitted_at, now))
            self._found(plan, job.id)
            return True
        queue = self.queues.get(name)
        waiting = self._debounced(queue, debounce_id) if queue is not None else None
        if waiting is None or waiting.id in plan.removed:
            return False
        plan.updates[waiting.id] = (spec, _debounced_run(spec, waiting.admitted_at, now))
        plan.duplicated.append(waiting)
        self._found(plan, waiting.id)
        return True

    def _debounced(self, queue: QueueState, debounce_id: str) -> Job | None:
        """The job that waits, was never tried, and takes over what comes under its debounce id."""
        job = self.jobs.get(queue.debounced.get(debounce_id, ""))
        if (
            job is None
            or job.queue != queue.name
            or job.location not in (Location.READY, Location.GATED)
            or job.attempts
            or job.options.debounce_id != debounce_id
            or job.parent_id is not None
            or job.children_ids
        ):
            return None
        return job

    def _update_debounced(self, id: str, spec: JobSpec, run_at: int, now: int) -> None:
        job = self.jobs[id]
        job.name, job.data = spec.name, spec.data
        if job.location == Location.READY:
            self.reschedule(job, run_at, now)
        else:
            job.run_at = run_at
            self.marks.changed(job)

    def _check_group_size(self, plan: _Plan, name: str, spec: JobSpec) -> None:
        if spec.group_max_size is None:
            return
        queue = self.queues.get(name)
        group = queue.groups.by_id.get(spec.group_id or "") if queue is not None and queue.groups is not None else None
        size = (group.queued if group is not None else 0) + plan.groups.get((name, spec.group_id or ""), 0)
        if size >= spec.group_max_size:
            raise Conflict(f"Group {spec.group_id} has reached its maximum size of {spec.group_max_size}")

    # -- applying -----------------------------------------------------------------------------------------------------

    def _apply(self, plan: _Plan, name: str, now: int) -> Pushed:
        queue = self.queue(name)
        for owner in plan.duplicated:
            self.emit("duplicated", owner, now)
        for entry, expires_at, owner in plan.extended:
            self._prolong(queue, owner.unique_key or "", entry, expires_at)
            if self.noticing:
                self.notice("job:deduplicated", queue=name, jobId=owner.id, strategy="extend")
        children: dict[str, list[Job]] = {}
        for admission in plan.known.values():
            # All that goes goes first: a job that is admitted may wait for one whose earlier generation had completed.
            if admission.retired is not None:
                self.retire_generation(admission.retired)
            if admission.replaced is not None:
                self.remove_queued(admission.replaced)
        for id, admission in plan.known.items():
            job = admission.job
            if job.custom_id is not None:
                self.proofs_discard(id)
                self.retired_jobs.pop(id, None)
                self.unblock(id)
            # A member of the same bulk is not complete, whatever it replaces.
            unmet = [other for other in dict.fromkeys(job.depends_on) if other in plan.known or not self.is_met(other)]
            if unmet:
                job.admitted_as = "waiting-children"
            self.admit(queue, job, unmet, now)
            if admission.parent is not None:
                children.setdefault(admission.parent, []).append(job)
        for parent, jobs in children.items():
            self.add_children(self.jobs[parent], jobs, now)
        for id, (spec, run_at) in plan.updates.items():
            if id not in plan.removed:  # a later member of the same bulk may have taken its place
                self._update_debounced(id, spec, run_at, now)
        if plan.known:
            self.wake(queue)
        return Pushed(plan.ids, plan.outcomes)

    def admit(self, queue: QueueState, job: Job, unmet: Sequence[str], now: int) -> None:
        """Publish a new job: index, key, run set or gate, mark, event."""
        self.jobs[job.id] = job
        self.claim_key(queue, job, now)
        if job.options.debounce_id is not None:
            self._note_debounced(queue, job.options.debounce_id, job)
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

    def _note_debounced(self, queue: QueueState, debounce_id: str, job: Job) -> None:
        debounced = queue.debounced
        debounced[debounce_id] = job.id
        if len(debounced) > 2 * queue.queued + MIN_UNIQUE_BOUND:
            queue.debounced = {key: id for key, id in debounced.items() if self._debounced(queue, key) is not None}
            queue.debounced[debounce_id] = job.id

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
        self.release_key_finally(queue, job)
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
