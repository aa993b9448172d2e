"""Job options as Python programs write them, turned into the wire's names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

#: Options that only change their name. Values of the names in :data:`_DURATIONS` may be a ``timedelta``.
_RENAMED: Final[Mapping[str, str]] = {
    "priority": "priority",
    "delay": "delay",
    "attempts": "maxAttempts",
    "ttl": "ttl",
    "timeout": "timeout",
    "stall_timeout": "stallTimeout",
    "unique_key": "uniqueKey",
    "depends_on": "dependsOn",
    "children_ids": "childrenIds",
    "tags": "tags",
    "parent_id": "parentId",
    "group_id": "groupId",
    "lifo": "lifo",
    "durable": "durable",
    "remove_on_complete": "removeOnComplete",
    "remove_on_fail": "removeOnFail",
    "stack_trace_limit": "stackTraceLimit",
    "keep_logs": "keepLogs",
    "size_limit": "sizeLimit",
    "fail_parent_on_failure": "failParentOnFailure",
    "remove_dependency_on_failure": "removeDependencyOnFailure",
    "continue_parent_on_failure": "continueParentOnFailure",
    "ignore_dependency_on_failure": "ignoreDependencyOnFailure",
}

_DURATIONS: Final = frozenset(("delay", "ttl", "timeout", "stall_timeout"))
_LISTS: Final = frozenset(("depends_on", "children_ids", "tags"))

#: Spelling of the TypeScript client, understood in flows and templates.
_CAMEL_CASE: Final[Mapping[str, str]] = {
    **{wire: name for name, wire in _RENAMED.items() if wire != name},
    "jobId": "job_id",
    "groupMaxSize": "group_max_size",
}

_REPEAT_NAMES: Final[Mapping[str, str]] = {
    "start_date": "startDate",
    "end_date": "endDate",
    "prev_millis": "prevMillis",
    "job_id": "jobId",
}

_NESTED_NAMES: Final[Mapping[str, str]] = {"max_size": "maxSize", "max_wait": "maxWait", "max_delay": "maxDelay"}

#: Options of a schedule's template that its jobs take over.
_TEMPLATE_OPTIONS: Final = frozenset(
    ("attempts", "backoff", "timeout", "delay", "stall_timeout", "remove_on_complete", "remove_on_fail")
)


def milliseconds(value: Any) -> Any:
    """A ``timedelta`` as milliseconds; anything else as it is."""
    return round(value / timedelta(milliseconds=1)) if isinstance(value, timedelta) else value


def epoch_ms(value: Any) -> Any:
    """A ``datetime`` or ``date`` as milliseconds since the epoch (UTC where it has no zone); anything else as it is."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    if isinstance(value, date):
        return epoch_ms(datetime(value.year, value.month, value.day, tzinfo=UTC))
    return value


