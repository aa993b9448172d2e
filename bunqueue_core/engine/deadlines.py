"""Deadlines: one clock-driven structure for everything that happens by itself.

Active jobs are many and nearly all of them end before their deadline, so theirs lie in coarse slots from which they are removed in
constant time. A job's slot is a lower bound: when it comes up, the engine looks at the job's true deadline (its lease may have been
renewed) and puts it into a later slot if need be. Everything else (dead letters, retention, schedules) is rare and lies in a heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from bunqueue_core.model.job import Job

#: Width of a slot, ms: a deadline of an active job is noticed at most this much late.
SLOT_MS: Final = 50

#: Slots that are kept without a look whether any job is left in them.
_COMPACT_AT: Final = 4_096


class JobTimers:
    """Deadlines of active jobs."""

    __slots__ = ("_bound", "_heap", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, dict[str, Job]] = {}
        self._heap: list[int] = []
        self._bound = _COMPACT_AT  #: number of slots at which those without a job are dropped

    def add(self, job: Job, when: int) -> None:
        """Have ``job`` come up at ``when`` (epoch ms)."""
        slot = when // SLOT_MS + 1
        jobs = self._slots.get(slot)
        if jobs is None:
            if len(self._heap) > self._bound:
                self._compact()
            jobs = self._slots[slot] = {}
            heapq.heappush(self._heap, slot)
        jobs[job.id] = job
        job.timer = slot

    def remove(self, job: Job) -> None:
        """Forget ``job``."""
        jobs = self._slots.get(job.timer)
        if jobs is not None:
            jobs.pop(job.id, None)
        job.timer = 0

    def _compact(self) -> None:
        """Drop slots far ahead whose jobs have all ended: leases of days would leave one for each moment of a delivery."""
        self._slots = {slot: jobs for slot, jobs in self._slots.items() if jobs}
        self._heap = sorted(self._slots)
        self._bound = 2 * len(self._heap) + _COMPACT_AT

    def next(self) -> int | None:
        """When the next slot with a job in it comes up (epoch ms)."""
        while self._heap:
            slot = self._heap[0]
            if self._slots[slot]:
                return slot * SLOT_MS
            del self._slots[slot]
            heapq.heappop(self._heap)
        return None

    def due(self, now: int, at_most: int) -> list[Job]:
        """Take out up to ``at_most`` jobs whose slot has come up."""
        taken: list[Job] = []
        while self._heap and self._heap[0] * SLOT_MS <= now and len(taken) < at_most:
            slot = self._heap[0]
            jobs = self._slots[slot]
            while jobs and len(taken) < at_most:
                _, job = jobs.popitem()
                job.timer = 0
                taken.append(job)
            if not jobs:
                del self._slots[slot]
                heapq.heappop(self._heap)
        return taken


Action = Callable[[int], None]


class Agenda:
    """Deadlines of everything else: actions by name; naming one again moves it."""

    __slots__ = ("_actions", "_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str]] = []
        self._actions: dict[str, tuple[int, int, Action]] = {}
        self._sequence = 0

    def set(self, name: str, when: int, action: Action) -> None:
        """Call ``action(now)`` at ``when`` (epoch ms), in place of what ``name`` stood for before."""
        self._sequence += 1
        self._actions[name] = (when, self._sequence, action)
        heapq.heappush(self._heap, (when, self._sequence, name))

    def set_earlier(self, name: str, when: int, action: Action) -> None:
        """As :meth:`set`, unless ``name`` is due before that already."""
        known = self._actions.get(name)
        if known is None or known[0] > when:
            self.set(name, when, action)

    def clear(self, name: str) -> None:
        """Forget ``name``."""
        self._actions.pop(name, None)

    def next(self) -> int | None:
        heap = self._heap
        while heap:
            when, sequence, name = heap[0]
            known = self._actions.get(name)
            if known is not None and known[1] == sequence:
                return when
            heapq.heappop(heap)
        return None

    def due(self, now: int) -> tuple[str, Action] | None:
        """Take out one action whose time has come, with its name."""
        when = self.next()
        if when is None or when > now:
            return None
        _, _, name = heapq.heappop(self._heap)
        return name, self._actions.pop(name)[2]
