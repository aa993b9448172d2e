"""Job input as a producer writes it (the wire's names and bounds) checked and turned into a :class:`JobSpec`.

One reader serves ``PUSH``, the elements of ``PUSHB`` and embedded clients, so that an option means the same everywhere. Checks
run in a fixed order, because the first violation is the one that is reported: data, group, numeric options, the rest, name,
``groupMaxSize``, ``repeat``, ids (in a batch the name comes first). What depends on other jobs (dependencies, parents, unique
keys, capacity) is the broker's to decide.

Durations and times are accepted as any finite number within the bounds and floored to whole milliseconds; strings are never
coerced to numbers. ``None`` means "not given", except where a rule says otherwise.

``removeOnComplete`` and ``removeOnFail`` take a boolean, a number (keep that many), or ``{"age": seconds, "count": n}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, cast

from bunqueue_core.model.errors import SerializationError, ValidationError
from bunqueue_core.model.job import (
    DEFAULT_OPTIONS,
    DURABLE_OPTIONS,
    KEEP,
    REMOVE,
    BackoffConfig,
    JobOptions,
    JobSpec,
    Retention,
    plain_spec,
)
from bunqueue_core.model.payload import MAX_DATA_CHARACTERS, NULL, Packer, check_size, check_size_limit
from bunqueue_core.model.rules import BACKOFF_STRATEGIES, check_job_name

DAY_MS: Final = 86_400_000
YEAR_MS: Final = 31_536_000_000

#: Largest integer that every client can represent; bounds what the reference leaves unbounded.
SAFE_INTEGER: Final = 2**53 - 1

#: Ids and keys are indexed by every storage; longer ones are refused rather than failing in one of them.
MAX_KEY_CHARACTERS: Final = 1024

#: Distinct option sets that a reader keeps, so that jobs with equal options share one instance; emptied when full.
MAX_SHARED_OPTIONS: Final = 512

#: Options that make a job more than a name and data. A request that has none of them takes the short way.
OPTION_NAMES: Final = frozenset(
    (
        "backoff",
        "childrenIds",
        "continueParentOnFailure",
        "customId",
        "debounceId",
        "debounceMaxWait",
        "debounceTtl",
        "dedup",
        "delay",
        "dependsOn",
        "durable",
        "failParentOnFailure",
        "groupId",
        "groupMaxSize",
        "ignoreDependencyOnFailure",
        "jobId",
        "keepLogs",
        "lifo",
        "maxAttempts",
        "parentId",
        "priority",
        "removeDependencyOnFailure",
        "removeOnComplete",
        "removeOnFail",
        "repeat",
        "sizeLimit",
        "stackTraceLimit",
        "stallTimeout",
        "tags",
        "timeout",
        "timestamp",
        "ttl",
        "uniqueKey",
    )
)

_ABSENT: Final[Any] = object()
_SMALL_PAYLOAD: Final = MAX_DATA_CHARACTERS // 8
_DEDUP_SCOPES: Final = ("waiting", "unfinished", "window")


#: Options besides ``durable``, which is often the only one.
_OTHERS: Final = OPTION_NAMES - {"durable"}


class LateValidationError(ValidationError):
    """A violation that is reported only if every job in ``depends_on`` exists; a missing one is the first violation."""

    def __init__(self, message: str, depends_on: tuple[str, ...]) -> None:
        super().__init__(message)
        self.depends_on = depends_on

    def __reduce__(self) -> tuple[type[LateValidationError], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.depends_on)


class JobReader:
    """Reads job input. Belongs to one thread at a time (it packs payloads with a packer of its own).

    Args:
        strategies: names allowed as ``backoff.type``; the core's own and those of plugins.
        check_pattern: called with ``repeat.pattern`` and ``repeat.tz``; raises :class:`ValidationError` with the reason when
            they make no schedule. None accepts every text.
    """

    __slots__ = ("_check_pattern", "_pack", "_shared", "_strategies", "_strategy_error")

    def __init__(
        self,
        strategies: Collection[str] = BACKOFF_STRATEGIES,
        check_pattern: Callable[[str, str | None], None] | None = None,
    ) -> None:
        self._pack = Packer().pack
        self._check_pattern = check_pattern
        self._strategies = frozenset(strategies)
        names = [f"'{name}'" for name in (*BACKOFF_STRATEGIES, *sorted(self._strategies - set(BACKOFF_STRATEGIES)))]
        self._strategy_error = f"backoff.type must be {', '.join(names[:-1])} or {names[-1]}"
        self._shared: dict[tuple[Any, ...], JobOptions] = {}

    def read(self, raw: Mapping[str, Any]) -> JobSpec:
        """Read the input of a single push. The custom id is ``jobId``; members that are no job options are ignored.

        Raises:
            LateValidationError: a violation that a missing dependency would come before.
            ValidationError: the first violation.
        """
        data = raw.get("data", _ABSENT)
        name = raw.get("name", _ABSENT)
        if name is _ABSENT:
            name, data = _from_envelope(data)
        payload = self._payload(data)
        if OPTION_NAMES.isdisjoint(raw):
            return plain_spec(_job_name(name), payload)
        if raw.get("durable") is True and _OTHERS.isdisjoint(raw):
            return plain_spec(_job_name(name), payload, DURABLE_OPTIONS)
        return self._full(raw, name, payload, "jobId")

    def read_data(self, data: Any) -> bytes:
        """Pack a payload by the rules of job data, to replace that of a job.

        Raises:
            ValidationError: it cannot be packed or is too large.
        """
        payload = self._payload(data)
        return NULL if payload is None else payload

    def read_batch(self, raws: Sequence[Any]) -> list[JobSpec]:
        """Read the elements of a bulk push. The custom id of an element is ``customId``; a ``jobId`` in it is ignored.

        Raises:
            ValidationError: the first violation, with ``jobs[<index>]: `` before its text.
        """
        specs = []
        for index, raw in enumerate(raws):
            try:
                specs.append(self._element(raw))
            except ValidationError as error:
                raise _at(index, error) from error.__cause__
        return specs

    def read_member(self, raw: Mapping[str, Any], check: Callable[[], None]) -> JobSpec:
        """Read a member of a flow as an element of a batch; ``check`` runs when its name and data have passed."""
        return self._element(raw, check)

    def _element(self, raw: Any, check: Callable[[], None] | None = None) -> JobSpec:
        if type(raw) is not dict and not isinstance(raw, Mapping):
            raise ValidationError("job input must be an object")
        data = raw.get("data", _ABSENT)
        name = raw.get("name", _ABSENT)
        if name is _ABSENT:
            name, data = _from_envelope(data)
        name = _job_name(name)
        payload = self._payload(data)
        if check is not None:
            check()
        if OPTION_NAMES.isdisjoint(raw):
            return plain_spec(name, payload)
        if raw.get("durable") is True and _OTHERS.isdisjoint(raw):
            return plain_spec(name, payload, DURABLE_OPTIONS)
        return self._full(raw, name, payload, "customId")

    def _payload(self, data: Any) -> bytes | None:
        if data is _ABSENT:
            return None
        try:
            blob = self._pack(data)
        except SerializationError as error:
            raise ValidationError(f"Job data must be JSON serializable: {error}") from error
        if len(blob) > _SMALL_PAYLOAD:
            check_size(blob)
        return blob

    def _full(self, raw: Mapping[str, Any], name: Any, payload: bytes | None, id_field: str) -> JobSpec:
        get = raw.get
        group = group_id(raw["groupId"]) if "groupId" in raw else None
        if group is None:
            value = get("priority")
            priority = 0 if value is None else number(value, "priority", -1_000_000, 1_000_000, integer=True)
        else:
            priority = _group_priority(raw["priority"]) if "priority" in raw else 0

        value = get("delay")
        delay = 0 if value is None else number(value, "delay", 0, YEAR_MS)
        value = get("timeout")
        timeout = None if value is None else number(value, "timeout", 0, DAY_MS)
        value = get("maxAttempts")
        max_attempts = 3 if value is None else number(value, "maxAttempts", 1, 1000, integer=True)
        value = get("backoff")
        backoff_ms, backoff = (1000, None) if value is None else self._backoff(value)
        value = get("ttl")
        ttl = None if value is None else number(value, "ttl", 0, YEAR_MS)

        stall_timeout = _optional_number(get("stallTimeout"), "stallTimeout", -SAFE_INTEGER)
        stack_limit = _optional_number(get("stackTraceLimit"), "stackTraceLimit", -SAFE_INTEGER)
        keep_logs = _optional_number(get("keepLogs"), "keepLogs", 0)
        size_limit = _optional_number(get("sizeLimit"), "sizeLimit", 0)
        if payload is not None:
            check_size_limit(payload, size_limit)
        timestamp = _optional_number(get("timestamp"), "timestamp", -SAFE_INTEGER)
        debounce_ttl = _optional_number(get("debounceTtl"), "debounceTtl", 0)
        debounce_wait = _optional_number(get("debounceMaxWait"), "debounceMaxWait", 0)
        debounce_id = _optional_key(get("debounceId"), "debounceId")
        unique_key = _optional_key(get("uniqueKey"), "uniqueKey")
        dedup_ttl, dedup_extend, dedup_replace, dedup_scope = _dedup(get("dedup"))
        remove_on_complete = _retention(get("removeOnComplete"), "removeOnComplete")
        remove_on_fail = _retention(get("removeOnFail"), "removeOnFail")
        lifo = _flag(get("lifo"), "lifo")
        durable = _flag(get("durable"), "durable")
        fail_parent = _flag(get("failParentOnFailure"), "failParentOnFailure")
        remove_dependency = _flag(get("removeDependencyOnFailure"), "removeDependencyOnFailure")
        continue_parent = _flag(get("continueParentOnFailure"), "continueParentOnFailure")
        ignore_dependency = _flag(get("ignoreDependencyOnFailure"), "ignoreDependencyOnFailure")
        tags = _strings(get("tags"), "tags")
        children_ids = _strings(get("childrenIds"), "childrenIds")
        parent_id = _optional_key(get("parentId"), "parentId")
        depends_on = _strings(get("dependsOn"), "dependsOn")

        # Dependencies are looked up between the checks above and those below; only the broker can do that.
        try:
            name = _job_name(name)
            group_max_size = _group_max_size(raw["groupMaxSize"]) if "groupMaxSize" in raw else None
            custom_id = get(id_field)
            if custom_id == "":
                custom_id = None
            value = get("repeat")
            repeat = None
            if value is not None:
                related = bool(depends_on or children_ids or parent_id)
                repeat = self._repeat(value, custom_id is not None, related)
            if custom_id is not None:
                custom_id = _key(custom_id, "custom ID")
        except ValidationError as error:
            if depends_on:
                raise LateValidationError(str(error), depends_on) from None
            raise

        key = (
            max_attempts,
            backoff_ms,
            None if backoff is None else (backoff["type"], backoff.get("maxDelay")),
            ttl,
            timeout,
            stall_timeout,
            lifo,
            remove_on_complete,
            remove_on_fail,
            stack_limit,
            keep_logs,
            size_limit,
            fail_parent,
            remove_dependency,
            continue_parent,
            ignore_dependency,
            dedup_ttl,
            dedup_extend,
            dedup_replace,
            dedup_scope,
            debounce_id,
            debounce_ttl,
            debounce_wait,
            durable,
        )
        options = self._shared.get(key) if repeat is None else None
        if options is None:
            options = JobOptions(
                max_attempts=max_attempts,
                backoff_ms=backoff_ms,
                backoff=backoff,
                ttl_ms=ttl,
                timeout_ms=timeout,
                stall_timeout_ms=stall_timeout,
                lifo=lifo,
                remove_on_complete=remove_on_complete,
                remove_on_fail=remove_on_fail,
                stack_trace_limit=10 if stack_limit is None else stack_limit,
                keep_logs=keep_logs,
                size_limit=size_limit,
                fail_parent_on_failure=fail_parent,
                remove_dependency_on_failure=remove_dependency,
                continue_parent_on_failure=continue_parent,
                ignore_dependency_on_failure=ignore_dependency,
                dedup_ttl_ms=dedup_ttl,
                dedup_extend=dedup_extend,
                dedup_replace=dedup_replace,
                dedup_scope=cast(Any, dedup_scope),
                debounce_id=debounce_id,
                debounce_ttl_ms=debounce_ttl,
                debounce_max_wait_ms=debounce_wait,
                durable=durable,
                repeat=repeat,
            )
            if options == DEFAULT_OPTIONS:
                options = DEFAULT_OPTIONS
            if repeat is None:
                if len(self._shared) >= MAX_SHARED_OPTIONS:
                    self._shared.clear()
                self._shared[key] = options
        return JobSpec(
            name,
            payload,
            options,
            priority=priority,
            delay=delay,
            timestamp=timestamp,
            custom_id=custom_id,
            unique_key=unique_key,
            group_id=group,
            group_max_size=group_max_size,
            depends_on=depends_on,
            parent_id=parent_id,
            parent_queue=None if parent_id is None else _link(get("data"), parent_id),
            children_ids=children_ids,
            tags=tags,
        )

    def _backoff(self, value: Any) -> tuple[int, BackoffConfig | None]:
        if not isinstance(value, Mapping):
            return number(value, "backoff", 0, DAY_MS), None
        kind = value.get("type")
        if not isinstance(kind, str) or kind not in self._strategies:
            raise ValidationError(self._strategy_error)
        delay = value.get("delay")
        if delay is None:
            raise ValidationError("backoff.delay is required")
        config: BackoffConfig = {"type": kind, "delay": number(delay, "backoff.delay", 0, DAY_MS)}
        longest = value.get("maxDelay")
        if longest is not None:
            config["maxDelay"] = number(longest, "backoff.maxDelay", 0, DAY_MS)
        return config["delay"], config

    def _repeat(self, value: Any, has_custom_id: bool, has_relations: bool) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValidationError("repeat must be an object")
        every, pattern = value.get("every"), value.get("pattern")
        if pattern is not None and not isinstance(pattern, str):
            raise ValidationError("repeat.pattern must be a string")
        by_pattern = pattern is not None and bool(pattern.strip())
        if (every is not None) == by_pattern:
            raise ValidationError("repeat requires exactly one of every or pattern")
        repeat: dict[str, Any] = {}
        zone = value.get("tz")
        if zone is not None:
            repeat["tz"] = text(zone, "repeat.tz")
        if by_pattern:
            repeat["pattern"] = pattern
            if pattern is not None and self._check_pattern is not None:
                try:
                    self._check_pattern(pattern, zone)
                except ValidationError as error:
                    raise ValidationError(f"Invalid repeat pattern: {error}") from None
        else:
            if type(every) is bool or not isinstance(every, int | float) or not 0 < every < math.inf:
                raise ValidationError("repeat.every must be a positive finite number")
            repeat["every"] = max(1, number(every, "repeat.every", 0, SAFE_INTEGER))
        for field in ("startDate", "endDate", "prevMillis", "offset"):
            moment = value.get(field)
            if moment is None:
                continue
            if type(moment) is bool or not isinstance(moment, int | float) or not math.isfinite(moment):
                raise ValidationError(f"repeat.{field} must be a finite timestamp")
            repeat[field] = number(moment, f"repeat.{field}", -SAFE_INTEGER, SAFE_INTEGER)
        limit = _optional_number(value.get("limit"), "repeat.limit", 0)
        if limit is not None:
            repeat["limit"] = limit
        repeat["count"] = _optional_number(value.get("count"), "repeat.count", 0) or 0
        if value.get("immediately") is not None:
            repeat["immediately"] = _flag(value["immediately"], "repeat.immediately")
        if value.get("jobId") is not None:
            repeat["jobId"] = _key(value["jobId"], "repeat.jobId")
        if has_custom_id:
            raise ValidationError("repeat jobs cannot use JobOptions.jobId; use repeat.jobId instead")
        if has_relations:
            raise ValidationError("repeat jobs cannot participate in parent or dependency relationships")
        return repeat


def number(value: Any, field: str, minimum: int, maximum: int, *, integer: bool = False) -> int:
    """Return ``value`` floored, if it is a finite number within the bounds (compared before it is floored).

    Raises:
        ValidationError: with the text that the wire protocol prescribes for ``field``.
    """
    kind = type(value)
    if kind is not int:
        if kind is not float and (kind is bool or not isinstance(value, int | float)):
            raise ValidationError(f"{field} must be a number")
        if not math.isfinite(value):
            raise ValidationError(f"{field} must be a finite number")
        if integer and value != math.floor(value):
            raise ValidationError(f"{field} must be an integer")
    if value < minimum:
        raise ValidationError(f"{field} must be at least {minimum}")
    if value > maximum:
        raise ValidationError(f"{field} must be at most {maximum}")
    floored: int = math.floor(value)
    return floored


def _optional_number(value: Any, field: str, minimum: int) -> int | None:
    return None if value is None else number(value, field, minimum, SAFE_INTEGER)


def _at(index: int, error: ValidationError) -> ValidationError:
    message = f"jobs[{index}]: {error}"
    if isinstance(error, LateValidationError):
        return LateValidationError(message, error.depends_on)
    return ValidationError(message)


def _from_envelope(data: Any) -> tuple[Any, Any]:
    """Older clients send the job name inside the data; take it out."""
    if isinstance(data, dict):
        name = data.get("name")
        if isinstance(name, str):
            return name, {key: value for key, value in data.items() if key != "name"}
    return "default", data


def _job_name(name: Any) -> str:
    if type(name) is str and 0 < len(name) <= 256 and name.isascii() and "\0" not in name:
        return name
    return text(check_job_name(name), "Job name")


def text(value: Any, field: str) -> str:
    """Return ``value`` if it is a string that every storage can keep: well-formed Unicode without NUL characters.

    Raises:
        ValidationError: naming ``field``.
    """
    if not isinstance(value, str):
        raise ValidationError(f"{field} must be a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValidationError(f"{field} must be well-formed Unicode") from None
    if "\0" in value:
        raise ValidationError(f"{field} must not contain NUL characters")
    return value


def _key(value: Any, field: str) -> str:
    key = text(value, field)
    if len(key) > MAX_KEY_CHARACTERS:
        raise ValidationError(f"{field} must be at most {MAX_KEY_CHARACTERS} characters")
    return key


def _optional_key(value: Any, field: str) -> str | None:
    return None if value is None or value == "" else _key(value, field)


def group_id(value: Any) -> str:
    """Return ``value`` if it is a group id: a string of 1..256 characters without NUL.

    Raises:
        ValidationError: with the text that the wire protocol prescribes.
    """
    if not isinstance(value, str):
        raise ValidationError("groupId must be a string")
    if not value:
        raise ValidationError("groupId must be a non-empty string")
    if len(value) > 256:
        raise ValidationError("groupId must be at most 256 characters")
    return text(value, "groupId")


def _group_priority(value: Any) -> int:
    if type(value) is bool or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValidationError("group.priority must be a finite number")
    if value != math.floor(value):
        raise ValidationError("group.priority must be an integer")
    if not 0 <= value <= 2_097_151:
        raise ValidationError("group.priority must be between 0 and 2097151")
    return int(value)


def positive_safe_integer(value: Any, field: str) -> int:
    """Return ``value`` as an integer if it is one in 1..2^53-1.

    Raises:
        ValidationError: ``<field> must be a positive safe integer``.
    """
    if type(value) is not bool and isinstance(value, int | float) and 1 <= value <= SAFE_INTEGER and value % 1 == 0:
        return int(value)
    raise ValidationError(f"{field} must be a positive safe integer")


def _group_max_size(value: Any) -> int:
    return positive_safe_integer(value, "group.maxSize")


def _flag(value: Any, field: str) -> bool:
    if value is None:
        return False
    if isinstance(value, bool | int | float):
        return bool(value) and value == value  # NaN is false, as in the reference
    raise ValidationError(f"{field} must be a boolean")


def _strings(value: Any, field: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ValidationError(f"{field} must be an array of strings")
    return tuple([_key(item, field) for item in value])


def _dedup(value: Any) -> tuple[int | None, bool, bool, str | None]:
    if value is None:
        return None, False, False, None
    if not isinstance(value, Mapping):
        raise ValidationError("dedup must be an object")
    scope = value.get("scope")
    if scope is not None and scope not in _DEDUP_SCOPES:
        raise ValidationError("dedup.scope must be 'waiting', 'unfinished' or 'window'")
    return (
        _optional_number(value.get("ttl"), "dedup.ttl", 0),
        _flag(value.get("extend"), "dedup.extend"),
        _flag(value.get("replace"), "dedup.replace"),
        scope,
    )


def _retention(value: Any, field: str) -> Retention:
    if value is None or value is False:
        return KEEP
    if value is True:
        return REMOVE
    if isinstance(value, Mapping):
        age, count = value.get("age"), value.get("count")
        if age is None and count is None:
            return REMOVE
        # ``age`` is in seconds, as in BullMQ, whose option this is.
        age_ms = None
        if age is not None:
            number(age, f"{field}.age", 0, SAFE_INTEGER // 1000)
            age_ms = int(age * 1000)
        return Retention(age_ms=age_ms, count=_optional_number(count, f"{field}.count", 0))
    if isinstance(value, int | float):
        count = number(value, field, 0, SAFE_INTEGER)
        return Retention(count=count) if count else KEEP
    raise ValidationError(f"{field} must be a boolean, a number or an object with age or count")


def _link(data: Any, parent_id: str) -> str | None:
    """Queue of the parent that the payload asks to be linked to: both markers must be there and name ``parent_id``."""
    if isinstance(data, dict) and data.get("__parentId") == parent_id:
        queue = data.get("__parentQueue")
        if isinstance(queue, str) and queue:
            return queue
    return None
