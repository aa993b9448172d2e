"""What people who watch a broker are told besides job events, wherever in the namespace it happened.

A notice is told by the broker that does the thing, to its own listeners at once, and to those of other brokers in the payload of a
notification, a few times a second. Nobody pays while nobody watches: a broker with listeners says so every few seconds, and the
others send notices only while one does. Like everything on a dashboard they are told once, and missed by whoever is not there.

That a queue is new is not told by anybody: each watched broker sees it by itself, from the first event of a name it did not know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.types.numeric import Int4

from bunqueue_core.model.errors import BunqueueError
from bunqueue_core.model.requests import Event
from bunqueue_postgres import arrays

if TYPE_CHECKING:
    from bunqueue_postgres.broker import PostgresBroker

Listener = Callable[[str, Mapping[str, Any]], None]

#: A broker that is watched says so every so many seconds, and is believed for so many.
WATCH_S: Final = 5.0
WATCHED_S: Final = 15.0

#: Seconds for which notices gather before they are sent.
GATHER_S: Final = 0.05

#: Notices that wait to be sent at most; what comes beyond is dropped.
WAITING: Final = 2_000

#: Bytes that a notification carries at most (PostgreSQL's bound is 7,999).
PAYLOAD_BYTES: Final = 7_900

_SEND: Final = (
    b"SELECT set_config('synchronous_commit', 'off', true), count(pg_notify($1, i.payload)) "
    b"FROM unnest($2::text[]) AS i (payload)"
)


class NoticeBoard:
    """The broker's listeners, and the way to those of other brokers. Belongs to the broker's event loop."""

    def __init__(self, broker: PostgresBroker) -> None:
        self._broker = broker
        self._listeners: dict[int, Listener] = {}
        self._number = 0
        self._watched_until = 0.0  #: another broker has listeners until then, on the loop's clock
        self._waiting: list[str] = []
        self._sending: asyncio.Task[None] | None = None
        self._watch_number = 0
        self._known: set[str] | None = None  #: names of queues, once they have been read
        self._early: dict[str, None] = {}  #: queues with events before that
        self._stop_following: Callable[[], None] | None = None

    # -- listeners ----------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """See ``Broker.subscribe_dashboard``."""
        self._number += 1
        number = self._number
        self._listeners[number] = listener
        if self._stop_following is None:
            self._watch_number += 1
            self._stop_following = self._broker.feed.subscribe(self._happened, None)
            self._broker.spawn(self._watch(self._watch_number), own=True)

        def end() -> None:
            self._listeners.pop(number, None)
            if not self._listeners and self._stop_following is not None:
                self._stop_following()
                self._stop_following = self._known = None
                self._early.clear()

        return end

    async def _watch(self, number: int) -> None:
        """Learn the queues there are, and say that somebody watches as long as somebody does."""
        while self._listeners and number == self._watch_number and not self._broker.closing:
            try:
                if self._known is None:
                    rows = await self._broker.run(self._broker.queries.queues, (Int4(self._broker.ns),))
                    self._learn({name for (name,) in rows})
                if self._broker.coordinator.reaches_others:
                    await self._send([self._packed("", {})])
            except (psycopg.Error, BunqueueError):
                pass  # the next round says it again
            await self._broker.coordinator.pause(WATCH_S)

    def _learn(self, listed: set[str]) -> None:
        if not self._listeners:
            return
        # One with an event since the listeners came was created by it, unless it was listed before; that cannot be told apart.
        self._known = listed | set(self._early)
        self._early.clear()

    def _happened(self, event: Event) -> None:
        queue = event.queue
        if self._known is None:
            self._early[queue] = None
        elif queue not in self._known:
            self._known.add(queue)
            self._deliver("queue:created", {"queue": queue})

    def forget(self, queue: str) -> None:
        """A queue was obliterated: its name is new when it is used again."""
        if self.active:
            self._forget(queue)
            self._relay("-", {"queue": queue})

    def _forget(self, queue: str) -> None:
        if self._known is not None:
            self._known.discard(queue)

    # -- telling ------------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether anybody wants notices, here or at another broker."""
        return bool(self._listeners) or self._watched_until > asyncio.get_running_loop().time()

    def tell(self, name: str, fields: Mapping[str, Any]) -> None:
        """Tell everybody; asked for only where :attr:`active` says that somebody listens."""
        self._deliver(name, fields)
        self._relay(name, fields)

    def _deliver(self, name: str, fields: Mapping[str, Any]) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener(name, fields)
            except Exception as error:
                self._broker.log("error", "a listener failed", notice=name, error=repr(error))

    # -- other brokers ------------------------------------------------------------------------------------------------

    def heard(self, payload: bytes) -> bool:
        """Take what another broker sent; False if it was this one. What cannot be read is nobody's, and ignored."""
        try:
            session, *packed = json.loads(payload)
            notices = [(str(name), dict(fields)) for name, fields in packed]
        except (ValueError, TypeError):
            return True
        if session == str(self._broker.coordinator.session):
            return False
        for name, fields in notices:
            if name == "":
                self._watched_until = asyncio.get_running_loop().time() + WATCHED_S
            elif name == "-":
                self._forget(str(fields.get("queue")))
            else:
                self._deliver(name, fields)
        return True

    def _packed(self, name: str, fields: Mapping[str, Any]) -> str:
        return json.dumps([name, fields], separators=(",", ":"), default=str)

    def _relay(self, name: str, fields: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        if self._watched_until <= loop.time() or len(self._waiting) >= WAITING:
            return
        self._waiting.append(self._packed(name, fields))
        if self._sending is None or self._sending.done():
            self._sending = self._broker.spawn(self._send_waiting(), own=True)

    async def _send_waiting(self) -> None:
        while self._waiting and not self._broker.closing:
            await self._broker.coordinator.pause(GATHER_S)
            waiting, self._waiting = self._waiting, []
            try:
                await self._send(waiting)
            except (psycopg.Error, BunqueueError):
                return

    async def _send(self, packed: list[str]) -> None:
        head = f'["{self._broker.coordinator.session}"'
        payloads: list[str] = []
        for notice in packed:
            if len(head) + len(notice) + 2 > PAYLOAD_BYTES:
                continue  # an error text of that length: who wants it looks at the job
            if payloads and len(payloads[-1]) + len(notice) + 2 <= PAYLOAD_BYTES:
                payloads[-1] += "," + notice
            else:
                payloads.append(f"{head},{notice}")
        if payloads:
            channel = self._broker.coordinator.channel
            await self._broker.run(_SEND, (channel, arrays.texts([f"{payload}]" for payload in payloads])))
