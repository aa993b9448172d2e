"""Typed arguments and results of the broker's verbs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bunqueue_core.model.job import Job, JobState

#: Lease duration of a locked pull that names none, ms.
DEFAULT_LOCK_TTL_MS = 30_000


@dataclass(frozen=True, slots=True)
class Pushed:
    """Outcome of a push, aligned with its input.

    ``ids`` holds the id of each job: its own, or that of the job that already stood for it. ``outcomes`` says which
    (``created``, ``found`` or ``replaced``).
    """

    ids: list[str]
    outcomes: list[Literal["created", "found", "replaced"]]


@dataclass(frozen=True, slots=True)
class FlowJob:
    """One job of an atomic flow: its planned id, its queue and its input (``spec.custom_id`` is None or equals ``id``)."""

    id: str
    queue: str
    spec: Any  # JobSpec; typed loosely to keep this module free of cycles


@dataclass(frozen=True, slots=True)
class GroupDefaults:
    """Limits that a worker proposes for groups without limits of their own, and the batch's group affinity.

    ``affinity``: a group id takes jobs of that group only, None ungrouped jobs only; ``"any"`` semantics need
    ``affine=False``.
    """

    concurrency: int | None = None
    limit_max: int | None = None
    limit_duration_ms: int | None = None
    affine: bool = False
    affinity: str | None = None


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A request for up to ``count`` jobs of one queue.

    Attributes:
        queue: queue name, validated.
        count: at most this many jobs; a shorter batch is returned at once.
        owner: name of the worker; when given, each job comes with a lock token.
        lock_ttl_ms: how long the lock holds without renewal.
        wait_ms: how long to wait when there is nothing to deliver; 0 answers at once.
        session: connection that hands its never-renewed deliveries back when it closes (see ``Broker.release``).
        group: group defaults of the worker.
    """

    queue: str
    count: int = 1
    owner: str | None = None
    lock_ttl_ms: int = DEFAULT_LOCK_TTL_MS
    wait_ms: int = 0
    session: str | None = None
    group: GroupDefaults | None = None


class Delivery(NamedTuple):
    """A job handed to a worker, with the token of its lock (None when the pull named no owner)."""

    job: Job
    token: str | None


class Ack(NamedTuple):
    """A job was processed. ``result`` is an encoded payload; None means no result (an encoded null is one)."""

    id: str
    token: str | None = None
    result: bytes | None = None
    remove: bool = False


class Failure(NamedTuple):
    """A job's attempt failed. ``stack`` holds stack-trace lines, None keeps the previous ones."""

    id: str
    error: str | None = None
    token: str | None = None
    stack: list[str] | None = None
    unrecoverable: bool = False
    remove: bool = False


#: What became of one acknowledgement: applied; ignored because the broker had ended that lease itself; or an error.
Outcome = Literal["applied", "already-finalized"]


class Acknowledged(NamedTuple):
    """Outcome of a batch of acknowledgements or failures, aligned with the input.

    ``errors`` maps positions that could not be applied to the reason; all other positions were applied or ignored.
    """

    outcomes: list[Outcome]
    errors: dict[int, Exception]

    def raise_first(self) -> None:
        """Raise the error of the first position that has one."""
        for position in sorted(self.errors):
            raise self.errors[position]


class Renewal(NamedTuple):
    """A lease to renew. ``duration_ms`` None means the lease's own length."""

    id: str
    token: str | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as queries show it: a copy of the record with its state, result and failure reason.

    ``blocked_by``: jobs that it waits for and that cannot complete by themselves any more; it will not start until one of them is
    retried, added again or no longer waited for.
    """

    job: Job
    state: JobState
    result: bytes | None = None
    failed_reason: str | None = None
    blocked_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A window of a listing. ``limit`` None means no bound; order is by creation time, then id."""

    offset: int = 0
    limit: int | None = 100
    ascending: bool = True


