"""Admissions that need decisions: deduplication, debounce, dependencies, links to parents, group capacity, whole flows.

Everything that a decision depends on is locked before: names (deduplication keys, groups) by advisory locks, jobs by their rows.
Calls are planned one after the other on one common plan, so that each sees what those before it decided; a refused call leaves
nothing in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from bunqueue_core.model.errors import CommandError, Conflict, NotFound
from bunqueue_core.model.job import JobOptions, JobSpec, Location
from bunqueue_postgres.admission import Columns
from bunqueue_postgres.keys import escape, to_key, unescape
from bunqueue_postgres.records import AWAITED, FREED_BY_CLAIM, KEYED, REPEATS, WAITING, OptionsCodec, Record

_LIVE: Final = (Location.READY, Location.GATED, Location.PARKED, Location.ACTIVE)

#: Where a parent must be to take a child.
LINKABLE: Final = (Location.READY, Location.GATED, Location.PARKED)

PushOutcome = Literal["created", "found", "replaced"]


@dataclass(slots=True)
class KeyOwner:
    """A deduplication key's owner; ``expires_at`` in epoch ms. A ``windowed`` key stays until then, whatever its owner does."""

    job_key: str
    expires_at: int | None
    windowed: bool


@dataclass(slots=True)
class Facts:
    """What is there, all of it locked. Jobs by key; keys and groups by (queue number, name)."""

    now: int
    records: Mapping[str, Record]
    proofs: frozenset[str]
    awaited: frozenset[str]  #: jobs that live jobs wait, or waited, for
    owners: dict[tuple[int, str], KeyOwner]
    sizes: dict[tuple[int, str], int]
    debounced: dict[tuple[int, str], str]  #: by (queue number, key of the debounce id)

    def completed(self, key: str) -> bool:
        """Whether the job has completed."""
        record = self.records.get(key)
        return key in self.proofs or (record is not None and record.job.location == Location.COMPLETED)


class Planned:
    """A job to be admitted."""

    __slots__ = (
        "data",
        "debounce",
        "delay",
        "flags",
        "gated",
        "id",
        "key",
        "name",
        "queue",
        "queue_id",
        "spec",
        "unique",
    )

    def __init__(self, spec: JobSpec, id: str, key: str, queue: str, queue_id: int) -> None:
        self.spec = spec
        self.name = spec.name
        self.data = spec.data
        self.id = id
        self.key = key
        self.queue = queue
        self.queue_id = queue_id
        self.unique: str | None = None if spec.unique_key is None else to_key(spec.unique_key)
        self.debounce = None if spec.options.debounce_id is None else to_key(spec.options.debounce_id)
        self.delay = spec.delay
        self.gated = False
        self.flags = REPEATS if spec.options.repeat is not None else 0
        if self.unique is not None:
            self.flags |= KEYED | (FREED_BY_CLAIM if spec.options.dedup_scope == "waiting" else 0)


@dataclass(slots=True)
class Plan:
    """What one transaction will write."""

    jobs: dict[str, Planned] = field(default_factory=dict)  #: by key, in order of admission
    edges: dict[tuple[str, str], bool] = field(default_factory=dict)  #: (dependency, job) → met
    keys: dict[tuple[int, str], KeyOwner] = field(default_factory=dict)  #: new owners
    extended: dict[tuple[int, str], KeyOwner] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)  #: owners that are replaced
    sizes: dict[tuple[int, str], int] = field(default_factory=dict)
    duplicated: list[tuple[int, str]] = field(default_factory=list)  #: (queue number, owner)
    links: list[tuple[str, str]] = field(default_factory=list)  #: (parent, child)
    debounced: dict[tuple[int, str], str] = field(default_factory=dict)  #: planned jobs by (queue number, debounce key)
    #: by the key of a debounced job that is there: what it becomes, and when it runs (epoch ms)
    updates: dict[str, tuple[JobSpec, int]] = field(default_factory=dict)

    def copy(self) -> Plan:
        """A plan that can be given up without touching this one."""
        return Plan(
            dict(self.jobs),
            dict(self.edges),
            dict(self.keys),
            dict(self.extended),
            set(self.removed),
            dict(self.sizes),
            list(self.duplicated),
            list(self.links),
            dict(self.debounced),
            dict(self.updates),
        )


