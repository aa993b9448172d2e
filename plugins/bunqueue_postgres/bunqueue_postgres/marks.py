"""Low-water marks: where in a queue's order the next claim may begin to look.

Claimed jobs leave entries in the index until vacuum takes them away, which an old snapshot can prevent for as long as it is held. A
claim that began at the head of the queue would step over all of them each time. So the broker remembers, for each priority of a
queue, the first job that its last claim took: what stands before it was claimed already.

That is a hint with two exceptions, and both are bounded: a push that was not committed when the mark was made stands before
it, so a mark keeps a distance of :data:`SLACK_MS` from the present; a job that goes back to an old place is announced by the
broker that put it there, and other brokers find it with their next look from the head, :data:`FULL_LOOK_S` later at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

#: Distance from the present that a mark keeps, ms: longer than any push takes to commit.
SLACK_MS: Final = 5_000

#: Seconds between looks from the head of a queue: jobs that came in before the mark wait no longer than this.
FULL_LOOK_S: Final = 2.0

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
    __slots__ = ("levels", "looked_at")

    def __init__(self) -> None:
        self.levels: dict[int, Mark] = {}
        self.looked_at = float("-inf")


class Marks:
    """Marks of all queues of a broker."""

    def __init__(self) -> None:
        self._queues: dict[str, _QueueMarks] = {}

    def of(self, queue: str, now_s: float) -> Sequence[Mark]:
        """Marks for a claim at ``now_s`` (monotonic seconds); none when it is time to look from the head."""
        marks = self._queues.get(queue)
        if marks is None:
            return ()
        if now_s - marks.looked_at >= FULL_LOOK_S:
            marks.looked_at = now_s
            return ()
        return tuple(marks.levels.values())

    def claimed(self, queue: str, rows: Sequence[tuple[int, int, str, int]]) -> None:
        """Note a claim: priority, run_at, key and time of claim of its jobs, in claim order."""
        marks = self._queues.get(queue)
        if marks is None:
            if len(self._queues) >= QUEUES:
                self._queues.pop(next(iter(self._queues)))
            marks = self._queues[queue] = _QueueMarks()
        levels = marks.levels
        seen: set[int] = set()
        for priority, run_at, key, now in rows:
            if priority in seen:
                continue
            seen.add(priority)
            if priority not in levels and len(levels) >= PRIORITIES:
                continue
            newest = now - SLACK_MS
            levels[priority] = Mark(priority, run_at, key) if run_at < newest else Mark(priority, newest, "")

    def forget(self, queue: str) -> None:
        """A job may have come in before the marks."""
        self._queues.pop(queue, None)
