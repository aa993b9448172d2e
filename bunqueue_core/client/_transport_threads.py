"""The synchronous transport: one socket, any number of threads, no thread of its own.

Whoever waits for an answer reads. The first waiting thread becomes the reader and settles everybody's answers until its own
is there; then it hands the socket to another waiting thread. A lone caller therefore pays for one write and one read, and a
program that makes no calls has no thread that sleeps on its behalf.

Invariant: at most one thread reads (``_reading``, guarded by ``_mutex``); whoever stops reading wakes one that waits, and so
does a waiting thread that leaves. Writing and connecting happen under ``_write_lock``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from bunqueue_core.answer import Answer
from bunqueue_core.client._acompat import spawn
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

_RECEIVE_BYTES: Final = 256 * 1024

#: Pause between two looks at whether an encrypted connection can be written, seconds.
_SEND_WAIT_S: Final = 0.5

#: A connection that was silent for longer is looked at before it is used: the server may have closed it, seconds.
_IDLE_S: Final = 1.0


def _wait_one(sock: socket.socket, writing: bool) -> None:
    """Wait until ``sock`` can be written (or read), at most :data:`_SEND_WAIT_S`."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLOUT if writing else select.POLLIN)
        poll.poll(_SEND_WAIT_S * 1000)
    else:
        select.select([] if writing else [sock], [sock] if writing else [], [], _SEND_WAIT_S)


def _bound_sends(sock: socket.socket, seconds: float | None) -> None:
    """Let a write fail when the other side takes nothing for ``seconds``, which no deadline of a command could end."""
    if seconds is not None and hasattr(socket, "SO_SNDTIMEO") and os.name == "posix":
        whole = int(seconds)
        timeval = struct.pack("ll", whole, int((seconds - whole) * 1_000_000) or (0 if whole else 1))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)


