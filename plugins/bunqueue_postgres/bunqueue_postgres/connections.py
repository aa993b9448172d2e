"""The broker's connections: a pool, and before it those that were used a moment ago, the latest first.

A pool gives its connections out in turn. Each is then used seldom, and the database's process behind it finds nothing of what it
needs in the processor's caches: statements cost the database a tenth more. Connections are therefore kept for a moment before they
go back to the pool, which opens and closes them, knows how old they may become, and lets others wait when all are in use.
"""

from __future__ import annotations

import asyncio
from typing import Final

from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from bunqueue_postgres.wire import WireConnection

#: Seconds from taking a connection out of the pool until it goes back at the next opportunity: nothing beside the pool's own times.
KEPT_S: Final = 1.0


class Connections:
    """Belongs to the event loop in which the pool was opened.

    Args:
        pool: an open pool, of which nobody else takes connections for long.
    """

    def __init__(self, pool: AsyncConnectionPool[WireConnection]) -> None:
        self.pool = pool
        self._loop = asyncio.get_running_loop()
        self._kept: list[WireConnection] = []  #: the one used last at the end
        self._asking = 0  #: how many wait for the pool to give them one
        self._timer: asyncio.TimerHandle | None = None
        self._returning: set[asyncio.Task[None]] = set()
        self._closed = False

    async def take(self, timeout_s: float | None = None) -> WireConnection:
        """A connection that nobody else uses, until :meth:`give`.

        Args:
            timeout_s: seconds to wait for one; by default the pool's.

        Raises:
            psycopg_pool.PoolTimeout: none became free in time.
            psycopg_pool.PoolClosed: the pool is closed.
        """
        if self._kept:
            return self._kept.pop()
        self._asking += 1
        try:
            connection = await self.pool.getconn(timeout_s)
        finally:
            self._asking -= 1
        connection.taken_at = self._loop.time()
        return connection

    async def give(self, connection: WireConnection, sound: bool) -> None:
        """Take ``connection`` back; ``sound``: what it was used for went well."""
        if (
            sound
            and not self._asking
            and not self._closed
            and connection.pgconn.transaction_status == TransactionStatus.IDLE
            and self._loop.time() < connection.taken_at + KEPT_S
        ):
            self._kept.append(connection)
            if self._timer is None:
                self._timer = self._loop.call_later(KEPT_S, self._return_old)
        else:
            await self._return([connection])

    async def return_all(self) -> None:
        """Give what is kept back to the pool, for a look at all that nobody uses."""
        kept, self._kept = self._kept, []
        await self._return(kept)

    async def close(self, timeout_s: float) -> None:
        """Close the pool, with all connections that nobody uses now, and the others as they come back.

        Args:
            timeout_s: seconds for what the pool has under way.
        """
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self.return_all()
        if self._returning:
            await asyncio.wait(self._returning)
        await self.pool.close(timeout_s)

    def stats(self) -> dict[str, int]:
        """The pool's own, where what is kept counts as available."""
        stats = self.pool.get_stats()
        stats["pool_available"] = stats.get("pool_available", 0) + len(self._kept)
        return stats

    def _return_old(self) -> None:
        since = self._loop.time() - KEPT_S
        old = [connection for connection in self._kept if connection.taken_at <= since]
        if old:
            self._kept = [connection for connection in self._kept if connection.taken_at > since]
            self._begin_return(old)
        self._timer = self._loop.call_later(KEPT_S, self._return_old) if self._kept else None

    def _begin_return(self, connections: list[WireConnection]) -> asyncio.Task[None]:
        task = self._loop.create_task(self._put(connections))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)
        return task

    async def _return(self, connections: list[WireConnection]) -> None:
        """Return connections, even if the caller is cancelled: the pool would go on counting what it did not get back."""
        if connections:
            await asyncio.shield(self._begin_return(connections))

    async def _put(self, connections: list[WireConnection]) -> None:
        for connection in connections:
            await self.pool.putconn(connection)
