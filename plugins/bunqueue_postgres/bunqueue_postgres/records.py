"""Jobs as rows of ``bunqueue.jobs``, and back. The one place that knows what is packed into which column.

Blobs are MessagePack with exact integers; they never leave the database for a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, cast

import msgpack

from bunqueue_core.model.errors import SerializationError
from bunqueue_core.model.job import (
    DEFAULT_OPTIONS,
    Job,
    JobOptions,
    JobSpec,
    JobState,
    Lease,
    Location,
    Retention,
    RetryHistory,
    TimelineEntry,
    admission_entry,
    failed_reason,
    ready_state,
)
from bunqueue_core.model.requests import DlqConfig, DlqEntry, DlqReason, JobView, StallConfig
from bunqueue_postgres.keys import is_whole, unescape

#: ``flags``: the id is a custom id; the job is removed on completion; live jobs may wait for it; it waits, or waited, for others;
#: it has a deduplication key; it repeats; it says itself how long it is kept; a delivery
#: of it ended by its time-out; its deduplication key is free once it is delivered.
CUSTOM: Final = 1
REMOVE: Final = 2
AWAITED: Final = 4
WAITING: Final = 8
KEYED: Final = 16
REPEATS: Final = 32
RETAINED: Final = 64
RETIRED: Final = 128
FREED_BY_CLAIM: Final = 256

#: Flags with which a job can be completed by the one acknowledging statement.
PLAIN_FLAGS: Final = CUSTOM | REMOVE | RETIRED

#: ``admitted_as``.
ADMITTED: Final[tuple[JobState, ...]] = ("waiting", "prioritized", "delayed", "waiting-children")

_OPTION_DEFAULTS: Final = tuple((field.name, field.default) for field in fields(JobOptions))
_RETENTIONS: Final = ("remove_on_complete", "remove_on_fail")

#: Decoded options kept for reuse: producers use few different ones, and a shared instance costs a job nothing.
_CACHE_BOUND: Final = 1024


def pack(value: Any) -> bytes:
    """Pack a blob of our own.

    Raises:
        SerializationError: a string in it is not well-formed Unicode, or a number too large.
    """
    try:
        return cast(bytes, msgpack.packb(value, use_bin_type=True))
    except UnicodeEncodeError:
        raise SerializationError("text is not well-formed Unicode") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise SerializationError(f"value cannot be encoded: {error}") from None


def unpack(blob: bytes) -> Any:
    """Read a blob of our own."""
    return msgpack.unpackb(blob, strict_map_key=False)


_DEFAULT_STALL: Final = StallConfig()
_DEFAULT_DLQ: Final = DlqConfig()


class OptionsCodec:
    """Packs and reads :class:`JobOptions`; the default options are NULL."""

    __slots__ = ("_packed", "_read")

    def __init__(self) -> None:
        # By identity: options compare by 25 fields and may hold dictionaries. The kept reference keeps the identity valid.
        self._packed: dict[int, tuple[JobOptions, bytes]] = {}
        self._read: dict[bytes, JobOptions] = {}

    def pack(self, options: JobOptions) -> bytes | None:
        """The blob of ``options``."""
        if options is DEFAULT_OPTIONS:
            return None
        known = self._packed.get(id(options))
        if known is not None:
            return known[1]
        changed: dict[str, Any] = {}
        for name, default in _OPTION_DEFAULTS:
            value = getattr(options, name)
            if value != default:
                changed[name] = [value.remove, value.age_ms, value.count] if isinstance(value, Retention) else value
        if not changed:
            return None
        blob = pack(changed)
        if len(self._packed) >= _CACHE_BOUND:
            self._packed.clear()
        self._packed[id(options)] = (options, blob)
        return blob

    def read(self, blob: bytes | None) -> JobOptions:
        """The options of a blob."""
        if blob is None:
            return DEFAULT_OPTIONS
        options = self._read.get(blob)
        if options is None:
            changed = unpack(blob)
            for name in _RETENTIONS:
                if name in changed:
                    changed[name] = Retention(*changed[name])
            options = JobOptions(**changed)
            if len(self._read) >= _CACHE_BOUND:
                self._read.clear()
            self._read[blob] = options
        return options


def pack_extra(spec: JobSpec, id: str, key: str) -> bytes | None:
    """What a job has beyond the columns: tags, relations, and its id where the key does not hold it."""
    whole = is_whole(key)
    if whole and not (spec.tags or spec.children_ids or spec.depends_on or spec.parent_id):
        return None
    return pack(
        [
            list(spec.tags),
            list(spec.children_ids),
            list(spec.depends_on),
            spec.parent_id,
            None if whole else id,
        ]
    )


def pack_job_extra(job: Job, key: str) -> bytes | None:
    """As :func:`pack_extra`, of a job that is there."""
    whole = is_whole(key)
    if whole and not (job.tags or job.children_ids or job.depends_on or job.parent_id):
        return None
    return pack(
        [list(job.tags), list(job.children_ids), list(job.depends_on), job.parent_id, None if whole else job.id]
    )


def pack_past(job: Job) -> bytes | None:
    """Timeline, stack trace and history of a job that left the straight way."""
    history = job.history
    return pack(
        [
            job.timeline,
            job.stacktrace,
            None
            if history is None
            else [
                history.attempts,
                history.entered_at,
                history.expires_at,
                history.retry_count,
                history.last_retry_at,
                history.next_retry_at,
                history.losses,
            ],
        ]
    )


def _read_past(job: Job, blob: bytes) -> None:
    timeline, stacktrace, history = unpack(blob)
    job.timeline = timeline
    job.stacktrace = stacktrace
    if history is not None:
        read = RetryHistory()
        (
            read.attempts,
            read.entered_at,
            read.expires_at,
            read.retry_count,
            read.last_retry_at,
            read.next_retry_at,
            read.losses,
        ) = history
        job.history = read


def pack_progress(job: Job) -> bytes | None:
    """Progress and its message; NULL before the first."""
    return pack([job.progress, job.progress_message]) if job.progress or job.progress_message is not None else None


#: Where :func:`pack_dead` has the times at which something becomes of the letter.
_RETRY_AND_EXPIRY: Final = slice(5, 7)


def pack_dead(entry: DlqEntry) -> bytes:
    """A dead letter beside its job's row; ``entered_at`` is the row's ``finished_at``."""
    return pack(
        [
            entry.reason,
            entry.error,
            entry.attempts,
            entry.retry_count,
            entry.last_retry_at,
            entry.next_retry_at,
            entry.expires_at,
        ]
    )


def due_of(status: int, finished_at: int | None, options: JobOptions, dead: bytes | None) -> int | None:
    """When an ended job is due to be removed or, a dead letter, retried by itself, epoch ms; None: never."""
    if status == Location.COMPLETED:
        age_ms = options.remove_on_complete.age_ms
        return None if age_ms is None or finished_at is None else finished_at + age_ms
    times = () if dead is None else unpack(dead)[_RETRY_AND_EXPIRY]
    return min((at for at in times if at is not None), default=None)


class RecordReader:
    """Makes jobs of rows."""

    __slots__ = ("options",)

    def __init__(self, options: OptionsCodec) -> None:
        self.options = options

    def claimed(self, queue: str, row: Sequence[Any]) -> tuple[int, Job]:
        """The job of a row of ``claim.sql`` (from its column ``n`` on), with its slot. Its lease is the caller's to add."""
        (
            n,
            key,
            name,
            data,
            options,
            extra,
            past,
            progress,
            priority,
            created_at,
            run_at,
            admitted_at,
            admitted_as,
            started_at,
            _,
            attempts,
            stall_count,
            flags,
            unique_key,
            group_id,
            parent_id,
        ) = row
        job = Job(
            key,
            queue,
            "default" if name is None else name,
            data,
            DEFAULT_OPTIONS if options is None else self.options.read(options),
            priority,
            created_at,
            run_at,
            ADMITTED[admitted_as],
            admitted_at,
        )
        job.started_at = started_at
        job.last_heartbeat = started_at
        job.location = Location.ACTIVE
        job.stored = True
        if attempts:
            job.attempts = attempts
        if stall_count:
            job.stall_count = stall_count
        if extra is not None or "\x01" in key or "\x01" in job.name:
            self._read_extra(job, key, extra)
        if flags & CUSTOM:
            job.custom_id = job.id
        if past is not None:
            _read_past(job, past)
        if progress is not None:
            job.progress, job.progress_message = unpack(progress)
        if unique_key is not None:
            job.unique_key = unescape(unique_key)
        if group_id is not None:
            job.group_id = group_id
        if parent_id is not None and job.parent_id is None:
            job.parent_id = unescape(parent_id)
        timeline = job.timeline
        if timeline is None:
            timeline = job.timeline = [admission_entry(job)]
        if len(timeline) < 20:
            timeline.append({"state": "active", "timestamp": started_at})
        return n, job

    @staticmethod
    def _read_extra(job: Job, key: str, extra: bytes | None) -> None:
        job.id = unescape(key)
        job.name = unescape(job.name)
        if extra is not None:
            tags, children, depends_on, parent_id, whole_id = unpack(extra)
            job.tags = tuple(tags)
            job.children_ids = tuple(children)
            job.depends_on = tuple(depends_on)
            job.parent_id = parent_id
            if whole_id is not None:
                job.id = whole_id

    def record(self, row: Sequence[Any]) -> Record:
        """The job of a row of ``read.sql`` or ``lock.sql``, from ``id`` to ``queue_id``."""
        (
            key,
            queue,
            name,
            data,
            options,
            extra,
            past,
            progress,
            priority,
            created_at,
            run_at,
            admitted_at,
            admitted_as,
            status,
            started_at,
            finished_at,
            heartbeat_at,
            lease_until,
            attempts,
            stall_count,
            renewals,
            flags,
            unique_key,
            group_id,
            group_order,
            parent_id,
            token,
            owner,
            session,
            result,
            dead,
            queue_id,
        ) = row
        job = Job(
            key,
            queue,
            "default" if name is None else name,
            data,
            self.options.read(options),
            priority,
            created_at,
            run_at,
            ADMITTED[admitted_as],
            admitted_at,
        )
        job.stored = True
        job.location = status
        job.started_at = started_at
        job.attempts = attempts
        job.stall_count = stall_count
        if heartbeat_at is not None:
            job.last_heartbeat = heartbeat_at
        elif started_at is not None:
            job.last_heartbeat = started_at
        if extra is not None or "\x01" in key or "\x01" in job.name:
            self._read_extra(job, key, extra)
        if flags & CUSTOM:
            job.custom_id = job.id
        if past is not None:
            _read_past(job, past)
        if progress is not None:
            job.progress, job.progress_message = unpack(progress)
        job.unique_key = None if unique_key is None else unescape(unique_key)
        job.group_id = group_id
        job.group_order = group_order or 0
        if parent_id is not None and job.parent_id is None:
            job.parent_id = unescape(parent_id)
        if started_at is not None and status in (Location.ACTIVE, Location.COMPLETED):
            self._append(job, {"state": "active", "timestamp": started_at})
        if status == Location.COMPLETED:
            job.completed_at = finished_at
            self._append(job, {"state": "completed", "timestamp": finished_at})
        if status == Location.ACTIVE and owner is not None:
            job.lease = Lease(token, unescape(owner), started_at, lease_until - started_at)
            job.lease.renewals = renewals
        return Record(
            job,
            key,
            queue_id,
            flags,
            started_at,
            finished_at,
            lease_until,
            renewals,
            token,
            owner,
            session,
            result,
            dead,
        )

    @staticmethod
    def _append(job: Job, entry: TimelineEntry) -> None:
        timeline = job.timeline
        if timeline is None:
            timeline = job.timeline = [admission_entry(job)]
        if len(timeline) < 20:
            timeline.append(entry)


