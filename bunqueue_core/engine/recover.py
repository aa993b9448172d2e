"""Start: take over what a journal holds, by the rules for jobs that a crash interrupted.

The broker drives the steps in their order (controls, active, pending, dead letters, completed, schedules) and commits in
between; here is what each row becomes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from bunqueue_core.engine.base import CRON_KEY_PREFIX, MAX_BUCKETS
from bunqueue_core.engine.control import MAX_LOGGED_JOBS
from bunqueue_core.engine.groups import Window
from bunqueue_core.engine.limits import ConcurrencyLimiter, RateLimiter
from bunqueue_core.engine.queue import QueueState, UniqueKey
from bunqueue_core.engine.retention import Retaining
from bunqueue_core.model.job import DEFAULT_OPTIONS, Job, Location
from bunqueue_core.model.requests import DlqEntry, DlqReason, StallConfig
from bunqueue_core.storage.changes import RATE_TABLE, WINDOW_TABLE, QueueRow
from bunqueue_core.storage.records import dlq_config_from, logs_from, unpack

#: Error of a job whose stored dependencies cannot be read.
CORRUPT_DEPENDENCIES = "corrupt-dependency-metadata"


class Recovering(Retaining):
    """What stored rows become."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._newest_first: list[Job] = []  #: completed jobs, until all are there

    def restore_queue(self, row: QueueRow, now: int) -> None:
        """Controls of a queue."""
        queue = self.queue(row.name)
        queue.paused = bool(row.paused)
        if row.rate_limit is not None:
            rate = RateLimiter(row.rate_limit, row.rate_limit_duration or 1000, row.rate_limit_expires_at, now)
            if not rate.expired(now):
                queue.rate = rate
        if row.concurrency_limit is not None:
            queue.concurrency = ConcurrencyLimiter(row.concurrency_limit)
        if (
            row.stall_enabled is not None
            and row.stall_interval is not None
            and row.max_stalls is not None
            and row.stall_grace_period is not None
        ):
            queue.stall = StallConfig(
                bool(row.stall_enabled), row.stall_interval, row.max_stalls, row.stall_grace_period
            )
        if row.dlq_config is not None:
            queue.dlq_config = dlq_config_from(unpack(row.dlq_config))
        if queue.default_controls:
            self.mark_queue(queue)

    def restore_active(self, job: Job, now: int, *, buried: bool) -> None:
        """A job that was active when the process ended: charged an attempt and a stall, then retried or buried.

        Args:
            buried: a dead letter of the same id is stored; then that one counts.
        """
        queue = self.queue(job.queue)
        if buried or (job.unique_key is not None and job.unique_key.startswith(CRON_KEY_PREFIX)):
            self.marks.removed(job)
            return
        job.attempts += 1
        job.stall_count += 1
        job.last_heartbeat = now
        maximum = job.options.max_attempts
        reason: DlqReason | None = None
        if job.attempts >= maximum:
            reason = "max_attempts_exceeded"
            error = f"Job reached max attempts ({maximum}) during startup recovery"
        elif 0 < queue.stall.max_stalls <= job.stall_count:
            reason = "stalled"
            error = f"Job stalled {job.stall_count} times (recovered at startup)"
        self.jobs[job.id] = job
        if reason is not None:
            self.record_attempt(job, now, reason, error)
            job.started_at = None
            self.bury(queue, job, now, reason, error)
            return
        self.record_attempt(job, now, "stalled", "Interrupted during recovery")
        job.run_at = now + self.retry_delay(job, job.attempts)
        job.started_at = None
        self._restore_owner(queue, job, now)
        job = self.requeue(queue, job, now)
        self.marks.changed(job)

    def restore_pending(self, jobs: Sequence[Job], now: int) -> None:
        """Jobs that waited, in the order of a ready set: by priority descending, ``run_at``, id.

        One that was released from its gate before never goes back behind it.
        """
        ready: dict[str, list[Job]] = {}
        known = self.jobs
        for job in jobs:
            known[job.id] = job
            plain = (
                job.options is DEFAULT_OPTIONS
                and job.location == Location.READY
                and job.run_at <= now
                and job.unique_key is None
                and job.group_id is None
            )
            if plain or self._restore_special(job, now):
                same = ready.get(job.queue)
                if same is None:
                    same = ready[job.queue] = []
                same.append(job)
        for name, same in ready.items():
            self.queue(name).ready.extend(same)

    def _restore_special(self, job: Job, now: int) -> bool:
        """A waiting job with something about it. True if what remains is to put it into the ready set, among its peers."""
        queue = self.queue(job.queue)
        self._restore_owner(queue, job, now)
        if job.location == Location.PARKED:
            queue.parked[job.id] = job
            return False
        if job.location == Location.GATED:
            released = self.released_by_failures(job)
            unmet = self.unmet(job.depends_on)
            if unmet and not released:
                self.gate(queue, job, unmet)
                return False
            self.marks.changed(job)
            if released:
                # As when a policy starts it while the broker runs: behind its peers, not at the place of its row among them.
                job.run_at = now
                job.location = Location.READY
                queue.insert(job, now)
                return False
        job.location = Location.READY
        if job.run_at <= now and job.group_id is None and job.options.ttl_ms is None and not job.options.lifo:
            return True
        queue.insert(job, now)
        return False

    def replay_failures(self, now: int) -> None:
        """Let the policies of failed children take effect on parents that still wait for them.

        A child that ends at start ends before its parent is there; one that ended at an earlier start may have lost its policy
        to the next crash. A parent to which a policy was applied does not depend on that child any more. Children go in the order
        in which they failed, whatever their queues.
        """
        letters = [
            letter
            for queue in self.queues.values()
            for letter in queue.dlq.values()
            # An unknown reason: discarded by hand, or failed by its own child; no policy applies.
            if letter[1].job.parent_id is not None and letter[1].reason != "unknown"
        ]
        for _, entry in sorted(letters, key=itemgetter(0)):
            child = entry.job
            parent = self.jobs.get(child.parent_id or "")
            if (
                parent is not None
                and parent.location == Location.GATED
                and parent.id in self.dependents.get(child.id, ())
            ):
                self.child_failed(child, entry.error, now)

    def restore_corrupt(self, job: Job, now: int) -> None:
        """A job whose dependencies cannot be read must not run as if it had none."""
        queue = self.queue(job.queue)
        self.jobs[job.id] = job
        self.bury(queue, job, now, "unknown", CORRUPT_DEPENDENCIES)

    def _restore_owner(self, queue: QueueState, job: Job, now: int) -> None:
        self._restore_key(queue, job, now)
        debounce_id = job.options.debounce_id
        if debounce_id is not None and job.attempts == 0:
            other = self.jobs.get(queue.debounced.get(debounce_id, ""))
            if other is None or (other.admitted_at, other.id) <= (job.admitted_at, job.id):
                queue.debounced[debounce_id] = job.id  # as of a key: the one that was added last
        if job.group_id is not None:
            groups = queue.group_set()
            if job.group_order <= 0:
                job.group_order = groups.next_order
            groups.next_order = max(groups.next_order, job.group_order + 1)

    def _restore_key(self, queue: QueueState, job: Job, now: int) -> None:
        """Register a job's deduplication key again, its time to live starting anew. Windows are stored by themselves."""
        key = job.unique_key
        if key is None or (job.options.dedup_scope == "window" and job.options.dedup_ttl_ms is not None):
            return
        entry = queue.unique.get(key)
        owner = self.jobs.get(entry.job_id) if entry is not None else None
        if owner is not None and (owner.admitted_at, owner.id) > (job.admitted_at, job.id):
            return  # the one that was added later took the key
        self.claim_key(queue, job, now)

    def restore_window(self, row: tuple[Any, ...], now: int) -> None:
        """A deduplication key that is taken until a time, whoever has registered it meanwhile."""
        name, key, job_id, expires_at = row
        if expires_at <= now:
            self.marks.table_removed(WINDOW_TABLE, name, key)
            return
        queue = self.queue(name)
        queue.unique[key] = UniqueKey(job_id, expires_at, True)
        queue.windows_until = max(queue.windows_until, expires_at)

    def restore_dead_letters(self, letters: Sequence[tuple[int, DlqEntry]], now: int) -> None:
        """Stored dead letters, oldest first. Those of jobs that ended at this start are there already, and newer."""
        newer: dict[str, OrderedDict[str, tuple[int, DlqEntry]]] = {}
        for row_id, entry in letters:
            job = entry.job
            queue = self.queue(job.queue)
            if queue.name not in newer:
                newer[queue.name] = queue.dlq
                queue.dlq = OrderedDict()
            self.jobs[job.id] = job
            self.add_dead_letter(queue, entry, row_id)
        for name, ended_now in newer.items():
            queue = self.queues[name]
            queue.dlq.update(ended_now)
            self.trim_dead_letters(queue)

    def restore_completed(self, jobs: list[Job], now: int) -> None:
        """Completed jobs that memory keeps, newest first."""
        for job in jobs:
            if job.id not in self.jobs:
                self.jobs[job.id] = job
                self.queue(job.queue)
                self._newest_first.append(job)
                self.completed_in_memory += 1
                self.plan_age(job, now)

    def finish_recovery(self, completed_counts: dict[str, int], now: int) -> None:
        """Set what needs everything to be there."""
        adopted, self.completed_order = self.completed_order, {}
        for job in (*adopted.values(), *reversed(self._newest_first)):
            self.queue(job.queue).completed[job.id] = job
            self.completed_order[job.id] = job
        self._newest_first.clear()
        self.do_chores(now)
        for name, count in completed_counts.items():
            queue = self.queue(name)
            queue.completed_count = count
            if count > len(queue.completed):
                self.evicted = True
        for name, queue in self.queues.items():
            if queue.empty:
                self.may_be_empty(name)
        self._forget_old_series(now)

    def _forget_old_series(self, now: int) -> None:
        """Counts of queues that are no more go once none of their minutes would be kept any longer."""
        oldest = now // 60_000 - MAX_BUCKETS
        for key in [key for key in self.metrics if key[0] not in self.queues]:
            if max(self.metrics[key].buckets, default=0) < oldest:
                self.forget_series(key)

    def restore_group(self, row: tuple[Any, ...]) -> None:
        """Stored policies of a group."""
        queue, group_id, rate_max, rate_duration_ms, concurrency, paused = row
        group = self.queue(queue).group_set().get(group_id)
        group.rate_max, group.rate_duration_ms = rate_max, rate_duration_ms
        group.concurrency, group.paused = concurrency, bool(paused)

    def restore_use(self, row: tuple[Any, ...], now: int) -> None:
        """What a queue's or a group's rate has used up; what has ended meanwhile goes."""
        name, group_id, started_at, maximum, duration_ms, used, blocked_until = row
        queue = self.queue(name)
        if not group_id:
            rate = queue.rate
            if rate is not None and (rate.limit, rate.duration_ms) == (maximum, duration_ms):
                rate.resume(started_at, used, now)
                return
        else:
            groups = queue.group_set()
            group = groups.get(group_id)
            if started_at is not None:
                window = Window(started_at, int(maximum), duration_ms)
                window.count = int(used)
                group.window = window
            group.blocked_until = blocked_until if blocked_until is not None and blocked_until > now else 0
            alive = group.live_window(now) is not None or group.blocked_until
            group.noted = bool(alive)
            groups.forget_idle(group)
            if alive:
                return
        self.marks.table_removed(RATE_TABLE, name, group_id)

    def restore_logs(self, row: tuple[Any, ...]) -> None:
        """Log lines of a job that memory holds; those of others are read when asked for. Their ids are known already."""
        id, blob = row
        if id in self.logged and id in self.jobs and len(self.logs) < MAX_LOGGED_JOBS:
            self.logs[id] = logs_from(blob)

    def adopt_completed(self, job: Job) -> None:
        """Take a completed job that only the journal holds into memory, so that a verb can work on it."""
        if job.id in self.jobs:
            return
        self.jobs[job.id] = job
        queue = self.queue(job.queue)
        queue.completed[job.id] = job
        queue.completed.move_to_end(job.id, last=False)
        self.completed_order[job.id] = job
        self.completed_in_memory += 1
