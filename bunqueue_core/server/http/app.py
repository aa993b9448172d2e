"""The HTTP application: what is answered to whom, in a fixed order.

The path is matched as it was received. In order: preflight; health, liveness and readiness, for everybody; the request limit;
metrics; the token; the routes; 404. A wrong method on a known path is 404 as well, and with tokens configured an unknown path is
401.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Router
from starlette.types import Receive, Scope, Send

from bunqueue_core.commands.monitoring import resident_bytes, storage_health
from bunqueue_core.commands.replies import INTERNAL_ERROR
from bunqueue_core.commands.session import Services
from bunqueue_core.server.http.metrics import CONTENT_TYPE, exposition
from bunqueue_core.server.limits import RateLimiter

_SCHEME: Final = "Bearer "
_PREFLIGHT_HEADERS: Final = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization",
    "Access-Control-Max-Age": "86400",
}


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """What of the configuration shapes the answers.

    Attributes:
        cors_origins: origins that browsers may call from; ``*`` stands for all.
        metrics_need_token: ask for a token at ``/prometheus`` too.
        metrics_queues: queues with series of their own.
    """

    cors_origins: tuple[str, ...] = ()
    metrics_need_token: bool = False
    metrics_queues: int = 100

    @property
    def allowed_origin(self) -> str:
        """Value of ``Access-Control-Allow-Origin``; empty, which allows nobody, when nothing is configured."""
        return "*" if "*" in self.cors_origins else ", ".join(self.cors_origins)


class HttpApp:
    """See the module's head. An ASGI application for one server.

    Args:
        services: what the commands work with.
        options: see :class:`HttpOptions`.
        connections: open connections by transport (``tcp``, ``ws``, ``sse``).
        limiter: counts requests by client; None sets no limit.
        routes: further routes, behind the token.
    """

    def __init__(
        self,
        services: Services,
        options: HttpOptions,
        connections: Callable[[], dict[str, int]],
        limiter: RateLimiter | None = None,
        routes: Sequence[BaseRoute] = (),
    ) -> None:
        self._services = services
        self._options = options
        self._connections = connections
        self._limiter = limiter
        self._router = Router(routes=routes, redirect_slashes=False, default=_not_found)
        self._cors = {"Access-Control-Allow-Origin": options.allowed_origin}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
            if response is None:
                await self._router(scope, receive, send)
                return
        except Exception as error:
            self._services.log.error("HTTP request failed unexpectedly", error=f"{type(error).__name__}: {error}")
            response = _error(500, INTERNAL_ERROR)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response | None:
        """The answer to what is not a route; None leaves it to the routes."""
        method, path = request.method, _raw_path(request)
        if method == "OPTIONS":
            return Response(status_code=204, headers={**self._cors, **_PREFLIGHT_HEADERS})
        if path == "/health":
            return self._health()
        if path in ("/healthz", "/live"):
            response = PlainTextResponse("OK", headers=self._cors)
            response.headers["content-type"] = "text/plain;charset=utf-8"
            return response
        if path == "/ready":
            return self._ready()
        if self._limiter is not None and not self._limiter.allow(_client(request)):
            return _error(429, "Rate limit exceeded")
        if method == "GET" and path == "/prometheus":
            return await self._metrics(request)
        if not self._authorized(request):
            return _error(401, "Unauthorized")
        return None

    def _authorized(self, request: Request) -> bool:
        services = self._services
        return not services.tokens or services.accepts(request.headers.get("authorization", "").replace(_SCHEME, "", 1))

    def _health(self) -> Response:
        health = self._services.broker.health()
        numbers = self._services.broker.statistics()
        ok = not health.degraded
        rss = round(resident_bytes() / 2**20)
        body: dict[str, Any] = {
            "ok": ok,
            "status": "healthy" if ok else "degraded",
            "uptime": int(time.monotonic() - self._services.meters.started_at),
            "version": self._services.version,
            "queues": {
                "waiting": numbers.get("waiting", 0) + numbers.get("paused", 0),
                "active": numbers.get("active", 0),
                "delayed": numbers.get("delayed", 0),
                "completed": numbers.get("completed", 0),
                "dlq": numbers.get("dlq", 0),
            },
            "connections": self._connections(),
            "memory": {"heapUsed": rss, "heapTotal": rss, "rss": rss},
        }
        if not ok:
            body["storage"] = storage_health(health)
        return JSONResponse(body, 200 if ok else 503, headers=self._cors)

    def _ready(self) -> Response:
        health = self._services.broker.health()
        if health.ready:
            return JSONResponse({"ok": True, "ready": True}, headers=self._cors)
        return JSONResponse({"ok": False, "ready": False, "storage": storage_health(health)}, 503, headers=self._cors)

    async def _metrics(self, request: Request) -> Response:
        if self._options.metrics_need_token:
            if not self._services.tokens:
                return _error(503, "Metrics authentication is enabled but no tokens are configured")
            if not self._authorized(request):
                return _error(401, "Unauthorized")
        text = await exposition(self._services, self._connections(), self._options.metrics_queues)
        return Response(text, headers={**self._cors, "content-type": CONTENT_TYPE})


def _raw_path(request: Request) -> str:
    raw: bytes | None = request.scope.get("raw_path")
    return raw.partition(b"?")[0].decode("latin-1") if raw is not None else str(request.scope["path"])


def _client(request: Request) -> str:
    forwarded = request.headers.get("x-forwarded-for", "").partition(",")[0].strip()
    return forwarded or request.headers.get("x-real-ip", "").strip() or "unknown"


def _error(status: int, text: str) -> Response:
    return JSONResponse({"ok": False, "error": text}, status)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await _error(404, "Not found")(scope, receive, send)
