"""A reference model of the queue: as simple as can be, slow, and written from the rules alone.

Tests drive a broker and this model with the same calls and compare what they show. The model decides everything but three things
that are the broker's to choose: ids, the length of a back-off (random: the model says between which bounds the next run lies), and
in which order deadlines fire that were passed by one move of the clock. It takes these over.

It knows neither storage nor commits: whoever drives it keeps a :meth:`ModelBroker.copy` of what was committed and hands that to
:meth:`ModelBroker.crash` in place of the rest.

Where jobs of one group are concerned, their order in the rotation follows from the order in which lanes fill; jobs with
dependencies are expected to be without group, since several that one completion releases have no order among each other.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Place = Literal["ready", "gated", "parked", "active", "completed", "dead"]
Scope = Literal["waiting", "unfinished", "window"]
Policy = Literal["fail", "continue", "ignore", "remove"]

#: What became of an outcome.
Verdict = Literal["applied", "already-finalized", "absent"]

#: A silent job is looked at twice, this many ms apart, before it counts as stalled.
CONFIRM_MS = 5_000


#: A job that has outlived its age but that others wait for is looked at again after this time.
AGAIN_MS = 10_000


class Refused(Exception):
    """The call is refused, and nothing of it applied."""


@dataclass(slots=True)
class ModelJob:
    """A job. Times in epoch ms, durations in ms. ``fixed`` chooses the fixed back-off, else it doubles with each attempt."""

    id: str
    queue: str
    priority: int = 0
    lifo: bool = False
    created_at: int = 0
    run_at: int = 0
    max_attempts: int = 3
    backoff_ms: int = 1_000
    fixed: bool = False
    timeout_ms: int = 0
    stall_timeout_ms: int | None = None
    time_to_live_ms: int | None = None
    remove_on_complete: bool = False
    complete_age_ms: int | None = None
    complete_count: int | None = None
    remove_on_fail: bool = False
    fail_age_ms: int | None = None
    fail_count: int | None = None
    depends_on: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    parent: str | None = None
    policy: Policy | None = None
    key: str | None = None
    key_scope: Scope | None = None
    key_ttl_ms: int | None = None
    key_extends: bool = False
    key_replaces: bool = False
    group: str | None = None
    group_size: int | None = None  #: admission limit
    group_order: int = 0
    custom: bool = False
    debounce: str | None = None  #: id under which later adds take over this one while it waits
    debounce_ms: int = 0
    debounce_longest_ms: int | None = None
    repeat_ms: int | None = None  #: runs again so long after each run that succeeds
    repeat_limit: int | None = None
    repeats: int = 0  #: runs before this one
    repeat_run: int | None = None  #: when this run was to be
    data: bytes | None = None
    logs: tuple[str, ...] = ()
    keep_logs: int = 100
    place: Place = "ready"
    delayed: bool = False  #: its time had not come when it was last looked at
    attempts: int = 0
    stalls: int = 0
    losses: int = 0
    started_at: int | None = None
    heartbeat: int = 0
    token: str | None = None
    ttl_ms: int = 0
    expires_at: int = 0
    renewals: int = 0
    session: str | None = None
    delivered: int = 0  #: order of deliveries
    result: bytes | None = None
    completed_at: int = 0
    forget_at: int | None = None  #: when it has outlived its age
    finished: int = 0  #: order of completions
    row: int = 0  #: order of the dead letters' making
    entered: int = 0  #: order of the dead letters
    reason: str | None = None
    letter: tuple[int, int | None, int, int | None] | None = None
    """Of a dead letter, and of a job retried from one automatically: when it entered, when it expires, retries, next retry."""

    @property
    def has_window(self) -> bool:
        """Its deduplication key stays taken for its time to live, whatever becomes of it."""
        return self.key_scope == "window" and self.key_ttl_ms is not None

    @property
    def of_schedule(self) -> bool:
        """Made by a schedule that makes no other meanwhile: dropped, not retried, when its delivery is lost."""
        return self.key is not None and self.key.startswith("cron:")

    def state(self, now: int) -> str:
        """The state that a query shows."""
        if self.place == "ready":
            if self.run_at > now:
                return "delayed"
            return "prioritized" if self.priority > 0 else "waiting"
        return _STATES[self.place]

    def retry_bounds(self, attempts: int) -> tuple[int, int]:
        """Least and most delay before the run after failure number ``attempts``."""
        if self.fixed:
            return int(self.backoff_ms * 0.8), int(self.backoff_ms * 1.2)
        base = self.backoff_ms * 2**attempts
        return min(3_600_000, int(base * 0.5)), min(3_600_000, int(base * 1.5))


_LIVE = ("ready", "gated", "parked", "active")

_STATES = {
    "gated": "waiting-children",
    "parked": "waiting-children",
    "active": "active",
    "completed": "completed",
    "dead": "failed",
}


@dataclass(slots=True)
class ModelGroup:
    """A group's policies. ``window`` is (start, limit, duration, deliveries)."""

    paused: bool = False
    concurrency: int | None = None
    rate: tuple[int, int] | None = None
    window: tuple[int, int, int, int] | None = None
    blocked_until: int = 0

    def open_window(self, now: int) -> tuple[int, int, int, int] | None:
        """The rate window that has not ended."""
        return self.window if self.window is not None and now < self.window[0] + self.window[2] else None


@dataclass(slots=True)
class ModelRate:
    """A queue's rate limit: a bucket of ``limit`` tokens that fills over ``duration_ms``."""

    limit: int
    duration_ms: int
    expires_at: int | None
    tokens: float
    seen_at: int

    def at(self, now: int) -> float:
        """Tokens now."""
        return min(float(self.limit), self.tokens + (now - self.seen_at) * self.limit / self.duration_ms)


@dataclass(slots=True)
class ModelQueue:
    """Policies of a queue, and its rotation."""

    paused: bool = False
    stall_enabled: bool = True
    stall_interval_ms: int = 30_000
    max_stalls: int = 3
    grace_ms: int = 5_000
    auto_retry: bool = False
    auto_retry_ms: int = 3_600_000
    max_auto_retries: int = 3
    letter_age_ms: int | None = 604_800_000
    max_letters: int = 10_000
    rate: ModelRate | None = None
    concurrency: int | None = None
    slots: int = 0  #: in use
    groups: dict[str, ModelGroup] = field(default_factory=dict)
    ring: list[str] = field(default_factory=list)  #: groups with ready jobs; the first is next
    keys: dict[str, tuple[str, int | None, bool]] = field(default_factory=dict)
    """Deduplication key → owner, until when, and whether it stays until then whatever becomes of the owner."""
    debounced: dict[str, str] = field(default_factory=dict)  #: debounce id → the job that was added last under it
    next_order: int = 1

    def group(self, id: str) -> ModelGroup:
        """A group's policies, made if it is new."""
        return self.groups.setdefault(id, ModelGroup())


