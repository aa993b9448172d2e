"""Groups: lanes inside a queue, served in fair rotation.

A lane holds the ready jobs of one group: lower priority number first, then admission order. A ring of the lanes that have
ready jobs has a cursor; serving a lane moves the cursor past it. Limits and pauses make a lane ineligible without moving it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from bunqueue_core.engine.ready import LANE
from bunqueue_core.model.job import Job
from bunqueue_core.model.requests import GroupDefaults


class Window:
    """A group's rate window: fixed, opened by its first delivery, remembers what it was opened with."""

    __slots__ = ("count", "duration_ms", "maximum", "started_at")

    def __init__(self, started_at: int, maximum: int, duration_ms: int) -> None:
        self.started_at = started_at
        self.maximum = maximum
        self.duration_ms = duration_ms
        self.count = 0


class Group:
    """One group: its lane, its policies and its counters."""

    __slots__ = (
        "active",
        "blocked_until",
        "concurrency",
        "following",
        "id",
        "lane",
        "live",
        "paused",
        "preceding",
        "queued",
        "rate_duration_ms",
        "rate_max",
        "window",
    )

    def __init__(self, id: str) -> None:
        self.id = id
        self.lane: list[tuple[int, int, str, Job]] = []  #: heap of (priority, admission order, id, job)
        self.live = 0  #: ready jobs in the lane
        self.queued = 0  #: ready and delayed jobs
        self.active = 0
        self.paused = False
        self.concurrency: int | None = None
        self.rate_max: int | None = None
        self.rate_duration_ms: int | None = None
        self.window: Window | None = None
        self.blocked_until = 0  #: manual limit, epoch ms
        self.following: Group | None = None  #: next in the ring; None while outside
        self.preceding: Group | None = None

    @property
    def has_policy(self) -> bool:
        """A stored policy: limits or pause."""
        return self.paused or self.concurrency is not None or self.rate_max is not None

    @property
    def idle(self) -> bool:
        """Nothing would be lost by forgetting it."""
        return not (self.queued or self.active or self.has_policy or self.blocked_until or self.window or self.lane)

    def live_window(self, now: int) -> Window | None:
        """The window that is open now."""
        window = self.window
        if window is not None and now >= window.started_at + window.duration_ms:
            window = self.window = None
        return window

    def limit(self, defaults: GroupDefaults | None) -> tuple[int, int] | None:
        """(max, duration) in force for a pull with ``defaults``; overrides count only where the worker gives a default."""
        if defaults is None or defaults.limit_max is None or defaults.limit_duration_ms is None:
            return None
        if self.rate_max is not None and self.rate_duration_ms is not None:
            return self.rate_max, self.rate_duration_ms
        return defaults.limit_max, defaults.limit_duration_ms

    def eligible(self, now: int, defaults: GroupDefaults | None) -> tuple[bool, int | None]:
        """Whether a job may be delivered now, and if not, when that may change by itself (epoch ms; None: not by time)."""
        if self.paused:
            return False, None
        if self.blocked_until > now:
            return False, self.blocked_until
        if defaults is not None and defaults.concurrency is not None:
            bound = self.concurrency if self.concurrency is not None else defaults.concurrency
            if self.active >= bound:
                return False, None
        limit = self.limit(defaults)
        if limit is not None:
            window = self.live_window(now)
            if window is not None and (window.maximum, window.duration_ms) == limit and window.count >= limit[0]:
                return False, window.started_at + window.duration_ms
        return True, None

    def count_delivery(self, now: int, defaults: GroupDefaults | None) -> None:
        """Account for one delivery."""
        self.active += 1
        limit = self.limit(defaults)
        if limit is not None:
            window = self.live_window(now)
            if window is None or (window.maximum, window.duration_ms) != limit:
                window = self.window = Window(now, *limit)
            window.count += 1

    def first(self) -> Job | None:
        """The lane's next job."""
        while self.lane:
            priority, order, _, job = self.lane[0]
            if job.where == LANE and job.priority == priority and job.group_order == order:
                return job
            heapq.heappop(self.lane)
        return None

    def __iter__(self) -> Iterator[Job]:
        jobs = (entry[3] for entry in sorted(self.lane) if entry[3].where == LANE and entry[3].priority == entry[0])
        return iter(dict.fromkeys(jobs))


