"""The TCP listener: accepts connections and owns what they share."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from socket import socket

from bunqueue_core.commands import COMMANDS
from bunqueue_core.commands.session import Services
from bunqueue_core.commands.table import Command
from bunqueue_core.model.wire import WireEncoder
from bunqueue_core.server.limits import ConnectionLimits, RateLimiter
from bunqueue_core.server.tcp.connection import Connection
from bunqueue_core.server.tcp.requests import RequestDecoder


class TcpServer:
    """Serves the protocol on sockets that are bound already. Everything runs in the event loop of :meth:`start`.

    Args:
        services: what the commands work with.
        limits: bounds of each connection.
        limiter: counts requests of each connection; None sets no limit.
        commands: the table of commands.
    """

    def __init__(
        self,
        services: Services,
        limits: ConnectionLimits,
        limiter: RateLimiter | None = None,
        commands: Mapping[str, Command] = COMMANDS,
    ) -> None:
        self.services = services
        self.limits = limits
        self.limiter = limiter
        self.commands: Mapping[str, Command] = dict(commands)
        self.encoder = WireEncoder()
        self.decoder = RequestDecoder()
        self.connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._empty = asyncio.Event()

    async def start(self, sockets: Sequence[socket], context: ssl.SSLContext | None = None) -> None:
        """Accept connections on ``sockets`` from now on, encrypted when there is a ``context``."""
        loop = asyncio.get_running_loop()
        for listener in sockets:
            self._servers.append(
                await loop.create_server(lambda: Connection(self, loop), sock=listener, ssl=context, backlog=1024)
            )

    def stop_accepting(self) -> None:
        """Close the listeners; connections stay."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def stop(self, grace_s: float = 1.0) -> None:
        """Close the listeners and every connection, after what is ready to be sent has been; at most ``grace_s`` seconds."""
        self.stop_accepting()
        for connection in list(self.connections):
            connection.close()
        if not await self._emptied(grace_s):
            for connection in list(self.connections):
                connection.abort()
            await self._emptied(grace_s)

    async def _emptied(self, grace_s: float) -> bool:
        """Wait until the last connection has ended, so that every session has handed back what it held."""
        if not self.connections:
            return True
        self._empty.clear()
        try:
            await asyncio.wait_for(self._empty.wait(), grace_s)
        except TimeoutError:
            return False
        return True

    def opened(self, connection: Connection) -> None:
        """See :class:`~bunqueue_core.server.tcp.connection.Owner`."""
        self.connections.add(connection)
        self.services.tell("client:connected", clientId=connection.session.id, transport="tcp")

    def closed(self, connection: Connection) -> None:
        """See :class:`~bunqueue_core.server.tcp.connection.Owner`."""
        self.connections.discard(connection)
        self.services.tell("client:disconnected", clientId=connection.session.id, transport="tcp")
        if not self.connections:
            self._empty.set()

    def cut_off(self, reason: str) -> None:
        """See :class:`~bunqueue_core.server.tcp.connection.Owner`."""
        self.services.meters.cut_offs[reason] += 1
        self.services.log.warn("Connection cut off", reason=reason)
