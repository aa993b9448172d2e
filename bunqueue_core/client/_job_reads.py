"""Reading responses of queries: small functions that both worlds share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bunqueue_core.model.payload import widen


def values(response: Mapping[str, Any]) -> dict[str, Any]:
    """The ``values`` of a response about children, which some commands wrap in ``data``."""
    data = response.get("data")
    found = data.get("values") if isinstance(data, Mapping) else response.get("values")
    return dict(widen(found or {}))


def data_of(response: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a response that wraps them in ``data``."""
    data = response.get("data")
    return data if isinstance(data, dict) else {}


def whole(value: Any) -> Any:
    """An integral float as an integer; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def whole_numbers(members: Any) -> Any:
    """A decoded structure with its integral floats as integers: times and counts of a response."""
    if isinstance(members, dict):
        return {key: whole_numbers(value) for key, value in members.items()}
    if isinstance(members, list):
        return [whole_numbers(value) for value in members]
    return whole(members)


def unique(records: Iterable[Mapping[str, Any]], seen: set[Any]) -> list[Mapping[str, Any]]:
    """The records whose id is not in ``seen`` yet; their ids are added to it."""
    fresh = []
    for record in records:
        if record["id"] not in seen:
            seen.add(record["id"])
            fresh.append(record)
    return fresh


def is_missing(error: Exception) -> bool:
    """Whether a refusal says that there is no such thing."""
    return "not found" in str(error).lower()


#: Members of a job's record that are the program's own: what it put in comes out.
_FOREIGN = frozenset(("data", "result", "returnvalue", "progress"))

#: Names of a dead letter's members.
_DEAD_LETTER = {
    "enteredAt": "entered_at",
    "retryCount": "retry_count",
    "lastRetryAt": "last_retry_at",
    "nextRetryAt": "next_retry_at",
    "expiresAt": "expires_at",
}


def dead_letter(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A dead letter under Python's names."""
    return {
        _DEAD_LETTER.get(key, key): job_record(value) if key == "job" else whole_numbers(value)
        for key, value in entry.items()
    }


def job_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A job's record with its times and counts as integers; its payload as it was added."""
    return {key: value if key in _FOREIGN else whole_numbers(value) for key, value in record.items()}


_DLQ_STATS = {
    "byReason": "by_reason",
    "byQueue": "by_queue",
    "pendingRetry": "pending_retry",
    "oldestEntry": "oldest_entry",
    "newestEntry": "newest_entry",
}


def dlq_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Statistics of dead letters under Python's names."""
    return {_DLQ_STATS.get(key, key): whole_numbers(value) for key, value in stats.items()}


_FILTER = {"older_than": "olderThan", "newer_than": "newerThan"}


def dlq_filter(given: Mapping[str, Any]) -> dict[str, Any]:
    """A filter of dead letters under the wire's names."""
    return {_FILTER.get(key, key): value for key, value in given.items() if value is not None}
