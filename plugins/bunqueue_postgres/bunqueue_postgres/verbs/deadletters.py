"""Dead letters."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any, Final

from psycopg.types.numeric import Int4, Int8

from bunqueue_core.answer import Answer
from bunqueue_core.model.deadletters import has_expired, matching, retriable, statistics
from bunqueue_core.model.job import Location
from bunqueue_core.model.requests import (
    DlqConfig,
    DlqEntry,
    DlqFilter,
    StallConfig,
)
from bunqueue_postgres import arrays, transitions
from bunqueue_postgres.changes import Changes
from bunqueue_postgres.database import Connection
from bunqueue_postgres.events import COMPLETIONS_PRUNED, DLQ_PRUNED
from bunqueue_postgres.keys import to_key
from bunqueue_postgres.records import (
    Record,
    due_of,
    pack_dlq_config,
    pack_stall_config,
    read_dlq_config,
    read_stall_config,
)
from bunqueue_postgres.settings import MAX_DURATION_MS
from bunqueue_postgres.verbs.base import STEP_ROWS
from bunqueue_postgres.verbs.snapshots import Snapshotting

#: When an ended job that has outlived its time, but that live jobs need, is looked at again, ms.
AGAIN_MS: Final = 10_000

#: A silent job is stalled only after two looks, this many ms apart, so that one late heartbeat costs nothing.
STALL_CONFIRM_MS: Final = 5_000


class DeadLettering(Snapshotting):
    """The dead-letter verbs."""

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_letters(self, queue: str, count: int | None, filter: DlqFilter | None) -> Answer[list[DlqEntry]]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)

        async def work() -> list[DlqEntry]:
            return [record.dead_letter() for record in await self._dead(queue, count, filter)]

        return self.answer(work())

    async def _dead(self, queue: str, count: int | None, filter: DlqFilter | None) -> list[Record]:
        """Dead letters of ``queue``, oldest first: those that match, then the first ``count``."""
        wanted = self.ids_to_ask_for(None if filter is not None else count)
        rows = await self.database.run(self.queries.dead, (Int4(self.ns), queue, Int8(wanted)))
        keys = [key for (key,) in rows]
        await self.check_size(queue, keys)
        read = await self.database.run(self.queries.read, (Int4(self.ns), arrays.texts(keys)))
        by_key = {row[0]: (self.reader.record(row[:-1]), row[-1]) for row in read}
        found = [by_key[key] for key in keys if key in by_key and by_key[key][0].dead is not None]
        records = [record for record, _ in found]
        if filter is None or not found:
            return records
        by_id = {record.job.id: record for record in records}
        letters = (record.dead_letter() for record in records)
        matches = matching(letters, filter, records[0].dlq, found[0][1])
        return [by_id[entry.job.id] for entry in islice(matches, None if count is None else max(0, count))]

    def retry_dead_letters(
        self, queue: str, id: str | None = None, count: int | None = None, filter: DlqFilter | None = None
    ) -> Answer[int]:
        return self.command(self._retry_dead_letters, queue, id, count, filter)

    async def _retry_dead_letters(self, queue: str, id: str | None, count: int | None, filter: DlqFilter | None) -> int:
        async def find(most: int) -> list[str]:
            rows = await self.database.run(self.queries.dead, (Int4(self.ns), queue, Int8(most)))
            return [key for (key,) in rows]

        def decide(record: Record, now: int) -> transitions.Outcome | None:
            if record.job.location != Location.DEAD or record.job.queue != queue or record.key_owner is not None:
                return None
            return transitions.retried(record.job, now)

        async def retry(keys: list[str]) -> int:
            retried = 0
            for at in range(0, len(keys), STEP_ROWS):
                retried += await self.decide(keys[at : at + STEP_ROWS], decide)
            return retried

        if filter is not None:
            return await retry([record.key for record in await self._dead(queue, None, filter)])
        if id is not None:
            return await retry([to_key(id)])
        return await self.in_portions(count, find, retry)

    def remove_dead_letter(self, queue: str, id: str) -> Answer[bool]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self.answer(self._erase_dead(queue, [to_key(id)])).map(bool)

    def purge_dead_letters(self, queue: str) -> Answer[int]:
        return self.command(self._purge, queue)

    async def _purge(self, queue: str) -> int:
        purged = kept = 0
        while True:
            rows = await self.database.run(self.queries.dead, (Int4(self.ns), queue, Int8(kept + STEP_ROWS)))
            keys = [key for (key,) in rows[kept:]]
            if not keys:
                return purged
            erased = await self._erase_dead(queue, keys)
            purged += erased
            kept += len(keys) - erased

    async def _erase_dead(self, queue: str, keys: list[str]) -> int:
        async def body(connection: Connection) -> int:
            now, records = await self.lock(connection, keys)
            changes = Changes(now, self.codec)
            erased = 0
            for record in records.values():
                if record.job.location == Location.DEAD and record.job.queue == queue and not record.awaited:
                    changes.erase(record)
                    erased += 1
            if erased:
                await changes.write(connection, self.queries, self.ns)
            return erased

        return await self.commit(body)

    def dlq_config(self, queue: str) -> Answer[DlqConfig]:
        return self.read_queue(self.queries.queue, queue).map(
            lambda rows: read_dlq_config(rows[0][3] if rows else None)
        )

    def set_dlq_config(self, queue: str, config: DlqConfig) -> Answer[None]:
        return self._set_policies(queue, None, config)

    def stall_config(self, queue: str) -> Answer[StallConfig]:
        return self.read_queue(self.queries.queue, queue).map(
            lambda rows: read_stall_config(rows[0][2] if rows else None)
        )

    def set_stall_config(self, queue: str, config: StallConfig) -> Answer[None]:
        return self._set_policies(queue, config, None)

    def _set_policies(self, queue: str, stall: StallConfig | None, dlq: DlqConfig | None) -> Answer[None]:
        async def work() -> None:
            rows = await self.database.run(
                self.queries.set_policies,
                (
                    Int4(self.ns),
                    queue,
                    None if stall is None else pack_stall_config(stall),
                    None if dlq is None else pack_dlq_config(dlq),
                    None if stall is None else Int8(silence_ms(stall)),
                ),
            )
            if dlq is not None:
                await self.database.run(self.queries.dead_surplus, (Int4(rows[0][0]), Int8(dlq.max_entries)))

        return self.command(work)

    def dlq_stats(self, queue: str) -> Answer[dict[str, Any]]:
        return self.command(self._dlq_stats, queue)

    async def _dlq_stats(self, queue: str) -> dict[str, Any]:
        config = await self.read_queue(self.queries.queue, queue)
        policy = read_dlq_config(config[0][3] if config else None)
        records = await self._dead(queue, None, None)
        clock = await self.database.run(self.queries.clock, ())
        now = clock[0][0]
        return statistics(queue, (record.dead_letter() for record in records), policy, now)

    async def maintain_dead_letters(self) -> int:
        """Remove ended jobs whose time is over and retry dead letters whose time for it has come. Gives the number handled."""

        async def body(connection: Connection) -> tuple[int, Changes]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(self.queries.dead_due, (Int4(self.ns), Int4(STEP_ROWS)))
            now, records = await self.lock(connection, [key for (key,) in await cursor.fetchall()])
            changes = Changes(now, self.codec)
            needed: list[str] = []  # they go before long after the jobs that need them
            early: dict[str, int | None] = {}  # their time has not come: when it does
            expired: Counter[str] = Counter()
            again: Counter[str] = Counter()
            for record in records.values():
                if record.was == Location.COMPLETED:
                    due_at = due_of(record.was, record.finished_at, record.job.options, None)
                    if due_at is None or due_at > now:
                        early[record.key] = due_at
                    elif record.awaited:
                        needed.append(record.key)
                    else:
                        changes.erase(record)
                        changes.notice_queue(record.queue_id, COMPLETIONS_PRUNED)
                    continue
                entry = record.dead_letter()
                if record.key_owner is not None:
                    # Its deduplication key belongs to another job now: it stays until it expires.
                    entry.next_retry_at = None
                if has_expired(entry, now):
                    if record.awaited:
                        needed.append(record.key)
                    else:
                        expired[record.job.queue] += 1
                        changes.erase(record)
                        changes.notice_queue(record.queue_id, DLQ_PRUNED)
                elif record.dlq.auto_retry and retriable(entry, record.dlq, now):
                    again[record.job.queue] += 1
                    changes.add(record, transitions.auto_retried(record.job, now, entry, record.dlq))
                else:
                    if entry.next_retry_at is not None and entry.next_retry_at <= now:
                        # Its policy has changed: it is due at its expiry only.
                        entry.next_retry_at = None
                    changes.add(record, transitions.Outcome(entry=entry))
            for name, counts in (("dlq:auto-retried", again), ("dlq:expired", expired)):
                for queue, count in counts.items():
                    changes.tell(name, queue=queue, count=count)
            if records:
                await changes.write(connection, self.queries, self.ns)
            if early:
                await cursor.execute(
                    self.queries.mend_due,
                    (Int4(self.ns), arrays.texts(list(early)), arrays.int8s(list(early.values()))),
                )
            if needed:
                await cursor.execute(self.queries.postpone, (Int4(self.ns), arrays.texts(needed), Int8(AGAIN_MS)))
            return len(records), changes

        handled, changes = await self.commit(body)
        self.written(changes)
        return handled

    async def trim_dead_letters(self, queue_id: int) -> None:
        """Remove the oldest dead letters of a queue beyond its bound."""
        rows = await self.database.run(self.queries.policies, (Int4(queue_id),))
        for (dlq,) in rows:
            bound = read_dlq_config(dlq).max_entries
            await self.database.run(self.queries.dead_surplus, (Int4(queue_id), Int8(bound)))


def silence_ms(stall: StallConfig) -> int:
    """How long a job without an owner may be silent under a queue's policy, ms: two looks, :data:`STALL_CONFIRM_MS` apart."""
    if not stall.enabled:
        return MAX_DURATION_MS
    return max(stall.stall_interval_ms, stall.grace_period_ms) + STALL_CONFIRM_MS
