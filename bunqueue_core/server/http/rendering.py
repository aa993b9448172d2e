"""Replies as JSON: the same replies that :mod:`bunqueue_core.model.wire` renders as MessagePack, with the same members.

Plain replies are written directly. One with records of the model or stored payloads goes through the MessagePack encoder, so that
there is one place that knows the members of a record, and is written from what that made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgpack

from bunqueue_core.commands.table import ABSENT, Members
from bunqueue_core.events.encoding import to_json
from bunqueue_core.model.payload import UNDEFINED_EXT
from bunqueue_core.model.wire import WireEncoder

#: A bare success.
OK: Final = b'{"ok":true}'

_EXACT_FLOAT: Final = 2**53
_WIDE_FLOAT: Final = b"\xcb"
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class JsonReplies:
    """Renders replies. Belongs to one thread at a time."""

    __slots__ = ("_wire",)

    def __init__(self) -> None:
        self._wire = WireEncoder()

    def reply(self, members: Members, req_id: Any = ABSENT) -> bytes:
        """A success: ``{"ok": true, …members, "reqId"}``.

        Args:
            members: what the command answers besides; None for a bare success.
            req_id: echoed whatever it is; :data:`ABSENT` leaves it out.
        """
        if members is None:
            if req_id is ABSENT:
                return OK
            return self.value({"ok": True, "reqId": req_id})
        answer = {"ok": True, **members}
        if req_id is not ABSENT:
            answer["reqId"] = req_id
        return self.value(answer)

    def failure(self, text: str, members: Mapping[str, Any] | None = None, req_id: Any = ABSENT) -> bytes:
        """A refusal: ``{"ok": false, "error", …members, "reqId"}``."""
        answer: dict[str, Any] = {"ok": False, "error": text}
        if members:
            answer.update(members)
        if req_id is not ABSENT:
            answer["reqId"] = req_id
        return self.value(answer)

    def value(self, value: Any) -> bytes:
        """A value of a reply: plain data, records of the model, payloads, and lists and maps of them."""
        try:
            text = _encode(value)
        except (TypeError, ValueError):
            return to_json(plain(self._wire.value(value)))
        return text.encode("utf-8", "backslashreplace")


def plain(blob: bytes) -> Any:
    """What an encoded value holds, with whole numbers as integers, whatever they were sent as.

    JSON tells no integer from a float, and the clients of this side read ``1.0`` as another type where their language does.
    """
    # A reqId with a lone surrogate goes back as it came: as an escape.
    value = msgpack.unpackb(blob, strict_map_key=False, ext_hook=_ext, unicode_errors="surrogatepass")
    if _WIDE_FLOAT not in blob:
        return value
    # Not recursive: payloads may nest deeper than the stack allows.
    holder = [value]
    pending: list[Any] = [holder]
    while pending:
        container = pending.pop()
        for place, item in container.items() if type(container) is dict else enumerate(container):
            kind = type(item)
            if kind is float:
                if item.is_integer() and -_EXACT_FLOAT <= item <= _EXACT_FLOAT:
                    container[place] = int(item)
            elif kind is dict or kind is list:
                pending.append(item)
    return holder[0]


def _ext(code: int, data: bytes) -> Any:
    return None if code == UNDEFINED_EXT else msgpack.ExtType(code, data)
