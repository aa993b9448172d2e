"""The job record and the input that makes one: data and pure rules, no I/O, no clock.

Times are integer milliseconds since the epoch, durations integer milliseconds. Payloads (``data``, results) are MessagePack
bytes (see :mod:`bunqueue_core.model.payload`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict

import msgspec

JobState = Literal[
    "waiting", "prioritized", "delayed", "active", "waiting-children", "completed", "failed", "unknown", "paused"
]

#: Every state a job view may show, in the order in which counts list them.
JOB_STATES: Final[tuple[JobState, ...]] = (
    "waiting",
    "prioritized",
    "delayed",
    "active",
    "completed",
    "failed",
    "waiting-children",
    "paused",
)

#: Entries that a timeline keeps; once full, later ones are dropped (the oldest tell how the job began).
TIMELINE_LIMIT: Final = 20


class Location:
    """Where the engine holds a job. An id has exactly one; small integers, because the hot path compares them."""

    READY: Final = 0  #: in its queue's ready or delayed set
    GATED: Final = 1  #: waits for dependencies
    PARKED: Final = 2  #: moved to waiting-children by hand, without unmet dependencies
    ACTIVE: Final = 3  #: delivered, being processed
    COMPLETED: Final = 4
    DEAD: Final = 5  #: in the dead-letter queue
    GONE: Final = 6  #: no longer known; containers skip such entries


class BackoffConfig(TypedDict, total=False):
    """``backoff`` in its object form: ``type`` names a strategy, ``delay`` and ``maxDelay`` are in ms."""

    type: str
    delay: int
    maxDelay: int


@dataclass(frozen=True, slots=True)
class Retention:
    """What happens to a job that has ended: ``remove`` at once, or keep by ``age_ms`` and by ``count``.

    ``None`` in a bound means that it does not apply. The wire shows :attr:`as_flag` (a boolean), as the reference does.
    """

    remove: bool = False
    age_ms: int | None = None
    count: int | None = None

    @property
    def as_flag(self) -> bool:
        return self.remove or self.age_ms is not None or self.count is not None


KEEP: Final = Retention()
REMOVE: Final = Retention(remove=True)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options that never change after admission. Jobs with the same options may share one instance."""

    max_attempts: int = 3
    backoff_ms: int = 1000
    backoff: BackoffConfig | None = None
    ttl_ms: int | None = None
    timeout_ms: int | None = None
    stall_timeout_ms: int | None = None
    lifo: bool = False
    remove_on_complete: Retention = KEEP
    remove_on_fail: Retention = KEEP
    stack_trace_limit: int = 10
    keep_logs: int | None = None
    size_limit: int | None = None
    fail_parent_on_failure: bool = False
    remove_dependency_on_failure: bool = False
    continue_parent_on_failure: bool = False
    ignore_dependency_on_failure: bool = False
    dedup_ttl_ms: int | None = None
    dedup_extend: bool = False
    dedup_replace: bool = False
    dedup_scope: Literal["waiting", "unfinished", "window"] | None = None
    debounce_id: str | None = None
    debounce_ttl_ms: int | None = None
    debounce_max_wait_ms: int | None = None
    durable: bool = False
    repeat: dict[str, Any] | None = None  #: camelCase keys as on the wire


DEFAULT_OPTIONS: Final = JobOptions()

#: The options of a job that is only said to be durable: as frequent as none at all where adds are.
DURABLE_OPTIONS: Final = JobOptions(durable=True)


class JobSpec(msgspec.Struct, gc=False, eq=False):
    """One job to be admitted: validated input, not yet decided upon (see ``model.options`` for the validation).

    Attributes:
        name: name of the job.
        data: encoded payload; None when the producer gave none.
        options: what never changes after admission.
        plain: known to have nothing but name, data and durability (see :func:`plain_spec`).
        priority: higher first.
        delay: ms after ``timestamp``.
        timestamp: becomes ``created_at`` (epoch ms); None means now.
        parent_queue: set when the payload asks to be linked to ``parent_id`` (``__parentQueue``).
    """

    name: str = "default"
    data: bytes | None = None
    options: JobOptions = DEFAULT_OPTIONS
    plain: bool = False
    priority: int = 0
    delay: int = 0
    timestamp: int | None = None
    custom_id: str | None = None
    unique_key: str | None = None
    group_id: str | None = None
    group_max_size: int | None = None
    depends_on: tuple[str, ...] = ()
    parent_id: str | None = None
    parent_queue: str | None = None
    children_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


def plain_spec(name: str, data: bytes | None, options: JobOptions = DEFAULT_OPTIONS) -> JobSpec:
    """A spec with nothing but a name and data; ``options`` may be :data:`DURABLE_OPTIONS`."""
    return JobSpec(name, data, options, True)


class TimelineEntry(TypedDict, total=False):
    """One step of a job's life. ``timestamp`` in epoch ms."""

    state: str
    timestamp: int
    error: str
    attempt: int
    worker: str


