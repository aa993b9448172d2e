"""Retention of completed jobs that a job asks for itself: by age and by number."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, Final

from bunqueue_core.engine.dependencies import DependencyRules
from bunqueue_core.engine.queue import QueueState
from bunqueue_core.model.job import Job, Location
from bunqueue_core.storage.changes import AGE_TABLE

#: When a job that has outlived its age, but that others still wait for, is looked at again, ms.
AGAIN_MS: Final = 10_000

#: Entries that the heap of ages may hold beside two for each completed job.
_COMPACT_AT: Final = 1_024


class Retaining(DependencyRules):
    """``removeOnComplete: {age, count}``. (``removeOnFail`` is in the dead-letter verbs.)"""

    def retain_completed(self, queue: QueueState, job: Job, now: int) -> None:
        retention = job.options.remove_on_complete
        if retention.count is not None:
            if queue.completed_count > len(queue.completed):
                # The oldest ones are not in memory: the broker reads them first.
                if queue.completed_count > retention.count:
                    self.crowded[queue.name] = retention.count
                    self.agenda.set_earlier("stored-retention", now, _nothing)
            else:
                self._remove_oldest(queue, queue.completed.values(), len(queue.completed) - retention.count, now)
        if retention.age_ms is not None and job.location == Location.COMPLETED:
            when = (job.completed_at or now) + retention.age_ms
            self.expire_completed_at(job, when)
            if self.settings.persistent:  # a later start may not load the job
                self.marks.table(AGE_TABLE, (job.id, when))

    def _remove_oldest(self, queue: QueueState, jobs: Iterable[Job], excess: int, now: int) -> int:
        """Forget up to ``excess`` jobs, in order, but none that others wait for; a proof stays. Gives their number."""
        if excess <= 0:
            return 0
        chosen: list[Job] = []
        for job in jobs:
            if not self.dependents.get(job.id):
                chosen.append(job)
                if len(chosen) == excess:
                    break
        for job in chosen:
            self.add_proof(job, job.completed_at or now)
            self.forget_completed(queue, job)
        return len(chosen)

    def keep_newest(self, name: str, count: int, oldest: Sequence[str]) -> bool:
        """Forget the oldest completed jobs of a queue beyond ``count``; ``oldest`` are ids of such, now in memory.

        True if there are more to forget than could be now.
        """
        queue = self.queues.get(name)
        if queue is None:
            return False
        jobs = [queue.completed[id] for id in oldest if id in queue.completed]
        removed = self._remove_oldest(queue, jobs, queue.completed_count - count, 0)
        return bool(removed) and queue.completed_count > count

    # -- by age -------------------------------------------------------------------------------------------------------

    def expire_completed_at(self, job: Job, when: int) -> None:
        """Forget a completed job at ``when`` (epoch ms)."""
        heapq.heappush(self.completed_expiry, (when, job.id))
        if len(self.completed_expiry) > self.expiry_bound:
            self._compact_expiry()
        self.agenda.set_earlier("completed-expiry", when, self._expire_completed)

    def plan_age(self, job: Job, now: int) -> None:
        """Have a completed job that was read at start forgotten when it outlives its age."""
        age_ms = job.options.remove_on_complete.age_ms
        if age_ms is not None:
            self.expire_completed_at(job, (job.completed_at or now) + age_ms)

    def restore_age(self, row: tuple[Any, ...]) -> None:
        """When a completed job outlives its age, which this start may not have loaded."""
        id, when = row
        heapq.heappush(self.completed_expiry, (when, id))
        self.agenda.set_earlier("completed-expiry", when, self._expire_completed)

    def _compact_expiry(self) -> None:
        """Rid the heap of jobs that went before their time."""
        latest = {id: when for when, id in sorted(self.completed_expiry)}
        self.completed_expiry = [
            (when, id)
            for id, when in latest.items()
            if (self.evicted if (job := self.jobs.get(id)) is None else job.location == Location.COMPLETED)
        ]
        heapq.heapify(self.completed_expiry)
        self.expiry_bound = 2 * len(self.completed_expiry) + _COMPACT_AT

    def _expire_completed(self, now: int) -> None:
        expiry = self.completed_expiry
        while expiry and expiry[0][0] <= now:
            _, id = heapq.heappop(expiry)
            if self.evicted and id not in self.jobs:
                self.overdue[id] = None
            else:
                self._outlived(id, now)
        expiry = self.completed_expiry
        if expiry:
            self.agenda.set("completed-expiry", max(now + 1, expiry[0][0]), self._expire_completed)

    def expire_stored(self, ids: Iterable[str], now: int) -> None:
        """Forget those of the jobs, which are now in memory if there are any, that have outlived their age."""
        for id in ids:
            self._outlived(id, now)

    def _outlived(self, id: str, now: int) -> None:
        job = self.jobs.get(id)
        age_ms = job.options.remove_on_complete.age_ms if job is not None else None
        if job is None or age_ms is None or job.location != Location.COMPLETED:
            if self.settings.persistent:
                self.marks.table_removed(AGE_TABLE, id)
            return
        if (job.completed_at or 0) + age_ms > now:
            return  # another generation of the same custom id, whose own time comes
        if self.dependents.get(id):
            self.expire_completed_at(job, now + AGAIN_MS)
            return
        self.forget_completed(self.queue(job.queue), job)


def _nothing(now: int) -> None:
    """The broker looks by itself at what is to be read; it only has to be woken."""
