"""One command to a server and its response: a connection that is opened, used once and closed.

The error texts are those that scripts know. Nothing is tried twice: whoever runs a command sees what happened to it.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bunqueue_core.cli.output import Failure
from bunqueue_core.client._session import MAX_FRAME_BYTES, TlsOption, decode_frame, tls_context
from bunqueue_core.model.errors import SerializationError
from bunqueue_core.model.payload import Packer

#: Longest wait for a connection, seconds.
CONNECT_S: Final = 5.0

#: Longest wait for a response, seconds; a command that waits by itself gets :data:`WAITING_S` more than it was told to wait.
COMMAND_S: Final = 30.0
WAITING_S: Final = 10.0

#: First byte and version of a TLS record: what a TLS server answers to a client that does not speak TLS.
_TLS_ALERT: Final = b"\x15\x03"


@dataclass(frozen=True, slots=True)
class Server:
    """Where a command goes.

    Attributes:
        host: name or address.
        port: TCP port.
        token: sent with ``Auth`` first, None to send none.
        tls: as the clients' argument of that name.
    """

    host: str
    port: int
    token: str | None = None
    tls: TlsOption = None

    def ask(self, command: Mapping[str, Any], wait_ms: int = 0) -> dict[str, Any]:
        """Send ``command`` and return the response, without ``reqId``; one with ``ok: false`` is a response like any other.

        Args:
            command: its fields with ``cmd``.
            wait_ms: how long the command itself may wait, ms.

        Raises:
            Failure: there is no connection, the token is refused, or no response came; the text says which.
        """
        seconds = max(COMMAND_S, wait_ms / 1000 + WAITING_S) if wait_ms else COMMAND_S
        try:
            with self._connect() as sock:
                line = _Line(sock)
                if self.token:
                    answer = line.ask({"cmd": "Auth", "token": self.token}, COMMAND_S)
                    if answer.get("ok") is not True:
                        raise Failure(f"Authentication failed: {answer.get('error')}")
                return line.ask(command, seconds)
        except TimeoutError:
            raise Failure("Command timeout") from None
        except OSError:
            raise Failure("Connection closed") from None

    def _connect(self) -> socket.socket:
        place = f"{self.host}:{self.port}"
        context = self._context()
        try:
            sock = socket.create_connection((self.host, self.port), timeout=CONNECT_S)
        except TimeoutError:
            raise Failure(f"Connection timeout to {place}") from None
        except OSError as error:
            raise Failure(f"Failed to connect to {place}: {error.strerror or error}") from None
        if context is None:
            return sock
        try:
            return context.wrap_socket(sock, server_hostname=self.host)
        except ssl.SSLCertVerificationError as error:
            sock.close()
            raise Failure(f"TLS verification failed for {place}: {error.verify_message}") from None
        except OSError:
            sock.close()
            raise Failure("Connection closed") from None

    def _context(self) -> ssl.SSLContext | None:
        try:
            return tls_context(self.tls)
        except FileNotFoundError:
            assert isinstance(self.tls, Mapping)
            raise Failure(f"ENOENT: no such file or directory, open '{self.tls['ca_file']}'") from None
        except OSError as error:
            raise Failure(f"--tls-ca cannot be used: {error.strerror or error}") from None


class _Line:
    """A connected socket, used for one request after the other."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pack = Packer().pack

    def ask(self, command: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        try:
            body = self._pack({**command, "reqId": "1"})
        except SerializationError as error:
            raise Failure(str(error), exit_code=2) from None
        self._sock.settimeout(seconds)
        self._sock.sendall(len(body).to_bytes(4, "big") + body)
        header = self._read(4, deadline)
        length = int.from_bytes(header, "big")
        if length > MAX_FRAME_BYTES:
            hint = ""
            if header.startswith(_TLS_ALERT):
                hint = " (is the server running with TLS? try --tls, --tls-ca or --tls-no-verify)"
            elif header == b"HTTP":
                hint = " (is that the server's HTTP port? --port takes its TCP port)"
            raise Failure(f"Frame too large: {length} bytes exceeds maximum {MAX_FRAME_BYTES}{hint}")
        try:
            response = decode_frame(self._read(length, deadline))
        except ValueError:
            raise Failure("Invalid response from server") from None
        if not isinstance(response, dict):
            raise Failure("Invalid response from server")
        response.pop("reqId", None)
        return response

    def _read(self, count: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
            part = self._sock.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
