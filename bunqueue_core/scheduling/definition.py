"""A scheduler's definition: read from a ``Cron`` request or a stored row, compared, shown and stored.

The request's fields carry the wire's names. What is checked, in the order in which the first violation is reported: name,
queue, the job's name, ``repeatEvery``, that there is a timing, the timing itself, then the rest. The job that each run pushes is
read by the same reader as any pushed job, so that an option means the same in both.

Rows are those of ``cron_jobs``. A timing of a plugin's kind has no column of its own: it stands in ``schedule`` as
``<field>:<JSON of the value>``, which no cron expression can look like.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.job import DEFAULT_OPTIONS, JobOptions, JobSpec
from bunqueue_core.model.options import MAX_KEY_CHARACTERS, SAFE_INTEGER, JobReader, number
from bunqueue_core.model.payload import Packer, decode
from bunqueue_core.model.rules import check_job_name, check_queue_name
from bunqueue_core.model.schedule import Schedule, ScheduleKind
from bunqueue_core.scheduling.cron import parse_cron
from bunqueue_core.scheduling.interval import parse_interval
from bunqueue_core.scheduling.kinds import KINDS
from bunqueue_core.storage.changes import CRON_TABLE

#: Prefix of the unique key by which a scheduler keeps its runs from overlapping.
CRON_KEY_PREFIX: Final = "cron:"

#: Longest name; its unique key must fit too.
MAX_NAME_CHARACTERS: Final = MAX_KEY_CHARACTERS - len(CRON_KEY_PREFIX)

#: Members of ``jobOptions`` that count; others are ignored.
JOB_OPTIONS: Final = (
    "maxAttempts",
    "backoff",
    "timeout",
    "delay",
    "stallTimeout",
    "removeOnComplete",
    "removeOnFail",
)

_DEDUP: Final = ("ttl", "extend", "replace", "scope")
_NO_TIMING: Final = "Cron job must have either schedule or repeatEvery"
_OTHER_TIMING = re.compile(r"([A-Za-z][A-Za-z0-9_]*):(.*)", re.DOTALL)

#: How the reference's codec writes "no data given"; a stored row needs something in that column.
_UNDEFINED: Final = b"\xd4\x00\x00"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Definition:
    """What a scheduler does and when; everything but its state. Immutable.

    Attributes:
        name: primary key over all queues.
        queue: where its jobs go.
        job_name: their name.
        data: their encoded payload; None when none was given.
        schedule: cron expression as it was given.
        repeat_every: interval in ms; echoed only, where ``schedule`` is given too.
        timezone: as it was given; None or empty is the machine's own.
        priority: of its jobs.
        max_limit: runs after which it ends; None is unlimited.
        unique_key: deduplication key of its jobs, where given.
        dedup: what that key does (wire form), as it was given.
        skip_missed_on_restart: a run that came due while nobody was there is left out.
        skip_if_no_worker: a run is left out while no worker is registered for the queue; implies the one above.
        prevent_overlap: without a unique key of its own, its jobs share ``cron:<name>``.
        job_options: wire form of :data:`JOB_OPTIONS`, as it was given.
        timing: the parsed schedule.
        other: field and value of a timing of a plugin's kind.
        options: what ``job_options`` and ``dedup`` say, read.
        delay: of its jobs, ms.
    """

    name: str
    queue: str
    job_name: str
    data: bytes | None
    schedule: str | None
    repeat_every: int | None
    timezone: str | None
    priority: int
    max_limit: int | None
    unique_key: str | None
    dedup: Mapping[str, Any] | None
    skip_missed_on_restart: bool
    skip_if_no_worker: bool
    prevent_overlap: bool
    job_options: Mapping[str, Any] | None
    timing: Schedule
    other: tuple[str, Any] | None = None
    options: JobOptions = DEFAULT_OPTIONS
    delay: int = 0

    @property
    def job_key(self) -> str | None:
        """The unique key of its jobs; None if each run makes a job whatever became of the last."""
        if self.unique_key is not None:
            return self.unique_key or None
        return CRON_KEY_PREFIX + self.name if self.prevent_overlap else None

    def job(self) -> JobSpec:
        """The job of one run, to be pushed to :attr:`queue`."""
        return JobSpec(
            self.job_name,
            self.data,
            self.options,
            priority=self.priority,
            delay=self.delay,
            unique_key=self.job_key,
        )

    def same_as(self, other: Definition) -> bool:
        """Whether ``other`` says the same, value by value; the order of keys does not matter."""
        return (
            self.name == other.name
            and self.queue == other.queue
            and self.job_name == other.job_name
            and self.schedule == other.schedule
            and self.repeat_every == other.repeat_every
            and self.timezone == other.timezone
            and self.priority == other.priority
            and self.max_limit == other.max_limit
            and self.unique_key == other.unique_key
            and self.skip_missed_on_restart == other.skip_missed_on_restart
            and self.skip_if_no_worker == other.skip_if_no_worker
            and self.prevent_overlap == other.prevent_overlap
            and _same(self.dedup, other.dedup)
            and _same(self.job_options, other.job_options)
            and _same(self.other, other.other)
            and _same_payload(self.data, other.data)
        )


class Entry:
    """A scheduler: its definition and where it stands. Mutable; changed only by the functions of ``scheduling.service``."""

    __slots__ = ("definition", "executions", "immediate", "next_run", "previous_slot", "unscheduled_run")

    def __init__(self, definition: Definition, next_run: int, executions: int = 0) -> None:
        self.definition = definition
        self.next_run = next_run  #: epoch ms
        self.executions = executions  #: runs so far, those included whose job was deduplicated
        # What follows is remembered since start only, and is not stored.
        self.immediate = False  #: the next run is the one at creation, which no slot of the schedule stands for
        self.previous_slot: int | None = None  #: time that the last run was meant for, fired or skipped
        self.unscheduled_run: int | None = None  #: when its last run was, if that was out of turn

    @property
    def exhausted(self) -> bool:
        """It has had all its runs, and goes when the next would be due."""
        limit = self.definition.max_limit
        return limit is not None and self.executions >= limit

    def view(self) -> dict[str, Any]:
        """Wire projection: what ``CronGet`` and ``CronList`` show."""
        definition = self.definition
        view = {
            "name": definition.name,
            "jobName": definition.job_name,
            "queue": definition.queue,
            "schedule": definition.schedule,
            "repeatEvery": definition.repeat_every,
            "nextRun": self.next_run,
            "executions": self.executions,
            "maxLimit": definition.max_limit,
            "timezone": definition.timezone,
            "priority": definition.priority,
        }
        if definition.other is not None:
            view[definition.other[0]] = definition.other[1]
        return view

    def event(self) -> dict[str, Any]:
        """Fields of the dashboard events ``cron:created`` and ``cron:updated``."""
        definition = self.definition
        event: dict[str, Any] = {"name": definition.name, "queue": definition.queue}
        if definition.schedule:
            event["pattern"] = definition.schedule
        if definition.repeat_every is not None:
            event["every"] = definition.repeat_every
        event["nextRun"] = self.next_run
        return event

    def __repr__(self) -> str:
        return f"Entry({self.definition.name!r}, next_run={self.next_run}, executions={self.executions})"


class Upsert(NamedTuple):
    """A read ``Cron`` request.

    ``immediately``: the first run of a new scheduler is now. ``replaces_queued``: ``preventOverlap`` was said in so many words, so
    that a changed definition takes the place of a job that is still queued under its unique key.
    """

    definition: Definition
    immediately: bool
    replaces_queued: bool


class StoredScheduleError(ValueError):
    """A stored row makes no scheduler; the text is for the person who starts the server."""


class DefinitionReader:
    """Reads definitions. Belongs to one thread at a time, as its job reader does.

    Args:
        jobs: reader of the jobs that runs push; it knows the back-off strategies.
        kinds: kinds of schedule, in the order in which their fields are looked for.
    """

    __slots__ = ("_jobs", "_kinds", "_pack")

    def __init__(self, jobs: JobReader, kinds: Sequence[ScheduleKind] = KINDS) -> None:
        self._jobs = jobs
        self._kinds = tuple(kinds)
        self._pack = Packer().pack

    def read(self, request: Mapping[str, Any]) -> Upsert:
        """Read the fields of a ``Cron`` request.

        Raises:
            ValidationError: the first violation.
        """
        get = request.get
        name = _name(get("name"))
        queue = check_queue_name(get("queue"))
        job_name, data = _job_name(request)
        every = get("repeatEvery")
        repeat_every = None if every is None else parse_interval(every).every_ms
        timezone = get("timezone")
        kind, value = self._timing(request)
        if timezone is not None:
            timezone = _text(timezone, "timezone")
        timing = kind.parse(value, timezone)
        other = None
        if kind.field not in ("schedule", "repeatEvery"):
            other = (kind.field, _json_value(value, kind.field))
        schedule = get("schedule")
        limit = get("maxLimit")
        max_limit = None if limit is None else number(limit, "maxLimit", -SAFE_INTEGER, SAFE_INTEGER, integer=True)
        unique_key = get("uniqueKey")
        if unique_key is not None:
            unique_key = _text(unique_key, "uniqueKey")
        dedup = _members(get("dedup"), "dedup", _DEDUP)
        job_options = _members(get("jobOptions"), "jobOptions", JOB_OPTIONS)
        template: dict[str, Any] = {"name": job_name, "priority": get("priority"), "uniqueKey": unique_key}
        if data is not _ABSENT:
            template["data"] = data
        spec = self._jobs.read({**template, "dedup": dedup, **(job_options or {})})
        overlap = get("preventOverlap")
        definition = Definition(
            name=name,
            queue=queue,
            job_name=spec.name,
            data=spec.data,
            schedule=schedule or None,
            repeat_every=repeat_every,
            timezone=timezone,
            priority=spec.priority,
            max_limit=max_limit if max_limit is not None and max_limit > 0 else None,
            unique_key=unique_key,
            dedup=dedup,
            skip_missed_on_restart=_flag(get("skipMissedOnRestart"), "skipMissedOnRestart", True),
            skip_if_no_worker=_flag(get("skipIfNoWorker"), "skipIfNoWorker", False),
            prevent_overlap=_flag(overlap, "preventOverlap", True),
            job_options=job_options,
            other=other,
            options=spec.options,
            delay=spec.delay,
            timing=timing,
        )
        return Upsert(definition, _flag(get("immediately"), "immediately", False), overlap is True)

    def _timing(self, request: Mapping[str, Any]) -> tuple[ScheduleKind, Any]:
        for kind in self._kinds:
            value = request.get(kind.field)
            if value is not None and value != "":
                return kind, value
        raise ValidationError(_NO_TIMING)

    # -- rows -----------------------------------------------------------------------------------------------------------

    def to_row(self, entry: Entry) -> tuple[Any, ...]:
        """The row of ``cron_jobs`` (see ``storage.changes.CRON_TABLE``)."""
        definition = entry.definition
        schedule = definition.schedule
        if definition.other is not None:
            schedule = f"{definition.other[0]}:{json.dumps(definition.other[1], separators=(',', ':'))}"
        return (
            definition.name,
            definition.queue,
            definition.job_name,
            _UNDEFINED if definition.data is None else definition.data,
            schedule,
            definition.repeat_every,
            definition.priority,
            entry.next_run,
            entry.executions,
            definition.max_limit,
            definition.timezone,
            definition.unique_key,
            None if definition.dedup is None else self._pack(definition.dedup),
            int(definition.skip_missed_on_restart),
            int(definition.skip_if_no_worker),
            int(definition.prevent_overlap),
            None if definition.job_options is None else self._pack(definition.job_options),
        )

    def from_row(self, row: Sequence[Any]) -> Entry:
        """The scheduler of a row of ``cron_jobs``, whoever wrote it.

        Job options that this reader would refuse in a request are left out: the reference stores them unchecked, and one odd option
        must not keep a server from starting.

        Raises:
            StoredScheduleError: its timing cannot be used.
        """
        get = dict(zip(CRON_TABLE.column_names, row, strict=True)).__getitem__
        name, timezone = str(get("name")), get("timezone")
        schedule, other = get("schedule") or None, None
        repeat_every = None if get("repeat_every") is None else self._stored_interval(name, get("repeat_every"))
        timing: Schedule
        if schedule is not None:
            match = _OTHER_TIMING.fullmatch(schedule)
            if match is not None:
                timing, other = self._stored_other(name, match[1], match[2], timezone)
                schedule = None
            else:
                timing = _stored_cron(name, schedule, timezone)
        elif repeat_every is not None:
            timing = parse_interval(repeat_every)
        else:
            raise _unusable(name, "has invalid timing: " + _NO_TIMING)
        dedup = _stored_map(get("dedup"), _DEDUP)
        job_options = _stored_map(get("job_options"), JOB_OPTIONS)
        data = get("data")
        spec = self._stored_job(get("unique_key"), dedup, job_options)
        limit = get("max_limit")
        definition = Definition(
            name=name,
            queue=str(get("queue")),
            job_name=get("job_name") or "default",
            data=None if data is None or data == _UNDEFINED else bytes(data),
            schedule=schedule,
            repeat_every=repeat_every,
            timezone=timezone,
            priority=int(get("priority") or 0),
            max_limit=int(limit) if limit is not None and limit > 0 else None,
            unique_key=get("unique_key"),
            dedup=dedup,
            skip_missed_on_restart=bool(get("skip_missed_on_restart")),
            skip_if_no_worker=bool(get("skip_if_no_worker")),
            prevent_overlap=bool(get("prevent_overlap")),
            job_options=job_options,
            other=other,
            options=spec.options,
            delay=spec.delay,
            timing=timing,
        )
        return Entry(definition, int(get("next_run")), int(get("executions") or 0))

    def _stored_interval(self, name: str, value: Any) -> int:
        try:
            return parse_interval(value).every_ms
        except ValidationError as error:
            raise _unusable(name, f"has invalid timing: {error}") from None

    def _stored_other(
        self, name: str, field: str, text: str, timezone: str | None
    ) -> tuple[Schedule, tuple[str, Any] | None]:
        for kind in self._kinds:
            if kind.field == field:
                try:
                    value = json.loads(text)
                    return kind.parse(value, timezone), (field, value)
                except ValueError as error:  # a ValidationError is one too
                    raise _unusable(name, f"has invalid timing: {error}") from None
        known = ", ".join(kind.field for kind in self._kinds)
        raise StoredScheduleError(
            f"Persisted cron {json.dumps(name)} runs by {field!r}, which no installed plugin offers (known: {known}). "
            "Install the plugin, or remove the scheduler."
        )

    def _stored_job(self, unique_key: Any, dedup: Any, job_options: Mapping[str, Any] | None) -> JobSpec:
        read = self._jobs.read
        accepted: dict[str, Any] = {"name": "default", "uniqueKey": unique_key}
        wanted = {"dedup": dedup, **{key: (job_options or {}).get(key) for key in JOB_OPTIONS}}
        try:
            return read({**accepted, **wanted})
        except ValidationError:
            for key, value in wanted.items():
                try:
                    read({"name": "default", key: value})
                except ValidationError:
                    continue
                accepted[key] = value
            accepted.pop("uniqueKey")
            return read(accepted)


_ABSENT: Final[Any] = object()


def _name(value: Any) -> str:
    if value is None or value == "":
        raise ValidationError("Cron name is required")
    name = _text(value, "Cron name")
    if len(name) > MAX_NAME_CHARACTERS:
        raise ValidationError(f"Cron name must be at most {MAX_NAME_CHARACTERS} characters")
    return name


def _job_name(request: Mapping[str, Any]) -> tuple[str, Any]:
    """Name and data of the jobs. Older clients send the name inside the data; it is taken out then."""
    data = request.get("data", _ABSENT)
    if "jobName" in request:
        return check_job_name(request["jobName"]), data
    if isinstance(data, Mapping) and isinstance(data.get("name"), str):
        return check_job_name(data["name"]), {key: value for key, value in data.items() if key != "name"}
    return "default", data


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise ValidationError(f"{field} must be a string")
    if "\0" in value:
        raise ValidationError(f"{field} must not contain NUL characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"{field} must be well-formed Unicode") from None
    if len(value) > MAX_KEY_CHARACTERS:
        raise ValidationError(f"{field} must be at most {MAX_KEY_CHARACTERS} characters")
    return value


def _flag(value: Any, field: str, default: bool) -> bool:
    if value is None:
        return default
    if isinstance(value, bool | int | float):
        return bool(value) and value == value  # NaN is false, as for job options
    raise ValidationError(f"{field} must be a boolean")


def _members(value: Any, field: str, known: Sequence[str]) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValidationError(f"{field} must be an object")
    return {key: value[key] for key in known if value.get(key) is not None}


def _json_value(value: Any, field: str) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise ValidationError(f"{field} must be JSON serializable") from None


def _stored_cron(name: str, schedule: str, timezone: str | None) -> Schedule:
    try:
        return parse_cron(schedule, timezone)
    except ValidationError as error:
        raise _unusable(
            name,
            f"uses unsupported schedule {json.dumps(schedule, ensure_ascii=False)}",
            f"Bun.cron validation failed: {error}",
        ) from None


def _unusable(name: str, problem: str, detail: str | None = None) -> StoredScheduleError:
    text = (
        f"Persisted cron {json.dumps(name, ensure_ascii=False)} {problem}. "
        "Update or remove it before upgrading to bunqueue 2.9.0."
    )
    return StoredScheduleError(text if detail is None else f"{text} {detail}")


def _stored_map(blob: Any, known: Sequence[str]) -> dict[str, Any] | None:
    value = None if blob is None else decode(bytes(blob))
    return _members(value, "", known) if isinstance(value, dict) else None


def _same_payload(one: bytes | None, other: bytes | None) -> bool:
    if one is None or other is None or one == other:
        return one == other
    return _same(decode(one), decode(other))


def _same(one: Any, other: Any) -> bool:
    """Equal as the wire sees it: 1 and 1.0 are, 1 and True are not."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other) or (one != one and other != other)