class _Wire:
    """A connected socket that one thread reads while others write, and whose reader can be woken."""

    def __init__(self, sock: socket.socket, send_seconds: float | None = None) -> None:
        self._sock = sock
        self._send_seconds = send_seconds  #: how long the other side may take nothing
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        # Writers wait when the kernel's buffer is full, readers poll first: the socket itself blocks.
        self._tls = isinstance(sock, ssl.SSLSocket)
        sock.setblocking(not self._tls)
        # OpenSSL lets one thread at a time into a connection, so TLS sockets do not block and take turns.
        self._turn = threading.Lock()
        self.closed = False

    def receive(self, seconds: float | None) -> bytes | None:
        """Read what is there, waiting up to ``seconds``. None when woken or out of time, ``b""`` at the end."""
        try:
            if self._tls:
                data = self._receive_tls()
                if data is not None:
                    return data
            if not self._wait(seconds):
                return None
            return self._receive_tls() if self._tls else self._sock.recv(_RECEIVE_BYTES)
        except OSError:
            return b""
        except ValueError:  # closed under our feet: the descriptor is gone
            return b""

    def _receive_tls(self) -> bytes | None:
        with self._turn:
            try:
                return self._sock.recv(_RECEIVE_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None
            except ssl.SSLError:
                return b""

    def _wait(self, seconds: float | None) -> bool:
        """Wait for bytes. False when out of time, or woken."""
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            poll.register(self._wake_in, select.POLLIN)
            milliseconds = None if seconds is None else max(0, int(seconds * 1000 + 0.999))
            ready = {fd for fd, _ in poll.poll(milliseconds)}
            woken, readable = self._wake_in.fileno() in ready, self._sock.fileno() in ready
        else:
            found, _, _ = select.select([self._sock, self._wake_in], [], [], seconds)
            woken, readable = self._wake_in in found, self._sock in found
        if woken:
            try:
                self._wake_in.recv(4096)
            except OSError:
                return False
        return readable

    def send(self, data: bytes) -> None:
        """Write all of ``data``.

        Raises:
            OSError: the connection is gone.
        """
        if not self._tls:
            self._sock.sendall(data)
            return
        view = memoryview(data)
        waited = 0.0
        while view:
            with self._turn:
                try:
                    view = view[self._sock.send(view) :]
                    waited = 0.0
                    continue
                except ssl.SSLWantWriteError:
                    writing = True
                except ssl.SSLWantReadError:
                    writing = False
            if self._send_seconds is not None and waited >= self._send_seconds:
                raise TimeoutError("the other side takes nothing")
            waited += _SEND_WAIT_S
            _wait_one(self._sock, writing)

    def wake(self) -> None:
        """Make a waiting reader return."""
        try:
            self._wake_out.send(b"\0")
        except OSError:
            return

    def close(self) -> None:
        """Close it; a waiting reader returns."""
        self.closed = True
        with contextlib.suppress(OSError):
            # Ends a blocked read or write of another thread, which closing the descriptor alone does not.
            self._sock.shutdown(socket.SHUT_RDWR)
        self.wake()
        self._sock.close()

    def abandon(self) -> None:
        """Release the descriptors without telling the other side: they belong to the process we were forked from."""
        self.closed = True
        self._sock.close()
        self._wake_in.close()
        self._wake_out.close()

    def __del__(self) -> None:
        for sock in (self._sock, self._wake_in, self._wake_out):
            sock.close()


class ThreadTransport:
    """Sends commands and settles their answers, for threads. See the module's head.

    Args:
        options: where to connect to.
        clock: monotonic seconds.
    """

    def __init__(self, options: ConnectionOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = Session(options, self, clock)
        self._wire: _Wire | None = None
        self._closed = False
        self._unsent: list[bytes] = []
        self._last_use = 0.0
        self._new_locks()

    def _new_locks(self) -> None:
        self._pid = os.getpid()
        self._write_lock = threading.Lock()
        self._mutex = threading.Lock()
        self._reading = False
        self._followers: deque[threading.Event] = deque()

    # -- what both transports offer -----------------------------------------------------------------------------------

    @property
    def options(self) -> ConnectionOptions:
        """Where it connects to."""
        return self._session.options

    @property
    def connected(self) -> bool:
        """Whether a connection stands, as far as is known."""
        return self._wire is not None

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
            with self._write_lock:
                self._ready_wire()
        except BunqueueError as error:
            return Answer.failed(error)
        return Answer.of(None)

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
            flush: False lets the frame wait for the next command or the next wait, to leave with it in one write.
            on_cancel: what cancelling the answer does.

        Returns:
            The answer; failed already if the command could not be sent.
        """
        if self._pid != os.getpid():
            self._forked()
        answer: CommandAnswer | None = None
        try:
            with self._write_lock:
                wire = self._ready_wire()
                answer, frame = self._session.encode(fields, timeout, decode, extra, extra_count, on_cancel)
                self._unsent.append(frame)
                if self._wire is not wire:
                    # Lost by a reading thread, which failed what was pending before this one was.
                    raise ConnectionClosedError("connection lost")
                if flush:
                    self._send_unsent(wire)
        except BunqueueError as error:
            if answer is None:
                return Answer.failed(error)
            self._session.pending.pop(answer.req_id, None)
            answer.fail(error)
        return answer

    def give_up(self, answer: Answer[Any], value: Any, late: Decoder) -> None:
        """Settle a pending ``answer`` with ``value`` now; a response that still comes goes to ``late``."""
        if isinstance(answer, CommandAnswer):
            orphan = answer.give_up(value, late, self)
            wire = self._wire
            if wire is not None:
                wire.wake()
                # Nobody may wait for anything else on this connection for long, and the response must not lie there.
                spawn("bunqueue-late-answer", self.drive, orphan, None)

    def listen(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        """Call ``on_event`` with the members of each event that the server sends."""
        self._session.on_event = on_event

    def loss(self) -> Answer[None]:
        """An answer that is ready once the present connection is lost."""
        return self._session.loss() if self.connected else Answer.of(None)

    def close(self) -> None:
        """Close for good: pending and later commands fail with ``connection closed by client``."""
        self._closed = True
        wire = self._wire
        if wire is not None:
            self._lost(wire, ConnectionClosedError("connection closed by client"))

    def wait_closed(self) -> None:
        """Nothing is left to wait for: :meth:`close` has closed the socket."""

    # -- connecting and writing (under the write lock) ----------------------------------------------------------------

    def _ready_wire(self) -> _Wire:
        if self._closed:
            raise ConnectionClosedError("connection closed by client")
        now = self._session.clock()
        if self._wire is not None and now - self._last_use > _IDLE_S and not self._session.pending:
            self._look()
        self._last_use = now
        wire = self._wire
        return wire if wire is not None else self._connect()

    def _look(self) -> None:
        """Find out whether the server has closed the connection while nobody used it. Unless somebody reads: they would."""
        with self._mutex:
            wire = self._wire
            if self._reading or wire is None:
                return
            self._reading = True
        try:
            data = wire.receive(0)
        finally:
            with self._mutex:
                self._reading = False
        if data:
            self._take(wire, data)
        elif data == b"":
            self._lost(wire, ConnectionClosedError("connection lost"))
        self._pass_on()

    def _connect(self) -> _Wire:
        session, options = self._session, self._session.options
        waiting = session.backing_off()
        if waiting is not None:
            raise waiting
        started = session.clock()
        sock: socket.socket | None = None
        stage = "connect"
        try:
            sock = socket.create_connection((options.host, options.port), timeout=options.connect_timeout)
            keepalive(sock.setsockopt)
            _bound_sends(sock, options.command_timeout)
            if options.tls is not None:
                stage = "TLS handshake"
                sock = options.tls.wrap_socket(sock, server_hostname=options.host)
            session.fresh_buffer()
            session.pending.clear()
            self._unsent.clear()
            if options.token is not None:
                stage = "auth"
                self._authenticate(sock)
        except BunqueueError as error:
            if sock is not None:
                sock.close()
            session.connect_failed(error)
            raise
        except OSError as error:
            if sock is not None:
                sock.close()
            failure = ConnectionClosedError(f"{stage} failed: {error} ({options.host}:{options.port})")
            if stage == "TLS handshake":
                session.emit("error", operation="tls", error=str(error))
            session.connect_failed(failure)
            raise failure from error
        wire = _Wire(sock, options.command_timeout)
        session.connected(session.clock() - started)
        self._wire = wire
        if self._closed:
            self._lost(wire, ConnectionClosedError("connection closed by client"))
            raise ConnectionClosedError("connection closed by client")
        return wire

    def _authenticate(self, sock: socket.socket) -> None:
        session = self._session
        answer, frame = session.authentication()
        sock.sendall(frame)
        while not answer.ready:
            data = sock.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionClosedError("auth failed: connection lost")
            session.feed(data)
        session.authenticated(answer)

    def _send_unsent(self, wire: _Wire) -> None:
        data = b"".join(self._unsent) if len(self._unsent) > 1 else self._unsent[0]
        self._unsent.clear()
        try:
            wire.send(data)
        except OSError as error:
            self._session.emit("error", operation="write", error=str(error))
            failure = ConnectionClosedError(f"send failed: {error}")
            self._lost(wire, failure)
            raise failure from error

    # -- reading ------------------------------------------------------------------------------------------------------

    def drive(self, answer: Answer[Any], timeout: float | None) -> None:
        """Read, or wait while another thread reads, until ``answer`` is ready or ``timeout`` seconds have passed."""
        session = self._session
        if self._unsent:
            self._flush()
        give_up = None if timeout is None else session.clock() + timeout
        while not answer.ready:
            now = session.clock()
            due = answer.deadline if isinstance(answer, CommandAnswer) else session.next_deadline()
            if due is not None and now >= due:
                if session.expire(now):
                    wire = self._wire
                    if wire is not None:
                        self._lost(wire, ConnectionClosedError("connection lost"))
                continue
            if give_up is not None and now >= give_up:
                return
            limits = [limit for limit in (due, give_up) if limit is not None]
            self._read_or_follow(answer, min(limits) - now if limits else None)

    def drive_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Not offered: this transport is for threads.

        Raises:
            RuntimeError: always; ``bunqueue_core.asyncio`` has the clients for event loops.
        """
        raise RuntimeError("a synchronous client cannot be awaited; use the classes of bunqueue_core.asyncio")

    def _flush(self) -> None:
        with self._write_lock:
            wire = self._wire
            if wire is not None and self._unsent:
                try:
                    self._send_unsent(wire)
                except ConnectionClosedError:
                    return  # every pending answer has got the error

    def _read_or_follow(self, answer: Answer[Any], seconds: float | None) -> None:
        with self._mutex:
            lead = not self._reading
            if lead:
                self._reading = True
            else:
                turn = threading.Event()
                self._followers.append(turn)
        if lead:
            try:
                self._read(answer, seconds)
            finally:
                with self._mutex:
                    self._reading = False
                self._pass_on()
            return
        answer.add_callback(lambda _: turn.set())
        turn.wait(seconds)
        with self._mutex:
            if turn in self._followers:
                self._followers.remove(turn)
        if answer.ready:
            # It may have been this thread's turn to read; another must take it.
            self._pass_on()

    def _pass_on(self) -> None:
        with self._mutex:
            if not self._reading and self._followers:
                self._followers.popleft().set()

    def _read(self, answer: Answer[Any], seconds: float | None) -> None:
        """Read until ``answer`` is ready, time is up or the reader is woken."""
        clock = self._session.clock
        end = None if seconds is None else clock() + seconds
        while not answer.ready:
            wire = self._wire
            if wire is None:
                # Lost or closed: every answer that was pending then has its error. One that was registered just after
                # gets it from the write that cannot succeed.
                time.sleep(0)
                return
            left = None if end is None else end - clock()
            if left is not None and left <= 0:
                return
            data = wire.receive(left)
            if data is None:
                return
            if not data:
                self._lost(wire, ConnectionClosedError("connection lost"))
                return
            self._take(wire, data)

    def _take(self, wire: _Wire, data: bytes) -> None:
        try:
            self._session.feed(data)
        except ConnectionClosedError as error:
            self._lost(wire, error)

    def _lost(self, wire: _Wire, error: BunqueueError) -> None:
        with self._mutex:
            current = self._wire is wire
            if current:
                self._wire = None
        if current:
            wire.close()
            self._session.lost(error)

    def _forked(self) -> None:
        """The process was forked: its socket belongs to the parent, and so do the answers that wait."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abandon()
        self._session.pending.clear()
        self._session.fresh_buffer()
        self._unsent.clear()
        self._new_locks()
