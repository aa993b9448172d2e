"""What holds a worker back: limits of starts, of groups, and batches that are not full."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from bunqueue_core.client._job_base import JobBase
from bunqueue_core.model.requests import GroupDefaults

#: Most jobs that one pull may ask for, and that a batch may have; the protocol's bound.
MAX_BATCH: Final = 1000


def positive(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 2**53 - 1 or value % 1:
        raise ValueError(f"{field} must be a positive safe integer")
    return int(value)


def group_defaults(group: Mapping[str, Any] | None) -> GroupDefaults | None:
    """Limits that a worker proposes for groups, from ``{"concurrency", "limit": {"max", "duration"}}``.

    Raises:
        ValueError: a limit is not a positive integer.
    """
    if group is None:
        return None
    limit = group.get("limit")
    if limit is not None and not isinstance(limit, Mapping):
        raise ValueError("group.limit must be an object")
    concurrency = group.get("concurrency")
    return GroupDefaults(
        concurrency=None if concurrency is None else positive("group.concurrency", concurrency),
        limit_max=None if limit is None else positive("group.limit.max", limit.get("max")),
        limit_duration_ms=None if limit is None else positive("group.limit.duration", limit.get("duration")),
    )


class StartLimiter:
    """At most ``max`` starts in any ``duration_ms``.

    Args:
        limit: starts.
        duration_ms: length of the window.
        clock: monotonic seconds.
    """

    def __init__(self, limit: int, duration_ms: float, clock: Callable[[], float]) -> None:
        self.limit = limit
        self.duration_s = duration_ms / 1000
        self._clock = clock
        self._starts: deque[float] = deque()

    def free(self) -> int:
        """Starts that are possible now."""
        self._forget()
        return self.limit - len(self._starts)

    def wait_s(self) -> float:
        """Seconds until a start is possible."""
        self._forget()
        if len(self._starts) < self.limit:
            return 0.0
        return max(0.0, self._starts[0] + self.duration_s - self._clock())

    def started(self) -> None:
        """Count a start."""
        self._starts.append(self._clock())

    def _forget(self) -> None:
        oldest = self._clock() - self.duration_s
        while self._starts and self._starts[0] <= oldest:
            self._starts.popleft()


class GroupGate:
    """At most ``limit`` running jobs of one value of ``data[key]``; the others are held back, in order."""

    def __init__(self, key: str, limit: int) -> None:
        self.key = key
        self.limit = limit
        self._running: dict[Any, int] = {}
        self._held: dict[Any, deque[Any]] = {}

    def group_of(self, job: JobBase) -> Any:
        """The group of a job; jobs without one form a group of their own."""
        value = job.data.get(self.key) if isinstance(job.data, dict) else None
        try:
            hash(value)
        except TypeError:
            return repr(value)
        return value

    def enter(self, job: JobBase) -> bool:
        """Whether ``job`` may start. If not, it is held until :meth:`leave` gives it."""
        group = self.group_of(job)
        running = self._running.get(group, 0)
        if running < self.limit:
            self._running[group] = running + 1
            return True
        self._held.setdefault(group, deque()).append(job)
        return False

    def leave(self, job: JobBase) -> Any | None:
        """``job`` has ended; the job that may start in its place, None if there is none."""
        group = self.group_of(job)
        held = self._held.get(group)
        if held:
            follower = held.popleft()
            if not held:
                del self._held[group]
            return follower
        running = self._running.get(group, 1) - 1
        if running > 0:
            self._running[group] = running
        else:
            self._running.pop(group, None)
        return None

    def clear(self) -> list[Any]:
        """Take out the jobs that are held."""
        jobs = [job for held in self._held.values() for job in held]
        self._held.clear()
        return jobs


def make_limiters(
    limiter: Mapping[str, Any] | None, clock: Callable[[], float]
) -> tuple[StartLimiter | None, GroupGate | None]:
    """The limiter of starts, or of running jobs by group, from ``{"max", "duration", "group_key"?}``.

    Raises:
        ValueError: a bound is not positive.
    """
    if limiter is None:
        return None, None
    limit, duration = limiter.get("max"), limiter.get("duration")
    key = limiter.get("group_key", limiter.get("groupKey"))
    if key is not None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError("Worker group limiter max must be a positive integer")
        return None, GroupGate(str(key), limit)
    for value in (limit, duration):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError("Worker limiter max and duration must be positive finite values")
    assert limit is not None
    assert duration is not None
    return StartLimiter(max(1, int(limit)), duration, clock), None


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How jobs are gathered into batches. ``timeout_s`` 0 waits for ``min_size`` jobs as long as it takes."""

    size: int
    min_size: int
    timeout_s: float
    affine: bool

    @classmethod
    def checked(cls, batch: Mapping[str, Any], limiter: StartLimiter | None) -> BatchOptions:
        """Check ``{"size", "min_size": 1, "timeout": 0, "group_affinity": False}``; ``timeout`` in ms.

        Raises:
            TypeError: a key is not known.
            ValueError: a value is out of its bounds.
        """
        names = {"minSize": "min_size", "groupAffinity": "group_affinity"}
        given = {names.get(key, key): value for key, value in batch.items()}
        for key in given:
            if key not in ("size", "min_size", "timeout", "group_affinity"):
                raise TypeError(f"batch has no option {key!r} (known: size, min_size, timeout, group_affinity)")
        size, least, timeout = given.get("size"), given.get("min_size", 1), given.get("timeout", 0)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BATCH:
            raise ValueError(f"batch.size must be a positive safe integer no greater than {MAX_BATCH}")
        if isinstance(least, bool) or not isinstance(least, int) or not 1 <= least <= size:
            raise ValueError("batch.minSize must be between 1 and batch.size")
        if limiter is not None and least > limiter.limit:
            raise ValueError("batch.minSize cannot exceed limiter.max")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= 2**53 - 1:
            raise ValueError("batch.timeout must be a non-negative safe integer")
        return cls(size, least, timeout / 1000, bool(given.get("group_affinity", False)))