class Groups:
    """All groups of one queue, and the ring of those with ready jobs."""

    __slots__ = ("_cursor", "by_id", "next_order", "queued", "ready")

    def __init__(self) -> None:
        self.by_id: dict[str, Group] = {}
        self._cursor: Group | None = None
        self.queued = 0  #: ready and delayed grouped jobs
        self.ready = 0
        self.next_order = 1

    def get(self, id: str) -> Group:
        """The group, made if it is new."""
        group = self.by_id.get(id)
        if group is None:
            group = self.by_id[id] = Group(id)
        return group

    def forget_idle(self, group: Group) -> None:
        """Drop a group that nothing refers to any more."""
        if group.idle and group.following is None:
            self.by_id.pop(group.id, None)

    def add(self, job: Job) -> None:
        """Put a ready job into its lane."""
        assert job.group_id is not None
        group = self.get(job.group_id)
        heapq.heappush(group.lane, (job.priority, job.group_order, job.id, job))
        job.where = LANE
        group.live += 1
        self.ready += 1
        if group.following is None:
            self._enter(group)

    def _enter(self, group: Group) -> None:
        cursor = self._cursor
        if cursor is None:
            group.following = group.preceding = self._cursor = group
            return
        tail = cursor.preceding
        assert tail is not None
        tail.following = cursor.preceding = group
        group.preceding, group.following = tail, cursor

    def _leave(self, group: Group) -> None:
        following, preceding = group.following, group.preceding
        if following is None or preceding is None:
            return
        group.following = group.preceding = None
        if following is group:
            self._cursor = None
            return
        preceding.following, following.preceding = following, preceding
        if self._cursor is group:
            self._cursor = following

    def select(self, now: int, defaults: GroupDefaults | None) -> tuple[Job | None, int | None]:
        """The job that is next in rotation, and otherwise when one may be (epoch ms)."""
        retry_at: int | None = None
        if defaults is not None and defaults.affine:
            only = self.by_id.get(defaults.affinity) if defaults.affinity is not None else None
            candidates: list[Group] = [only] if only is not None else []
        else:
            candidates = []
            group = self._cursor
            while group is not None:
                candidates.append(group)
                group = group.following
                if group is self._cursor:
                    break
                # The first eligible lane wins, so usually one step is enough; walk on only past ineligible ones.
                if candidates[-1].eligible(now, defaults)[0] and candidates[-1].live:
                    break
        for group in candidates:
            if not group.live:
                continue
            eligible, at = group.eligible(now, defaults)
            if eligible:
                return group.first(), None
            if at is not None and (retry_at is None or at < retry_at):
                retry_at = at
        return None, retry_at

    def take(self, job: Job, now: int, defaults: GroupDefaults | None) -> None:
        """Deliver the job that :meth:`select` has just given."""
        assert job.group_id is not None
        group = self.by_id[job.group_id]
        self._cursor = group.following
        if group.lane and group.lane[0][3] is job:
            heapq.heappop(group.lane)
        self._remove(group, job)
        group.count_delivery(now, defaults)

    def drop(self, job: Job) -> None:
        """Take a ready job out of its lane."""
        assert job.group_id is not None
        self._remove(self.by_id[job.group_id], job)

    def _remove(self, group: Group, job: Job) -> None:
        job.where = 0
        group.live -= 1
        self.ready -= 1
        if not group.live:
            group.lane.clear()
            self._leave(group)

    def __iter__(self) -> Iterator[Job]:
        for group in self.by_id.values():
            yield from group
