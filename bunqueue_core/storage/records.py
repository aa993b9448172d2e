"""Jobs and dead letters as rows, and back. The one place that knows how a column maps to a field."""

from __future__ import annotations

from collections.abc import Callable
from sys import intern
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgpack

from bunqueue_core.model.job import (
    DEFAULT_OPTIONS,
    DURABLE_OPTIONS,
    KEEP,
    REMOVE,
    AttemptRecord,
    BackoffConfig,
    Job,
    JobOptions,
    JobState,
    Location,
    Retention,
    RetryHistory,
    TimelineEntry,
    admission_entry,
    ready_state,
)
from bunqueue_core.model.payload import NULL, Packer
from bunqueue_core.model.requests import DlqConfig, DlqEntry, DlqReason, LogEntry
from bunqueue_core.storage.changes import REST_COLUMNS, REST_DEFAULTS, DlqRow, JobRow, MoveRow, StoredJobLike

if TYPE_CHECKING:
    from bunqueue_core.storage.journal import StoredJob

T = TypeVar("T")

_REST: Final = {name: index for index, (name, _) in enumerate(REST_COLUMNS)}

_FLAGS: Final = (
    "fail_parent_on_failure",
    "remove_dependency_on_failure",
    "continue_parent_on_failure",
    "ignore_dependency_on_failure",
)


def unpack(blob: bytes) -> Any:
    """Decode a blob that the core packed itself."""
    return msgpack.unpackb(blob, strict_map_key=False, ext_hook=_ext)


def _ext(code: int, data: bytes) -> Any:
    return None if code == 0 else msgpack.ExtType(code, data)


def state_of(job: Job) -> JobState:
    """The state a row stores; of the ready states only a hint (they follow from ``run_at`` and ``priority``)."""
    location = job.location
    if location == Location.ACTIVE:
        return "active"
    if location == Location.COMPLETED:
        return "completed"
    if location == Location.GATED or location == Location.PARKED:
        return "waiting-children"
    # run_at alone decides between delayed and ready; the row needs no clock to say which it was at admission
    return "delayed" if job.run_at > job.admitted_at else ("prioritized" if job.priority > 0 else "waiting")


#: What a durable job's row has besides the plain columns.
_DURABLE_REST: Final = (*REST_DEFAULTS[:-1], msgpack.packb({"durable": True}))

#: Makes a row without the detour over its class's own constructor: the most frequent row by far is worth it.
_new_tuple: Final = tuple.__new__


class RowBuilder:
    """Builds rows from live jobs. Used under the engine's lock, by one thread at a time."""

    __slots__ = ("_pack",)

    def __init__(self) -> None:
        # Blobs of our own keep integers as they are; only payloads follow the wire's rule for numbers.
        self._pack: Callable[[Any], bytes] = msgpack.Packer(autoreset=True).pack

    @staticmethod
    def put_plain(job: Job) -> JobRow:
        """The row of a job that was admitted with no option but priority, delay and durability and has not changed since."""
        data = job.data
        return _new_tuple(
            JobRow,
            (
                job.id,
                job.queue,
                job.name,
                data if data is not None else NULL,
                job.priority,
                job.created_at,
                job.run_at,
                job.admitted_as,
                None if job.options is DEFAULT_OPTIONS else _DURABLE_REST,
            ),
        )

    def put(self, job: Job) -> JobRow:
        """The whole row."""
        return JobRow(
            job.id,
            job.queue,
            job.name,
            job.data if job.data is not None else NULL,
            job.priority,
            job.created_at,
            job.run_at,
            job.admitted_as if job.timeline is None else state_of(job),
            self._rest(job),
        )

    def move(self, job: Job) -> MoveRow:
        """The columns that change when a stored job only moves on."""
        return MoveRow(job.id, state_of(job), job.started_at, job.completed_at, self._timeline(job))

    def _timeline(self, job: Job) -> bytes | None:
        if job.timeline is not None:
            return self._pack(job.timeline)
        if job.admitted_at != job.created_at:
            return self._pack([admission_entry(job)])
        return None

    def _rest(self, job: Job) -> tuple[Any, ...]:
        options = job.options
        pack = self._pack
        return (
            job.started_at,
            job.completed_at,
            job.attempts,
            options.max_attempts,
            options.backoff_ms,
            options.ttl_ms,
            options.timeout_ms,
            job.unique_key,
            job.custom_id,
            pack(job.depends_on) if job.depends_on else None,
            job.parent_id,
            pack(job.children_ids) if job.children_ids else None,
            pack(job.tags) if job.tags else None,
            int(options.lifo),
            job.group_id,
            job.progress if job.completed_at is None else 100,
            job.progress_message,
            int(options.remove_on_complete.as_flag),
            int(options.remove_on_fail.as_flag),
            int(options.fail_parent_on_failure),
            int(options.remove_dependency_on_failure),
            int(options.continue_parent_on_failure),
            int(options.ignore_dependency_on_failure),
            options.stall_timeout_ms,
            job.last_heartbeat if job.last_heartbeat != job.created_at else None,
            job.stall_count,
            self._timeline(job),
            pack(job.stacktrace) if job.stacktrace is not None else None,
            pack(history_map(job.history)) if job.history is not None else None,
            self._extended(job),
        )

    def _extended(self, job: Job) -> bytes | None:
        extended = extended_options(job.options)
        if job.group_id is not None:
            extended["groupFifoOrder"] = str(job.group_order)
        return self._pack(extended) if extended else None

    def dlq(self, id: int, entry: DlqEntry) -> DlqRow:
        """A dead letter with its job."""
        job = entry.job
        blob = self._pack(
            {
                "job": job_map(job),
                "enteredAt": entry.entered_at,
                "reason": entry.reason,
                "error": entry.error,
                "attempts": entry.attempts,
                "retryCount": entry.retry_count,
                "lastRetryAt": entry.last_retry_at,
                "nextRetryAt": entry.next_retry_at,
                "expiresAt": entry.expires_at,
            }
        )
        return DlqRow(id, job.id, job.queue, blob, entry.entered_at)


