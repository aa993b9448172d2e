"""Retention of completed jobs that a job asks for itself: by age and by number."""

from __future__ import annotations

import heapq

from bunqueue_core.engine.dependencies import DependencyRules
from bunqueue_core.engine.queue import QueueState
from bunqueue_core.model.job import Job, Location


class Retaining(DependencyRules):
    """``removeOnComplete: {age, count}``. (``removeOnFail`` is in the dead-letter verbs.)"""

    def retain_completed(self, queue: QueueState, job: Job, now: int) -> None:
        retention = job.options.remove_on_complete
        if retention.count is not None:
            self._keep_newest(queue, retention.count)
        if retention.age_ms is not None and job.location == Location.COMPLETED:
            self.expire_completed_at(job, (job.completed_at or now) + retention.age_ms)

    def _keep_newest(self, queue: QueueState, count: int) -> None:
        """Forget the oldest completed jobs beyond ``count`` that nothing depends on."""
        excess = len(queue.completed) - count
        if excess <= 0:
            return
        for job in list(queue.completed.values()):
            if excess <= 0:
                break
            if not self.dependents.get(job.id):
                self.add_proof(job, job.completed_at or 0)
                self.forget_completed(queue, job)
                excess -= 1

    def expire_completed_at(self, job: Job, when: int) -> None:
        """Forget a completed job at ``when`` (epoch ms)."""
        heapq.heappush(self.completed_expiry, (when, job.id))
        self.agenda.set_earlier("completed-expiry", when, self._expire_completed)

    def _expire_completed(self, now: int) -> None:
        expiry = self.completed_expiry
        while expiry and expiry[0][0] <= now:
            _, id = heapq.heappop(expiry)
            job = self.jobs.get(id)
            if job is None or job.location != Location.COMPLETED:
                continue
            age_ms = job.options.remove_on_complete.age_ms
            if age_ms is None or (job.completed_at or 0) + age_ms > now:
                continue  # another generation of the same custom id
            if self.dependents.get(id):
                heapq.heappush(expiry, (now + 1000, id))
                continue
            self.forget_completed(self.queue(job.queue), job)
        if expiry:
            self.agenda.set("completed-expiry", max(now + 1, expiry[0][0]), self._expire_completed)
