# Written by tools/async_to_sync.py from connection_async.py: edit that file and run the tool, not this one.
"""A connection to a server: pipelined, reconnecting at the next call, safe to share."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from bunqueue_core.client._acompat import settled
from bunqueue_core.client._session import (
    DEFAULT_TIMEOUT,
    ConnectionOptions,
    Default,
    TelemetryHandler,
    TlsOption,
)
from bunqueue_core.client._transport_threads import ThreadTransport
from bunqueue_core.client.remote import RemoteVerbs
from bunqueue_core.model.errors import CommandError, CommandTimeoutError, ConnectionClosedError


class Connection:
    """One connection to a bunqueue server.

    It is opened by the first call. When it is lost, the calls that wait fail with ``connection lost`` (they are not sent again)
    and the next call reconnects; after a failed connect calls fail at once until the back-off is over (0.5 s, doubling up to 5 s).
    Several clients may share it.

    Args:
        host: name or address of the server.
        port: its TCP port.
        token: sent with ``Auth``; by default taken from ``BQ_TOKEN`` or ``BUNQUEUE_TOKEN``.
        tls: True (the system's authorities), ``{"ca_file": path}``, ``{"verify": False}`` (encrypt only) or an ``SSLContext``.
        connect_timeout: seconds for connecting, TLS and ``Auth`` together.
        command_timeout: seconds that a command may take; None waits without limit.
        on_telemetry: called with events (dicts with ``type``) about connections, commands and errors; never with
            payloads or tokens.

    Raises:
        ValueError: an argument is out of its bounds.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 6789,
        token: str | None = None,
        tls: TlsOption = None,
        connect_timeout: float = 5.0,
        command_timeout: float | None = 10.0,
        on_telemetry: TelemetryHandler | None = None,
    ) -> None:
        options = ConnectionOptions.checked(host, port, token, tls, connect_timeout, command_timeout, on_telemetry)
        self._transport = ThreadTransport(options)
        #: The operations that clients ask of the server through this connection.
        self.verbs = RemoteVerbs(self._transport)

    @property
    def options(self) -> ConnectionOptions:
        """Where it connects to and how."""
        return self._transport.options

    @property
    def connected(self) -> bool:
        """Whether a connection stands, as far as is known."""
        return self._transport.connected

    @property
    def generation(self) -> int:
        """Number of connections made so far."""
        return self._transport.generation

    def connect(self) -> None:
        """Connect now; does nothing when a connection stands.

        Raises:
            AuthenticationError: the server refused the token.
            ConnectionClosedError: the server cannot be reached, or it was closed.
        """
        settled(self._transport.open())

    def call(
        self,
        command: Mapping[str, Any],
        timeout: float | Default | None = DEFAULT_TIMEOUT,
    ) -> dict[str, Any]:
        """Send a command and return its response.

        Args:
            command: its fields with ``cmd``. Fields that are None are left out.
            timeout: seconds, instead of the connection's own ``command_timeout``; None waits without limit.

        Raises:
            CommandError: the server refused it; the text is the server's.
            CommandTimeoutError: no response in time.
            ConnectionClosedError: the connection was lost or cannot be made.
            SerializationError: the command cannot be encoded; nothing was sent.
        """
        fields = {key: value for key, value in command.items() if key != "cmd"}
        return settled(self.verbs.command(command["cmd"], fields, timeout=timeout))

    def ping(self) -> bool:
        """Whether the server answers."""
        try:
            self.call({"cmd": "Ping"})
        except (CommandError, CommandTimeoutError, ConnectionClosedError):
            return False
        return True

    def hello(self) -> dict[str, Any]:
        """What the server says of itself: ``protocolVersion``, ``capabilities``, ``server``, ``version``."""
        response = self.call({"cmd": "Hello", "protocolVersion": 3})
        return {key: value for key, value in response.items() if key != "reqId"}

    def close(self) -> None:
        """Close for good: calls that wait, and later ones, fail with ``connection closed by client``."""
        self._transport.close()
        self._transport.wait_closed()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