def history_map(history: RetryHistory) -> dict[str, Any]:
    return {
        "enteredAt": history.entered_at,
        "expiresAt": history.expires_at,
        "attempts": history.attempts,
        "retryCount": history.retry_count,
        "lastRetryAt": history.last_retry_at,
        "nextRetryAt": history.next_retry_at,
        "losses": history.losses,
    }


def history_from(value: dict[str, Any]) -> RetryHistory:
    history = RetryHistory()
    history.attempts = [
        cast("AttemptRecord", {key: _integer(field) for key, field in record.items()})
        for record in value.get("attempts") or ()
    ]
    history.entered_at = _integer(value.get("enteredAt"))
    history.expires_at = _integer(value.get("expiresAt"))
    history.retry_count = int(value.get("retryCount") or 0)
    history.last_retry_at = _integer(value.get("lastRetryAt"))
    history.next_retry_at = _integer(value.get("nextRetryAt"))
    history.losses = int(value.get("losses") or 0)
    return history


def _integer(value: Any) -> Any:
    """Times are packed as float64 (see ``model.payload``); give back the integer."""
    return int(value) if isinstance(value, float) else value


def _retention_map(retention: Retention) -> dict[str, int] | None:
    """``{age, count}`` as the producer gave it, None for the plain boolean forms."""
    if retention.age_ms is None and retention.count is None:
        return None
    return {k: v for k, v in (("age", retention.age_ms), ("count", retention.count)) if v is not None}


def extended_options(options: JobOptions) -> dict[str, Any]:
    """Options without a column of their own that differ from the default, by their wire names."""
    if options is DEFAULT_OPTIONS:
        return {}
    default = DEFAULT_OPTIONS
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("backoffConfig", options.backoff, default.backoff),
        ("repeat", options.repeat, default.repeat),
        ("stackTraceLimit", options.stack_trace_limit, default.stack_trace_limit),
        ("keepLogs", options.keep_logs, default.keep_logs),
        ("sizeLimit", options.size_limit, default.size_limit),
        ("deduplicationTtl", options.dedup_ttl_ms, default.dedup_ttl_ms),
        ("deduplicationExtend", options.dedup_extend, default.dedup_extend),
        ("deduplicationReplace", options.dedup_replace, default.dedup_replace),
        ("deduplicationScope", options.dedup_scope, default.dedup_scope),
        ("debounceId", options.debounce_id, default.debounce_id),
        ("debounceTtl", options.debounce_ttl_ms, default.debounce_ttl_ms),
        ("debounceMaxWait", options.debounce_max_wait_ms, default.debounce_max_wait_ms),
        ("durable", options.durable, default.durable),
        ("removeOnComplete", _retention_map(options.remove_on_complete), None),
        ("removeOnFail", _retention_map(options.remove_on_fail), None),
    )
    return {name: value for name, value, usual in pairs if value != usual}


