"""What a client's connection knows, whoever moves its bytes: options, frames, pending commands, deadlines, back-off.

Nothing here waits, opens a socket or starts a thread. The two transports (:mod:`._transport_threads` and
:mod:`._transport_asyncio`) feed it bytes and carry what it hands out.

A frame is a 32-bit big-endian length and one MessagePack value; requests carry a ``reqId`` that the answer repeats, and
answers may come in any order.
"""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgpack

from bunqueue_core.answer import Answer, Driver
from bunqueue_core.model.errors import (
    AuthenticationError,
    BackendBusy,
    BunqueueError,
    CapabilityError,
    CommandError,
    CommandTimeoutError,
    ConnectionClosedError,
    LeaseLost,
    NotFound,
    SerializationError,
    StorageUnavailable,
)
from bunqueue_core.model.payload import UNDEFINED_EXT, Packer

#: Largest body of a frame in either direction, bytes; the protocol's limit.
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024

#: After this many unanswered commands in a row the connection counts as dead.
MAX_TIMEOUTS: Final = 3

#: Wait after the first failed connect, seconds; it doubles up to :data:`BACKOFF_MAX_S`.
BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 5.0

#: TCP keep-alive: idle seconds, seconds between probes, probes.
KEEPALIVE: Final = (15, 5, 3)

#: Environment variables that give the token when none is passed, the first one that is set.
TOKEN_VARIABLES: Final = ("BQ_TOKEN", "BUNQUEUE_TOKEN")

TlsOption: TypeAlias = "bool | Mapping[str, Any] | ssl.SSLContext | None"

#: A telemetry event: ``type`` and the fields that belong to it; never a payload or a token.
TelemetryEvent: TypeAlias = "dict[str, Any]"
TelemetryHandler: TypeAlias = "Callable[[TelemetryEvent], None]"

#: Turns a successful response into the answer's value.
Decoder: TypeAlias = "Callable[[dict[str, Any]], Any]"


class Default:
    """The type of :data:`DEFAULT_TIMEOUT`, which stands for "the connection's own command timeout" where None means "no limit"."""


