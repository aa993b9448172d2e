"""The HTTP application: what is answered to whom, in a fixed order.

The path is matched as it was received. In order: preflight; health, liveness and readiness, for everybody; garbage collection and
heap, behind the token; the request limit; WebSocket and event streams; metrics; the token; the routes; 404. A wrong method on a
known path is 404 as well, and with tokens configured an unknown path is 401.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Router
from starlette.types import Message, Receive, Scope, Send

from bunqueue_core.answer import Answer
from bunqueue_core.commands.monitoring import resident_bytes, storage_health
from bunqueue_core.commands.replies import INTERNAL_ERROR, Refusal, error_text
from bunqueue_core.commands.session import Services, Session
from bunqueue_core.commands.table import Members
from bunqueue_core.model.errors import BrokerClosed, CommandError, ValidationError
from bunqueue_core.server.http import views
from bunqueue_core.server.http.bodies import (
    MAX_BODY_BYTES,
    BodyTooLarge,
    ClientGone,
    InvalidJson,
    members_of,
    read_body,
)
from bunqueue_core.server.http.metrics import CONTENT_TYPE, exposition
from bunqueue_core.server.http.rendering import JsonReplies
from bunqueue_core.server.http.routes import ROUTES
from bunqueue_core.server.http.routing import Body, Route, Routes, parse_query
from bunqueue_core.server.http.sockets import serve_socket
from bunqueue_core.server.http.streams import Streams, serve_stream
from bunqueue_core.server.limits import RateLimiter

_SCHEME: Final = "Bearer "
_UNAUTHORIZED: Final = "Unauthorized"
_PREFLIGHT_HEADERS: Final = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Content-Type, Authorization",
    "Access-Control-Max-Age": "86400",
}
_JSON: Final = (b"content-type", b"application/json")
_NO_BODY: Final[Mapping[str, Any]] = {}

_Headers = list[tuple[bytes, bytes]]


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
        streams: watches for those who follow events; None makes one.
    """

    def __init__(
        self,
        services: Services,
        options: HttpOptions,
        connections: Callable[[], dict[str, int]],
        limiter: RateLimiter | None = None,
        routes: Sequence[BaseRoute] = (),
        streams: Streams | None = None,
    ) -> None:
        self._services = services
        self._options = options
        self._connections = connections
        self._limiter = limiter
        self._streams = streams or Streams(services)
        self._routes = Routes(ROUTES)
        self._more = Router(routes=routes, redirect_slashes=False, default=_not_found) if routes else None
        self._session = Session(services, None, authenticated=True)
        self._render = JsonReplies()
        self._stop: asyncio.Future[None] | None = None  # done once the server stops
        self._origin = options.allowed_origin
        #: With several origins a browser accepts only its own in the answer.
        self._reflect = len(options.cors_origins) > 1 and self._origin != "*"
        self._json_headers: _Headers = [_JSON, (b"access-control-allow-origin", self._origin.encode("latin-1"))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)

    def metrics(self) -> Answer[bytes]:
        """The metrics in the text format of Prometheus."""
        return exposition(self._services, self._connections(), self._options.metrics_queues)

    def close(self) -> None:
        """The server stops: end what waits for others, so that nobody has to be cut off."""
        if self._stop is None:
            self._stop = asyncio.get_running_loop().create_future()
        if not self._stop.done():
            self._stop.set_result(None)

    # -- the order of things ------------------------------------------------------------------------------------------

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        method: str = scope["method"]
        path = _raw_path(scope)
        try:
            response = await self._special(method, path, scope, receive, send)
            if response is None:
                found = self._routes.find(method, path)
                if found is not None:
                    await self._answer(found[0], found[1], scope, receive, send)
                    return
                if self._more is not None:
                    await self._more(scope, receive, send)
                    return
                response = self._refusal(404, "Not found", scope, route=True)
        except ClientGone:
            return
        except BodyTooLarge:
            response = Response(status_code=413, headers={"Connection": "close"})
        except Exception as error:
            self._log_unexpected(error)
            response = self._refusal(500, INTERNAL_ERROR, scope)
        if response is not _ANSWERED:
            await response(scope, receive, send)

    async def _special(self, method: str, path: str, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """The answer to what is not a route; None leaves it to the routes."""
        if method == "OPTIONS":
            return Response(status_code=204, headers={**self._cors(scope), **_PREFLIGHT_HEADERS})
        if path in _FOR_EVERYBODY:
            return self._diagnosis(path, scope)
        own = _BEFORE_THE_LIMIT.get((method, path))
        if own is not None:
            if not self._authorized(scope):
                return self._refusal(401, _UNAUTHORIZED, scope)
            return self._json(own(self._session, _NO_BODY), scope)
        if self._limiter is not None and not self._allowed(scope):
            return self._refusal(429, "Rate limit exceeded", scope)
        if _is_under(path, "/ws"):
            if not self._authorized(scope):
                return self._refusal(401, _UNAUTHORIZED, scope)
            return _text(400, "WebSocket upgrade failed")
        if _is_under(path, "/events"):
            if not self._authorized(scope):
                return self._refusal(401, _UNAUTHORIZED, scope)
            if self._streams.closed:
                return _text(503, "Server is shutting down")
            if self._streams.full("sse"):
                return _text(503, "Too many SSE connections")
            await serve_stream(self._streams, path, scope, receive, send, self._cors(scope))
            return _ANSWERED
        if path == "/prometheus" and method == "GET":
            return await self._metrics(scope)
        if not self._authorized(scope):
            self._services.tell("auth:failed", transport="http")
            return self._refusal(401, _UNAUTHORIZED, scope)
        if _length(scope) > MAX_BODY_BYTES:
            raise BodyTooLarge
        return None

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _raw_path(scope)
        if self._limiter is not None and not self._allowed(scope):
            await _deny(send, 429, "Rate limit exceeded")
        elif not self._authorized(scope):
            await _deny(send, 401, _UNAUTHORIZED)
        elif not _is_under(path, "/ws"):
            await _deny(send, 404, "Not found")
        elif self._streams.full("ws"):
            await _deny(send, 503, "Too many WebSocket connections")
        else:
            try:
                await serve_socket(self._streams, path, receive, send)
            except OSError:  # the client went while it was greeted
                return
            except Exception as error:
                self._log_unexpected(error, "WebSocket")

    # -- routes -------------------------------------------------------------------------------------------------------

    async def _answer(
        self, route: Route, parameters: Mapping[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run a route and send what it answers."""
        status = 200
        try:
            body = _NO_BODY if route.body is Body.NONE else members_of(await read_body(receive), route.body)
            query = scope["query_string"]
            request = route.request(parameters, body, parse_query(query.decode("latin-1")) if query else {})
        except (InvalidJson, ValidationError) as error:
            await self._send(400, self._render.failure(str(error)), scope, send)
            return
        try:
            reply = route.run(self._session, request)
            if isinstance(reply, Answer):
                members: Members = await (self._unless_gone(reply, receive) if route.waits else reply)
            else:
                members = reply
            if route.shape is not None:
                members = route.shape(members)
            if route.bare and members is not None:
                content = self._render.value(members[route.bare])
            else:
                content = self._render.reply(members)
        except ClientGone:
            return
        except CommandError as error:
            status = error.http_status if error.retryable else route.status.value
            content = self._render.failure(error_text(error), error.members if isinstance(error, Refusal) else None)
        except Exception as error:
            self._log_unexpected(error, route.command or route.path)
            status, content = 500, self._render.failure(INTERNAL_ERROR)
        await self._send(status, content, scope, send)

    async def _unless_gone(self, answer: Answer[Members], receive: Receive) -> Members:
        """The value of an answer that may take long, unless the client goes away: what it would have got is taken back then.

        Raises:
            ClientGone: nobody is there to take it.
            BrokerClosed: the server stops, and there is no value yet.
        """
        if answer.ready:
            return answer.value
        if self._stop is None:
            self._stop = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(_value(answer))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((waiting, leaving, self._stop), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                answer.cancel()  # also what it has got already goes back
                raise ClientGone
            if not waiting.done():
                answer.cancel()
                if not answer.ready:
                    raise BrokerClosed("Server is shutting down")
                return answer.value
            return waiting.result()
        finally:
            leaving.cancel()
            if not waiting.done():
                waiting.cancel()
            elif not waiting.cancelled():
                waiting.exception()  # it has been seen, or nobody is there to see it

    async def _send(self, status: int, content: bytes, scope: Scope, send: Send) -> None:
        headers = self._json_headers
        if self._reflect:
            headers = [_JSON, *((name.lower().encode(), value.encode()) for name, value in self._cors(scope).items())]
        headers = [*headers, (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _log_unexpected(self, error: Exception, what: str | None = None) -> None:
        self._services.log.error(
            "HTTP request failed unexpectedly", request=what, error=f"{type(error).__name__}: {error}"
        )

    # -- who may ask --------------------------------------------------------------------------------------------------

    def _authorized(self, scope: Scope) -> bool:
        services = self._services
        if not services.tokens:
            return True
        given = (_header(scope, b"authorization") or b"").decode("latin-1")
        return services.accepts(given.replace(_SCHEME, "", 1).rstrip())

    def _allowed(self, scope: Scope) -> bool:
        client = _client(scope)
        if self._limiter is None or self._limiter.allow(client):
            return True
        self._services.tell("ratelimit:hit", clientId=client)
        return False

    def _cors(self, scope: Scope) -> dict[str, str]:
        if self._reflect:
            origin = (_header(scope, b"origin") or b"").decode("latin-1")
            if origin in self._options.cors_origins:
                return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
            return {"Access-Control-Allow-Origin": self._origin, "Vary": "Origin"}
        return {"Access-Control-Allow-Origin": self._origin}

    def _refusal(self, status: int, text: str, scope: Scope, *, route: bool = False) -> Response:
        """A refusal. A page of another origin may read it where origins are configured, or where a route gives it."""
        headers = self._cors(scope) if route or self._origin else None
        return JSONResponse({"ok": False, "error": text}, status, headers=headers)

    def _json(self, members: Any, scope: Scope) -> Response:
        headers = {**self._cors(scope), "content-type": "application/json"}
        return Response(self._render.reply(members), headers=headers)

    # -- health and metrics -------------------------------------------------------------------------------------------

    def _diagnosis(self, path: str, scope: Scope) -> Response:
        if path == "/health":
            return self._health(scope)
        if path == "/ready":
            return self._ready(scope)
        return Response("OK", headers={**self._cors(scope), "content-type": "text/plain;charset=utf-8"})

    def _health(self, scope: Scope) -> Response:
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
        database = {name[8].lower() + name[9:]: value for name, value in numbers.items() if name.startswith("database")}
        if database:
            body["database"] = database
        if not ok:
            body["storage"] = storage_health(health)
        return JSONResponse(body, 200 if ok else 503, headers=self._cors(scope))

    def _ready(self, scope: Scope) -> Response:
        health = self._services.broker.health()
        cors = self._cors(scope)
        if health.ready:
            return JSONResponse({"ok": True, "ready": True}, headers=cors)
        return JSONResponse({"ok": False, "ready": False, "storage": storage_health(health)}, 503, headers=cors)

    async def _metrics(self, scope: Scope) -> Response:
        if self._options.metrics_need_token:
            if not self._services.tokens:
                return self._refusal(503, "Metrics authentication is enabled but no tokens are configured", scope)
            if not self._authorized(scope):
                return self._refusal(401, _UNAUTHORIZED, scope)
        text = await self.metrics()
        return Response(text, headers={**self._cors(scope), "content-type": CONTENT_TYPE})


_FOR_EVERYBODY: Final = frozenset(("/health", "/healthz", "/live", "/ready"))

_BEFORE_THE_LIMIT: Final = {("POST", "/gc"): views.collect_garbage, ("GET", "/heapstats"): views.heap}

#: Stands for an answer that has been sent already.
_ANSWERED: Final = Response()


async def _value(answer: Answer[Members]) -> Members:
    return await answer


async def _gone(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


def _is_under(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


def _raw_path(scope: Scope) -> str:
    raw: bytes | None = scope.get("raw_path")
    return raw.partition(b"?")[0].decode("latin-1") if raw is not None else str(scope["path"])


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def _length(scope: Scope) -> int:
    """Length of the body as it was announced; 0 where it was not."""
    given = _header(scope, b"content-length")
    return int(given) if given is not None and given.isdigit() else 0


def _client(scope: Scope) -> str:
    forwarded = (_header(scope, b"x-forwarded-for") or b"").decode("latin-1").partition(",")[0].strip()
    return forwarded or (_header(scope, b"x-real-ip") or b"").decode("latin-1").strip() or "unknown"


def _text(status: int, text: str) -> Response:
    return PlainTextResponse(text, status)


async def _deny(send: Send, status: int, text: str) -> None:
    """Refuse a WebSocket before it is one."""
    content = JSONResponse({"ok": False, "error": text}).body
    headers = [_JSON, (b"content-length", b"%d" % len(content))]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": content})


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse({"ok": False, "error": "Not found"}, 404)(scope, receive, send)