def _retention(flag: Any, stored: dict[str, Any] | None) -> Retention:
    if stored:
        return Retention(age_ms=_integer(stored.get("age")), count=_integer(stored.get("count")))
    return REMOVE if flag else KEEP


def options_from(get: Any, extended: dict[str, Any]) -> JobOptions:
    """Options from a getter of column values and the extended map."""
    options = JobOptions(
        max_attempts=get("max_attempts"),
        backoff_ms=_integer(get("backoff")),
        backoff=cast("BackoffConfig | None", extended.get("backoffConfig")),
        ttl_ms=_integer(get("ttl")),
        timeout_ms=_integer(get("timeout")),
        stall_timeout_ms=_integer(get("stall_timeout")),
        lifo=bool(get("lifo")),
        remove_on_complete=_retention(get("remove_on_complete"), extended.get("removeOnComplete")),
        remove_on_fail=_retention(get("remove_on_fail"), extended.get("removeOnFail")),
        stack_trace_limit=extended.get("stackTraceLimit", DEFAULT_OPTIONS.stack_trace_limit),
        keep_logs=extended.get("keepLogs"),
        size_limit=extended.get("sizeLimit"),
        fail_parent_on_failure=bool(get("fail_parent_on_failure")),
        remove_dependency_on_failure=bool(get("remove_dependency_on_failure")),
        continue_parent_on_failure=bool(get("continue_parent_on_failure")),
        ignore_dependency_on_failure=bool(get("ignore_dependency_on_failure")),
        dedup_ttl_ms=_integer(extended.get("deduplicationTtl")),
        dedup_extend=extended.get("deduplicationExtend", False),
        dedup_replace=extended.get("deduplicationReplace", False),
        dedup_scope=extended.get("deduplicationScope"),
        debounce_id=extended.get("debounceId"),
        debounce_ttl_ms=_integer(extended.get("debounceTtl")),
        debounce_max_wait_ms=_integer(extended.get("debounceMaxWait")),
        durable=extended.get("durable", False),
        repeat=extended.get("repeat"),
    )
    for frequent in (DEFAULT_OPTIONS, DURABLE_OPTIONS):
        if options == frequent:
            return frequent
    return options


class CorruptDependencies(ValueError):
    """A stored ``depends_on`` does not decode to a list of ids; it must not be read as "no dependencies"."""


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError("not a list of texts")
    return tuple(value)


def _dependencies(blob: bytes | None) -> tuple[str, ...]:
    if blob is None:
        return ()
    try:
        return _texts(unpack(blob))
    except Exception:
        raise CorruptDependencies from None


def _timeline_from(value: Any) -> list[TimelineEntry]:
    return [cast("TimelineEntry", {key: _integer(field) for key, field in entry.items()}) for entry in value]


def job_from_row(row: JobRow | StoredJob, *, tolerate_corrupt: bool = False, damaged: list[str] | None = None) -> Job:
    """The job of a stored row; its location follows from the row's state (ready, active, completed, gated or parked).

    A blob that cannot be decoded is read as if nothing were stored in it, so that it stops neither a start nor a query.

    Args:
        row: the row.
        tolerate_corrupt: read undecodable dependencies so, too.
        damaged: is told the columns of blobs that could not be decoded, as ``<id>.<column>``.

    Raises:
        CorruptDependencies: ``depends_on`` cannot be decoded, unless ``tolerate_corrupt``.
    """
    # A start makes a million: unpacking the row takes half as long as asking it for each field.
    id, queue, name, data, priority, created_at, run_at, text, rest = row
    # Queues, names and states repeat in every row: one string each instead of a million.
    state: JobState = intern(text)  # type: ignore[assignment]
    job = Job(
        id,
        intern(queue),
        intern(name or "default"),
        data,
        DEFAULT_OPTIONS,
        priority,
        created_at,
        int(run_at),
        state,
        created_at,
        created_at,
        stored=True,
    )
    if rest is not None and rest is not REST_DEFAULTS and rest != REST_DEFAULTS:
        _add_rest(job, rest, state, tolerate_corrupt, damaged)
    return job


