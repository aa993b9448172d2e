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
import math
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bunqueue_core.client._events import LOGGER, Emitter
from bunqueue_core.client._job_base import JobBase, error_text, stack_of
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
from bunqueue_core.model.requests import DEFAULT_LOCK_TTL_MS, Ack, Failure, GroupDefaults, PullRequest, Renewal

if TYPE_CHECKING:
    from bunqueue_core.client._verbs import Claim, Verbs

#: Most jobs that one pull may ask for; the protocol's bound.
MAX_BATCH: Final = 1000

#: Longest wait of a pull that a worker asks for, ms.
MAX_POLL_MS: Final = 30_000

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


class CancelSignal:
    """Tells a processor that it should stop: the job was cancelled, timed out, or belongs to another worker by now."""

    __slots__ = ("_callbacks", "reason")

    def __init__(self) -> None:
        #: Why, None while there is no reason to stop.
        self.reason: str | None = None
        self._callbacks: list[Callable[[str], None]] = []

    @property
    def aborted(self) -> bool:
        """Whether the processor should stop."""
        return self.reason is not None

    def on_abort(self, callback: Callable[[str], None]) -> None:
        """Call ``callback(reason)`` when the processor should stop, at once if it should already."""
        if self.reason is not None:
            callback(self.reason)
        else:
            self._callbacks.append(callback)

    def abort(self, reason: str) -> bool:
        """Tell it. Returns False if it was told before."""
        if self.reason is not None:
            return False
        self.reason = reason
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(reason)
            except Exception:
                LOGGER.exception("a callback of a cancelled job failed")
        return True


class ProcessorContext(NamedTuple):
    """Second argument of a processor that takes two."""

    signal: CancelSignal


class Postponed(NamedTuple):
    """The outcome of a job that goes back to ``delayed``, uncharged."""

    delay_ms: int


class Outcome(NamedTuple):
    """What became of a delivery: the job, what the broker is told, and the result or error for the listeners."""

    job: Any
    verb: Ack | Failure | Postponed
    value: Any


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """A worker's options, checked. See :class:`bunqueue_core.client.worker.Worker`."""

    batch_size: int
    poll_timeout_ms: int
    lock_ttl_ms: int
    heartbeat_interval_s: float
    use_locks: bool
    renew_locks: bool
    drain_delay_s: float
    ack_size: int | None
    ack_delay_s: float
    remove_on_complete: bool
    remove_on_fail: bool
    group: GroupDefaults | None

    @classmethod
    def checked(
        cls,
        *,
        batch_size: int | None,
        poll_timeout_ms: int,
        lock_ttl_ms: float | None,
        heartbeat_interval_s: float,
        use_locks: bool,
        skip_lock_renewal: bool,
        drain_delay_ms: float,
        ack_batch: Mapping[str, Any] | None,
        remove_on_complete: Any,
        remove_on_fail: Any,
        group: Mapping[str, Any] | None,
    ) -> WorkerOptions:
        """Check and complete the options.

        Raises:
            ValueError: one is out of its bounds.
        """
        if lock_ttl_ms is None:
            ttl = DEFAULT_LOCK_TTL_MS
        elif isinstance(lock_ttl_ms, bool) or not 1 <= lock_ttl_ms < math.inf:
            raise ValueError(f"lock_ttl_ms must be a finite number of at least 1, got {lock_ttl_ms!r}")
        else:
            ttl = int(lock_ttl_ms)
        size = MAX_BATCH if batch_size is None else batch_size
        acks = dict(ack_batch or {})
        enabled = acks.pop("enabled", True) if ack_batch else False
        ack_size = acks.pop("max_size", acks.pop("maxSize", 50))
        ack_delay = acks.pop("max_delay_ms", acks.pop("maxDelay", 5))
        if acks:
            raise ValueError(f"ack_batch has no option {next(iter(acks))!r} (known: enabled, max_size, max_delay_ms)")
        return cls(
            batch_size=min(max(int(size), 1), MAX_BATCH),
            poll_timeout_ms=min(max(int(poll_timeout_ms), 0), MAX_POLL_MS),
            lock_ttl_ms=ttl,
            heartbeat_interval_s=heartbeat_interval_s,
            use_locks=use_locks,
            renew_locks=not skip_lock_renewal and use_locks,
            drain_delay_s=max(0.0, drain_delay_ms / 1000),
            ack_size=_positive("ack_batch.max_size", ack_size) if enabled else None,
            ack_delay_s=max(0.0, ack_delay / 1000) if enabled else 0.0,
            remove_on_complete=remove_on_complete is True,
            remove_on_fail=remove_on_fail is True,
            group=group_defaults(group),
        )


