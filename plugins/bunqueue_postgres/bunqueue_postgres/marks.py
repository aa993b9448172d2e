"""Low-water marks: where in a queue's order the next claim may begin to look.

Claimed jobs leave entries in the index until vacuum takes them away, which an old snapshot can prevent for as long as it is held. A
claim that began at the head of the queue would step over all of them each time. So the broker remembers, for each priority of a
queue, the last job that it has claimed: what stands before it was claimed already.

That is a hint with two exceptions, and both are bounded. A push that was not committed when the mark was made stands before it, so
a mark keeps a distance of :data:`SLACK_MS` from the present. A job that goes back to an old place is known to the broker that put
it there; other brokers find it with their next look behind their marks, every :data:`LOOK_S`, apart from the claims, which
therefore never pay for it. Where it found something, one claim begins there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

#: Distance from the present that a mark keeps, ms: longer than any push takes to commit.
SLACK_MS: Final = 5_000

#: Seconds between looks behind the marks: jobs that came in there wait no longer than this, as long as a look is short.
LOOK_S: Final = 2.0

#: Looks take one part in so many of the time at most.
LOOK_SHARE: Final = 20

#: Queues with marks that are remembered.
QUEUES: Final = 10_000

#: Priorities of a queue that are remembered; beyond, levels are looked at from their head.
PRIORITIES: Final = 64


class Mark(NamedTuple):
    """Claims of jobs with ``priority`` begin at (``run_at``, ``key``)."""

    priority: int
    run_at: int
    key: str


class _QueueMarks:
    __slots__ = ("levels", "lowered", "used")

    def __init__(self) -> None:
        self.levels: dict[int, Mark] = {}
        self.lowered: dict[int, Mark] = {}  #: where the next claim begins instead
        self.used = True  #: since the last look


class Marks:
    """Marks of all queues of a broker."""

    def __init__(self) -> None:
        self._queues: dict[str, _QueueMarks] = {}

    def take(self, queue: str) -> Sequence[Mark]:
        """Where a claim begins in each level; levels that are not named, at their head."""
        marks = self._queues.get(queue)
        if marks is None:
            return ()
        marks.used = True
        if not marks.lowered:
            return tuple(marks.levels.values())
        begin = {**marks.levels, **marks.lowered}
        marks.lowered = {}
        return tuple(begin.values())

    def floor(self, queue: str) -> int | None:
        """Before which ``run_at`` the next claim does not look in any level that has a mark; None without marks."""
        marks = self._queues.get(queue)
        if marks is None:
            return None
        return min((mark.run_at for mark in (*marks.levels.values(), *marks.lowered.values())), default=None)

    def claimed(self, queue: str, rows: Sequence[tuple[int, int, str, int]]) -> None:
        """Note a claim: priority, run_at, key and time of claim of its jobs, in claim order."""
        marks = self._queues.get(queue)
        if marks is None:
            if len(self._queues) >= QUEUES:
                self._queues.pop(next(iter(self._queues)))
            marks = self._queues[queue] = _QueueMarks()
        levels = marks.levels
        last: dict[int, tuple[int, int, str, int]] = {row[0]: row for row in rows}
        for priority, run_at, key, now in last.values():
            newest = now - SLACK_MS
            mark = Mark(priority, run_at, key) if run_at < newest else Mark(priority, newest, "")
            before = levels.get(priority)
            if before is None:
                if len(levels) < PRIORITIES:
                    levels[priority] = mark
            elif mark > before:
                levels[priority] = mark

    def to_look_behind(self, wanted: Callable[[str], bool]) -> list[tuple[str, Mark]]:
        """Marks of the queues that were claimed from since the last call, or are ``wanted``; those of others are forgotten."""
        found: list[tuple[str, Mark]] = []
        for queue, marks in list(self._queues.items()):
            if marks.used or wanted(queue):
                marks.used = False
                found += [(queue, mark) for mark in marks.levels.values()]
            else:
                del self._queues[queue]
        return found

    def lower(self, queue: str, mark: Mark) -> None:
        """A job was found behind its level's mark: the next claim begins at it."""
        marks = self._queues.get(queue)
        if marks is not None:
            marks.lowered[mark.priority] = mark

    def forget(self, queue: str) -> None:
        """A job may have come in before the marks."""
        self._queues.pop(queue, None)
