"""Events for local listeners, read back from the outbox, so that all brokers' events come in one order and after their commit.

The feed remembers a transaction snapshot and asks for what became visible since (``feed.sql``). It reads only while somebody
listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.types.numeric import Int4

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import BunqueueError
from bunqueue_core.model.payload import Packed
from bunqueue_core.model.requests import Event
from bunqueue_postgres import arrays
from bunqueue_postgres.changes import read_extras
from bunqueue_postgres.keys import unescape

if TYPE_CHECKING:
    from bunqueue_postgres.broker import PostgresBroker
    from bunqueue_postgres.database import Connection
    from bunqueue_postgres.wire import Rows, Statement

#: Name of the reader that all brokers share for what must happen once an event.
SHARED_READER: Final = "share"

#: Seconds between looks that nobody waits for. After the first a statement of this broker's own work takes the next look along, at
#: a fraction of the cost; after the second it goes alone.
TAKEN_LOOK_S: Final = 0.02
LONE_LOOK_S: Final = 0.04

#: Timers of event loops count whole milliseconds and come early by less, s. Waiting for the rest again and again would be work.
TIMER_S: Final = 0.001

#: Events of a queue whose dead letters, or completions, went because of their number or age.
DLQ_PRUNED: Final = "queue-dlq-pruned"
COMPLETIONS_PRUNED: Final = "queue-completions-pruned"

#: Events that are between brokers, for whoever keeps a copy of what is in the queue: no listener is told of them.
AMONG_BROKERS: Final = frozenset({DLQ_PRUNED, COMPLETIONS_PRUNED})

Listener = Callable[[Event], None]


class Subscription:
    """One listener, of one queue or of all."""

    __slots__ = ("ended", "listener", "queue")

    def __init__(self, listener: Listener, queue: str | None) -> None:
        self.listener = listener
        self.queue = queue
        self.ended = False


class Feed:
    """The outbox as the broker's listeners see it. Belongs to the broker's event loop."""

    def __init__(self, broker: PostgresBroker) -> None:
        self._broker = broker
        self._subscriptions: list[Subscription] = []
        self._arriving: list[Subscription] = []  #: listeners whose subscription has yet to begin
        #: the snapshot up to which listeners have heard: its xmax, and its transactions that were open
        self._position: tuple[str, list[str]] | None = None
        self._joined = False  #: a look is under way that goes along with another statement
        self._reading: asyncio.Task[None] | None = None
        self._again = False
        self._following: list[Answer[None]] = []  #: of those who wait for the next look
        self._pokes = 0  #: how often something was said to be there
        self._seen_pokes = 0  #: those of them before the latest look that told what it saw
        self._looked_at = float("-inf")  #: when the latest look began, on the loop's clock
        self._poked_at = float("-inf")  #: when something was last said to be there
        self._due: asyncio.TimerHandle | None = None
        self._shares: list[Listener] = []
        self._sharing: asyncio.Task[None] | None = None
        self._share_again = False

    @property
    def active(self) -> bool:
        """Whether anybody listens."""
        return bool(self._subscriptions)

    def subscribe(self, listener: Listener, queue: str | None) -> Callable[[], None]:
        """See ``Broker.subscribe``.

        Statements of this broker wait until the subscription has begun, so that it hears of whatever is done after this
        call, and of nothing that was done before.
        """
        subscription = Subscription(listener, queue)
        self._arriving.append(subscription)
        if len(self._arriving) == 1:
            self._broker.hold_statements(self._begin())

        def end() -> None:
            subscription.ended = True
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                if not self._subscriptions:
                    self._position = None

        return end

    async def _begin(self) -> None:
        """Let those who have come in where the others are, once these have heard of what there was before."""
        arriving, self._arriving = self._arriving, []
        try:
            while (position := self._position) is not None:
                rows = await self._broker.run_first(*self._statement(*position))
                if self._position is position:
                    self._take(rows)
                    return
            self._place(await self._broker.run_first(self._broker.queries.snapshot, ()))
        finally:
            self._subscriptions += [subscription for subscription in arriving if not subscription.ended]
            if not self._subscriptions:
                self._position = None

    def subscribe_share(self, listener: Listener) -> Callable[[], None]:
        """See ``Broker.subscribe_share``. Brokers share one reader, whose position outlives them all."""
        self._shares.append(listener)
        self.poke()

        def end() -> None:
            if listener in self._shares:
                self._shares.remove(listener)

        return end

    async def catch_up(self) -> None:
        """Return when listeners have heard of everything that is committed now; at once if there are none."""
        if self._subscriptions:
            await self._next_look()

    def heard(self) -> Answer[None]:
        """See ``Broker.heard``."""
        if not self._subscriptions or self._seen_pokes == self._pokes:
            return Answer.of(None)
        return self._next_look()

    def _next_look(self) -> Answer[None]:
        told: Answer[None] = Answer()
        # A look that is under way may have begun too early: the one after it counts.
        self._following.append(told)
        self._look_now()
        return told

    def poke(self) -> None:
        """Something may have been committed that nobody here waits to hear of: look, soon."""
        self.poke_share()
        if not self._subscriptions:
            return
        self._poked_at = asyncio.get_running_loop().time()
        self._pokes += 1
        if self._due is None:
            self._look_in_time()

    def _look_in_time(self) -> None:
        """Look now, or when the latest look is old enough."""
        loop = asyncio.get_running_loop()
        due = self._looked_at + LONE_LOOK_S
        if loop.time() + TIMER_S >= due:
            self._look_now()
        else:
            self._due = loop.call_at(due, self._fall_due)

    def poke_share(self) -> None:
        """Something may have been committed that must be told once by one of all brokers."""
        if self._shares:
            if self._sharing is not None and not self._sharing.done():
                self._share_again = True
            else:
                self._sharing = self._broker.spawn(self._share(), own=True)

    def _fall_due(self) -> None:
        self._due = None
        # Looks that statements took along have mostly seen it by now.
        if not self._broker.closing and self._looked_at < self._poked_at:
            self._look_in_time()

    def _look_now(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._again = True
        else:
            self._reading = self._broker.spawn(self._read(), own=True)

    async def _read(self) -> None:
        while True:
            self._again = False
            following, self._following = self._following, []
            self._looked_at = asyncio.get_running_loop().time()
            pokes = self._pokes
            try:
                await self._look()
                self._seen_pokes = max(pokes, self._seen_pokes)
            except (psycopg.Error, BunqueueError):
                self._again = False  # the next poll looks again, from the same snapshot
                following += self._following
                self._following = []
            finally:
                for told in following:
                    told.settle(None)
            if not self._again:
                return

    async def _look(self) -> None:
        if self._position is None:
            if self._subscriptions:  # the place from which to look could not be learned: begin now
                self._place(await self._broker.run(self._broker.queries.snapshot, ()))
            return
        while (position := self._position) is not None:
            rows = await self._broker.run(*self._statement(*position))
            if self._position is position:
                self._take(rows)
                return
            # A look that went along with a statement was quicker, and may have begun before this one: once more, from there.

    def _place(self, rows: Rows) -> None:
        """Look on from a snapshot, unless there is a place already."""
        if self._position is None:
            ((xmax, open_),) = rows
            self._position = xmax, open_

    def _statement(self, xmax: str, open_: list[str]) -> Statement:
        """The statement of a look on from a snapshot."""
        return self._broker.queries.feed, (Int4(self._broker.ns), xmax, arrays.texts(open_), self._heard_queues())

    def _take(self, rows: Rows) -> None:
        """Tell what a look has seen, and go on from there."""
        if rows[0][2] is not None:
            for row in rows:
                self._deliver(row)
        if self._position is not None:
            self._position = rows[0][:2]

    async def run(self, query: bytes, parameters: Sequence[Any]) -> tuple[Rows, bool]:
        """Run a statement that writes events; gives its rows, and whether listeners have heard of them already.

        The look goes along with it if none is under way: one wait for both, and none where nobody listens.
        """
        broker = self._broker
        if not self._subscriptions:
            return await broker.run(query, parameters), True
        position = self._position
        if position is None or self._joined or (self._reading is not None and not self._reading.done()):
            return await broker.run(query, parameters), False
        self._joined = True
        looked_at, pokes = asyncio.get_running_loop().time(), self._pokes
        try:
            rows, seen = await broker.database.run_all(((query, parameters), self._statement(*position)))
        finally:
            self._joined = False
        assert not isinstance(rows, psycopg.Error)
        if isinstance(seen, psycopg.Error) or self._position is not position:
            return rows, False  # another look was quicker: what it has told must not be told again
        self._take(seen)
        self._looked_at = max(looked_at, self._looked_at)
        self._seen_pokes = max(pokes, self._seen_pokes)
        return rows, True

    async def run_untold(self, query: bytes, parameters: Sequence[Any]) -> Rows:
        """Run a statement that writes events of which listeners may hear a little later, :data:`LONE_LOOK_S` at most.

        Where little happens they have heard of them when it returns; where much does, the next look sees them for less.
        """
        if self._looked_at + TAKEN_LOOK_S <= asyncio.get_running_loop().time():
            rows, heard = await self.run(query, parameters)
            if not heard:
                self.poke()
            return rows
        rows = await self._broker.run(query, parameters)
        self.poke()
        return rows

    def _heard_queues(self) -> arrays.TextArray | None:
        """Queues with listeners; None if somebody listens to all."""
        queues = {subscription.queue for subscription in self._subscriptions}
        return None if None in queues else arrays.texts([queue for queue in queues if queue is not None])

    async def _share(self) -> None:
        while self._shares:
            self._share_again = False
            try:
                rows = await self._broker.database.transaction(self._read_shared)
                for row in rows:
                    for event in self._events(row):
                        for listener in tuple(self._shares):
                            self._call(listener, event)
            except (psycopg.Error, BunqueueError):
                return  # the next poll looks again
            if not self._share_again:
                return

    async def _read_shared(self, connection: Connection) -> list[tuple[Any, ...]]:
        """Read on for all brokers, unless another is at it. What was read is this broker's to deliver once it is committed."""
        queries, ns = self._broker.queries, Int4(self._broker.ns)
        cursor = connection.cursor(binary=True)
        await cursor.execute(queries.hold_reader, (ns, SHARED_READER))
        held = await cursor.fetchone()
        if held is None:
            return []
        await cursor.execute(queries.feed, (ns, held[0], arrays.texts(held[1]), None))
        rows = await cursor.fetchall()
        await cursor.execute(queries.move_reader, (ns, SHARED_READER, rows[0][0], arrays.texts(rows[0][1])))
        return [row for row in rows if row[2] is not None]

    def _deliver(self, row: tuple[Any, ...]) -> None:
        name = row[3]
        listeners = [item.listener for item in self._subscriptions if item.queue is None or item.queue == name]
        if not listeners:
            return
        for event in self._events(row):
            for listener in listeners:
                self._call(listener, event)

    @staticmethod
    def _events(row: tuple[Any, ...]) -> Iterator[Event]:
        """The events of a row of the outbox."""
        _, _, type, queue, at, keys, blob, skipped, results = row
        if type in AMONG_BROKERS:
            return
        if not keys:
            extras = read_extras(blob, skipped)[skipped:]
            yield Event(type, queue, "", at, extras[0] if extras else None)
            return
        if results is not None:
            for key, result in zip(keys, results, strict=True):
                yield Event(type, queue, unescape(key), at, None if result is None else {"data": Packed(result)})
            return
        if blob is None:
            for key in keys:
                yield Event(type, queue, unescape(key), at)
            return
        for key, extra in zip(keys, read_extras(blob, len(keys) + skipped)[skipped:], strict=True):
            yield Event(type, queue, unescape(key), at, extra)

    def _call(self, listener: Listener, event: Event) -> None:
        try:
            listener(event)
        except Exception as error:
            self._broker.log("error", "a listener failed", event=event.type, error=repr(error))
