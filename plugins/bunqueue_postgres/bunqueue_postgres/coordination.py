"""Brokers among brokers: the session fence, heartbeats, recovery of expired leases, wake-ups and polling."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql
from psycopg.types.numeric import Int4, Int8

from bunqueue_core.model.errors import BunqueueError, ConfigurationError
from bunqueue_postgres import arrays, schema
from bunqueue_postgres.diagnosis import diagnose

if TYPE_CHECKING:
    from bunqueue_postgres.broker import PostgresBroker
    from bunqueue_postgres.database import Connection

#: Seconds between two notifications of one broker: enough to wake others quickly, few enough to cost nothing.
ANNOUNCE_S: Final = 0.005

#: The same where nobody waits by the millisecond: ends of jobs are news to listeners at other brokers only, while each
#: notification wakes every broker. The first goes at once, those that follow gather.
UNHURRIED_S: Final = 0.1

#: Seconds between attempts to listen again.
LISTEN_RETRY_S: Final = 0.5

#: Seconds between looks at a listening connection that says nothing.
LISTEN_LOOK_S: Final = 2.0

#: Seconds between rounds of maintenance that no deadline drives.
MAINTENANCE_S: Final = 60.0

#: Seconds between looks whether derived data is to be checked.
CHECK_S: Final = 60.0

#: Most seconds until work that failed is tried again.
RETRY_S: Final = 1.0

#: Seconds between looks for ended jobs that are due to go, or to be retried.
RETAIN_S: Final = 5.0

#: Seconds between rounds in which events beyond a queue's bound are removed.
PRUNE_S: Final = 5.0

#: Completion proofs removed at most in one statement.
PROOFS_PRUNED: Final = 1_000

#: Shortest time between looks for expired leases, ms.
MIN_RECOVERY_MS: Final = 500

#: Longest sleep at once, seconds; a longer one is resumed.
LONGEST_SLEEP_S: Final = 86_400.0

_NOTIFY: Final = b"SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, '')"


class Coordinator:
    """Everything a broker does by itself. Belongs to the broker's event loop."""

    def __init__(self, broker: PostgresBroker) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._database = broker.database
        self._queries = broker.queries
        self.session = uuid.uuid4()
        self.brokers = 0  #: live brokers of the namespace, as of the last heartbeat
        self._fenced = False
        self._tasks: list[asyncio.Task[None]] = []
        self._announcing: asyncio.Task[None] | None = None
        self._announce_again = False
        self._hurry = asyncio.Event()  #: a notification must not wait for company
        self._notified_at = float("-inf")  #: when others were last notified, on the loop's clock
        self._crowded: set[int] = set()
        self._pruned_to = 0
        self._next_expiry_ms: int | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._recovery_due = asyncio.Event()
        self._poke = asyncio.Event()
        self._stopping = asyncio.Event()

    # -- life cycle ---------------------------------------------------------------------------------------------------

    @property
    def _ns(self) -> int:
        return self._broker.ns

    @property
    def channel(self) -> str:
        """Channel of the namespace's notifications. Without payload they wake; with one they carry notices."""
        return f"bunqueue_{self._ns}"

    async def start(self) -> None:
        """Register the session and begin to work.

        Raises:
            ConfigurationError: a live broker has this name.
        """
        if not await self._register():
            raise ConfigurationError(f'PostgreSQL brokerId "{self._broker.broker_id}" is already active')
        try:
            await self._beat()
            await self._broker.reconcile_schedules()
            await self._broker.fold_metrics()
            await self._recover()
        except BaseException:
            # The name is not to be taken for as long as this session would count as alive.
            with contextlib.suppress(psycopg.Error, BunqueueError):
                await self.unregister()
            raise
        settings = self._settings
        self._tasks = [
            self._begin(self._every(lambda: settings.heartbeat_ms / 1000, self._beat, "heartbeat")),
            self._begin(self._every(self._recovery_s, self._recover, "recovery", self._recovery_due)),
            self._begin(self._every(lambda: MAINTENANCE_S, self.maintain, "maintenance", apart=True)),
            self._begin(self._every(lambda: PRUNE_S, self._prune_events, "event-retention", apart=True)),
            self._begin(self._every(lambda: RETAIN_S, self._retain, "retention", apart=True)),
            self._begin(self._every(self._check_s, self._broker.check, "check")),
            self._begin(self._every(self._schedule_s, self._broker.run_schedules, "schedules")),
            self._begin(self._every(lambda: self._broker.look_s, self._broker.look_behind_marks, "marks")),
            self._begin(self._poll()),
        ]
        if not settings.notify:
            return
        if self._database.pooled and settings.listen_url is None:
            self._broker.log(
                "warn",
                "the database is reached through a pooler, which does not pass notifications on, so the broker polls; "
                "storage.listenUrl may name a direct way",
                poll_interval_ms=settings.effective_poll_ms,
            )
        else:
            self._tasks.append(self._begin(self._listen()))
        # The others learn at once that there is somebody to notify.
        await self._database.run(_NOTIFY, (self.channel,))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._database.own(task)
        return task

    async def stop(self) -> None:
        """Stop working; the session stays registered. What is under way is finished, not torn off: its outcome would be unknown."""
        self._stopping.set()
        self._poke.set()
        self._recovery_due.set()
        self._hurry.set()
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._tasks:
            await task
        self._tasks = []
        if self._announcing is not None:
            await self._announcing

    async def unregister(self) -> None:
        """Give up the broker's name."""
        await self._database.run(
            self._queries.unregister_broker, (Int4(self._ns), self._broker.broker_id, self.session)
        )

    async def _every(
        self,
        interval: Callable[[], float],
        work: Callable[[], Awaitable[None]],
        subject: str,
        early: asyncio.Event | None = None,
        *,
        apart: bool = False,
    ) -> None:
        """Do ``work`` every ``interval()`` seconds, or once ``early`` is set; ``apart``: not at the same time as other brokers.

        A failure is a problem until the next success; the next try is no longer away than the next poll, and a second at most.
        """
        retry_s = min(RETRY_S, self._settings.effective_poll_ms / 1000)
        pause = interval()
        while not await self.pause(pause * (0.9 + 0.1 * random.random()) if apart else pause, early):
            if early is not None:
                early.clear()
            try:
                await work()
            except (psycopg.Error, BunqueueError) as error:
                if self._database.reason is None:  # else the outage is known, and is the problem
                    self._broker.log(
                        "warn", "PostgreSQL maintenance failed", subject=subject, error=type(error).__name__
                    )
                    self._broker.problem(subject, diagnose(error).text)
                pause = retry_s
            else:
                self._broker.problem(subject, None)
                pause = interval()

    async def pause(self, seconds: float, early: asyncio.Event | None = None) -> bool:
        """Sleep, however long (event loops count in 32-bit milliseconds), or until ``early``; True when it is time to stop."""
        event = early if early is not None else self._stopping
        while seconds > 0 and not self._stopping.is_set():
            step = min(seconds, LONGEST_SLEEP_S)
            if await wait_for(event, step):
                break
            seconds -= step
        return self._stopping.is_set()

    def _schedule_s(self) -> float:
        """Seconds to the next look for due schedulers: when the first one known is due, after a poll interval at the latest."""
        longest = self._settings.effective_poll_ms
        due = self._broker.next_schedule_ms
        return (longest if due is None else max(1, min(longest, due))) / 1000

    def _check_s(self) -> float:
        """Seconds to the next look whether derived data is to be checked: at once, then regularly."""
        return CHECK_S if self._broker.checked else 0.0

    def expect_expiry(self, in_ms: int) -> None:
        """A lease was given that runs out in ``in_ms``: look then, if the next look would be later."""
        if in_ms >= self._settings.recovery_ms:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + (max(0, in_ms) + 1) / 1000
        if self._expiry is None or self._expiry.when() > when:
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry = loop.call_at(when, self._expired)

    def _expired(self) -> None:
        self._expiry = None
        self._recovery_due.set()

    # -- session ------------------------------------------------------------------------------------------------------

    async def _register(self) -> bool:
        rows = await self._database.run(
            self._queries.register_broker,
            (
                Int4(self._ns),
                self._broker.broker_id,
                self.session,
                Int8(self._settings.stale_after_ms),
                Int4(schema.VERSION),
            ),
        )
        return bool(rows)

    async def _beat(self) -> None:
        rows = await self._database.run(
            self._queries.beat,
            (Int4(self._ns), self._broker.broker_id, self.session, Int8(self._settings.stale_after_ms)),
        )
        if rows:
            self.brokers = rows[0][0]
            # A statement of the session before may have been answered after this one had begun.
            self._valid()
            return
        # The row is gone or another's: this process was silent for too long. Under a new session it may begin again, unless a
        # successor lives under its name.
        ended, self.session = self.session, uuid.uuid4()
        if await self._register():
            await self._database.run(self._queries.rename_session, (Int4(self._ns), ended, self.session))
            self._valid()
            self._broker.log("warn", "PostgreSQL broker session was lost and begun anew", broker=self._broker.broker_id)
        else:
            self.fenced()

    def _valid(self) -> None:
        """This session is the registered one."""
        if self._fenced:
            self._fenced = False
            self._broker.problem("session", None)

    def fenced(self) -> None:
        """This session is not the registered one any more."""
        if not self._fenced:
            self._fenced = True
            self._broker.problem("session", f'broker session for "{self._broker.broker_id}" has been fenced')

    # -- recovery and maintenance -------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Recover leases that have run out, and find out when to look again."""
        while await self._broker.recover():
            pass
        rows = await self._database.run(self._queries.next_expiry, (Int4(self._ns),))
        self._next_expiry_ms = rows[0][0]

    def _recovery_s(self) -> float:
        """Seconds to the next look for expired leases: when the first one known runs out, after a scan interval at the latest."""
        longest = self._settings.recovery_ms
        if self._next_expiry_ms is None:
            return longest / 1000
        return max(MIN_RECOVERY_MS, min(longest, self._next_expiry_ms + 1)) / 1000

    async def maintain(self) -> None:
        await self._broker.forget_silent_workers()
        crowded, self._crowded = self._crowded, set()
        for queue_id in crowded:
            await self._broker.trim_dead_letters(queue_id)
        pruned = PROOFS_PRUNED
        while pruned == PROOFS_PRUNED and not self._stopping.is_set():
            rows = await self._database.run(
                self._queries.prune_proofs,
                (Int4(self._ns), Int8(self._settings.max_completed_jobs), Int8(PROOFS_PRUNED)),
            )
            pruned = rows[0][0]

    async def _retain(self) -> None:
        while await self._broker.maintain_dead_letters():
            pass

    async def _prune_events(self) -> None:
        # Before events may go, outcomes among them have to be counted.
        if not await self._broker.fold_metrics():
            return
        rows = await self._database.run(
            self._queries.prune_events, (Int4(self._ns), Int8(self._pruned_to), Int8(self._settings.max_queue_events))
        )
        if rows and rows[0][0] is not None:
            self._pruned_to = rows[0][0]

    def crowded(self, queue_ids: set[int]) -> None:
        """Dead letters of these queues may exceed their bound."""
        self._crowded |= queue_ids

    @property
    def reaches_others(self) -> bool:
        """Whether there are other brokers to notify."""
        return self.brokers > 1 and self._settings.notify and not self._stopping.is_set()

    # -- wake-ups -----------------------------------------------------------------------------------------------------

    def announce(self, *, hurry: bool = True) -> None:
        """Something was committed that other brokers may want: notify them, once for many; without ``hurry`` a little later."""
        self._broker.feed.poke_share()
        if not self.reaches_others:
            return
        if hurry:
            self._hurry.set()
        if self._announcing is not None and not self._announcing.done():
            self._announce_again = True
            return
        self._announcing = self._begin(self._notify())

    async def _notify(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._hurry.is_set():
                await self.pause(self._notified_at + UNHURRIED_S - loop.time(), self._hurry)
            self._hurry.clear()
            self._announce_again = False
            self._notified_at = loop.time()
            # A lost notification is made good by the others' polling.
            with contextlib.suppress(psycopg.Error, BunqueueError):
                await self._database.run(_NOTIFY, (self.channel,))
            await self.pause(ANNOUNCE_S)
            if not self._announce_again or self._stopping.is_set():
                return

    def reconnected(self) -> None:
        """The database is back: look for whatever was missed."""
        self._poke.set()

    async def _listen(self) -> None:
        """Hold the listening connection, and replace it when it breaks. Without it, polling makes do."""
        told = False
        while not self._stopping.is_set():
            try:
                connection = await self._database.connect(listening=True)
                try:
                    await connection.execute(
                        sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)).as_bytes(connection)
                    )
                    told = False
                    self._poke.set()
                    await self._hear(connection)
                finally:
                    await connection.close()
            except (psycopg.Error, OSError, BunqueueError) as error:
                if not told:
                    told = True
                    setting = "storage.url" if self._settings.listen_url is None else "storage.listenUrl"
                    self._broker.log(
                        "warn",
                        "the listening connection failed; until it is back the broker polls",
                        setting=setting,
                        cause=diagnose(error).cause,
                    )
                    self._database.suspect()
            else:
                if not self._stopping.is_set():
                    # It broke: the first sign of an outage while there is nothing to do.
                    self._database.suspect()
            await self.pause(LISTEN_RETRY_S)

    async def _hear(self, connection: Connection) -> None:
        """Take notifications until the connection breaks or it is time to stop."""
        loop = asyncio.get_running_loop()
        pgconn = connection.pgconn
        descriptor = pgconn.socket  # a broken connection does not tell it any more
        over = asyncio.Event()

        def end() -> None:
            # At once: libpq has closed a broken connection's socket, whose number may be another's in a moment.
            if not over.is_set():
                over.set()
                loop.remove_reader(descriptor)

        def readable() -> None:
            try:
                pgconn.consume_input()
                while (notification := pgconn.notifies()) is not None:
                    if notification.extra:
                        if self._broker.notices.heard(notification.extra):
                            self.brokers = max(self.brokers, 2)
                    elif notification.be_pid not in self._database.own_backends:
                        self.brokers = max(self.brokers, 2)
                        self._poke.set()
            except psycopg.Error:
                end()

        loop.add_reader(descriptor, readable)
        try:
            waits = [loop.create_task(event.wait()) for event in (over, self._stopping)]
            # uvloop tells nobody of a connection that was reset: only a read finds out.
            while not (await asyncio.wait(waits, timeout=LISTEN_LOOK_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                readable()
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)
        finally:
            end()

    async def _poll(self) -> None:
        """Look for jobs that parked pulls want and for ends that somebody waits for: when notified, and at every poll interval."""
        interval = self._settings.effective_poll_ms / 1000
        while not self._stopping.is_set():
            await self.pause(interval, self._poke)
            self._poke.clear()
            # While the database is away its return is looked for elsewhere.
            with contextlib.suppress(psycopg.Error, BunqueueError):
                await self._look()

    async def _look(self) -> None:
        broker = self._broker
        waited = [desk for desk in broker.desks.values() if desk.parked]
        if waited:
            floors = [-(2**63) if (floor := broker.marks.floor(desk.queue)) is None else floor for desk in waited]
            rows = await self._database.run(
                self._queries.probe,
                (Int4(self._ns), arrays.texts([desk.queue for desk in waited]), arrays.int8s(floors)),
            )
            for _, name in rows:
                broker.wake(name, 1_000_000)
        if broker.waits:
            await broker.look_at_waits()
        broker.look_at_webhooks()
        broker.feed.poke()


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait until ``event`` is set, at most ``seconds``; gives whether it is."""
    if event.is_set():
        return True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return event.is_set()
