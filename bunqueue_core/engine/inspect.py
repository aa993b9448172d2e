"""Queries over what memory holds. They read, and move due delayed jobs to where the clock says they are."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from bunqueue_core.engine.base import EngineBase
from bunqueue_core.engine.queue import QueueState
from bunqueue_core.model.job import Job, JobState, Location, failed_reason
from bunqueue_core.model.requests import Counts, JobView, Page

_by_age = attrgetter("created_at", "id")


class Inspecting(EngineBase):
    """The query verbs. What only the journal knows is added by the broker."""

    def view(self, job: Job, now: int) -> JobView:
        """A copy of the job as queries show it."""
        state: JobState = self.state_in_memory(job, now)  # type: ignore[assignment]
        if job.location != Location.GATED:
            return JobView(job.snapshot(), state, self.results.get(job.id), failed_reason(job))
        if job.id in self.stale_children:
            self.before_commit()
        copy = job.snapshot()
        dropped = self.dropped.get(job.id)
        if dropped is not None:
            copy.depends_on = tuple(id for id in job.depends_on if id not in dropped)
        return JobView(copy, state, None, failed_reason(job), tuple(self.blocked.get(job.id, ())))

    def counts(self, name: str, now: int) -> Counts:
        """Jobs of a queue by state."""
        queue = self.queues.get(name)
        if queue is None:
            return Counts()
        queue.promote_due(now)
        ready = queue.ready.size
        prioritized = queue.ready.prioritized
        if queue.groups is not None and queue.groups.ready:
            ready += queue.groups.ready
            prioritized += queue.groups.prioritized
        counts = Counts(
            delayed=queue.delayed_count,
            active=len(queue.active),
            completed=queue.completed_count,
            failed=len(queue.dlq),
            waiting_children=len(queue.gated) + len(queue.parked),
        )
        if queue.paused:
            counts.paused = ready
            counts.paused_prioritized = prioritized
        else:
            counts.waiting = ready - prioritized
            counts.prioritized = prioritized
        return counts

    def tally(self, now: int) -> dict[str, int | float]:
        """Jobs of all queues by state, under the names of a broker's statistics, and how many of them are leased.

        As quick as a look at every queue can be: a server with 10,000 queues answers nobody else meanwhile.
        """
        ready = prioritized = paused = delayed = active = completed = waiting_children = leased = 0
        for queue in self.queues.values():
            if queue.delayed_count:
                queue.promote_due(now)
                delayed += queue.delayed_count
            here = queue.ready.size
            high = queue.ready.prioritized
            groups = queue.groups
            if groups is not None:
                here += groups.ready
                high += groups.prioritized
            if queue.paused:
                paused += here
            else:
                ready += here
                prioritized += high
            completed += queue.completed_count
            if queue.gated or queue.parked:
                waiting_children += len(queue.gated) + len(queue.parked)
            if queue.active:
                active += len(queue.active)
                leased += sum(job.lease is not None for job in queue.active.values())
        return {
            "waiting": ready - prioritized,
            "prioritized": prioritized,
            "delayed": delayed,
            "active": active,
            "dlq": self.letters,
            "completed": completed,
            "waitingChildren": waiting_children,
            "paused": paused,
            "locks": leased,
        }

    def count(self, name: str) -> int:
        """Size of the run set: waiting, prioritized and delayed jobs."""
        queue = self.queues.get(name)
        return queue.queued if queue is not None else 0

    def counts_per_priority(self, name: str) -> dict[int, int]:
        """Jobs of the run set by priority."""
        queue = self.queues.get(name)
        if queue is None:
            return {}
        counts = queue.ready.per_priority()
        for jobs in (queue.delayed_jobs(), iter(queue.groups or ())):
            for job in jobs:
                counts[job.priority] = counts.get(job.priority, 0) + 1
        return counts

    def listed(self, name: str, states: Sequence[JobState], now: int, *, completed: bool = True) -> list[Job]:
        """Jobs of a queue in any of ``states`` (empty: all), in no order. ``completed=False`` leaves completed ones out."""
        queue = self.queues.get(name)
        if queue is None:
            return []
        queue.promote_due(now)
        wanted = set(states)
        everything = not wanted
        jobs: list[Job] = []
        if everything or wanted & {"waiting", "prioritized", "paused"}:
            jobs.extend(self._ready(queue, wanted, everything))
        if everything or "delayed" in wanted:
            jobs.extend(queue.delayed_jobs())
        if everything or "active" in wanted:
            jobs.extend(queue.active.values())
        if everything or "waiting-children" in wanted:
            jobs.extend(queue.gated.values())
            jobs.extend(queue.parked.values())
        if everything or "failed" in wanted:
            jobs.extend(entry.job for _, entry in queue.dlq.values())
        if completed and (everything or "completed" in wanted):
            jobs.extend(queue.completed.values())
        return jobs

    @staticmethod
    def _ready(queue: QueueState, wanted: set[JobState], everything: bool) -> Iterator[Job]:
        if everything or (queue.paused and "paused" in wanted):
            yield from queue.ready_jobs()
            return
        if queue.paused:
            return
        waiting, prioritized = "waiting" in wanted, "prioritized" in wanted
        for job in queue.ready_jobs():
            if prioritized if job.priority > 0 else waiting:
                yield job

    @staticmethod
    def paged(jobs: Iterable[Job], page: Page) -> list[Job]:
        """One page of jobs by creation time, then id; descending order reverses both."""
        if page.limit is None:
            return sorted(jobs, key=_by_age, reverse=not page.ascending)[page.offset :]
        # Sorting a large queue whole for one page of it would hold up everybody else.
        choose = heapq.nsmallest if page.ascending else heapq.nlargest
        return choose(page.offset + page.limit, jobs, key=_by_age)[page.offset :]

    def children_values(self, id: str) -> dict[str, bytes]:
        """Results of a job's children by ``queue:id`` (just the id where the child's record is gone)."""
        parent = self.jobs.get(id)
        values: dict[str, bytes] = {}
        for child_id in parent.children_ids if parent is not None else ():
            child = self.jobs.get(child_id)
            result = self.results.get(child_id)
            if result is not None:
                values[f"{child.queue}:{child_id}" if child is not None else child_id] = result
            elif child_id in self.pinned_results:
                values[child_id] = self.pinned_results[child_id][1]
        return values

    def children_failures(self, id: str, mode: str) -> dict[str, str]:
        """Errors of children that failed under policy ``mode`` (``continue`` or ``ignore``), by ``queue:id``."""
        failures = self.child_failures.get(id, {})
        return {
            f"{queue}:{child}": error for child, (child_mode, error, queue) in failures.items() if child_mode == mode
        }