class Gatherer:
    """Gathers delivered jobs until they make a batch."""

    def __init__(self, options: BatchOptions, clock: Callable[[], float]) -> None:
        self.options = options
        self._clock = clock
        self._since = 0.0
        self._jobs: list[Any] = []
        self._asked = False  #: a pull for more jobs of the group has been begun
        self._topped_up = False  #: one has ended

    def add(self, jobs: list[Any]) -> None:
        """Take what a pull has delivered, even if that is nothing."""
        if jobs and not self._jobs:
            self._since = self._clock()
        self._topped_up = self._asked
        self._jobs.extend(jobs)

    def take(self) -> Any | None:
        """The leader of a batch that is ready, None if there is none."""
        options, jobs = self.options, self._jobs
        if not jobs:
            return None
        if options.affine:
            enough = len(jobs) >= options.size or (len(jobs) >= options.min_size and self._topped_up)
        else:
            enough = len(jobs) >= options.min_size or any(job.group_id is not None for job in jobs)
        if not enough and not (options.timeout_s and self._clock() >= self._since + options.timeout_s):
            return None
        members, self._jobs = jobs[: options.size], jobs[options.size :]
        self._since = self._clock()
        self._asked = self._topped_up = False
        members[0]._batch = members
        return members[0]

    def wanted(self, free: int) -> int:
        """Jobs to pull when ``free`` fit: with affinity one to learn its group, then more of that group."""
        if not self.options.affine:
            return free
        return min(free, self.options.size - len(self._jobs)) if self._jobs else min(free, 1)

    def affinity(self, group: GroupDefaults | None) -> GroupDefaults | None:
        """Group defaults of the next pull: restricted to the group of what was gathered, where that is wanted."""
        if not self.options.affine or not self._jobs:
            return group
        self._asked = True
        return replace(group or GroupDefaults(), affine=True, affinity=self._jobs[0].group_id)

    def wait_ms(self, longest: int) -> int:
        """How long the next pull may wait, ms."""
        if not self._jobs:
            return longest
        if len(self._jobs) >= self.options.min_size:
            return 0  # what is there can run; the pull only completes it
        left = self.left_s()
        return longest if left is None else min(longest, math.ceil(left * 1000))

    def left_s(self) -> float | None:
        """Seconds until what was gathered runs although it is not enough; None if it waits without limit."""
        if not self._jobs or not self.options.timeout_s:
            return None
        return max(0.0, self._since + self.options.timeout_s - self._clock())

    def clear(self) -> list[Any]:
        """Take out what was gathered."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def __bool__(self) -> bool:
        return bool(self._jobs)
