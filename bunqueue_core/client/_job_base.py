"""What a job is to a client, apart from what it can be asked to do: its record, read when it is looked at."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from bunqueue_core.client._options import linked_data, wire_options
from bunqueue_core.model.job import Job as JobRecord
from bunqueue_core.model.payload import decode, widen
from bunqueue_core.model.wire import WireEncoder

if TYPE_CHECKING:
    from types import TracebackType

    from bunqueue_core.client._verbs import JobSource, Verbs

#: Job states that wire answers may call by an older name.
LEGACY_STATES: Final = {"processing": "active", "dlq": "failed"}

#: Stack-trace lines that are sent with a failure when the job does not say how many it keeps.
STACK_LINES: Final = 10

_UNREAD: Final[Any] = object()

#: Where the client's own code is: its frames say nothing about what a processor did.
_CLIENT: Final = os.path.join(os.path.dirname(__file__), "")

#: Python name → wire name and the value that means "not set", of what :attr:`JobBase.opts` shows.
_OPTS: Final[tuple[tuple[str, str, Any], ...]] = (
    ("priority", "priority", 0),
    ("attempts", "maxAttempts", 3),
    ("ttl", "ttl", None),
    ("timeout", "timeout", None),
    ("stall_timeout", "stallTimeout", None),
    ("job_id", "customId", None),
    ("unique_key", "uniqueKey", None),
    ("depends_on", "dependsOn", []),
    ("children_ids", "childrenIds", []),
    ("tags", "tags", []),
    ("parent_id", "parentId", None),
    ("group_id", "groupId", None),
    ("lifo", "lifo", False),
    ("durable", "durable", False),
    ("remove_on_complete", "removeOnComplete", False),
    ("remove_on_fail", "removeOnFail", False),
    ("repeat", "repeat", None),
    ("stack_trace_limit", "stackTraceLimit", 10),
    ("keep_logs", "keepLogs", None),
    ("size_limit", "sizeLimit", None),
    ("fail_parent_on_failure", "failParentOnFailure", False),
    ("remove_dependency_on_failure", "removeDependencyOnFailure", False),
    ("continue_parent_on_failure", "continueParentOnFailure", False),
    ("ignore_dependency_on_failure", "ignoreDependencyOnFailure", False),
)


class DeliveryHooks(Protocol):
    """What a worker wants to know about a job that it processes."""

    def job_progressed(self, job: Any, progress: Any) -> None: ...

    def job_logged(self, job: Any, message: str) -> None: ...

    def job_released(self, job: Any) -> None: ...


class JobBase:
    """A job as a client sees it: a snapshot, made when it was added, fetched or delivered.

    Attributes:
        id: its id; the custom id where one was given.
        queue: key of its queue, prefix included.
        name: its name.
        token: lock token of the delivery, None outside a worker.
    """

    __slots__ = (
        "_batch",
        "_data",
        "_failure",
        "_hooks",
        "_options",
        "_raw",
        "_released",
        "_source",
        "_verbs",
        "id",
        "name",
        "queue",
        "token",
    )

    id: str
    queue: str
    name: str
    token: str | None

    def __init__(
        self,
        source: JobSource,
        verbs: Verbs | None = None,
        token: str | None = None,
        hooks: DeliveryHooks | None = None,
    ) -> None:
        """Args:
        source: the record: a response's mapping, or the broker's own.
        verbs: whom the job's methods ask; None leaves it unbound.
        token: lock token of the delivery.
        hooks: the worker that processes it.
        """
        self._source: JobSource | None = source
        self._verbs = verbs
        self._hooks = hooks
        self._released = False
        self._batch: list[Any] | None = None
        self._failure: BaseException | None = None
        self._options: Mapping[str, Any] | None = None
        self.token = token
        self._data = _UNREAD
        self._raw: dict[str, Any] | None
        if type(source) is JobRecord:
            self._raw = None
            self.id = source.id
            self.queue = source.queue
            self.name = source.name
        else:
            raw: dict[str, Any] = source  # type: ignore[assignment]
            self._raw = raw
            self.id = raw["id"]
            self.queue = raw.get("queue", "")
            name = raw.get("name")
            if name is None:
                data = raw.get("data")
                name = data.get("name") if isinstance(data, dict) else None
            self.name = name if isinstance(name, str) else "default"

    @classmethod
    def _added(
        cls: Any, id: str, queue: str, name: str, data: Any, options: Mapping[str, Any] | None, verbs: Verbs
    ) -> Any:
        """The stub of a job that was just added: what its producer knows of it."""
        job = cls.__new__(cls)
        job._source = None
        job._verbs = verbs
        job._hooks = None
        job._released = False
        job._batch = None
        job._failure = None
        job._options = options
        job.token = None
        job._data = data
        job._raw = None
        job.id = id
        job.queue = queue
        job.name = name
        return job

    # -- the record ---------------------------------------------------------------------------------------------------

    @property
    def raw(self) -> dict[str, Any]:
        """The record under its wire names. Of a job that was just added, it holds what was given."""
        raw = self._raw
        if raw is None:
            source = self._source
            if source is None:
                raw = {"id": self.id, "queue": self.queue, "name": self.name, "data": self._data}
                if self._options:
                    raw.update(wire_options(self._options, "customId"))
                    raw["data"] = linked_data(self._data, self._options)
            else:
                raw = decode(WireEncoder().value(source))
            self._raw = raw
        return raw

    @property
    def data(self) -> Any:
        """The payload; None if none was given."""
        data = self._data
        if data is _UNREAD:
            source = self._source
            if type(source) is JobRecord:
                data = None if source.data is None else decode(source.data)
            else:
                data = widen(self.raw.get("data"))
            self._data = data
        return data

    def _number(self, field: str, default: int | None) -> Any:
        value = self.raw.get(field)
        if value is None:
            return default
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def _list(self, field: str) -> list[str]:
        return list(self.raw.get(field) or ())

    @property
    def queue_name(self) -> str:
        """The same as :attr:`queue`."""
        return self.queue

    @property
    def priority(self) -> int:
        """Higher runs first; in a group, lower."""
        return self._number("priority", 0)  # type: ignore[no-any-return]

    @property
    def attempts(self) -> int:
        """Failed attempts so far."""
        return self._number("attempts", 0)  # type: ignore[no-any-return]

    @property
    def attempts_made(self) -> int:
        """The same as :attr:`attempts`."""
        return self.attempts

    @property
    def attempts_started(self) -> int:
        """Attempts so far, the one that runs included."""
        return self.attempts + (self.started_at is not None and self.completed_at is None)

    @property
    def max_attempts(self) -> int:
        """Attempts before the job is dead."""
        return self._number("maxAttempts", 3)  # type: ignore[no-any-return]

    @property
    def created_at(self) -> int | None:
        """Epoch ms."""
        return self._number("createdAt", None)  # type: ignore[no-any-return]

    @property
    def timestamp(self) -> int | None:
        """The same as :attr:`created_at`."""
        return self._number("createdAt", self._number("timestamp", None))  # type: ignore[no-any-return]

    @property
    def started_at(self) -> int | None:
        """When the present or last attempt began, epoch ms."""
        return self._number("startedAt", None)  # type: ignore[no-any-return]

    @property
    def processed_on(self) -> int | None:
        """The same as :attr:`started_at`."""
        return self.started_at

    @property
    def completed_at(self) -> int | None:
        """Epoch ms."""
        return self._number("completedAt", None)  # type: ignore[no-any-return]

    @property
    def finished_on(self) -> int | None:
        """When the job completed or failed for good, epoch ms."""
        completed = self.completed_at
        if completed is not None or self.state != "failed":
            return completed
        failures = [entry for entry in self.raw.get("timeline") or () if entry.get("state") == "failed"]
        return int(failures[-1]["timestamp"]) if failures else None

    @property
    def delay(self) -> int:
        """Time between creation and the earliest run, ms."""
        raw = self.raw
        if "runAt" in raw and "createdAt" in raw:
            return max(0, int(raw["runAt"] - raw["createdAt"]))
        return self._number("delay", 0)  # type: ignore[no-any-return]

    @property
    def custom_id(self) -> str | None:
        """The id that the producer gave."""
        return self.raw.get("customId")

    @property
    def tags(self) -> list[str]:
        """Labels."""
        return self._list("tags")

    @property
    def group_id(self) -> str | None:
        """The group it belongs to."""
        return self.raw.get("groupId")

    @property
    def parent_id(self) -> str | None:
        """The job that waits for this one."""
        return self.raw.get("parentId")

    @property
    def parent(self) -> dict[str, str] | None:
        """``{"id", "queue"}`` of the parent, where its queue is known."""
        parent_id, data = self.parent_id, self.raw.get("data")
        queue = data.get("__parentQueue") if isinstance(data, dict) else None
        return {"id": parent_id, "queue": queue} if parent_id and isinstance(queue, str) else None

    @property
    def parent_key(self) -> str | None:
        """``queue:id`` of the parent, where its queue is known."""
        parent = self.parent
        return f"{parent['queue']}:{parent['id']}" if parent else None

    @property
    def children_ids(self) -> list[str]:
        """Jobs that this one waits for, as its children."""
        return self._list("childrenIds")

    @property
    def depends_on(self) -> list[str]:
        """Jobs that must be completed before this one runs."""
        return self._list("dependsOn")

    @property
    def progress(self) -> Any:
        """0..100."""
        return self._number("progress", 0)

    @property
    def stacktrace(self) -> list[str] | None:
        """Lines of the last failure."""
        return self.raw.get("stacktrace")

    @property
    def stalled_counter(self) -> int:
        """How often its worker fell silent."""
        return self._number("stallCount", 0)  # type: ignore[no-any-return]

    @property
    def state(self) -> str | None:
        """The state when it was fetched, None where the record does not say."""
        state = self.raw.get("state")
        return LEGACY_STATES.get(state, state) if isinstance(state, str) else None

    @property
    def returnvalue(self) -> Any:
        """The result when it was fetched."""
        return widen(self.raw.get("returnvalue"))

    @property
    def failed_reason(self) -> str | None:
        """Error text of the newest failure."""
        return self.raw.get("failedReason")

    @property
    def processed_by(self) -> str | None:
        """Name of the worker that runs or ran it, where the record says so."""
        for entry in reversed(self.raw.get("timeline") or ()):
            worker = entry.get("worker")
            if isinstance(worker, str):
                return worker
        return None

    @property
    def deduplication_id(self) -> str | None:
        """The unique key that it holds or held."""
        return self.raw.get("uniqueKey")

    @property
    def repeat_job_key(self) -> str | None:
        """Id of the repetition that it is a run of."""
        repeat = self.raw.get("repeat")
        return repeat.get("jobId") if isinstance(repeat, dict) else None

    @property
    def opts(self) -> dict[str, Any]:
        """The options that differ from the defaults, as ``Queue.add`` takes them."""
        raw = self.raw
        found = {name: raw[wire] for name, wire, default in _OPTS if raw.get(wire) not in (None, default)}
        if self.delay:
            found["delay"] = self.delay
        backoff = raw.get("backoffConfig") or raw.get("backoff")
        if backoff not in (None, 1000):
            found["backoff"] = backoff
        return found

    # -- in a batch ---------------------------------------------------------------------------------------------------

    def get_batch(self) -> list[Any]:
        """The jobs of the batch that this one leads, itself first.

        Raises:
            RuntimeError: it was not handed to a processor as the leader of a batch.
        """
        if self._batch is None:
            raise RuntimeError("Job does not lead a batch; give the worker the option 'batch'")
        return list(self._batch)

    def set_as_failed(self, error: BaseException | str) -> None:
        """Let this job of a batch fail with ``error``, whatever becomes of the others."""
        self._failure = RuntimeError(error) if isinstance(error, str) else error

    # -- as JSON ------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The job under the names of the TypeScript client."""
        return {
            "id": self.id,
            "name": self.name,
            "data": self.data,
            "opts": {wire: self.opts[name] for name, wire, _ in _OPTS if name in self.opts},
            "progress": self.progress,
            "delay": self.delay,
            "timestamp": self.timestamp,
            "attemptsMade": self.attempts_made,
            "stacktrace": self.stacktrace,
            "returnvalue": self.returnvalue,
            "failedReason": self.failed_reason,
            "processedOn": self.processed_on,
            "finishedOn": self.finished_on,
            "queueQualifiedName": f"bull:{self.queue}",
            "parentKey": self.parent_key,
        }

    def as_json(self) -> dict[str, str]:
        """:meth:`to_json` with every value that is no string written as JSON."""
        return {
            name: value if isinstance(value, str) else json.dumps(value, default=str)
            for name, value in self.to_json().items()
        }

    def __repr__(self) -> str:
        return f"Job(id={self.id!r}, queue={self.queue!r}, name={self.name!r})"

    # -- for the methods ----------------------------------------------------------------------------------------------

    def _bound(self) -> Verbs:
        if self._verbs is None:
            raise RuntimeError("Job is not bound to a connection")
        return self._verbs

    def _took_over(self) -> None:
        """The delivery has ended by a method of this job: its worker must not report an outcome."""
        self._released = True
        if self._hooks is not None:
            self._hooks.job_released(self)

    def _stack_limit(self) -> int:
        source = self._source
        if type(source) is JobRecord:
            return source.options.stack_trace_limit
        limit = self._number("stackTraceLimit", STACK_LINES)
        return limit if isinstance(limit, int) else STACK_LINES


def error_text(error: BaseException | str) -> str:
    """What a failure says: the message, or the class's name where there is none."""
    return error if isinstance(error, str) else str(error) or type(error).__name__


def stack_of(error: BaseException | str, lines: int = STACK_LINES) -> list[str] | None:
    """The last ``lines`` lines of the traceback from the processor on (a server keeps the first ones that it is sent)."""
    if isinstance(error, str) or lines <= 0:
        return None
    text = "".join(traceback.format_exception(type(error), error, beyond_the_client(error.__traceback__)))
    return [line for line in text.splitlines() if line.strip()][-lines:]


def beyond_the_client(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the processor's first frame on; all of it, if the client itself raised the error."""
    own = trace
    while own is not None and own.tb_frame.f_code.co_filename.startswith(_CLIENT):
        own = own.tb_next
    return own or trace


def progress_fields(progress: Any, message: str | None) -> dict[str, Any]:
    """Fields of ``Progress``: what is no number becomes the message, as JSON."""
    if isinstance(progress, int | float) and not isinstance(progress, bool):
        return {"progress": progress, "message": message}
    return {"progress": 0, "message": json.dumps(progress, default=str) if message is None else message}
