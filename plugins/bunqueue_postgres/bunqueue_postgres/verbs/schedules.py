"""Schedulers: kept in the database, run by whichever broker finds one due first, each run once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from psycopg.types.numeric import Int4, Int8

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import CommandError, ConfigurationError, NotFound
from bunqueue_core.model.job import Location
from bunqueue_core.model.options import JobReader
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.scheduling.definition import DefinitionReader, Entry, StoredScheduleError
from bunqueue_core.scheduling.kinds import KINDS
from bunqueue_core.scheduling.repeat import Repeats
from bunqueue_core.scheduling.service import apply_restart, apply_upsert, decide, make_entry, preview, settle
from bunqueue_postgres import arrays, transitions
from bunqueue_postgres.changes import Changes
from bunqueue_postgres.database import Connection
from bunqueue_postgres.keys import to_key
from bunqueue_postgres.records import pack, unpack
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.verbs.produce import Producing
from bunqueue_postgres.verbs.workers import staffed_queues

#: Schedulers that one transaction runs at most.
DUE_ROWS: Final = 100


class Scheduling(Producing):
    """The verbs of schedulers, and their runs."""

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        super().__init__(settings, context)
        self.next_schedule_ms: int | None = (
            None  #: when the next run is due, ms from the last look; None: none is known
        )
        self._definitions = DefinitionReader(
            JobReader(self.strategies, Repeats().check_pattern), context.kinds or KINDS
        )

    # -- verbs --------------------------------------------------------------------------------------------------------

    def upsert_schedule(self, request: Mapping[str, Any]) -> Answer[Entry]:
        return self.command(self._upsert_schedule, request)

    async def _upsert_schedule(self, request: Mapping[str, Any]) -> Entry:
        upsert = self._definitions.read(request)
        name = upsert.definition.name

        told = "cron:created"

        async def body(connection: Connection) -> tuple[Entry, Changes | None]:
            nonlocal told
            # By name: there may be no row yet for two brokers to meet at.
            await connection.execute(self.queries.lock_names, (arrays.texts([f"bunqueue:schedule:{self.ns}:{name}"]),))
            now, entry = await self._read_schedule(connection, name)
            told = "cron:created" if entry is None else "cron:updated"
            if entry is None:
                entry = make_entry(upsert, now)
            elif not apply_upsert(entry, upsert, now):
                return entry, None
            changes = Changes(now, self.codec)
            if upsert.replaces_queued and upsert.definition.job_key is not None:
                await self._displace(connection, changes, upsert.definition.queue, upsert.definition.job_key)
            await self._store_schedule(connection, entry)
            return entry, changes

        entry, changes = await self.commit(body)
        if changes is not None:
            self.written(changes)
            if self.notices.active:
                self.notices.tell(told, entry.event())
        return entry

    async def _displace(self, connection: Connection, changes: Changes, queue: str, key: str) -> None:
        """Remove the job that waits under a key whose scheduler has a new definition."""
        numbers = await self.number_queues([queue], connection)
        owners = await self.key_owners(connection, [(numbers[queue], to_key(key))])
        if not owners:
            return
        _, records = await self.lock(connection, [owner for owner, _, _ in owners.values()])
        for record in records.values():
            if record.job.location in (Location.READY, Location.GATED):
                changes.add(record, transitions.Outcome(removed=True))
        await self.conclude(connection, changes)

    def schedule(self, name: str) -> Answer[Entry]:
        return self.command(self._schedule, name)

    async def _schedule(self, name: str) -> Entry:
        rows = await self.run(self.queries.schedule, (Int4(self.ns), to_key(name) if isinstance(name, str) else ""))
        if rows[0][1] is None:
            raise NotFound("Cron job not found")
        return self._entry(*rows[0][1:])

    def schedules(self) -> Answer[list[Entry]]:
        return self.command(self._schedules)

    async def _schedules(self) -> list[Entry]:
        return [self._entry(*row) for row in await self.run(self.queries.schedules, (Int4(self.ns),))]

    def remove_schedule(self, name: str) -> Answer[None]:
        return self.command(self._remove_schedule, name)

    async def _remove_schedule(self, name: str) -> None:
        key = to_key(name) if isinstance(name, str) else ""
        rows = await self.run(self.queries.drop_schedule, (Int4(self.ns), key))
        if not rows[0][0]:
            raise NotFound("Cron job not found")

    def preview_schedule(self, request: str | Mapping[str, Any], count: int) -> Answer[list[int]]:
        return self.command(self._preview_schedule, request, count)

    async def _preview_schedule(self, request: str | Mapping[str, Any], count: int) -> list[int]:
        if isinstance(request, str):
            return preview(await self._schedule(request), count)
        upsert = self._definitions.read(request)
        rows = await self.run(self.queries.clock, ())
        return preview(make_entry(upsert, rows[0][0]), count)

    # -- rows ---------------------------------------------------------------------------------------------------------

    async def _read_schedule(self, connection: Connection, name: str) -> tuple[int, Entry | None]:
        cursor = connection.cursor(binary=True)
        await cursor.execute(self.queries.schedule, (Int4(self.ns), to_key(name)))
        row = await cursor.fetchone()
        assert row is not None
        return row[0], None if row[1] is None else self._entry(row[1], row[2])

    def _entry(self, definition: bytes, memory: bytes) -> Entry:
        entry = self._definitions.from_row(unpack(definition))
        entry.immediate, entry.previous_slot, entry.unscheduled_run = unpack(memory)
        return entry

    async def _store_schedule(self, connection: Connection, entry: Entry) -> None:
        await connection.execute(
            self.queries.put_schedule,
            (
                Int4(self.ns),
                to_key(entry.definition.name),
                Int8(entry.next_run),
                pack(self._definitions.to_row(entry)),
                pack([entry.immediate, entry.previous_slot, entry.unscheduled_run]),
            ),
        )

    async def reconcile_schedules(self) -> None:
        """Apply what definitions say about runs that were missed while no broker was there.

        The oldest live broker does, at its start; all see that they can use what is stored.

        Raises:
            ConfigurationError: a stored scheduler cannot be used here.
        """
        try:
            await self._schedules()
        except StoredScheduleError as error:
            raise ConfigurationError(str(error)) from None

        async def body(connection: Connection) -> None:
            cursor = connection.cursor(binary=True)
            await cursor.execute(self.queries.lock_schedules, (Int4(self.ns), self.coordinator.session))
            for now, definition, memory in await cursor.fetchall():
                entry = self._entry(definition, memory)
                fate = apply_restart(entry, now)
                if fate == "moved":
                    await self._store_schedule(connection, entry)
                elif fate == "ended":
                    await cursor.execute(self.queries.drop_schedule, (Int4(self.ns), to_key(entry.definition.name)))

        await self.database.transaction(body)

    # -- runs ---------------------------------------------------------------------------------------------------------

    async def run_schedules(self) -> None:
        """Run every scheduler that is due and that no other broker is running, and note when the next one is due."""
        while True:
            rows = await self.run(self.queries.next_schedule, (Int4(self.ns),))
            self.next_schedule_ms = rows[0][0]
            if self.next_schedule_ms is None or self.next_schedule_ms > 0 or not await self._run_some():
                return

    async def _run_some(self) -> int:
        """Run some; gives their number. A run, its job and the next time are one transaction: each slot fires once."""

        async def body(connection: Connection) -> tuple[int, list[Changes]]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(self.queries.due_schedules, (Int4(self.ns), Int4(DUE_ROWS)))
            rows = await cursor.fetchall()
            entries = [(row[0], self._entry(row[1], row[2])) for row in rows]
            numbers = await self.number_queues((entry.definition.queue for _, entry in entries), connection)
            written: list[Changes] = []
            staffed: set[str] = set()
            if any(entry.definition.skip_if_no_worker for _, entry in entries):
                staffed = await staffed_queues(connection, self.queries, self.ns)
            for now, entry in entries:
                decision = decide(entry, now, lambda queue: queue in staffed or self.has_worker(queue))
                if decision.job is not None:
                    call = (decision.queue, numbers[decision.queue], [decision.job], [self.ports.new_id()])
                    (verdict,), changes = await self.admit(connection, [call])
                    written.append(changes)
                    about = {"name": decision.name, "queue": decision.queue}
                    if isinstance(verdict, CommandError):
                        self.log("warn", "a scheduled job was refused", schedule=decision.name, reason=str(verdict))
                        changes.tell("cron:missed", **about, error=str(verdict))
                    else:
                        changes.woken.append(decision.queue)
                        changes.tell("cron:fired", **about)
                elif decision.action == "skip":
                    changes = Changes(now, self.codec)
                    changes.tell("cron:skipped", name=decision.name, queue=decision.queue, reason=decision.reason)
                    written.append(changes)
                settle(entry, decision, now)
                if decision.removes:
                    await cursor.execute(self.queries.drop_schedule, (Int4(self.ns), to_key(decision.name)))
                else:
                    await self._store_schedule(connection, entry)
            return len(rows), written

        count, written = await self.admitted(body)
        for changes in written:
            self.written(changes)
        return count
