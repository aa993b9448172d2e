"""Requests' bodies: reading them within a bound, and the JSON in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from starlette.types import Receive

from bunqueue_core.server.http.routing import Body

#: Longest body that is read.
MAX_BODY_BYTES: Final = 128 * 1024 * 1024


class BodyTooLarge(Exception):
    """A body is longer than :data:`MAX_BODY_BYTES`."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class InvalidJson(ValueError):
    """A body is not what its route wants."""

    def __init__(self) -> None:
        super().__init__("Invalid JSON body")


def _no_such_number(text: str) -> NoReturn:
    raise ValueError(f"JSON has no {text}")


_decode: Final = json.JSONDecoder(parse_constant=_no_such_number).decode


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. ``NaN`` and infinities are none.

    Raises:
        ValueError: it is no JSON, no UTF-8, or nests too deeply.
    """
    if isinstance(text, bytes):
        text = text.decode()
    if text.startswith("\ufeff"):
        text = text[1:]
    try:
        return _decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request.

    Raises:
        BodyTooLarge: it is too long; the rest is not read.
        ClientGone: there is no rest.
    """
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    first: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return first
    parts, size = [first], len(first)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge
    return b"".join(parts)


def members_of(body: bytes, wanted: Body) -> Mapping[str, Any]:
    """The members of the JSON object in a body.

    Args:
        body: as it was received.
        wanted: what the route wants; an absent body has no members where it may be absent.

    Raises:
        InvalidJson: it holds something else.
    """
    try:
        if wanted is not Body.REQUIRED and not body.strip():
            return {}
        value = parse_json(body)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    if wanted is Body.LENIENT:
        return {}
    raise InvalidJson
