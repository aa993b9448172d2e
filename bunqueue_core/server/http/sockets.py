"""One WebSocket: commands in, answers and events out, all JSON text.

Commands are those of the table, run as on TCP: in the order in which they come, so many at once, the next ones wait. A client
whose answers wait unread gets no further command run; events that it does not read are dropped. What it pulled and registered is
its own: it goes back when the socket closes.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from starlette.types import Message, Receive, Send

from bunqueue_core.answer import Answer
from bunqueue_core.commands import COMMANDS
from bunqueue_core.commands.replies import INTERNAL_ERROR, Refusal, error_text
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import ABSENT, Command, Members
from bunqueue_core.model.errors import CommandError
from bunqueue_core.server.http.bodies import parse_json
from bunqueue_core.server.http.catalogue import PATTERNS, matches
from bunqueue_core.server.http.rendering import JsonReplies
from bunqueue_core.server.http.streams import Streams, Told, Transport, queue_of
from bunqueue_core.server.limits import (
    BAD_REQ_ID,
    MAX_CONCURRENT_COMMANDS,
    MAX_WAITING_BYTES,
    MAX_WAITING_FRAMES,
    can_be_echoed,
)

#: Longest message that is taken.
MAX_MESSAGE_BYTES: Final = 1024 * 1024

#: While more than this many bytes of answers and events wait to be read, no command is run.
MAX_UNREAD_BYTES: Final = 1024 * 1024

#: An unknown command's name is quoted up to this length.
_QUOTED_NAME_CHARACTERS: Final = 256

#: Commands that have a meaning of their own on TCP, and none here.
_TCP_ONLY: Final = frozenset(("SubscribeEvents", "UnsubscribeEvents"))

_COMMANDS: Final[Mapping[str, Command]] = {name: command for name, command in COMMANDS.items() if name not in _TCP_ONLY}


class Socket:
    """See the module's head.

    Args:
        streams: what it watches.
        queue: it is told job events of that queue only; None: of all.
        receive: gives its messages.
        send: takes ours.
    """

    transport: Transport = "ws"

    def __init__(self, streams: Streams, queue: str | None, receive: Receive, send: Send) -> None:
        services = streams.services
        self._streams = streams
        self._services = services
        self._queue = queue
        self._receive = receive
        self._send = send
        self._session = Session(services, services.ports.new_token(), authenticated=True)
        self._render = JsonReplies()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

        self._patterns: dict[str, None] | None = None  # None: it never subscribed, and gets job events as they are
        self._waiting: deque[str] = deque()  # messages whose turn has not come
        self._waiting_bytes = 0
        self._room = asyncio.Event()  # fewer of them wait than may
        self._running = 0
        self._parked: set[Answer[Members]] = set()  # answers that wait for what others do

        self._out: deque[str] = deque()
        self._out_bytes = 0
        self._more = asyncio.Event()
        self._closed = False

    async def run(self) -> None:
        """Serve until the client goes."""
        await self._send({"type": "websocket.accept"})
        self._streams.join(self)
        writing = asyncio.ensure_future(self._write())
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._closed = True
            self._streams.leave(self)
            for answer in list(self._parked):
                answer.cancel()
            self._session.close()
            for task in (writing, reading):
                task.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)

    # -- in -----------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            while len(self._waiting) > MAX_WAITING_FRAMES or self._waiting_bytes > MAX_WAITING_BYTES:
                self._room.clear()
                await self._room.wait()
            message: Message = await self._receive()
            if message["type"] != "websocket.receive":
                return
            text = message.get("text")
            if text is None:
                text = (message.get("bytes") or b"").decode("utf-8", "surrogateescape")
            self._waiting.append(text)
            self._waiting_bytes += len(text)
            self._run_waiting()

    def _run_waiting(self) -> None:
        waiting = self._waiting
        while (
            waiting
            and not self._closed
            and self._running < MAX_CONCURRENT_COMMANDS
            and self._out_bytes <= MAX_UNREAD_BYTES
        ):
            text = waiting.popleft()
            self._waiting_bytes -= len(text)
            self._handle(text)
        self._room.set()

    def _handle(self, text: str) -> None:
        """Answer one message, or start its command."""
        try:
            request = parse_json(text)
        except ValueError:
            request = None
        if request is None:
            self._put(self._render.failure("Invalid JSON"))
            return
        name = request.get("cmd") if isinstance(request, dict) else None
        if not name or not isinstance(request, dict):
            self._put(self._render.failure("Invalid command"))
            return
        req_id = request.get("reqId", ABSENT)
        if not can_be_echoed(req_id):
            self._put(self._render.failure(BAD_REQ_ID))
            return
        if name == "Subscribe":
            self._subscribe(request.get("events"), req_id)
        elif name == "Unsubscribe":
            self._unsubscribe(request.get("events"), req_id)
        else:
            command = _COMMANDS.get(name) if isinstance(name, str) else None
            if command is None:
                shown = "true" if name is True else str(name)[:_QUOTED_NAME_CHARACTERS]
                self._put(self._render.failure(f"Unknown command: {shown}", None, req_id))
            else:
                self._run(command, request, req_id)

    def _run(self, command: Command, request: Mapping[str, Any], req_id: Any) -> None:
        try:
            reply = command.run(self._session, request)
            if isinstance(reply, Answer):
                if not reply.ready:
                    self._running += 1
                    if command.waits:
                        self._parked.add(reply)
                    reply.add_callback(partial(self._settled, req_id))
                    return
                reply = reply.value
        except Exception as error:
            self._fail(error, req_id)
        else:
            self._answer(reply, req_id)

    def _settled(self, req_id: Any, answer: Answer[Members]) -> None:
        """An answer is there, in whatever thread."""
        if threading.get_ident() == self._thread:
            self._complete(req_id, answer)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._complete, req_id, answer)

    def _complete(self, req_id: Any, answer: Answer[Members]) -> None:
        self._running -= 1
        self._parked.discard(answer)
        if self._closed:
            answer.cancel()  # nobody is there to take it
            return
        if answer.error is None:
            self._answer(answer.value, req_id)
        else:
            self._fail(answer.error, req_id)
        self._run_waiting()

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def _subscribe(self, events: Any, req_id: Any) -> None:
        if not isinstance(events, list) or not events:
            self._put(self._render.failure("events must be a non-empty array", None, req_id))
            return
        unknown = [str(event) for event in events if not isinstance(event, str) or event not in PATTERNS]
        if unknown:
            self._put(self._render.failure(f"Invalid: {', '.join(unknown)}", None, req_id))
            return
        self._patterns = {**(self._patterns or {}), **dict.fromkeys(events)}
        self._answer({"subscribed": list(self._patterns)}, req_id)

    def _unsubscribe(self, events: Any, req_id: Any) -> None:
        if self._patterns is not None:
            gone = events if isinstance(events, list) and events else list(self._patterns)
            self._patterns = {pattern: None for pattern in self._patterns if pattern not in gone}
        self._answer({"subscribed": list(self._patterns or ())}, req_id)

    def tell(self, told: Told) -> None:
        """See :class:`~bunqueue_core.server.http.streams.Client`."""
        if told.queue is not None and self._queue is not None and told.queue != self._queue:
            return
        if self._patterns is None:
            text = told.raw if told.event is not None else ""
        else:
            text = told.named if matches(self._patterns, told.name) else ""
        if text and self._out_bytes <= self._streams.limits.backlog_bytes:
            self._put_text(text)

    def wants(self, name: str) -> bool:
        """See :class:`~bunqueue_core.server.http.streams.Client`."""
        return self._patterns is not None and matches(self._patterns, name)

    def heartbeat(self) -> None:
        """Pings of the protocol keep the socket open."""

    def end(self) -> None:
        """The listener closes the connection."""

    # -- out ----------------------------------------------------------------------------------------------------------

    def _answer(self, members: Members, req_id: Any) -> None:
        try:
            content = self._render.reply(members, req_id)
        except Exception as error:
            self._fail(error, req_id)
        else:
            self._put(content)

    def _fail(self, error: BaseException, req_id: Any) -> None:
        if not isinstance(error, CommandError):
            self._services.log.error("WebSocket command failed unexpectedly", error=f"{type(error).__name__}: {error}")
        try:
            content = self._render.failure(
                error_text(error), error.members if isinstance(error, Refusal) else None, req_id
            )
        except Exception:
            content = self._render.failure(INTERNAL_ERROR)
        self._put(content)

    def _put(self, content: bytes) -> None:
        self._put_text(content.decode())

    def _put_text(self, text: str) -> None:
        if not self._closed:
            self._out.append(text)
            self._out_bytes += len(text)
            self._more.set()

    async def _write(self) -> None:
        """Send what there is. Ends with an error when the client is gone."""
        out = self._out
        while True:
            while out:
                text = out.popleft()
                self._out_bytes -= len(text)
                await self._send({"type": "websocket.send", "text": text})
                if self._waiting:
                    self._run_waiting()
            self._more.clear()
            await self._more.wait()


async def serve_socket(streams: Streams, path: str, receive: Receive, send: Send) -> None:
    """Serve a WebSocket until it closes.

    Args:
        streams: which it watches.
        path: ``/ws`` or anything below; ``/ws/queues/<queue>`` filters job events by queue, whose name is taken as it stands there.
        receive: gives its messages.
        send: takes ours.
    """
    message = await receive()
    if message["type"] == "websocket.connect":
        await Socket(streams, queue_of(path, "/ws/queues/"), receive, send).run()
