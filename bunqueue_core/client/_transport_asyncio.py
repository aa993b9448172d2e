"""The asyncio transport: a protocol that settles answers as responses arrive.

Commands of one pass of the event loop leave in one write. While a connection is being made, commands wait for it; their
deadline already runs. The transport binds to the loop that first uses it; used from another loop (a later ``asyncio.run``), it
drops the old connection and makes a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

from bunqueue_core.answer import Answer
from bunqueue_core.client._session import (
    DEFAULT_TIMEOUT,
    CommandAnswer,
    ConnectionOptions,
    Decoder,
    Default,
    Session,
    keepalive,
)
from bunqueue_core.model.errors import BunqueueError, ConnectionClosedError

#: How long a closed connection may take to let go of its socket, seconds.
CLOSING_S: Final = 1.0


class _Protocol(asyncio.Protocol):
    """One connection's end; tells its owner what happens."""

    def __init__(self, owner: AsyncioTransport) -> None:
        self._owner = owner
        self.transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._owner._received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        self._owner._lost(self, ConnectionClosedError("connection lost"))


class AsyncioTransport:
    """Sends commands and settles their answers, for event loops. See the module's head.

    Args:
        options: where to connect to.
        clock: monotonic seconds.
    """

    def __init__(self, options: ConnectionOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = Session(options, None, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._protocol: _Protocol | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._openers: list[Answer[None]] = []
        self._backlog: list[bytes] = []
        self._unsent: list[bytes] = []
        self._candidate: _Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._last: _Protocol | None = None
        self._closed = False

    # -- what both transports offer -----------------------------------------------------------------------------------

    @property
    def options(self) -> ConnectionOptions:
        """Where it connects to."""
        return self._session.options

    @property
    def connected(self) -> bool:
        """Whether a connection stands, as far as is known."""
        return self._protocol is not None

    @property
    def generation(self) -> int:
        """Number of connections made so far."""
        return self._session.generation

    @property
    def backing_off(self) -> bool:
        """Whether the last connect failed so lately that calls fail at once."""
        return self._session.backing_off() is not None

    def open(self) -> Answer[None]:
        """Connect now, if there is no connection."""
        try:
            self._use_loop()
            if self._protocol is not None:
                return Answer.of(None)
            self._start_connecting()
        except BunqueueError as error:
            return Answer.failed(error)
        opener: Answer[None] = Answer()
        self._openers.append(opener)
        return opener

    def submit(
        self,
        fields: dict[str, Any],
        *,
        timeout: float | Default | None = DEFAULT_TIMEOUT,
        decode: Decoder | None = None,
        extra: bytes = b"",
        extra_count: int = 0,
        flush: bool = True,
        on_cancel: Callable[[Answer[Any]], None] | None = None,
    ) -> Answer[Any]:
        """Send a command, connecting first where needed.

        Args:
            fields: its fields with ``cmd``.
            timeout: seconds until the answer fails; None for no limit.
            decode: makes the value from a successful response.
            extra: further fields, encoded; see :meth:`~bunqueue_core.client._session.Session.encode`.
            extra_count: how many.
            flush: has no meaning here: commands of one pass of the loop leave together anyway.
            on_cancel: what cancelling the answer does.

        Returns:
            The answer; failed already if the command could not be sent.
        """
        try:
            loop = self._use_loop()
            if self._protocol is None:
                self._start_connecting()
            answer, frame = self._session.encode(fields, timeout, decode, extra, extra_count, on_cancel)
        except BunqueueError as error:
            return Answer.failed(error)
        if self._protocol is None:
            self._backlog.append(frame)
        else:
            if not self._unsent:
                loop.call_soon(self._send_unsent)
            self._unsent.append(frame)
        if answer.deadline is not None and (self._timer is None or answer.deadline < self._timer_due):
            self._watch(loop, answer.deadline)
        return answer

    def give_up(self, answer: Answer[Any], value: Any, late: Decoder) -> None:
        """Settle a pending ``answer`` with ``value`` now; a response that still comes goes to ``late``."""
        if isinstance(answer, CommandAnswer):
            answer.give_up(value, late, None)

    def listen(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        """Call ``on_event`` with the members of each event that the server sends."""
        self._session.on_event = on_event

    def loss(self) -> Answer[None]:
        """An answer that is ready once the present connection is lost."""
        return self._session.loss() if self.connected else Answer.of(None)

    def close(self) -> None:
        """Close for good: pending and later commands fail with ``connection closed by client``."""
        self._closed = True
        self._last = self._protocol
        self._drop(ConnectionClosedError("connection closed by client"))

    async def wait_closed(self) -> None:
        """Wait until the connection that :meth:`close` closed has let go of its socket, a moment at most."""
        last, self._last = self._last, None
        if last is not None and self._loop is asyncio.get_running_loop():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_S):
                    await last.ended.wait()

    # -- connecting ---------------------------------------------------------------------------------------------------

    def _use_loop(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise ConnectionClosedError("connection closed by client")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                self._forget_loop()
            self._loop = loop
        return loop

    def _forget_loop(self) -> None:
        """The present connection belongs to another loop, most likely a closed one: nothing may be called on it any more."""
        self._protocol = self._candidate = self._connecting = self._timer = None
        self._openers.clear()
        self._backlog.clear()
        self._unsent.clear()
        self._session.pending.clear()
        self._session.fresh_buffer()

    def _start_connecting(self) -> None:
        if self._connecting is not None:
            return
        waiting = self._session.backing_off()
        if waiting is not None:
            raise waiting
        self._connecting = asyncio.get_running_loop().create_task(self._connect(), name="bunqueue-connect")

    async def _connect(self) -> None:
        session, options = self._session, self._session.options
        started = session.clock()
        protocol = _Protocol(self)
        try:
            async with asyncio.timeout(options.connect_timeout):
                await self._establish(protocol)
        except BaseException as error:
            self._connecting = self._candidate = None
            if protocol.transport is not None:
                protocol.transport.abort()
            if not isinstance(error, OSError | BunqueueError):
                raise  # cancelled: whoever did it has failed what waits
            failure = error if isinstance(error, BunqueueError) else self._explain(error)
            session.connect_failed(failure)
            self._fail_all(failure)
            return
        self._connecting = self._candidate = None
        self._protocol = protocol
        session.connected(session.clock() - started)
        if self._backlog:
            self._unsent.extend(self._backlog)
            self._backlog.clear()
            self._send_unsent()
        openers, self._openers = self._openers, []
        for opener in openers:
            opener.settle(None)

    async def _establish(self, protocol: _Protocol) -> None:
        session, options = self._session, self._session.options
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: protocol,
            options.host,
            options.port,
            ssl=options.tls,
            server_hostname=options.host if options.tls is not None else None,
        )
        keepalive(transport.get_extra_info("socket").setsockopt)
        session.fresh_buffer()
        self._candidate = protocol
        if options.token is None:
            return
        answer, frame = session.authentication()
        transport.write(frame)
        with contextlib.suppress(BunqueueError):  # ``authenticated`` judges it
            await answer
        session.authenticated(answer)

    def _explain(self, error: OSError) -> ConnectionClosedError:
        options = self._session.options
        stage = "connect"
        if isinstance(error, ssl.SSLError):
            self._session.emit("error", operation="tls", error=str(error))
            stage = "TLS handshake"
        return ConnectionClosedError(f"{stage} failed: {error or 'timed out'} ({options.host}:{options.port})")

    def _fail_all(self, error: BunqueueError) -> None:
        self._backlog.clear()
        self._unsent.clear()
        openers, self._openers = self._openers, []
        for opener in openers:
            opener.fail(error)
        self._session.fail_pending(error)

    def _drop(self, error: BunqueueError) -> None:
        """Give up the connection, standing or being made."""
        task, self._connecting = self._connecting, None
        protocol, self._protocol = self._protocol, None
        timer, self._timer = self._timer, None
        if self._loop is not None and not self._loop.is_closed():
            if task is not None:
                task.cancel()
            if timer is not None:
                timer.cancel()
            if protocol is not None and protocol.transport is not None:
                protocol.transport.close()
        if protocol is not None:
            self._session.lost(error)
        self._fail_all(error)

    # -- the wire -----------------------------------------------------------------------------------------------------

    def _send_unsent(self) -> None:
        protocol = self._protocol
        if protocol is None or protocol.transport is None or not self._unsent:
            return
        data = b"".join(self._unsent) if len(self._unsent) > 1 else self._unsent[0]
        self._unsent.clear()
        protocol.transport.write(data)

    def _received(self, protocol: _Protocol, data: bytes) -> None:
        if protocol is not self._protocol and protocol is not self._candidate:
            return
        try:
            self._session.feed(data)
        except ConnectionClosedError as error:
            self._lost(protocol, error)

    def _lost(self, protocol: _Protocol, error: BunqueueError) -> None:
        if protocol is self._candidate:
            self._candidate = None
            self._session.fail_pending(error)
            return
        if protocol is not self._protocol:
            return
        self._protocol = None
        if protocol.transport is not None:
            protocol.transport.abort()
        self._unsent.clear()
        self._session.lost(error)

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def _watch(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        if self._timer is not None:
            if self._timer_due <= deadline:
                return
            self._timer.cancel()
        self._timer_due = deadline
        self._timer = loop.call_later(max(0.0, deadline - self._session.clock()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        session = self._session
        if session.expire(session.clock()) and self._protocol is not None:
            self._lost(self._protocol, ConnectionClosedError("connection lost"))
        due = session.next_deadline()
        if due is not None and self._loop is not None and self._timer is None:
            self._watch(self._loop, due)
