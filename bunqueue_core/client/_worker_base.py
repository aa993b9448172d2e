"""What a worker knows and decides, apart from its waiting: options, leases, outcomes, limits.

A job that was delivered is *leased* until its outcome is settled with the broker; its lease is renewed all that time. It is
*running* while the processor has it. Outcomes gather in ``_outcomes`` and leave together.

Invariants, guarded by ``_mutex``: a leased job is in ``_leases`` under its id, and only the newest delivery of an id is; a job that
runs is counted in ``_running``; an outcome is handed in at most once for a delivery, so that a job is never both acknowledged and
failed.
"""

from __future__ import annotations

import heapq
import inspect
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bunqueue_core.client._cancel_signal import CancelSignal, ProcessorContext
from bunqueue_core.client._events import LOGGER, Emitter
from bunqueue_core.client._job_base import JobBase, beyond_the_client, error_text, stack_of
from bunqueue_core.client._worker_limits import BatchOptions, Gatherer, make_limiters
from bunqueue_core.client._worker_options import WorkerOptions
from bunqueue_core.model.errors import (
    BackendBusy,
    BunqueueError,
    CommandError,
    DelayedError,
    NotFound,
    RateLimitError,
    SerializationError,
    UnrecoverableError,
)
from bunqueue_core.model.job import Job as JobRecord
from bunqueue_core.model.payload import Packer
from bunqueue_core.model.requests import Ack, Failure, PullRequest, Renewal

if TYPE_CHECKING:
    from bunqueue_core.client._verbs import Claim, Verbs

#: Pause after a pull that found nothing although it was to wait, seconds: another client may have been quicker.
EMPTY_POLL_PAUSE_S: Final = 0.01

#: Deadlines of jobs that have ended, at most, before they are cleared out; it bounds memory.
MAX_STALE_DEADLINES: Final = 1000

#: Pauses after failed pulls, seconds; the last one repeats.
PULL_BACKOFF_S: Final = (0.5, 1.0, 2.0, 5.0)

#: How long a job waits that raised ``DelayedError`` and has no back-off of its own, ms.
DELAYED_MS: Final = 1000

#: Refusals of a pull that may end by themselves.
_TRANSIENT: Final = ("Rate limit exceeded", "Internal server error")


class Postponed(NamedTuple):
    """The outcome of a job that goes back to ``delayed``, uncharged."""

    delay_ms: int


class Outcome(NamedTuple):
    """What became of a delivery: the job, what the broker is told, and the result or error for the listeners."""

    job: Any
    verb: Ack | Failure | Postponed
    value: Any


class _Packers(threading.local):
    """A packer for each thread that finishes jobs."""

    def __init__(self) -> None:
        self.pack = Packer().pack