class AttemptRecord(TypedDict):
    """One failed attempt, kept while the job lives and in its dead-letter entry. Times in epoch ms, ``duration`` in ms."""

    attempt: int
    startedAt: int
    failedAt: int
    reason: str
    error: str | None
    duration: int


class Lease:
    """A delivery's lock: who may finish the job, and until when."""

    __slots__ = ("created_at", "expires_at", "owner", "renewals", "token", "ttl_ms")

    def __init__(self, token: str, owner: str, created_at: int, ttl_ms: int) -> None:
        self.token = token
        self.owner = owner
        self.created_at = created_at
        self.ttl_ms = ttl_ms
        self.expires_at = created_at + ttl_ms
        self.renewals = 0


class Job(msgspec.Struct, gc=False, eq=False):
    """A job and where it stands. Mutable: the engine owns it; whoever is handed one from a broker only reads it.

    ``timeline`` is ``None`` while the job has only its admission entry (state ``admitted_as`` at ``admitted_at``): most
    waiting jobs never need the list. Use :func:`timeline_of` to read it and :func:`append_timeline` to extend it.

    The garbage collector does not look at jobs: there may be millions, which it would walk over and over. So nothing that a job
    refers to may refer back to it.
    """

    id: str
    queue: str
    name: str
    data: bytes | None
    options: JobOptions
    priority: int
    created_at: int
    run_at: int
    admitted_as: JobState
    admitted_at: int
    last_heartbeat: int = 0  #: becomes ``created_at`` if it is not given
    started_at: int | None = None
    completed_at: int | None = None
    attempts: int = 0  #: failed attempts so far
    stall_count: int = 0
    progress: int | float = 0
    progress_message: str | None = None
    timeline: list[TimelineEntry] | None = None
    stacktrace: list[str] | None = None
    history: RetryHistory | None = None
    custom_id: str | None = None
    unique_key: str | None = None
    group_id: str | None = None
    group_order: int = 0  #: admission order inside the group; kept by retries
    parent_id: str | None = None
    depends_on: tuple[str, ...] = ()
    children_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    lease: Lease | None = None
    session: str | None = None  #: connection that would hand the job back when it closes
    location: int = Location.READY
    stored: bool = False  #: a row of this generation is (or is about to be) in the journal
    dirty: int = 0  #: the engine's mark of what the next commit writes of it
    where: int = 0  #: the engine's mark of the container that holds an entry for it
    timer: int = 0  #: slot of its deadline while it is active

    def __post_init__(self) -> None:
        if not self.last_heartbeat:
            self.last_heartbeat = self.created_at

    def snapshot(self) -> Job:
        """Copy the job, so that a caller may keep it while the original goes on changing."""
        other = copy.copy(self)
        if self.timeline is not None:
            other.timeline = list(self.timeline)
        return other

    def __lt__(self, other: Job) -> bool:
        """Heaps compare jobs only where a stale entry and a live one of the same id tie: which goes first does not matter."""
        return False

    def __repr__(self) -> str:
        return f"Job(id={self.id!r}, queue={self.queue!r}, name={self.name!r}, attempts={self.attempts})"


class RetryHistory:
    """Failed attempts of a live job, and what its dead-letter entry carried when it was retried from there."""

    __slots__ = ("attempts", "entered_at", "expires_at", "last_retry_at", "losses", "next_retry_at", "retry_count")

    def __init__(self) -> None:
        self.attempts: list[AttemptRecord] = []
        self.entered_at: int | None = None
        self.expires_at: int | None = None
        self.retry_count = 0
        self.last_retry_at: int | None = None
        self.next_retry_at: int | None = None
        self.losses = 0  #: deliveries in a row whose worker vanished without an outcome


def admission_entry(job: Job) -> TimelineEntry:
    """The timeline's first entry."""
    return {"state": job.admitted_as, "timestamp": job.admitted_at}


def timeline_of(job: Job) -> list[TimelineEntry]:
    """The job's timeline, at most :data:`TIMELINE_LIMIT` entries, oldest first."""
    return job.timeline if job.timeline is not None else [admission_entry(job)]


def append_timeline(job: Job, entry: TimelineEntry) -> None:
    """Add ``entry`` unless the timeline is full."""
    timeline = job.timeline
    if timeline is None:
        timeline = job.timeline = [admission_entry(job)]
    if len(timeline) < TIMELINE_LIMIT:
        timeline.append(entry)


def ready_state(job: Job, now: int) -> JobState:
    """State of a job in its queue's run set at ``now`` (epoch ms): delayed, prioritized or waiting."""
    if job.run_at > now:
        return "delayed"
    return "prioritized" if job.priority > 0 else "waiting"


def failed_reason(job: Job) -> str | None:
    """Error text of the newest failed timeline entry that has one."""
    for entry in reversed(job.timeline or ()):
        if entry["state"] == "failed" and entry.get("error"):
            return entry["error"]
    return None