def _add_rest(
    job: Job, rest: tuple[Any, ...], state: JobState, tolerate_corrupt: bool, damaged: list[str] | None
) -> None:
    """Set what stands in the columns behind the plain ones."""
    get = _getter(rest)

    def read(column: str, form: Callable[[Any], T], otherwise: T) -> T:
        blob = get(column)
        if blob is None:
            return otherwise
        try:
            return form(unpack(blob))
        except Exception:
            if damaged is not None:
                damaged.append(f"{job.id}.{column}")
            return otherwise

    extended: dict[str, Any] = read("extended_options", dict, {})
    job.options = options_from(get, extended)
    job.started_at = get("started_at")
    job.completed_at = get("completed_at")
    job.attempts = get("attempts")
    job.unique_key = get("unique_key")
    job.custom_id = get("custom_id")
    job.parent_id = get("parent_id") or None
    job.children_ids = read("children_ids", _texts, ())
    job.tags = read("tags", _texts, ())
    job.group_id = get("group_id")
    job.group_order = int(extended.get("groupFifoOrder", 0))
    job.progress = get("progress") or 0
    job.progress_message = get("progress_msg")
    if get("last_heartbeat") is not None:
        job.last_heartbeat = get("last_heartbeat")
    job.stall_count = get("stall_count") or 0
    job.timeline = read("timeline", _timeline_from, None)
    if job.timeline:
        first = job.timeline[0]
        job.admitted_as = cast(JobState, first["state"])
        job.admitted_at = first["timestamp"]
    job.stacktrace = read("stacktrace", list, None)
    job.history = read("dlq_retry_state", history_from, None)
    if state == "active":
        job.location = Location.ACTIVE
    elif state == "completed":
        job.location = Location.COMPLETED
    try:
        job.depends_on = _dependencies(get("depends_on"))
    except CorruptDependencies:
        if not tolerate_corrupt:
            raise
    if state == "waiting-children":
        job.location = Location.GATED if job.depends_on else Location.PARKED


def _getter(rest: tuple[Any, ...]) -> Any:
    return lambda name: rest[_REST[name]]


def job_map(job: Job) -> dict[str, Any]:
    """All fields of a job by their wire names; what a dead letter stores of it."""
    options = job.options
    return {
        "id": job.id,
        "queue": job.queue,
        "name": job.name,
        "data": None if job.data is None else _payload(job.data),
        "hasData": job.data is not None,
        "priority": job.priority,
        "createdAt": job.created_at,
        "runAt": job.run_at,
        "startedAt": job.started_at,
        "completedAt": job.completed_at,
        "attempts": job.attempts,
        "maxAttempts": options.max_attempts,
        "backoff": options.backoff_ms,
        "ttl": options.ttl_ms,
        "timeout": options.timeout_ms,
        "uniqueKey": job.unique_key,
        "customId": job.custom_id,
        "dependsOn": job.depends_on,
        "parentId": job.parent_id,
        "childrenIds": job.children_ids,
        "tags": job.tags,
        "lifo": options.lifo,
        "groupId": job.group_id,
        "groupFifoOrder": job.group_order,
        "progress": job.progress,
        "progressMessage": job.progress_message,
        "removeOnComplete": options.remove_on_complete.as_flag,
        "removeOnFail": options.remove_on_fail.as_flag,
        "failParentOnFailure": options.fail_parent_on_failure,
        "removeDependencyOnFailure": options.remove_dependency_on_failure,
        "continueParentOnFailure": options.continue_parent_on_failure,
        "ignoreDependencyOnFailure": options.ignore_dependency_on_failure,
        "stallTimeout": options.stall_timeout_ms,
        "lastHeartbeat": job.last_heartbeat,
        "stallCount": job.stall_count,
        "timeline": job.timeline if job.timeline is not None else [admission_entry(job)],
        "stacktrace": job.stacktrace,
        "options": extended_options(options),
    }


def _payload(data: bytes) -> Any:
    """What a payload holds; an empty object if it is damaged: a dead letter must be storable."""
    try:
        return unpack(data)
    except Exception:
        return {}