def _unknown(name: str) -> TypeError:
    close = difflib.get_close_matches(name, [*_RENAMED, "job_id", *_SPECIAL], n=1, cutoff=0.75)
    return TypeError(f"unknown job option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))


def wire_options(options: Mapping[str, Any], custom_id_field: str = "jobId") -> dict[str, Any]:
    """Translate job options. An option that is None counts as not given.

    Args:
        options: see :meth:`bunqueue_core.client.queue.Queue.add`.
        custom_id_field: the wire's name of ``job_id``: ``jobId`` in a single push, ``customId`` in a batch or a flow.

    Returns:
        The command's fields; ``parent`` adds to the payload instead, see :func:`linked_data`.

    Raises:
        TypeError: an option is not known, or one that has members is not a mapping.
    """
    wire: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        field = _RENAMED.get(name)
        if field is not None:
            if name in _DURATIONS:
                value = milliseconds(value)
            elif name in _LISTS and not isinstance(value, str):
                value = list(value)
            wire[field] = value
        elif name == "job_id":
            wire[custom_id_field] = value
        elif name in _SPECIAL:
            _SPECIAL[name](value, wire)
        elif name in _CAMEL_CASE:
            wire.update(wire_options({_CAMEL_CASE[name]: value}, custom_id_field))
        else:
            raise _unknown(name)
    unique_key = options.get("unique_key")
    if unique_key is not None:
        wire["uniqueKey"] = unique_key
    return wire


def linked_data(data: Any, options: Mapping[str, Any]) -> Any:
    """The payload of a job with a ``parent``: the server links the two when the payload names the parent too.

    Raises:
        TypeError: the payload is not a dict, or the parent is not complete.
    """
    if options.get("parent") is None:
        return data
    parent = _complete_parent(options["parent"])
    if data is not None and not isinstance(data, dict):
        raise TypeError("data must be a dict when the option 'parent' is given")
    return {**(data or {}), "__parentId": parent["id"], "__parentQueue": parent["queue"]}


def template_options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The part of job options that a schedule's jobs take over (``jobOptions``), None if there is none."""
    if not options:
        return None
    named = {_CAMEL_CASE.get(name, name): value for name, value in options.items()}
    wire = wire_options({name: value for name, value in named.items() if name in _TEMPLATE_OPTIONS})
    return wire or None


def snake_case(options: Mapping[str, Any]) -> dict[str, Any]:
    """Job options with the TypeScript client's names replaced by ours."""
    return {_CAMEL_CASE.get(name, name): value for name, value in options.items()}


def _members(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, got {type(value).__name__}")
    return {_NESTED_NAMES.get(key, key): milliseconds(member) for key, member in value.items()}


def _backoff(value: Any, wire: dict[str, Any]) -> None:
    wire["backoff"] = dict(_members(value, "backoff")) if isinstance(value, Mapping) else milliseconds(value)


def _deduplication(value: Any, wire: dict[str, Any]) -> None:
    members = _members(value, "deduplication")
    if members.get("id") is not None:
        wire["uniqueKey"] = members["id"]
    policy = {key: member for key, member in members.items() if key != "id" and member is not None}
    if policy:
        wire["dedup"] = policy


def _debounce(value: Any, wire: dict[str, Any]) -> None:
    members = _members(value, "debounce")
    for key, field in (("id", "debounceId"), ("ttl", "debounceTtl"), ("maxWait", "debounceMaxWait")):
        if members.get(key) is not None:
            wire[field] = members[key]


def _group(value: Any, wire: dict[str, Any]) -> None:
    members = _members(value, "group")
    wire["groupId"] = group_id(members.get("id"))
    if members.get("priority") is not None:
        wire["priority"] = members["priority"]
    if members.get("maxSize") is not None:
        wire["groupMaxSize"] = members["maxSize"]


def _complete_parent(value: Any) -> Mapping[str, Any]:
    members = _members(value, "parent")
    if not members.get("id") or not members.get("queue"):
        raise TypeError("parent must have 'id' and 'queue'")
    return members


def _parent(value: Any, wire: dict[str, Any]) -> None:
    wire["parentId"] = _complete_parent(value)["id"]


def _repeat(value: Any, wire: dict[str, Any]) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"repeat must be a mapping, got {type(value).__name__}")
    wire["repeat"] = {
        _REPEAT_NAMES.get(key, key): epoch_ms(milliseconds(member))
        for key, member in value.items()
        if member is not None
    }


def _group_max_size(value: Any, wire: dict[str, Any]) -> None:
    wire["groupMaxSize"] = value


def _timestamp(value: Any, wire: dict[str, Any]) -> None:
    wire["timestamp"] = epoch_ms(value)


_SPECIAL: Final[Mapping[str, Callable[[Any, dict[str, Any]], None]]] = {
    "backoff": _backoff,
    "deduplication": _deduplication,
    "debounce": _debounce,
    "group": _group,
    "group_max_size": _group_max_size,
    "parent": _parent,
    "repeat": _repeat,
    "timestamp": _timestamp,
}


def group_id(value: Any) -> str:
    """A group's id as the wire has it: a string, or an integer written out.

    Raises:
        ValueError: it is neither, empty, too long, or has a NUL character.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("groupId must be a string or number")
    if isinstance(value, int):
        if not -(2**53) < value < 2**53:
            raise ValueError("numeric groupId must be a safe integer")
        return str(value)
    if not value:
        raise ValueError("groupId must be a non-empty string")
    if len(value) > 256:
        raise ValueError("groupId must be at most 256 characters")
    if "\0" in value:
        raise ValueError("groupId must not contain NUL characters")
    return value