def new_owner(key: str, options: JobOptions, now: int) -> KeyOwner:
    """A job that becomes the owner of its deduplication key at ``now`` (epoch ms)."""
    ttl = options.dedup_ttl_ms
    return KeyOwner(key, None if ttl is None else now + ttl, ttl is not None and options.dedup_scope == "window")


def _is_debounced(spec: JobSpec) -> bool:
    """Whether the job waits for more of its kind before it runs."""
    return spec.options.debounce_id is not None and bool(spec.options.debounce_ttl_ms)


def _debounced_run(spec: JobSpec, first_at: int, now: int) -> int:
    """When a debounced job runs if nothing more comes: its time from ``now``, but not later than its longest wait allows.

    Args:
        spec: the newest of its kind.
        first_at: when the first was added (epoch ms).
        now: epoch ms.
    """
    run_at = now + (spec.options.debounce_ttl_ms or 0)
    if spec.options.debounce_max_wait_ms is not None:
        run_at = min(run_at, first_at + spec.options.debounce_max_wait_ms)
    return max(run_at, now)


def _takes_over(record: Record, planned: Planned) -> bool:
    """Whether a job waits, was never tried, belongs to no flow, and so takes over what comes under its debounce id."""
    job = record.job
    return (
        record.queue_id == planned.queue_id
        and job.location in (Location.READY, Location.GATED)
        and not job.attempts
        and job.options.debounce_id == planned.spec.options.debounce_id
        and job.parent_id is None
        and not job.children_ids
    )


