# Written by tools/async_to_sync.py from worker_async.py: edit that file and run the tool, not this one.
"""The worker: takes jobs, runs a processor on them, and tells the broker what became of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from bunqueue_core.answer import Answer
from bunqueue_core.client._acompat import Event, can_spawn, settled, spawn
from bunqueue_core.client._crew_threads import ThreadCrew
from bunqueue_core.client._session import TelemetryHandler, TlsOption
from bunqueue_core.client._target import find_target, queue_key
from bunqueue_core.client._verbs import Verbs
from bunqueue_core.client._worker_base import (
    EMPTY_POLL_PAUSE_S,
    PULL_BACKOFF_S,
    Gatherer,
    Outcome,
    Postponed,
    WorkerBase,
    WorkerOptions,
)
from bunqueue_core.client.connection import Connection
from bunqueue_core.client.endpoint import Endpoint
from bunqueue_core.client.job import Job
from bunqueue_core.client.queue_events import QueueEvents
from bunqueue_core.model.errors import BunqueueError, CommandError, ConnectionClosedError, LeaseLost
from bunqueue_core.model.requests import Ack, Acknowledged, Failure
from bunqueue_core.model.rules import check_queue_name

#: No generation of a connection.
NOWHERE = -1

#: Outcomes under way: the answer that confirms them, and the outcomes in its order.
Settlement = tuple[Answer[Any], list[Outcome]]


class Worker(WorkerBase):
    """Processes the jobs of a queue.

    It pulls as many jobs as it has free slots, runs the processor on each, acknowledges what returns and fails what raises, and
    renews the leases of the jobs that it has. A job is processed at least once: when a worker vanishes, or its lease ends, the job
    is delivered again.

    Events (:meth:`on`): ``ready()``, ``active(job)``, ``completed(job, result)``, ``failed(job, error)`` (each attempt),
    ``progress(job, progress)``, ``log(job, message)``, ``stalled(job_id, "active")`` (of any worker of the queue), ``drained()``,
    ``cancelled({"jobId", "reason"})``, ``error(error)``, ``closed()``. ``completed`` and ``failed`` come after the broker has
    confirmed.

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

    Raises:
        ValueError: an argument is out of its bounds, or the arguments contradict each other.
    """

    _job_class = Job

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
        connection: Connection | Mapping[str, Any] | None = None,
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
        super().__init__(key, processor, concurrency, options, limiter, batch, name)
        #: The queue's name without the prefix.
        self.queue_name = queue
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
        )
        self._endpoint = Endpoint(target)
        self._stalls: QueueEvents | None = None
        if not skip_stalled_check:
            self._stalls = QueueEvents.of_target(target, key)
            self._stalls.on("stalled", lambda payload: self.emit("stalled", payload["jobId"], "active"))
        process = self._process if batch is None else self._process_batch
        self._crew = ThreadCrew(f"bunqueue-{key}", processor, process, self._work, lambda: self._concurrency)
        self._crew.on_watch(lambda: self._tick.set())
        self._started = self._paused = self._closing = self._forced = False
        self._failure: BaseException | None = None
        self._parked: Answer[Any] | None = None  #: the pull that may wait
        self._ended_pull: Answer[Any] | None = None  #: the pull that was cancelled, whose jobs were given back
        self._sleeping = self._flushing = self._flush_due = False
        self._registered = NOWHERE  #: generation of the connection on which it is registered
        self._failed_pulls = 0
        self._ready = Event()
        self._wake = Event()
        self._tick = Event()
        self._idle = Event()
        self._closed = Event()
        self._timer: Any = None
        if autorun and can_spawn():
            self.start()

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work in the background. Does nothing when it has begun, or the worker is closing."""
        if self._started or self._closing:
            return
        self._started = True
        self._watch_stalls()
        self._crew.begin()

    def run(self) -> None:
        """Work until the worker is closed.

        Raises:
            BunqueueError: the broker refuses pulls for good, or cannot be opened, and nobody listens to ``error``.
        """
        self.start()
        self._closed.wait()
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
        if self._stalls is not None and self.listens("stalled") and can_spawn():
            self._stalls.start()

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

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _work(self) -> bool:
        """The worker's loop, from the first pull to the end. False if it goes on elsewhere."""
        try:
            if not self._loop():
                return False
        except Exception as error:
            self._failure = error
            self._closing = True
            self._report(error, "loop")
            self._ready.set()
        self._shut()
        return True

    def _loop(self) -> bool:
        verbs = self._open()
        while not self._closing:
            if verbs.generation != self._registered and not self._register(verbs):
                continue
            if self._gatherer is not None and not self._start_batches(self._gatherer):
                return False
            free = 0 if self._paused else self._free_slots()
            if free <= 0:
                if self._outcomes and not self._flushing:
                    self._flush()
                else:
                    self._wait_for_slot()
                continue
            try:
                jobs = self._fetch(verbs, free)
            except CommandError as error:
                if not self._is_transient(error) and not self.listens("error"):
                    raise
                self._pull_failed(error)
                continue
            except BunqueueError as error:
                self._pull_failed(error)
                continue
            self._failed_pulls = 0
            if jobs:
                self._busy = True
                if not self._start_jobs(jobs):
                    return False
            elif not self._closing:
                self._found_nothing()
        return True

    def _open(self) -> Verbs:
        verbs = self._endpoint.open()
        if self._timer is None:
            self._timer = spawn(f"bunqueue-{self.queue_key}-timer", self._keep_time)
        return verbs

    def _register(self, verbs: Verbs) -> bool:
        """Tell the broker that this worker exists; it forgets workers whose connection was lost. False if it is out of reach."""
        fields = {
            "name": self.name,
            "queues": [self.queue_key],
            "concurrency": self._concurrency,
            "workerId": self.id,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "startedAt": float(self._started_at),
        }
        try:
            settled(verbs.command("RegisterWorker", fields))
        except CommandError as error:
            self._report(error, "register")
        except BunqueueError as error:
            self._pull_failed(error, "register")
            return False
        self._registered = verbs.generation
        if not self._ready.is_set():
            self._ready.set()
            self.emit("ready")
        return True

    def _fetch(self, verbs: Verbs, count: int) -> list[Job]:
        """Report the outcomes that are there and pull up to ``count`` jobs, in one trip and one commit."""
        settlements = self._send(verbs, self._take_outcomes(), flush=False)
        # After the last job the first look does not wait, so that listeners hear at once that the queue is drained.
        wait_ms = 0 if self._busy and not self._running else self._options.poll_timeout_ms
        if self._gatherer is not None:
            wait_ms = self._gatherer.wait_ms(self._options.poll_timeout_ms)
        pull = verbs.pull(self._request(count, wait_ms))
        with self._mutex:
            self._parked = pull
            flush = bool(self._outcomes) and not self._flushing
        try:
            if self._closing or self._paused:
                self._end_pull()  # whoever closes or pauses may not have seen it
            self._settle(settlements)
            if flush:
                # Handed in after the outcomes were taken and before whoever did could see that this pull may wait.
                self._flush()
            claims = pull.value if pull.ready else settled(pull)
        finally:
            with self._mutex:
                self._parked = None
                ended = self._ended_pull is pull
        if ended:
            return []
        jobs, sooner = self._lease(claims, verbs)
        if sooner:
            self._tick.set()
        return jobs

    def _end_pull(self) -> None:
        """End the wait of the pull that is under way; what it has claimed meanwhile is given back."""
        with self._mutex:
            pull = self._parked
            if pull is None or self._ended_pull is pull:
                return
            self._ended_pull = pull
        pull.cancel()

    def _start_jobs(self, jobs: list[Job]) -> bool:
        limiter, gate = self._limiter, self._gate
        if self._gatherer is not None:
            self._gatherer.add(jobs)
            return True
        if limiter is not None:
            for _ in jobs:
                limiter.started()
        if gate is not None:
            jobs = [job for job in jobs if gate.enter(job)]
        return self._crew.start(jobs)

    def _start_batches(self, gatherer: Gatherer) -> bool:
        """Start the batches that are ready and have a slot. False if the loop goes on elsewhere."""
        leaders: list[Job] = []
        while self._batches + len(leaders) < self._concurrency:
            leader = gatherer.take()
            if leader is None:
                break
            leaders.append(leader)
            if self._limiter is not None:
                for _ in leader.get_batch():
                    self._limiter.started()
        with self._mutex:
            self._batches += len(leaders)
        return not leaders or self._crew.start(leaders)

    def _found_nothing(self) -> None:
        if self._gatherer:
            self._gatherer.add([])
            if not self._options.poll_timeout_ms:
                self._rest(EMPTY_POLL_PAUSE_S)
            return
        if self._busy and not self._leases:
            self._busy = False
            self.emit("drained")
        elif not self._paused:
            self._rest(EMPTY_POLL_PAUSE_S if self._options.poll_timeout_ms else self._options.drain_delay_s)

    def _pull_failed(self, error: BunqueueError, context: str = "pull") -> None:
        pause = PULL_BACKOFF_S[min(self._failed_pulls, len(PULL_BACKOFF_S) - 1)]
        self._failed_pulls += 1
        if isinstance(error, ConnectionClosedError):
            self._registered = NOWHERE
        if not self._closing:
            self._report(error, context)
        self._rest(pause)

    def _rest(self, seconds: float) -> None:
        """Pause, unless outcomes are handed in or the worker closes."""
        self._sleeping = True
        if not self._closing and not self._outcomes:
            self._wake.wait(seconds)
        self._sleeping = False
        self._wake.clear()

    def _wait_for_slot(self) -> None:
        """Wait until a job can be pulled, outcomes are handed in or the worker closes."""
        self._sleeping = True
        # Looked at again after ``_sleeping`` is set: whoever changes it from now on wakes this.
        full = self._paused or self._free_slots() <= 0
        if full and not self._closing and not (self._outcomes and not self._flushing):
            self._wake.wait(self._slot_wait_s())
        self._sleeping = False
        self._wake.clear()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _process(self, job: Job) -> None:
        """Run the processor on ``job`` and hand in the outcome."""
        with self._mutex:
            self._waiting_jobs -= 1
            self._running += 1
        if "active" in self._listeners:
            self.emit("active", job)
        outcome: Outcome | None
        try:
            result = self._crew.call(self._arguments(job) if self._wants_context else (job,))
        except BaseException as error:
            outcome = None if self._crew.cancelled(error) else self._raised(job, error)
        else:
            outcome = self._succeeded(job, result)
        if outcome is None or self._forced:
            outcome = None
            self._drop_lease(job)
        follower = self._gate.leave(job) if self._gate is not None else None
        with self._mutex:
            self._running -= 1
            if outcome is not None:
                self._outcomes.append(outcome)
            flush = self._parked is not None and outcome is not None and not self._flushing and self._flush_now()
        if follower is not None:
            self._crew.hand_over([follower])
        if flush:
            self._flush()
        elif self._sleeping:
            self._wake.set()
        if self._closing:
            self._idle.set()

    def _process_batch(self, leader: Job) -> None:
        """Run the processor on the batch of ``leader`` and hand in the outcomes."""
        members: list[Job] = leader._batch or [leader]
        with self._mutex:
            self._waiting_jobs -= len(members)
            self._running += len(members)
        self._share_signal(members)
        for member in members:
            self.emit("active", member)
        result, error = None, None
        try:
            result = self._crew.call(self._arguments(leader))
        except BaseException as raised:
            error = raised
        if error is not None and self._crew.cancelled(error):
            outcomes: list[Outcome] = []
            for member in members:
                self._drop_lease(member)
        else:
            outcomes = self._batch_outcomes(members, result, error)
        with self._mutex:
            self._running -= len(members)
            self._batches -= 1
            self._outcomes.extend(outcomes)
            flush = self._parked is not None and bool(outcomes) and not self._flushing and self._flush_now()
        if flush:
            self._flush()
        elif self._sleeping:
            self._wake.set()
        if self._closing:
            self._idle.set()

    def _flush_now(self) -> bool:
        """Whether outcomes are to be reported now although the loop waits for jobs; else the timer is told."""
        size = self._options.ack_size
        if size is None or len(self._outcomes) >= size or not self._running:
            return True
        if not self._flush_due:
            self._flush_due = True
            self._tick.set()
        return False

    def _take_outcomes(self) -> list[Outcome]:
        with self._mutex:
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    def _flush(self) -> None:
        """Report outcomes until there are none. Those that are handed in meanwhile leave together."""
        with self._mutex:
            if self._flushing:
                return
            self._flushing = True
        try:
            verbs = self._endpoint.open()
            while True:
                with self._mutex:
                    outcomes, self._outcomes = self._outcomes, []
                    self._flush_due = False
                    if not outcomes:
                        self._flushing = False
                        return
                self._settle(self._send(verbs, outcomes))
        finally:
            self._flushing = False

    def _send(self, verbs: Verbs, outcomes: list[Outcome], flush: bool = True) -> list[Settlement]:
        """Report ``outcomes``; what they come to must be awaited by :meth:`_settle`."""
        if not outcomes:
            return []
        settlements: list[Settlement] = []
        acks: list[Outcome] = []
        for outcome in outcomes:
            verb = outcome.verb
            if type(verb) is Ack:
                acks.append(outcome)
            elif type(verb) is Failure:
                settlements.append((verbs.fail(verb, flush=flush), [outcome]))
            elif type(verb) is Postponed:
                fields = {"id": outcome.job.id, "delay": verb.delay_ms, "token": outcome.job.token}
                settlements.append((verbs.command("MoveToDelayed", fields, flush=flush), [outcome]))
        size = self._options.ack_size or len(acks)
        for start in range(0, len(acks), size or 1):
            part = acks[start : start + size]
            settlements.append((verbs.ack([outcome.verb for outcome in part], flush=flush), part))  # type: ignore[misc]
        return settlements

    def _settle(self, settlements: list[Settlement]) -> None:
        """Wait until outcomes are confirmed, and tell the listeners; or find out why they are not."""
        for answer, outcomes in settlements:
            try:
                result = answer.value if answer.ready else settled(answer)
            except BunqueueError as error:
                self._not_taken(outcomes, error)
                continue
            if type(result) is not Acknowledged:
                self._drop_lease(outcomes[0].job)
                continue
            errors = result.errors
            for position, outcome in enumerate(outcomes):
                if errors and position in errors:
                    refusal = errors[position]
                    self._not_taken(
                        [outcome], refusal if isinstance(refusal, BunqueueError) else CommandError(str(refusal))
                    )
                elif result.outcomes[position] == "applied":
                    self._confirmed(outcome)
                else:
                    self._drop_lease(outcome.job)

    def _not_taken(self, outcomes: Sequence[Outcome], error: BunqueueError) -> None:
        if len(outcomes) > 1 and isinstance(error, CommandError) and not error.retryable:
            # One of them spoiled it for all: each by itself.
            verbs = self._endpoint.open()
            for outcome in outcomes:
                self._settle(self._send(verbs, [outcome]))
            return
        for outcome in outcomes:
            if self._refused(outcome, error):
                job, verbs = outcome.job, self._endpoint.open()
                try:
                    settled(verbs.fail(Failure(job.id, str(error), job.token)))
                except BunqueueError as refusal:
                    self._report(refusal, "fail")

    # -- the end ------------------------------------------------------------------------------------------------------

    def _shut(self) -> None:
        """Everything after the loop: give back, wait, report, take leave."""
        verbs = self._endpoint.verbs
        if verbs is not None:
            self._give_back(verbs, self._unstarted())
            while not self._forced:
                self._idle.clear()
                self._flush()
                if not self._running and not self._outcomes and not self._flushing:
                    break
                if not self._forced:
                    # Whoever ends a job says so; a flush that another has begun is looked after from time to time.
                    self._idle.wait(0.01 if self._flushing else None)
            if self._registered != NOWHERE:
                try:
                    settled(verbs.command("UnregisterWorker", {"workerId": self.id}, timeout=1.0))
                except BunqueueError as error:
                    if not self._forced and not isinstance(error, CommandError):
                        self._report(error, "unregister")
        self._crew.close(self._forced)
        if self._stalls is not None:
            self._stalls.close()
        self._endpoint.close()
        self._closed.set()
        self._tick.set()
        self.emit("closed")

    def _unstarted(self) -> list[Job]:
        """Take out the jobs that were delivered and not started."""
        jobs: list[Job] = []
        for job in self._crew.take_unstarted():
            if job._batch is not None:
                with self._mutex:
                    self._batches -= 1
            jobs.extend(job._batch or [job])
        if self._gate is not None:
            jobs.extend(self._gate.clear())
        if self._gatherer is not None:
            jobs.extend(self._gatherer.clear())
        with self._mutex:
            jobs.extend(self._by_hand.values())
            self._by_hand.clear()
        return jobs

    def _give_back(self, verbs: Verbs, jobs: Sequence[Job]) -> None:
        """Return jobs that were not started. What cannot be returned is run, since it is leased to us."""
        answers = [verbs.command("MoveToWait", {"id": job.id, "token": job.token}, flush=False) for job in jobs]
        for job, answer in zip(jobs, answers, strict=True):
            try:
                settled(answer)
            except BunqueueError:
                if not self._forced:
                    self._run_here(job)
                    continue
            self._drop_lease(job)
            with self._mutex:
                self._waiting_jobs -= 1

    def _run_here(self, job: Job) -> None:
        if self._gatherer is None:
            self._process(job)
            return
        job._batch = [job]
        with self._mutex:
            self._batches += 1
        self._process_batch(job)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        """Renew leases, send heartbeats, end time-outs, and look after the crew, until the worker is closed."""
        interval = self._options.heartbeat_interval_s
        renewal = min(interval, self._options.lock_ttl_ms / 3000)
        renew_at, beat_at = self._clock() + renewal, self._clock() + interval
        while not self._closed.is_set():
            now = self._clock()
            waits: list[float] = []
            due = self._expire_jobs(now)
            if due is not None:
                waits.append(due - now)
            if interval > 0:
                if now >= renew_at:
                    renew_at = now + renewal
                    self._renew()
                if now >= beat_at:
                    beat_at = now + interval
                    self._beat()
                waits.append(min(renew_at, beat_at) - now)
            if self._flush_due:
                self._closed.wait(self._options.ack_delay_s)
                self._flush()
                continue
            watch = self._crew.watch_s()
            if watch is not None:
                waits.append(watch)
            self._tick.wait(max(0.0, min(waits)) if waits else None)
            self._tick.clear()
            self._crew.watch()

    def _renew(self) -> None:
        """Renew every lease. A job whose lease is lost is told to stop; what it returns is still offered to the broker."""
        verbs = self._endpoint.verbs
        jobs, renewals = self._renewals()
        if verbs is None or not renewals or not self._options.renew_locks:
            return
        try:
            held = settled(verbs.heartbeat(renewals))
        except BunqueueError as error:
            self._report(error, "heartbeat")
            return
        for job, kept in zip(jobs, held, strict=True):
            if not kept and self._holds(job):
                self._signal(job).abort("lock lost")

    def _beat(self) -> None:
        """Tell the broker that this worker lives."""
        verbs = self._endpoint.verbs
        if verbs is None:
            return
        fields = {
            "id": self.id,
            "activeJobs": len(self._leases),
            "processed": self.processed,
            "failed": self.failed,
        }
        try:
            settled(verbs.command("Heartbeat", fields))
        except CommandError:
            self._registered = NOWHERE  # forgotten: register again
        except BunqueueError as error:
            self._report(error, "heartbeat")

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