_MAP_COLUMNS: Final = {
    "max_attempts": "maxAttempts",
    "backoff": "backoff",
    "ttl": "ttl",
    "timeout": "timeout",
    "stall_timeout": "stallTimeout",
    "lifo": "lifo",
    "remove_on_complete": "removeOnComplete",
    "remove_on_fail": "removeOnFail",
    "fail_parent_on_failure": "failParentOnFailure",
    "remove_dependency_on_failure": "removeDependencyOnFailure",
    "continue_parent_on_failure": "continueParentOnFailure",
    "ignore_dependency_on_failure": "ignoreDependencyOnFailure",
}


def job_from_map(value: dict[str, Any], packer: Packer) -> Job:
    """The job of a dead letter (see :func:`job_map`)."""
    timeline = _timeline_from(value.get("timeline") or [])
    data = value.get("data")
    job = Job(
        value["id"],
        value["queue"],
        value.get("name") or "default",
        packer.pack(data) if value.get("hasData", True) else None,
        options_from(lambda column: value.get(_MAP_COLUMNS[column]), value.get("options") or {}),
        _integer(value.get("priority", 0)),
        _integer(value["createdAt"]),
        _integer(value["runAt"]),
        cast(JobState, timeline[0]["state"] if timeline else "waiting"),
        timeline[0]["timestamp"] if timeline else _integer(value["createdAt"]),
    )
    job.timeline = timeline or None
    job.started_at = _integer(value.get("startedAt"))
    job.completed_at = _integer(value.get("completedAt"))
    job.attempts = value.get("attempts", 0)
    job.unique_key = value.get("uniqueKey")
    job.custom_id = value.get("customId")
    job.depends_on = tuple(value.get("dependsOn") or ())
    job.parent_id = value.get("parentId")
    job.children_ids = tuple(value.get("childrenIds") or ())
    job.tags = tuple(value.get("tags") or ())
    job.group_id = value.get("groupId")
    job.group_order = value.get("groupFifoOrder", 0)
    job.progress = value.get("progress", 0)
    job.progress_message = value.get("progressMessage")
    job.last_heartbeat = _integer(value.get("lastHeartbeat")) or job.created_at
    job.stall_count = value.get("stallCount", 0)
    job.stacktrace = value.get("stacktrace")
    job.location = Location.DEAD
    return job


def dlq_from_row(row: DlqRow, packer: Packer) -> DlqEntry:
    """The dead letter of a stored row."""
    value = unpack(row.entry)
    return DlqEntry(
        job=job_from_map(value["job"], packer),
        entered_at=row.entered_at,
        reason=cast(DlqReason, value["reason"]),
        error=value.get("error"),
        attempts=history_from({"attempts": value.get("attempts")}).attempts,
        retry_count=value.get("retryCount", 0),
        last_retry_at=_integer(value.get("lastRetryAt")),
        next_retry_at=_integer(value.get("nextRetryAt")),
        expires_at=_integer(value.get("expiresAt")),
    )


def dlq_config_map(config: DlqConfig) -> dict[str, Any]:
    """The policy by its wire names."""
    return {
        "autoRetry": config.auto_retry,
        "autoRetryInterval": config.auto_retry_interval_ms,
        "maxAutoRetries": config.max_auto_retries,
        "maxAge": config.max_age_ms,
        "maxEntries": config.max_entries,
    }


def dlq_config_from(value: dict[str, Any]) -> DlqConfig:
    return DlqConfig(
        auto_retry=value["autoRetry"],
        auto_retry_interval_ms=_integer(value["autoRetryInterval"]),
        max_auto_retries=_integer(value["maxAutoRetries"]),
        max_age_ms=_integer(value["maxAge"]),
        max_entries=_integer(value["maxEntries"]),
    )


def logs_from(blob: bytes) -> list[LogEntry]:
    """Log lines of a stored row."""
    return [LogEntry(_integer(timestamp), level, message) for timestamp, level, message in unpack(blob)]


def logical_state(row: StoredJobLike, now: int) -> JobState:
    """State of a stored job at ``now``: the ready states follow from the clock."""
    if row.state in ("completed", "active", "waiting-children"):
        return cast(JobState, row.state)
    if row.run_at > now:
        return "delayed"
    return "prioritized" if row.priority > 0 else "waiting"


__all__ = [
    "CorruptDependencies",
    "RowBuilder",
    "dlq_config_from",
    "dlq_config_map",
    "dlq_from_row",
    "job_from_map",
    "job_from_row",
    "job_map",
    "logical_state",
    "logs_from",
    "ready_state",
    "state_of",
    "unpack",
]
