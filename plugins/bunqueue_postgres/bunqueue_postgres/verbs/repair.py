"""Derived data held to what it derives from: what had drifted is mended, what means nothing any more is removed.

Jobs' own rows are the truth. Derived from them are what a queue knows of its jobs (levels, features), who waits for whom, when an
ended job is due, and how many events a row of the outbox holds. Every statement keeps them right in its own transaction; this looks
after what got wrong all the same (a restored table, a statement by hand), because some of it would keep jobs back for ever: a claim
does not see a job whose level its queue does not know, a job with an edge that nobody will meet never starts, and an ended job that
is not due neither goes nor is retried.

The check goes through the tables in bounded steps beside the other work, once at the start of each broker and then every
:data:`CHECK_MS` by whichever broker comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.types.numeric import Int2, Int4, Int8

from bunqueue_core.model.errors import BunqueueError
from bunqueue_core.model.job import Location
from bunqueue_postgres import arrays, transitions
from bunqueue_postgres.changes import Changes
from bunqueue_postgres.database import Connection
from bunqueue_postgres.keys import to_key
from bunqueue_postgres.records import due_of, read_dlq_config, read_stall_config, unpack
from bunqueue_postgres.verbs.base import BrokerBase
from bunqueue_postgres.verbs.deadletters import AGAIN_MS, silence_ms

#: Time between two checks of one namespace, ms.
CHECK_MS: Final = 600_000

#: Rows that one statement looks at.
PAGE: Final = 2_000

#: Before the first of any.
_FIRST: Final = -(2**63)


class Repairing(BrokerBase):
    """The check of derived data."""

    blocked_jobs = 0  #: jobs that wait for one that cannot complete by itself, as of the last look
    checked = False  #: whether this broker has tried

    async def check(self) -> None:
        """Check everything if this broker has not yet, or if it is time."""
        try:
            pause = CHECK_MS if self.checked else 0
            if await self.run(self.queries.claim_check, (Int4(self.ns), Int8(pause))):
                await self.mend()
        except (psycopg.Error, BunqueueError) as error:
            # No reason to be unready: nothing waits for it, and it comes again.
            self.log("warn", "PostgreSQL derived data could not be checked", error=type(error).__name__)
        finally:
            self.checked = True

    async def mend(self) -> dict[str, int]:
        """Mend what has drifted, telling the log, and remove what means nothing. Gives how much of each kind."""
        mended = {
            "queues": await self._mend_queues(),
            "edges": await self._mend_edges(),
            "gates": await self._mend_gates(),
            "due": await self._mend_due(),
            "events": await self._mend_events(),
        }
        for what, count in mended.items():
            if count:
                self.log("warn", "PostgreSQL derived data had drifted and was mended", what=what, count=count)
        await self._trim_dead_letters()
        mended["keys"] = await self._sweep_keys()
        mended["groups"] = await self._sweep(self.queries.sweep_groups)
        mended["remains"] = await self._sweep(self.queries.sweep_remains)
        rows = await self.run(self.queries.blocked_count, (Int4(self.ns),))
        self.blocked_jobs = rows[0][0]
        return mended

    async def _mend_queues(self) -> int:
        names = {name for (name,) in await self.run(self.queries.mend_queues, (Int4(self.ns),))}
        for id, name, config, known in await self.run(self.queries.silences, (Int4(self.ns),)):
            silence = None if config is None else silence_ms(read_stall_config(config))
            if silence != known:
                names.add(name)
                await self.run(
                    self.queries.mend_silence, (Int4(id), config, None if silence is None else Int8(silence))
                )
        for name in names:
            self.marks.forget(name)
            self.wake(name, 1_000_000)
        return len(names)

    async def _mend_edges(self) -> int:
        mended: int = 0
        dependency = job = ""
        while True:
            rows = await self.run(self.queries.mend_edges, (Int4(self.ns), dependency, job, Int4(PAGE)))
            if not rows:
                return mended
            dependency, job, _, met, told = rows[0]
            mended += met + told

    # -- gates --------------------------------------------------------------------------------------------------------

    async def _mend_gates(self) -> int:
        """Give gated jobs the edges that they say they have, and start those that wait for nothing."""
        mended = 0
        for (queue_id,) in await self.run(self.queries.queue_numbers, (Int4(self.ns),)):
            created_at, id = _FIRST, ""
            while True:
                rows = await self.run(
                    self.queries.gated, (Int4(self.ns), Int4(queue_id), Int8(created_at), Int4(PAGE), id)
                )
                if not rows:
                    break
                _, created_at, id = rows[-1][:3]
                odd = [row[2] for row in rows if _is_odd(*row[3:])]
                if odd:
                    mended += await self._mend_gated(odd)
        return mended

    async def _mend_gated(self, keys: Sequence[str]) -> int:
        async def body(connection: Connection) -> tuple[int, Changes]:
            ns = Int4(self.ns)
            now, records = await self.lock(connection, keys)
            changes = Changes(now, self.codec)
            mended = 0
            for record in records.values():
                job = record.job
                if job.location != Location.GATED:
                    continue
                cursor = connection.cursor(binary=True)
                await cursor.execute(self.queries.edges_of, (ns, record.key))
                edges: dict[str, bool] = dict(await cursor.fetchall())
                wanted = {to_key(dependency) for dependency in job.depends_on}
                missing = sorted(wanted - edges.keys())
                if missing:
                    edges |= await self._add_missing(connection, record.key, missing)
                for dependency in edges.keys() - wanted:
                    changes.drop_edges(record.key, dependency)
                if missing or edges.keys() - wanted:
                    mended += 1
                if all(edges[dependency] for dependency in wanted):
                    mended += not missing
                    changes.add(record, transitions.gate_opened(job, now))
            await changes.write(connection, self.queries, self.ns)
            return mended, changes

        mended, changes = await self.commit(body)
        self.written(changes)
        return mended

    async def _add_missing(self, connection: Connection, key: str, missing: Sequence[str]) -> dict[str, bool]:
        """Edges from a job to what it depends on, as they should be."""
        ns, cursor = Int4(self.ns), connection.cursor(binary=True)
        _, records = await self.lock(connection, missing)
        await cursor.execute(self.queries.proved, (ns, arrays.texts(missing)))
        completed = {id for id, _ in await cursor.fetchall() if id is not None}
        completed |= {other for other, record in records.items() if record.was == Location.COMPLETED}
        edges = {dependency: dependency in completed for dependency in missing}
        await cursor.execute(
            self.queries.add_edges,
            (ns, arrays.texts(missing), arrays.texts([key] * len(missing)), arrays.bools(list(edges.values()))),
        )
        return edges

    # -- ended jobs ---------------------------------------------------------------------------------------------------

    async def _mend_due(self) -> int:
        """Have ended jobs be due when they say."""
        mended = 0
        for (queue_id,) in await self.run(self.queries.queue_numbers, (Int4(self.ns),)):
            status, finished_at, id = 0, _FIRST, ""
            while True:
                rows = await self.run(
                    self.queries.due_times, (Int4(queue_id), Int2(status), Int8(finished_at), id, Int4(PAGE))
                )
                if not rows:
                    break
                status, finished_at, id, now = rows[0][:4]
                odd = [row[4] for row in rows if row[4] is not None and self._is_late_or_early(now, *row[5:])]
                if odd:
                    mended += await self._mend_due_of(odd)
        return mended

    def _is_late_or_early(
        self,
        now: int,
        status: int,
        finished_at: int,
        due_at: int | None,
        options: bytes | None,
        dead: bytes | None,
    ) -> bool:
        """Whether an ended job is due at another time than it says."""
        truth = due_of(status, finished_at, self.codec.read(options), dead)
        if truth is None or due_at is None:
            return truth != due_at
        # One that is overdue, but needed, is put off for a moment again and again.
        return due_at != truth and not truth <= due_at <= max(truth, now + AGAIN_MS)

    async def _mend_due_of(self, keys: Sequence[str]) -> int:
        async def body(connection: Connection) -> int:
            _, records = await self.lock(connection, keys)
            due = {
                record.key: due_of(record.was, record.finished_at, record.job.options, record.dead)
                for record in records.values()
                if record.was in (Location.COMPLETED, Location.DEAD)
            }
            cursor = connection.cursor(binary=True)
            await cursor.execute(
                self.queries.mend_due, (Int4(self.ns), arrays.texts(list(due)), arrays.int8s(list(due.values())))
            )
            row = await cursor.fetchone()
            assert row is not None
            return int(row[0])

        return await self.commit(body)

    async def _trim_dead_letters(self) -> None:
        """Remove dead letters beyond their queues' bounds, which a broker that died had left to its maintenance."""
        for id, config in await self.run(self.queries.bounds, (Int4(self.ns),)):
            await self.run(self.queries.dead_surplus, (Int4(id), Int8(read_dlq_config(config).max_entries)))

    # -- the outbox, and what is left behind --------------------------------------------------------------------------

    async def _mend_events(self) -> int:
        mended: int = 0
        last = _FIRST
        while True:
            rows = await self.run(self.queries.mend_events, (Int4(self.ns), Int8(last), Int4(5 * PAGE)))
            if not rows:
                return mended
            last, wrong = rows[0]
            mended += wrong

    async def _sweep_keys(self) -> int:
        removed: int = 0
        queue_id, key = -(2**31), ""
        while True:
            rows = await self.run(self.queries.sweep_keys, (Int4(self.ns), Int4(queue_id), key, Int4(PAGE)))
            if not rows:
                return removed
            queue_id, key, gone = rows[0]
            removed += gone

    async def _sweep(self, query: bytes) -> int:
        removed: int = 0
        while True:
            rows = await self.run(query, (Int4(self.ns), Int4(PAGE)))
            removed += rows[0][0]
            if rows[0][0] < PAGE:
                return removed


def _is_odd(extra: bytes | None, dependencies: Sequence[str], unmet: int) -> bool:
    """Whether a gated job has other edges than it says, or none that keeps it."""
    wanted: Any = () if extra is None else unpack(extra)[2]
    return not unmet or {to_key(dependency) for dependency in wanted} != set(dependencies)


__all__ = ["CHECK_MS", "Repairing"]