class Record:
    """A job with what its row knows beyond the job."""

    __slots__ = (
        "awaited",
        "dead",
        "dlq",
        "finished_at",
        "flags",
        "job",
        "key",
        "key_owner",
        "key_windowed",
        "lease_until",
        "owner",
        "queue_id",
        "renewals",
        "result",
        "session",
        "stall",
        "started_at",
        "token",
        "waiters",
        "was",
    )

    def __init__(
        self,
        job: Job,
        key: str,
        queue_id: int,
        flags: int,
        started_at: int | None,
        finished_at: int | None,
        lease_until: int | None,
        renewals: int,
        token: str | None,
        owner: str | None,
        session: Any,
        result: bytes | None,
        dead: bytes | None,
    ) -> None:
        self.job = job
        self.key = key
        self.queue_id = queue_id
        self.flags = flags
        self.started_at = started_at  #: of the delivery that the row is, or ended, under
        self.finished_at = finished_at
        self.lease_until = lease_until
        self.renewals = renewals
        self.token = token
        self.owner = None if owner is None else unescape(owner)
        self.session = session
        self.result = result
        self.dead = dead
        self.stall: StallConfig = _DEFAULT_STALL  #: policies of its queue, where they were read with it
        self.dlq: DlqConfig = _DEFAULT_DLQ
        self.was = job.location  #: where the row was when it was read
        self.awaited = False  #: live jobs wait, or waited, for it; read with a lock only
        self.waiters: list[str] = []  #: their keys
        self.key_owner: str | None = None  #: another job that owns its deduplication key; read with a lock only
        self.key_windowed = False  #: its deduplication key is taken by another job's window; read with a lock only

    def state(self, now: int) -> JobState:
        """The public state at ``now`` (epoch ms, database clock)."""
        return state_of(self.job, now)

    def view(self, now: int) -> JobView:
        """As queries show it."""
        return JobView(self.job, self.state(now), self.result, failed_reason(self.job))

    def dead_letter(self) -> DlqEntry:
        """The dead letter of a job that is one."""
        assert self.dead is not None
        assert self.finished_at is not None
        reason, error, attempts, retry_count, last_retry_at, next_retry_at, expires_at = unpack(self.dead)
        return DlqEntry(
            job=self.job,
            entered_at=self.finished_at,
            reason=cast(DlqReason, reason),
            error=error,
            attempts=attempts,
            retry_count=retry_count,
            last_retry_at=last_retry_at,
            next_retry_at=next_retry_at,
            expires_at=expires_at,
        )


