"""Routes and how a request finds its own.

A path is matched as it was received: segment by segment, without tolerance for trailing slashes or case. A segment of a pattern
that begins with a colon takes any segment that is not empty; where a literal one fits too, that goes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import ABSENT, Members, Reply
from bunqueue_core.model.errors import ValidationError

#: A percent sign that begins no escape.
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")

#: Parameters of a query by name, each with its values in order.
Query = Mapping[str, list[str]]

#: Adds to a request what is not taken over from path and body as it is: ``(request, body, query)``.
Prepare = Callable[[dict[str, Any], Mapping[str, Any], Query], None]


class Body(Enum):
    """What a route wants of the request's body."""

    NONE = "not read"
    REQUIRED = "a JSON object"
    OPTIONAL = "a JSON object, or nothing"
    LENIENT = "a JSON object; everything else counts as an empty one"


class Status(Enum):
    """The status of a refusal; a success is always 200."""

    BAD_REQUEST = 400
    NOT_FOUND = 404
    #: The refusal is told in the body only.
    OK = 200


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path.

    Attributes:
        method: in capitals.
        path: pattern; its parameters become members of the request, percent-decoded.
        run: what answers it: a command of the table, or a view that takes a request the same way.
        command: name of the command; empty for a view.
        body: see :class:`Body`.
        status: see :class:`Status`.
        takes: members of the body that become members of the request.
        prepare: see :data:`Prepare`.
        shape: what the reply becomes where this side shows it otherwise than the protocol.
        bare: the member that alone is the answer, without ``ok`` around it.
        waits: may wait for what others have to do.
        summary: what it does, one line.
    """

    method: str
    path: str
    run: Callable[[Session, Mapping[str, Any]], Reply]
    command: str = ""
    body: Body = Body.NONE
    status: Status = Status.BAD_REQUEST
    takes: tuple[str, ...] = ()
    prepare: Prepare | None = None
    shape: Callable[[Members], Members] | None = None
    bare: str = ""
    waits: bool = False
    summary: str = ""

    def request(self, parameters: Mapping[str, str], body: Mapping[str, Any], query: Query) -> dict[str, Any]:
        """The request that ``run`` takes.

        Raises:
            ValidationError: a part of it cannot be understood.
        """
        request: dict[str, Any] = {name: decoded(value) for name, value in parameters.items()}
        for name in self.takes:
            value = body.get(name, ABSENT)
            if value is not ABSENT:
                request[name] = value
        if self.prepare is not None:
            self.prepare(request, body, query)
        return request


@dataclass(slots=True)
class _Node:
    literal: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    #: By method: the route and the names of its parameters.
    routes: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)


class Routes:
    """A set of routes.

    Args:
        routes: all of them.

    Raises:
        ValueError: two of them are for the same requests.
    """

    __slots__ = ("_root", "routes")

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        for route in self.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        names: list[str] = []
        for segment in route.path.split("/")[1:]:
            if segment.startswith(":"):
                names.append(segment[1:])
                if node.parameter is None:
                    node.parameter = _Node()
                node = node.parameter
            else:
                node = node.literal.setdefault(segment, _Node())
        if route.method in node.routes:
            raise ValueError(f"{route.method} {route.path} stands for the same requests as another route")
        node.routes[route.method] = (route, tuple(names))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """The route for a request, and its parameters as they stand in ``path``; None if there is none."""
        segments = path.split("/")
        if segments[0]:
            return None
        values: list[str] = []
        found = self._walk(self._root, segments, 1, method, values)
        return None if found is None else (found[0], dict(zip(found[1], values, strict=True)))

    def _walk(
        self, node: _Node, segments: list[str], position: int, method: str, values: list[str]
    ) -> tuple[Route, tuple[str, ...]] | None:
        if position == len(segments):
            return node.routes.get(method)
        segment = segments[position]
        following = node.literal.get(segment)
        if following is not None:
            found = self._walk(following, segments, position + 1, method, values)
            if found is not None:
                return found
        following = node.parameter
        if following is None or not segment:
            return None
        values.append(segment)
        found = self._walk(following, segments, position + 1, method, values)
        if found is None:
            values.pop()
        return found


def decoded(segment: str) -> str:
    """A segment of a path without its percent-encoding.

    Raises:
        ValidationError: an escape is malformed, or what it makes is no UTF-8.
    """
    if segment.isascii() and "%" not in segment:
        return segment
    raw = segment.encode("latin-1", "replace")
    try:
        if _BAD_ESCAPE.search(raw):
            raise ValueError
        return unquote_to_bytes(raw).decode()
    except ValueError:
        raise ValidationError("URI error") from None


def parse_query(text: str) -> dict[str, list[str]]:
    """The parameters of a query, each with its values in order. What cannot be decoded is taken as well as it can be."""
    parameters: dict[str, list[str]] = {}
    for pair in text.split("&"):
        if pair:
            name, _, value = pair.partition("=")
            parameters.setdefault(_lenient(name), []).append(_lenient(value))
    return parameters


def _lenient(text: str) -> str:
    text = text.replace("+", " ")
    return unquote_to_bytes(text.encode("latin-1", "replace")).decode("utf-8", "replace") if "%" in text else text
