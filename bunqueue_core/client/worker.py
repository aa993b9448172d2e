# Written by tools/async_to_sync.py from worker_async.py: edit that file and run the tool, not this one.
"""The worker: takes jobs, runs a processor on them, and tells the broker what became of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from bunqueue_core.client._acompat import Inbox, can_spawn, settled
from bunqueue_core.client._events import LOGGER
from bunqueue_core.client._session import TelemetryHandler, TlsOption
from bunqueue_core.client._stop_signals import EXIT_CODE_BASE, StopSignals
from bunqueue_core.client._target import StorageOption, Target, find_target, queue_key
from bunqueue_core.client._worker_options import WorkerOptions
from bunqueue_core.client.connection import Connection
from bunqueue_core.client.connection_pool import ConnectionPool
from bunqueue_core.client.job import Job
from bunqueue_core.client.queue_events import QueueEvents
from bunqueue_core.client.worker_loop import WorkerLoop
from bunqueue_core.model.errors import LeaseLost
from bunqueue_core.model.rules import check_queue_name


class Worker(WorkerLoop):
    """Processes the jobs of a queue.

    It pulls as many jobs as it has free slots, runs the processor on each, acknowledges what returns and fails what raises, and
    renews the leases of the jobs that it has, also while a processor blocks its event loop. A job is processed at least once: when
    a worker vanishes, or its lease ends, the job is delivered again.

    Events (:meth:`on`): ``ready()``, ``active(job)``, ``completed(job, result)``, ``failed(job, error)`` (each attempt),
    ``progress(job, progress)``, ``log(job, message)``, ``stalled(job_id, "active")`` (of any worker of the queue), ``drained()``,
    ``cancelled({"jobId", "reason"})``, ``error(error)``, ``closed()``. ``completed`` and ``failed`` come after the broker has
    confirmed. ``failed`` and ``error`` go to the logger ``bunqueue`` where nobody listens to them: a line each, at its level
    DEBUG with the traceback of the processor.

    Args:
        queue: name of the queue.
        processor: called with the job, and with a context whose ``signal`` says when to stop if it takes a second argument. Its
            return value is the job's result, what it raises the failure. ``UnrecoverableError``: no more attempts;
            ``DelayedError``: back to delayed, uncharged; ``RateLimitError``: the job has been handed back already. Both plain and
            coroutine functions will do.
        host: name or address of the server.
        port: its TCP port.
        token: sent with ``Auth``; by default taken from ``BQ_TOKEN`` or ``BUNQUEUE_TOKEN``.
        tls: see :class:`Connection`.
        concurrency: jobs that may run at once.
        batch_size: jobs that are pulled at once at most, 1..1000; by default as many as there are free slots.
        poll_timeout_ms: how long the broker waits for jobs when there are none, 0..30,000.
        lock_ttl_ms: length of a lease; None for the broker's default.
        heartbeat_interval_s: seconds between heartbeats; leases are renewed at least three times in their length. 0 disables both.
        autorun: start at once. Without a running event loop an asynchronous worker starts with :meth:`run` or :meth:`start`.
        name: name under which the worker registers; by default its id.
        ack_batch: ``{"max_size": 50, "max_delay_ms": 5}`` lets acknowledgements wait for each other; by default those that come
            while others are under way leave together, and none waits.
        on_telemetry: called with events of the connection.
        embedded: True for a queue of this process; see :class:`Queue`.
        data_path: the database file of an embedded queue.
        storage: its storage in place of a path; see :class:`Queue`.
        connection: a connection to share, or a mapping of its arguments.
        command_timeout: seconds that a command may take.
        prefix_key: goes before the name of the queue.
        use_locks: False pulls without leases: whoever has the job's id may finish it.
        limiter: ``{"max", "duration"}``: at most ``max`` starts in ``duration`` ms; with ``group_key``: at most ``max`` running
            jobs of one value of ``data[group_key]``.
        batch: ``{"size", "min_size": 1, "timeout": 0, "group_affinity": False}``: the processor gets the first job of a batch,
            whose ``get_batch()`` gives all; what it returns is everybody's result, what it raises everybody's failure, unless a
            job says ``set_as_failed(error)``. It waits for ``min_size`` jobs, at most ``timeout`` ms if that is not 0; with
            ``group_affinity`` no batch mixes groups. A batch takes one slot.
        group: ``{"concurrency", "limit": {"max", "duration"}}``: limits that the broker applies to groups without their own.
        skip_lock_renewal: True renews no leases.
        skip_stalled_check: True tells no ``stalled`` events.
        drain_delay_ms: pause after a pull that found nothing and was not to wait.
        max_stalled_count: accepted; the queue's policy rules.
        remove_on_complete: True removes the jobs that this worker completes.
        remove_on_fail: True removes the jobs that fail for good here, instead of keeping dead letters.
        pool_size: number of connections to the server; see :class:`ConnectionPool`.

    Raises:
        ValueError: an argument is out of its bounds, or the arguments contradict each other.
    """

    def __init__(
        self,
        queue: str,
        processor: Callable[..., Any],
        *,
        host: str = "localhost",
        port: int = 6789,
        token: str | None = None,
        tls: TlsOption = None,
        concurrency: int = 4,
        batch_size: int | None = None,
        poll_timeout_ms: int = 5000,
        lock_ttl_ms: float | None = 30000,
        heartbeat_interval_s: float = 10.0,
        autorun: bool = True,
        name: str | None = None,
        ack_batch: Mapping[str, Any] | None = None,
        on_telemetry: TelemetryHandler | None = None,
        embedded: bool | None = None,
        data_path: str | os.PathLike[str] | None = None,
        storage: StorageOption = None,
        connection: Connection | ConnectionPool | Mapping[str, Any] | None = None,
        command_timeout: float | None = 10.0,
        prefix_key: str = "",
        use_locks: bool = True,
        limiter: Mapping[str, Any] | None = None,
        batch: Mapping[str, Any] | None = None,
        group: Mapping[str, Any] | None = None,
        skip_lock_renewal: bool = False,
        skip_stalled_check: bool = False,
        drain_delay_ms: float = 50,
        max_stalled_count: int = 1,
        remove_on_complete: Any = None,
        remove_on_fail: Any = None,
        pool_size: int = 1,
    ) -> None:
        options = WorkerOptions.checked(
            batch_size=batch_size,
            poll_timeout_ms=poll_timeout_ms,
            lock_ttl_ms=lock_ttl_ms,
            heartbeat_interval_s=heartbeat_interval_s,
            use_locks=use_locks,
            skip_lock_renewal=skip_lock_renewal,
            drain_delay_ms=drain_delay_ms,
            ack_batch=ack_batch,
            remove_on_complete=remove_on_complete,
            remove_on_fail=remove_on_fail,
            group=group,
        )
        key = check_queue_name(queue_key(prefix_key, queue))
        target = find_target(
            host=host,
            port=port,
            token=token,
            tls=tls,
            connection=connection,
            command_timeout=command_timeout,
            on_telemetry=on_telemetry,
            embedded=embedded,
            data_path=data_path,
            storage=storage,
            pool_size=pool_size,
        )
        super().__init__(target, key, processor, concurrency, options, limiter, batch, name)
        #: The queue's name without the prefix.
        self.queue_name = queue
        if not skip_stalled_check:
            stalls = QueueEvents.of_target(target, key)
            stalls.on("stalled", lambda payload: self.emit("stalled", payload["jobId"], "active"))
            self._companions.append(stalls)
        if autorun and can_spawn():
            self.start()

    @classmethod
    def of_target(
        cls, target: Target, key: str, processor: Callable[..., Any], concurrency: int, queue_name: str
    ) -> Worker:
        """A worker on the queue ``key`` where ``target`` leads, not started; for clients that work on a user's behalf."""
        worker = cls.__new__(cls)
        WorkerLoop.__init__(worker, target, key, processor, concurrency, WorkerOptions.checked(), None, None, None)
        worker.queue_name = queue_name
        return worker

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work in the background. Does nothing when it has begun, or the worker is closing."""
        if self._started or self._closing:
            return
        self._started = True
        self._watch_stalls()
        self._crew.begin()

    def run(self, *, handle_signals: bool = True) -> None:
        """Work until the worker is closed, or the program is told to end.

        The first SIGINT (Ctrl-C) or SIGTERM closes the worker in order, as :meth:`close` does, and this returns. The second one
        does not wait for running jobs any more.

        Args:
            handle_signals: False leaves signals alone. So does a handler that the program has set, or another thread than the main
                one.

        Raises:
            BunqueueError: the broker refuses pulls or the token for good, or cannot be opened, and nobody listens to ``error``.
            SystemExit: a second signal came; the code is 128 and its number.
        """
        news: Inbox[int] = Inbox()
        stopping = False
        with StopSignals(news.put, handle_signals):
            self.start()
            self.once("closed", lambda: news.put(0))
            if self._closed.is_set():
                news.put(0)
            while number := news.get():
                if stopping:
                    self.close(force=True)
                    raise SystemExit(EXIT_CODE_BASE + number)
                stopping = True
                if self._running:
                    LOGGER.warning(
                        "worker of '%s' stops when its %d running jobs have ended; a second signal ends it at once",
                        self.queue_key,
                        self._running,
                    )
                self.close(timeout=0)
        if self._failure is not None:
            raise self._failure

    def pause(self) -> None:
        """Take no more jobs. Those that run go on, and keep their leases."""
        self._paused = True
        self._end_pull()

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._paused = False
        self._wake.set()

    def is_paused(self) -> bool:
        """Whether it takes no jobs because of :meth:`pause`."""
        return self._paused

    def is_running(self) -> bool:
        """Whether it has begun and is not closing."""
        return self._started and not self._closing

    def is_closed(self) -> bool:
        """Whether it is closed."""
        return self._closed.is_set()

    def wait_until_ready(self, timeout: float | None = 10.0) -> None:
        """Wait until the worker is registered with the broker.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: that took longer.
        """
        if not self._ready.wait(timeout):
            raise TimeoutError("worker did not become ready in time")
        if self._failure is not None:
            raise self._failure

    @property
    def concurrency(self) -> int:
        """Jobs that may run at once. It may be changed at any time; values below 1 count as 1."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        self._concurrency = max(1, int(value))
        self._crew.release_loop()
        self._wake.set()

    def on(self, event: str, listener: Callable[..., Any]) -> Worker:
        """Call ``listener`` each time ``event`` happens; ``ready`` at once if it has happened. Returns this object."""
        super().on(event, listener)
        if event == "stalled" and self._started:
            self._watch_stalls()
        if event == "ready" and self._ready.is_set() and self._failure is None:
            self._call(event, listener, ())
        return self

    def _watch_stalls(self) -> None:
        if self.listens("stalled") and can_spawn():
            for companion in self._companions:
                companion.start()

    def close(self, timeout: float | None = None, force: bool = False) -> bool:
        """Stop: take no more jobs, give back those that were not started, wait for those that run, report their outcomes.

        Args:
            timeout: seconds to wait; None waits as long as it takes.
            force: do not wait for running jobs: their outcomes are given up, their leases end by themselves. Also cuts short a
                close that is under way.

        Returns:
            Whether the worker is closed. False after ``timeout``, or when it is called by one of its own jobs or listeners: it
            closes when they have ended.
        """
        self._closing = True
        if force:
            self._forced = True
        if not self._started:
            self._started = True
            self._shut()
            return True
        self._end_pull()
        if force:
            self._crew.release_loop()
        self._wake.set()
        self._idle.set()
        if self._crew.inside():
            return False
        return self._closed.wait(timeout)

    def stop(self, timeout: float | None = None, force: bool = False) -> bool:
        """The same as :meth:`close`."""
        return self.close(timeout, force)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- by hand ------------------------------------------------------------------------------------------------------

    def get_next_job(self, token: str | None = None) -> Job | None:
        """Take one job without processing it; None if there is none.

        Args:
            token: name of the owner of the lease; by default this worker's id.
        """
        verbs = self._open()
        request = self._request(1, 0)
        if token is not None and request.owner is not None:
            request = replace(request, owner=token)
        claims = settled(verbs.pull(request))
        if not claims:
            return None
        jobs, sooner = self._lease(claims, verbs)
        if sooner:
            self._tick.set()
        job: Job = jobs[0]
        with self._mutex:
            self._by_hand[job.id] = job
        return job

    def process_job_manually(self, job: Job, token: str | None = None) -> None:
        """Run the processor on a job of :meth:`get_next_job` and report the outcome.

        Args:
            job: the job.
            token: its lock token; by default the one it came with.

        Raises:
            LeaseLost: no token is known, or it is not the one of this worker's delivery.
        """
        own = self._leases.get(job.id)
        token = token or job.token
        if self._options.use_locks and token is None:
            raise LeaseLost(f"Lock token required for manually processed job {job.id}")
        if own is not job or token != job.token:
            raise LeaseLost(f"Invalid or expired lock token for job {job.id}")
        if self._limiter is not None:
            self._limiter.started()
        with self._mutex:
            self._by_hand.pop(job.id, None)
        self._run_here(job)
        self._flush()

    def extend_job_locks(self, job_ids: Sequence[str], tokens: Sequence[str | None], duration_ms: int) -> int:
        """Let several leases end ``duration_ms`` ms from now. Returns how many were renewed.

        Raises:
            ValueError: the lists differ in length.
        """
        if len(job_ids) != len(tokens):
            raise ValueError("jobIds and tokens arrays must have the same length")
        if not job_ids:
            return 0
        fields = {"ids": list(job_ids), "tokens": list(tokens), "durations": [duration_ms] * len(job_ids)}
        verbs = self._endpoint.open()
        return int((settled(verbs.command("ExtendLocks", fields))).get("count") or 0)

    def rate_limit_group(self, job: Job, duration_ms: int) -> None:
        """Let the group of ``job`` start nothing for ``duration_ms`` ms and give the job back; raise ``RateLimitError`` then.

        Raises:
            ValueError: the job has no group, or the duration is not a positive integer.
        """
        group = job.group_id
        if group is None:
            raise ValueError("Cannot rate limit a job without a group")
        if isinstance(duration_ms, bool) or not isinstance(duration_ms, int) or duration_ms < 1:
            raise ValueError("duration must be a positive safe integer")
        verbs = self._endpoint.open()
        fields = {"queue": self.queue_key, "groupId": group, "duration": duration_ms}
        settled(verbs.command("RateLimitGroup", fields))
        job.move_to_wait()
