# Written by tools/async_to_sync.py from connection_pool_async.py: edit that file and run the tool, not this one.
"""Several connections to one server, used in turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from bunqueue_core.client._acompat import settled
from bunqueue_core.client._pooled import PooledVerbs
from bunqueue_core.client._session import ConnectionOptions, TelemetryHandler, TlsOption
from bunqueue_core.client.connection import Connection
from bunqueue_core.model.errors import BunqueueError, ConnectionClosedError

#: Commands whose durations the average is of.
LATENCIES = 10


class ConnectionPool:
    """Several connections to one server. Clients take it as they take a :class:`Connection`.

    Commands take the connections in turn; one that cannot be made just now is left out while there are others. Commands that are
    sent without waiting for each other may be processed in any order. One connection carries any number of commands at once:
    more of them pay where one connection's bytes are the bound, or where a network delays single connections.

    Args:
        pool_size: number of connections, at least 1.
        host: see :class:`Connection`, as the other arguments.
        port: its TCP port.
        token: sent with ``Auth``.
        tls: how to encrypt.
        connect_timeout: seconds.
        command_timeout: seconds; None waits without limit.
        on_telemetry: called with the events of every connection.

    Raises:
        ValueError: an argument is out of its bounds.
    """

    def __init__(
        self,
        pool_size: int = 4,
        host: str = "localhost",
        port: int = 6789,
        token: str | None = None,
        tls: TlsOption = None,
        connect_timeout: float = 5.0,
        command_timeout: float | None = 10.0,
        on_telemetry: TelemetryHandler | None = None,
    ) -> None:
        if isinstance(pool_size, bool) or not isinstance(pool_size, int) or pool_size < 1:
            raise ValueError(f"pool_size must be an integer of at least 1, got {pool_size!r}")
        self._on_telemetry = on_telemetry
        self._mutex = threading.Lock()
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._commands = 0
        self._errors = 0
        self._on_reconnect: list[Callable[[], Any]] = []
        self._closed = False
        self._connections = [
            Connection(host, port, token, tls, connect_timeout, command_timeout, self._told) for _ in range(pool_size)
        ]
        #: The operations that clients ask of the server through this pool.
        self.verbs = PooledVerbs([connection.verbs for connection in self._connections])

    @property
    def options(self) -> ConnectionOptions:
        """Where it connects to and how."""
        return self._connections[0].options

    def connect(self) -> None:
        """Connect all of them now.

        Raises:
            AuthenticationError: the server refused the token.
            ConnectionClosedError: the server cannot be reached, or the pool was closed.
        """
        for connection in self._connections:
            connection.connect()

    def send(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command (its fields with ``cmd``) over the next connection; see :meth:`Connection.call`."""
        return (self.send_parallel([command]))[0]

    def send_parallel(self, commands: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Send commands over the next connections, all before the first response is waited for.

        Returns:
            The responses, in the order of the commands.

        Raises:
            BunqueueError: that of the first command that failed; the others were sent all the same.
        """
        answers = [
            self.verbs.command(
                command["cmd"], {key: value for key, value in command.items() if key not in ("cmd", "reqId")}
            )
            for command in commands
        ]
        failure: BunqueueError | None = None
        responses: list[dict[str, Any]] = []
        for answer in answers:
            try:
                responses.append(settled(answer))
            except BunqueueError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return responses

    def on_reconnect(self, callback: Callable[[], Any]) -> None:
        """Call ``callback()`` whenever a connection that was lost stands again."""
        self._on_reconnect.append(callback)

    def is_connected(self) -> bool:
        """Whether one of them stands, as far as is known."""
        return self.get_connected_count() > 0

    def get_connected_count(self) -> int:
        """How many of them stand, as far as is known."""
        return sum(connection.connected for connection in self._connections)

    def get_pool_size(self) -> int:
        """How many there are."""
        return len(self._connections)

    def get_health(self) -> dict[str, Any]:
        """How it does.

        Returns:
            ``healthy`` (one stands), ``connected_count``, ``total_count``, ``clients`` (``connected`` and ``generation`` of each),
            ``avg_latency_ms`` of the last commands, ``total_commands``, ``total_errors``.
        """
        with self._mutex:
            latencies = list(self._latencies)
            commands, errors = self._commands, self._errors
        connected = self.get_connected_count()
        return {
            "healthy": connected > 0,
            "connected_count": connected,
            "total_count": len(self._connections),
            "clients": [
                {"connected": connection.connected, "generation": connection.generation}
                for connection in self._connections
            ],
            "avg_latency_ms": round(sum(latencies) / len(latencies), 2) if latencies else 0.0,
            "total_commands": commands,
            "total_errors": errors,
        }

    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """Close all of them for good. Idempotent."""
        self._closed = True
        for connection in self._connections:
            connection.close()

    def __enter__(self) -> ConnectionPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _told(self, event: dict[str, Any]) -> None:
        """Count what a connection tells, and pass it on."""
        kind = event["type"]
        if kind == "command":
            with self._mutex:
                self._commands += 1
                self._latencies.append(event["duration_ms"])
                self._errors += not event["ok"]
        elif kind in ("command_timeout", "error"):
            with self._mutex:
                self._errors += 1
        if self._on_telemetry is not None:
            self._on_telemetry(event)
        if kind == "connect" and event["generation"] > 1:
            for callback in list(self._on_reconnect):
                callback()


def shared_connection(connection: Any) -> Connection | ConnectionPool:
    """``connection`` if clients can share it.

    Raises:
        ConnectionClosedError: it is a pool that was closed.
        TypeError: it is something else.
    """
    if not isinstance(connection, Connection | ConnectionPool):
        raise TypeError(f"connection must be a {Connection.__module__}.Connection, got {connection!r}")
    if isinstance(connection, ConnectionPool) and connection.is_closed():
        raise ConnectionClosedError("Connection pool is closed")
    return connection
