"""Groups: lanes inside a queue, served in fair rotation.

A lane holds the ready jobs of one group: lower priority number first, then admission order. A ring of the lanes that have
ready jobs has a cursor; serving a lane moves the cursor past it. Limits and pauses make a lane ineligible without moving it.

Usually the lane at the cursor may be served. Where many may not (each has used up its rate, or is paused), walking past them would
make every pull cost what the number of groups costs; then the lanes get places, numbers that grow along the ring, and those that
may be served lie in a heap by them (:class:`Awake`). The ring and its order are the same with and without.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from bunqueue_core.engine.ready import LANE
from bunqueue_core.model.job import Job
from bunqueue_core.model.requests import GroupDefaults

#: Lanes that a pull walks past before the lanes get places.
MAX_STEPS: Final = 32

#: Sets of worker defaults for which the lanes that may be served are known; others take the oldest one's place.
MAX_AWAKE: Final = 4

#: Distance between the places of two lanes. Lanes that join later stand between; five generations of them fit.
_GAP: Final = 1 << 60

#: A lane that joins takes this part of the distance that is left, as more may follow it.
_STEP_SHIFT: Final = 12

#: Dead entries that a lane may hold beside twice its live ones.
_COMPACT_AT: Final = 64


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
        "lingers",
        "live",
        "noted",
        "paused",
        "place",
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
        self.place = 0  #: grows along the ring; kept only while there is a heap by it
        self.lingers = False  #: forgotten once its window or manual limit has ended
        self.noted = False  #: the journal has a row of what it has used of its rate

    def __lt__(self, other: Group) -> bool:
        """Heaps compare groups only where everything before them ties: which goes first does not matter."""
        return False

    @property
    def has_policy(self) -> bool:
        """A stored policy: limits or pause."""
        return self.paused or self.concurrency is not None or self.rate_max is not None

    @property
    def idle(self) -> bool:
        """Nothing would be lost by forgetting it at :attr:`kept_until`."""
        return not (self.queued or self.active or self.has_policy or self.live)

    @property
    def kept_until(self) -> int:
        """When its rate window and its manual limit have ended (epoch ms); 0 if it has neither."""
        window = self.window
        return max(self.blocked_until, 0 if window is None else window.started_at + window.duration_ms)

    def live_window(self, now: int) -> Window | None:
        """The window that is open now."""
        window = self.window
        # One that begins in the future was opened before the clock went back.
        if window is not None and not window.started_at <= now < window.started_at + window.duration_ms:
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

    def compact(self) -> None:
        """Rid the lane of dead entries once they prevail."""
        if len(self.lane) > 2 * self.live + _COMPACT_AT:
            jobs = list(self)
            self.lane = [(job.priority, job.group_order, job.id, job) for job in jobs]

    def __iter__(self) -> Iterator[Job]:
        jobs = (entry[3] for entry in sorted(self.lane) if entry[3].where == LANE and entry[3].priority == entry[0])
        return iter(dict.fromkeys(jobs))


#: What of a worker's defaults decides which lanes may be served.
_Key = tuple[int | None, int | None, int | None]


def _key(defaults: GroupDefaults | None) -> _Key:
    if defaults is None:
        return None, None, None
    return defaults.concurrency, defaults.limit_max, defaults.limit_duration_ms


class Awake:
    """The lanes that may be served under one set of worker defaults, as far as that is known: the others are asleep.

    A lane falls asleep when it is looked at and may not be served. It wakes when its group changes, or when its time comes. Its
    heap orders lanes by the round in which the cursor reaches them, then by place.
    """

    __slots__ = ("alarms", "asleep", "heap", "idle_since", "serial")

    def __init__(self) -> None:
        self.heap: list[
            tuple[int, int, Group]
        ] = []  #: (round, place, lane); counts while the lane stands there and is awake
        self.asleep: dict[Group, int | None] = {}  #: until when (epoch ms; None: not by time)
        self.alarms: list[tuple[int, int, Group]] = []  #: (epoch ms, serial, lane)
        self.serial = 0
        self.idle_since = 0  #: looks since a lane was last asleep

    def sleep(self, group: Group, until: int | None) -> None:
        self.asleep[group] = until
        self.idle_since = 0
        if until is not None:
            self.serial += 1
            heapq.heappush(self.alarms, (until, self.serial, group))

    def next_alarm(self) -> int | None:
        """When the next lane may wake by itself (epoch ms)."""
        alarms = self.alarms
        while alarms and self.asleep.get(alarms[0][2]) != alarms[0][0]:
            heapq.heappop(alarms)
        return alarms[0][0] if alarms else None


class Groups:
    """All groups of one queue, and the ring of those with ready jobs."""

    __slots__ = (
        "_awake",
        "_cursor",
        "_lanes",
        "_lingering",
        "_round",
        "by_id",
        "next_order",
        "prioritized",
        "pruned",
        "queued",
        "ready",
    )

    def __init__(self) -> None:
        self.by_id: dict[str, Group] = {}
        self._cursor: Group | None = None
        self._lanes = 0  #: lanes in the ring
        self._awake: dict[_Key, Awake] = {}  #: empty as long as the cursor alone finds lanes fast enough
        self._round = 0  #: how often the cursor has passed the lane with the lowest place
        self._lingering: list[
            tuple[int, Group]
        ] = []  #: heap: idle groups by when their window and manual limit have ended
        self.pruned: list[str] = []  #: forgotten groups that the journal still has a row of (:attr:`Group.noted`)
        self.queued = 0  #: ready and delayed grouped jobs
        self.ready = 0
        self.prioritized = 0  #: ready jobs with a priority above 0
        self.next_order = 1

    def get(self, id: str) -> Group:
        """The group, made if it is new."""
        group = self.by_id.get(id)
        if group is None:
            group = self.by_id[id] = Group(id)
        return group

    def forget_idle(self, group: Group) -> None:
        """Drop a group that nothing refers to any more, now or when its window and manual limit have ended."""
        if not group.idle:
            return
        kept_until = group.kept_until
        if not kept_until and not group.noted:
            self.by_id.pop(group.id, None)
        elif not group.lingers:
            group.lingers = True
            heapq.heappush(self._lingering, (kept_until, group))

    def prune(self, now: int) -> None:
        """Drop idle groups whose window and manual limit have ended."""
        lingering = self._lingering
        while lingering and lingering[0][0] <= now:
            _, group = heapq.heappop(lingering)
            group.lingers = False
            if not group.idle or self.by_id.get(group.id) is not group:
                continue
            if group.kept_until > now:
                self.forget_idle(group)
            else:
                del self.by_id[group.id]
                if group.noted:
                    self.pruned.append(group.id)

    @property
    def lingering(self) -> bool:
        """Whether :meth:`prune` will have something to do."""
        return bool(self._lingering)

    def left_active(self, group: Group) -> None:
        """A job of the group is no longer active."""
        group.active = max(0, group.active - 1)
        self.changed(group)
        self.forget_idle(group)

    def changed(self, group: Group) -> None:
        """The group's lane may have become eligible."""
        for awake in self._awake.values():
            if group in awake.asleep:
                del awake.asleep[group]
                if group.following is not None:
                    heapq.heappush(awake.heap, (*self._position(group), group))

    # -- the ring -----------------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Put a ready job into its lane."""
        assert job.group_id is not None
        group = self.get(job.group_id)
        heapq.heappush(group.lane, (job.priority, job.group_order, job.id, job))
        job.where = LANE
        group.live += 1
        self.ready += 1
        if job.priority > 0:
            self.prioritized += 1
        if group.following is None:
            self._enter(group)

    def _enter(self, group: Group) -> None:
        self._lanes += 1
        cursor = self._cursor
        if cursor is None:
            group.following = group.preceding = self._cursor = group
            group.place = 0
        else:
            tail = cursor.preceding
            assert tail is not None
            tail.following = cursor.preceding = group
            group.preceding, group.following = tail, cursor
            if self._awake:
                self._place(group, tail, cursor)
        for awake in self._awake.values():
            heapq.heappush(awake.heap, (*self._position(group), group))

    def _place(self, group: Group, tail: Group, cursor: Group) -> None:
        """Give a lane that joins between two others its place."""
        if tail.place >= cursor.place:
            group.place = tail.place + _GAP
            return
        distance = cursor.place - tail.place
        if distance < 2:
            # No room: this happens once in many rounds. The places of all are given anew, and whoever sleeps is looked at again.
            self._awake.clear()
            return
        group.place = tail.place + max(1, distance >> _STEP_SHIFT)

    def _leave(self, group: Group) -> None:
        following, preceding = group.following, group.preceding
        if following is None or preceding is None:
            return
        self._lanes -= 1
        for awake in self._awake.values():
            awake.asleep.pop(group, None)
        if self._cursor is group:
            self._advance(group)
        group.following = group.preceding = None
        if following is group:
            self._cursor = None
            return
        preceding.following, following.preceding = following, preceding

    def _position(self, group: Group) -> tuple[int, int]:
        """When the cursor reaches the lane: the round, and the place in it."""
        cursor = self._cursor
        ahead = cursor is None or group.place >= cursor.place
        return self._round if ahead else self._round + 1, group.place

    def _advance(self, group: Group) -> None:
        """Move the cursor past a lane."""
        following = group.following
        if self._awake and following is not None:
            self._round = self._position(group)[0] + (following.place <= group.place)
        self._cursor = following

    def ring(self) -> list[Group]:
        """The lanes in the order in which the cursor reaches them."""
        lanes: list[Group] = []
        group = self._cursor
        while group is not None:
            lanes.append(group)
            group = group.following
            if group is self._cursor:
                break
        return lanes

    # -- selection ----------------------------------------------------------------------------------------------------

    def select(self, now: int, defaults: GroupDefaults | None) -> tuple[Job | None, int | None]:
        """The job that is next in rotation, and otherwise when one may be (epoch ms)."""
        if self._lingering:
            self.prune(now)
        if defaults is not None and defaults.affine:
            only = self.by_id.get(defaults.affinity) if defaults.affinity is not None else None
            if only is None or not only.live:
                return None, None
            eligible, at = only.eligible(now, defaults)
            return (only.first(), None) if eligible else (None, at)
        if self._awake:
            return self._select_awake(now, defaults)
        retry_at: int | None = None
        group = self._cursor
        steps = 0
        while group is not None:
            eligible, at = group.eligible(now, defaults)
            if eligible:
                return group.first(), None
            if at is not None and (retry_at is None or at < retry_at):
                retry_at = at
            steps += 1
            if steps >= MAX_STEPS and self._lanes > 2 * MAX_STEPS:
                return self._select_awake(now, defaults)
            group = group.following
            if group is self._cursor:
                break
        return None, retry_at

    def _select_awake(self, now: int, defaults: GroupDefaults | None) -> tuple[Job | None, int | None]:
        key = _key(defaults)
        awake = self._awake.get(key)
        if awake is None:
            awake = self._wake_all(key)
        alarms, asleep, heap = awake.alarms, awake.asleep, awake.heap
        while alarms and alarms[0][0] <= now:
            alarm, _, group = heapq.heappop(alarms)
            if asleep.get(group) == alarm:
                del asleep[group]
                heapq.heappush(heap, (*self._position(group), group))
        while heap:
            reached, place, group = heap[0]
            if group.following is None or group.place != place or group in asleep:
                heapq.heappop(heap)
                continue
            position = self._position(group)
            if position[0] != reached:
                heapq.heapreplace(heap, (*position, group))
                continue
            eligible, at = group.eligible(now, defaults)
            if eligible:
                self._rest(key, awake)
                return group.first(), None
            heapq.heappop(heap)
            awake.sleep(group, at)
        return None, awake.next_alarm()

    def _wake_all(self, key: _Key) -> Awake:
        """Begin to keep apart the lanes that may be served under a set of defaults: all of them, as nothing is known yet."""
        ring = self.ring()
        if not self._awake:
            for number, group in enumerate(ring):
                group.place = number * _GAP
        elif len(self._awake) >= MAX_AWAKE:
            del self._awake[next(iter(self._awake))]
        awake = self._awake[key] = Awake()
        awake.heap = [(*self._position(group), group) for group in ring]
        return awake

    def _rest(self, key: _Key, awake: Awake) -> None:
        """Give up what is kept of a set of defaults once no lane has slept for as long as it took to build it."""
        if awake.asleep:
            awake.idle_since = 0
        else:
            awake.idle_since += 1
            if awake.idle_since > self._lanes:
                del self._awake[key]
                return
        if len(awake.heap) > 4 * self._lanes + _COMPACT_AT:
            awake.heap = [(*self._position(group), group) for group in self.ring() if group not in awake.asleep]

    # -- what becomes of jobs -----------------------------------------------------------------------------------------

    def take(self, job: Job, now: int, defaults: GroupDefaults | None) -> Group:
        """Deliver the job that :meth:`select` has just given. Gives its group."""
        assert job.group_id is not None
        group = self.by_id[job.group_id]
        self._advance(group)
        if group.lane and group.lane[0][3] is job:
            heapq.heappop(group.lane)
        self._remove(group, job)
        window = group.window
        group.count_delivery(now, defaults)
        if window is not group.window and len(self._awake) > 1:
            self.changed(
                group
            )  # a worker with other defaults may have been waiting for the window that this one replaced
        return group

    def drop(self, job: Job) -> None:
        """Take a ready job out of its lane."""
        assert job.group_id is not None
        group = self.by_id[job.group_id]
        self._remove(group, job)
        group.compact()

    def _remove(self, group: Group, job: Job) -> None:
        job.where = 0
        group.live -= 1
        self.ready -= 1
        if job.priority > 0:
            self.prioritized -= 1
        if not group.live:
            group.lane.clear()
            self._leave(group)

    def __iter__(self) -> Iterator[Job]:
        for group in self.by_id.values():
            yield from group

    def problems(self) -> list[str]:
        """What does not hold of the ring and the heaps by place, as sentences; for tests."""
        ring = self.ring()
        problems = [f"{group.id} is not linked both ways" for group in ring if group.following is None]
        problems += [
            f"{group.id} does not stand before {following.id}"
            for group, following in zip(ring, [*ring[1:], *ring[:1]], strict=True)
            if group.following is not following or following.preceding is not group
        ]
        if len(ring) != self._lanes:
            problems.append(f"{self._lanes} lanes are counted, {len(ring)} are in the ring")
        if self._awake and sorted(ring, key=self._position) != ring:
            problems.append("places do not grow along the ring")
        for awake in self._awake.values():
            known = {group for _, place, group in awake.heap if group.place == place} | awake.asleep.keys()
            problems += [f"{group.id} is neither awake nor asleep" for group in ring if group not in known]
            problems += [f"{group.id} sleeps outside the ring" for group in awake.asleep if group.following is None]
        return problems
