"""Decisions about locked jobs, collected and written back: one statement a kind, whatever the number of jobs."""

from __future__ import annotations

from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.types.numeric import Int4, Int8

from bunqueue_core.model.job import Location
from bunqueue_core.model.payload import Packed
from bunqueue_core.model.requests import DlqConfig
from bunqueue_postgres import arrays
from bunqueue_postgres.records import OptionsCodec, Record, pack, pack_dead, pack_past, pack_progress, unpack
from bunqueue_postgres.sqlfiles import Queries
from bunqueue_postgres.transitions import Outcome

#: Up to this bound of a queue's dead letters the surplus is removed with the entry that makes it; counting further back costs
#: too much for every failure, and is left to maintenance.
INLINE_SURPLUS: Final = 1_000


class Changes:
    """What one transaction writes. Fill it with the jobs' rows locked, then :meth:`write`."""

    def __init__(self, now: int, codec: OptionsCodec) -> None:
        self._codec = codec
        self._due_at: list[int | None] = []
        self.now = now  #: epoch ms, database clock
        self.ready: dict[str, int] = {}  #: jobs by queue that can be claimed at once
        self.due: dict[str, int] = {}  #: by queue, the shortest delay in ms of those that can be later
        self.ended: list[str] = []  #: ids of jobs that failed for good
        self.crowded: set[int] = set()  #: queues whose dead letters maintenance has to trim
        self._rewritten: list[Record] = []
        self._dead: list[bytes | None] = []
        self._erased: list[str] = []
        self._bounds: dict[int, int] = {}
        # Events of one job keep their order: the first of each job go before the second of each.
        self._notices: list[dict[tuple[int, str], tuple[list[str], list[dict[str, Any] | None]]]] = []

    def add(self, record: Record, outcome: Outcome, dlq: DlqConfig | None = None) -> None:
        """Write what ``outcome`` says of the record's job."""
        job = record.job
        now = self.now
        for rank, notice in enumerate(outcome.notices):
            while len(self._notices) <= rank:
                self._notices.append({})
            keys, extras = self._notices[rank].setdefault((record.queue_id, notice.type), ([], []))
            keys.append(record.key)
            extras.append(notice.extra)
        if outcome.removed:
            self._erased.append(record.key)
            self.ended.append(job.id)
            return
        self._rewritten.append(record)
        if outcome.entry is not None:
            job.location = Location.DEAD
            record.finished_at = outcome.entry.entered_at
            self._dead.append(pack_dead(outcome.entry))
            times = [at for at in (outcome.entry.expires_at, outcome.entry.next_retry_at) if at is not None]
            self._due_at.append(min(times, default=None))
            self.ended.append(job.id)
            if dlq is not None:
                if dlq.max_entries <= INLINE_SURPLUS:
                    self._bounds[record.queue_id] = dlq.max_entries
                else:
                    self.crowded.add(record.queue_id)
            return
        job.location = outcome.location
        record.finished_at = None
        self._dead.append(None)
        self._due_at.append(None)
        if outcome.location != Location.READY:
            return
        wait = job.run_at - now
        if wait <= 0:
            self.ready[job.queue] = self.ready.get(job.queue, 0) + 1
        elif wait < self.due.get(job.queue, wait + 1):
            self.due[job.queue] = wait

    def erase(self, record: Record) -> None:
        """Delete the record's job, silently."""
        self._erased.append(record.key)
        self.ended.append(record.job.id)

    async def write(self, connection: AsyncConnection[Any], queries: Queries, ns: int) -> None:
        """Write everything in the connection's transaction, in one round trip."""
        async with connection.pipeline():
            rewritten = self._rewritten
            if rewritten:
                jobs = [record.job for record in rewritten]
                await connection.execute(
                    queries.rewrite,
                    (
                        Int4(ns),
                        arrays.texts([record.key for record in rewritten]),
                        arrays.int2s([job.location for job in jobs]),
                        arrays.int8s([job.run_at for job in jobs]),
                        arrays.int4s([job.attempts for job in jobs]),
                        arrays.int4s([job.stall_count for job in jobs]),
                        arrays.int8s([job.started_at for job in jobs]),
                        arrays.int8s([record.finished_at for record in rewritten]),
                        arrays.int8s([job.last_heartbeat for job in jobs]),
                        arrays.blobs([pack_past(job) for job in jobs]),
                        arrays.blobs(self._dead),
                        arrays.int8s(self._due_at),
                        arrays.int4s([job.priority for job in jobs]),
                        arrays.bools([job.options.lifo for job in jobs]),
                        arrays.blobs([self._codec.pack(job.options) for job in jobs]),
                        arrays.blobs([pack_progress(job) for job in jobs]),
                        arrays.int2s([record.flags for record in rewritten]),
                    ),
                )
            if self._erased:
                await connection.execute(queries.erase, (Int4(ns), arrays.texts(self._erased)))
            for queue_id, bound in self._bounds.items():
                await connection.execute(queries.dead_surplus, (Int4(queue_id), Int8(bound)))
            if self._notices:
                await connection.execute(queries.journal, self._journal(ns))

    def _journal(self, ns: int) -> tuple[Any, ...]:
        queue_ids: list[int] = []
        types: list[str] = []
        lows: list[int] = []
        highs: list[int] = []
        extras: list[bytes | None] = []
        ids: list[str] = []
        for rank in self._notices:
            for (queue_id, type), (keys, extra) in rank.items():
                queue_ids.append(queue_id)
                types.append(type)
                lows.append(len(ids) + 1)
                ids += keys
                highs.append(len(ids))
                extras.append(pack_extras(extra))
        return (
            Int4(ns),
            Int8(self.now),
            arrays.int4s(queue_ids),
            arrays.texts(types),
            arrays.int4s(lows),
            arrays.int4s(highs),
            arrays.blobs(extras),
            arrays.texts(ids),
        )


def pack_extras(extras: list[dict[str, Any] | None]) -> bytes | None:
    """Fields of events, aligned with their ids; payloads stay the bytes that they are."""
    if not any(extras):
        return None
    return pack([None if extra is None else {k: _mark(v) for k, v in extra.items()} for extra in extras])


def _mark(value: Any) -> Any:
    """A payload is told from a plain value by being wrapped in a list of one binary."""
    return [bytes(value)] if isinstance(value, Packed) else value


def read_extras(blob: bytes | None, count: int) -> list[dict[str, Any] | None]:
    """Undo :func:`pack_extras`."""
    if blob is None:
        return [None] * count
    return [
        None
        if extra is None
        else {
            k: Packed(v[0]) if isinstance(v, list) and len(v) == 1 and isinstance(v[0], bytes) else v
            for k, v in extra.items()
        }
        for extra in unpack(blob)
    ]