DEFAULT_TIMEOUT: Final = Default()


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Where to connect to and how, checked.

    Attributes:
        host: name or address.
        port: TCP port.
        token: sent with ``Auth`` right after connecting; None where the server wants none.
        tls: context for an encrypted connection, None for a plain one.
        verify_name: whether the server's certificate must be for ``host``.
        connect_timeout: seconds for connecting, handshake and ``Auth`` together.
        command_timeout: seconds that a command may take; None waits without limit.
        on_telemetry: receives telemetry events; its exceptions are ignored.
    """

    host: str = "localhost"
    port: int = 6789
    token: str | None = None
    tls: ssl.SSLContext | None = None
    connect_timeout: float = 5.0
    command_timeout: float | None = 10.0
    on_telemetry: TelemetryHandler | None = None

    @classmethod
    def checked(
        cls,
        host: str = "localhost",
        port: int = 6789,
        token: str | None = None,
        tls: TlsOption = None,
        connect_timeout: float = 5.0,
        command_timeout: float | None = 10.0,
        on_telemetry: TelemetryHandler | None = None,
    ) -> ConnectionOptions:
        """Check the arguments of a connection. A missing token is taken from the environment.

        Raises:
            ValueError: a timeout is not a positive number, or the port is out of range.
        """
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
            raise ValueError(f"port must be an integer between 1 and 65535, got {port!r}")
        if not host:
            raise ValueError("host must not be empty")
        limit = _seconds("connect_timeout", connect_timeout)
        if limit is None:
            raise ValueError("connect_timeout must be a finite number of seconds")
        if token is None:
            token = next((os.environ[name] for name in TOKEN_VARIABLES if os.environ.get(name)), None)
        return cls(
            host=host,
            port=port,
            token=token or None,
            tls=tls_context(tls),
            connect_timeout=limit,
            command_timeout=_seconds("command_timeout", command_timeout),
            on_telemetry=on_telemetry,
        )


def _seconds(name: str, value: float | None) -> float | None:
    if value is None or value == math.inf:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} must be a positive number of seconds, got {value!r}")
    return float(value)


def tls_context(option: TlsOption) -> ssl.SSLContext | None:
    """Build the TLS context that ``option`` asks for.

    Args:
        option: True (the system's authorities), ``{"ca_file": path}``, ``{"verify": False}`` (encrypt only), a context, or
            None/False for a plain connection. ``caFile`` and ``rejectUnauthorized`` are understood too.

    Raises:
        ValueError: the option has a key that is not known.
    """
    if option is None or option is False:
        return None
    if isinstance(option, ssl.SSLContext):
        return option
    if option is True:
        return ssl.create_default_context()
    known = {"ca_file", "caFile", "verify", "rejectUnauthorized"}
    for key in option:
        if key not in known:
            raise ValueError(f"tls has no option {key!r} (known: ca_file, verify)")
    ca_file = option.get("ca_file", option.get("caFile"))
    context = ssl.create_default_context(cafile=ca_file)
    if option.get("verify", option.get("rejectUnauthorized", True)) is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class CommandAnswer(Answer[Any]):
    """The answer to a command that was sent.

    Attributes:
        command: its name, for messages and telemetry.
        req_id: the id that its response repeats.
        started: when it was sent, seconds on the session's clock.
        deadline: when it fails for want of a response, None for never.
        decode: makes the value from a successful response; None takes the response as it is.
        late: called with a successful response that arrives after the answer was given up.
        orphan: ready once a response has come, or none can come any more, to an answer that was given up.
    """

    __slots__ = ("command", "deadline", "decode", "late", "orphan", "req_id", "started")

    def __init__(
        self,
        driver: Driver | None,
        command: str,
        req_id: str,
        started: float,
        deadline: float | None,
        decode: Decoder | None,
        on_cancel: Callable[[Answer[Any]], None] | None,
    ) -> None:
        super().__init__(driver, on_cancel)
        self.command = command
        self.req_id = req_id
        self.started = started
        self.deadline = deadline
        self.decode = decode
        self.late: Decoder | None = None
        self.orphan: Answer[None] | None = None

    def accept(self, response: dict[str, Any]) -> None:
        """Settle with ``response``: its value, or the error that it reports."""
        if response.get("ok") is not True:
            self.fail(refusal(response.get("error")))
            return
        if self.decode is None:
            self.settle(response)
            return
        try:
            value = self.decode(response)
        except Exception as error:
            self.fail(CommandError(f"Invalid {self.command} response: {error!r}"))
        else:
            self.settle(value)

    def give_up(self, value: Any, late: Decoder, driver: Driver | None) -> Answer[None]:
        """Settle with ``value`` now; a successful response that still comes goes to ``late``.

        Returns:
            An answer that is ready once that response has come, or cannot come any more.
        """
        self.late = late
        self.orphan = Answer(driver)
        self.settle(value)
        return self.orphan

    def bury(self) -> None:
        """No response will come to an answer that was given up."""
        if self.orphan is not None:
            self.orphan.settle(None)


class Session:
    """The state of one connection, over all its reconnects.

    Commands may be added and answered from different threads: ``pending`` is only changed by single dictionary operations.

    Args:
        options: where to connect to.
        driver: what makes progress for a waiting caller; handed to each answer.
        clock: monotonic seconds.
    """

    def __init__(
        self, options: ConnectionOptions, driver: Driver | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        self.clock = clock
        self.driver = driver
        self.generation = 0
        self.pending: dict[str, CommandAnswer] = {}
        #: Called with the members of each event that the server sends unasked.
        self.on_event: Callable[[dict[str, Any]], None] | None = None
        self._losses: list[Answer[None]] = []
        self._pack = Packer().pack
        self._next_id = 0
        self._buffer = b""
        self._timeouts = 0
        self._failures = 0
        self._retry_at = 0.0
        self._refusal: AuthenticationError | None = None

    # -- outgoing -----------------------------------------------------------------------------------------------------

    def encode(
        self,
        fields: dict[str, Any],
        timeout: float | Default | None = DEFAULT_TIMEOUT,
        decode: Decoder | None = None,
        extra: bytes = b"",
        extra_count: int = 0,
        on_cancel: Callable[[Answer[Any]], None] | None = None,
    ) -> tuple[CommandAnswer, bytes]:
        """Make the frame of a command and the answer that waits for its response. One thread at a time.

        Args:
            fields: the command's fields with ``cmd``; ``reqId`` is added.
            timeout: seconds until the answer fails; None for no limit.
            decode: see :class:`CommandAnswer`.
            extra: further fields, already encoded (key, value, key, value...).
            extra_count: how many.
            on_cancel: what cancelling the answer does.

        Raises:
            SerializationError: a value cannot be encoded, or the frame is too large. Nothing was registered.
        """
        self._next_id += 1
        req_id = str(self._next_id)
        fields["reqId"] = req_id
        try:
            body = self._pack(fields)
        except SerializationError as error:
            self.emit("error", operation="serialize", error=str(error))
            raise
        if extra_count:
            body = map_header(len(fields) + extra_count) + body[header_size(len(fields)) :] + extra
        if len(body) > MAX_FRAME_BYTES:
            raise SerializationError(f"frame size {len(body)} exceeds maximum {MAX_FRAME_BYTES}")
        started = self.clock()
        seconds = self.options.command_timeout if isinstance(timeout, Default) else timeout
        deadline = None if seconds is None else started + seconds
        answer = CommandAnswer(self.driver, fields["cmd"], req_id, started, deadline, decode, on_cancel)
        self.pending[req_id] = answer
        return answer, len(body).to_bytes(4, "big") + body

    # -- incoming -----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take bytes from the wire and settle the answers whose responses are complete.

        Raises:
            ConnectionClosedError: what arrived is not the protocol; the connection is of no more use.
        """
        buffer = self._buffer + data if self._buffer else data
        position, size = 0, len(buffer)
        while size - position >= 4:
            length = int.from_bytes(buffer[position : position + 4], "big")
            if length > MAX_FRAME_BYTES:
                raise ConnectionClosedError("Invalid response from server" + self._other_protocol(buffer, position))
            end = position + 4 + length
            if end > size:
                break
            frame = buffer[position + 4 : end]
            position = end
            self._receive(frame)
        self._buffer = buffer[position:] if position else buffer

    def _other_protocol(self, buffer: bytes, position: int) -> str:
        """What a mistaken answer suggests, where its beginning tells."""
        if buffer.startswith(b"HTTP", position):
            return f": it speaks HTTP; clients need the server's TCP port, and {self.options.port} is another"
        if buffer.startswith(b"\x15\x03", position) and self.options.tls is None:
            return ": it speaks TLS; pass tls=True"
        return ""

    def _receive(self, frame: bytes) -> None:
        try:
            response = decode_frame(frame)
        except Exception:
            raise ConnectionClosedError("Invalid response from server") from None
        if not isinstance(response, dict):
            raise ConnectionClosedError("Invalid response from server")
        req_id = response.get("reqId")
        if req_id is None:
            event = response.get("event")
            if response.get("type") == "event" and self.on_event is not None and isinstance(event, dict):
                self.on_event(event)
            return
        self._timeouts = 0
        answer = self.pending.pop(req_id, None)
        if answer is None:
            return
        if answer.ready:
            if answer.late is not None and response.get("ok") is True:
                answer.late(response)
            answer.bury()
            return
        if self.options.on_telemetry is not None:
            self.emit(
                "command",
                cmd=answer.command,
                req_id=req_id,
                duration_ms=(self.clock() - answer.started) * 1000,
                ok=response.get("ok") is True,
            )
        answer.accept(response)

    # -- trouble ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """The earliest deadline of a pending command, seconds on the session's clock."""
        deadlines = [answer.deadline for answer in list(self.pending.values()) if answer.deadline is not None]
        return min(deadlines) if deadlines else None

    def expire(self, now: float) -> bool:
        """Fail the commands whose deadline has passed. True if the connection must be given up for it."""
        overdue = [a for a in list(self.pending.values()) if a.deadline is not None and a.deadline <= now]
        for answer in overdue:
            self.expire_one(answer)
        return self._timeouts >= MAX_TIMEOUTS

    def expire_one(self, answer: CommandAnswer) -> bool:
        """Fail ``answer`` because no response came. True if the connection must be given up for it."""
        if self.pending.pop(answer.req_id, None) is not None:
            if answer.fail(CommandTimeoutError(f"no response for {answer.command} within timeout")):
                self._timeouts += 1
                self.emit("command_timeout", cmd=answer.command, req_id=answer.req_id)
            answer.bury()
        return self._timeouts >= MAX_TIMEOUTS

    def connected(self, duration_s: float) -> None:
        """A connection stands: start a new generation with an empty buffer."""
        self.generation += 1
        self._failures = 0
        self._timeouts = 0
        self.emit(
            "connect",
            host=self.options.host,
            port=self.options.port,
            generation=self.generation,
            duration_ms=duration_s * 1000,
        )

    def fresh_buffer(self) -> None:
        """Forget a partial frame of the previous connection."""
        self._buffer = b""

    def connect_failed(self, error: BaseException) -> None:
        """A connect failed: calls until the end of the back-off fail at once."""
        self._failures += 1
        self._refusal = error if isinstance(error, AuthenticationError) else None
        delay = min(BACKOFF_S * 2.0 ** (self._failures - 1), BACKOFF_MAX_S)
        self._retry_at = self.clock() + delay
        self.emit("error", operation="connect", error=str(error))
        self.emit(
            "reconnect_scheduled",
            host=self.options.host,
            port=self.options.port,
            attempt=self._failures,
            delay_ms=delay * 1000,
        )

    def backing_off(self) -> BunqueueError | None:
        """The error of a call during the back-off, None when a connect may be tried."""
        left = self._retry_at - self.clock()
        if self._failures and left > 0:
            if self._refusal is not None:
                # The server is there; it is the token that it does not want.
                return AuthenticationError(str(self._refusal))
            return ConnectionClosedError(f"server unreachable, retry in {math.ceil(left * 1000)}ms")
        return None

    def lost(self, error: BunqueueError) -> None:
        """The connection is gone: every pending command fails with ``error``, nothing is sent again."""
        self.fresh_buffer()
        self.emit("disconnect", host=self.options.host, port=self.options.port, generation=self.generation)
        self.fail_pending(error)
        losses, self._losses = self._losses, []
        for answer in losses:
            answer.settle(None)

    def loss(self) -> Answer[None]:
        """An answer that is ready once the connection is lost. It never times out."""
        answer: Answer[None] = Answer(self.driver)
        self._losses.append(answer)
        return answer

    def fail_pending(self, error: BunqueueError) -> None:
        """Fail every pending command with ``error``."""
        while self.pending:
            try:
                _, answer = self.pending.popitem()
            except KeyError:  # answered by another thread meanwhile
                return
            answer.fail(error)
            answer.bury()

    def emit(self, event_type: str, **fields: Any) -> None:
        """Hand a telemetry event to the callback, whose exceptions are its own affair."""
        handler = self.options.on_telemetry
        if handler is None:
            return
        try:
            handler({"type": event_type, **fields})
        except Exception:
            return

    # -- authentication -----------------------------------------------------------------------------------------------

    def authentication(self) -> tuple[CommandAnswer, bytes]:
        """The ``Auth`` command's answer and frame."""
        return self.encode({"cmd": "Auth", "token": self.options.token}, None)

    def authenticated(self, answer: CommandAnswer) -> None:
        """Check the settled answer of ``Auth``.

        Raises:
            AuthenticationError: the server refused the token.
            ConnectionClosedError: the connection was lost before it answered.
        """
        error = answer.error
        self.emit("auth", ok=error is None)
        if isinstance(error, CommandError):
            raise AuthenticationError(str(error))
        if error is not None:
            raise ConnectionClosedError(f"auth failed: {error}")


def _ext_hook(code: int, data: bytes) -> Any:
    return None if code == UNDEFINED_EXT else msgpack.ExtType(code, data)


def decode_frame(frame: bytes) -> Any:
    """Decode a frame's body; the JavaScript codec's ``undefined`` becomes None."""
    return msgpack.unpackb(frame, strict_map_key=False, ext_hook=_ext_hook)


def map_header(count: int) -> bytes:
    """MessagePack header of a map with ``count`` entries."""
    return bytes((0x80 | count,)) if count < 16 else b"\xde" + count.to_bytes(2, "big")


def header_size(count: int) -> int:
    """Bytes of the header of a map or an array with ``count`` entries (below 65,536)."""
    return 1 if count < 16 else 3


def array_header(count: int) -> bytes:
    """MessagePack header of an array with ``count`` elements."""
    return bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def refusal(text: Any) -> CommandError:
    """The error class that fits a server's error text; ``str()`` of it is the text."""
    message = text if isinstance(text, str) else "unknown error"
    lower = message.lower()
    if "not found" in lower or "not in processing" in lower:
        return NotFound(message)
    if message.startswith(("Invalid or expired lock token", "Lock token required")):
        return LeaseLost(message)
    if message in ("Invalid token", "Not authenticated"):
        return AuthenticationError(message)
    if message.startswith("Storage unavailable: "):
        return StorageUnavailable(message.removeprefix("Storage unavailable: "))
    if message.startswith("Backend busy: ") and message.endswith("; retry later"):
        return BackendBusy(message.removeprefix("Backend busy: ").removesuffix("; retry later"))
    operation, separator, rest = message.partition(" is not offered by storage driver '")
    if separator and rest.endswith("'"):
        return CapabilityError(operation, rest[:-1])
    return CommandError(message)


def keepalive(socket_option: Callable[[int, int, int], None]) -> None:
    """Set TCP_NODELAY and keep-alive through ``socket_option`` (a socket's ``setsockopt``)."""
    import socket

    socket_option(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    socket_option(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in zip(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), KEEPALIVE, strict=True):
        if hasattr(socket, name):
            socket_option(socket.IPPROTO_TCP, getattr(socket, name), value)