@dataclass(slots=True)
class ModelSchedule:
    """A schedule by interval."""

    queue: str
    every_ms: int
    next_run: int
    max_limit: int | None = None
    prevent_overlap: bool = True
    skip_missed: bool = True
    immediate: bool = False  #: its next run is the one at creation
    runs: int = 0
    out_of_turn: int | None = None  #: when a run was last made out of turn
    aligned: bool = False  #: runs at whole multiples of the interval, as ``*/10`` does

    def after(self, slot: int, now: int) -> int:
        """The first run after ``now`` of those that follow ``slot``."""
        if self.aligned:
            return (now // self.every_ms + 1) * self.every_ms
        return slot + self.every_ms * ((now - slot) // self.every_ms + 1)


@dataclass(slots=True)
class Defaults:
    """Limits that a worker proposes for groups. ``only`` restricts a pull: a group's id, or "" for jobs without group."""

    concurrency: int | None = None
    rate: tuple[int, int] | None = None
    only: str | None = None


@dataclass(slots=True)
class Plan:
    """What a pull delivers, and how the queue is left."""

    ids: list[str]
    ring: list[str] = field(default_factory=list)
    windows: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    tokens: float | None = None


@dataclass(slots=True)
class ModelBroker:
    """All queues.

    ``undecided`` holds jobs whose next run is random, with its bounds; whoever drives the model takes the choice over and clears
    it.
    ``ended`` collects jobs that came to an end (True: completed), until the driver clears it. ``successors`` holds the next runs of
    repeat jobs that completed, in order, until the driver hands them to :meth:`succeed` with the ids that the broker gave.
    """

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    queues: dict[str, ModelQueue] = field(default_factory=dict)
    proofs: dict[str, str] = field(default_factory=dict)  #: jobs that completed and were removed, with their queue
    retired: dict[str, str] = field(default_factory=dict)  #: token of a lease that the broker ended → job
    schedules: dict[str, ModelSchedule] = field(default_factory=dict)
    undecided: dict[str, tuple[int, int]] = field(default_factory=dict)
    ended: dict[str, bool] = field(default_factory=dict)
    successors: list[ModelJob] = field(default_factory=list)
    webhooks: dict[str, tuple[bool, int, int]] = field(default_factory=dict)  #: enabled, successes, failures
    counter: int = 0

    def copy(self) -> ModelBroker:
        """The same again, independent of this one."""
        other = ModelBroker(proofs=dict(self.proofs), retired=dict(self.retired), counter=self.counter)
        other.jobs = {id: copy.copy(job) for id, job in self.jobs.items()}
        for name, queue in self.queues.items():
            again = other.queues[name] = copy.copy(queue)
            again.rate = copy.copy(queue.rate)
            again.groups = {id: copy.copy(group) for id, group in queue.groups.items()}
            again.ring, again.keys, again.debounced = list(queue.ring), dict(queue.keys), dict(queue.debounced)
        other.webhooks = dict(self.webhooks)
        other.schedules = {name: copy.copy(schedule) for name, schedule in self.schedules.items()}
        return other

    def _count(self) -> int:
        self.counter += 1
        return self.counter

    # -- looking --------------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> ModelQueue:
        """Policies of a queue, made if it is new."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = ModelQueue()
        return queue

    def of(self, queue: str, *places: Place) -> list[ModelJob]:
        """Jobs of a queue in any of ``places``."""
        return [job for job in self.jobs.values() if job.queue == queue and job.place in places]

    def ready(self, queue: str) -> list[ModelJob]:
        """Jobs without group that could be delivered, in the order of delivery."""
        due = [
            job
            for job in self.jobs.values()
            if job.place == "ready" and not job.delayed and job.group is None and job.queue == queue
        ]
        due.sort(key=lambda job: job.id, reverse=True)
        first = [job for job in due if job.lifo]
        rest = sorted((job for job in due if not job.lifo), key=lambda job: (job.run_at, job.id))
        return sorted(first + rest, key=lambda job: -job.priority)

    def lane(self, queue: str, group: str) -> list[ModelJob]:
        """Jobs of a group that could be delivered, in order."""
        lane = [
            job
            for job in self.jobs.values()
            if job.place == "ready" and not job.delayed and job.group == group and job.queue == queue
        ]
        return sorted(lane, key=lambda job: (job.priority, job.group_order, job.id))

    def active_of(self, queue: str, group: str) -> int:
        """Active jobs of a group."""
        return sum(job.place == "active" and job.group == group and job.queue == queue for job in self.jobs.values())

    def queued_of(self, queue: str, group: str | None) -> int:
        """Queued jobs of a group, or of all groups."""
        return sum(
            job.place == "ready" and job.queue == queue and (job.group == group if group else job.group is not None)
            for job in self.jobs.values()
        )

    def counts(self, queue: str, now: int) -> dict[str, int]:
        """Jobs by state, without those that are zero."""
        counts: dict[str, int] = {}
        paused = queue in self.queues and self.queues[queue].paused
        for job in self.jobs.values():
            if job.queue == queue:
                state = job.state(now)
                if paused and state in ("waiting", "prioritized"):
                    state = "paused"
                counts[state] = counts.get(state, 0) + 1
        return counts

    def dead_letters(self, queue: str) -> list[str]:
        """Ids of dead letters in order."""
        return [job.id for job in sorted(self.of(queue, "dead"), key=lambda job: job.entered)]

    def met(self, id: str) -> bool:
        """Whether a dependency on ``id`` is met."""
        if id in self.proofs:
            return True
        job = self.jobs.get(id)
        return job is not None and job.place == "completed"

    def dependents(self, id: str) -> list[ModelJob]:
        """Jobs that wait, among others, for ``id``."""
        return [job for job in self.jobs.values() if job.place == "gated" and id in job.depends_on]

    def key_owner(self, queue: str, key: str, now: int) -> str | None:
        """Who owns a deduplication key."""
        owner = self.queues[queue].keys.get(key) if queue in self.queues else None
        return owner[0] if owner is not None and (owner[1] is None or owner[1] > now) else None

    # -- the run set ----------------------------------------------------------------------------------------------------

    def _enter(self, job: ModelJob, now: int) -> None:
        job.place = "ready"
        job.delayed = job.run_at > now
        if not job.delayed:
            self._fill_lane(job)

    def _fill_lane(self, job: ModelJob) -> None:
        ring = self.queue(job.queue).ring
        if job.group is not None and job.group not in ring:
            ring.append(job.group)

    def _leave(self, job: ModelJob) -> None:
        """Out of the run set, or from wherever else it waits."""
        in_lane = job.place == "ready" and not job.delayed
        if in_lane and job.group is not None and len(self.lane(job.queue, job.group)) == 1:
            self.queue(job.queue).ring.remove(job.group)
        self.undecided.pop(job.id, None)

    def _promote(self, now: int) -> None:
        due = [job for job in self.jobs.values() if job.delayed and job.place == "ready" and job.run_at <= now]
        for job in sorted(due, key=lambda job: (job.run_at, job.id)):
            job.delayed = False
            self._fill_lane(job)

    def expire(self, queue: str, now: int) -> None:
        """A pull looks at the queue: jobs whose time to live is over go."""
        if queue not in self.queues or self.queues[queue].paused:
            return
        for job in list(self.jobs.values()):
            ttl = job.time_to_live_ms
            if ttl is not None and job.created_at + ttl < now and job.queue == queue and job.place == "ready":
                self._leave(job)
                self._forget(job)

    def _forget(self, job: ModelJob) -> None:
        del self.jobs[job.id]
        self.undecided.pop(job.id, None)
        self.ended.setdefault(job.id, False)

    # -- deduplication keys ---------------------------------------------------------------------------------------------

    def _claim(self, job: ModelJob, now: int) -> None:
        if job.key is not None:
            until = None if job.key_ttl_ms is None else now + job.key_ttl_ms
            self.queue(job.queue).keys[job.key] = (job.id, until, job.has_window)

    def _free(self, job: ModelJob) -> None:
        keys = self.queue(job.queue).keys
        if job.key is not None and job.key in keys and keys[job.key][0] == job.id:
            del keys[job.key]

    def _release(self, job: ModelJob) -> None:
        """An attempt has ended."""
        if job.key_scope not in ("unfinished", "window"):
            self._free(job)

    def _release_finally(self, job: ModelJob) -> None:
        """The job has ended."""
        if not job.has_window:
            self._free(job)

    def _reclaim(self, job: ModelJob, now: int) -> bool:
        """A job that comes back owns its key again, unless a live job owns it (False) or a window of another is open."""
        entry = self.queue(job.queue).keys.get(job.key) if job.key is not None else None
        if entry is not None and entry[0] != job.id and not _over(entry[1], now):
            owner = self.jobs.get(entry[0])
            if owner is not None and owner.place in _LIVE:
                return False
            if entry[2]:
                return True
        self._claim(job, now)
        return True

    def _restore_key(self, job: ModelJob, now: int) -> None:
        """After a start: whoever was added last owns the key, unless a window is open."""
        keys = self.queue(job.queue).keys
        if job.key is None or job.has_window or (job.key in keys and keys[job.key][2]):
            return
        owner = self.jobs.get(keys[job.key][0]) if job.key in keys else None
        if owner is not None and (owner.created_at, owner.id) > (job.created_at, job.id):
            return
        self._claim(job, now)

    # -- admission ------------------------------------------------------------------------------------------------------

    def push(self, wanted: Sequence[ModelJob], ids: Sequence[str], now: int) -> tuple[list[str], list[str]]:
        """Admit jobs, new ones under the ids that the broker gave; ids and outcomes.

        Jobs with a key, a group's admission limit or a parent come alone.

        Raises:
            Refused: nothing was admitted.
        """
        for job in wanted:
            self._check(job, now)
        found: list[str] = []
        outcomes = []
        for job, id in zip(wanted, ids, strict=True):
            if not job.custom:
                job.id = id
            outcome, stands = self._push(job, now)
            outcomes.append(outcome)
            found.append(stands)
        return found, outcomes

    def _check(self, job: ModelJob, now: int) -> None:
        for id in job.depends_on:
            if id not in self.jobs and id not in self.proofs:
                raise Refused(id)
        if job.parent is not None:
            parent = self.jobs.get(job.parent)
            if parent is None or parent.place not in ("ready", "gated", "parked"):
                raise Refused(job.parent)
        existing = self.jobs.get(job.id) if job.custom else None
        live = existing is not None and existing.place in _LIVE
        if live:
            return
        if job.custom and job.id in self.proofs and self.dependents(job.id):
            raise Refused(job.id)
        owner = self.queues[job.queue].keys.get(job.key) if job.key is not None and job.queue in self.queues else None
        if owner is not None and (owner[1] is None or owner[1] > now):
            standing = self.jobs.get(owner[0])
            if job.key_replaces:
                if standing is not None and standing.place in _LIVE:
                    if self.dependents(standing.id) or standing.id in job.depends_on:
                        raise Refused(standing.id)
                    return  # the one that is replaced makes room for it
            elif job.key_extends and job.key_ttl_ms:
                if standing is None or standing.place != "ready":
                    self._prolong(job, now)
                    raise Refused(owner[0])
                return
            elif standing is not None or owner[2] or job.key_scope == "window":
                return
        if job.group_size is not None and self.queued_of(job.queue, job.group) >= job.group_size:
            raise Refused(str(job.group))

    def _prolong(self, job: ModelJob, now: int) -> None:
        """The key that refuses a job, or stands for it, holds for that job's time from now on."""
        if job.key is not None and job.key_ttl_ms is not None:
            keys = self.queue(job.queue).keys
            owner, _, window = keys[job.key]
            keys[job.key] = (owner, now + job.key_ttl_ms, window)

    def _push(self, job: ModelJob, now: int) -> tuple[str, str]:
        existing = self.jobs.get(job.id) if job.custom else None
        if existing is not None and existing.place in _LIVE:
            return "found", job.id
        queue = self.queue(job.queue)
        outcome = "created"
        owner = queue.keys.get(job.key) if job.key is not None else None
        if owner is not None and job.key is not None and (owner[1] is None or owner[1] > now):
            standing = self.jobs.get(owner[0])
            if job.key_replaces:
                if standing is not None and standing.place in _LIVE:
                    outcome = "replaced"
                    if standing.place != "active":
                        self._leave(standing)
                        self._release_finally(standing)
                        self._forget(standing)
            elif job.key_extends and job.key_ttl_ms:
                self._prolong(job, now)
                return "found", owner[0]
            elif standing is not None or owner[2] or job.key_scope == "window":
                return "found", owner[0]
        waiting = self._debounced(job)
        if waiting is not None and outcome == "created":
            self._leave(waiting)
            waiting.data = job.data
            waiting.run_at = _debounced_run(job, waiting.created_at, now)
            self._enter(waiting, now)
            return "found", waiting.id
        if existing is not None:
            self._forget(existing)
        self.proofs.pop(job.id, None)
        self._admit(job, now)
        if job.parent is not None:
            self._add_child(self.jobs[job.parent], job)
        return outcome, job.id

    def _debounced(self, job: ModelJob) -> ModelJob | None:
        """The job that takes over what ``job`` brings."""
        if job.debounce is None:
            return None
        other = self.jobs.get(self.queue(job.queue).debounced.get(job.debounce, ""))
        free = other is not None and other.place == "ready" and not (other.attempts or other.parent or other.children)
        return other if free else None

    def succeed(self, ids: Sequence[str], now: int) -> None:
        """Admit the next runs of repeat jobs under the ids that the broker gave."""
        for job, id in zip(self.successors, ids, strict=True):
            job.id = id
            self._admit(job, now)
        self.successors.clear()

    def _admit(self, job: ModelJob, now: int) -> None:
        self.jobs[job.id] = job
        job.heartbeat = now
        self._claim(job, now)
        queue = self.queue(job.queue)
        if job.debounce is not None:
            job.run_at = max(job.run_at, _debounced_run(job, now, now))
            queue.debounced[job.debounce] = job.id
        if job.group is not None:
            job.group_order = queue.next_order
            queue.next_order += 1
        if all(self.met(id) for id in job.depends_on):
            self._enter(job, now)
        else:
            job.place = "gated"

    def push_flow(self, members: Sequence[ModelJob], now: int) -> None:
        """Admit a flow; its ids are new."""
        for job in members:
            self._admit(job, now)

    # -- flows ----------------------------------------------------------------------------------------------------------

    def _add_child(self, parent: ModelJob, child: ModelJob) -> None:
        if not self.met(child.id) and parent.place != "gated":
            self._wait_again(parent)
            self._leave(parent)
            parent.place = "gated"
        if child.id not in parent.children:
            parent.children = (*parent.children, child.id)
        if child.id not in parent.depends_on:
            parent.depends_on = (*parent.depends_on, child.id)

    def _wait_again(self, job: ModelJob) -> None:
        """What a job once waited for, and whose record is gone, had completed."""
        job.depends_on = tuple(id for id in job.depends_on if id in self.jobs or id in self.proofs)

    def update_parent(self, child_id: str, parent_id: str, now: int) -> None:
        """Give a child its parent."""
        child, parent = self.jobs.get(child_id), self.jobs.get(parent_id)
        if child_id == parent_id:
            raise Refused(child_id)
        if child is None:
            if parent is not None and child_id in parent.children and child_id in self.proofs:
                return
            raise Refused(child_id)
        if parent is None or child.parent not in (None, parent_id):
            raise Refused(parent_id)
        declared = child_id in parent.children
        if not declared and parent.place not in ("ready", "gated", "parked"):
            raise Refused(parent_id)
        child.parent = parent_id
        if not declared:
            self._add_child(parent, child)
        if child.place == "dead":
            self._child_failed(child, now)

    def remove_child_dependency(self, child_id: str, now: int) -> bool:
        """Detach a child from a parent that waits for it."""
        child = self.jobs.get(child_id)
        if child is None or child.parent is None:
            raise Refused(child_id)
        parent = self.jobs.get(child.parent)
        if parent is None or parent.place != "gated" or child_id not in parent.depends_on:
            return False
        if child.place in ("completed", "dead"):
            return False
        child.parent = None
        self._drop_child(parent, child_id, now)
        return True

    def _drop_child(self, parent: ModelJob, child_id: str, now: int) -> None:
        parent.children = tuple(id for id in parent.children if id != child_id)
        parent.depends_on = tuple(id for id in parent.depends_on if id != child_id and not self.met(id))
        if not parent.depends_on:
            self._start(parent, now)

    def _start(self, parent: ModelJob, now: int) -> None:
        parent.run_at = now
        self._enter(parent, now)

    def remove_unprocessed_children(self, parent_id: str, now: int) -> None:
        """Cancel the children that still wait, or only detach them where others need them."""
        parent = self.jobs.get(parent_id)
        for child_id in parent.children if parent is not None else ():
            child = self.jobs.get(child_id)
            if child is None or child.place not in ("ready", "gated", "parked"):
                continue
            if any(job.id != parent_id for job in self.dependents(child_id)):
                child.parent = None
            else:
                self.cancel(child_id)
            if parent is not None and parent.place == "gated" and self.jobs.get(parent_id) is parent:
                self._drop_child(parent, child_id, now)

    def _child_failed(self, child: ModelJob, now: int) -> None:
        parent = self.jobs.get(child.parent) if child.parent is not None else None
        if child.policy is None or parent is None or parent.place not in ("ready", "gated", "parked"):
            return
        if child.policy == "fail":
            bounds = self.undecided.get(parent.id)
            self._leave(parent)
            self._release_finally(parent)
            parent.letter = None
            self._bury(parent, "unknown", now)
            if bounds is not None and parent.id in self.jobs:
                # A start has put it back a moment before: its record says until when.
                self.undecided[parent.id] = bounds
        elif parent.place == "gated":
            if child.policy == "continue":
                parent.depends_on = ()
            else:
                parent.depends_on = tuple(id for id in parent.depends_on if id != child.id)
            if all(self.met(id) for id in parent.depends_on):
                self._start(parent, now)

    # -- delivery -------------------------------------------------------------------------------------------------------

    def pull(self, name: str, count: int, now: int, defaults: Defaults | None = None) -> Plan:
        """What a pull must deliver, in order. Nothing changes but that jobs expire; see :meth:`take`."""
        queue = self.queues.get(name)
        if queue is None or queue.paused:
            return Plan([])
        self.expire(name, now)
        plan = Plan([], list(queue.ring))
        plain = self.ready(name) if defaults is None or not defaults.only else []
        lanes: dict[str, list[ModelJob]] = {}
        active: dict[str, int] = {}
        rate = queue.rate if queue.rate is not None and not _over(queue.rate.expires_at, now) else None
        if rate is not None:
            plan.tokens = rate.at(now)
        while len(plan.ids) < count:
            lane = None
            if not plain:
                if defaults is not None and defaults.only is not None:
                    wanted = [id for id in plan.ring if id == defaults.only]
                else:
                    wanted = plan.ring
                for id in wanted:
                    if self._eligible(name, id, now, defaults, plan, active):
                        lane = id
                        break
                if lane is None:
                    break
            if queue.concurrency is not None and queue.slots + len(plan.ids) >= queue.concurrency:
                break
            if plan.tokens is not None:
                if plan.tokens < 1:
                    break
                plan.tokens -= 1
            if lane is None:
                plan.ids.append(plain.pop(0).id)
                continue
            jobs = lanes.get(lane)
            if jobs is None:
                jobs = lanes[lane] = self.lane(name, lane)
            plan.ids.append(jobs.pop(0).id)
            at = plan.ring.index(lane)
            plan.ring = plan.ring[at + 1 :] + plan.ring[:at] + ([lane] if jobs else [])
            active[lane] = active.get(lane, 0) + 1
            limit = _limit(queue.group(lane), defaults)
            if limit is not None:
                window = plan.windows.get(lane) or queue.group(lane).open_window(now)
                if window is None or window[1:3] != limit:
                    window = (now, *limit, 0)
                plan.windows[lane] = (*window[:3], window[3] + 1)
        return plan

    def _eligible(
        self, name: str, id: str, now: int, defaults: Defaults | None, plan: Plan, active: dict[str, int]
    ) -> bool:
        group = self.queues[name].groups.get(id)
        if group is None:
            group = ModelGroup()
        if group.paused or group.blocked_until > now:
            return False
        if defaults is not None and defaults.concurrency is not None:
            bound = defaults.concurrency if group.concurrency is None else group.concurrency
            if self.active_of(name, id) + active.get(id, 0) >= bound:
                return False
        limit = _limit(group, defaults)
        if limit is None:
            return True
        window = plan.windows.get(id) or group.open_window(now)
        return window is None or window[1:3] != limit or window[3] < limit[0]

    def take(self, name: str, plan: Plan, now: int) -> None:
        """A pull was carried out as planned; :meth:`delivered` follows for each job."""
        queue = self.queues[name]
        queue.ring = plan.ring
        for id, window in plan.windows.items():
            queue.group(id).window = window
        if queue.rate is not None and _over(queue.rate.expires_at, now):
            queue.rate = None
        if queue.rate is not None and plan.tokens is not None:
            queue.rate.tokens, queue.rate.seen_at = plan.tokens, now
        queue.slots += len(plan.ids)

    def delivered(self, id: str, token: str | None, ttl_ms: int, session: str | None, now: int) -> None:
        """A pull delivered the job."""
        job = self.jobs[id]
        job.place = "active"
        job.started_at = job.heartbeat = now
        job.token = token
        job.ttl_ms = ttl_ms
        job.expires_at = now + ttl_ms
        job.renewals = 0
        job.session = session
        job.delivered = self._count()
        if job.key_scope == "waiting":
            self._free(job)

    def give_back(self, id: str, token: str | None, now: int) -> None:
        """Nobody takes the delivery."""
        job = self.jobs.get(id)
        if job is not None and job.place == "active" and job.token == token:
            keys = self.queue(job.queue).keys
            entry = keys.get(job.key) if job.key is not None else None
            self._leave_active(job)
            if job.key is not None and job.key not in keys:
                if entry is not None:
                    keys[job.key] = entry
                elif job.key_scope == "waiting":
                    self._claim(job, now)
            self._enter(job, now)

    def _leave_active(self, job: ModelJob) -> None:
        job.token = job.session = job.started_at = None
        self._release(job)
        queue = self.queue(job.queue)
        queue.slots = max(0, queue.slots - 1)

    def _to_retry(self, job: ModelJob, attempts: int, now: int) -> None:
        least, most = job.retry_bounds(attempts)
        job.run_at = now + least
        self._enter(job, now)
        if most > 0:
            self.undecided[job.id] = (now + least, now + most)

    # -- outcomes -------------------------------------------------------------------------------------------------------

    def _check_leases(self, outcomes: Iterable[tuple[str, str | None]]) -> None:
        for id, token in outcomes:
            job = self.jobs.get(id)
            if job is None or job.place != "active" or job.token is None or self._is_retired(id, token):
                continue
            if not token or token != job.token:
                raise Refused(f"lease of {id}")

    def _is_retired(self, id: str, token: str | None) -> bool:
        return token is not None and self.retired.get(token) == id

    def ack(self, acks: Sequence[tuple[str, str | None, bytes | None, bool]], now: int) -> list[Verdict]:
        """Acknowledge (id, token, result, remove)."""
        self._check_leases((id, token) for id, token, _, _ in acks)
        verdicts: list[Verdict] = []
        for id, token, result, remove in acks:
            job = self.jobs.get(id)
            if self._is_retired(id, token):
                verdicts.append("already-finalized")
            elif job is not None and (job.place == "active" or (job.place == "ready" and job.attempts > 0)):
                if job.place == "active":
                    self._leave_active(job)
                else:
                    self._leave(job)
                self._complete(job, result, remove, now)
                verdicts.append("applied")
            else:
                verdicts.append("absent")
        return verdicts

    def _complete(self, job: ModelJob, result: bytes | None, remove: bool, now: int) -> None:
        job.place = "completed"
        job.result = result
        job.losses = 0
        job.letter = None
        job.completed_at = now
        job.finished = self._count()
        self._release_finally(job)
        self.ended[job.id] = True
        job.forget_at = None if job.complete_age_ms is None else now + job.complete_age_ms
        if remove or job.remove_on_complete:
            del self.jobs[job.id]
            self.proofs[job.id] = job.queue
        for other in list(self.jobs.values()):
            if other.place == "gated" and job.id in other.depends_on and all(self.met(id) for id in other.depends_on):
                self._enter(other, now)
        if job.complete_count is not None:
            kept = sorted(self.of(job.queue, "completed"), key=lambda job: job.finished)
            excess = len(kept) - job.complete_count
            for old in [old for old in kept if not self.dependents(old.id)][: max(0, excess)]:
                self._forget(old)
                self.proofs[old.id] = old.queue
        self._repeat(job, now)

    def _repeat(self, job: ModelJob, now: int) -> None:
        """A run succeeded: the next one follows."""
        every = job.repeat_ms
        if every is None or (job.repeat_limit is not None and job.repeats >= job.repeat_limit):
            return
        run = now + every if job.repeat_run is None else job.repeat_run + every
        if run <= now:
            run += -((run - now - 1) // every) * every
        following = ModelJob("", job.queue, job.priority, created_at=now, run_at=run, data=job.data)
        following.max_attempts, following.backoff_ms, following.fixed = job.max_attempts, job.backoff_ms, job.fixed
        following.repeat_ms, following.repeat_limit = every, job.repeat_limit
        following.lifo = job.lifo
        following.repeats, following.repeat_run = job.repeats + 1, run
        self.successors.append(following)

    def fail(self, failures: Sequence[tuple[str, str | None, bool, bool]], now: int) -> list[Verdict]:
        """Record failures (id, token, unrecoverable, remove)."""
        self._check_leases((id, token) for id, token, _, _ in failures)
        verdicts: list[Verdict] = []
        for id, token, unrecoverable, remove in failures:
            job = self.jobs.get(id)
            if self._is_retired(id, token):
                verdicts.append("already-finalized")
            elif job is not None and job.place == "active":
                job.losses = 0
                self._failed(job, unrecoverable, remove, now)
                verdicts.append("applied")
            elif job is not None and job.place == "ready" and job.attempts > 0 and token:
                verdicts.append("already-finalized")
            else:
                verdicts.append("absent")
        return verdicts

    def _failed(
        self, job: ModelJob, unrecoverable: bool, remove: bool, now: int, reason: str = "max_attempts_exceeded"
    ) -> None:
        job.attempts += 1
        self._leave_active(job)
        if unrecoverable or job.attempts >= job.max_attempts:
            self._end(job, reason, remove, now)
        else:
            self._to_retry(job, job.attempts, now)

    def _end(self, job: ModelJob, reason: str, remove: bool, now: int) -> None:
        self._release_finally(job)
        if remove or job.remove_on_fail:
            self._forget(job)
        else:
            self._bury(job, reason, now)
            if job.fail_age_ms is not None and job.place == "dead" and job.letter is not None:
                entered_at, expires_at, retries, next_retry = job.letter
                sooner = now + job.fail_age_ms
                job.letter = (
                    entered_at,
                    sooner if expires_at is None else min(sooner, expires_at),
                    retries,
                    next_retry,
                )
            if job.fail_count is not None:
                self._trim(job.queue, job.fail_count)
        self._child_failed(job, now)

    def _bury(self, job: ModelJob, reason: str, now: int) -> None:
        queue = self.queue(job.queue)
        job.place = "dead"
        job.losses = 0
        job.reason = reason
        job.row = job.entered = self._count()
        self.undecided.pop(job.id, None)
        self.ended.setdefault(job.id, False)
        if job.letter is None:
            expires_at = None if queue.letter_age_ms is None else now + queue.letter_age_ms
            job.letter = (now, expires_at, 0, now + queue.auto_retry_ms if queue.auto_retry else None)
        self._trim(job.queue, queue.max_letters)

    def _trim(self, queue: str, most: int) -> None:
        letters = self.dead_letters(queue)
        for id in letters[: max(0, len(letters) - most)]:
            self._forget(self.jobs[id])

    # -- leases ---------------------------------------------------------------------------------------------------------

    def extend(self, id: str, token: str | None, duration_ms: int | None, now: int) -> bool:
        """Renew a lease."""
        job = self.jobs.get(id)
        if job is None or job.place != "active" or job.token is None or (token and token != job.token):
            return False
        if job.expires_at <= now:
            job.token = None
            return False
        job.expires_at = now + (job.ttl_ms if duration_ms is None else duration_ms)
        job.renewals += 1
        job.heartbeat = now
        return True

    def beat(self, id: str, token: str | None, now: int) -> bool:
        """Say that a job is worked on."""
        if token:
            return self.extend(id, token, None, now)
        job = self.jobs.get(id)
        if job is None or job.place != "active":
            return False
        job.heartbeat = now
        return True

    def release(self, session: str, now: int) -> int:
        """A connection ended."""
        held = [job for job in self.jobs.values() if job.place == "active" and job.session == session]
        lost = [job for job in held if not (job.token is not None and job.renewals)]
        for job in held:
            job.session = None
        for job in sorted(lost, key=lambda job: job.delivered):
            if self._drop_of_schedule(job):
                continue
            job.losses += 1
            self._leave_active(job)
            limit = self.queue(job.queue).max_stalls
            if 0 < limit <= job.losses:
                self._end(job, "stalled", False, now)
            elif job.losses > 1:
                self._to_retry(job, job.losses - 1, now)
            else:
                self._enter(job, now)
        return len(lost)

    def _drop_of_schedule(self, job: ModelJob) -> bool:
        if not job.of_schedule:
            return False
        if job.token is not None:
            self.retired[job.token] = job.id
        self._leave_active(job)
        self._release_finally(job)
        self._forget(job)
        return True

    # -- deadlines ------------------------------------------------------------------------------------------------------

    def due(self, now: int) -> dict[str, str]:
        """Active jobs whose deadline has come, with what it is: ``timeout``, ``lease`` or ``stall``."""
        due = {}
        for job in self.jobs.values():
            if job.place != "active":
                continue
            policy = self.queue(job.queue)
            started = job.started_at or 0
            interval = policy.stall_interval_ms if job.stall_timeout_ms is None else job.stall_timeout_ms
            silent_at = max(job.heartbeat + interval + 1, started + policy.grace_ms) + CONFIRM_MS
            if job.timeout_ms and started + job.timeout_ms <= now:
                due[job.id] = "timeout"
            elif job.token is not None and job.expires_at <= now:
                due[job.id] = "lease"
            elif policy.stall_enabled and silent_at <= now:
                due[job.id] = "stall"
        return due

    def fire(self, id: str, kind: str, now: int) -> None:
        """A deadline of an active job."""
        job = self.jobs[id]
        if kind == "timeout":
            if job.token is not None:
                self.retired[job.token] = id
            self._failed(job, False, False, now, "timeout")
        elif not self._drop_of_schedule(job):
            self._leave_active(job)
            self._charge(job, now, backoff=kind == "stall")

    def _charge(self, job: ModelJob, now: int, *, backoff: bool) -> None:
        job.attempts += 1
        job.stalls += 1
        limit = self.queue(job.queue).max_stalls
        if job.attempts >= job.max_attempts:
            self._end(job, "max_attempts_exceeded", False, now)
        elif job.stalls >= limit and (limit > 0 or backoff):
            self._end(job, "stalled", False, now)
        elif backoff:
            self._to_retry(job, job.attempts, now)
        else:
            self._enter(job, now)

    def pass_time(self, now: int, made: Mapping[str, list[str]]) -> None:
        """Everything that time does besides ending deliveries: dead letters, retention, schedules, delays, times to live.

        Args:
            now: epoch ms.
            made: ids of jobs that the broker has made for schedules, by the schedule's name; those that are due take them out. A
                schedule whose job a dead letter stands for, if that is retried before, makes none: which was first is the broker's
                to choose.
        """
        due = sorted(self.schedules, key=lambda name: self.schedules[name].next_run)
        first = [name for name in due if made.get(name)]
        for name in first:
            self._run(name, now, made)
        self.maintain(now)
        for job in list(self.jobs.values()):
            if job.place == "completed" and _over(job.forget_at, now):
                if self.dependents(job.id):
                    job.forget_at = now + AGAIN_MS
                else:
                    self._forget(job)
        for name in due:
            if name not in first:
                self._run(name, now, made)
        self._promote(now)
        for name in list(self.queues):
            self.expire(name, now)

    def maintain(self, now: int) -> None:
        """Dead letters expire or are retried automatically. One that comes back late in its life may be due at once."""
        due = []
        for job in self.jobs.values():
            if job.place == "dead" and job.letter is not None:
                times = [at for at in (job.letter[1], job.letter[3]) if _over(at, now)]
                if times:
                    due.append((min(at for at in times if at is not None), job.row, job))
        for _, _, job in sorted(due, key=lambda found: found[:2]):
            queue = self.queue(job.queue)
            assert job.letter is not None
            entered_at, expires_at, retries, _ = job.letter
            if _over(expires_at, now):
                self._forget(job)
            elif queue.auto_retry and retries < queue.max_auto_retries:
                following = now + queue.auto_retry_ms * 2**retries if retries + 1 < queue.max_auto_retries else None
                job.letter = (entered_at, expires_at, retries + 1, following)
                self.revive(job.id, now, keep=True)

    def _run(self, name: str, now: int, made: Mapping[str, list[str]]) -> None:
        schedule = self.schedules[name]
        slot = schedule.next_run
        if slot > now:
            return
        if schedule.max_limit is not None and schedule.runs >= schedule.max_limit:
            del self.schedules[name]
            return
        passed = slot + schedule.every_ms <= now
        following = schedule.after(slot, now)
        skipped = schedule.out_of_turn is not None and slot - schedule.out_of_turn < 0.8 * schedule.every_ms
        if not skipped:
            schedule.runs += 1
            schedule.out_of_turn = now if passed or schedule.immediate else None
            key = "cron:" + name if schedule.prevent_overlap else None
            job = ModelJob("", schedule.queue, created_at=now, run_at=now, key=key)
            owner = self.queue(schedule.queue).keys.get(key) if key is not None else None
            if owner is None or owner[0] not in self.jobs:
                assert made.get(name), f"schedule {name} made no job"
                job.id = made[name].pop(0)
                self._push(job, now)
        schedule.immediate = False
        schedule.next_run = following

    # -- logs and webhooks ----------------------------------------------------------------------------------------------

    def add_log(self, id: str, message: str) -> None:
        """Append a line to a job's log."""
        job = self.jobs.get(id)
        if job is None:
            raise Refused(id)
        job.logs = (*job.logs, message)[-job.keep_logs :]

    def clear_logs(self, id: str, keep: int) -> None:
        """Keep only the newest lines."""
        job = self.jobs.get(id)
        if job is not None:
            job.logs = job.logs[-keep:] if keep else ()

    # -- control --------------------------------------------------------------------------------------------------------

    def cancel(self, id: str) -> None:
        """Remove a job that waits."""
        job = self.jobs.get(id)
        if job is None or job.place not in ("ready", "gated", "parked"):
            raise Refused(id)
        self._leave(job)
        self._release_finally(job)
        self._forget(job)

    def discard(self, id: str, token: str | None, now: int) -> None:
        """Bury a queued or active job."""
        job = self.jobs.get(id)
        if job is None or job.place not in ("ready", "active"):
            raise Refused(id)
        self._check_current_lease(job, token)
        if job.place == "active":
            self._leave_active(job)
        else:
            self._leave(job)
        self._release_finally(job)
        self._bury(job, "unknown", now)

    def _check_current_lease(self, job: ModelJob, token: str | None) -> None:
        if job.place == "active" and job.token is not None and token != job.token:
            raise Refused(f"lease of {job.id}")

    def _run_at(self, job: ModelJob, run_at: int, now: int) -> None:
        if job.place == "active":
            self._leave_active(job)
        else:
            self._leave(job)
        job.run_at = run_at
        self._enter(job, now)

    def promote(self, id: str, now: int) -> None:
        """Make a delayed job ready."""
        job = self.jobs.get(id)
        if job is None or job.place != "ready" or job.run_at <= now:
            raise Refused(id)
        self._run_at(job, now, now)

    def promote_jobs(self, queue: str, count: int | None, now: int) -> int:
        """Make delayed jobs ready, oldest first."""
        delayed = sorted(
            (job for job in self.of(queue, "ready") if job.run_at > now), key=lambda job: (job.created_at, job.id)
        )[:count]
        for job in delayed:
            self._run_at(job, now, now)
        return len(delayed)

    def change_delay(self, id: str, delay_ms: int, token: str | None, now: int) -> bool:
        """Set when a queued job runs, or hand an active one back until then."""
        job = self.jobs.get(id)
        if job is None or job.place not in ("ready", "active"):
            return False
        self._check_current_lease(job, token)
        self._run_at(job, now + delay_ms, now)
        return True

    def move_to_wait(self, id: str, token: str | None, now: int) -> None:
        """Make a job ready now."""
        job = self.jobs.get(id)
        if job is None or job.place in ("completed", "gated", "parked"):
            raise Refused(id)
        self._check_current_lease(job, token)
        if job.place == "dead":
            if not self.revive(id, now):
                raise Refused(id)
        elif job.place == "active" or job.run_at > now:
            self._run_at(job, now, now)

    def move_to_waiting_children(self, id: str, token: str | None) -> None:
        """Park an active job."""
        job = self.jobs.get(id)
        if job is None or job.place != "active":
            raise Refused(id)
        self._check_current_lease(job, token)
        self._leave_active(job)
        self._wait_again(job)
        job.place = "parked" if all(self.met(other) for other in job.depends_on) else "gated"

    def change_priority(self, id: str, priority: int, lifo: bool | None, now: int) -> None:
        """Move a queued job within the order."""
        job = self.jobs.get(id)
        if job is None or job.place != "ready":
            raise Refused(id)
        decided = self.undecided.get(id)
        self._leave(job)
        job.priority = priority
        if lifo is not None:
            job.lifo = lifo
        self._enter(job, now)
        if decided is not None:
            self.undecided[id] = decided

    def drain(self, queue: str) -> int:
        """Remove everything that is queued."""
        gone = self.of(queue, "ready")
        for job in gone:
            self.cancel(job.id)
        return len(gone)

    def clean(self, queue: str, grace_ms: int, state: str, limit: int, now: int) -> list[str]:
        """Remove old jobs; their ids."""
        before = now - grace_ms
        if state == "failed":
            found = [self.jobs[id] for id in self.dead_letters(queue)]
            found = [job for job in found if job.letter is not None and job.letter[0] <= before][:limit]
        elif state == "completed":
            found = [
                job for job in self.of(queue, "completed") if job.completed_at <= before and not self.dependents(job.id)
            ]
            found = sorted(found, key=lambda job: (job.completed_at, job.id))[:limit]
        else:
            found = [job for job in self.of(queue, "ready") if job.created_at <= before]
            found = sorted(found, key=lambda job: (job.created_at, job.id))[:limit]
        for job in found:
            if job.place == "ready":
                self.cancel(job.id)
            else:
                self._forget(job)
        return [job.id for job in found]

    def obliterate(self, queue: str) -> None:
        """Remove the queue with everything in it."""
        for job in [job for job in self.jobs.values() if job.queue == queue]:
            self._forget(job)
        for id in [id for id, owner in self.proofs.items() if owner == queue]:
            del self.proofs[id]
        self.queues.pop(queue, None)

    def set_letters(self, name: str, auto_retry: bool, interval_ms: int, age_ms: int | None, most: int) -> None:
        """Set a queue's dead-letter policy."""
        queue = self.queue(name)
        queue.auto_retry, queue.auto_retry_ms = auto_retry, interval_ms
        queue.letter_age_ms, queue.max_letters = age_ms, most
        self._trim(name, most)

    def revive(self, id: str, now: int, *, keep: bool = False) -> bool:
        """Retry a dead letter. ``keep``: as the same letter, should it fail again."""
        job = self.jobs.get(id)
        if job is None or job.place != "dead" or not self._reclaim(job, now):
            return False
        job.attempts = job.stalls = job.losses = 0
        job.heartbeat = job.run_at = now
        if not keep:
            job.letter = None
        self._enter(job, now)
        return True

    def remove_dead_letter(self, id: str) -> bool:
        """Remove a dead letter."""
        job = self.jobs.get(id)
        if job is None or job.place != "dead":
            return False
        self._forget(job)
        return True

    def retry_completed(self, id: str, now: int) -> bool:
        """Run a completed job again."""
        job = self.jobs.get(id)
        if job is None or job.place != "completed" or not self._reclaim(job, now):
            return False
        job.attempts = job.losses = 0
        job.result = None
        job.run_at = now
        self._enter(job, now)
        return True

    # -- restarts -------------------------------------------------------------------------------------------------------

    def restart(self, now: int) -> None:
        """An orderly stop and start: active jobs wait again, uncharged."""
        for job in self.jobs.values():
            if job.place == "active":
                job.token = job.session = job.started_at = None
                job.place = "ready"
        self._start_over([], now)

    def crash(self, now: int) -> None:
        """The process died and another started, from what this model holds."""
        active = [job for job in self.jobs.values() if job.place == "active"]
        self._start_over(sorted(active, key=lambda job: (job.started_at or 0, job.id)), now)

    def _start_over(self, interrupted: Sequence[ModelJob], now: int) -> None:
        waiting = [job for job in self.jobs.values() if job.place in ("ready", "parked", "gated")]
        waiting.sort(key=lambda job: (-job.priority, job.run_at, job.id))
        self.retired.clear()
        self.undecided.clear()
        for queue in self.queues.values():
            queue.keys = {key: entry for key, entry in queue.keys.items() if entry[2] and not _over(entry[1], now)}
            queue.ring, queue.slots, queue.next_order, queue.debounced = [], 0, 1, {}
        letters = [job for job in self.jobs.values() if job.place == "dead" and job.letter is not None]
        letters.sort(key=lambda job: ((job.letter or (0,))[0], job.row))
        for job in letters:
            job.entered = self._count()
        completed = [job for job in self.jobs.values() if job.place == "completed"]
        for job in sorted(completed, key=lambda job: (job.completed_at, job.id)):
            job.finished = self._count()
            job.forget_at = None if job.complete_age_ms is None else job.completed_at + job.complete_age_ms
        for job in interrupted:
            self._interrupted(job, now)
        for job in waiting:
            if job.place == "ready":
                self._restored(job, now)
                self._enter(job, now)
            elif job.place == "parked" and not job.depends_on:
                self._restored(job, now)
        for job in waiting:
            if job.place == "gated" or (job.place == "parked" and job.depends_on):
                self._restored(job, now)
                if all(self.met(id) for id in job.depends_on):
                    self._enter(job, now)
                else:
                    job.place = "gated"
        dead = [job for job in self.jobs.values() if job.place == "dead" and job.reason != "unknown"]
        for child in sorted(dead, key=lambda job: job.row):
            parent = self.jobs.get(child.parent) if child.parent is not None else None
            if (
                parent is not None
                and parent.place == "gated"
                and child.id in parent.depends_on
                and child.id in self.jobs
            ):
                self._child_failed(child, now)
        for schedule in self.schedules.values():
            schedule.immediate = False
            schedule.out_of_turn = None
            if schedule.next_run < now and schedule.skip_missed:
                schedule.next_run = schedule.after(now, now)

    def _restored(self, job: ModelJob, now: int) -> None:
        self._restore_key(job, now)
        queue = self.queue(job.queue)
        if job.debounce is not None and not job.attempts:
            other = self.jobs.get(queue.debounced.get(job.debounce, ""))
            if other is None or (other.created_at, other.id) <= (job.created_at, job.id):
                queue.debounced[job.debounce] = job.id
        if job.group is not None:
            queue.next_order = max(queue.next_order, job.group_order + 1)

    def _interrupted(self, job: ModelJob, now: int) -> None:
        job.token = job.session = job.started_at = None
        if job.of_schedule:
            self._forget(job)
            return
        job.attempts += 1
        job.stalls += 1
        limit = self.queue(job.queue).max_stalls
        if job.attempts >= job.max_attempts:
            self._bury(job, "max_attempts_exceeded", now)
        elif 0 < limit <= job.stalls:
            self._bury(job, "stalled", now)
        else:
            self._restored(job, now)
            self._to_retry(job, job.attempts, now)


def _debounced_run(job: ModelJob, first_at: int, now: int) -> int:
    """When a debounced job runs if nothing more comes."""
    run_at = now + job.debounce_ms
    if job.debounce_longest_ms is not None:
        run_at = min(run_at, first_at + job.debounce_longest_ms)
    return max(run_at, now)


def _over(when: int | None, now: int) -> bool:
    return when is not None and when <= now


def _limit(group: ModelGroup, defaults: Defaults | None) -> tuple[int, int] | None:
    if defaults is None or defaults.rate is None:
        return None
    return group.rate if group.rate is not None else defaults.rate
