"""The registry of workers that brokers share: each keeps its own workers' rows, and everybody reads all of them.

Who is registered never influences what is delivered, so a row lost with the database's memory costs nothing: every sign of life
writes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from psycopg.types.numeric import Int4, Int8

from bunqueue_core.answer import Answer
from bunqueue_core.broker.workers import WorkerRecord
from bunqueue_core.model.errors import StorageUnavailable
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_postgres import arrays
from bunqueue_postgres.database import Connection
from bunqueue_postgres.gather import Call, Gatherer
from bunqueue_postgres.keys import to_key
from bunqueue_postgres.records import pack, unpack
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.sqlfiles import Queries
from bunqueue_postgres.verbs.base import BrokerBase

#: Silence, in ms, after which nobody counts a worker any more.
FORGOTTEN_MS: Final = 90_000

#: Silence, in ms, up to which a worker keeps schedules of its queues from being skipped.
ACTIVE_MS: Final = 30_000


class _Share(NamedTuple):
    """Rows to write and to remove."""

    records: Mapping[str, bytes]
    gone: Sequence[str]


class Registering(BrokerBase):
    """The verbs of the registry."""

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        super().__init__(settings, context)
        self._shares: Gatherer[_Share] = Gatherer(self._flush_shares, self.spawn)

    def share_workers(self, workers: Sequence[WorkerRecord], gone: Sequence[str] = ()) -> Answer[None]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        records = {to_key(worker.id): _packed(worker) for worker in workers}
        share = _Share(records, [to_key(id) for id in gone])
        return self._shares.add(share, len(records) + len(share.gone))

    async def _flush_shares(self, calls: list[Call[_Share]]) -> None:
        # The last word on each worker counts.
        final: dict[str, bytes | None] = {}
        for call in calls:
            final.update(call.input.records)
            final.update(dict.fromkeys(call.input.gone))
        put = sorted((id, record) for id, record in final.items() if record is not None)
        rows = await self.run(
            self.queries.share_workers,
            (
                Int4(self.ns),
                self.broker_id,
                self.coordinator.session,
                arrays.texts(sorted(id for id, record in final.items() if record is None)),
                arrays.texts([id for id, _ in put]),
                arrays.blobs([record for _, record in put]),
            ),
        )
        if not rows[0][0]:
            self.coordinator.fenced()
            raise StorageUnavailable("this broker's session has been taken over")
        for call in calls:
            call.answer.settle(None)

    def foreign_workers(self) -> Answer[list[WorkerRecord]]:
        return self.command(self._foreign_workers)

    async def _foreign_workers(self) -> list[WorkerRecord]:
        rows = await self.run(self.queries.workers, (Int4(self.ns), Int8(FORGOTTEN_MS)))
        now = self.ports.now()
        own = self.coordinator.session
        return [_record(record, now - silent_for) for record, silent_for, session in rows if session != own]

    async def forget_silent_workers(self) -> None:
        """Remove the rows of workers that whoever registered them does not speak for any more."""
        await self.run(self.queries.forget_workers, (Int4(self.ns), Int8(FORGOTTEN_MS)))


async def staffed_queues(connection: Connection, queries: Queries, ns: int) -> set[str]:
    """Queues for which some broker has an active worker."""
    cursor = connection.cursor(binary=True)
    await cursor.execute(queries.workers, (Int4(ns), Int8(ACTIVE_MS)))
    found: set[str] = set()
    for record, _, _ in await cursor.fetchall():
        found.update(unpack(record)["queues"])
    return found


def _packed(worker: WorkerRecord) -> bytes:
    return pack(
        {
            "id": worker.id,
            "name": worker.name,
            "queues": worker.queues,
            "concurrency": worker.concurrency,
            "hostname": worker.hostname,
            "pid": worker.pid,
            "registered_at": worker.registered_at,
            "active_jobs": worker.active_jobs,
            "processed_jobs": worker.processed_jobs,
            "failed_jobs": worker.failed_jobs,
            "current_job": worker.current_job,
        }
    )


def _record(blob: bytes, last_seen: int) -> WorkerRecord:
    return WorkerRecord(**unpack(blob), last_seen=last_seen)
