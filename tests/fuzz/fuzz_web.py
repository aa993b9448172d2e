"""What the fuzz test sends to the HTTP side: paths, queries and bodies that make no sense, and messages of a WebSocket."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Final
from urllib.parse import quote, quote_from_bytes

from fuzz_requests import Fuzzer, pack_json
from fuzz_server import PATIENCE_S, Target
from websockets.asyncio.client import ClientConnection, connect

from bunqueue_core.server.http.routes import ROUTES
from bunqueue_core.server.http.routing import Body, Route

#: Statuses that a request may be answered with, whatever it holds.
FORESEEN: Final = {200, 400, 404, 413}

_QUERIES: Final = (
    "timeout",
    "limit",
    "offset",
    "start",
    "end",
    "state",
    "count",
    "asc",
    "maxJobs",
    "jobsLimit",
    "includeJobs",
)


class Site:
    """A connection to the HTTP side that is kept open from request to request."""

    def __init__(self, target: Target, fuzzer: Fuzzer) -> None:
        self._target = target
        self._fuzzer = fuzzer
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: bytes, body: bytes | None) -> int:
        """Send a request; its status. The answer must be JSON, and no failure of the server's own."""
        if self._streams is None:
            assert isinstance(self._target.listening.http, tuple)
            self._streams = await asyncio.open_connection(*self._target.listening.http)
        reader, writer = self._streams
        head = [method.encode() + b" " + path + b" HTTP/1.1", b"Host: localhost"]
        if body is not None:
            head.append(b"Content-Length: %d" % len(body))
        writer.write(b"\r\n".join(head) + b"\r\n\r\n" + (body or b""))
        try:
            async with asyncio.timeout(PATIENCE_S):
                headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                status = int(headers.split(" ", 2)[1])
                length = re.search(r"(?im)^content-length: (\d+)", headers)
                assert length is not None, headers
                content = await reader.readexactly(int(length[1]))
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            self._target.check_log((method, path[:2_000]))
            raise AssertionError(f"{type(error).__name__} after {method} {path!r} {(body or b'')[:4_000]!r}") from error
        if re.search(r"(?im)^connection: close", headers):
            await self.close()
        if status in FORESEEN and content:
            answer = json.loads(content)
            if isinstance(answer, dict) and answer.get("ok") is True:
                self._fuzzer.learn(answer)
        self._target.requests += 1
        return status

    async def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def send_routes(fuzzer: Fuzzer, target: Target, site: Site) -> None:
    """One request of each route, with parts that make no sense."""
    for route in ROUTES:
        method, path, body = _request(fuzzer, route)
        status = await site.ask(method, path, body)
        target.check_log((method, path[:2_000], (body or b"")[:2_000]))
        assert status in FORESEEN, (status, method, path, (body or b"")[:4_000])


def _request(fuzzer: Fuzzer, route: Route) -> tuple[str, bytes, bytes | None]:
    request: dict[str, Any] = fuzzer.request(route.command) if route.command else {}
    request = fuzzer.mutated(request, fuzzer.pick((0, 1, 1, 2, 4))) if request else request
    if route.waits:
        request["timeout"] = fuzzer.pick((0, 5))

    def segment(found: re.Match[str]) -> str:
        value = request.pop(found[1], None)
        text = str(value) if value not in (None, "") and len(str(value)) < 4_000 else "none"
        choice = fuzzer.random.random()
        if choice < 0.05:
            return fuzzer.pick(("%", "%zz", "%ff%fe", "%00", "%2f", "..", "%C0%80"))
        return quote_from_bytes(text.encode("utf-8", "surrogatepass"), safe="")

    path = re.sub(r":(\w+)", segment, route.path)
    query = [
        f"{name}={quote(str(fuzzer.pick((5, -1, 0.5, 'NaN', '1e400', '9' * 300, '', '%ff', 'waiting', 'true', '∞'))))}"
        for name in fuzzer.random.sample(_QUERIES, fuzzer.pick((0, 0, 1, 3)))
    ]
    if route.waits:
        query = ["timeout=5"]
    if query:
        path += "?" + "&".join(query)
    if route.body is Body.NONE:
        return route.method, path.encode(), None
    members = {name: value for name, value in request.items() if name not in ("cmd", "reqId")}
    body = pack_json(members)
    choice = fuzzer.random.random()
    if route.waits:
        pass  # without its time-out it would wait for long
    elif choice < 0.1:
        body = fuzzer.pick((b"", b"null", b"[]", b"1", b'"x"', b"{", b"\xff", b"NaN", b"{}}", b'{"a":1,"a":2}'))
    elif choice < 0.2:
        body = fuzzer.mangled(body)
    return route.method, path.encode(), body


async def socket(target: Target) -> ClientConnection:
    """A WebSocket of the server."""
    assert isinstance(target.listening.http, tuple)
    host, port = target.listening.http
    return await connect(f"ws://{host}:{port}/ws", max_size=None, proxy=None)


async def send_messages(
    fuzzer: Fuzzer, target: Target, client: ClientConnection, requests: list[dict[str, Any]]
) -> None:
    """Send requests as JSON: each gets one answer."""
    for request in requests:
        await client.send(pack_json(request).decode("utf-8", "replace"))
    answered = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(answered) < len(requests):
                answer = json.loads(await client.recv())
                if "ok" in answer:
                    answered.append(answer.get("reqId"))
                    target.note(fuzzer, [answer])
    except TimeoutError as error:
        target.check_log(requests)
        left = [request for request in requests if request.get("reqId") not in answered]
        raise AssertionError(f"no answer to some of {str(left)[:20_000]}") from error
    target.check_log(requests)