@dataclass(slots=True)
class Counts:
    """Jobs of one queue by state. While the queue is paused, ready jobs count as ``paused`` only.

    ``paused_prioritized`` says how many of these have a priority, for those who show a queue as it is apart from the pause.
    """

    waiting: int = 0
    prioritized: int = 0
    delayed: int = 0
    active: int = 0
    completed: int = 0
    failed: int = 0
    waiting_children: int = 0
    paused: int = 0
    paused_prioritized: int = field(default=0, compare=False)

    @property
    def ready_waiting(self) -> int:
        """Ready jobs without a priority, paused or not."""
        return self.waiting + self.paused - self.paused_prioritized

    @property
    def ready_prioritized(self) -> int:
        """Ready jobs with a priority, paused or not."""
        return self.prioritized + self.paused_prioritized


class QueueSummary(NamedTuple):
    """A queue in a list of queues."""

    name: str
    counts: Counts
    paused: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an active job, 0..100, with a message for people."""

    progress: int | float
    message: str | None


@dataclass(frozen=True, slots=True)
class StallConfig:
    """When a silent active job counts as stalled, per queue. Durations in ms; ``max_stalls`` before the dead letters."""

    enabled: bool = True
    stall_interval_ms: int = 30_000
    max_stalls: int = 3
    grace_period_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class DlqConfig:
    """Dead-letter policy of a queue. ``max_age_ms`` None keeps entries for ever."""

    auto_retry: bool = False
    auto_retry_interval_ms: int = 3_600_000
    max_auto_retries: int = 3
    max_age_ms: int | None = 604_800_000
    max_entries: int = 10_000


DlqReason = Literal[
    "explicit_fail", "max_attempts_exceeded", "timeout", "stalled", "ttl_expired", "worker_lost", "unknown"
]


@dataclass(slots=True)
class DlqEntry:
    """A dead letter: the job as it was when it ended, why, and its failed attempts. Times in epoch ms."""

    job: Job
    entered_at: int
    reason: DlqReason
    error: str | None = None
    attempts: list[Any] = field(default_factory=list)  # AttemptRecord
    retry_count: int = 0
    last_retry_at: int | None = None
    next_retry_at: int | None = None
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class DlqFilter:
    """Which dead letters; None means any. ``older_than``/``newer_than`` compare ``entered_at`` (epoch ms, inclusive)."""

    reason: str | None = None
    older_than: int | None = None
    newer_than: int | None = None
    retriable: bool = False
    expired: bool = False
    offset: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of a queue as ``GetQueueLimits`` shows them.

    ``rate_max`` and ``rate_duration_ms`` are None without a rate limit; ``rate_ttl_ms`` is -2 then, else ms until a token (or until
    a temporary limit ends); ``maxed`` says that the concurrency limit is reached.
    """

    rate_max: float | None = None
    rate_duration_ms: int | None = None
    rate_ttl_ms: int = -2
    concurrency: float | None = None
    maxed: bool = False


class LogEntry(NamedTuple):
    """One line of a job's log. ``timestamp`` in epoch ms; ``level`` is free text."""

    timestamp: int
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class QueueMetrics:
    """Completed or failed jobs by minute: lifetime ``count``, the latest time (0: never) with its minute's count, and ``data``,
    the buckets newest first in the window asked for; ``buckets`` is their number before the window was cut."""

    count: int
    previous_at: int
    previous_count: int
    data: list[int]
    buckets: int


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the broker can work. ``problem`` is fit for clients: it names no host, path or statement."""

    ready: bool
    degraded: bool = False
    problem: str | None = None
    disk_full: bool = False
    since: int | None = None


class Notice(NamedTuple):
    """Something besides job events that those who watch a broker are told: a name such as ``job:expired`` and its fields."""

    name: str
    fields: dict[str, Any]


class Event(NamedTuple):
    """Something that happened to a job or queue. ``job_id`` is empty for queue events; ``extra`` holds camelCase fields."""

    type: str
    queue: str
    job_id: str
    timestamp: int
    extra: dict[str, Any] | None = None
