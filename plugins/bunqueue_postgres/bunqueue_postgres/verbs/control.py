"""Control of queues and of single jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from psycopg.types.numeric import Int2, Int4, Int8

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import Conflict, NotFound, ValidationError
from bunqueue_core.model.job import Location
from bunqueue_core.model.payload import Packer, check_size_limit, decode
from bunqueue_postgres import arrays, transitions
from bunqueue_postgres.changes import Changes
from bunqueue_postgres.database import Connection
from bunqueue_postgres.keys import is_whole, to_key, unescape
from bunqueue_postgres.records import WAITING, Record
from bunqueue_postgres.verbs.base import STEP_ROWS, check_lease
from bunqueue_postgres.verbs.logs import Logging
from bunqueue_postgres.verbs.snapshots import Snapshotting

#: Keys of a flow job's payload that say where it stands in its flow.
FLOW_KEYS: Final = ("__parentId", "__parentQueue", "__childrenIds", "__flowParentId", "__flowParentIds")

#: Jobs that one statement of a removal deletes; a larger removal takes several, each in a transaction of its own.
REMOVED_ROWS: Final = 5_000

#: States by which ``clean`` means the run set.
_RUN_SET_STATES: Final = (None, "waiting", "wait", "delayed", "prioritized", "paused")

#: What a decision on one job gives: what becomes of it, None to leave it alone. It may raise the verb's error.
Decide = Callable[[Record, int], "transitions.Outcome | None"]


class Controlling(Logging, Snapshotting):
    """The verbs that steer."""

    # -- queues -------------------------------------------------------------------------------------------------------

    def pause(self, queue: str) -> Answer[None]:
        return self.command(self._set_paused, queue, True)

    def resume(self, queue: str) -> Answer[None]:
        return self.command(self._set_paused, queue, False)

    async def _set_paused(self, queue: str, paused: bool) -> None:
        await self.change(self.queries.set_paused, (Int4(self.ns), queue, paused))
        if not paused:
            self.wake(queue, 1_000_000)
        self.coordinator.announce()

    def is_paused(self, queue: str) -> Answer[bool]:
        return self.read_queue(self.queries.queue, queue).map(lambda rows: bool(rows and rows[0][1]))

    def count(self, queue: str) -> Answer[int]:
        return self.read_queue(self.queries.count, queue).map(lambda rows: rows[0][0] if rows else 0)

    def drain_queue(self, queue: str) -> Answer[int]:
        return self.command(self._drain_queue, queue)

    async def _drain_queue(self, queue: str) -> int:
        """In steps, so that no transaction grows with the backlog; jobs that come meanwhile may go too."""
        removed: int = 0
        while True:
            rows = await self.run(self.queries.remove_queued, (Int4(self.ns), queue, Int8(REMOVED_ROWS)))
            removed += rows[0][0]
            # Rows that are being claimed are passed by; a step that found no others is the last.
            if rows[0][1] < REMOVED_ROWS or not rows[0][0]:
                return removed

    def clean(self, queue: str, grace_ms: int | None, state: str | None, limit: int) -> Answer[list[str]]:
        return self.command(self._clean, queue, grace_ms, state, limit)

    async def _clean(self, queue: str, grace_ms: int | None, state: str | None, limit: int) -> list[str]:
        if state == "failed":
            status = Location.DEAD
        elif state == "completed":
            status = Location.COMPLETED
        elif state in _RUN_SET_STATES:
            status = Location.READY
        else:
            return []
        if limit <= 0 or (grace_ms is None and status != Location.DEAD):
            return []
        removed: list[str] = []
        while len(removed) < limit:
            step = min(REMOVED_ROWS, limit - len(removed))
            rows = await self.run(
                self.queries.clean,
                (Int4(self.ns), queue, Int2(status), None if grace_ms is None else Int8(grace_ms), Int8(step)),
            )
            removed += [unescape(key) for (key,) in rows]
            if len(rows) < step:
                break
        return removed

    def obliterate(self, queue: str) -> Answer[None]:
        return self.command(self._obliterate, queue)

    async def _obliterate(self, queue: str) -> None:
        """In steps; jobs that come meanwhile go too, those that come after the last step stay.

        Nothing goes if live jobs of other queues depend on a job of this one.
        """
        queue_id = await self.queue_id(queue)
        if queue_id is None:
            return
        await self._refuse_dependents(queue, queue_id)
        while True:
            rows = await self.run(self.queries.obliterate, (Int4(queue_id), Int8(REMOVED_ROWS)))
            if rows[0][0] < REMOVED_ROWS:
                break
        # Jobs may have come to depend on some while the others went: those are still there.
        await self._refuse_dependents(queue, queue_id)
        await self.run(self.queries.forget_queue, (Int4(queue_id),))
        self.notices.forget(queue)
        self.marks.forget(queue)
        self.coordinator.announce()

    async def _refuse_dependents(self, queue: str, queue_id: int) -> None:
        rows = await self.run(self.queries.dependents, (Int4(queue_id),))
        if rows[0][0]:
            raise Conflict(f"Cannot obliterate queue {queue}: {rows[0][0]} job(s) have live dependents")

    def trim_events(self, queue: str, keep: int) -> Answer[int]:
        return self.command(self._trim_events, queue, keep)

    async def _trim_events(self, queue: str, keep: int) -> int:
        # Outcomes among them have to be counted before they go.
        await self.count_outcomes()
        rows = await self.run(self.queries.trim_events, (Int4(self.ns), queue, Int8(keep)))
        removed: int = rows[0][0]
        return removed

    def promote_jobs(self, queue: str, count: int | None = None) -> Answer[int]:
        return self.command(self._promote_jobs, queue, count)

    async def _promote_jobs(self, queue: str, count: int | None) -> int:
        async def find(most: int) -> list[str]:
            return [key for (key,) in await self.run(self.queries.delayed, (Int4(self.ns), queue, Int8(most)))]

        return await self.in_portions(count, find, lambda keys: self.in_steps(keys, _promote))

    def retry_completed(
        self, queue: str, id: str | None = None, count: int | None = None, before: int | None = None
    ) -> Answer[int]:
        return self.command(self._retry_completed, queue, id, count, before)

    async def _retry_completed(self, queue: str, id: str | None, count: int | None, before: int | None) -> int:
        latest = before
        if latest is None:
            # What completes again meanwhile is left alone.
            latest = (await self.run(self.queries.clock, ()))[0][0]

        async def find(most: int) -> list[str]:
            rows = await self.run(self.queries.ended, (Int4(self.ns), queue, Int8(latest), Int8(most)))
            return [key for (key,) in rows]

        def decide(record: Record, now: int) -> transitions.Outcome | None:
            job = record.job
            if job.location != Location.COMPLETED or job.queue != queue or record.key_owner is not None:
                return None
            return transitions.run_again(job, now)

        if id is not None:
            return await self.in_steps([to_key(id)], decide)
        return await self.in_portions(count, find, lambda keys: self.in_steps(keys, decide))

    async def in_steps(self, keys: list[str], decide: Decide) -> int:
        """Decide on many jobs, a bounded number a transaction. Gives how many changed."""
        changed = 0
        for at in range(0, len(keys), STEP_ROWS):
            changed += await self.decide(keys[at : at + STEP_ROWS], decide)
        return changed

    # -- deduplication keys -------------------------------------------------------------------------------------------

    def key_owner(self, queue: str, key: str) -> Answer[str | None]:
        return self.command(self._key_owner, queue, key)

    async def _key_owner(self, queue: str, key: str) -> str | None:
        rows = await self.run(self.queries.key_owner, (Int4(self.ns), queue, to_key(key)))
        if not rows:
            return None
        owner = rows[0][0]
        if is_whole(owner):
            return unescape(owner)
        read = await self.run(self.queries.read, (Int4(self.ns), arrays.texts([owner])))
        return self.reader.record(read[0][:-1]).job.id if read else None

    def remove_key(self, queue: str, key: str) -> Answer[int]:
        return self.command(self._remove_key, queue, key)

    async def _remove_key(self, queue: str, key: str) -> int:
        rows = await self.run(self.queries.remove_key, (Int4(self.ns), queue, to_key(key)))
        count: int = rows[0][0]
        return count

    def remove_job_key(self, id: str) -> Answer[bool]:
        return self.command(self._remove_job_key, id)

    async def _remove_job_key(self, id: str) -> bool:
        key = to_key(id)

        async def body(connection: Connection) -> bool:
            _, records = await self.lock(connection, [key])
            record = records.get(key)
            if record is None or record.job.unique_key is None:
                return False
            cursor = connection.cursor(binary=True)
            name = arrays.texts([to_key(record.job.unique_key)])
            await cursor.execute(
                self.queries.release_keys, (arrays.int4s([record.queue_id]), name, arrays.texts([key]))
            )
            row = await cursor.fetchone()
            return row is not None and row[0] > 0

        return await self.commit(body)

    # -- single jobs --------------------------------------------------------------------------------------------------

    async def _one(self, id: str, missing: Exception, decide: Decide) -> None:
        """Decide on one job, or raise ``missing``."""
        found = False

        def decide_found(record: Record, now: int) -> transitions.Outcome | None:
            nonlocal found
            found = True
            return decide(record, now)

        await self.decide([to_key(id)], decide_found)
        if not found:
            raise missing

    def cancel(self, id: str) -> Answer[None]:
        error = NotFound("Job not found or cannot be cancelled")

        def decide(record: Record, _: int) -> transitions.Outcome:
            if record.job.location not in (Location.READY, Location.GATED, Location.PARKED) or record.awaited:
                raise error
            return transitions.Outcome(removed=True, notices=[transitions.Notice("removed", {"prev": "waiting"})])

        return self.command(self._one, id, error, decide)

    def discard(self, id: str, token: str | None = None) -> Answer[None]:
        error = NotFound("Job not found")

        def decide(record: Record, now: int) -> transitions.Outcome:
            job = record.job
            if job.location == Location.ACTIVE:
                check_lease(record, token, now)
            elif job.location != Location.READY:
                raise error
            return transitions.discarded(job, now, self.policies(record))

        return self.command(self._one, id, error, decide)

    def promote(self, id: str) -> Answer[None]:
        error = NotFound("Job not found or not delayed")

        def decide(record: Record, now: int) -> transitions.Outcome:
            outcome = _promote(record, now)
            if outcome is None:
                raise error
            return outcome

        return self.command(self._one, id, error, decide)

    def change_delay(self, id: str, delay_ms: int, token: str | None = None) -> Answer[bool]:
        return self.command(self._change_delay, id, delay_ms, token)

    async def _change_delay(self, id: str, delay_ms: int, token: str | None) -> bool:
        def decide(record: Record, now: int) -> transitions.Outcome | None:
            job = record.job
            run_at = now + delay_ms
            if job.location == Location.READY:
                return transitions.moved(job, run_at)
            if job.location != Location.ACTIVE:
                return None
            check_lease(record, token, now)
            return transitions.handed_back(job, run_at, transitions.Notice("delayed", {"delay": delay_ms}))

        return await self.decide([to_key(id)], decide) > 0

    def move_to_wait(self, id: str, token: str | None = None) -> Answer[None]:
        def decide(record: Record, now: int) -> transitions.Outcome | None:
            job = record.job
            state = record.state(now)
            if state == "active":
                check_lease(record, token, now)
                return transitions.handed_back(job, now, transitions.Notice("waiting", {"prev": "active"}))
            if state == "delayed":
                return transitions.moved(job, now)
            if state == "failed":
                if record.key_owner is not None:
                    raise NotFound("Failed job not in DLQ")
                return transitions.retried(job, now)
            if state in ("waiting", "prioritized"):
                return None
            raise Conflict(f"Cannot move job from state '{state}' to waiting")

        return self.command(self._one, id, Conflict("Cannot move job from state 'unknown' to waiting"), decide)

    def move_to_waiting_children(self, id: str, token: str | None = None) -> Answer[None]:
        return self.command(self._move_to_waiting_children, id, token)

    async def _move_to_waiting_children(self, id: str, token: str | None) -> None:
        async def body(connection: Connection) -> Changes:
            now, records = await self.lock(connection, [to_key(id)])
            record = records.get(to_key(id))
            if record is None or record.job.location != Location.ACTIVE:
                raise NotFound("Job is not active")
            check_lease(record, token, now)
            location = Location.PARKED
            if record.flags & WAITING:
                # What it waited for may run again: then it goes on as soon as that has completed.
                cursor = connection.cursor(binary=True)
                await cursor.execute(self.queries.unmet, (Int4(self.ns), arrays.texts([record.key])))
                if await cursor.fetchone() is not None:
                    location = Location.GATED
            changes = Changes(now, self.codec)
            changes.add(record, transitions.parked(record.job, now, location))
            await self.conclude(connection, changes)
            return changes

        self.written(await self.commit(body))

    def change_priority(self, id: str, priority: int, lifo: bool | None = None) -> Answer[None]:
        return self.command(self._change_priority, id, priority, lifo)

    async def _change_priority(self, id: str, priority: int, lifo: bool | None) -> None:
        error = NotFound("Job not found or not in queue")
        key = to_key(id)

        async def body(connection: Connection) -> Changes:
            now, records = await self.lock(connection, [key])
            record = records.get(key)
            if record is None or record.job.location != Location.READY:
                raise error
            changes = Changes(now, self.codec)
            changes.add(record, transitions.reordered(record.job, priority, lifo))
            await connection.execute(self.queries.add_levels, (Int4(record.queue_id), arrays.int4s([priority])))
            await changes.write(connection, self.queries, self.ns)
            return changes

        self.written(await self.commit(body))

    def update_data(self, id: str, data: bytes) -> Answer[None]:
        return self.command(self._update_data, id, data)

    async def _update_data(self, id: str, data: bytes) -> None:
        async def body(connection: Connection) -> None:
            record = await self._locked(connection, to_key(id))
            if record is not None and record.job.location == Location.COMPLETED:
                # New data for a repeat job that has completed is for the one that follows it.
                cursor = connection.cursor(binary=True)
                await cursor.execute(self.queries.successor, (Int4(self.ns), record.key))
                row = await cursor.fetchone()
                record = None if row is None else await self._locked(connection, row[0])
            if record is None or record.job.location in (Location.COMPLETED, Location.DEAD):
                raise NotFound("Job not found or cannot be updated")
            kept = kept_topology(record.job.data, data)
            check_size_limit(kept, record.job.options.size_limit)
            await connection.execute(self.queries.set_data, (Int4(self.ns), record.key, kept))

        await self.commit(body)

    async def _locked(self, connection: Connection, key: str) -> Record | None:
        _, records = await self.lock(connection, [key])
        return records.get(key)


def _promote(record: Record, now: int) -> transitions.Outcome | None:
    job = record.job
    if job.location != Location.READY or job.run_at <= now:
        return None
    return transitions.moved(job, now)


def kept_topology(present: bytes | None, wanted: bytes) -> bytes:
    """``wanted`` with the topology keys of a flow that ``present`` has.

    Raises:
        ValidationError: it is not an object, or sets such a key itself.
    """
    if present is None or b"__" not in present:
        return wanted
    old: Any = decode(present)
    kept = {key: old[key] for key in FLOW_KEYS if key in old} if isinstance(old, dict) else {}
    if not kept:
        return wanted
    new: Any = decode(wanted)
    if not isinstance(new, dict):
        raise ValidationError("flow job data must be an object")
    for key in new:
        if isinstance(key, str) and key.startswith("__") and (key not in kept or new[key] != kept[key]):
            raise ValidationError(f"flow job data key is reserved: {key}")
    return Packer().pack({**new, **kept})
