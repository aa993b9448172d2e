"""Delivery and its outcomes: pull, acknowledge, fail, renew, progress, and what happens when an outcome never comes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from bunqueue_core.engine.base import CRON_KEY_PREFIX, STALL_CONFIRM_MS
from bunqueue_core.engine.produce import Producing
from bunqueue_core.engine.queue import QueueState
from bunqueue_core.model.errors import NotFound
from bunqueue_core.model.job import Job, Lease, Location, RetryHistory, append_timeline
from bunqueue_core.model.payload import Packed
from bunqueue_core.model.requests import (
    Ack,
    Acknowledged,
    Delivery,
    DlqReason,
    Failure,
    GroupDefaults,
    Outcome,
    Progress,
    PullRequest,
    Renewal,
)
from bunqueue_core.model.rules import check_text, stack_lines
from bunqueue_core.storage.changes import AGE_TABLE, RATE_TABLE

#: Error of a job that ran longer than its ``timeout``.
TIMEOUT_ERROR: Final = "Job timeout exceeded"

#: When something that was due and failed is tried again, ms.
AGAIN_MS: Final = 60_000

_FAR: Final = 2**62


class Consuming(Producing):
    """The verbs ``pull``, ``ack``, ``fail``, ``extend``, ``heartbeat``, ``progress`` and ``release``."""

    # -- pull ---------------------------------------------------------------------------------------------------------

    def pull(self, request: PullRequest, now: int) -> tuple[list[Delivery], int | None]:
        """Claim jobs. Gives them, and if there is none, when one may become claimable by itself (epoch ms; None: not by time)."""
        queue = self.queues.get(request.queue)
        if queue is None or queue.paused:
            return [], None
        queue.promote_due(now)
        if queue.expiring:
            self._expire(queue, now)
        deliveries: list[Delivery] = []
        retry_at: int | None = None
        group = request.group
        rate = queue.rate
        if rate is not None and rate.expired(now):
            queue.rate = rate = None
            self.mark_queue(queue)
            self.marks.table_removed(RATE_TABLE, queue.name, "")
        concurrency = queue.concurrency
        ready = queue.ready
        grouped = queue.groups is not None or (group is not None and group.affine)
        limited = group is not None and group.limit_max is not None
        while len(deliveries) < request.count:
            if grouped:
                job, at = self._next_grouped(queue, now, group)
                if at is not None:
                    retry_at = at
            else:
                job = ready.first()
            if job is None:
                break
            if concurrency is not None and concurrency.full:
                if self.noticing:
                    self.notice("concurrency:rejected", queue=queue.name)
                break
            if rate is not None:
                if not rate.ready(now):
                    retry_at = rate.next_at(now)
                    if self.noticing:
                        self.notice("ratelimit:rejected", queue=queue.name)
                    break
                rate.take()
            if concurrency is not None:
                concurrency.active += 1
            if job.group_id is not None and queue.groups is not None:
                taken = queue.groups.take(job, now, group)
                queue.taken(job)
                if limited:
                    self.note_group_use(queue, taken)
            else:
                ready.take(job)
            deliveries.append(self._activate(queue, job, request, now))
        if grouped:
            self.forget_group_use(queue)
        if deliveries:
            self.totals.pulled += len(deliveries)
            if rate is not None:
                self.note_use(queue, rate)
            return deliveries, None
        due = queue.next_due()
        if due is not None and (retry_at is None or due < retry_at):
            retry_at = due
        return deliveries, retry_at

    @staticmethod
    def _next_grouped(queue: QueueState, now: int, group: GroupDefaults | None) -> tuple[Job | None, int | None]:
        groups = queue.groups
        if group is not None and group.affine:
            if group.affinity is None:
                return queue.ready.first(), None
            return groups.select(now, group) if groups is not None else (None, None)
        job = queue.ready.first()
        if job is not None or groups is None:
            return job, None
        return groups.select(now, group)

    def _activate(self, queue: QueueState, job: Job, request: PullRequest, now: int) -> Delivery:
        job.location = Location.ACTIVE
        job.started_at = now
        job.last_heartbeat = now
        append_timeline(job, {"state": "active", "timestamp": now})
        queue.active[job.id] = job
        token: str | None = None
        if request.owner:
            token = self.ports.new_token()
            job.lease = Lease(token, request.owner, now, request.lock_ttl_ms)
        if request.session is not None:
            session = self.sessions.get(request.session)
            if session is None:
                session = self.sessions[request.session] = {}
            session[job.id] = job
            job.session = request.session
        if job.unique_key is not None and job.options.dedup_scope == "waiting":
            self._free_key(queue, job)
        self.timers.add(job, self._deadline(queue, job))
        self.marks.moved(job)
        if self.listening:
            self.emit("pulled", job, now)
        else:
            queue.events += 1
        return Delivery(job, token)

    def _expire(self, queue: QueueState, now: int) -> None:
        """Remove jobs whose time to live is over, silently."""
        expiring = queue.expiring
        while expiring and expiring[0][0] <= now:
            job = heapq.heappop(expiring)[2]
            if job.location == Location.READY and self.jobs.get(job.id) is job:
                queue.remove(job)
                self.forget(job)
                if self.noticing:
                    ttl, age = job.options.ttl_ms, now - job.created_at
                    self.notice("job:expired", queue=queue.name, jobId=job.id, ttl=ttl, age=age)

    # -- deadlines of active jobs -------------------------------------------------------------------------------------

    @staticmethod
    def _deadline(queue: QueueState, job: Job) -> int:
        """The earliest moment at which something has to happen to an active job (epoch ms)."""
        started = job.started_at or 0
        when = _FAR
        if job.lease is not None:
            when = job.lease.expires_at
        if job.options.timeout_ms:
            when = min(when, started + job.options.timeout_ms)
        return min(when, Consuming._stall_at(queue, job))

    @staticmethod
    def _stall_at(queue: QueueState, job: Job) -> int:
        """When silence makes an active job stall, the confirming look included (epoch ms)."""
        stall = queue.stall
        if not stall.enabled:
            return _FAR
        interval = job.options.stall_timeout_ms
        if interval is None:
            interval = stall.stall_interval_ms
        silent_at = job.last_heartbeat + interval + 1
        return max(silent_at, (job.started_at or 0) + stall.grace_period_ms) + STALL_CONFIRM_MS

    def job_due(self, job: Job, now: int) -> bool:
        """Act on an active job whose timer came up. False if its deadline has moved."""
        queue = self.queues[job.queue]
        if job.location != Location.ACTIVE or queue.active.get(job.id) is not job:
            return False
        deadline = self._deadline(queue, job)
        if deadline > now:
            self.timers.add(job, deadline)
            return False
        timeout = job.options.timeout_ms
        if timeout and (job.started_at or 0) + timeout <= now:
            self.retire_lease(job)
            if self.noticing:
                self.notice("job:timeout", jobId=job.id, queue=queue.name, timeout=timeout)
            self._failed(queue, job, TIMEOUT_ERROR, None, False, False, now, "timeout")
        elif job.lease is not None and job.lease.expires_at <= now:
            self._lease_expired(queue, job, job.lease, now)
        else:
            self._stalled(queue, job, now)
        return True

    def rearm(self, queue: QueueState) -> None:
        """Give every active job of ``queue`` a new timer: its stall policy has changed."""
        for job in queue.active.values():
            self.timers.remove(job)
            self.timers.add(job, self._deadline(queue, job))

    def clock_set(self, jump_ms: int) -> None:
        """The clock jumped (back, where negative): move with it what is measured on it of active jobs."""
        for queue in self.queues.values():
            for job in queue.active.values():
                if job.started_at is not None:
                    job.started_at += jump_ms
                if job.lease is not None:
                    job.lease.created_at += jump_ms
        self.grant(jump_ms)

    def grant(self, ms: int) -> None:
        """Let leases and silences of all active jobs last ``ms`` longer: for that long nobody could have renewed."""
        for queue in self.queues.values():
            for job in queue.active.values():
                job.last_heartbeat += ms
                if job.lease is not None:
                    job.lease.expires_at += ms
            self.rearm(queue)

    def _lease_expired(self, queue: QueueState, job: Job, lease: Lease, now: int) -> None:
        if self.noticing:
            self.notice("job:lock-expired", jobId=job.id, queue=queue.name, renewalCount=lease.renewals)
        if self._drop_cron_job(queue, job):
            return
        self.leave_active(queue, job)
        job.attempts += 1
        job.stall_count += 1
        maximum = job.options.max_attempts
        if job.attempts >= maximum:
            self._lost_for_good(
                queue,
                job,
                now,
                "max_attempts_exceeded",
                f"Lock expired at max attempts ({maximum})",
                "Lock expired (max attempts reached)",
            )
        elif 0 < queue.stall.max_stalls <= job.stall_count:
            self._lost_for_good(
                queue,
                job,
                now,
                "stalled",
                f"Lock expired after {lease.renewals} renewals",
                "Lock expired (max stalls reached)",
            )
        else:
            self.record_attempt(job, now, "stalled", "Lock expired")
            job = self._come_back(queue, job, now)
            self.marks.changed(job)
            self.emit("stalled", job, now)

    def _lost_for_good(
        self, queue: QueueState, job: Job, now: int, reason: DlqReason, error: str, event_error: str
    ) -> None:
        self.record_attempt(job, now, reason, error)
        self.emit("stalled", job, now, data={"stallCount": job.stall_count, "action": "move_to_dlq"})
        self._end_failed(queue, job, now, reason, error)
        self.emit("failed", job, now, error=event_error)

    def _stalled(self, queue: QueueState, job: Job, now: int) -> None:
        if job.unique_key is not None and job.unique_key.startswith(CRON_KEY_PREFIX):
            self.emit("stalled", job, now, data={"stallCount": job.stall_count + 1, "action": "move_to_dlq"})
            self._drop_cron_job(queue, job)
            return
        self.leave_active(queue, job)
        job.attempts += 1
        job.stall_count += 1
        maximum = job.options.max_attempts
        exhausted = job.attempts >= maximum
        if exhausted or job.stall_count >= queue.stall.max_stalls:
            reason: DlqReason = "max_attempts_exceeded" if exhausted else "stalled"
            error = f"Job stalled at max attempts ({maximum})" if exhausted else f"Job stalled {job.stall_count} times"
            self.record_attempt(job, now, reason, error, started=False)
            self.emit("stalled", job, now, data={"stallCount": job.stall_count, "action": "move_to_dlq"})
            self._end_failed(queue, job, now, reason, error, count=False)
            return
        self.record_attempt(job, now, "stalled", "stalled")
        self.timeline(job, "failed", now, error="stalled", attempt=job.attempts)
        self.timeline(job, "waiting", now, attempt=job.attempts + 1)
        job.started_at = None
        job.run_at = now + self.retry_delay(job, job.attempts)
        job = self.requeue(queue, job, now)
        self.marks.changed(job)
        self.emit("stalled", job, now, data={"stallCount": job.stall_count, "action": "retry"})

    def _drop_cron_job(self, queue: QueueState, job: Job) -> bool:
        """Drop a schedule's job whose delivery was lost: the schedule makes the next one."""
        if job.unique_key is None or not job.unique_key.startswith(CRON_KEY_PREFIX):
            return False
        self.retire_lease(job)
        self.leave_active(queue, job)
        self.release_key_finally(queue, job)
        self.forget(job)
        return True

    # -- outcomes: deciding -------------------------------------------------------------------------------------------

    def is_retired(self, id: str, token: str | None) -> bool:
        """True if the engine itself ended the delivery that this outcome belongs to."""
        if token:
            return self.retired_tokens.get(token) == id
        if id not in self.retired_jobs:
            return False
        job = self.jobs.get(id)
        if job is None:
            return True
        if job.location == Location.ACTIVE or job.lease is not None:
            return False
        if job.location in (Location.READY, Location.COMPLETED):
            return job.started_at == self.retired_jobs[id]
        return True

    @staticmethod
    def _not_active(id: str) -> NotFound:
        return NotFound(f"Job not found or not in processing state: {id}")

    # -- ack ----------------------------------------------------------------------------------------------------------

    def ack(self, acks: Sequence[Ack], now: int) -> Acknowledged:
        """Complete jobs. See ``Broker.ack``."""
        jobs = self.jobs
        for ack in acks:
            job = jobs.get(ack.id)
            if job is not None and job.lease is not None and not self.is_retired(ack.id, ack.token):
                self.check_lease(job, ack.token)
        outcomes: list[Outcome] = []
        errors: dict[int, Exception] = {}
        for position, ack in enumerate(acks):
            job = jobs.get(ack.id)
            outcomes.append("applied")
            if (self.retired_tokens or self.retired_jobs) and self.is_retired(ack.id, ack.token):
                outcomes[position] = "already-finalized"
            elif job is None:
                errors[position] = self._not_active(ack.id)
            elif job.location == Location.ACTIVE:
                queue = self.queues[job.queue]
                self.leave_active(queue, job)
                self._complete(queue, job, ack.result, ack.remove, now)
            elif job.location == Location.READY and job.attempts > 0:
                queue = self.queues[job.queue]
                queue.remove(job)
                self._complete(queue, job, ack.result, ack.remove, now)
            else:
                errors[position] = self._not_active(ack.id)
        return Acknowledged(outcomes, errors)

    def _complete(self, queue: QueueState, job: Job, result: bytes | None, remove: bool, now: int) -> None:
        """A job that is in no container any more has completed."""
        if job.where:
            job = self.replace(job)
        if job.history is not None:
            job.history = None
            self.marks.changed(job)
        else:
            self.marks.moved(job)
        retention = job.options.remove_on_complete
        job.location = Location.COMPLETED
        job.completed_at = now
        self.release_key_finally(queue, job)
        append_timeline(job, {"state": "completed", "timestamp": now})
        self.totals.completed += 1
        queue.total_completed += 1
        if remove or retention.remove:
            self.add_proof(job, now)
            if result is not None and self.dependents.get(job.id):
                self.pinned_results[job.id] = (job.queue, result)
            self.forget(job)
        else:
            if result is not None:
                self.results[job.id] = result
                self.marks.result(job.id, result, now)
            queue.completed[job.id] = job
            queue.completed_count += 1
            self.completed_order[job.id] = job
            self.completed_in_memory += 1
            if self.completed_in_memory > self.evict_above:
                self._evict_completed(now)
            if self.settings.persistent and len(self.results) > self.settings.max_results:
                self._evict_results()
        self.ended(job, completed=True)
        if self.child_failures:
            self.clear_child_failures(job.id)
        if self.pinned_results and job.children_ids:
            for child in job.children_ids:
                self.pinned_results.pop(child, None)
        if self.listening:
            extra: dict[str, Any] | None = {"data": Packed(result)} if result is not None else None
            self.emit("completed", job, now, **(extra or {}))
        else:
            queue.events += 1
        if job.id in self.dependents:
            self.resolve(job.id, now)
        self.count_metric(queue, "completed", now)
        if retention.age_ms is not None or retention.count is not None:
            self.retain_completed(queue, job, now)
        if job.options.repeat is not None:
            self.repeat(queue, job, now)

    def _evict_completed(self, now: int) -> None:
        """Let the oldest tenth of the completed jobs go; with a journal they remain readable there.

        Without one, what live jobs still need of them stays: that they completed, and their results.
        """
        limit = self.settings.max_completed_jobs
        tenth = max(1, limit // 10)
        order = self.completed_order
        before = self.completed_in_memory
        count = min(before - limit + tenth, 2 * tenth + 100)
        # What is not on disk yet can be read nowhere else.
        for job in [] if self.marks.in_flight else list(islice(order.values(), count)):
            queue = self.queues[job.queue]
            if not self.settings.persistent:
                if self.dependents.get(job.id):
                    self.keep_evidence(job, now)
                self.forget_completed(queue, job)
            elif job.dirty or self.dependents.get(job.id):
                del order[job.id]
                order[job.id] = job  # the next ones are looked at meanwhile
            else:
                del queue.completed[job.id]
                del order[job.id]
                self.completed_in_memory -= 1
                self.evicted = True
                self.results.pop(job.id, None)
                del self.jobs[job.id]
                age_ms = job.options.remove_on_complete.age_ms
                if age_ms is not None:
                    self.marks.table(AGE_TABLE, (job.id, (job.completed_at or now) + age_ms))
        now_there = self.completed_in_memory
        self.evict_above = limit if now_there < limit else now_there if now_there < before else now_there + tenth

    def _evict_results(self) -> None:
        """Let the oldest tenth of the results go; they are read from the journal from then on."""
        for id in list(self.results)[: max(1, self.settings.max_results // 10)]:
            del self.results[id]

    # -- fail ---------------------------------------------------------------------------------------------------------

    def fail(self, failures: Sequence[Failure], now: int) -> Acknowledged:
        """Record failed attempts. See ``Broker.fail``."""
        for failure in failures:
            check_text(failure.error, "error")
            for line in failure.stack or ():
                check_text(line, "stack")
            job = self.jobs.get(failure.id)
            if job is not None and job.lease is not None and not self.is_retired(failure.id, failure.token):
                self.check_lease(job, failure.token)
        outcomes: list[Outcome] = []
        errors: dict[int, Exception] = {}
        for position, failure in enumerate(failures):
            job = self.jobs.get(failure.id)
            outcomes.append("applied")
            if self.is_retired(failure.id, failure.token):
                outcomes[position] = "already-finalized"
            elif job is not None and job.location == Location.ACTIVE:
                queue = self.queues[job.queue]
                if job.history is not None:
                    job.history.losses = 0
                self._failed(
                    queue,
                    job,
                    failure.error,
                    failure.stack,
                    failure.unrecoverable,
                    failure.remove,
                    now,
                    "explicit_fail",
                )
            elif job is not None and job.location == Location.READY and job.attempts > 0 and failure.token:
                outcomes[position] = "already-finalized"
            else:
                errors[position] = self._not_active(failure.id)
        return Acknowledged(outcomes, errors)

    def _failed(
        self,
        queue: QueueState,
        job: Job,
        error: str | None,
        stack: list[str] | None,
        unrecoverable: bool,
        remove: bool,
        now: int,
        reason: DlqReason,
    ) -> None:
        """An attempt of an active job failed: retry, or end."""
        options = job.options
        job.attempts += 1
        if stack is not None:
            job.stacktrace = stack_lines(stack, options.stack_trace_limit)
        if error is not None:
            self.timeline(job, "failed", now, error=error, attempt=job.attempts)
        else:
            self.timeline(job, "failed", now, attempt=job.attempts)
        self.leave_active(queue, job)
        terminal = unrecoverable or job.attempts >= options.max_attempts
        if not terminal:
            self.record_attempt(job, now, reason, error)
            job.run_at = now + self.retry_delay(job, job.attempts)
            job.started_at = None
            self.timeline(job, "waiting", now, attempt=job.attempts + 1)
            job = self.requeue(queue, job, now)
            self.marks.changed(job)
        else:
            final: DlqReason = "timeout" if reason == "timeout" else "max_attempts_exceeded"
            self.record_attempt(job, now, final, error)
            self.totals.failed += 1
            queue.total_failed += 1
            self.count_metric(queue, "failed", now)
        if self.listening:
            extra: dict[str, Any] = {"terminal": terminal}
            if error is not None:
                extra["error"] = error
            if job.data is not None:
                extra["data"] = Packed(job.data)
            self.emit("failed", job, now, **extra)
            if not terminal:
                self.emit("retried", job, now, prev="failed")
        else:
            queue.events += 1 if terminal else 2
        if terminal:
            self._end_failed(queue, job, now, final, error, count=False, remove=remove)

    def _end_failed(
        self,
        queue: QueueState,
        job: Job,
        now: int,
        reason: DlqReason,
        error: str | None,
        *,
        count: bool = True,
        remove: bool = False,
    ) -> None:
        """A job that is in no container any more has failed for good: dead letter or removal, and its parent's policy."""
        if count:
            self.totals.failed += 1
            queue.total_failed += 1
            self.count_metric(queue, "failed", now)
        self.release_key_finally(queue, job)
        self.clear_child_failures(job.id)
        retention = job.options.remove_on_fail
        if remove or retention.remove:
            self.ended(job)
            self.forget(job)
        else:
            self.bury(queue, job, now, reason, error)
            if retention.age_ms is not None or retention.count is not None:
                self.retain_failed(queue, job, now)
        if self.noticing and job.parent_id is not None:
            self.notice("flow:failed", parentJobId=job.parent_id, failedChildId=job.id, queue=queue.name, error=error)
        self.child_failed(job, error, now)

    # -- leases -------------------------------------------------------------------------------------------------------

    def extend(self, renewals: Sequence[Renewal], now: int) -> list[bool]:
        """Renew leases. See ``Broker.extend``."""
        return [self._renew(renewal, now) for renewal in renewals]

    def heartbeat(self, beats: Sequence[Renewal], now: int) -> list[bool]:
        """Renew leases or touch the stall clock. See ``Broker.heartbeat``."""
        done: list[bool] = []
        for beat in beats:
            if beat.token:
                done.append(self._renew(beat, now))
                continue
            job = self.jobs.get(beat.id)
            alive = job is not None and job.location == Location.ACTIVE
            if alive and job is not None:
                job.last_heartbeat = now
            done.append(alive)
        return done

    def _renew(self, renewal: Renewal, now: int) -> bool:
        job = self.jobs.get(renewal.id)
        lease = job.lease if job is not None and job.location == Location.ACTIVE else None
        if job is None or lease is None or (renewal.token and renewal.token != lease.token):
            return False
        if lease.expires_at <= now:
            job.lease = None
            return False
        duration = renewal.duration_ms if renewal.duration_ms is not None else lease.ttl_ms
        earlier = now + duration < lease.expires_at
        lease.expires_at = now + duration
        lease.renewals += 1
        job.last_heartbeat = now
        if earlier:
            # Its slot is a lower bound of the deadline, so only a deadline that moves forward needs a new one.
            self.timers.remove(job)
            self.timers.add(job, self._deadline(self.queues[job.queue], job))
        return True

    def release(self, session: str, now: int) -> int:
        """A connection has ended. See ``Broker.release``."""
        jobs = self.sessions.pop(session, None)
        if not jobs:
            return 0
        released = 0
        for job in list(jobs.values()):
            job.session = None
            if job.location != Location.ACTIVE or (job.lease is not None and job.lease.renewals > 0):
                continue
            self._lost(self.queues[job.queue], job, now)
            released += 1
        return released

    def _come_back(self, queue: QueueState, job: Job, now: int) -> Job:
        """Requeue a job that was active and keeps its place; the clock may have been set back since it was due."""
        job.started_at = None
        job.run_at = min(job.run_at, now)
        return self.requeue(queue, job, now)

    def _lost(self, queue: QueueState, job: Job, now: int) -> None:
        """The connection that held a job is gone, and with it the worker's outcome.

        The first time the job comes back at once, as after a deploy. From the second loss in a row it comes back with
        back-off, behind its peers; at the queue's stall limit it ends, because it may be what kills its workers.
        """
        if self._drop_cron_job(queue, job):
            return
        owner = job.lease.owner if job.lease is not None else None
        history = job.history
        losses = (history.losses if history is not None else 0) + 1
        self.leave_active(queue, job)
        if 0 < queue.stall.max_stalls <= losses:
            worker = f"; last worker: {owner.encode(errors='replace').decode()}" if owner else ""
            error = f"Job lost with its connection {losses} times{worker}"
            self.record_attempt(job, now, "stalled", error)
            self.emit("stalled", job, now, data={"stallCount": job.stall_count, "action": "move_to_dlq"})
            self._end_failed(queue, job, now, "stalled", error)
            self.emit("failed", job, now, error=error)
            return
        if history is None:
            history = job.history = RetryHistory()
        history.losses = losses
        job.last_heartbeat = now
        if losses > 1:
            job.started_at = None
            job.run_at = now + self.retry_delay(job, losses - 1)
            job = self.requeue(queue, job, now)
        else:
            job = self._come_back(queue, job, now)
        self.marks.changed(job)

    def give_back(self, job: Job, token: str | None, now: int) -> bool:
        """Undo a delivery that nobody took: nothing is charged. False if the job is not under that delivery any more."""
        if job.location != Location.ACTIVE or (job.lease.token if job.lease is not None else None) != token:
            return False
        queue = self.queues[job.queue]
        key = queue.unique.get(job.unique_key) if job.unique_key is not None else None
        self.leave_active(queue, job)
        if job.unique_key is not None and job.unique_key not in queue.unique:
            if key is not None:
                self.set_key(queue, job.unique_key, key)  # it was this job's all the time
            elif job.options.dedup_scope == "waiting":
                self.claim_key(queue, job, now)
        if job.timeline and job.timeline[-1]["state"] == "active":
            job.timeline.pop()
        job = self._come_back(queue, job, now)
        self.marks.changed(job)
        return True

    def hand_back_all(self, now: int) -> int:
        """Before an orderly stop: every active job waits again, uncharged. Gives their number."""
        count = 0
        for queue in self.queues.values():
            for job in list(queue.active.values()):
                token = job.lease.token if job.lease is not None else None
                count += self.give_back(job, token, now)
        return count

    # -- progress -----------------------------------------------------------------------------------------------------

    def progress(self, id: str, value: int | float, message: str | None, keep_message: bool, now: int) -> None:
        """Set an active job's progress. See ``Broker.progress``."""
        check_text(message, "message")
        job = self._active(id, now)
        job.progress = min(100, max(0, value))
        if not keep_message:
            job.progress_message = message
        job.last_heartbeat = now
        self.marks.changed(job)
        if self.listening:
            data = {"progress": job.progress, "message": job.progress_message}
            self.emit("progress", job, now, progress=job.progress, data=data)
        else:
            self.queues[job.queue].events += 1

    def progress_of(self, id: str, now: int) -> Progress:
        job = self._active(id, now)
        return Progress(job.progress, job.progress_message)

    def _active(self, id: str, now: int) -> Job:
        job = self.known(id)
        if job.location != Location.ACTIVE:
            raise NotFound(f"Job is not active (current state: {self.state_in_memory(job, now)})")
        return job

    # -- due ----------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When :meth:`due` has something to do next (epoch ms)."""
        jobs, agenda = self.timers.next(), self.agenda.next()
        if jobs is None or agenda is None:
            return jobs if agenda is None else agenda
        return min(jobs, agenda)

    def due(self, now: int, at_most: int = 1000) -> int:
        """Do what is due, at most ``at_most`` things, so that one call never blocks others for long. Gives their number."""
        done = 0
        jobs = self.timers.due(now, at_most)
        try:
            for job in jobs:
                self.job_due(job, now)
                done += 1
        except BaseException:
            for job in jobs[done:]:  # the one that failed, and those that were not looked at
                if job.location == Location.ACTIVE and not job.timer:
                    self.timers.add(job, now + AGAIN_MS)
            raise
        while done < at_most:
            due = self.agenda.due(now)
            if due is None:
                break
            name, action = due
            try:
                action(now)
            except BaseException:
                self.agenda.set_earlier(name, now + AGAIN_MS, action)
                raise
            done += 1
        if self.chores:
            self.do_chores(now)
        return done


__all__ = ["TIMEOUT_ERROR", "Consuming"]
