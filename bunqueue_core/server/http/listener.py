"""The HTTP listener: uvicorn in this process's event loop, under this process's life cycle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Generator, Sequence
from socket import socket
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bunqueue_core.server.http.sockets import MAX_MESSAGE_BYTES
from bunqueue_core.server.http.streams import ABORT

#: How long requests under way may take once the server stops, seconds.
GRACE_S: Final = 2.0

#: A connection that is kept for further requests is closed after this time without one, seconds.
KEEP_ALIVE_S: Final = 60

#: A WebSocket is asked for a sign of life this often, and closed when none comes within the same time again, seconds.
PING_S: Final = 60.0


class _Http(HttpToolsProtocol):
    """The parser of requests, which hands the application a way to close the connection at once."""

    def on_headers_complete(self) -> None:
        """See :class:`uvicorn.protocols.http.httptools_impl.HttpToolsProtocol`."""
        super().on_headers_complete()
        if self.transport is not None:
            cast("dict[str, Any]", self.scope)[ABORT] = self.transport.abort


class _Uvicorn(uvicorn.Server):
    """A server that leaves signals to the process and sleeps until it is told to stop, instead of looking ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """See :class:`uvicorn.Server`."""
        yield

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """See :class:`uvicorn.Server`."""
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """See :class:`uvicorn.Server`."""
        await self.stopping.wait()


class HttpServer:
    """Serves an application on sockets that are bound already.

    Args:
        app: the application.
        context: encrypts the connections; None leaves them plain.
    """

    def __init__(self, app: ASGIApp, context: ssl.SSLContext | None = None) -> None:
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            # What it would log are the malformed requests of strangers; errors of ours the application logs itself.
            log_level=logging.CRITICAL,
            access_log=False,
            date_header=False,
            server_header=False,
            proxy_headers=False,
            http=_Http,
            ws="websockets-sansio",
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PING_S,
            ws_per_message_deflate=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(GRACE_S),
        )
        self._context = context
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, sockets: Sequence[socket]) -> None:
        """Accept requests from now on."""
        self._config.load()
        self._config.ssl = self._context
        self._server = _Uvicorn(self._config)
        self._task = asyncio.create_task(self._server.serve(list(sockets)), name="bunqueue-http")
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait((self._task, listening), return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._task.done():
            self._task.result()
            raise RuntimeError("the HTTP server ended at once")

    async def stop(self) -> None:
        """Close the listener, let requests under way end for a moment, then close their connections."""
        if self._server is None or self._task is None:
            return
        self._server.stopping.set()
        await self._task
        self._server = None
