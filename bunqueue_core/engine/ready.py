"""The ready set of a queue: which job is next, in constant time for the usual case.

Order: priority descending; within a priority LIFO jobs before FIFO jobs; LIFO by id descending; FIFO by ``run_at``, then id.
A FIFO job that belongs behind all others of its priority, as nearly every one does, is appended to a deque; one that belongs
further in front (an older time stamp, a promoted or retried job) goes to a heap beside it.

Jobs are removed lazily: an entry counts only while its job's ``where`` is :data:`READY_SET`. A job that left and comes back
while its dead entry is still inside must come back as another object (see ``EngineBase.requeue``).
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final

from bunqueue_core.model.job import Job

NOWHERE: Final = 0
READY_SET: Final = 1
DELAYED_SET: Final = 2
LANE: Final = 3
#: The job has left, but its entry is still inside a container.
STALE: Final = 4

#: Dead entries are swept once there are more of them than live ones, and at least this many.
_COMPACT_AT: Final = 1024

#: Buckets may lose their last job inside the heap so often, beside half as often as there are buckets, before it is swept.
_SWEEP_AT: Final = 64

_by_id = attrgetter("id")
_by_run = attrgetter("run_at", "id")
_by_priority = attrgetter("priority")
_by_order = itemgetter(0)


class Bucket:
    """Ready jobs of one priority."""

    __slots__ = ("dead", "early", "fifo", "lifo", "live")

    def __init__(self) -> None:
        self.fifo: deque[Job] = deque()
        self.early: list[tuple[int, str, Job]] = []  #: heap of FIFO jobs that could not be appended
        self.lifo: list[Job] = []  #: by id; the last is next
        self.live = 0
        self.dead = 0

    def add(self, job: Job) -> None:
        self.live += 1
        if job.options.lifo:
            if not self.lifo or self.lifo[-1].id < job.id:
                self.lifo.append(job)
            else:
                insort(self.lifo, job, key=_by_id)
            return
        fifo = self.fifo
        if fifo:
            last = fifo[-1]
            if last.run_at > job.run_at or (last.run_at == job.run_at and last.id > job.id):
                heapq.heappush(self.early, (job.run_at, job.id, job))
                return
        fifo.append(job)

    def extend(self, jobs: list[Job]) -> None:
        """Add FIFO jobs that are in order among themselves."""
        fifo = self.fifo
        first = (jobs[0].run_at, jobs[0].id)
        later: list[Job] = []
        while fifo and (fifo[-1].run_at, fifo[-1].id) > first:
            later.append(fifo.pop())
        if later:
            jobs = sorted([*jobs, *reversed(later)], key=_by_run)
        fifo.extend(jobs)
        self.live += len(jobs) - len(later)

    def first(self) -> Job | None:
        """The next job, dropping dead entries in front of it."""
        lifo = self.lifo
        while lifo:
            if lifo[-1].where == READY_SET:
                return lifo[-1]
            lifo.pop().where = NOWHERE
            self.dead -= 1
        early = self.early
        while early and early[0][2].where != READY_SET:
            heapq.heappop(early)[2].where = NOWHERE
            self.dead -= 1
        fifo = self.fifo
        while fifo:
            job = fifo[0]
            if job.where == READY_SET:
                if early and early[0] < (job.run_at, job.id):
                    return early[0][2]
                return job
            fifo.popleft().where = NOWHERE
            self.dead -= 1
        return early[0][2] if early else None

    def take(self, job: Job) -> None:
        """Remove ``job``, which :meth:`first` has just given."""
        self.live -= 1
        if self.lifo and self.lifo[-1] is job:
            self.lifo.pop()
        elif self.fifo and self.fifo[0] is job:
            self.fifo.popleft()
        else:
            heapq.heappop(self.early)
        job.where = NOWHERE

    def drop(self, job: Job) -> None:
        """Remove ``job`` from anywhere: its entry stays behind, dead."""
        job.where = STALE
        self.live -= 1
        self.dead += 1
        if self.dead > _COMPACT_AT and self.dead > self.live:
            self._compact()

    def _compact(self) -> None:
        for job in self.all_entries():
            if job.where == STALE:
                job.where = NOWHERE
        # An entry is alive if its job is still marked; NOWHERE ones were just unmarked.
        self.fifo = deque(job for job in self.fifo if job.where == READY_SET)
        self.early = [entry for entry in self.early if entry[2].where == READY_SET]
        heapq.heapify(self.early)
        self.lifo = [job for job in self.lifo if job.where == READY_SET]
        self.dead = 0

    def clear(self) -> None:
        """Let go of everything: no entry is alive."""
        if self.dead:
            for job in self.all_entries():
                if job.where == STALE:
                    job.where = NOWHERE
            self.fifo.clear()
            self.early.clear()
            self.lifo.clear()
            self.dead = 0

    def all_entries(self) -> Iterator[Job]:
        yield from reversed(self.lifo)
        yield from (entry[2] for entry in self.early)
        yield from self.fifo

    def __iter__(self) -> Iterator[Job]:
        return (job for job in self.all_entries() if job.where == READY_SET)


class ReadySet:
    """Ready jobs of one queue by priority.

    Every bucket is in the heap, which has the highest priority at its front. One that delivers its last job goes, unless it is the
    only one; one that loses its last job otherwise goes when it comes to the front, or when there are many such. So what a step
    costs does not follow the number of priorities.
    """

    __slots__ = ("_buckets", "_emptied", "_heap", "prioritized", "size")

    def __init__(self) -> None:
        self._buckets: dict[int, Bucket] = {}
        self._heap: list[tuple[int, Bucket]] = []  #: (negated priority, its bucket)
        self._emptied = 0  #: buckets that lost their last job inside the heap since it was last swept, or more
        self.size = 0
        self.prioritized = 0  #: jobs with a priority above 0

    def _bucket(self, priority: int) -> Bucket:
        bucket = self._buckets.get(priority)
        if bucket is None:
            bucket = self._buckets[priority] = Bucket()
            heapq.heappush(self._heap, (-priority, bucket))
        return bucket

    def add(self, job: Job) -> None:
        """Put a job in; it must not have an entry inside."""
        priority = job.priority
        bucket = self._buckets.get(priority)
        if bucket is None:
            bucket = self._bucket(priority)
        bucket.add(job)
        job.where = READY_SET
        self.size += 1
        if priority > 0:
            self.prioritized += 1

    def add_all(self, jobs: list[Job]) -> None:
        """Put FIFO jobs in that have just been admitted: in order of their ids, all at the same time."""
        if not jobs:
            return
        priority = jobs[0].priority
        bucket = self._buckets.get(priority)
        first = jobs[0]
        if bucket is not None and len(jobs) > 1 and all(job.priority == priority for job in jobs):
            last = bucket.fifo[-1] if bucket.fifo else None
            if last is None or (last.run_at, last.id) < (first.run_at, first.id):
                for job in jobs:
                    job.where = READY_SET
                bucket.fifo.extend(jobs)
                bucket.live += len(jobs)
                self.size += len(jobs)
                if priority > 0:
                    self.prioritized += len(jobs)
                return
        for job in jobs:
            self.add(job)

    def extend(self, jobs: Iterable[Job]) -> None:
        """Put many FIFO jobs in that are in the order of the set: by priority, and within one by ``run_at`` and id."""
        for priority, same in groupby(jobs, _by_priority):
            batch = list(same)
            for job in batch:
                job.where = READY_SET
            self._bucket(priority).extend(batch)
            self.size += len(batch)
            if priority > 0:
                self.prioritized += len(batch)

    def first(self) -> Job | None:
        """The best ready job, None if there is none. It stays inside."""
        if not self.size:
            return None
        heap = self._heap
        while not (bucket := heap[0][1]).live:
            self._forget_front()
        return bucket.first()

    def _forget_front(self) -> None:
        negated, bucket = heapq.heappop(self._heap)
        bucket.clear()
        del self._buckets[-negated]

    def take(self, job: Job) -> None:
        """Remove the job that :meth:`first` has just given."""
        bucket = self._buckets[job.priority]
        bucket.take(job)
        self.size -= 1
        if job.priority > 0:
            self.prioritized -= 1
        if not bucket.live and len(self._heap) > 1:
            self._forget_front()

    def drop(self, job: Job) -> None:
        """Remove any job inside. Its dead entry remains until it comes to the front."""
        bucket = self._buckets[job.priority]
        bucket.drop(job)
        self.size -= 1
        if job.priority > 0:
            self.prioritized -= 1
        if not bucket.live:
            self._emptied += 1
            if self._emptied > _SWEEP_AT + len(self._heap) // 2:
                self._sweep()

    def _sweep(self) -> None:
        """Rid the heap of buckets without jobs."""
        for priority, bucket in [entry for entry in self._buckets.items() if not entry[1].live]:
            bucket.clear()
            del self._buckets[priority]
        self._heap = [(-priority, bucket) for priority, bucket in self._buckets.items()]
        heapq.heapify(self._heap)
        self._emptied = 0

    def per_priority(self) -> dict[int, int]:
        return {priority: bucket.live for priority, bucket in self._buckets.items() if bucket.live}

    def __iter__(self) -> Iterator[Job]:
        for _, bucket in sorted(self._heap, key=_by_order):
            yield from bucket

    def __len__(self) -> int:
        return self.size
