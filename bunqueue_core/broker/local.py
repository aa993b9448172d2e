"""``LocalBroker``: the verbs of the in-process engine, kept by a journal.

How they are answered, committed and recovered is in :mod:`bunqueue_core.broker.frame`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bunqueue_core.answer import Answer
from bunqueue_core.broker.frame import Claim, LocalFrame, ParkedPull, Wait
from bunqueue_core.model.errors import BrokerClosed, CommandError, NotFound
from bunqueue_core.model.job import Job, JobSpec, JobState, failed_reason
from bunqueue_core.model.requests import (
    Ack,
    Acknowledged,
    Counts,
    Delivery,
    DlqConfig,
    DlqEntry,
    DlqFilter,
    Failure,
    FlowJob,
    JobView,
    LogEntry,
    Page,
    Progress,
    PullRequest,
    Pushed,
    QueueLimits,
    QueueMetrics,
    Renewal,
    StallConfig,
)
from bunqueue_core.model.rules import check_failures, check_text
from bunqueue_core.model.webhook import Webhook, WebhookTally
from bunqueue_core.scheduling.definition import Entry
from bunqueue_core.scheduling.service import preview
from bunqueue_core.storage.buffer import FLUSH_JOBS, MAX_UNWRITTEN_BYTES, MAX_UNWRITTEN_ROWS, PRODUCER_PATIENCE_S
from bunqueue_core.storage.journal import StoredJob
from bunqueue_core.storage.records import job_from_row, logical_state


class LocalBroker(LocalFrame):
    """The in-process queue as a broker."""

    # -- produce ------------------------------------------------------------------------------------------------------

    def push(self, queue: str, specs: Sequence[JobSpec]) -> Answer[Pushed]:
        with self._lock:
            try:
                self._check_open()
                if self._buffer is not None:
                    self._buffer.check_available()
                    self._adopt_generations(specs)
                now = self._now()
                pushed = self._engine.push(queue, specs, now)
            except CommandError as error:
                return Answer.failed(error)
            marks = self._engine.marks
            durable = marks.rows > MAX_UNWRITTEN_ROWS or marks.bytes > MAX_UNWRITTEN_BYTES
            if not durable:
                for spec in specs:
                    if spec.options.durable:
                        durable = True
                        break
            answer = self._answer(pushed, now, durable=durable)
            full = marks.fresh >= FLUSH_JOBS and not self._in_loop
        if full and not durable and self._buffer is not None:
            if len(specs) >= FLUSH_JOBS and self._host.beside():
                # While a bulk is being written, the producer makes the next one.
                self._buffer.flush_beside(self._host.soon)
            else:
                # The producer writes what it has produced one by one: another thread would have to win the interpreter's lock
                # from it, and would gather more than it writes. For the same reason it waits for one that writes already.
                self._buffer.flush(patience_s=PRODUCER_PATIENCE_S)
        return answer

    def _adopt_generations(self, specs: Sequence[JobSpec]) -> None:
        """A custom id may stand for a completed job that only the journal holds: load it, so that the rules see it."""
        engine = self._engine
        if self._stored is None or not engine.evicted:
            return
        ids = {spec.custom_id for spec in specs if spec.custom_id is not None}
        ids |= {id for spec in specs for id in spec.depends_on}
        for spec in specs:
            if spec.parent_id is not None and spec.parent_queue is not None:
                ids |= self._dependencies_of(spec.parent_id)
        missing = {id for id in ids if id not in engine.proofs}
        if missing:
            self._stored.adopt(missing)

    def _dependencies_of(self, id: str) -> set[str]:
        """What job ``id`` depended on: it may have to wait again, and what has completed may be in the journal only."""
        job = self._engine.jobs.get(id)
        return set() if job is None else {other for other in job.depends_on if not self._engine.is_known(other)}

    # -- consume ------------------------------------------------------------------------------------------------------

    def pull(self, request: PullRequest) -> Answer[list[Delivery]]:
        with self._lock:
            try:
                self._check_usable()
            except BrokerClosed as error:
                return Answer.failed(error)
            now = self._now()
            deliveries: list[Delivery] = []
            retry_at: int | None = None
            if self._state == "open":
                deliveries, retry_at = self._engine.pull(request, now)
            if deliveries:
                return self._hand_over(deliveries, now)
            if request.wait_ms <= 0:
                return self._answer(deliveries, now, durable=self._engine.marks.pending and self._buffer is not None)
            answer: Answer[list[Delivery]] = Answer(self)
            parked = ParkedPull(request, answer, now + request.wait_ms)
            answer.on_cancel(lambda _: self._stop_waiting(parked))
            self._park(parked, retry_at, now)
            if self._engine.events:
                self._pass_on_events(self._buffer)
            return answer

    def _hand_over(self, deliveries: list[Delivery], now: int) -> Answer[list[Delivery]]:
        """Answer a pull with what it has claimed."""
        answer: Answer[list[Delivery]] = Answer(self)
        claim = Claim(self, answer, deliveries)
        if self._buffer is None:
            claim.settle_commit(None)
            self._answer(None, now, durable=False)
        else:
            self._wait_for_commit(claim, now)
        return answer

    def _stop_waiting(self, parked: ParkedPull) -> None:
        with self._lock:
            self._unpark(parked)
            parked.answer.settle([])

    def ack(self, acks: Sequence[Ack]) -> Answer[Acknowledged]:
        with self._lock:
            try:
                self._check_usable()
                now = self._now()
                result = self._engine.ack(acks, now)
            except CommandError as error:
                return Answer.failed(error)
            return self._answer(result, now, durable=True)

    def fail(self, failures: Sequence[Failure]) -> Answer[Acknowledged]:
        with self._lock:
            try:
                self._check_usable()
                now = self._now()
                check_failures(failures)
                result = self._engine.fail(failures, now)
            except CommandError as error:
                return Answer.failed(error)
            return self._answer(result, now, durable=True)

    def extend(self, renewals: Sequence[Renewal]) -> Answer[list[bool]]:
        return self._touch(lambda now: self._engine.extend(renewals, now))

    def heartbeat(self, beats: Sequence[Renewal]) -> Answer[list[bool]]:
        return self._touch(lambda now: self._engine.heartbeat(beats, now))

    def _touch(self, function: Callable[[int], list[bool]]) -> Answer[list[bool]]:
        """A verb that changes leases, which are not stored."""
        with self._lock:
            try:
                self._check_usable()
                now = self._now()
                self._look_at_clocks(now)  # before a lease counts as expired
                value = function(now)
            except CommandError as error:
                return Answer.failed(error)
            return self._answer(value, now, durable=False)

    def progress(self, id: str, progress: int | float, message: str | None, keep_message: bool) -> Answer[None]:
        def set_progress(now: int) -> None:
            if message is not None:
                check_text(message, "message")
            self._engine.progress(id, progress, message, keep_message, now)

        return self._change(set_progress)

    def release(self, session: str) -> Answer[int]:
        with self._lock:
            if not self.is_open:
                return Answer.of(0)
            now = self._now()
            for waiting in list(self._parked.values()):
                for parked in [parked for parked in waiting if parked.request.session == session]:
                    self._unpark(parked)
                    parked.answer.settle([])
            return self._answer(self._engine.release(session, now), now, durable=True)

    # -- query --------------------------------------------------------------------------------------------------------

    def job(self, id: str) -> Answer[JobView | None]:
        return self._query(lambda now: self._view(id, now))

    def _view(self, id: str, now: int) -> JobView | None:
        job = self._engine.jobs.get(id)
        if job is not None:
            view = self._engine.view(job, now)
            if view.result is None and view.state == "completed" and self._stored is not None:
                return dataclasses.replace(view, result=self._stored.results([id]).get(id))
            return view
        row = self._stored.jobs([id]).get(id) if self._stored is not None else None
        if row is None or self._stored is None:
            return None
        return self._stored_view(row, now, self._stored.results([id]).get(id))

    @staticmethod
    def _stored_view(row: StoredJob, now: int, result: bytes | None) -> JobView:
        job = job_from_row(row, tolerate_corrupt=True)
        return JobView(job, logical_state(row, now), result, failed_reason(job))

    def job_by_custom_id(self, custom_id: str) -> Answer[JobView | None]:
        def find(now: int) -> JobView | None:
            view = self._view(custom_id, now)
            return view if view is not None and view.job.custom_id == custom_id else None

        return self._query(find)

    def jobs(self, queue: str, states: Sequence[JobState], page: Page) -> Answer[list[JobView]]:
        def page_of(now: int) -> list[JobView]:
            engine = self._engine
            known = engine.queues.get(queue)
            jobs = engine.listed(queue, states, now)
            stored = self._stored
            wants_completed = not states or "completed" in states
            evicted = known is not None and known.completed_count > len(known.completed)
            if stored is not None and known is not None and wants_completed and evicted:
                wanted = known.completed_count if page.limit is None else page.offset + page.limit
                rows = stored.completed(queue, wanted, page.ascending)
                jobs += [job_from_row(row, tolerate_corrupt=True) for row in rows]
            chosen = engine.paged(jobs, page)
            views = [engine.view(job, now) for job in chosen]
            if stored is not None:
                missing = [view.job.id for view in views if view.state == "completed" and view.result is None]
                results = stored.results(missing)
                if results:
                    views = [
                        dataclasses.replace(view, result=results[view.job.id]) if view.job.id in results else view
                        for view in views
                    ]
            return views

        return self._query(page_of)

    def states(self, ids: Sequence[str]) -> Answer[list[JobState]]:
        def look_up(now: int) -> list[JobState]:
            engine = self._engine
            states: list[JobState] = []
            missing: list[str] = []
            for id in ids:
                job = engine.jobs.get(id)
                states.append("unknown" if job is None else engine.state_in_memory(job, now))  # type: ignore[arg-type]
                if job is None:
                    missing.append(id)
            if missing and self._stored is not None and engine.evicted:
                rows = self._stored.jobs(missing)
                for position, id in enumerate(ids):
                    if id in rows:
                        states[position] = logical_state(rows[id], now)
            return states

        return self._query(look_up)

    def results(self, ids: Sequence[str]) -> Answer[list[bytes | None]]:
        def look_up(now: int) -> list[bytes | None]:
            known = self._engine.results
            results = [known.get(id) for id in ids]
            if self._stored is not None:
                stored = self._stored.results([id for id, result in zip(ids, results, strict=True) if result is None])
                if stored:
                    results = [
                        result if result is not None else stored.get(id)
                        for id, result in zip(ids, results, strict=True)
                    ]
            return results

        return self._query(look_up)

    def progress_of(self, id: str) -> Answer[Progress]:
        return self._query(lambda now: self._engine.progress_of(id, now))

    def counts(self, queue: str) -> Answer[Counts]:
        return self._query(lambda now: self._engine.counts(queue, now))

    def count(self, queue: str) -> Answer[int]:
        return self._query(lambda now: self._engine.count(queue))

    def counts_per_priority(self, queue: str) -> Answer[dict[int, int]]:
        return self._query(lambda now: self._engine.counts_per_priority(queue))

    def queues(self) -> Answer[list[str]]:
        return self._query(lambda now: list(self._engine.queues))

    def wait(self, id: str, timeout_ms: int) -> Answer[tuple[bool, bytes | None]]:
        with self._lock:
            now = self._now()
            try:
                view = self._view(id, now)
            except CommandError as error:
                return Answer.failed(error)
            if view is None:
                return Answer.failed(NotFound("Job not found"))
            if view.state == "completed":
                return self._answer((True, view.result), now, durable=self._engine.marks.pending)
            if view.state in ("failed", "unknown") or timeout_ms <= 0:
                return Answer.of((False, None))
            answer: Answer[tuple[bool, bytes | None]] = Answer(self)
            wait = Wait(id, answer, now + timeout_ms)
            self._waits.setdefault(id, []).append(wait)
            self._engine.watched[id] = 1
            self._schedule(wait, wait.deadline)
            self._arm()
            return answer

    # -- control ------------------------------------------------------------------------------------------------------

    def pause(self, queue: str) -> Answer[None]:
        return self._change(lambda now: self._engine.pause(queue, now))

    def resume(self, queue: str) -> Answer[None]:
        return self._change(lambda now: self._engine.resume(queue, now))

    def is_paused(self, queue: str) -> Answer[bool]:
        return self._query(lambda now: queue in self._engine.queues and self._engine.queues[queue].paused)

    def drain_queue(self, queue: str) -> Answer[int]:
        return self._change(lambda now: self._engine.drain_queue(queue))

    def clean(self, queue: str, grace_ms: int | None, state: str | None, limit: int) -> Answer[list[str]]:
        def clean(now: int) -> list[str]:
            known = self._engine.queues.get(queue)
            evicted = known is not None and known.completed_count > len(known.completed)
            if state == "completed" and grace_ms is not None and self._stored is not None and evicted and limit > 0:
                self._stored.adopt_oldest(queue, now - grace_ms, limit)
            return self._engine.clean(queue, grace_ms, state, limit, now)

        return self._change(clean)

    def obliterate(self, queue: str) -> Answer[None]:
        return self._change(lambda now: self._engine.obliterate(queue))

    def cancel(self, id: str) -> Answer[None]:
        return self._change(lambda now: self._engine.cancel(id, now))

    def discard(self, id: str, token: str | None = None) -> Answer[None]:
        return self._change(lambda now: self._engine.discard(id, token, now))

    def promote(self, id: str) -> Answer[None]:
        return self._change(lambda now: self._engine.promote(id, now))

    def promote_jobs(self, queue: str, count: int | None = None) -> Answer[int]:
        return self._change(lambda now: self._engine.promote_jobs(queue, count, now))

    def change_delay(self, id: str, delay_ms: int, token: str | None = None) -> Answer[bool]:
        return self._change(lambda now: self._engine.change_delay(id, delay_ms, token, now))

    def move_to_wait(self, id: str, token: str | None = None) -> Answer[None]:
        return self._change(lambda now: self._engine.move_to_wait(id, token, now))

    def move_to_waiting_children(self, id: str, token: str | None = None) -> Answer[None]:
        def park(now: int) -> None:
            if self._stored is not None and self._engine.evicted:
                self._stored.adopt(self._dependencies_of(id))
            self._engine.move_to_waiting_children(id, token, now)

        return self._change(park)

    def change_priority(self, id: str, priority: int, lifo: bool | None = None) -> Answer[None]:
        return self._change(lambda now: self._engine.change_priority(id, priority, lifo, now))

    def update_data(self, id: str, data: bytes) -> Answer[None]:
        return self._change(lambda now: self._engine.update_data(id, data, now))

    def retry_completed(
        self, queue: str, id: str | None = None, count: int | None = None, before: int | None = None
    ) -> Answer[int]:
        def retry(now: int) -> int:
            engine = self._engine
            known = engine.queues.get(queue)
            if self._stored is not None and known is not None and known.completed_count > len(known.completed):
                if id is not None:
                    self._stored.adopt([id])
                else:
                    latest = before if before is not None else now
                    oldest = self._stored.completed_before(queue, latest, count if count is not None else 1_000_000)
                    self._stored.adopt(oldest)
            return engine.retry_completed_jobs(queue, id, count, before, now)

        return self._change(retry)

    def key_owner(self, queue: str, key: str) -> Answer[str | None]:
        return self._query(lambda now: self._engine.key_owner(queue, key, now))

    def remove_key(self, queue: str, key: str) -> Answer[int]:
        return self._change(lambda now: self._engine.remove_key(queue, key))

    def remove_job_key(self, id: str) -> Answer[bool]:
        return self._change(lambda now: self._engine.remove_job_key(id))

    # -- logs and metrics ---------------------------------------------------------------------------------------------

    def _load_logs(self, id: str) -> None:
        """Bring a log that only the journal holds into memory."""
        engine = self._engine
        if self._stored is not None and id in engine.logged and id not in engine.logs:
            logs = self._stored.logs(id)
            if logs is not None:
                engine.take_logs(id, logs)

    def add_log(self, id: str, message: str, level: str) -> Answer[None]:
        def add(now: int) -> None:
            if self._stored is not None and self._engine.evicted:
                self._stored.adopt([id])
            self._load_logs(id)
            check_text(message, "message")
            check_text(level, "level")
            self._engine.add_log(id, message, level, now)

        return self._change(add)

    def logs(self, id: str) -> Answer[list[LogEntry]]:
        def read(now: int) -> list[LogEntry]:
            self._load_logs(id)
            return list(self._engine.logs.get(id, ()))

        return self._query(read)

    def clear_logs(self, id: str, keep: int = 0) -> Answer[None]:
        def clear(now: int) -> None:
            self._load_logs(id)
            self._engine.clear_logs(id, keep)

        return self._change(clear)

    def trim_events(self, queue: str, keep: int) -> Answer[int]:
        return self._change(lambda now: self._engine.trim_events(queue, keep))

    def queue_metrics(self, queue: str, type: str, start: int = 0, end: int = -1) -> Answer[QueueMetrics]:
        return self._query(lambda now: self._engine.queue_metrics(queue, type, start, end))

    # -- flows --------------------------------------------------------------------------------------------------------

    def push_flow(self, flow: Sequence[FlowJob]) -> Answer[list[Job]]:
        def push(now: int) -> list[Job]:
            self._check_open()
            if self._buffer is not None:
                self._buffer.check_available()
            if self._stored is not None and self._engine.evicted:
                self._stored.adopt(member.id for member in flow)
            return self._engine.push_flow(flow, now)

        return self._change(push)

    def update_parent(self, child_id: str, parent_id: str) -> Answer[None]:
        def update(now: int) -> None:
            if self._stored is not None and self._engine.evicted:
                self._stored.adopt([child_id, *self._dependencies_of(parent_id)])
            self._engine.update_parent(child_id, parent_id, now)

        return self._change(update)

    def remove_child_dependency(self, child_id: str) -> Answer[bool]:
        return self._change(lambda now: self._engine.remove_child_dependency(child_id, now))

    def remove_unprocessed_children(self, parent_id: str) -> Answer[None]:
        return self._change(lambda now: self._engine.remove_unprocessed_children(parent_id, now))

    def children_values(self, id: str) -> Answer[dict[str, bytes]]:
        def read(now: int) -> dict[str, bytes]:
            engine = self._engine
            parent = engine.jobs.get(id)
            values = engine.children_values(id)
            if parent is None or self._stored is None or len(values) == len(parent.children_ids):
                return values
            stored = self._stored.results([child for child in parent.children_ids if child not in engine.results])
            rows = self._stored.jobs(stored)
            for child, result in stored.items():
                job = engine.jobs.get(child)
                queue = job.queue if job is not None else rows[child].queue if child in rows else None
                values[f"{queue}:{child}" if queue is not None else child] = result
            return values

        return self._query(read)

    def children_failures(self, id: str, mode: str) -> Answer[dict[str, str]]:
        return self._query(lambda now: self._engine.children_failures(id, mode))

    # -- limits and groups --------------------------------------------------------------------------------------------

    def set_rate_limit(
        self, queue: str, limit: float, duration_ms: int | None = None, ttl_ms: int | None = None
    ) -> Answer[None]:
        return self._change(lambda now: self._engine.set_rate_limit(queue, limit, duration_ms, ttl_ms, now))

    def clear_rate_limit(self, queue: str) -> Answer[None]:
        return self._change(lambda now: self._engine.clear_rate_limit(queue))

    def set_concurrency(self, queue: str, limit: float) -> Answer[None]:
        return self._change(lambda now: self._engine.set_concurrency(queue, limit))

    def clear_concurrency(self, queue: str) -> Answer[None]:
        return self._change(lambda now: self._engine.clear_concurrency(queue))

    def queue_limits(self, queue: str, max_jobs: int | None = None) -> Answer[QueueLimits]:
        return self._query(lambda now: self._engine.queue_limits(queue, max_jobs, now))

    def group_jobs_count(self, queue: str, group_id: str | None) -> Answer[int]:
        return self._query(lambda now: self._engine.group_jobs_count(queue, group_id))

    def group_active_count(self, queue: str, group_id: str) -> Answer[int]:
        return self._query(lambda now: self._engine.group_active_count(queue, group_id))

    def set_group_rate_limit(self, queue: str, group_id: str, maximum: int, duration_ms: int) -> Answer[None]:
        return self._change(lambda now: self._engine.set_group_rate_limit(queue, group_id, maximum, duration_ms))

    def group_rate_limit(self, queue: str, group_id: str) -> Answer[tuple[int, int] | None]:
        return self._query(lambda now: self._engine.group_rate_limit(queue, group_id))

    def remove_group_rate_limit(self, queue: str, group_id: str) -> Answer[bool]:
        return self._change(lambda now: self._engine.remove_group_rate_limit(queue, group_id))

    def group_rate_limit_ttl(self, queue: str, group_id: str, max_jobs: int | None = None) -> Answer[int]:
        return self._query(lambda now: self._engine.group_rate_limit_ttl(queue, group_id, max_jobs, now))

    def set_group_concurrency(self, queue: str, group_id: str, concurrency: int) -> Answer[None]:
        return self._change(lambda now: self._engine.set_group_concurrency(queue, group_id, concurrency))

    def group_concurrency(self, queue: str, group_id: str) -> Answer[int | None]:
        return self._query(lambda now: self._engine.group_concurrency(queue, group_id))

    def remove_group_concurrency(self, queue: str, group_id: str) -> Answer[bool]:
        return self._change(lambda now: self._engine.remove_group_concurrency(queue, group_id))

    def pause_group(self, queue: str, group_id: str) -> Answer[bool]:
        return self._change(lambda now: self._engine.pause_group(queue, group_id, True))

    def resume_group(self, queue: str, group_id: str) -> Answer[bool]:
        return self._change(lambda now: self._engine.pause_group(queue, group_id, False))

    def is_group_paused(self, queue: str, group_id: str) -> Answer[bool]:
        return self._query(lambda now: self._engine.is_group_paused(queue, group_id))

    def rate_limit_group(self, queue: str, group_id: str, duration_ms: int) -> Answer[None]:
        return self._change(lambda now: self._engine.rate_limit_group(queue, group_id, duration_ms, now))

    # -- webhooks -----------------------------------------------------------------------------------------------------

    def add_webhook(self, webhook: Webhook) -> Answer[None]:
        def add(now: int) -> None:
            self._check_open()
            self._engine.add_webhook(webhook)
            self._tell_webhooks()

        return self._change(add)

    def remove_webhook(self, id: str) -> Answer[None]:
        def remove(now: int) -> None:
            self._engine.remove_webhook(id)
            self._tell_webhooks()

        return self._change(remove)

    def set_webhook_enabled(self, id: str, enabled: bool) -> Answer[None]:
        def switch(now: int) -> None:
            if self._engine.set_webhook_enabled(id, enabled):
                self._tell_webhooks()

        return self._change(switch)

    def webhooks(self) -> Answer[list[Webhook]]:
        return self._query(lambda now: list(self._engine.webhooks.values()))

    def tally_webhooks(self, tallies: Sequence[WebhookTally]) -> Answer[None]:
        with self._lock:
            try:
                self._check_usable()
            except CommandError as error:
                return Answer.failed(error)
            self._engine.tally_webhooks(tallies)
            return self._answer(None, self._now(), durable=False)

    def watch_webhooks(self, listener: Callable[[Sequence[Webhook]], None]) -> Callable[[], None]:
        with self._lock:
            self._sequence += 1
            key = self._sequence
            self._webhook_watchers[key] = listener
            listener(list(self._engine.webhooks.values()))

        def stop() -> None:
            with self._lock:
                self._webhook_watchers.pop(key, None)

        return stop

    def _tell_webhooks(self) -> None:
        webhooks = list(self._engine.webhooks.values())
        for listener in list(self._webhook_watchers.values()):
            try:
                listener(webhooks)
            except Exception as error:
                self._log("warn", "Webhook listener failed", error=type(error).__name__)

    # -- schedules ----------------------------------------------------------------------------------------------------

    def upsert_schedule(self, request: Mapping[str, Any]) -> Answer[Entry]:
        return self._change(lambda now: self._engine.upsert_schedule(request, now))

    def schedule(self, name: str) -> Answer[Entry]:
        return self._query(lambda now: self._engine.schedule(name))

    def schedules(self) -> Answer[list[Entry]]:
        return self._query(lambda now: self._engine.schedules())

    def remove_schedule(self, name: str) -> Answer[None]:
        return self._change(lambda now: self._engine.remove_schedule(name))

    def preview_schedule(self, request: str | Mapping[str, Any], count: int) -> Answer[list[int]]:
        def runs(now: int) -> list[int]:
            if isinstance(request, str):
                return preview(self._engine.schedule(request), count)
            return self._scheduler.preview_request(request, now, count)

        return self._query(runs)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_letters(self, queue: str, count: int | None, filter: DlqFilter | None) -> Answer[list[DlqEntry]]:
        return self._query(lambda now: self._engine.dead_letters(queue, count, filter, now))

    def retry_dead_letters(
        self, queue: str, id: str | None = None, count: int | None = None, filter: DlqFilter | None = None
    ) -> Answer[int]:
        return self._change(lambda now: self._engine.retry_dead_letters(queue, id, count, filter, now))

    def remove_dead_letter(self, queue: str, id: str) -> Answer[bool]:
        return self._change(lambda now: self._engine.remove_dead_letter(queue, id))

    def purge_dead_letters(self, queue: str) -> Answer[int]:
        return self._change(lambda now: self._engine.purge_dead_letters(queue))

    def dlq_stats(self, queue: str) -> Answer[dict[str, Any]]:
        return self._query(lambda now: self._engine.dlq_stats(queue, now))

    def dlq_config(self, queue: str) -> Answer[DlqConfig]:
        return self._query(
            lambda now: self._engine.queues[queue].dlq_config if queue in self._engine.queues else DlqConfig()
        )

    def set_dlq_config(self, queue: str, config: DlqConfig) -> Answer[None]:
        return self._change(lambda now: self._engine.set_dlq_config(queue, config, now))

    def stall_config(self, queue: str) -> Answer[StallConfig]:
        return self._query(
            lambda now: self._engine.queues[queue].stall if queue in self._engine.queues else StallConfig()
        )

    def set_stall_config(self, queue: str, config: StallConfig) -> Answer[None]:
        return self._change(lambda now: self._engine.set_stall_config(queue, config))
