"""Brokers, logs and HTTP servers for the tests of events."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from aiohttp import web

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.storage.journal import Journal

#: Seconds after which something that is waited for counts as missing.
PATIENCE_S = 10

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


B = TypeVar("B", bound=LocalBroker)


def broker_of(kind: type[B], journal: Journal | None = None) -> B:
    """A local broker of class ``kind`` that is not started."""
    return kind(
        journal,
        ports=Ports(),
        capabilities=Capabilities(driver="test", persistent=journal is not None),
        settings=JournalSettings(driver="test"),
        strategies=BACKOFF_STRATEGIES,
        log=lambda *_, **__: None,
        role="manual",
    )


def local_broker(journal: Journal | None = None) -> LocalBroker:
    """A local broker that is not started."""
    return broker_of(LocalBroker, journal)


class Records:
    """A log that keeps what is written: (level, message, fields)."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str, Mapping[str, Any]]] = []

    def __call__(self, level: str, message: str, fields: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self.records.append((level, message, {**(fields or {}), **more}))

    def messages(self, level: str) -> list[str]:
        return [message for at, message, _ in self.records if at == level]


class Received:
    """A request that a :class:`HookServer` got."""

    def __init__(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = dict(headers)
        self.body = body

    @property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class HookServer:
    """An HTTP server for webhooks. A path's handler gives its answers; what has none is answered with 204.

    Attributes:
        requests: what was received, in order, told when its headers and body are there.
    """

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.connections: set[Any] = set()
        self.handlers: dict[str, Handler] = {}
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, ssl_context: ssl.SSLContext | None = None) -> None:
        """Listen on a free port of 127.0.0.1."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=ssl_context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening and end what is under way."""
        if self._runner is not None:
            await self._runner.cleanup()

    def url(self, path: str = "/", scheme: str = "http", host: str = "127.0.0.1") -> str:
        """The URL of ``path``."""
        return f"{scheme}://{host}:{self.port}{path}"

    def on(self, path: str, handler: Handler) -> None:
        """Let ``handler`` answer requests of ``path``."""
        self.handlers[path] = handler

    async def wait_for(self, count: int, path: str | None = None) -> list[Received]:
        """The first ``count`` requests (of ``path``), once they are there."""
        async with self._changed, asyncio.timeout(PATIENCE_S):
            await self._changed.wait_for(lambda: len(self.received(path)) >= count)
        return self.received(path)[:count]

    def received(self, path: str | None = None) -> list[Received]:
        """The requests (of ``path``) so far."""
        return [request for request in self.requests if path is None or request.path == path]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        received = Received(request.method, request.path_qs, request.headers, await request.read())
        self.connections.add(request.transport)
        async with self._changed:
            self.requests.append(received)
            self._changed.notify_all()
        handler = self.handlers.get(request.path)
        if handler is None:
            return web.Response(status=204)
        return await handler(request)


def answering(*statuses: int, **headers: str) -> Handler:
    """A handler that gives these statuses in turn, the last one again and again."""
    left = list(statuses)

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=left.pop(0) if len(left) > 1 else left[0], headers=headers)

    return handle


class Hang:
    """A handler that answers once it is let go."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.go = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        await self.go.wait()
        return web.Response(status=self.status)
