"""Dead letters: listing, retries (by hand and automatic), removal, bounds by age and number."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from bunqueue_core.engine.dependencies import DependencyRules
from bunqueue_core.engine.queue import QueueState
from bunqueue_core.model.deadletters import (
    expire_with,
    has_expired,
    matching,
    retriable,
    retry_automatically,
    statistics,
)
from bunqueue_core.model.job import Job, Location, RetryHistory
from bunqueue_core.model.requests import DlqConfig, DlqEntry, DlqFilter

#: Dead letters that are removed or retried by the clock before others get a turn.
LETTERS_AT_ONCE: Final = 1_000

#: Entries that the heap of times may hold beside four for each dead letter.
_COMPACT_AT: Final = 1_024


class DeadLetters(DependencyRules):
    """The dead-letter verbs."""

    def dead_letters(self, name: str, count: int | None, filter: DlqFilter | None, now: int) -> list[DlqEntry]:
        """Dead letters in order of entry: those that match, at most ``count``."""
        queue = self.queues.get(name)
        if queue is None:
            return []
        entries: Iterable[DlqEntry] = (entry for _, entry in queue.dlq.values())
        if filter is not None:
            entries = matching(entries, filter, queue.dlq_config, now)
        return list(islice(entries, None if count is None else max(0, count)))

    def retry_dead_letters(
        self, name: str, id: str | None, count: int | None, filter: DlqFilter | None, now: int
    ) -> int:
        """Requeue dead letters with fresh attempts. Gives the number that really came back."""
        queue = self.queues.get(name)
        if queue is None:
            return 0
        if filter is not None:
            chosen = list(matching((entry for _, entry in queue.dlq.values()), filter, queue.dlq_config, now))
        elif id is not None:
            chosen = [queue.dlq[id][1]] if id in queue.dlq else []
        else:
            chosen = [entry for _, entry in islice(queue.dlq.values(), None if count is None else max(0, count))]
        return sum(self.revive(queue, entry, now) for entry in chosen)

    def revive(self, queue: QueueState, entry: DlqEntry, now: int, *, history: RetryHistory | None = None) -> bool:
        """Put a dead letter's job back into the run set. False if its deduplication key belongs to another job by now."""
        job = entry.job
        if not self.reclaim_key(queue, job, now):
            return False
        self.take_dead_letter(queue, job.id)
        self.unblock(job.id)
        job.attempts = 0
        job.stall_count = 0
        job.started_at = None
        job.run_at = job.last_heartbeat = now
        job.history = history
        self.timeline(job, "waiting", now)
        job = self.requeue(queue, job, now)
        self.marks.changed(job)
        return True

    def remove_dead_letter(self, name: str, id: str) -> bool:
        queue = self.queues.get(name)
        if queue is None or id not in queue.dlq:
            return False
        self.forget_dead_letter(queue, id)
        return True

    def purge_dead_letters(self, name: str) -> int:
        queue = self.queues.get(name)
        if queue is None:
            return 0
        ids = list(queue.dlq)
        for id in ids:
            self.forget_dead_letter(queue, id)
        return len(ids)

    def dlq_stats(self, name: str, now: int) -> dict[str, Any]:
        """Statistics of a queue's dead letters, by their wire names."""
        queue = self.queues.get(name)
        if queue is None:
            return statistics(name, (), DlqConfig(), now)
        return statistics(name, (entry for _, entry in queue.dlq.values()), queue.dlq_config, now)

    def set_dlq_config(self, name: str, config: DlqConfig, now: int) -> None:
        """Set a queue's dead-letter policy; a smaller bound evicts the oldest at once."""
        queue = self.queue(name)
        queue.dlq_config = config
        self.trim_dead_letters(queue)
        self.mark_queue(queue)
        if config.auto_retry:
            # Retries whose time came while there were none are due now.
            for _, entry in queue.dlq.values():
                if entry.next_retry_at is not None:
                    self.plan_dead_letter(queue, entry)

    # -- by the clock -------------------------------------------------------------------------------------------------

    def plan_dead_letter(self, queue: QueueState, entry: DlqEntry) -> None:
        """Wake up when the entry expires or is due for an automatic retry."""
        known = queue.dlq.get(entry.job.id)
        if known is None:
            return
        for at in (entry.expires_at, entry.next_retry_at):
            if at is not None:
                heapq.heappush(self.letter_times, (at, known[0], queue.name, entry.job.id))
        times = self.letter_times
        if len(times) > 4 * self.letters + _COMPACT_AT:
            self.letter_times = times = list({time for time in times if self._letter(time) is not None})
            heapq.heapify(times)
        if times:
            self.agenda.set_earlier("dead-letters", times[0][0], self._maintain_dead_letters)

    def _letter(self, time: tuple[int, int, str, str]) -> tuple[QueueState, DlqEntry] | None:
        """The dead letter that an entry of the heap of times is about, if it is still so."""
        at, row_id, name, id = time
        queue = self.queues.get(name)
        known = queue.dlq.get(id) if queue is not None else None
        if (
            queue is None
            or known is None
            or known[0] != row_id
            or at not in (known[1].expires_at, known[1].next_retry_at)
        ):
            return None
        return queue, known[1]

    def _maintain_dead_letters(self, now: int) -> None:
        """Remove dead letters that have expired and retry those whose time has come, a bounded number at a time."""
        expired: dict[str, int] = {}
        retried: dict[str, int] = {}
        looked_at = 0
        while self.letter_times and self.letter_times[0][0] <= now and looked_at < LETTERS_AT_ONCE:
            looked_at += 1
            found = self._letter(heapq.heappop(self.letter_times))
            if found is None:
                continue
            queue, entry = found
            if has_expired(entry, now):
                self.forget_dead_letter(queue, entry.job.id)
                expired[queue.name] = expired.get(queue.name, 0) + 1
            elif queue.dlq_config.auto_retry and retriable(entry, queue.dlq_config, now):
                if self._auto_retry(queue, queue.dlq[entry.job.id][0], entry, now):
                    retried[queue.name] = retried.get(queue.name, 0) + 1
                else:
                    self.plan_dead_letter(queue, entry)
        if self.noticing:
            for notice, counts in (("dlq:auto-retried", retried), ("dlq:expired", expired)):
                for name, count in counts.items():
                    self.notice(notice, queue=name, count=count)
        if self.letter_times:
            self.agenda.set("dead-letters", max(self.letter_times[0][0], now), self._maintain_dead_letters)

    def _auto_retry(self, queue: QueueState, row_id: int, entry: DlqEntry, now: int) -> bool:
        """Retry automatically; if it fails again it comes back as the same letter, with this history. False if it could not."""
        history = retry_automatically(entry, now, queue.dlq_config)
        if self.revive(queue, entry, now, history=history):
            return True
        self.marks.dead_letter(row_id, entry)
        return False

    def retain_failed(self, queue: QueueState, job: Job, now: int) -> None:
        """Apply ``removeOnFail: {age, count}`` of a job that has just been buried."""
        retention = job.options.remove_on_fail
        entry = queue.dlq.get(job.id)
        if entry is None:
            return
        if retention.age_ms is not None:
            letter = entry[1]
            expire_with(letter, now, retention.age_ms)
            self.marks.dead_letter(entry[0], letter)
            self.plan_dead_letter(queue, letter)
        if retention.count is not None:
            while len(queue.dlq) > retention.count:
                self.forget_dead_letter(queue, next(iter(queue.dlq)))

    # -- completed jobs -----------------------------------------------------------------------------------------------

    def retry_completed(self, queue: QueueState, job: Job, now: int) -> bool:
        """Run a completed job again from the start. False if its deduplication key belongs to another job."""
        if job.location != Location.COMPLETED or not self.reclaim_key(queue, job, now):
            return False
        self.take_completed(queue, job)
        self.evidence_lost(job.id)
        self.results.pop(job.id, None)
        self.marks.removed(job)
        job.attempts = 0
        job.progress = 0
        job.progress_message = None
        job.started_at = job.completed_at = None
        job.history = None
        job.run_at = now
        self.timeline(job, "waiting", now)
        job = self.requeue(queue, job, now)
        self.marks.changed(job)
        return True
