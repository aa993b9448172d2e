"""How the database is, for statistics: what keeps dead rows from being removed, how many there are, and how busy the pool is.

Looked at only while somebody asks for statistics, and for a small part of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.types.numeric import Int4

from bunqueue_core.model.errors import BunqueueError

if TYPE_CHECKING:
    from bunqueue_postgres.broker import PostgresBroker

#: Seconds between looks, but for one part in so many of the time at most; and for how many seconds after somebody last asked.
LOOK_S: Final = 1.0
LOOK_SHARE: Final = 50
LOOK_FOR_S: Final = 60.0

#: Age of a transaction, in seconds, from which on the log says that it keeps dead rows from being removed.
LONG_TRANSACTION_S: Final = 600.0

#: Names of what ``vitals.sql`` gives, in its order.
LOOKED_AT: Final = (
    "databaseOldestTransactionSeconds",
    "databaseOldestSnapshotTransactions",
    "databaseAgeTransactions",
    "databaseDeadJobRows",
    "databaseDeadEventRows",
    "databaseJobsVacuumedAtSeconds",
    "databaseEventsVacuumedAtSeconds",
    "databaseEventRows",
    "schedules",
    "webhooks",
    "webhooksEnabled",
)


class Vitals:
    """Belongs to the broker's event loop."""

    def __init__(self, broker: PostgresBroker) -> None:
        self._broker = broker
        self._found: dict[str, int | float] = dict.fromkeys(LOOKED_AT, 0)
        self._wanted_until = 0.0
        self._looking = False
        self._told = False
        self._elsewhere = {"completed": 0, "failed": 0}  #: outcomes of the namespace beyond this broker's own
        self._shown = {"completed": 0, "failed": 0}

    def numbers(self) -> dict[str, int | float]:
        """The figures of the last look, and the pool's."""
        self._want()
        return {**self._found, **self._broker.database.figures()}

    def outcomes(self, name: str) -> int:
        """Jobs ``completed`` or ``failed`` in the namespace's life, the same at every broker within a few seconds.

        Outcomes are counted every few seconds, once for all brokers; this broker's own later ones are added. It never goes back.
        """
        count = max(self._shown[name], self._elsewhere[name] + self._broker.totals[name])
        self._shown[name] = count
        return count

    def _want(self) -> None:
        broker = self._broker
        self._wanted_until = asyncio.get_running_loop().time() + LOOK_FOR_S
        if not self._looking and broker.started and not broker.closing:
            self._looking = True
            broker.spawn(self._look_on(), own=True)

    async def _look_on(self) -> None:
        loop, broker = asyncio.get_running_loop(), self._broker
        try:
            while not broker.closing and loop.time() < self._wanted_until:
                began = loop.time()
                with contextlib.suppress(psycopg.Error, BunqueueError):  # health says it; the last figures stand
                    rows = await broker.run(broker.queries.vitals, (Int4(broker.ns),))
                    self._found = dict(zip(LOOKED_AT, rows[0], strict=True))
                    self._warn()
                    ((completed, failed),) = await broker.run(broker.queries.lifetime, (Int4(broker.ns),))
                    # Without own outcomes that are not counted yet: too few for a moment, never too many.
                    own = broker.totals
                    self._elsewhere = {"completed": completed - own["completed"], "failed": failed - own["failed"]}
                await broker.coordinator.pause(max(LOOK_S, LOOK_SHARE * (loop.time() - began)))
        finally:
            self._looking = False

    def _warn(self) -> None:
        """Say once of each long transaction that it is there."""
        age_s = self._found["databaseOldestTransactionSeconds"]
        if age_s < LONG_TRANSACTION_S:
            self._told = False
        elif not self._told:
            self._told = True
            self._broker.log(
                "warn",
                "a transaction has been open for long; until it ends, dead rows stay and the database grows",
                seconds=round(age_s),
                dead_job_rows=self._found["databaseDeadJobRows"],
            )
