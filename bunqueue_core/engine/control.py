"""Control of queues and of single jobs."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Sequence

from bunqueue_core.engine.consume import Consuming
from bunqueue_core.engine.deadletters import DeadLetters
from bunqueue_core.engine.dependencies import FLOW_KEYS
from bunqueue_core.engine.inspect import Inspecting
from bunqueue_core.engine.limits import DEFAULT_RATE_DURATION_MS, NEVER_MS, ConcurrencyLimiter, RateLimiter
from bunqueue_core.engine.queue import QueueState
from bunqueue_core.model.errors import Conflict, NotFound, ValidationError
from bunqueue_core.model.job import Job, Location
from bunqueue_core.model.payload import check_size_limit, decode
from bunqueue_core.model.requests import Event, LogEntry, QueueLimits, StallConfig
from bunqueue_core.model.rules import check_text
from bunqueue_core.storage.changes import GROUP_TABLE, LOG_TABLE, RATE_TABLE

#: Events that a queue's journal holds at most.
MAX_QUEUE_EVENTS = 10_000

#: Lines of log kept for a job that sets no bound of its own, and for one that does at most.
MAX_LOGS = 100

#: Jobs whose logs are kept in memory; those of others are read from the journal.
MAX_LOGGED_JOBS = 10_000

#: Links from a completed repeat job to its successor that are remembered, for updates that come late.
MAX_REPEAT_LINKS = 10_000

#: States by which ``clean`` means the run set.
_RUN_SET_STATES = (None, "waiting", "wait", "delayed", "prioritized", "paused")


class Controlling(Consuming, DeadLetters, Inspecting):
    """The control verbs."""

    # -- queues -------------------------------------------------------------------------------------------------------

    def pause(self, name: str, now: int) -> None:
        """Stop deliveries. Idempotent."""
        queue = self.queue(name)
        if not queue.paused:
            queue.paused = True
            self.mark_queue(queue)
        self._queue_event("paused", name, now)

    def resume(self, name: str, now: int) -> None:
        """Undo :meth:`pause`."""
        queue = self.queue(name)
        if queue.paused:
            queue.paused = False
            self.mark_queue(queue)
            self.wake(queue)
        self._queue_event("resumed", name, now)

    def _queue_event(self, type: str, name: str, now: int) -> None:
        self.queues[name].events += 1
        if self.listening:
            self.events.append(Event(type, name, "", now))

    def trim_events(self, name: str, keep: int) -> int:
        """Cut a queue's event journal to the newest ``keep``. Gives the number that went."""
        queue = self.queues.get(name)
        if queue is None:
            return 0
        present = min(queue.events, MAX_QUEUE_EVENTS)
        queue.events = min(present, keep)
        return present - queue.events

    def set_stall_config(self, name: str, config: StallConfig) -> None:
        """Set a queue's stall policy; it holds for jobs that are active already, too."""
        queue = self.queue(name)
        queue.stall = config
        self.mark_queue(queue)
        self.rearm(queue)

    def drain_queue(self, name: str) -> int:
        """Remove everything in the run set. Gives the number removed."""
        queue = self.queues.get(name)
        if queue is None:
            return 0
        jobs = list(queue.queued_jobs())
        for job in jobs:
            self.remove_queued(job)
        return len(jobs)

    def clean(self, name: str, grace_ms: int | None, state: str | None, limit: int, now: int) -> list[str]:
        """Remove jobs older than ``grace_ms``, oldest first, at most ``limit``. Gives their ids."""
        queue = self.queues.get(name)
        if queue is None or limit <= 0:
            return []
        removed: list[str] = []
        if state == "failed":
            before = None if grace_ms is None else now - grace_ms
            for id, (_, entry) in list(queue.dlq.items()):
                if len(removed) >= limit:
                    break
                if before is None or entry.entered_at <= before:
                    self.forget_dead_letter(queue, id)
                    removed.append(id)
            return removed
        if grace_ms is None:
            return []
        before = now - grace_ms
        if state == "completed":
            for job in self._oldest(queue.completed.values(), limit, before, completed=True):
                self.forget_completed(queue, job)
                removed.append(job.id)
        elif state in _RUN_SET_STATES:
            for job in self._oldest(queue.queued_jobs(), limit, before, completed=False):
                self.remove_queued(job)
                removed.append(job.id)
        return removed

    def _oldest(self, jobs: Iterable[Job], limit: int, before: int, *, completed: bool) -> list[Job]:
        def age(job: Job) -> int:
            return job.completed_at or job.created_at if completed else job.created_at

        old = (job for job in jobs if age(job) <= before and not (completed and self.dependents.get(job.id)))
        return heapq.nsmallest(limit, old, key=lambda job: (age(job), job.id))

    def obliterate(self, name: str) -> None:
        """Remove a queue with everything in it, active jobs included."""
        queue = self.queues.get(name)
        if queue is None:
            return
        for job in list(queue.active.values()):
            self.leave_active(queue, job)
            self.forget(job)
        for job in [*queue.queued_jobs(), *queue.gated.values(), *queue.parked.values()]:
            self.take_out(queue, job)
            self.forget(job)
        for job in list(queue.completed.values()):
            self.forget_completed(queue, job)
        for id in list(queue.dlq):
            self.forget_dead_letter(queue, id)
        self.lose_proofs(name)
        self.forget_group_use(queue)
        self.forget_windows(queue)
        for group in queue.groups.by_id.values() if queue.groups is not None else ():
            if group.has_policy:
                self.marks.table_removed(GROUP_TABLE, name, group.id)
            if group.noted:
                self.marks.table_removed(RATE_TABLE, name, group.id)
        if queue.rate is not None:
            self.marks.table_removed(RATE_TABLE, name, "")
        for type in ("completed", "failed"):
            self.forget_series((name, type))
        self.marks.obliterated(name)
        self.marks.queue(name, None)
        if queue.waiters:
            self.awaited[name] = queue.waiters
        del self.queues[name]

    # -- at the end of a verb -----------------------------------------------------------------------------------------

    def do_chores(self, now: int) -> None:
        self.chores = False
        if self.doomed:
            self.report_blocked(now)

    # -- single jobs --------------------------------------------------------------------------------------------------

    def cancel(self, id: str, now: int) -> None:
        """Remove a job that waits, gated and parked ones included."""
        job = self.jobs.get(id)
        if job is None or job.location not in (Location.READY, Location.GATED, Location.PARKED):
            raise NotFound("Job not found or cannot be cancelled")
        self.emit("removed", job, now, prev="waiting")
        self.remove_queued(job)

    def discard(self, id: str, token: str | None, now: int) -> None:
        """Bury a queued or active job by hand. That is no failure: its parent's policy is not applied."""
        job = self.known(id)
        queue = self.queue(job.queue)
        if job.location == Location.ACTIVE:
            self.check_lease(job, token)
            self.leave_active(queue, job)
        elif job.location == Location.READY:
            queue.remove(job)
        else:
            raise NotFound("Job not found")
        if job.where:
            job = self.replace(job)
        self.release_key_finally(queue, job)
        self.record_attempt(job, now, "unknown", None)
        self.bury(queue, job, now, "unknown", None)

    def promote(self, id: str, now: int) -> None:
        """Make a delayed job ready."""
        job = self.jobs.get(id)
        if job is None or job.location != Location.READY or job.run_at <= now:
            raise NotFound("Job not found or not delayed")
        self.reschedule(job, now, now)

    def promote_jobs(self, name: str, count: int | None, now: int) -> int:
        """Make delayed jobs ready, oldest first. Gives their number."""
        queue = self.queues.get(name)
        if queue is None:
            return 0
        queue.promote_due(now)
        delayed = sorted(queue.delayed_jobs(), key=lambda job: (job.created_at, job.id))
        chosen = delayed if count is None else delayed[: max(0, count)]
        for job in chosen:
            self.reschedule(job, now, now)
        return len(chosen)

    def change_delay(self, id: str, delay_ms: int, token: str | None, now: int) -> bool:
        """Set when a queued job runs, or hand an active one back until then. False if it is neither."""
        job = self.jobs.get(id)
        if job is None or job.location not in (Location.READY, Location.ACTIVE):
            return False
        run_at = now + delay_ms
        if job.location == Location.READY:
            self.reschedule(job, run_at, now)
            return True
        self.check_lease(job, token)
        self._hand_back(job, run_at, now)
        self.emit("delayed", self.jobs[id], now, delay=delay_ms)
        return True

    def _hand_back(self, job: Job, run_at: int, now: int) -> Job:
        """Put an active job back into the run set by hand: nothing is charged."""
        queue = self.queue(job.queue)
        self.leave_active(queue, job)
        job.run_at = run_at
        job.started_at = None
        job = self.requeue(queue, job, now)
        self.marks.changed(job)
        return job

    def move_to_wait(self, id: str, token: str | None, now: int) -> None:
        """Make a job ready now: an active one is handed back, a delayed one promoted, a dead letter retried."""
        job = self.jobs.get(id)
        state = "unknown" if job is None else self.state_in_memory(job, now)
        if job is None or state in ("completed", "waiting-children"):
            raise Conflict(f"Cannot move job from state '{state}' to waiting")
        if state == "active":
            self.check_lease(job, token)
            job = self._hand_back(job, now, now)
            self.emit("waiting", job, now, prev="active")
        elif state == "delayed":
            self.reschedule(job, now, now)
        elif state == "failed":
            queue = self.queue(job.queue)
            entry = queue.dlq.get(id)
            if entry is None or not self.revive(queue, entry[1], now):
                raise NotFound("Failed job not in DLQ")

    def move_to_waiting_children(self, id: str, token: str | None, now: int) -> None:
        """Park an active job."""
        job = self.jobs.get(id)
        if job is None or job.location != Location.ACTIVE:
            raise NotFound("Job is not active")
        self.check_lease(job, token)
        queue = self.queue(job.queue)
        self.leave_active(queue, job)
        job.started_at = None
        unmet = self.wait_again(job)
        if unmet:
            self.gate(queue, job, unmet)
        else:
            job.location = Location.PARKED
            queue.parked[id] = job
        self.timeline(job, "waiting-children", now)
        self.marks.changed(job)
        self.emit("waiting-children", job, now, prev="active")

    def change_priority(self, id: str, priority: int, lifo: bool | None, now: int) -> None:
        """Move a queued job within the order."""
        job = self.jobs.get(id)
        if job is None or job.location != Location.READY:
            raise NotFound("Job not found or not in queue")
        queue = self.queue(job.queue)
        queue.remove(job)
        self.own_timeline(job)
        if job.where or priority != job.priority:
            job = self.replace(job)
        job.priority = priority
        if lifo is not None and lifo != job.options.lifo:
            job.options = dataclasses.replace(job.options, lifo=lifo)
        queue.insert(job, now)
        self.marks.changed(job)
        self.wake(queue)

    def update_data(self, id: str, data: bytes, now: int) -> None:
        """Replace a live job's payload; the topology of a flow in it is kept."""
        job = self.jobs.get(id)
        if job is not None and job.location == Location.COMPLETED and id in self.repeat_links:
            job = self.jobs.get(self.repeat_links[id])
        if job is None or job.location in (Location.COMPLETED, Location.DEAD):
            raise NotFound("Job not found or cannot be updated")
        if id in self.stale_children:
            self.tell_children(job)
        if job.data is not None and b"__" in job.data:
            present = decode(job.data)
            kept = {key: present[key] for key in FLOW_KEYS if key in present} if isinstance(present, dict) else {}
            if kept:
                wanted = decode(data)
                if not isinstance(wanted, dict):
                    raise ValidationError("flow job data must be an object")
                for key in wanted:
                    if isinstance(key, str) and key.startswith("__") and (key not in kept or wanted[key] != kept[key]):
                        raise ValidationError(f"flow job data key is reserved: {key}")
                data = self.marks.pack({**wanted, **kept})
        check_size_limit(data, job.options.size_limit)
        job.data = data
        self.marks.changed(job)

    def retry_completed_jobs(self, name: str, id: str | None, count: int | None, before: int | None, now: int) -> int:
        """Run completed jobs again: job ``id``, or the oldest that completed by ``before``, up to ``count``."""
        queue = self.queues.get(name)
        if queue is None:
            return 0
        if id is not None:
            job = queue.completed.get(id)
            return int(job is not None and self.retry_completed(queue, job, now))
        jobs = [job for job in queue.completed.values() if before is None or (job.completed_at or 0) <= before]
        jobs.sort(key=lambda job: (job.completed_at or 0, job.id))
        chosen = jobs if count is None else jobs[: max(0, count)]
        return sum(self.retry_completed(queue, job, now) for job in chosen)

    def remove_unprocessed_children(self, id: str, now: int) -> None:
        """Cancel a parent's children that still wait. One that other jobs need too is only detached."""
        parent = self.jobs.get(id)
        if parent is None:
            return
        gone: set[str] = set()
        for child_id in parent.children_ids:
            child = self.jobs.get(child_id)
            if child is None or child.location not in (Location.READY, Location.GATED, Location.PARKED):
                continue
            gone.add(child_id)
            if any(waiter != id for waiter in self.dependents.get(child_id, ())):
                self.detach(child)
            else:
                self.emit("removed", child, now, prev="waiting")
                self.remove_queued(child)
        if gone and parent.location == Location.GATED:
            self.drop_children(parent, gone, now)

    # -- deduplication keys -------------------------------------------------------------------------------------------

    def key_owner(self, name: str, key: str, now: int) -> str | None:
        """Id of the job that owns a deduplication key."""
        queue = self.queues.get(name)
        entry = queue.unique.get(key) if queue is not None else None
        if queue is None or entry is None:
            return None
        if entry.expires_at is not None and entry.expires_at <= now:
            self.drop_key(queue, key)
            return None
        return entry.job_id

    def remove_key(self, name: str, key: str) -> int:
        queue = self.queues.get(name)
        if queue is None or key not in queue.unique:
            return 0
        self.drop_key(queue, key)
        return 1

    def remove_job_key(self, id: str) -> bool:
        """Free the key of job ``id`` if it owns one."""
        job = self.jobs.get(id)
        if job is None or job.unique_key is None:
            return False
        queue = self.queue(job.queue)
        entry = queue.unique.get(job.unique_key)
        if entry is None or entry.job_id != id:
            return False
        self.drop_key(queue, job.unique_key)
        return True

    # -- queue limits -------------------------------------------------------------------------------------------------

    def set_rate_limit(self, name: str, limit: float, duration_ms: int | None, ttl_ms: int | None, now: int) -> None:
        """At most ``limit`` deliveries per ``duration_ms`` (default 1000); gone after ``ttl_ms``. The bucket starts full."""
        queue = self.queue(name)
        expires_at = now + min(ttl_ms, NEVER_MS) if ttl_ms else None
        queue.rate = RateLimiter(limit, min(duration_ms or DEFAULT_RATE_DURATION_MS, NEVER_MS), expires_at, now)
        self.mark_queue(queue)
        self.marks.table_removed(RATE_TABLE, name, "")
        self.wake(queue)

    def clear_rate_limit(self, name: str) -> None:
        queue = self.queues.get(name)
        if queue is not None and queue.rate is not None:
            queue.rate = None
            self.mark_queue(queue)
            self.marks.table_removed(RATE_TABLE, name, "")
            self.wake(queue)

    def set_concurrency(self, name: str, limit: float) -> None:
        """At most ``limit`` active jobs, counting those delivered from now on."""
        queue = self.queue(name)
        if queue.concurrency is None:
            queue.concurrency = ConcurrencyLimiter(limit)
        else:
            queue.concurrency.limit = limit
        self.mark_queue(queue)
        self.wake(queue)

    def clear_concurrency(self, name: str) -> None:
        queue = self.queues.get(name)
        if queue is not None and queue.concurrency is not None:
            queue.concurrency = None
            self.mark_queue(queue)
            self.wake(queue)

    def queue_limits(self, name: str, max_jobs: int | None, now: int) -> QueueLimits:
        queue = self.queues.get(name)
        if queue is None:
            return QueueLimits()
        rate, concurrency = queue.rate, queue.concurrency
        if rate is not None and rate.expired(now):
            queue.rate = rate = None
            self.mark_queue(queue)
        ttl = -2
        if rate is not None:
            ttl = rate.wait_ms(now, max_jobs) if rate.expires_at is None else max(0, rate.expires_at - now)
        return QueueLimits(
            rate_max=rate.limit if rate is not None else None,
            rate_duration_ms=rate.duration_ms if rate is not None else None,
            rate_ttl_ms=ttl,
            concurrency=concurrency.limit if concurrency is not None else None,
            maxed=concurrency is not None and concurrency.full,
        )

    # -- groups -------------------------------------------------------------------------------------------------------

    def group_jobs_count(self, name: str, group_id: str | None) -> int:
        """Queued jobs of a group, or of all groups."""
        queue = self.queues.get(name)
        if queue is None or queue.groups is None:
            return 0
        if group_id is None:
            return queue.groups.queued
        group = queue.groups.by_id.get(group_id)
        return group.queued if group is not None else 0

    def group_active_count(self, name: str, group_id: str) -> int:
        queue = self.queues.get(name)
        group = queue.groups.by_id.get(group_id) if queue is not None and queue.groups is not None else None
        return group.active if group is not None else 0

    def set_group_rate_limit(self, name: str, group_id: str, maximum: int, duration_ms: int) -> None:
        queue = self.queue(name)
        group = queue.group_set().get(group_id)
        group.rate_max, group.rate_duration_ms, group.window = maximum, duration_ms, None
        self.note_group_use(queue, group)
        self._group_changed(queue, group_id)

    def group_rate_limit(self, name: str, group_id: str) -> tuple[int, int] | None:
        """The stored override: (max, duration in ms)."""
        queue = self.queues.get(name)
        group = queue.groups.by_id.get(group_id) if queue is not None and queue.groups is not None else None
        if group is None or group.rate_max is None or group.rate_duration_ms is None:
            return None
        return group.rate_max, group.rate_duration_ms

    def remove_group_rate_limit(self, name: str, group_id: str) -> bool:
        if self.group_rate_limit(name, group_id) is None:
            return False
        queue = self.queue(name)
        group = queue.group_set().get(group_id)
        group.rate_max = group.rate_duration_ms = group.window = None
        self.note_group_use(queue, group)
        self._group_changed(queue, group_id)
        return True

    def group_rate_limit_ttl(self, name: str, group_id: str, max_jobs: int | None, now: int) -> int:
        """ms until the group's manual limit or window ends, 0 if fewer than ``max_jobs`` were used, -2 if there is none."""
        queue = self.queues.get(name)
        group = queue.groups.by_id.get(group_id) if queue is not None and queue.groups is not None else None
        if group is None:
            return -2
        if group.blocked_until > now:
            return group.blocked_until - now
        window = group.live_window(now)
        if window is None:
            return -2
        if max_jobs is not None and window.count < max_jobs:
            return 0
        return window.started_at + window.duration_ms - now

    def set_group_concurrency(self, name: str, group_id: str, concurrency: int) -> None:
        queue = self.queue(name)
        queue.group_set().get(group_id).concurrency = concurrency
        self._group_changed(queue, group_id)

    def group_concurrency(self, name: str, group_id: str) -> int | None:
        queue = self.queues.get(name)
        group = queue.groups.by_id.get(group_id) if queue is not None and queue.groups is not None else None
        return group.concurrency if group is not None else None

    def remove_group_concurrency(self, name: str, group_id: str) -> bool:
        if self.group_concurrency(name, group_id) is None:
            return False
        queue = self.queue(name)
        queue.group_set().get(group_id).concurrency = None
        self._group_changed(queue, group_id)
        return True

    def pause_group(self, name: str, group_id: str, paused: bool) -> bool:
        """Pause or resume a group. True if that changed anything."""
        if self.is_group_paused(name, group_id) == paused:
            return False
        queue = self.queue(name)
        queue.group_set().get(group_id).paused = paused
        self._group_changed(queue, group_id)
        return True

    def is_group_paused(self, name: str, group_id: str) -> bool:
        queue = self.queues.get(name)
        group = queue.groups.by_id.get(group_id) if queue is not None and queue.groups is not None else None
        return group is not None and group.paused

    def rate_limit_group(self, name: str, group_id: str, duration_ms: int, now: int) -> None:
        """Block a group until ``duration_ms`` from now, replacing any earlier block."""
        queue = self.queue(name)
        groups = queue.group_set()
        group = groups.get(group_id)
        group.blocked_until = now + duration_ms
        groups.changed(group)
        self.note_group_use(queue, group)
        groups.forget_idle(group)
        self.wake(queue)  # the block may end earlier than the one before

    def _group_changed(self, queue: QueueState, group_id: str) -> None:
        groups = queue.group_set()
        group = groups.get(group_id)
        if group.has_policy:
            self.marks.table(
                GROUP_TABLE,
                (
                    queue.name,
                    group_id,
                    group.rate_max,
                    group.rate_duration_ms,
                    group.concurrency,
                    int(group.paused),
                ),
            )
        else:
            self.marks.table_removed(GROUP_TABLE, queue.name, group_id)
            groups.forget_idle(group)
        groups.changed(group)
        self.wake(queue)

    # -- logs ---------------------------------------------------------------------------------------------------------

    def add_log(self, id: str, message: str, level: str, now: int) -> None:
        """Append a line to the log of any known job."""
        check_text(message, "message")
        check_text(level, "level")
        job = self.known(id)
        bound = MAX_LOGS if job.options.keep_logs is None else max(0, min(MAX_LOGS, job.options.keep_logs))
        logs = self.logs.pop(id, [])
        logs.append(LogEntry(now, level, message))
        del logs[: max(0, len(logs) - bound)]
        self._store_logs(id, logs)

    def clear_logs(self, id: str, keep: int) -> None:
        """Drop all but the newest ``keep`` lines."""
        logs = self.logs.pop(id, None)
        if logs is not None:
            self._store_logs(id, logs[-keep:] if keep > 0 else [])

    def _store_logs(self, id: str, logs: list[LogEntry]) -> None:
        if not logs:
            self.logged.discard(id)
            self.marks.table_removed(LOG_TABLE, id)
            return
        self.logs[id] = logs
        self.logged.add(id)
        self.marks.table(LOG_TABLE, (id, self.marks.pack(logs)))
        if len(self.logs) > MAX_LOGGED_JOBS:
            for oldest in list(self.logs)[: MAX_LOGGED_JOBS // 10]:
                del self.logs[oldest]
                if not self.settings.persistent:
                    self.logged.discard(oldest)

    def take_logs(self, id: str, logs: Sequence[LogEntry]) -> None:
        """Logs that the journal held."""
        self.logs[id] = list(logs)
        self.logged.add(id)

    # -- metrics ------------------------------------------------------------------------------------------------------