_STATES: Final[dict[int, JobState]] = {
    Location.GATED: "waiting-children",
    Location.PARKED: "waiting-children",
    Location.ACTIVE: "active",
    Location.COMPLETED: "completed",
    Location.DEAD: "failed",
}


def state_of(job: Job, now: int) -> JobState:
    """The public state of a job at ``now`` (epoch ms)."""
    return _STATES.get(job.location) or ready_state(job, now)


def state_from_columns(status: int, priority: int, run_at: int, now: int) -> JobState:
    """As :func:`state_of`, from the columns alone."""
    state = _STATES.get(status)
    if state is not None:
        return state
    if run_at > now:
        return "delayed"
    return "prioritized" if priority > 0 else "waiting"


def pack_stall_config(config: StallConfig) -> bytes:
    """A queue's stall policy."""
    return pack([config.enabled, config.stall_interval_ms, config.max_stalls, config.grace_period_ms])


def read_stall_config(blob: bytes | None) -> StallConfig:
    """Undo :func:`pack_stall_config`; NULL is the default."""
    return _DEFAULT_STALL if blob is None else StallConfig(*unpack(blob))


def pack_dlq_config(config: DlqConfig) -> bytes:
    """A queue's dead-letter policy."""
    return pack(
        [
            config.auto_retry,
            config.auto_retry_interval_ms,
            config.max_auto_retries,
            config.max_age_ms,
            config.max_entries,
        ]
    )


def read_dlq_config(blob: bytes | None) -> DlqConfig:
    """Undo :func:`pack_dlq_config`; NULL is the default."""
    return _DEFAULT_DLQ if blob is None else DlqConfig(*unpack(blob))
