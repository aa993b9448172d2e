"""One TCP connection: bytes in, commands run, answers and events out.

Commands start in the order in which they arrive. What is ready is answered in the write that ends the read; what has to wait
(for a commit, for a job) is answered when it settles, together with all that settles in the same turn of the event loop. So many
commands may run at once; the next ones wait in order, and beyond a bound of those the connection is not read. A client that does
not read its answers is not read either, and is cut off beyond a bound.

Everything here runs in the event loop's thread; answers and events that come from other threads are brought over.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, cast

from bunqueue_core.answer import Answer
from bunqueue_core.commands.replies import INTERNAL_ERROR, Refusal, error_text
from bunqueue_core.commands.session import Services, Session
from bunqueue_core.commands.table import ABSENT, Command, Members
from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.requests import Event
from bunqueue_core.model.wire import WireEncoder
from bunqueue_core.server.limits import (
    BAD_REQ_ID,
    HALF_CLOSED_GRACE_S,
    INCOMPLETE_FRAME,
    UNREAD_ANSWERS,
    ConnectionLimits,
    RateLimiter,
    can_be_echoed,
)
from bunqueue_core.server.tcp.framing import Framer, FrameTooLarge, pack_length
from bunqueue_core.server.tcp.requests import RequestDecoder

#: Answers longer than this are not copied together with others.
LARGE_ANSWER_BYTES: Final = 256 * 1024

#: How long the rest of an unreadable stream is swallowed, so that the client can read why it ends, seconds.
LINGER_S: Final = 1.0

#: An unknown command's name is quoted up to this length.
QUOTED_NAME_CHARACTERS: Final = 256

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Owner(Protocol):
    """What a connection needs of the server that accepted it."""

    services: Services
    commands: Mapping[str, Command]
    encoder: WireEncoder
    decoder: RequestDecoder
    limits: ConnectionLimits
    limiter: RateLimiter | None

    def opened(self, connection: Connection) -> None:
        """A connection was made."""

    def closed(self, connection: Connection) -> None:
        """It is gone."""

    def cut_off(self, reason: str) -> None:
        """A connection was ended by the server, because of ``reason``."""


class Connection(asyncio.Protocol):
    """See the module's head.

    Args:
        owner: the server.
        loop: the event loop that it runs in.
    """

    __slots__ = (
        "_batching",
        "_decode",
        "_encoder",
        "_ending",
        "_framer",
        "_half_closed",
        "_last_data",
        "_limits",
        "_loop",
        "_lost",
        "_out",
        "_owner",
        "_parked",
        "_reading_paused",
        "_running",
        "_scheduled",
        "_session",
        "_session_closed",
        "_stall_timer",
        "_thread",
        "_transport",
        "_waiting",
        "_waiting_bytes",
        "_write_paused",
        "_write_timer",
        "__weakref__",
    )

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._limits = owner.limits
        self._encoder = owner.encoder
        self._decode = owner.decoder.decode
        self._thread = threading.get_ident()
        self._session = Session(owner.services, owner.services.ports.new_token(), self._event)

        # input
        self._framer = Framer(owner.limits.frame_bytes)
        self._waiting: deque[bytes] = deque()  # bodies that wait until a running command ends
        self._waiting_bytes = 0
        self._reading_paused = False
        self._last_data = 0.0  # loop time of the last byte of an unfinished frame
        self._stall_timer: asyncio.TimerHandle | None = None

        # commands under way
        self._running = 0
        self._parked: set[Answer[Members]] = set()  # those of them that wait for what others do

        # output
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._batching = False  # a read or turn is being worked on; its end sends
        self._scheduled = False  # a turn is due
        self._write_paused = False
        self._write_timer: asyncio.TimerHandle | None = None

        # end
        self._ending = False  # nothing more is read or run
        self._half_closed = False  # the client has closed its side; answers under way still go out
        self._lost = False
        self._session_closed = False

    @property
    def session(self) -> Session:
        """The connection's session."""
        return self._session

    # -- life ---------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        if self._limits.unsent_bytes:
            self._transport.set_write_buffer_limits(high=max(1, self._limits.unsent_bytes // 2))
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self._lost = self._ending = True
        for timer in (self._stall_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        self._out.clear()
        try:
            self._close_session()
        finally:
            self._owner.closed(self)

    def eof_received(self) -> bool:
        """The client has closed its side: answer what is under way, except what waits for others, and close."""
        self._ending = True
        self._waiting.clear()
        self._close_session()
        self._send()
        if self._running > len(self._parked) and self._transport is not None and not self._encrypted():
            self._half_closed = True
            self._loop.call_later(HALF_CLOSED_GRACE_S, self._transport.close)
            return True
        return False

    def close(self) -> None:
        """Send what is there and close the connection."""
        self._ending = True
        if self._transport is not None:
            self._send()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once; what is unsent is lost."""
        self._ending = True
        if self._transport is not None:
            self._transport.abort()

    def _encrypted(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("sslcontext") is not None

    def _close_session(self) -> None:
        if self._session_closed:
            return
        self._session_closed = True
        for answer in list(self._parked):
            answer.cancel()
        limiter, id = self._owner.limiter, self._session.id
        if limiter is not None and id is not None:
            limiter.forget(id)
        self._session.close()

    def _cut_off(self, reason: str) -> None:
        transport = self._transport
        if self._lost or transport is None:
            return
        self._ending = True
        self._owner.cut_off(reason)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            # What is unsent is lost anyway; a reset says so, and leaves nothing in the kernel.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()

    # -- input --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        if self._ending:
            return
        try:
            bodies = self._framer.feed(data)
        except FrameTooLarge as error:
            self._put(self._encoder.failure(str(error), None, False))
            self._end_stream()
            return
        if self._framer.buffered and self._limits.stall_ms:
            self._last_data = self._loop.time()
            if self._stall_timer is None:
                self._stall_timer = self._loop.call_later(self._limits.stall_ms / 1000, self._check_stall)
        self._batching = True
        waiting = self._waiting
        for body in bodies:
            if waiting or self._running >= self._limits.concurrent_commands:
                waiting.append(body)
                self._waiting_bytes += len(body)
            else:
                self._handle(body)
        if waiting:
            self._run_waiting()
        self._batching = False
        if self._out:
            self._send()

    def _run_waiting(self) -> None:
        waiting, most = self._waiting, self._limits.concurrent_commands
        while waiting and self._running < most and not self._ending:
            body = waiting.popleft()
            self._waiting_bytes -= len(body)
            self._handle(body)
        self._pace_reading()

    def _pace_reading(self) -> None:
        limits = self._limits
        frames, size = len(self._waiting), self._waiting_bytes
        if self._reading_paused:
            full = frames > limits.waiting_frames // 2 or size > limits.waiting_bytes // 2
        else:
            full = frames > limits.waiting_frames or size > limits.waiting_bytes
        pause = full or self._write_paused
        transport = self._transport
        if pause == self._reading_paused or self._ending or transport is None or transport.is_closing():
            return
        self._reading_paused = pause
        if pause:
            transport.pause_reading()
        else:
            self._last_data = self._loop.time()
            transport.resume_reading()

    def _check_stall(self) -> None:
        self._stall_timer = None
        if not self._framer.buffered or self._ending:
            return
        if self._reading_paused:
            self._last_data = self._loop.time()  # it is us who do not read
        left = self._limits.stall_ms / 1000 - (self._loop.time() - self._last_data)
        if left <= 0:
            self._cut_off(INCOMPLETE_FRAME)
        else:
            self._stall_timer = self._loop.call_later(left, self._check_stall)

    def _end_stream(self) -> None:
        """Nothing that follows can be understood: say so, close our side, and swallow the rest for a moment.

        Closing at once with unread bytes would reset the connection, and the client might never see the reason.
        """
        self._ending = True
        self._send()
        transport = self._transport
        if transport is None:
            return
        if transport.can_write_eof():
            transport.write_eof()
            self._loop.call_later(LINGER_S, transport.close)
        else:
            transport.close()

    # -- commands -----------------------------------------------------------------------------------------------------

    def _handle(self, body: bytes) -> None:
        """Answer one request, or start it."""
        session = self._session
        try:
            request = self._decode(body)
        except ValueError:
            request = None
        req_id = request.get("reqId", ABSENT) if type(request) is dict else ABSENT
        limiter = self._owner.limiter
        if limiter is not None and not limiter.allow(session.id or ""):
            self._owner.services.tell("ratelimit:hit", clientId=session.id)
            self._refuse("Rate limit exceeded", req_id if isinstance(req_id, str) else ABSENT)
            return
        if type(request) is not dict:
            self._refuse("Invalid command format" if _is_nothing(request) else "Invalid command", ABSENT)
            return
        if type(req_id) is not str and not can_be_echoed(req_id):
            self._refuse(BAD_REQ_ID, ABSENT)
            return
        name = request.get("cmd")
        command = self._owner.commands.get(name) if type(name) is str else None
        if command is None:
            self._refuse_unknown(name, req_id)
            return
        if not (session.authenticated or command.open):
            self._refuse("Not authenticated", req_id)
            return
        try:
            reply = command.run(session, request)
            if isinstance(reply, Answer):
                if not reply.ready:
                    self._running += 1
                    if command.waits:
                        self._parked.add(reply)
                    reply.add_callback(partial(self._settled, req_id))
                    return
                reply = reply.value
        except Exception as error:
            self._fail(error, req_id, name)
        else:
            self._answer(reply, req_id)

    def _refuse_unknown(self, name: Any, req_id: Any) -> None:
        if _is_nothing(name):
            self._refuse("Invalid command", req_id if isinstance(req_id, str) else ABSENT)
        elif not self._session.authenticated:
            self._refuse("Not authenticated", req_id)
        else:
            if isinstance(name, bool):
                name = "true"
            self._refuse(f"Unknown command: {str(name)[:QUOTED_NAME_CHARACTERS]}", req_id)

    def _settled(self, req_id: Any, answer: Answer[Members]) -> None:
        """An answer is there, in whatever thread."""
        if threading.get_ident() != self._thread:
            self._bring_over(partial(self._settled, req_id, answer))
            return
        session = self._session
        if session.subscribed:
            # The events of a command come before its answer.
            heard = session.broker.heard()
            if not heard.ready:
                heard.add_callback(partial(self._heard, req_id, answer))
                return
        self._complete(req_id, answer)

    def _heard(self, req_id: Any, answer: Answer[Members], _: Answer[None]) -> None:
        if threading.get_ident() == self._thread:
            self._complete(req_id, answer)
        else:
            self._bring_over(partial(self._complete, req_id, answer))

    def _complete(self, req_id: Any, answer: Answer[Members]) -> None:
        self._running -= 1
        parked = answer in self._parked
        self._parked.discard(answer)
        if self._lost or (self._ending and parked):
            answer.cancel()  # nobody is there to take it
            if self._half_closed:
                self._schedule()
            return
        error = answer.error
        if error is None:
            self._answer(answer.value, req_id)
        else:
            self._fail(error, req_id)
        self._schedule()

    def _answer(self, members: Members, req_id: Any) -> None:
        try:
            body = self._encoder.reply(members, req_id, req_id is not ABSENT)
        except Exception as error:
            self._fail(error, req_id)
            return
        if len(body) > self._limits.frame_bytes:
            self._refuse(f"Answer too large: {len(body)} bytes exceeds maximum {self._limits.frame_bytes}", req_id)
            return
        self._put(body)

    def _fail(self, error: BaseException, req_id: Any, name: str | None = None) -> None:
        if not isinstance(error, CommandError):
            self._owner.services.log.error(
                "Command failed unexpectedly", command=name, error=f"{type(error).__name__}: {error}"
            )
        self._refuse(error_text(error), req_id, error.members if isinstance(error, Refusal) else None)

    def _refuse(self, text: str, req_id: Any, members: Mapping[str, Any] | None = None) -> None:
        try:
            body = self._encoder.failure(text, req_id, req_id is not ABSENT, members)
        except Exception:
            body = self._encoder.failure(INTERNAL_ERROR, None, False)
        self._put(body)

    # -- output -------------------------------------------------------------------------------------------------------

    def _event(self, event: Event) -> None:
        """Send an event; called by the broker, in whatever thread."""
        if threading.get_ident() != self._thread:
            self._bring_over(partial(self._event, event))
            return
        if self._ending:
            return
        self._put(self._encoder.event(event))
        self._schedule()

    def _bring_over(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed, and the connection with it
            return

    def _put(self, body: bytes) -> None:
        self._out.append(pack_length(len(body)))
        self._out.append(body)

    def _schedule(self) -> None:
        if not (self._scheduled or self._batching):
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Send what has settled since, and start what waited for it."""
        self._scheduled = False
        if self._waiting:
            self._batching = True
            self._run_waiting()
            self._batching = False
        self._send()
        if self._half_closed and self._running <= len(self._parked) and self._transport is not None:
            self._transport.close()

    def _send(self) -> None:
        out, transport = self._out, self._transport
        if not out or transport is None:
            return
        self._out = []
        if self._lost or transport.is_closing():
            return
        if len(out) == 2:
            transport.write(out[0] + out[1] if len(out[1]) <= LARGE_ANSWER_BYTES else b"".join(out))
        else:
            small: list[bytes] = []
            for part in out:
                if len(part) > LARGE_ANSWER_BYTES:
                    transport.write(b"".join(small))
                    small = []
                    transport.write(part)
                else:
                    small.append(part)
            if small:
                transport.write(b"".join(small))
        most = self._limits.unsent_bytes
        if most and transport.get_write_buffer_size() > most:
            self._cut_off(UNREAD_ANSWERS)

    def pause_writing(self) -> None:
        """Half of what may stay unsent is unsent: run nothing more for this client until it reads."""
        self._write_paused = True
        self._pace_reading()
        if self._limits.stall_ms and self._write_timer is None:
            self._write_timer = self._loop.call_later(
                self._limits.stall_ms / 1000, partial(self._cut_off, UNREAD_ANSWERS)
            )

    def resume_writing(self) -> None:
        """See :meth:`pause_writing`."""
        self._write_paused = False
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._pace_reading()


def _is_nothing(value: Any) -> bool:
    """Whether JavaScript takes a value for none: null, false, 0, NaN, an empty string (but no empty list or map)."""
    return value is None or (isinstance(value, str | int | float) and (not value or value != value))