class Planner:
    """Plans calls on facts."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.plan = Plan()
        #: keys whose time starts anew although the call that asked for it is refused, as its refusal says
        self.postponed: dict[tuple[int, str], KeyOwner] = {}

    def push(
        self, queue: str, queue_id: int, specs: Iterable[JobSpec], ids: Iterable[str]
    ) -> tuple[list[str], list[PushOutcome]]:
        """Plan one call, all or none; gives its ids and outcomes.

        Raises:
            CommandError: a member is refused; the plan is as it was.
        """
        specs = list(specs)
        before = self.plan
        self.plan = before.copy()
        try:
            return self._push(queue, queue_id, specs, list(ids))
        except BaseException:
            self.plan = before
            raise

    def _push(
        self, queue: str, queue_id: int, specs: list[JobSpec], ids: list[str]
    ) -> tuple[list[str], list[PushOutcome]]:
        batch = {to_key(spec.custom_id) for spec in specs if spec.custom_id} if len(specs) > 1 else set()
        for position, spec in enumerate(specs):
            try:
                self._check_dependencies(spec, batch)
            except CommandError as error:
                error.position = position
                raise
        for spec in specs:
            if spec.parent_queue is not None:
                self._check_parent(spec)
        outcomes: list[PushOutcome] = []
        for position, spec in enumerate(specs):
            ids[position], outcome = self._one(queue, queue_id, spec, ids[position])
            outcomes.append(outcome)
        return ids, outcomes

    def refuse_known(self, id: str) -> None:
        """Refuse an id of a flow that is taken.

        Raises:
            Conflict: it is.
        """
        if self._known(to_key(id)):
            raise Conflict(f"Flow job {id} already exists")

    def flow_member(self, queue: str, queue_id: int, spec: JobSpec, id: str) -> None:
        """Plan one job of a flow, under its planned id; it waits for all that it depends on.

        Raises:
            Conflict: its group is full.
        """
        planned = Planned(spec, id, to_key(id), queue, queue_id)
        planned.gated = bool(spec.depends_on)
        if spec.group_id is not None and not planned.gated:
            self._check_size(planned)
            group = (queue_id, spec.group_id)
            self.plan.sizes[group] = self.plan.sizes.get(group, 0) + 1
        for dependency in dict.fromkeys(spec.depends_on):
            self.plan.edges[to_key(dependency), planned.key] = False
        if spec.depends_on:
            planned.flags |= WAITING
        self._place(planned)

    def _known(self, key: str) -> bool:
        return key in self.plan.jobs or key in self.facts.records or key in self.facts.proofs

    def _check_dependencies(self, spec: JobSpec, batch: set[str]) -> None:
        for id in spec.depends_on:
            if id == spec.custom_id:
                raise Conflict(f"Job cannot depend on itself: {id}")
            key = to_key(id)
            if key not in batch and not self._known(key):
                raise NotFound(f"Dependency job not found: {id}")

    def _check_parent(self, spec: JobSpec) -> None:
        parent_id = spec.parent_id
        assert parent_id is not None
        if spec.custom_id == parent_id:
            raise Conflict("A job cannot be its own parent")
        record = self.facts.records.get(to_key(parent_id))
        if record is None:
            raise NotFound(f"Parent job not found: {parent_id}")
        parent = record.job
        if parent.location not in LINKABLE:
            raise Conflict(f"Parent job {parent_id} is not linkable")
        if parent.queue != spec.parent_queue:
            raise Conflict(f"Parent job {parent_id} belongs to queue {parent.queue}, not {spec.parent_queue}")

    def _one(self, queue: str, queue_id: int, spec: JobSpec, id: str) -> tuple[str, PushOutcome]:
        plan, facts = self.plan, self.facts
        key = to_key(id)
        if spec.custom_id:
            if key in plan.jobs:
                return id, "found"
            existing = facts.records.get(key)
            if existing is not None and key not in plan.removed and existing.job.location in _LIVE:
                return id, "found"
            if key in facts.awaited and (existing is not None or key in facts.proofs):
                raise Conflict(f"Custom ID {id} still has unresolved dependency consumers")
        for dependency in spec.depends_on:
            if to_key(dependency) in plan.removed and to_key(dependency) not in plan.jobs:
                raise NotFound(f"Dependency job not found: {dependency}")
        if spec.parent_queue is not None and to_key(spec.parent_id or "") in plan.removed:
            raise NotFound(f"Parent job not found: {spec.parent_id}")
        outcome: PushOutcome = "created"
        planned = Planned(spec, id, key, queue, queue_id)
        replaced: str | None = None
        if planned.unique is not None:
            owner, replaces = self._deduplicate(planned)
            if owner is not None and not replaces:
                return unescape(owner) if owner not in facts.records else facts.records[owner].job.id, "found"
            if owner is not None:
                outcome = "replaced"
                replaced = owner
        if _is_debounced(spec) and outcome == "created":
            waiting = self._debounce(planned)
            if waiting is not None:
                return waiting, "found"
        if spec.group_id is not None and spec.group_max_size is not None and outcome == "created":
            self._check_size(planned)
        unmet = False
        for dependency in dict.fromkeys(spec.depends_on):
            dependency_key = to_key(dependency)
            # A member of the same bulk is unmet, and so is one that comes later: it is not complete, whatever it replaces.
            met = dependency_key not in plan.jobs and facts.completed(dependency_key)
            plan.edges[dependency_key, key] = met
            unmet = unmet or not met
        planned.gated = unmet
        if spec.depends_on:
            planned.flags |= WAITING
        if replaced is not None:
            self._replace(replaced)
        self._place(planned)
        if spec.group_id is not None and not unmet:
            group = (queue_id, spec.group_id)
            plan.sizes[group] = plan.sizes.get(group, 0) + 1
        if spec.parent_queue is not None:
            assert spec.parent_id is not None
            plan.links.append((to_key(spec.parent_id), key))
        return id, outcome

    def _place(self, planned: Planned) -> None:
        """Put a job into the plan, with its keys and its time."""
        spec, now = planned.spec, self.facts.now
        self.plan.jobs[planned.key] = planned
        if planned.unique is not None:
            self.plan.keys[planned.queue_id, planned.unique] = new_owner(planned.key, spec.options, now)
        if planned.debounce is not None:
            self.plan.debounced[planned.queue_id, planned.debounce] = planned.key
        if _is_debounced(spec):
            created_at = now if spec.timestamp is None else spec.timestamp
            planned.delay = max(planned.delay, _debounced_run(spec, now, now) - created_at)

    def _debounce(self, planned: Planned) -> str | None:
        """Let the job that waits under the same debounce id take over what ``planned`` says; gives it, or None if there is none."""
        plan, facts, spec = self.plan, self.facts, planned.spec
        assert planned.debounce is not None
        name = (planned.queue_id, planned.debounce)
        waiting = plan.jobs.get(plan.debounced.get(name, ""))
        if waiting is not None:
            # In place of it, lest a plan that this one was copied from change, too.
            newer = Planned(waiting.spec, waiting.id, waiting.key, waiting.queue, waiting.queue_id)
            newer.flags, newer.gated = waiting.flags, waiting.gated
            newer.name, newer.data = spec.name, spec.data
            created_at = facts.now if waiting.spec.timestamp is None else waiting.spec.timestamp
            newer.delay = max(0, _debounced_run(spec, facts.now, facts.now) - created_at)
            plan.jobs[waiting.key] = newer
            return waiting.id
        record = facts.records.get(facts.debounced.get(name, ""))
        if record is None or record.key in plan.removed or not _takes_over(record, planned):
            return None
        plan.updates[record.key] = (spec, _debounced_run(spec, record.job.admitted_at, facts.now))
        plan.duplicated.append((planned.queue_id, record.key))
        return record.job.id

    def _replace(self, owner: str) -> None:
        """Remove the owner of a key, unless it is being processed: then it only loses the key."""
        planned = self.plan.jobs.pop(owner, None)
        if planned is not None:
            for edge in [edge for edge in self.plan.edges if edge[1] == owner]:
                del self.plan.edges[edge]
            return
        record = self.facts.records.get(owner)
        if record is not None and record.job.location != Location.ACTIVE:
            self.plan.removed.add(owner)

    def _deduplicate(self, planned: Planned) -> tuple[str | None, bool]:
        """Decide on a deduplication key: its owner (None: free), and whether the new job replaces it."""
        plan, facts = self.plan, self.facts
        assert planned.unique is not None
        name = (planned.queue_id, planned.unique)
        options = planned.spec.options
        entry: KeyOwner | None = None
        if name in plan.keys and plan.keys[name].job_key in plan.jobs:
            owner = plan.keys[name].job_key
            location: int | None = Location.GATED if plan.jobs[owner].gated else Location.READY
            awaited = False
        else:
            entry = facts.owners.get(name)
            if entry is None or (entry.expires_at is not None and entry.expires_at <= facts.now):
                return None, False
            owner = entry.job_key
            record = facts.records.get(owner) if owner not in plan.removed else None
            location = None if record is None else record.job.location
            awaited = record is not None and record.awaited
        live = location in _LIVE
        id = facts.records[owner].job.id if owner in facts.records else unescape(owner)
        if options.dedup_replace:
            if not live:
                return None, False
            if (
                awaited
                or id in planned.spec.depends_on
                or any(dependency == owner for dependency, _ in plan.edges)
                or any(parent == owner for parent, _ in plan.links)
                or (planned.spec.parent_queue is not None and id == planned.spec.parent_id)
            ):
                raise Conflict(f"Cannot replace deduplicated job {id} because live jobs depend on it")
            return owner, True
        if options.dedup_extend and options.dedup_ttl_ms:
            anew = None
            if entry is not None:
                anew = KeyOwner(owner, facts.now + options.dedup_ttl_ms, entry.windowed)
            if location == Location.READY:
                if anew is not None:
                    plan.extended[name] = anew
                return owner, False
            if anew is not None:
                self.postponed[name] = anew
            raise Conflict("Duplicate unique_key (extended TTL)")
        if not live:
            # Only a window outlives its owner.
            window = entry is not None and (entry.windowed or options.dedup_scope == "window")
            return (owner, False) if window else (None, False)
        plan.duplicated.append((planned.queue_id, owner))
        return owner, False

    def _check_size(self, planned: Planned) -> None:
        spec = planned.spec
        assert spec.group_id is not None
        group = (planned.queue_id, spec.group_id)
        size = self.facts.sizes.get(group, 0) + self.plan.sizes.get(group, 0)
        if spec.group_max_size is not None and size >= spec.group_max_size:
            raise Conflict(f"Group {spec.group_id} has reached its maximum size of {spec.group_max_size}")

    def columns(self, codec: OptionsCodec) -> Columns:
        """The planned jobs, for ``push_named.sql``."""
        awaited = {dependency for dependency, _ in self.plan.edges}
        columns = Columns()
        for planned in self.plan.jobs.values():
            flags = planned.flags | (AWAITED if planned.key in awaited else 0)
            columns.add(
                planned.spec, planned.id, planned.key, codec, flags=flags, gated=planned.gated, delay=planned.delay
            )
            columns.names[-1] = None if planned.name == "default" else escape(planned.name)
            columns.data[-1] = planned.data
            columns.queue_ids.append(planned.queue_id)
        return columns