class WorkerBase(Emitter):
    """See the module's head."""

    _job_class: type[JobBase]
    _forced: bool

    def __init__(
        self,
        queue_key: str,
        processor: Callable[..., Any],
        concurrency: int,
        options: WorkerOptions,
        limiter: Mapping[str, Any] | None,
        batch: Mapping[str, Any] | None,
        name: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise ValueError("concurrency must be >= 1")
        if not callable(processor):
            raise TypeError(f"processor must be callable, got {type(processor).__name__}")
        self.queue_key = queue_key
        #: Id under which the worker registers and claims.
        self.id = f"py-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        #: Name under which the worker registers.
        self.name = name if name is not None else self.id
        self._options = options
        self._concurrency = concurrency
        self._processor = processor
        self._wants_context = takes_context(processor)
        self._clock = clock
        self._limiter, self._gate = make_limiters(limiter, clock)
        self._gatherer: Gatherer | None = None
        if batch is not None:
            self._gatherer = Gatherer(BatchOptions.checked(batch, self._limiter), clock)
        self._batches = 0  #: batches that run
        self._packers = _Packers()
        self._mutex = threading.Lock()
        self._leases: dict[str, Any] = {}
        self._running = 0
        self._by_hand: dict[str, Any] = {}  #: taken by ``get_next_job``, neither processed nor ended yet
        self._waiting_jobs = 0  #: delivered, not started; those that the gate holds included
        self._outcomes: list[Outcome] = []
        self._signals: dict[str, CancelSignal] = {}
        self._deadlines: list[tuple[float, int, Any]] = []
        self._deliveries = 0
        self._blocked_until = 0.0
        self._busy = False
        self._started_at = time.time_ns() // 1_000_000
        #: Jobs whose outcome was confirmed by the broker: processed, failed.
        self.processed = 0
        self.failed = 0

    # -- deliveries ---------------------------------------------------------------------------------------------------

    def _request(self, count: int, wait_ms: int) -> PullRequest:
        options = self._options
        return PullRequest(
            self.queue_key,
            count,
            self.id if options.use_locks else None,
            options.lock_ttl_ms,
            wait_ms,
            None,
            options.group if self._gatherer is None else self._gatherer.affinity(options.group),
        )

    def _lease(self, claims: Any, verbs: Verbs) -> tuple[list[Any], bool]:
        """Take over what a pull delivered: the jobs, and whether the next time-out is due earlier than before."""
        jobs: list[Any] = []
        sooner = False
        make, leases = self._job_class, self._leases
        claim: Claim
        job: Any
        with self._mutex:
            for claim in claims:
                source, token = claim
                job = make(source, verbs, token, self)
                leases[job.id] = job
                jobs.append(job)
                timeout = source.options.timeout_ms if type(source) is JobRecord else job.raw.get("timeout")
                if timeout:
                    sooner = self._set_deadline(job, timeout) or sooner
            self._waiting_jobs += len(jobs)
        return jobs, sooner

    def _set_deadline(self, job: Any, timeout_ms: float) -> bool:
        """Note when ``job`` times out. True if nothing times out before. Under the lock."""
        self._deliveries += 1
        deadlines = self._deadlines
        heapq.heappush(deadlines, (self._clock() + timeout_ms / 1000, self._deliveries, job))
        if len(deadlines) > 4 * len(self._leases) + MAX_STALE_DEADLINES:
            # Jobs that ended in time stay until they would have timed out, which may be long after.
            deadlines[:] = [entry for entry in deadlines if self._holds(entry[2])]
            heapq.heapify(deadlines)
        return bool(deadlines[0][2] is job)

    def _renewals(self) -> tuple[list[Any], list[Renewal]]:
        """The leased jobs and their renewals."""
        with self._mutex:
            jobs = list(self._leases.values())
        return jobs, [Renewal(job.id, job.token) for job in jobs]

    def _holds(self, job: Any) -> bool:
        """Whether ``job`` is the newest delivery of its id here, and not settled."""
        return self._leases.get(job.id) is job

    def _drop_lease(self, job: Any) -> bool:
        """The delivery is over. False if a newer delivery of the same job has taken its place here."""
        with self._mutex:
            current = self._holds(job)
            if current:
                del self._leases[job.id]
                self._signals.pop(job.id, None)
            return current

    # -- running ------------------------------------------------------------------------------------------------------

    def _arguments(self, job: Any) -> tuple[Any, ...]:
        return (job, ProcessorContext(self._signal(job))) if self._wants_context else (job,)

    def _signal(self, job: Any) -> CancelSignal:
        with self._mutex:
            signal = self._signals.get(job.id)
            if signal is None or not self._holds(job):
                signal = CancelSignal()
                if self._holds(job):
                    self._signals[job.id] = signal
            return signal

    def _succeeded(self, job: Any, result: Any) -> Outcome | None:
        """The outcome of a processor that returned ``result``; None if the delivery has ended otherwise."""
        if job._released:
            return None
        blob = None
        if result is not None:
            try:
                blob = self._packers.pack(result)
            except SerializationError as error:
                return self._raised(job, error)
        return Outcome(job, Ack(job.id, job.token, blob, self._options.remove_on_complete), result)

    def _batch_outcomes(self, members: list[Any], result: Any, error: BaseException | None) -> list[Outcome]:
        """The outcomes of a batch whose processor returned ``result`` or raised ``error``."""
        outcomes = []
        for member in members:
            failure = member._failure or error
            outcome = self._raised(member, failure) if failure is not None else self._succeeded(member, result)
            if outcome is None or self._forced:
                self._drop_lease(member)
            else:
                outcomes.append(outcome)
        return outcomes

    def _share_signal(self, members: list[Any]) -> None:
        """Whatever stops one job of a batch stops its processor, which is everybody's."""
        signal = CancelSignal()
        with self._mutex:
            for member in members:
                if self._holds(member):
                    self._signals[member.id] = signal

    def _raised(self, job: Any, error: BaseException) -> Outcome | None:
        """The outcome of a processor that raised ``error``; None if the delivery has ended otherwise."""
        if job._released or isinstance(error, RateLimitError):
            return None
        if isinstance(error, DelayedError):
            source = job._source
            backoff = source.options.backoff_ms if type(source) is JobRecord else job._number("backoff", 0)
            return Outcome(job, Postponed(int(backoff) or DELAYED_MS), error)
        failure = Failure(
            job.id,
            error_text(error),
            job.token,
            stack_of(error, job._stack_limit()),
            isinstance(error, UnrecoverableError),
            self._options.remove_on_fail,
        )
        return Outcome(job, failure, error)

    def _confirmed(self, outcome: Outcome) -> None:
        """The broker has taken the outcome: tell the listeners, after the slot is free."""
        self._drop_lease(outcome.job)
        verb = outcome.verb
        if type(verb) is Ack:
            self.processed += 1
            if "completed" in self._listeners:
                self.emit("completed", outcome.job, outcome.value)
        elif type(verb) is Failure:
            self.failed += 1
            if not self.emit("failed", outcome.job, outcome.value):
                self._log_failure(outcome.job, outcome.value)

    def _log_failure(self, job: Any, error: BaseException) -> None:
        """Tell the log of a failure that nobody listens to; its traceback, too, where the log is a detailed one."""
        trace = (
            (type(error), error, beyond_the_client(error.__traceback__)) if LOGGER.isEnabledFor(logging.DEBUG) else None
        )
        text = f"{type(error).__name__}: {error_text(error)}"
        LOGGER.warning("job %s of '%s' failed: %s", job.id, self.queue_key, text, exc_info=trace)

    # -- trouble ------------------------------------------------------------------------------------------------------

    def _report(self, error: BaseException, context: str) -> None:
        """Tell of trouble that nobody waits for: to the listeners of ``error``, else to the log."""
        if not hasattr(error, "context"):
            error.context = context  # type: ignore[attr-defined]
        if not self.emit("error", error):
            LOGGER.warning("worker of '%s': %s: %s", self.queue_key, context, error)

    def _refused(self, outcome: Outcome, error: BunqueueError) -> bool:
        """The broker did not take an outcome. True if the failure to acknowledge is to be recorded as a failed attempt."""
        current = self._drop_lease(outcome.job)
        if not current:
            return False  # this worker has a newer delivery of the job: the old outcome does not matter any more
        if isinstance(error, CommandError) and not error.retryable:
            if isinstance(error, NotFound):
                self._report(error, "ack-stale" if type(outcome.verb) is Ack else "fail")
                return False
            if type(outcome.verb) is Ack:
                return True
            self._report(error, "fail")
            return False
        self._report(error, "ack" if type(outcome.verb) is Ack else "fail")
        return False

    @staticmethod
    def _is_transient(error: CommandError) -> bool:
        text = str(error)
        return (
            error.retryable
            or isinstance(error, BackendBusy)
            or text in _TRANSIENT
            or text.endswith("ock acquisition timed out")
        )

    # -- delivery hooks -----------------------------------------------------------------------------------------------

    def job_progressed(self, job: Any, progress: Any) -> None:
        """A processor told its progress."""
        self.emit("progress", job, progress)

    def job_logged(self, job: Any, message: str) -> None:
        """A processor wrote to its job's log."""
        self.emit("log", job, message)

    def job_released(self, job: Any) -> None:
        """A job has ended its delivery itself. While a processor has it, the end of the processor sees to the rest."""
        with self._mutex:
            by_hand = self._by_hand.get(job.id) is job
            if by_hand:
                del self._by_hand[job.id]
                self._waiting_jobs -= 1
        if by_hand:
            self._drop_lease(job)

    # -- cancelling ---------------------------------------------------------------------------------------------------

    def cancel_job(self, job_id: str, reason: str | None = None) -> bool:
        """Ask the processor of a job to stop: its signal is set. What becomes of the job follows from what it does then.

        Args:
            job_id: the job.
            reason: told to the processor and to the listeners of ``cancelled``; ``cancelled`` by default.

        Returns:
            False if this worker does not have the job.
        """
        job = self._leases.get(job_id)
        if job is None:
            return False
        reason = reason or "cancelled"
        if self._signal(job).abort(reason):
            self.emit("cancelled", {"jobId": job_id, "reason": reason})
        return True

    def cancel_all_jobs(self, reason: str | None = None) -> None:
        """Ask the processors of all jobs that this worker has to stop; see :meth:`cancel_job`."""
        for job_id in list(self._leases):
            self.cancel_job(job_id, reason)

    def is_job_cancelled(self, job_id: str) -> bool:
        """Whether the processor of a job that this worker has was asked to stop."""
        signal = self._signals.get(job_id)
        return signal is not None and signal.aborted

    def _expire_jobs(self, now: float) -> float | None:
        """Give up the jobs whose time-out has passed; the next time-out (on the clock), None if there is none.

        The broker fails them itself; whatever their processors still do does not count.
        """
        expired: list[Any] = []
        with self._mutex:
            deadlines = self._deadlines
            while deadlines and (deadlines[0][0] <= now or not self._holds(deadlines[0][2])):
                job = heapq.heappop(deadlines)[2]
                if self._holds(job) and not job._released:
                    job._released = True
                    expired.append(job)
            following = deadlines[0][0] if deadlines else None
        for job in expired:
            self._signal(job).abort(f"Job {job.id} timed out after {job._number('timeout', 0)}ms")
        return following

    # -- limits -------------------------------------------------------------------------------------------------------

    def rate_limit(self, expire_ms: float) -> None:
        """Let this worker start nothing for ``expire_ms`` ms."""
        self._blocked_until = self._clock() + expire_ms / 1000

    def is_rate_limited(self) -> bool:
        """Whether :meth:`rate_limit` or the limiter holds this worker back now."""
        if self._blocked_until > self._clock():
            return True
        return self._limiter is not None and self._limiter.free() <= 0

    def get_rate_limiter_info(self) -> dict[str, Any] | None:
        """``{"current", "max", "duration"}`` of the limiter: starts in the window, their bound, its length in ms; or None."""
        limiter = self._limiter
        if limiter is None:
            return None
        return {
            "current": limiter.limit - limiter.free(),
            "max": limiter.limit,
            "duration": limiter.duration_s * 1000,
        }

    def _free_slots(self) -> int:
        """Jobs that may be pulled now."""
        gatherer = self._gatherer
        if gatherer is None:
            free = self._concurrency - self._running - self._waiting_jobs
        else:
            slots = (self._concurrency - self._batches) * gatherer.options.size - self._waiting_jobs
            free = gatherer.wanted(slots)
        if self._limiter is not None:
            # What was gathered starts later, all at once.
            free = min(free, self._limiter.free() - (self._waiting_jobs if gatherer is not None else 0))
        if self._blocked_until and self._blocked_until > self._clock():
            return 0
        return min(free, self._options.batch_size)

    def _slot_wait_s(self) -> float | None:
        """Seconds after which a limit may have ended, None if only the end of a job can free a slot."""
        waits = []
        blocked = self._blocked_until - self._clock()
        if blocked > 0:
            waits.append(blocked)
        if self._limiter is not None and self._limiter.free() <= 0:
            waits.append(self._limiter.wait_s())
        gathered = self._gatherer.left_s() if self._gatherer is not None else None
        if gathered is not None:
            return min(gathered, max(waits)) if waits else gathered
        return max(waits) if waits else None


def takes_context(processor: Callable[..., Any]) -> bool:
    """Whether a processor takes a second positional argument."""
    try:
        parameters = inspect.signature(processor).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return (len(positional) >= 2 and positional[1].default is inspect.Parameter.empty) or any(
        parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters
    )


def is_async(processor: Callable[..., Any]) -> bool:
    """Whether calling ``processor`` gives a coroutine."""
    call = getattr(processor, "__call__", None)  # noqa: B004  an object may have an asynchronous __call__
    return inspect.iscoroutinefunction(processor) or inspect.iscoroutinefunction(call)
