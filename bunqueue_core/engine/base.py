"""State shared by all verbs of the engine, and the steps they are made of.

The engine is synchronous and pure: no I/O, no clock, no ids or randomness of its own. ``now`` (epoch ms) comes with each
call, the rest through :class:`~bunqueue_core.model.ports.Ports`. A verb raises a typed error before it changes anything, or
changes everything it says. Whoever calls it holds the one lock that guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bunqueue_core.engine.deadlines import Agenda, JobTimers
from bunqueue_core.engine.groups import Group
from bunqueue_core.engine.limits import RateLimiter
from bunqueue_core.engine.marks import Marks
from bunqueue_core.engine.queue import QueueState, StaleChildren, UniqueKey
from bunqueue_core.engine.ready import NOWHERE
from bunqueue_core.model.deadletters import buried
from bunqueue_core.model.errors import LeaseLost, NotFound
from bunqueue_core.model.job import Job, JobSpec, Location, RetryHistory, admission_entry, append_timeline, ready_state
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.requests import DlqEntry, DlqReason, Event, LogEntry, Notice
from bunqueue_core.model.rules import BACKOFF_STRATEGIES, BackoffStrategy, backoff_delay
from bunqueue_core.model.webhook import Webhook
from bunqueue_core.storage.changes import (
    FLOW_FAILURE_TABLE,
    LOG_TABLE,
    METRICS_TABLE,
    RATE_TABLE,
    WINDOW_TABLE,
    QueueRow,
)
from bunqueue_core.storage.records import dlq_config_map

#: A silent job is stalled only after two looks, this many ms apart, so that one late heartbeat costs nothing.
STALL_CONFIRM_MS: Final = 5_000

#: How long a queue of which nothing is left keeps its name, ms.
EMPTY_QUEUE_MS: Final = 10_000

#: Minutes of metrics that are kept: 14 days.
MAX_BUCKETS: Final = 20_160

#: Stands for the minute in the row of the metrics table that holds a series' lifetime total.
TOTAL_MINUTE: Final = -1

#: Completion proofs and retired leases are kept for so many jobs at least, however few completed jobs are.
MIN_REMEMBERED: Final = 1_000

#: Places of a job that has not ended.
LIVE: Final = (Location.READY, Location.GATED, Location.PARKED, Location.ACTIVE)

#: Deduplication keys of a queue that are kept without a look whether they still mean anything.
MIN_UNIQUE_BOUND: Final = 1_024

#: Largest integer that a float stands for exactly.
_EXACT: Final = 2**53

#: Prefix of the deduplication key of jobs that a schedule makes; such a job is dropped, not retried, when its delivery is lost.
CRON_KEY_PREFIX: Final = "cron:"


@dataclass(slots=True)
class EngineSettings:
    """Bounds of the engine.

    Attributes:
        max_completed_jobs: completed jobs kept in memory.
        max_results: results kept in memory (more are read from the journal where there is one).
        persistent: a journal keeps what memory lets go.
        strategies: back-off strategies by name.
        repeat_successor: (completed repeat job, now) → the job that follows, None when the chain has ended.
    """

    max_completed_jobs: int = 50_000
    max_results: int = 10_000
    persistent: bool = False
    strategies: Mapping[str, BackoffStrategy] = field(default_factory=lambda: BACKOFF_STRATEGIES)
    repeat_successor: Callable[[Job, int], JobSpec | None] | None = None

    @property
    def max_remembered(self) -> int:
        """Unpinned completion proofs, and retired leases, that are kept in memory."""
        return max(self.max_completed_jobs, MIN_REMEMBERED)


@dataclass(slots=True)
class Series:
    """Counts by minute (epoch ms // 60000), with the lifetime total and the latest count."""

    total: int = 0
    previous_at: int = 0
    previous_count: int = 0
    buckets: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Totals:
    """Counters since start."""

    pushed: int = 0
    pulled: int = 0
    completed: int = 0
    failed: int = 0
    missed_runs: int = 0  #: runs of schedulers whose push was refused


class EngineBase:
    """State and shared steps. Verbs live in the classes that derive from it, one module a family."""

    def __init__(self, ports: Ports, settings: EngineSettings, *, journaled: bool) -> None:
        self.ports = ports
        self.settings = settings
        self.marks = Marks(journaled)
        self.jobs: dict[str, Job] = {}  #: every job that memory holds, by id
        self.queues: dict[str, QueueState] = {}  #: in order of first appearance
        self.timers = JobTimers()
        self.agenda = Agenda()
        self.events: list[Event | Notice] = []
        self.listening = False  #: somebody wants events
        self.noticing = False  #: somebody wants notices
        self.emptied: dict[str, None] = {}  #: queues of which something has left, and perhaps nothing remains
        self.kept_for_waiters: set[str] = set()  #: queues of which nothing but parked pulls remains
        self.woken: dict[str, None] = {}  #: queues with parked pulls where something became claimable
        self.sessions: dict[str, dict[str, Job]] = {}
        self.results: dict[str, bytes] = {}
        self.completed_order: dict[str, Job] = {}  #: completed jobs in memory, of all queues, oldest first
        self.completed_in_memory = 0
        self.evict_above = settings.max_completed_jobs  #: completed jobs in memory at which some of them are let go
        self.dependents: dict[str, dict[str, None]] = {}  #: gated jobs by each of their dependencies, met or not
        self.unmet_counts: dict[str, int] = {}  #: how many dependencies a gated job still waits for
        self.blocked: dict[
            str, dict[str, None]
        ] = {}  #: gated jobs by what they wait for that cannot complete by itself
        self.stale_children: dict[
            str, StaleChildren
        ] = {}  #: jobs whose payload does not name all of their children yet
        self.dropped: dict[
            str, dict[str, None]
        ] = {}  #: failed children that a gated job goes on without, still in its depends_on
        self.doomed: dict[str, None] = {}  #: jobs that others wait for and that may not be able to complete any more
        self.chores = False  #: those are to be looked at when the verb is over
        self.proofs: dict[str, str] = {}  #: completed jobs whose record is gone, with their queue; oldest first
        self.child_failures: dict[
            str, dict[str, tuple[str, str, str]]
        ] = {}  #: parent → child → (mode, error, child queue)
        self.retired_tokens: dict[str, str] = {}  #: token of a lease that the engine ended → job id
        self.retired_jobs: dict[str, int | None] = {}  #: job id → started_at of an unlocked generation that timed out
        self.watched: dict[str, int] = {}  #: jobs that somebody waits for, with how many do; kept by the broker
        self.finished_waits: dict[str, bool] = {}  #: watched jobs that ended since the broker last looked: completed?
        self.awaited: dict[str, int] = {}  #: parked pulls of queues that do not exist yet
        self.evicted = False  #: the journal holds completed jobs that memory does not
        self.pinned_results: dict[str, tuple[str, bytes]] = {}  #: (queue, result) of removed jobs that a live job wants
        self.logs: dict[str, list[LogEntry]] = {}
        self.logged: set[str] = set()  #: jobs that have logs, in memory or in the journal
        self.metrics: dict[tuple[str, str], Series] = {}  #: by queue and type (``completed``, ``failed``)
        self.unstored_metrics: dict[tuple[tuple[str, str], int], None] = {}  #: ((queue, type), minute)
        self.repeat_links: dict[str, str] = {}  #: completed repeat job → its successor
        self.completed_expiry: list[tuple[int, str]] = []  #: heap: when a completed job is forgotten
        self.expiry_bound = 1_024  #: size of that heap at which dead entries are dropped
        self.overdue: dict[str, None] = {}  #: jobs that have outlived their age and that only the journal holds
        self.crowded: dict[
            str, int
        ] = {}  #: queues with more completed jobs than that number to keep, the oldest in the journal
        self.letter_times: list[tuple[int, int, str, str]] = []  #: heap: (when, row id, queue, job id) of dead letters
        self.letters = 0  #: dead letters of all queues
        self.webhooks: dict[str, Webhook] = {}  #: by id, in order of registration
        self.totals = Totals()
        self.next_dlq_id = 1
        self.marks.prepare = self.before_commit

    # -- queues -------------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueState:
        """The queue, registered if it is new."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = QueueState(name)
            queue.waiters = self.awaited.pop(name, 0)
            if self.noticing:
                self.notice("queue:created", queue=name)
        return queue

    def wake(self, queue: QueueState) -> None:
        """Something may have become claimable."""
        if queue.waiters:
            self.woken[queue.name] = None

    def may_be_empty(self, name: str) -> None:
        """Something has left a queue: have its name forgotten before long if nothing remains of it."""
        if name in self.emptied:
            return
        if not self.emptied:
            self.agenda.set("empty-queues", 0, self._plan_forgetting)
        self.emptied[name] = None

    def _plan_forgetting(self, now: int) -> None:
        self.agenda.set("empty-queues", now + EMPTY_QUEUE_MS, self._forget_empty_queues)

    def _forget_empty_queues(self, now: int) -> None:
        names, self.emptied = self.emptied, {}
        for name in names:
            queue = self.queues.get(name)
            if queue is not None and queue.groups is not None:
                queue.groups.prune(now)
                self.forget_group_use(queue)
                if queue.groups.lingering:
                    self.may_be_empty(name)
            if queue is not None and queue.empty:
                if queue.windows_until > now:
                    self.may_be_empty(name)
                elif queue.waiters:
                    self.kept_for_waiters.add(name)
                else:
                    self.forget_queue(queue)

    def forget_queue(self, queue: QueueState) -> None:
        """Forget the name of a queue of which nothing remains. Its metrics stay: it may be used again."""
        name = queue.name
        self.forget_windows(queue)
        self.kept_for_waiters.discard(name)
        del self.queues[name]
        if self.noticing:
            self.notice("queue:removed", queue=name)

    def forget_windows(self, queue: QueueState) -> None:
        """The queue goes, and its deduplication windows with it."""
        for key, entry in queue.unique.items():
            if entry.window:
                self.marks.table_removed(WINDOW_TABLE, queue.name, key)

    def forget_series(self, key: tuple[str, str]) -> None:
        """Forget the counts of one queue and type."""
        series = self.metrics.pop(key, None)
        if series is not None:
            for minute in (TOTAL_MINUTE, *series.buckets):
                self.marks.table_removed(METRICS_TABLE, *key, minute)

    def doom(self, id: str) -> None:
        """Job ``id``, for which others wait, cannot complete by itself any more."""
        self.doomed[id] = None
        self.chores = True

    def do_chores(self, now: int) -> None:
        """What a verb leaves to be done at its end: filled in by the families of verbs."""

    def mark_queue(self, queue: QueueState) -> None:
        """Have the queue's controls written."""
        if queue.default_controls:
            self.may_be_empty(queue.name)
        if not self.marks.enabled:
            return
        if queue.default_controls:
            self.marks.queue(queue.name, None)
            return
        rate, stall = queue.rate, queue.stall
        self.marks.queue(
            queue.name,
            QueueRow(
                name=queue.name,
                paused=int(queue.paused),
                rate_limit=rate.limit if rate is not None else None,
                concurrency_limit=_whole(queue.concurrency.limit) if queue.concurrency is not None else None,
                rate_limit_duration=rate.duration_ms if rate is not None else None,
                rate_limit_expires_at=rate.expires_at if rate is not None else None,
                stall_enabled=int(stall.enabled),
                stall_interval=stall.stall_interval_ms,
                max_stalls=stall.max_stalls,
                stall_grace_period=stall.grace_period_ms,
                dlq_config=self.marks.pack(dlq_config_map(queue.dlq_config)),
            ),
        )

    def note_use(self, queue: QueueState, rate: RateLimiter) -> None:
        """Have written what a queue's rate has used up."""
        if self.marks.enabled:
            looked_at, used = rate.use
            self.marks.table(RATE_TABLE, (queue.name, "", looked_at, rate.limit, rate.duration_ms, used, None))

    def note_group_use(self, queue: QueueState, group: Group) -> None:
        """Have written what a group has used of its window, and until when it is blocked."""
        if not self.marks.enabled:
            return
        window = group.window
        if window is None and not group.blocked_until:
            if group.noted:
                group.noted = False
                self.marks.table_removed(RATE_TABLE, queue.name, group.id)
            return
        group.noted = True
        use: tuple[int | None, ...] = (None, None, None, None)
        if window is not None:
            use = (window.started_at, window.maximum, window.duration_ms, window.count)
        self.marks.table(RATE_TABLE, (queue.name, group.id, *use, group.blocked_until or None))

    def forget_group_use(self, queue: QueueState) -> None:
        """Have the rows removed of groups that have been forgotten."""
        groups = queue.groups
        if groups is not None and groups.pruned:
            for group_id in groups.pruned:
                self.marks.table_removed(RATE_TABLE, queue.name, group_id)
            groups.pruned.clear()

    # -- events -------------------------------------------------------------------------------------------------------

    def emit(self, type: str, job: Job, now: int, **extra: Any) -> None:
        """Note an event of a job in its queue's journal, and tell those who listen."""
        self.queues[job.queue].events += 1
        if self.listening:
            self.events.append(Event(type, job.queue, job.id, now, extra or None))

    def notice(self, event: str, /, **fields: Any) -> None:
        """Tell those who watch the broker. Asked for only where ``noticing`` says that somebody does."""
        self.events.append(Notice(event, fields))

    # -- leases -------------------------------------------------------------------------------------------------------

    def check_lease(self, job: Job, token: str | None) -> None:
        """Refuse an outcome for a locked job whose token is missing or wrong.

        A lease that has expired but was not ended yet still accepts its exact token. A job without a lease accepts any.

        Raises:
            LeaseLost: with the wire's text.
        """
        lease = job.lease
        if lease is None:
            return
        if not token:
            raise LeaseLost(f"Lock token required for job {job.id}")
        if token != lease.token or (job.started_at is not None and job.started_at > lease.created_at):
            raise LeaseLost(f"Invalid or expired lock token for job {job.id}")

    def retire_lease(self, job: Job) -> None:
        """Remember a lease that the engine ends itself, so that its late outcome is ignored rather than refused."""
        if job.lease is not None:
            self.retired_tokens[job.lease.token] = job.id
            _bound(self.retired_tokens, self.settings.max_remembered)
        else:
            self.retired_jobs.pop(job.id, None)
            self.retired_jobs[job.id] = job.started_at
            _bound(self.retired_jobs, self.settings.max_remembered)

    # -- leaving active -----------------------------------------------------------------------------------------------

    def leave_active(self, queue: QueueState, job: Job) -> None:
        """Undo what a delivery took: lease, timer, connection, slots, deduplication key. Wakes pulls that wait for a slot."""
        del queue.active[job.id]
        self.timers.remove(job)
        job.lease = None
        if job.session is not None:
            session = self.sessions.get(job.session)
            if session is not None:
                session.pop(job.id, None)
            job.session = None
        self.release_key(queue, job)
        if queue.concurrency is not None and queue.concurrency.active > 0:
            queue.concurrency.active -= 1
            self.wake(queue)
        if job.group_id is not None and queue.groups is not None:
            group = queue.groups.by_id.get(job.group_id)
            if group is not None:
                queue.groups.left_active(group)
                self.wake(queue)

    def release_key(self, queue: QueueState, job: Job) -> None:
        """Free the deduplication key if ``job`` still owns it, unless its scope reaches beyond this attempt."""
        if job.unique_key is not None and job.options.dedup_scope not in ("unfinished", "window"):
            self._free_key(queue, job)

    def release_key_finally(self, queue: QueueState, job: Job) -> None:
        """Free the key of a job that has ended; only a window goes on."""
        if job.unique_key is not None and not _has_window(job):
            self._free_key(queue, job)

    def _free_key(self, queue: QueueState, job: Job) -> None:
        if job.unique_key is not None:
            owner = queue.unique.get(job.unique_key)
            if owner is not None and owner.job_id == job.id:
                self.drop_key(queue, job.unique_key)

    def claim_key(self, queue: QueueState, job: Job, now: int) -> None:
        """Make ``job`` the owner of its deduplication key, for its time to live from ``now`` on."""
        if job.unique_key is not None:
            ttl = job.options.dedup_ttl_ms
            entry = UniqueKey(job.id, None if ttl is None else now + ttl, _has_window(job))
            self.set_key(queue, job.unique_key, entry)
            if len(queue.unique) > queue.unique_bound:
                self._sweep_keys(queue, now)

    def set_key(self, queue: QueueState, key: str, entry: UniqueKey) -> None:
        """Say who owns a deduplication key."""
        before = queue.unique.get(key)
        queue.unique[key] = entry
        if entry.window:
            self.note_window(queue, key, entry)
        elif before is not None and before.window:
            self.marks.table_removed(WINDOW_TABLE, queue.name, key)

    def drop_key(self, queue: QueueState, key: str) -> None:
        """Nobody owns a deduplication key any more."""
        if queue.unique.pop(key).window:
            self.marks.table_removed(WINDOW_TABLE, queue.name, key)

    def note_window(self, queue: QueueState, key: str, entry: UniqueKey) -> None:
        """Have a window written: neither its job's record nor its queue's name has to outlive it."""
        until = entry.expires_at or 0
        queue.windows_until = max(queue.windows_until, until)
        self.marks.table(WINDOW_TABLE, (queue.name, key, entry.job_id, until))

    def reclaim_key(self, queue: QueueState, job: Job, now: int) -> bool:
        """Make a job that comes back from its end the owner of its key again. False if another live job owns it.

        A window that another job has opened meanwhile stays that job's.
        """
        if job.unique_key is None:
            return True
        entry = queue.unique.get(job.unique_key)
        if entry is not None and entry.job_id != job.id and not entry.expired(now):
            owner = self.jobs.get(entry.job_id)
            if owner is not None and owner.location in LIVE:
                return False
            if entry.window:
                return True
        self.claim_key(queue, job, now)
        return True

    def _sweep_keys(self, queue: QueueState, now: int) -> None:
        """Drop the keys that have expired or whose owner is gone, so that their number follows that of live owners."""
        for key, entry in list(queue.unique.items()):
            owner = self.jobs.get(entry.job_id)
            if entry.expired(now) or not (entry.window or (owner is not None and owner.location in LIVE)):
                self.drop_key(queue, key)
        queue.unique_bound = 2 * len(queue.unique) + MIN_UNIQUE_BOUND

    # -- back into the run set ----------------------------------------------------------------------------------------

    def requeue(self, queue: QueueState, job: Job, now: int) -> Job:
        """Put a job (from any other place) into the run set and wake a pull. Gives the object that stands for it now."""
        if job.where != NOWHERE:
            # A dead entry of this object is still inside a container; it would come alive again. Go on as a copy.
            job = self.replace(job)
        job.location = Location.READY
        queue.insert(job, now)
        self.wake(queue)
        return job

    def replace(self, job: Job) -> Job:
        """Let a copy stand for ``job`` everywhere but in the run set."""
        copy = job.snapshot()
        copy.where = NOWHERE
        copy.timer = 0
        self.marks.replaced(job, copy)
        job.location = Location.GONE
        self.jobs[job.id] = copy
        return copy

    def reschedule(self, job: Job, run_at: int, now: int) -> Job:
        """Move a job of the run set in time. Gives the object that stands for it now."""
        queue = self.queue(job.queue)
        self.own_timeline(job)
        queue.remove(job)
        if job.where:
            job = self.replace(job)
        job.run_at = run_at
        job.location = Location.READY
        queue.insert(job, now)
        self.marks.changed(job)
        self.wake(queue)
        return job

    def own_timeline(self, job: Job) -> None:
        """Make the timeline explicit before a change after which it could not be derived any more."""
        if job.timeline is None:
            job.timeline = [admission_entry(job)]

    def retry_delay(self, job: Job, attempts: int) -> int:
        """Back-off before the next run, ms."""
        return backoff_delay(job.options, attempts, self.ports.random, self.settings.strategies)

    # -- failed attempts and dead letters -----------------------------------------------------------------------------

    def record_attempt(self, job: Job, now: int, reason: DlqReason, error: str | None, *, started: bool = True) -> None:
        """Append a failed attempt to the job's history."""
        history = job.history
        if history is None:
            history = job.history = RetryHistory()
        begun = job.started_at if started and job.started_at is not None else None
        history.attempts.append(
            {
                "attempt": job.attempts,
                "startedAt": begun if begun is not None else job.created_at,
                "failedAt": now,
                "reason": reason,
                "error": error,
                "duration": now - begun if begun is not None else 0,
            }
        )

    def bury(self, queue: QueueState, job: Job, now: int, reason: DlqReason, error: str | None) -> None:
        """Move a job that is in no container any more into the dead letters of its queue."""
        entry = buried(job, now, reason, error, queue.dlq_config)
        job.location = Location.DEAD
        self.marks.removed(job)
        self.results.pop(job.id, None)
        if job.id in self.dependents:
            self.doom(job.id)
        self.add_dead_letter(queue, entry)
        if self.noticing:
            self.notice("dlq:added", queue=queue.name, jobId=job.id, reason=reason)
        self.ended(job)

    def add_dead_letter(self, queue: QueueState, entry: DlqEntry, row_id: int | None = None) -> None:
        """Keep a dead letter, evicting the oldest beyond the queue's bound."""
        if row_id is None:
            row_id = self.next_dlq_id
            self.next_dlq_id += 1
            self.marks.dead_letter(row_id, entry)
        queue.dlq[entry.job.id] = (row_id, entry)
        self.letters += 1
        self.trim_dead_letters(queue)
        self.plan_dead_letter(queue, entry)

    def trim_dead_letters(self, queue: QueueState) -> None:
        """Forget the oldest dead letters beyond the queue's bound."""
        while len(queue.dlq) > queue.dlq_config.max_entries:
            self.forget_dead_letter(queue, next(iter(queue.dlq)))

    def plan_dead_letter(self, queue: QueueState, entry: DlqEntry) -> None:
        """See to it that automatic retries and expiry of dead letters happen in time; overridden by the dead-letter verbs."""

    def forget_dead_letter(self, queue: QueueState, id: str) -> DlqEntry:
        """Remove a dead letter and everything known of its job."""
        entry = self.take_dead_letter(queue, id)
        self.forget(entry.job)
        return entry

    def take_dead_letter(self, queue: QueueState, id: str) -> DlqEntry:
        """Take a job out of the dead letters."""
        row_id, entry = queue.dlq.pop(id)
        self.letters -= 1
        self.marks.dead_letter_removed(row_id)
        return entry

    def forget(self, job: Job) -> None:
        """Remove every trace of a job that is in no container any more."""
        job.location = Location.GONE
        if self.jobs.get(job.id) is job:
            del self.jobs[job.id]
        if job.queue not in self.emptied:
            self.may_be_empty(job.queue)
        self.marks.removed(job)
        self.results.pop(job.id, None)
        if job.id in self.logged:
            self.logs.pop(job.id, None)
            self.logged.discard(job.id)
            self.marks.table_removed(LOG_TABLE, job.id)
        if job.id in self.child_failures:
            self.clear_child_failures(job.id)
        if job.id in self.dependents:
            self.doom(job.id)
        self.ended(job)

    def clear_child_failures(self, parent_id: str) -> None:
        """Forget the failures of children that a parent went on with: it has ended."""
        for child_id in self.child_failures.pop(parent_id, ()):
            self.marks.table_removed(FLOW_FAILURE_TABLE, parent_id, child_id)

    def ended(self, job: Job, *, completed: bool = False) -> None:
        """Tell those who wait for the job that it has reached an end."""
        if job.id in self.watched:
            self.finished_waits[job.id] = completed or self.finished_waits.get(job.id, False)

    # -- looking up ---------------------------------------------------------------------------------------------------

    def known(self, id: str) -> Job:
        """The job in memory.

        Raises:
            NotFound: ``Job not found``.
        """
        job = self.jobs.get(id)
        if job is None:
            raise NotFound("Job not found")
        return job

    def state_in_memory(self, job: Job, now: int) -> str:
        """State of a job that memory holds."""
        location = job.location
        if location == Location.READY:
            return ready_state(job, now)
        return _STATE_NAMES[location]

    # -- filled in by the families of verbs ---------------------------------------------------------------------------

    def before_commit(self) -> None:
        """Bring up to date what is kept behind, before rows are built."""

    def count_metric(self, queue: QueueState, type: str, now: int) -> None:
        """Count a completion or final failure in the queue's minute buckets."""

    def retain_completed(self, queue: QueueState, job: Job, now: int) -> None:
        """Apply a completed job's own retention by age and count."""

    def retain_failed(self, queue: QueueState, job: Job, now: int) -> None:
        """Apply a dead letter's own retention by age and count."""

    def rearm(self, queue: QueueState) -> None:
        """Give the active jobs of a queue new timers."""

    def repeat(self, queue: QueueState, job: Job, now: int) -> None:
        """Push the successor of a completed repeat job."""

    def timeline(self, job: Job, state: str, now: int, **extra: Any) -> None:
        append_timeline(job, {"state": state, "timestamp": now, **extra})  # type: ignore[typeddict-item]


_STATE_NAMES: Final = {
    Location.GATED: "waiting-children",
    Location.PARKED: "waiting-children",
    Location.ACTIVE: "active",
    Location.COMPLETED: "completed",
    Location.DEAD: "failed",
    Location.GONE: "unknown",
}


def _has_window(job: Job) -> bool:
    """The job's deduplication key stays taken for its time to live, whatever becomes of the job."""
    return job.options.dedup_scope == "window" and job.options.dedup_ttl_ms is not None


def _whole(value: float) -> Any:
    """A whole number as an integer, where that is exact: a storage may have no larger ones."""
    return int(value) if abs(value) <= _EXACT and float(value).is_integer() else value


def _bound(memory: dict[str, Any], limit: int) -> None:
    """Drop the oldest tenth of a bounded memory that has grown beyond its limit."""
    if len(memory) > limit:
        for key in list(memory)[: max(1, limit // 10)]:
            del memory[key]
