"""Replies and events as MessagePack: the records of jobs, views and dead letters under the names that clients know.

A reply is a mapping of members (besides ``ok`` and ``reqId``) whose values are plain data or values of the model: a
:class:`Job`, a :class:`JobView`, a :class:`DlqEntry`, or a :class:`Packed` payload. Every transport renders the same reply its own
way; this module is the MessagePack one. Payloads are spliced in as they are stored: nothing decodes them on the way from a
producer to a worker.

Numbers: integers outside 32 bits are sent as float64 where that is exact (up to 2**53), because JavaScript clients cannot
calculate with 64-bit integers; beyond that, as 64-bit integers, because a float64 would be another number. Times are always
float64. Members that have no value are left out where clients tell "none" from "null".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgpack

from bunqueue_core.model.job import Job, JobOptions, TimelineEntry, timeline_of
from bunqueue_core.model.payload import Packed, Packer
from bunqueue_core.model.requests import DlqEntry, Event, JobView

#: Option sets whose encoding is kept, since most jobs share few of them; emptied when full.
MAX_CACHED_OPTIONS: Final = 1024

#: Beginnings of events, by type and queue, that are kept; emptied when full.
MAX_CACHED_EVENTS: Final = 1024

_EXACT_FLOAT: Final = 2**53
_NIL: Final = b"\xc0"
_TRUE: Final = b"\xc3"
_FALSE: Final = b"\xc2"
_DOUBLE: Final = struct.Struct(">Bd")
_MAP16: Final = struct.Struct(">BH")


def _key(name: str) -> bytes:
    key: bytes = msgpack.packb(name)
    return key


_OK: Final = _key("ok") + _TRUE
_REQ_ID: Final = _key("reqId")
_FAILED: Final = _key("ok") + _FALSE + _key("error")

_ID, _QUEUE, _NAME, _DATA = _key("id"), _key("queue"), _key("name"), _key("data")
_PRIORITY, _TIMELINE = _key("priority"), _key("timeline")
_STATE, _RETURN_VALUE, _FAILED_REASON = _key("state"), _key("returnvalue"), _key("failedReason")
_BLOCKED_BY = _key("blockedBy")
_EVENT_HEAD: Final = b"\x82" + _key("type") + _key("event") + _key("event")

_EVENT_TYPE, _JOB_ID, _EVENT_TIME = _key("eventType"), _key("jobId"), _key("timestamp")
_EVENT_MEMBERS: Final = frozenset(("eventType", "queue", "jobId", "timestamp"))

_CREATED_AT, _RUN_AT = _key("createdAt") + b"\xcb", _key("runAt") + b"\xcb"
_LAST_HEARTBEAT, _STARTED_AT = _key("lastHeartbeat") + b"\xcb", _key("startedAt") + b"\xcb"
_NEVER_STARTED: Final = _key("startedAt") + _NIL


def _doubles(*keys: bytes) -> Callable[..., bytes]:
    """A function that packs key, float64, key, float64… in one call."""
    return struct.Struct(">" + "".join(f"{len(key)}sd" for key in keys)).pack


_pack_times = _doubles(_CREATED_AT, _RUN_AT, _LAST_HEARTBEAT)
_pack_started_times = _doubles(_CREATED_AT, _RUN_AT, _LAST_HEARTBEAT, _STARTED_AT)

#: Members of a job that has only waited or is in its first attempt, with no ids or tags: most jobs that are pulled.
_FIRST_ATTEMPT: Final = b"".join(
    (
        _key("completedAt") + _NIL,
        _key("attempts") + b"\x00",
        _key("progress") + b"\x00",
        _key("progressMessage") + _NIL,
        _key("stacktrace") + _NIL,
        _key("stallCount") + b"\x00",
    )
)
_NO_RELATIONS: Final = b"".join(
    (
        _key("uniqueKey") + _NIL,
        _key("customId") + _NIL,
        _key("parentId") + _NIL,
        _key("groupId") + _NIL,
        _key("dependsOn") + b"\x90",
        _key("childrenIds") + b"\x90",
        _key("tags") + b"\x90",
    )
)
_CHILDREN_COMPLETED: Final = _key("childrenCompleted") + b"\x00"

#: Members of a job record with data; one fewer without.
_JOB_MEMBERS: Final = 47

_TIMELINE_STATE: Final = b"\x82" + _STATE
_TIMESTAMP: Final = _key("timestamp") + b"\xcb"


class ViewWithoutState(NamedTuple):
    """A view whose state is not shown (``GetJobByCustomId``)."""

    view: JobView


class WireEncoder:
    """Encodes replies and events. Belongs to one thread at a time."""

    __slots__ = (
        "_encoders",
        "_events",
        "_keys",
        "_last_event",
        "_last_event_bytes",
        "_last_time",
        "_last_time_bytes",
        "_options",
        "_pack",
        "_pack_any",
    )

    def __init__(self) -> None:
        # Strings that came with lone surrogates (a reqId) go back as they came.
        self._pack: Callable[[Any], bytes] = msgpack.Packer(
            autoreset=True, use_bin_type=True, unicode_errors="surrogatepass"
        ).pack
        self._pack_any = Packer().pack
        self._keys: dict[str, bytes] = {}
        self._events: dict[tuple[str, str, int], bytes] = {}
        self._options: dict[int, tuple[JobOptions, bytes]] = {}
        self._last_event: Event | None = None
        self._last_event_bytes = b""
        self._last_time = 0  #: timestamp of the last event, and its member as it goes out
        self._last_time_bytes = _EVENT_TIME + self._pack(0)
        self._encoders: dict[type, Callable[[Any], bytes]] = {
            str: self._pack,
            bool: self._pack,
            type(None): self._pack,
            float: self._pack,
            bytes: self._pack,
            int: self._integer,
            Packed: bytes,
            Job: self.job,
            JobView: self._view,
            ViewWithoutState: self._view_without_state,
            DlqEntry: self._dead_letter,
            dict: self._dict,
            list: self._list,
            tuple: self._list,
        }

    # -- replies ------------------------------------------------------------------------------------------------------

    def reply(self, members: Mapping[str, Any] | None, req_id: Any, has_req_id: bool) -> bytes:
        """Encode a success: ``{ok: true, …members, reqId}``.

        Args:
            members: what the command answers besides; None for a bare success.
            req_id: the request's ``reqId``, echoed whatever its type.
            has_req_id: False leaves ``reqId`` out.
        """
        if members is None:
            if has_req_id:
                return b"\x82" + _OK + _REQ_ID + self.value(req_id)
            return b"\x81" + _OK
        count = len(members) + 1 + has_req_id
        keys = self._keys
        encoders = self._encoders
        parts = [bytes((0x80 | count,)) if count < 16 else _MAP16.pack(0xDE, count), _OK]
        for name, value in members.items():
            parts.append(keys.get(name) or self._remember_key(name))
            encode = encoders.get(type(value))
            parts.append(encode(value) if encode is not None else self.value(value))
        if has_req_id:
            parts.append(_REQ_ID)
            parts.append(self._pack(req_id) if type(req_id) is str else self.value(req_id))
        return b"".join(parts)

    def failure(self, text: str, req_id: Any, has_req_id: bool, members: Mapping[str, Any] | None = None) -> bytes:
        """Encode a refusal: ``{ok: false, error, …members, reqId}``."""
        extra = b"".join([self._pack(name) + self.value(value) for name, value in members.items()]) if members else b""
        count = 2 + has_req_id + (len(members) if members else 0)
        head = bytes((0x80 | count,)) + _FAILED + self._pack(text) + extra
        return head + _REQ_ID + self.value(req_id) if has_req_id else head

    def event(self, event: Event) -> bytes:
        """Encode an event frame: ``{type: "event", event: {eventType, queue, jobId, timestamp, …}}``."""
        if event is self._last_event:  # every subscriber of a queue is told the same one
            return self._last_event_bytes
        kind, queue, job_id, timestamp, extra = event
        if timestamp != self._last_time:  # events come in batches of one moment
            self._last_time, self._last_time_bytes = timestamp, _EVENT_TIME + self._integer(timestamp)
        count = 4 if extra is None else 4 + len(extra)
        if extra is not None and (count > 15 or not _EVENT_MEMBERS.isdisjoint(extra)):
            members = {"eventType": kind, "queue": queue, "jobId": job_id, "timestamp": timestamp}
            blob = _EVENT_HEAD + self._dict({**members, **extra})
        else:
            start = self._events.get((kind, queue, count)) or self._remember_event(event, count)
            parts = [start, self._pack(job_id), self._last_time_bytes]
            if extra is not None:
                keys = self._keys
                for name, value in extra.items():
                    parts += (keys.get(name) or self._remember_key(name), self.value(value))
            blob = b"".join(parts)
        self._last_event, self._last_event_bytes = event, blob
        return blob

    def _remember_event(self, event: Event, count: int) -> bytes:
        """How an event of this type and queue begins, up to its job's id."""
        pack = self._pack
        members = b"".join((_EVENT_TYPE, pack(event.type), _QUEUE, pack(event.queue), _JOB_ID))
        start = _EVENT_HEAD + bytes((0x80 | count,)) + members
        if len(self._events) >= MAX_CACHED_EVENTS:
            self._events.clear()
        self._events[event.type, event.queue, count] = start
        return start

    def value(self, value: Any) -> bytes:
        """Encode one value of a reply.

        A list is either all plain or all values of the model (its first element tells).
        """
        encode = self._encoders.get(type(value))
        return encode(value) if encode is not None else self._pack_any(value)

    def _remember_key(self, name: str) -> bytes:
        key = self._pack(name)
        if len(self._keys) < 512:  # names of members come from our own code; data-dependent ones are few
            self._keys[name] = key
        return key

    def _integer(self, value: int) -> bytes:
        if -0x8000_0000 <= value <= 0xFFFF_FFFF:
            return self._pack(value)
        if -_EXACT_FLOAT <= value <= _EXACT_FLOAT:
            return _DOUBLE.pack(0xCB, value)
        return self._pack(value)

    def _dict(self, members: Mapping[Any, Any]) -> bytes:
        count = len(members)
        parts = [bytes((0x80 | count,)) if count < 16 else _map_header(count)]
        for name, value in members.items():
            parts.append(self._pack(name))
            parts.append(self.value(value))
        return b"".join(parts)

    def _list(self, values: list[Any] | tuple[Any, ...]) -> bytes:
        if not values:
            return b"\x90"
        kind = type(values[0])
        encode = self._encoders.get(kind)
        if encode is None or encode is self._pack or kind is int or kind is list:
            return self._pack_any(values)
        return _array_header(len(values)) + b"".join([self.value(value) for value in values])

    # -- records ------------------------------------------------------------------------------------------------------

    def job(self, job: Job) -> bytes:
        """Encode a job's record, without state, result and failure reason."""
        parts: list[bytes] = [_MAP16.pack(0xDE, _JOB_MEMBERS if job.data is not None else _JOB_MEMBERS - 1)]
        self._job_parts(job, parts)
        return b"".join(parts)

    def _view(self, view: JobView) -> bytes:
        return self._viewed(view, True)

    def _view_without_state(self, value: ViewWithoutState) -> bytes:
        return self._viewed(value.view, False)

    def _viewed(self, view: JobView, with_state: bool) -> bytes:
        job = view.job
        count = _JOB_MEMBERS if job.data is not None else _JOB_MEMBERS - 1
        parts: list[bytes] = [b""]
        self._job_parts(job, parts)
        pack = self._pack
        if with_state:
            count += 1
            parts += (_STATE, pack(view.state))
        if view.result is not None:
            count += 1
            parts += (_RETURN_VALUE, view.result)
        if view.failed_reason is not None:
            count += 1
            parts += (_FAILED_REASON, pack(view.failed_reason))
        if view.blocked_by:
            count += 1
            parts += (_BLOCKED_BY, pack(list(view.blocked_by)))
        parts[0] = _MAP16.pack(0xDE, count)
        return b"".join(parts)

    def _job_parts(self, job: Job, parts: list[bytes]) -> None:
        """Append the members of a job's record to ``parts`` (their order means nothing)."""
        pack = self._pack
        priority = job.priority
        parts += (
            _ID,
            pack(job.id),
            _QUEUE,
            pack(job.queue),
            _NAME,
            pack(job.name),
            _PRIORITY,
            b"\x00" if priority == 0 else pack(priority),
        )
        if job.data is not None:
            parts += (_DATA, job.data)
        if job.started_at is None:
            parts += (
                _pack_times(_CREATED_AT, job.created_at, _RUN_AT, job.run_at, _LAST_HEARTBEAT, job.last_heartbeat),
                _NEVER_STARTED,
            )
        else:
            parts.append(
                _pack_started_times(
                    _CREATED_AT,
                    job.created_at,
                    _RUN_AT,
                    job.run_at,
                    _LAST_HEARTBEAT,
                    job.last_heartbeat,
                    _STARTED_AT,
                    job.started_at,
                )
            )
        if (
            job.attempts == 0
            and job.completed_at is None
            and job.progress == 0
            and job.stacktrace is None
            and job.stall_count == 0
            and job.progress_message is None
        ):
            parts.append(_FIRST_ATTEMPT)
        else:
            self._course(job, parts)
        if (
            job.custom_id is None
            and job.unique_key is None
            and job.parent_id is None
            and job.group_id is None
            and not (job.depends_on or job.children_ids or job.tags)
        ):
            parts.append(_NO_RELATIONS)
        else:
            self._relations(job, parts)
        options = job.options
        cached = self._options.get(id(options))
        parts.append(cached[1] if cached is not None else self._remember_options(options))
        parts += (_TIMELINE, self._timeline(timeline_of(job)))

    def _course(self, job: Job, parts: list[bytes]) -> None:
        for name, value in (
            ("completedAt", job.completed_at),
            ("attempts", job.attempts),
            ("progress", job.progress),
            ("progressMessage", job.progress_message),
            ("stacktrace", job.stacktrace),
            ("stallCount", job.stall_count),
        ):
            parts += (self._pack(name), self.value(value))

    def _relations(self, job: Job, parts: list[bytes]) -> None:
        for name, value in (
            ("uniqueKey", job.unique_key),
            ("customId", job.custom_id),
            ("parentId", job.parent_id),
            ("groupId", job.group_id),
            ("dependsOn", job.depends_on),
            ("childrenIds", job.children_ids),
            ("tags", job.tags),
        ):
            parts += (self._pack(name), self.value(value))

    def _remember_options(self, options: JobOptions) -> bytes:
        backoff = options.backoff
        members = {
            "maxAttempts": options.max_attempts,
            "backoff": options.backoff_ms,
            "backoffConfig": None if backoff is None else {"type": backoff["type"], "delay": backoff["delay"]},
            "ttl": options.ttl_ms,
            "timeout": options.timeout_ms,
            "stallTimeout": options.stall_timeout_ms,
            "lifo": options.lifo,
            "removeOnComplete": options.remove_on_complete.as_flag,
            "removeOnFail": options.remove_on_fail.as_flag,
            "durable": options.durable,
            "repeat": options.repeat,
            "stackTraceLimit": options.stack_trace_limit,
            "keepLogs": options.keep_logs,
            "sizeLimit": options.size_limit,
            "failParentOnFailure": options.fail_parent_on_failure,
            "removeDependencyOnFailure": options.remove_dependency_on_failure,
            "continueParentOnFailure": options.continue_parent_on_failure,
            "ignoreDependencyOnFailure": options.ignore_dependency_on_failure,
            "deduplicationTtl": options.dedup_ttl_ms,
            "deduplicationExtend": options.dedup_extend,
            "deduplicationReplace": options.dedup_replace,
            "debounceId": options.debounce_id,
            "debounceTtl": options.debounce_ttl_ms,
        }
        blob = b"".join([self._pack(name) + self.value(value) for name, value in members.items()]) + _CHILDREN_COMPLETED
        if len(self._options) >= MAX_CACHED_OPTIONS:
            self._options.clear()
        # The instance is kept with its encoding, so that its id() cannot come to mean another one.
        self._options[id(options)] = (options, blob)
        return blob

    def _timeline(self, entries: list[TimelineEntry]) -> bytes:
        pack = self._pack
        parts = [_array_header(len(entries))]
        for entry in entries:
            if len(entry) == 2:
                parts += (
                    _TIMELINE_STATE,
                    pack(entry["state"]),
                    _TIMESTAMP,
                    struct.pack(">d", entry["timestamp"]),
                )
            else:
                parts.append(self._dict(entry))
        return b"".join(parts)

    def _dead_letter(self, entry: DlqEntry) -> bytes:
        return self._dict(
            {
                "job": entry.job,
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


def _array_header(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    if count <= 0xFFFF:
        return struct.pack(">BH", 0xDC, count)
    return struct.pack(">BI", 0xDD, count)


def _map_header(count: int) -> bytes:
    if count <= 0xFFFF:
        return _MAP16.pack(0xDE, count)
    return struct.pack(">BI", 0xDF, count)