def _positive(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 2**53 - 1 or value % 1:
        raise ValueError(f"{field} must be a positive safe integer")
    return int(value)


def group_defaults(group: Mapping[str, Any] | None) -> GroupDefaults | None:
    """Limits that a worker proposes for groups, from ``{"concurrency", "limit": {"max", "duration"}}``.

    Raises:
        ValueError: a limit is not a positive integer.
    """
    if group is None:
        return None
    limit = group.get("limit")
    if limit is not None and not isinstance(limit, Mapping):
        raise ValueError("group.limit must be an object")
    concurrency = group.get("concurrency")
    return GroupDefaults(
        concurrency=None if concurrency is None else _positive("group.concurrency", concurrency),
        limit_max=None if limit is None else _positive("group.limit.max", limit.get("max")),
        limit_duration_ms=None if limit is None else _positive("group.limit.duration", limit.get("duration")),
    )


class StartLimiter:
    """At most ``max`` starts in any ``duration_ms``.

    Args:
        limit: starts.
        duration_ms: length of the window.
        clock: monotonic seconds.
    """

    def __init__(self, limit: int, duration_ms: float, clock: Callable[[], float]) -> None:
        self.limit = limit
        self.duration_s = duration_ms / 1000
        self._clock = clock
        self._starts: deque[float] = deque()

    def free(self) -> int:
        """Starts that are possible now."""
        self._forget()
        return self.limit - len(self._starts)

    def wait_s(self) -> float:
        """Seconds until a start is possible."""
        self._forget()
        if len(self._starts) < self.limit:
            return 0.0
        return max(0.0, self._starts[0] + self.duration_s - self._clock())

    def started(self) -> None:
        """Count a start."""
        self._starts.append(self._clock())

    def _forget(self) -> None:
        oldest = self._clock() - self.duration_s
        while self._starts and self._starts[0] <= oldest:
            self._starts.popleft()


class GroupGate:
    """At most ``limit`` running jobs of one value of ``data[key]``; the others are held back, in order."""

    def __init__(self, key: str, limit: int) -> None:
        self.key = key
        self.limit = limit
        self._running: dict[Any, int] = {}
        self._held: dict[Any, deque[Any]] = {}

    def group_of(self, job: JobBase) -> Any:
        """The group of a job; jobs without one form a group of their own."""
        value = job.data.get(self.key) if isinstance(job.data, dict) else None
        try:
            hash(value)
        except TypeError:
            return repr(value)
        return value

    def enter(self, job: JobBase) -> bool:
        """Whether ``job`` may start. If not, it is held until :meth:`leave` gives it."""
        group = self.group_of(job)
        running = self._running.get(group, 0)
        if running < self.limit:
            self._running[group] = running + 1
            return True
        self._held.setdefault(group, deque()).append(job)
        return False

    def leave(self, job: JobBase) -> Any | None:
        """``job`` has ended; the job that may start in its place, None if there is none."""
        group = self.group_of(job)
        held = self._held.get(group)
        if held:
            follower = held.popleft()
            if not held:
                del self._held[group]
            return follower
        running = self._running.get(group, 1) - 1
        if running > 0:
            self._running[group] = running
        else:
            self._running.pop(group, None)
        return None

    def clear(self) -> list[Any]:
        """Take out the jobs that are held."""
        jobs = [job for held in self._held.values() for job in held]
        self._held.clear()
        return jobs


def make_limiters(
    limiter: Mapping[str, Any] | None, clock: Callable[[], float]
) -> tuple[StartLimiter | None, GroupGate | None]:
    """The limiter of starts, or of running jobs by group, from ``{"max", "duration", "group_key"?}``.

    Raises:
        ValueError: a bound is not positive.
    """
    if limiter is None:
        return None, None
    limit, duration = limiter.get("max"), limiter.get("duration")
    key = limiter.get("group_key", limiter.get("groupKey"))
    if key is not None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError("Worker group limiter max must be a positive integer")
        return None, GroupGate(str(key), limit)
    for value in (limit, duration):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError("Worker limiter max and duration must be positive finite values")
    assert limit is not None
    assert duration is not None
    return StartLimiter(max(1, int(limit)), duration, clock), None


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How jobs are gathered into batches. ``timeout_s`` 0 waits for ``min_size`` jobs as long as it takes."""

    size: int
    min_size: int
    timeout_s: float
    affine: bool

    @classmethod
    def checked(cls, batch: Mapping[str, Any], limiter: StartLimiter | None) -> BatchOptions:
        """Check ``{"size", "min_size": 1, "timeout": 0, "group_affinity": False}``; ``timeout`` in ms.

        Raises:
            TypeError: a key is not known.
            ValueError: a value is out of its bounds.
        """
        names = {"minSize": "min_size", "groupAffinity": "group_affinity"}
        given = {names.get(key, key): value for key, value in batch.items()}
        for key in given:
            if key not in ("size", "min_size", "timeout", "group_affinity"):
                raise TypeError(f"batch has no option {key!r} (known: size, min_size, timeout, group_affinity)")
        size, least, timeout = given.get("size"), given.get("min_size", 1), given.get("timeout", 0)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BATCH:
            raise ValueError(f"batch.size must be a positive safe integer no greater than {MAX_BATCH}")
        if isinstance(least, bool) or not isinstance(least, int) or not 1 <= least <= size:
            raise ValueError("batch.minSize must be between 1 and batch.size")
        if limiter is not None and least > limiter.limit:
            raise ValueError("batch.minSize cannot exceed limiter.max")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= 2**53 - 1:
            raise ValueError("batch.timeout must be a non-negative safe integer")
        return cls(size, least, timeout / 1000, bool(given.get("group_affinity", False)))


class Gatherer:
    """Gathers delivered jobs until they make a batch."""

    def __init__(self, options: BatchOptions, clock: Callable[[], float]) -> None:
        self.options = options
        self._clock = clock
        self._since = 0.0
        self._jobs: list[Any] = []
        self._asked = False  #: a pull for more jobs of the group has been begun
        self._topped_up = False  #: one has ended

    def add(self, jobs: list[Any]) -> None:
        """Take what a pull has delivered, even if that is nothing."""
        if jobs and not self._jobs:
            self._since = self._clock()
        self._topped_up = self._asked
        self._jobs.extend(jobs)

    def take(self) -> Any | None:
        """The leader of a batch that is ready, None if there is none."""
        options, jobs = self.options, self._jobs
        if not jobs:
            return None
        if options.affine:
            enough = len(jobs) >= options.size or (len(jobs) >= options.min_size and self._topped_up)
        else:
            enough = len(jobs) >= options.min_size or any(job.group_id is not None for job in jobs)
        if not enough and not (options.timeout_s and self._clock() >= self._since + options.timeout_s):
            return None
        members, self._jobs = jobs[: options.size], jobs[options.size :]
        self._since = self._clock()
        self._asked = self._topped_up = False
        members[0]._batch = members
        return members[0]

    def wanted(self, free: int) -> int:
        """Jobs to pull when ``free`` fit: with affinity one to learn its group, then more of that group."""
        if not self.options.affine:
            return free
        return min(free, self.options.size - len(self._jobs)) if self._jobs else min(free, 1)

    def affinity(self, group: GroupDefaults | None) -> GroupDefaults | None:
        """Group defaults of the next pull: restricted to the group of what was gathered, where that is wanted."""
        if not self.options.affine or not self._jobs:
            return group
        self._asked = True
        return replace(group or GroupDefaults(), affine=True, affinity=self._jobs[0].group_id)

    def wait_ms(self, longest: int) -> int:
        """How long the next pull may wait, ms."""
        if not self._jobs:
            return longest
        if len(self._jobs) >= self.options.min_size:
            return 0  # what is there can run; the pull only completes it
        left = self.left_s()
        return longest if left is None else min(longest, math.ceil(left * 1000))

    def left_s(self) -> float | None:
        """Seconds until what was gathered runs although it is not enough; None if it waits without limit."""
        if not self._jobs or not self.options.timeout_s:
            return None
        return max(0.0, self._since + self.options.timeout_s - self._clock())

    def clear(self) -> list[Any]:
        """Take out what was gathered."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def __bool__(self) -> bool:
        return bool(self._jobs)


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
            if "failed" in self._listeners:
                self.emit("failed", outcome.job, outcome.value)

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
