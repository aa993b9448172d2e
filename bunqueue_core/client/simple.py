# Written by tools/async_to_sync.py from simple_async.py: edit that file and run the tool, not this one.
"""The simple mode: queue and worker in one object, with routes, middleware, retries, a circuit breaker and more."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Unpack

from bunqueue_core.client._acompat import Event, can_spawn, finished, spawn
from bunqueue_core.client._cancel_signal import CancelSignal, ProcessorContext
from bunqueue_core.client._events import LOGGER
from bunqueue_core.client._simple_base import (
    CONNECTION,
    QUEUE,
    WORKER,
    Breaker,
    expired_ms,
    merged_options,
    read_options,
    retry_delay_ms,
    trigger_rule,
)
from bunqueue_core.client.job import Job
from bunqueue_core.client.job_options import AnyJobOptions
from bunqueue_core.client.queue import Queue
from bunqueue_core.client.worker import Worker
from bunqueue_core.model.errors import BunqueueError, DelayedError, RateLimitError, UnrecoverableError

#: Errors that say what is to become of the job; trying again in place would be against their word.
DECIDED = (UnrecoverableError, DelayedError, RateLimitError)


class _Waiting:
    """A job that waits for its batch."""

    def __init__(self, job: Job, since: float) -> None:
        self.job = job
        self.since = since
        self.done = Event()
        self.result: Any = None
        self.error: BaseException | None = None


class Bunqueue:
    """A queue and its worker in one object.

    Args:
        name: name of the queue.
        **opts: exactly one of

            - ``processor``: a function of the job;
            - ``routes``: ``{job name: function}``;
            - ``batch``: ``{"size", "timeout": 5000, "processor": function of a list of jobs that returns a list of results}``;

            where the jobs are: ``host``, ``port``, ``token``, ``tls``, ``connection``, ``embedded``, ``data_path``,
            ``storage``, ``prefix_key``, ``pool_size``;
            for the queue: ``default_job_options``, ``auto_batch``;
            for the worker: ``concurrency``, ``batch_size``, ``poll_timeout_ms``, ``heartbeat_interval_s``, ``autorun``,
            ``remove_on_complete``, ``remove_on_fail``, ``rate_limit`` (``{"max", "duration", "group_key"}``);
            and features, each off unless it is given (times in ms):

            - ``retry``: ``{"max_attempts": 3, "delay": 1000, "strategy": "exponential" | "fixed" | "jitter" | "fibonacci",
              "custom_backoff": f(attempt, error), "retry_if": f(error, attempt)}``: tries again at once, within the delivery;
            - ``circuit_breaker``: ``{"threshold": 5, "reset_timeout": 30000, "on_open", "on_close", "on_half_open"}``;
            - ``ttl``: ``{"default_ttl": 0, "per_name": {}}``: jobs that are older fail when their turn comes;
            - ``priority_aging``: ``{"interval": 60000, "min_age": 60000, "boost": 1, "max_priority": 100, "max_scan": 100}``;
            - ``deduplication``: ``{"ttl": 3600000, "extend", "replace"}`` by name and payload; ``debounce``: ``{"ttl"}`` by name;
            - ``dlq``: the dead-letter policy.

    Attributes:
        name: name of the queue.
        queue: the queue.
        worker: the worker.

    Raises:
        TypeError: an option is not known.
        ValueError: an option is out of its bounds, or not exactly one way of processing is given.
    """

    def __init__(self, name: str, **opts: Any) -> None:
        options = read_options(opts)
        self.name = name
        self._middlewares: list[Callable[..., Any]] = []
        self._rules: list[dict[str, Any]] = []
        self._retry = options.get("retry")
        self._ttl = options.get("ttl")
        self._deduplication = options.get("deduplication")
        self._debounce = options.get("debounce")
        self._aging = options.get("priority_aging")
        self._batch = options.get("batch")
        self._routes: Mapping[str, Callable[..., Any]] | None = options.get("routes")
        self._processor: Callable[..., Any] | None = options.get("processor")
        self._breaking = options.get("circuit_breaker")
        self._breaker = Breaker(self._breaking["threshold"]) if self._breaking else None
        self._mutex = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._cancel_at: dict[str, float] = {}
        self._batch_begun = Event()
        self._ended = Event()
        self._tasks: list[Any] = []
        where = {key: options[key] for key in CONNECTION if key in options}
        self.queue = Queue(name, **where, **{key: options[key] for key in QUEUE if key in options})
        self.worker = Worker(
            name,
            self._process,
            limiter=options.get("rate_limit", options.get("limiter")),
            **where,
            **{key: options[key] for key in WORKER if key in options and key != "autorun"},
            autorun=False,
        )
        self._dlq = options.get("dlq")
        if self._dlq:
            self.worker.on("ready", self._apply_dlq)
        if options.get("autorun", True) and can_spawn():
            self.start()

    # -- processing ---------------------------------------------------------------------------------------------------

    def _process(self, job: Job, context: ProcessorContext) -> Any:
        breaker = self._breaker
        if breaker is not None and breaker.state == "open":
            raise RuntimeError("Circuit breaker is open")
        if self._ttl is not None:
            age = expired_ms(self._ttl, job.name, job.created_at, time.time_ns() // 1_000_000)
            if age is not None:
                raise RuntimeError(f"Job expired (age: {age}ms)")
        try:
            result = self._attempt(job, context.signal)
        except BaseException:
            if breaker is not None and breaker.failed():
                self._opened(breaker)
            raise
        finally:
            self._cancel_at.pop(job.id, None)
        if breaker is not None and breaker.succeeded():
            self._notify("on_close")
        return result

    def _attempt(self, job: Job, signal: CancelSignal) -> Any:
        config = self._retry
        attempt = 1
        while True:
            try:
                return self._through(job, signal, 0)
            except Exception as error:
                if config is None or attempt >= config["max_attempts"] or signal.aborted or isinstance(error, DECIDED):
                    raise
                retry_if = config["retry_if"]
                if retry_if is not None and not retry_if(error, attempt):
                    raise
                pause = retry_delay_ms(config, attempt, error, random.random)
            stopped = Event()
            signal.on_abort(lambda reason, stopped=stopped: stopped.set())  # type: ignore[misc]
            if stopped.wait(max(0.0, pause / 1000)):
                raise RuntimeError("Job cancelled")
            attempt += 1

    def _through(self, job: Job, signal: CancelSignal, step: int) -> Any:
        """Run the middleware from number ``step`` on, the last of which runs the processor."""
        if signal.aborted:
            raise RuntimeError("Job cancelled")
        if step < len(self._middlewares):

            def following() -> Any:
                return self._through(job, signal, step + 1)

            return self.worker._crew.invoke(self._middlewares[step], job, following)
        if self._batch is not None:
            return self._in_batch(job)
        function = self._processor
        if function is None:
            function = (self._routes or {}).get(job.name)
            if function is None:
                raise ValueError(f'No route for job "{job.name}" in queue "{self.name}"')
        return self.worker._crew.invoke(function, job)

    def use(self, middleware: Callable[..., Any]) -> Bunqueue:
        """Wrap processing: ``middleware(job, next)`` calls ``next()`` for the rest. The first one is outermost."""
        self._middlewares.append(middleware)
        return self

    def _background(self, purpose: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Run ``function`` beside everything else; whoever looks after it until it ends is this object."""
        self._tasks = [task for task in self._tasks if not finished(task)]
        self._tasks.append(spawn(f"bunqueue-{self.name}-{purpose}", function, *arguments))

    # -- batches ------------------------------------------------------------------------------------------------------

    def _in_batch(self, job: Job) -> Any:
        assert self._batch is not None
        waiting = _Waiting(job, time.monotonic())
        with self._mutex:
            self._waiting.append(waiting)
            full = len(self._waiting) >= self._batch["size"]
        if full or self._ended.is_set():
            self._run_batch()
        else:
            self._batch_begun.set()
        waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    def _run_batch(self) -> None:
        assert self._batch is not None
        with self._mutex:
            batch, self._waiting = self._waiting, []
        if not batch:
            return
        try:
            results = self.worker._crew.invoke(self._batch["processor"], [waiting.job for waiting in batch])
        except BaseException as error:
            for waiting in batch:
                waiting.error = error
        else:
            for waiting, result in zip(batch, results or (), strict=False):
                waiting.result = result
        for waiting in batch:
            waiting.done.set()

    def _complete_batches(self) -> None:
        """Run batches that do not fill up in time."""
        assert self._batch is not None
        while not self._ended.is_set():
            self._batch_begun.wait()
            self._batch_begun.clear()
            while self._waiting and not self._ended.is_set():
                first = self._waiting[0]
                left = first.since + self._batch["timeout"] / 1000 - time.monotonic()
                if left <= 0:
                    self._run_batch()
                else:
                    self._ended.wait(left)

    # -- circuit breaker ----------------------------------------------------------------------------------------------

    def _opened(self, breaker: Breaker) -> None:
        self.worker.pause()
        self._notify("on_open", breaker.failures)
        self._background("breaker", self._half_open_later, breaker, breaker.period)

    def _half_open_later(self, breaker: Breaker, period: int) -> None:
        assert self._breaking is not None
        if not self._ended.wait(self._breaking["reset_timeout"] / 1000) and breaker.half_open(period):
            self._notify("on_half_open")
            self.worker.resume()

    def _notify(self, callback: str, *arguments: Any) -> None:
        function = self._breaking[callback] if self._breaking else None
        if function is None:
            return
        try:
            self.worker._crew.invoke(function, *arguments)
        except Exception:
            LOGGER.exception("%s failed", callback)

    def get_circuit_state(self) -> str:
        """``closed``, ``open`` or ``half-open``; ``closed`` without a breaker."""
        return self._breaker.state if self._breaker is not None else "closed"

    def reset_circuit(self) -> None:
        """Close the breaker by hand and resume the worker."""
        if self._breaker is not None and self._breaker.reset():
            self.worker.resume()

    # -- expiry, aging, cancelling ------------------------------------------------------------------------------------

    def set_default_ttl(self, ttl_ms: float) -> None:
        """Change the age after which jobs fail; without the option ``ttl`` this does nothing."""
        if self._ttl is not None:
            self._ttl["default_ttl"] = ttl_ms

    def set_name_ttl(self, name: str, ttl_ms: float) -> None:
        """Change the age after which jobs of that name fail; without the option ``ttl`` this does nothing."""
        if self._ttl is not None:
            self._ttl["per_name"] = {**self._ttl["per_name"], name: ttl_ms}

    def _age_priorities(self) -> None:
        assert self._aging is not None
        while not self._ended.wait(self._aging["interval"] / 1000):
            try:
                self._age_once()
            except BunqueueError as error:
                LOGGER.warning("priorities of '%s' could not be raised: %s", self.name, error)

    def _age_once(self) -> None:
        config = self._aging
        assert config is not None
        now = time.time_ns() // 1_000_000
        jobs = self.queue.get_jobs(["waiting", "prioritized"], 0, config["max_scan"])
        for job in jobs:
            raised = min(job.priority + config["boost"], config["max_priority"])
            if now - (job.created_at or now) >= config["min_age"] and raised > job.priority:
                try:
                    job.change_priority(raised)
                except BunqueueError:
                    continue  # it was taken meanwhile

    def cancel(self, job_id: str, grace_ms: float = 0) -> None:
        """Ask the processor of a job to stop, after ``grace_ms`` ms; the earliest request counts.

        Without effect for jobs that this worker does not have.
        """
        if grace_ms <= 0:
            self.worker.cancel_job(job_id, "Job cancelled")
            return
        if job_id not in self.worker._leases:
            return
        due = time.monotonic() + grace_ms / 1000
        with self._mutex:
            if self._cancel_at.get(job_id, due + 1) <= due:
                return
            self._cancel_at[job_id] = due
        self._background("cancel", self._cancel_later, job_id, due)

    def _cancel_later(self, job_id: str, due: float) -> None:
        if not self._ended.wait(max(0.0, due - time.monotonic())) and self._cancel_at.get(job_id) == due:
            self.worker.cancel_job(job_id, "Job cancelled")

    def is_cancelled(self, job_id: str) -> bool:
        """Whether the processor of a job that this worker has was asked to stop."""
        return self.worker.is_job_cancelled(job_id)

    def get_signal(self, job_id: str) -> CancelSignal | None:
        """The signal of a job that this worker has."""
        return self.worker._signals.get(job_id)

    # -- triggers -----------------------------------------------------------------------------------------------------

    def trigger(self, rule: Mapping[str, Any]) -> Bunqueue:
        """Add a job when another one ends.

        Args:
            rule: ``{"on": job name, "event": "completed" | "failed", "create": job name, "data": f(result or error, job),
                "condition": f(result or error, job), "opts": job options}``. What goes wrong in it is logged.
        """
        if not self._rules:
            self.worker.on("completed", self._after_completed)
            self.worker.on("failed", self._after_failed)
        self._rules.append(trigger_rule(rule))
        return self

    def _after_completed(self, job: Job, result: Any) -> None:
        self._fire("completed", job, result)

    def _after_failed(self, job: Job, error: Any) -> None:
        self._fire("failed", job, error)

    def _fire(self, event: str, job: Job, value: Any) -> None:
        for rule in self._rules:
            if rule["on"] != job.name or rule.get("event", "completed") != event:
                continue
            try:
                condition, data = rule.get("condition"), rule.get("data")
                if condition is None or condition(value, job):
                    self.add(rule["create"], data(value, job) if data else None, **(rule.get("opts") or {}))
            except Exception:
                LOGGER.exception("a trigger on '%s' failed", rule["on"])

    # -- the queue ----------------------------------------------------------------------------------------------------

    def add(self, name: str, data: Any = None, **options: Unpack[AnyJobOptions]) -> Job:
        """Add a job; see :meth:`Queue.add`."""
        merged = merged_options(name, data, options, self._deduplication, self._debounce)
        return self.queue.add(name, data, **merged)

    def add_bulk(self, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Add jobs, all or none; see :meth:`Queue.add_bulk`."""
        entries = []
        for job in jobs:
            name, data = job.get("name", "default"), job.get("data")
            own = {key: value for key, value in job.items() if key not in ("name", "data")}
            merged = merged_options(name, data, own, self._deduplication, self._debounce)
            entries.append({"name": name, "data": data, **merged})
        return self.queue.add_bulk(entries)

    def get_job(self, job_id: str) -> Job | None:
        """The job of that id, None if there is none."""
        return self.queue.get_job(job_id)

    def get_job_counts(self) -> dict[str, int]:
        """Number of jobs by state."""
        return self.queue.get_job_counts()

    def count(self) -> int:
        """Number of queued jobs."""
        return self.queue.count()

    def cron(
        self,
        scheduler_id: str,
        pattern: str,
        data: Any = None,
        timezone: str | None = None,
        limit: int | None = None,
        job_opts: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a job named ``scheduler_id`` whenever the cron expression says; see :meth:`Queue.upsert_job_scheduler`."""
        repeat = {"pattern": pattern, "timezone": timezone, "limit": limit}
        self._schedule(scheduler_id, repeat, data, job_opts)

    def every(
        self,
        scheduler_id: str,
        interval_ms: int,
        data: Any = None,
        limit: int | None = None,
        job_opts: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a job named ``scheduler_id`` every ``interval_ms`` ms; see :meth:`Queue.upsert_job_scheduler`."""
        self._schedule(scheduler_id, {"every": interval_ms, "limit": limit}, data, job_opts)

    def _schedule(
        self, scheduler_id: str, repeat: Mapping[str, Any], data: Any, job_opts: Mapping[str, Any] | None
    ) -> None:
        template = {"name": scheduler_id, "data": data, "opts": job_opts}
        self.queue.upsert_job_scheduler(scheduler_id, repeat, template)

    def remove_cron(self, scheduler_id: str) -> None:
        """Remove a schedule."""
        self.queue.remove_job_scheduler(scheduler_id)

    def list_crons(self) -> list[dict[str, Any]]:
        """Schedules of this queue, the next one first."""
        return self.queue.get_job_schedulers(asc=True)

    def get_dlq(self, count: int | None = None) -> list[dict[str, Any]]:
        """Records of the dead jobs, oldest first."""
        return self.queue.get_dlq(count)

    def get_dlq_stats(self) -> dict[str, Any]:
        """Figures of the dead letters."""
        return self.queue.get_dlq_stats()

    def retry_dlq(self, job_id: str | None = None, count: int | None = None) -> int:
        """Send dead jobs back with fresh attempts. Returns their number."""
        return self.queue.retry_dlq(job_id, count)

    def purge_dlq(self) -> int:
        """Remove all dead letters. Returns their number."""
        return self.queue.purge_dlq()

    def set_dlq_config(self, config: Mapping[str, Any]) -> None:
        """Change the dead-letter policy."""
        self.queue.set_dlq_config(config)

    def get_dlq_config(self) -> dict[str, Any]:
        """The dead-letter policy."""
        return self.queue.get_dlq_config()

    def _apply_dlq(self) -> None:
        self.queue.set_dlq_config(self._dlq or {})

    def set_global_rate_limit(self, max_jobs: int, duration_ms: int | None = None) -> None:
        """Let all workers of the queue together start at most ``max_jobs`` per ``duration_ms``."""
        self.queue.set_global_rate_limit(max_jobs, duration_ms)

    def remove_global_rate_limit(self) -> None:
        """Undo :meth:`set_global_rate_limit`."""
        self.queue.remove_global_rate_limit()

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work in the background. Does nothing when it has begun."""
        if self.worker.is_running() or self.worker.is_closed():
            return
        if self._batch is not None:
            self._background("batch", self._complete_batches)
        if self._aging is not None:
            self._background("aging", self._age_priorities)
        self.worker.start()

    def on(self, event: str, listener: Callable[..., Any]) -> Bunqueue:
        """Listen to the worker; see :class:`Worker`."""
        self.worker.on(event, listener)
        return self

    def once(self, event: str, listener: Callable[..., Any]) -> Bunqueue:
        """Listen to the worker's next such event."""
        self.worker.once(event, listener)
        return self

    def off(self, event: str, listener: Callable[..., Any]) -> Bunqueue:
        """Stop listening."""
        self.worker.off(event, listener)
        return self

    def pause(self) -> None:
        """Pause the queue and this worker."""
        self.worker.pause()
        self.queue.pause()

    def resume(self) -> None:
        """Resume the queue and this worker."""
        self.queue.resume()
        self.worker.resume()

    def is_running(self) -> bool:
        """Whether the worker has begun and is not closing."""
        return self.worker.is_running()

    def is_paused(self) -> bool:
        """Whether the worker is paused."""
        return self.worker.is_paused()

    def is_closed(self) -> bool:
        """Whether it is closed."""
        return self.worker.is_closed()

    def close(self, force: bool = False) -> None:
        """Stop: timers end, an unfinished batch runs, processors are told to stop, worker and queue close. Idempotent.

        Args:
            force: do not wait for running jobs.
        """
        self._ended.set()
        self._batch_begun.set()
        if self._batch is not None and not force:
            self._run_batch()
        self.worker.cancel_all_jobs("Job cancelled")
        self.worker.close(force=force)
        self.queue.close()

    def __enter__(self) -> Bunqueue:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
