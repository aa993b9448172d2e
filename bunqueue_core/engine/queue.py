"""The state of one queue: where its jobs are, its controls and its counters. Knows nothing of other queues."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from bunqueue_core.engine.groups import Groups
from bunqueue_core.engine.limits import ConcurrencyLimiter, RateLimiter
from bunqueue_core.engine.ready import DELAYED_SET, LANE, NOWHERE, READY_SET, STALE, ReadySet
from bunqueue_core.model.job import Job, Location
from bunqueue_core.model.requests import DlqConfig, DlqEntry, StallConfig

DEFAULT_STALL = StallConfig()
DEFAULT_DLQ = DlqConfig()


#: Entries that the heap of times to live may hold beside two for each queued job.
_COMPACT_AT: Final = 1_024


class UniqueKey:
    """Who owns a deduplication key, and until when (epoch ms; None: as long as the owner is unfinished).

    A ``window`` stays until then whatever becomes of its owner.
    """

    __slots__ = ("expires_at", "job_id", "window")

    def __init__(self, job_id: str, expires_at: int | None, window: bool = False) -> None:
        self.job_id = job_id
        self.expires_at = expires_at
        self.window = window

    def expired(self, now: int) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class QueueState:
    """See the module's head. ``ready`` and ``delayed`` together are the run set."""

    __slots__ = (
        "active",
        "completed",
        "completed_count",
        "concurrency",
        "debounced",
        "delayed",
        "delayed_count",
        "dlq",
        "dlq_config",
        "events",
        "expiring",
        "gated",
        "groups",
        "name",
        "parked",
        "paused",
        "rate",
        "ready",
        "stall",
        "total_completed",
        "total_failed",
        "unique",
        "unique_bound",
        "waiters",
        "windows_until",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = ReadySet()
        self.groups: Groups | None = None  #: made with the first grouped job or group policy
        self.delayed: list[
            tuple[int, str, Job]
        ] = []  #: heap; an entry counts while the job is in the delayed set, at that time
        self.delayed_count = 0
        self.expiring: list[tuple[int, str, Job]] = []  #: heap of jobs with a time to live
        self.active: dict[str, Job] = {}
        self.gated: dict[str, Job] = {}  #: wait for dependencies
        self.parked: dict[str, Job] = {}  #: moved to waiting-children by hand
        self.completed: OrderedDict[str, Job] = OrderedDict()  #: completed jobs in memory, oldest first
        self.completed_count = 0  #: completed jobs that are retained anywhere
        self.dlq: OrderedDict[str, tuple[int, DlqEntry]] = (
            OrderedDict()
        )  #: (row id, entry) by job id, in order of entry
        self.unique: dict[str, UniqueKey] = {}
        self.windows_until = 0  #: when the last deduplication window that was opened ends (epoch ms)
        self.unique_bound = 1_024  #: number of keys at which those that mean nothing any more are dropped
        self.debounced: dict[str, str] = {}  #: by debounce id: the job that waits for the last of its adds
        self.paused = False
        self.rate: RateLimiter | None = None
        self.concurrency: ConcurrencyLimiter | None = None
        self.stall = DEFAULT_STALL
        self.dlq_config = DEFAULT_DLQ
        self.waiters = 0  #: parked pulls; kept by the broker, so that the engine knows whether to report wake-ups
        self.events = 0  #: events in the queue's journal, not yet cut to its bound
        self.total_completed = 0
        self.total_failed = 0

    # -- the run set --------------------------------------------------------------------------------------------------

    @property
    def claimable(self) -> int:
        """Jobs that a pull could claim now if no limit stood against it."""
        return self.ready.size + (self.groups.ready if self.groups is not None else 0)

    @property
    def queued(self) -> int:
        """Jobs in the run set: waiting, prioritized and delayed."""
        return self.ready.size + self.delayed_count + (self.groups.ready if self.groups is not None else 0)

    def insert(self, job: Job, now: int) -> None:
        """Put a job without an entry anywhere into the run set."""
        if job.run_at > now:
            heapq.heappush(self.delayed, (job.run_at, job.id, job))
            job.where = DELAYED_SET
            self.delayed_count += 1
        else:
            self._insert_ready(job)
        if job.options.ttl_ms is not None:
            heapq.heappush(self.expiring, (job.created_at + job.options.ttl_ms + 1, job.id, job))
            if len(self.expiring) > 2 * self.queued + _COMPACT_AT:
                self._compact_expiring()
        if job.group_id is not None:
            groups = self.group_set()
            groups.queued += 1
            groups.get(job.group_id).queued += 1

    def _insert_ready(self, job: Job) -> None:
        if job.group_id is not None:
            self.group_set().add(job)
        else:
            self.ready.add(job)

    def remove(self, job: Job) -> None:
        """Take a job out of the run set, wherever in it it is."""
        where = job.where
        if where == READY_SET:
            self.ready.drop(job)
        elif where == DELAYED_SET:
            job.where = STALE
            self.delayed_count -= 1
            if len(self.delayed) > 1024 and len(self.delayed) > 2 * self.delayed_count:
                self._compact_delayed()
        elif where == LANE and self.groups is not None:
            self.groups.drop(job)
        self._unqueue_group(job)

    def taken(self, job: Job) -> None:
        """Account for a job that was delivered from the run set."""
        self._unqueue_group(job)

    def _unqueue_group(self, job: Job) -> None:
        if job.group_id is not None and self.groups is not None:
            self.groups.queued -= 1
            group = self.groups.by_id[job.group_id]
            group.queued -= 1
            self.groups.forget_idle(group)

    def _compact_delayed(self) -> None:
        for _, _, job in self.delayed:
            if job.where == STALE:
                job.where = NOWHERE
        self.delayed = [
            entry for entry in self.delayed if entry[2].where == DELAYED_SET and entry[2].run_at == entry[0]
        ]
        heapq.heapify(self.delayed)

    def _compact_expiring(self) -> None:
        """Rid the heap of jobs that were delivered long before their time was over."""
        waiting = {id(entry[2]): entry for entry in self.expiring if entry[2].location == Location.READY}
        self.expiring = list(waiting.values())
        heapq.heapify(self.expiring)

    def promote_due(self, now: int) -> None:
        """Move delayed jobs whose time has come to the ready set. Cost follows the number that moves."""
        delayed = self.delayed
        while delayed and delayed[0][0] <= now:
            run_at, _, job = heapq.heappop(delayed)
            if job.where == DELAYED_SET and job.run_at == run_at:
                self.delayed_count -= 1
                self._insert_ready(job)
            elif job.where == STALE:
                job.where = NOWHERE

    def next_due(self) -> int | None:
        """When the next delayed job is due (epoch ms)."""
        delayed = self.delayed
        while delayed:
            run_at, _, job = delayed[0]
            if job.where == DELAYED_SET and job.run_at == run_at:
                return run_at
            heapq.heappop(delayed)
            if job.where == STALE:
                job.where = NOWHERE
        return None

    def ready_jobs(self) -> Iterator[Job]:
        """Ready jobs, ungrouped ones in their order first."""
        yield from self.ready
        if self.groups is not None:
            yield from self.groups

    def delayed_jobs(self) -> Iterator[Job]:
        for run_at, _, job in self.delayed:
            if job.where == DELAYED_SET and job.run_at == run_at:
                yield job

    def queued_jobs(self) -> Iterator[Job]:
        yield from self.ready_jobs()
        yield from self.delayed_jobs()

    def group_set(self) -> Groups:
        if self.groups is None:
            self.groups = Groups()
        return self.groups

    # -- controls -----------------------------------------------------------------------------------------------------

    @property
    def default_controls(self) -> bool:
        """True if nothing about the queue has to be stored."""
        return not (
            self.paused
            or self.rate is not None
            or self.concurrency is not None
            or self.stall != DEFAULT_STALL
            or self.dlq_config != DEFAULT_DLQ
        )

    @property
    def empty(self) -> bool:
        """No job of any kind and no policy: without parked pulls, too, the name may be forgotten."""
        return not (
            self.queued
            or self.active
            or self.gated
            or self.parked
            or self.completed_count
            or self.dlq
            or not self.default_controls
            or (self.groups is not None and self.groups.by_id)
        )


__all__ = ["DEFAULT_DLQ", "DEFAULT_STALL", "QueueState", "UniqueKey"]


class StaleChildren:
    """A job whose payload does not name all of its children yet, and which ones the job itself names."""

    __slots__ = ("ids", "listed", "parent")

    def __init__(self, parent: Job) -> None:
        self.parent = parent
        self.ids = set(parent.children_ids)
        self.listed = set(parent.depends_on)
