"""Logs of jobs, and completed and failed jobs by minute."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from psycopg.types.numeric import Int4, Int8

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import NotFound
from bunqueue_core.model.requests import LogEntry, QueueMetrics
from bunqueue_core.model.rules import check_text
from bunqueue_postgres import arrays
from bunqueue_postgres.changes import read_extras
from bunqueue_postgres.database import Connection
from bunqueue_postgres.keys import to_key
from bunqueue_postgres.records import pack, unpack
from bunqueue_postgres.verbs.base import BrokerBase

#: Lines of log kept for a job that sets no bound of its own, and for one that does at most.
MAX_LOGS: Final = 100

#: Minutes of metrics that are kept: 14 days.
MAX_MINUTES: Final = 20_160

#: Name of the shared reader that counts outcomes.
METRICS_READER: Final = "metrics"

#: Times that a query of metrics tries to have the newest outcomes counted, while another broker counts; and seconds between.
FOLD_TRIES: Final = 5
FOLD_WAIT_S: Final = 0.01

_TOTAL: Final = -1


class Logging(BrokerBase):
    """The verbs of logs and metrics."""

    # -- logs ---------------------------------------------------------------------------------------------------------

    def add_log(self, id: str, message: str, level: str) -> Answer[None]:
        return self.command(self._add_log, id, message, level)

    async def _add_log(self, id: str, message: str, level: str) -> None:
        check_text(message, "message")
        check_text(level, "level")
        key = to_key(id)

        async def body(connection: Connection) -> None:
            now, records = await self.lock(connection, [key])
            record = records.get(key)
            if record is None:
                raise NotFound("Job not found")
            keep = record.job.options.keep_logs
            bound = MAX_LOGS if keep is None else max(0, min(MAX_LOGS, keep))
            lines = await self._lines(connection, key)
            lines.append([now, level, message])
            await self._store(connection, key, lines[max(0, len(lines) - bound) :])

        await self.database.transaction(body)

    async def _lines(self, connection: Connection, key: str) -> list[Any]:
        cursor = connection.cursor(binary=True)
        await cursor.execute(self.queries.read_logs, (Int4(self.ns), key))
        row = await cursor.fetchone()
        return [] if row is None else list(unpack(row[0]))

    async def _store(self, connection: Connection, key: str, lines: list[Any]) -> None:
        if lines:
            await connection.execute(self.queries.write_logs, (Int4(self.ns), key, pack(lines)))
        else:
            await connection.execute(self.queries.forget_logs, (Int4(self.ns), key))

    def logs(self, id: str) -> Answer[list[LogEntry]]:
        return self.command(self._logs, id)

    async def _logs(self, id: str) -> list[LogEntry]:
        rows = await self.run(self.queries.read_logs, (Int4(self.ns), to_key(id)))
        return [LogEntry(*line) for line in unpack(rows[0][0])] if rows else []

    def clear_logs(self, id: str, keep: int = 0) -> Answer[None]:
        return self.command(self._clear_logs, id, keep)

    async def _clear_logs(self, id: str, keep: int) -> None:
        key = to_key(id)

        async def body(connection: Connection) -> None:
            await self.lock(connection, [key])
            lines = await self._lines(connection, key)
            await self._store(connection, key, lines[-keep:] if keep > 0 else [])

        await self.database.transaction(body)

    # -- metrics ------------------------------------------------------------------------------------------------------

    async def fold_metrics(self) -> bool:
        """Count outcomes that the outbox has gained since they were last counted; False if another broker is at it.

        The outbox is where outcomes are written anyway. Counting them there, once for all brokers, costs the outcomes nothing
        and makes no row that all of them would wait for.
        """

        async def body(connection: Connection) -> bool:
            ns = Int4(self.ns)
            cursor = connection.cursor(binary=True)
            await cursor.execute(self.queries.hold_reader, (ns, METRICS_READER))
            held = await cursor.fetchone()
            if held is None:
                return False
            xmax, open_ = held
            await cursor.execute(self.queries.outcome_feed, (ns, xmax, arrays.texts(open_)))
            rows = await cursor.fetchall()
            counts: dict[tuple[int, str, int], tuple[int, int]] = {}
            for _, _, queue_id, type, at, size, skipped, extra in rows:
                if queue_id is None:
                    continue
                if type == "failed":
                    extras = read_extras(extra, size + skipped)[skipped:]
                    size = sum(fields is None or fields.get("terminal") is not False for fields in extras)
                if not size:
                    continue
                for minute in (at // 60_000, _TOTAL):
                    count, latest = counts.get((queue_id, type, minute), (0, 0))
                    counts[queue_id, type, minute] = (count + size, max(latest, at))
            if counts:
                names = list(counts)
                await cursor.execute(
                    self.queries.add_metrics,
                    (
                        arrays.int4s([queue for queue, _, _ in names]),
                        arrays.texts([type for _, type, _ in names]),
                        arrays.int8s([minute for _, _, minute in names]),
                        arrays.int8s([count for count, _ in counts.values()]),
                        arrays.int8s([latest for _, latest in counts.values()]),
                        Int8(MAX_MINUTES),
                    ),
                )
            await cursor.execute(self.queries.move_reader, (ns, METRICS_READER, rows[0][0], arrays.texts(rows[0][1])))
            return True

        return await self.database.transaction(body)

    async def count_outcomes(self) -> None:
        """Have the newest outcomes counted."""
        for _ in range(FOLD_TRIES):
            if await self.fold_metrics():
                return
            await asyncio.sleep(FOLD_WAIT_S)

    def queue_metrics(self, queue: str, type: str, start: int = 0, end: int = -1) -> Answer[QueueMetrics]:
        return self.command(self._queue_metrics, queue, type, start, end)

    async def _queue_metrics(self, queue: str, type: str, start: int, end: int) -> QueueMetrics:
        await self.count_outcomes()
        rows = await self.run(self.queries.metrics, (Int4(self.ns), queue, type))
        counts = {minute: (count, latest) for minute, count, latest in rows}
        total, latest_at = counts.pop(_TOTAL, (0, 0))
        if not counts:
            return QueueMetrics(total, 0, 0, [], 0)
        newest, oldest = max(counts), min(counts)
        buckets = newest - oldest + 1
        last = buckets - 1 if end < 0 else min(end, buckets - 1)
        data = [counts.get(newest - offset, (0, 0))[0] for offset in range(start, last + 1)]
        return QueueMetrics(total, latest_at, counts[newest][0], data, buckets)
