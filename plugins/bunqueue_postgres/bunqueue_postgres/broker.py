"""``PostgresBroker``: the verbs of the queue on PostgreSQL, which is the authority for all of them.

The broker keeps no copy of the queue. It gathers concurrent calls into shared statements, parks pulls that found nothing, and
remembers hints (queue numbers, low-water marks, which connection holds which job); whatever it forgets costs a look-up, never
correctness. Leases, time to live, back-off and scans run on the database's clock.

A broker belongs to the event loop in which it was started: verbs are called in that loop's thread, and answers are settled there.
:class:`~bunqueue_postgres.threads.ThreadedBroker` puts a loop of its own around one for callers without a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
from psycopg.types.numeric import Int4

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import (
    BunqueueError,
)
from bunqueue_core.model.requests import (
    Event,
    Health,
)
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_postgres import schema, transitions
from bunqueue_postgres.diagnosis import refusal
from bunqueue_postgres.records import (
    Record,
)
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.verbs.base import STEP_ROWS
from bunqueue_postgres.verbs.consume import Consuming
from bunqueue_postgres.verbs.control import Controlling
from bunqueue_postgres.verbs.deadletters import DeadLettering
from bunqueue_postgres.verbs.flows import Flowing
from bunqueue_postgres.verbs.inspect import Inspecting
from bunqueue_postgres.verbs.repair import Repairing
from bunqueue_postgres.verbs.schedules import Scheduling
from bunqueue_postgres.verbs.webhooks import Hooking
from bunqueue_postgres.verbs.workers import Registering
from bunqueue_postgres.vitals import Vitals

#: Seconds between looks at the jobs that an orderly stop waits for.
DRAIN_LOOK_S: Final = 0.1

#: Statistics count the jobs once in so many seconds while somebody watches, which is for so many seconds after they were last asked
#: for; then less often, so that whoever comes by every minute (a health check, a scrape) finds counts that are not old. They do for
#: one part in so many of the time at most.
COUNT_S: Final = 0.5
WATCHED_S: Final = 2.0
COUNT_SELDOM_S: Final = 5.0
COUNT_FOR_S: Final = 60.0
COUNT_SHARE: Final = 20

#: Names of the counts, in the order of ``totals.sql``.
COUNTED: Final = ("waiting", "prioritized", "paused", "delayed", "active", "waitingChildren", "completed", "dlq")


class PostgresBroker(
    Consuming, Flowing, Scheduling, Inspecting, Controlling, DeadLettering, Hooking, Registering, Repairing
):
    """See the module's head.

    Args:
        settings: the driver's settings.
        context: what the core hands to a driver.
    """

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        super().__init__(settings, context)
        self._held_now = 0
        self._totals: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self._counting = False
        self._counts_wanted_at = float("-inf")  #: on the loop's clock
        self._watched = asyncio.Event()
        self.vitals = Vitals(self)

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> Answer[None]:
        return self.answer(self._start(), own=True)

    async def _start(self) -> None:
        try:
            connection = await self.database.connect()
            try:
                await schema.initialise(connection, self.log)
                cursor = await connection.execute(self.queries.namespace, (self.settings.namespace,))
                row = await cursor.fetchone()
                assert row is not None
                self.ns = int(row[0])
            finally:
                await connection.close()
            await self.database.open()
            await self.coordinator.start()
        except BaseException as error:
            await self.database.close(5.0)
            if isinstance(error, psycopg.Error | OSError):
                raise refusal(error) from error
            raise
        self.started = True
        self._want_counts()

    def close(self, deadline_s: float = 30.0) -> Answer[None]:
        if self._closed is None:
            self.closing = True
            self._watched.set()
            # Now, not when the task begins: a claim that begins in between is refused, and would refuse the pulls it is for.
            for desk in list(self._desks.values()):
                desk.close()
            self._closed = self.answer(self._close(deadline_s), own=True)
        return self._closed

    async def _close(self, deadline_s: float) -> None:
        for answers in self.waits.values():
            for answer in answers:
                answer.settle((False, None))
        self.waits.clear()
        if self.started:
            try:
                async with asyncio.timeout(deadline_s):
                    await self.coordinator.stop()
                    self.write_beats()
                    # What was admitted is finished; then nothing of this session can be claimed any more, and its leases go back.
                    while others := [task for task in self.tasks if task is not asyncio.current_task()]:
                        await asyncio.wait(others)
                    await self._hand_back_all()
                    await self.coordinator.unregister()
            except (TimeoutError, psycopg.Error, BunqueueError) as error:
                # The leases end by themselves; what was accepted is committed.
                self.log("warn", "PostgreSQL broker closed without handing back its jobs", error=type(error).__name__)
        await self.database.close(5.0)

    async def _hand_back_all(self) -> None:
        """Put every job that is leased through this session back, uncharged."""
        session = self.coordinator.session

        def decide(record: Record, _: int) -> transitions.Outcome | None:
            return transitions.given_back(record.job) if record.session == session else None

        while True:
            rows = await self.database.run(self.queries.held, (Int4(self.ns), session, Int4(STEP_ROWS)))
            if not rows:
                return
            await self.decide([key for (key,) in rows], decide)

    def health(self) -> Health:
        problems = sorted(self._since.values(), key=lambda problem: problem[1])
        if not self.started or self.closing:
            return Health(False, True, "the broker is closed" if self.closing else "the broker is not started")
        if problems:
            text, since = problems[0]
            return Health(False, True, text, since=since)
        return Health(False, problem="draining") if self.draining else Health(True)

    def drain(self) -> None:
        if not self.draining:
            self.draining = True
            # Until the first look the number of deliveries without a connection is not known; one is enough to wait for it.
            self._held_now = max(len(self.held), int(self.detached))
            for desk in list(self._desks.values()):
                desk.drain()
            self.spawn(self._watch_held(), own=True)

    async def _watch_held(self) -> None:
        """Keep :attr:`active_jobs` true while an orderly stop waits for it."""
        while not self.closing:
            with contextlib.suppress(psycopg.Error, BunqueueError):
                rows = await self.run(self.queries.held_count, (Int4(self.ns), self.coordinator.session))
                self._held_now = rows[0][0]
            await asyncio.sleep(DRAIN_LOOK_S)

    @property
    def active_jobs(self) -> int:
        return self._held_now if self.draining else len(self.held)

    def statistics(self) -> dict[str, int | float]:
        self._want_counts()
        totals = self.totals
        return {
            **self._totals,
            "totalPushed": totals["pushed"],
            "totalPulled": totals["pulled"],
            "totalCompleted": self.vitals.outcomes("completed"),
            "totalFailed": self.vitals.outcomes("failed"),
            **self.vitals.numbers(),
            "parkedPulls": sum(len(desk.parked) for desk in self._desks.values()),
            "connectedJobs": len(self.held),
            "liveBrokers": self.coordinator.brokers,
            "blockedJobs": self.blocked_jobs,
        }

    def _want_counts(self) -> None:
        """Somebody looks at the counts: keep them fresh for a while."""
        self._counts_wanted_at = asyncio.get_running_loop().time()
        self._watched.set()
        if not self._counting and self.started and not self.closing:
            self._counting = True
            self.spawn(self._keep_counting(), own=True)

    async def _keep_counting(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self.closing and (began := loop.time()) < self._counts_wanted_at + COUNT_FOR_S:
                with contextlib.suppress(psycopg.Error, BunqueueError):  # health says it; the last count stands
                    rows = await self.run(self.queries.totals, (Int4(self.ns),))
                    self._totals = dict(zip(COUNTED, rows[0], strict=True))
                if not self.closing:
                    self._watched.clear()
                await self.coordinator.pause(max(COUNT_S, COUNT_SHARE * (loop.time() - began)))
                if loop.time() >= self._counts_wanted_at + WATCHED_S:
                    await self.coordinator.pause(COUNT_SELDOM_S - COUNT_S, self._watched)
        finally:
            self._counting = False

    # -- events -------------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[Event], None], queue: str | None = None) -> Callable[[], None]:
        return self.feed.subscribe(listener, queue)

    def heard(self) -> Answer[None]:
        return self.feed.heard()

    def subscribe_dashboard(self, listener: Callable[[str, Mapping[str, Any]], None]) -> Callable[[], None]:
        return self.notices.subscribe(listener)
