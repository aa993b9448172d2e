"""Events as JSON: for webhooks and for sinks. Payloads are decoded here and nowhere before."""

from __future__ import annotations

import json
import math
from typing import Any, Final

import msgpack

from bunqueue_core.model.payload import Packed, decode
from bunqueue_core.model.requests import Event
from bunqueue_core.model.webhook import WEBHOOK_EVENTS

#: Bytes of an event besides its payload, about: what it costs to keep one.
EVENT_OVERHEAD_BYTES: Final = 512

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def to_json(value: Any) -> bytes:
    """A payload's value as compact JSON, as the JavaScript codec of published servers writes it.

    NaN and infinities become null, bytes a map of their positions, timestamps ISO 8601 in UTC, keys text. A lone surrogate
    is written as an escape.
    """
    try:
        text = _encode(value)
    except (TypeError, ValueError):
        text = _encode(_plain(value))
    return text.encode("utf-8", "backslashreplace")


def event_document(event: Event) -> dict[str, Any]:
    """An event as subscribers get it: ``{eventType, queue, jobId, timestamp, data?, error?, …}``, payloads decoded."""
    document: dict[str, Any] = {
        "eventType": event.type,
        "queue": event.queue,
        "jobId": event.job_id,
        "timestamp": event.timestamp,
    }
    if event.extra:
        for name, value in event.extra.items():
            document[name] = _decoded(value)
    return document


def webhook_body(event: Event) -> bytes:
    """What a webhook is sent: ``{event, timestamp, jobId, queue, data?, error?, progress?}``, in this order.

    ``data`` is the result of a completed job and the input of a failed one.
    """
    name = WEBHOOK_EVENTS[event.type]
    document: dict[str, Any] = {
        "event": name,
        "timestamp": event.timestamp,
        "jobId": event.job_id,
        "queue": event.queue,
    }
    extra = event.extra or {}
    if "data" in extra and event.type in ("completed", "failed"):
        document["data"] = _decoded(extra["data"])
    if event.type == "failed" and extra.get("error") is not None:
        document["error"] = extra["error"]
    if event.type == "progress" and "progress" in extra:
        document["progress"] = extra["progress"]
    return to_json(document)


def event_size(event: Event) -> int:
    """About how many bytes it takes to keep ``event``."""
    extra = event.extra
    if not extra:
        return EVENT_OVERHEAD_BYTES
    size = EVENT_OVERHEAD_BYTES
    for value in extra.values():
        kind = type(value)
        if kind is Packed or kind is str:
            size += len(value)
    return size


def _decoded(value: Any) -> Any:
    if type(value) is not Packed:
        return value
    try:
        return decode(value)
    except ValueError:
        return None  # damaged in the storage: the rest of the event is still worth telling


def _plain(root: Any) -> Any:
    """A copy of ``root`` with everything replaced that JSON does not have. Not recursive: payloads may nest 500 deep."""
    holder: list[Any] = [root]
    pending: list[tuple[Any, Any]] = [(holder, 0)]
    while pending:
        container, place = pending.pop()
        value = container[place]
        if isinstance(value, dict):
            copy: Any = {_key(key): item for key, item in value.items()}
            pending.extend((copy, key) for key in copy)
        elif isinstance(value, list | tuple) and not isinstance(value, msgpack.ExtType):
            copy = list(value)
            pending.extend((copy, position) for position in range(len(copy)))
        else:
            copy = _plain_leaf(value)
        container[place] = copy
    return holder[0]


def _plain_leaf(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes | bytearray):
        return {str(position): byte for position, byte in enumerate(value)}
    if isinstance(value, msgpack.Timestamp):
        return _moment(value)
    return None  # extension types that nobody here knows


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, bytes):
        return key.decode("utf-8", "replace")
    return str(key)


def _moment(stamp: Any) -> str | None:
    try:
        text: str = stamp.to_datetime().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return None
    return text.replace("+00:00", "Z")


__all__ = ["EVENT_OVERHEAD_BYTES", "event_document", "event_size", "to_json", "webhook_body"]
