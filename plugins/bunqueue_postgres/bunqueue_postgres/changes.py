"""Decisions about locked jobs, collected and written back: one statement a kind, whatever the number of jobs."""

from __future__ import annotations

from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.types.numeric import Int4, Int8

from bunqueue_core.model.job import Job, Location
from bunqueue_core.model.payload import Packed
from bunqueue_core.model.requests import DlqConfig
from bunqueue_postgres import arrays
from bunqueue_postgres.keys import escape, to_key
from bunqueue_postgres.planning import KeyOwner, new_owner
from bunqueue_postgres.records import (
    AWAITED,
    WAITING,
    OptionsCodec,
    Record,
    pack,
    pack_dead,
    pack_job_extra,
    pack_past,
    pack_progress,
    unpack,
)
from bunqueue_postgres.sqlfiles import Queries
from bunqueue_postgres.transitions import Notice, Outcome

#: Up to this bound of a queue's dead letters the surplus is removed with the entry that makes it; counting further back costs
#: too much for every failure, and is left to maintenance.
INLINE_SURPLUS: Final = 1_000


class _Row:
    """A job to be written back."""

    __slots__ = ("dead", "due_at", "record")

    def __init__(self, record: Record, dead: bytes | None, due_at: int | None) -> None:
        self.record = record
        self.dead = dead
        self.due_at = due_at


class Changes:
    """What one transaction writes. Fill it with the jobs' rows locked, then :meth:`write`."""

    def __init__(self, now: int, codec: OptionsCodec) -> None:
        self.now = now  #: epoch ms, database clock
        self.failed_children: list[
            tuple[Record, str | None]
        ] = []  #: jobs that failed for good and have a parent, with the error
        self.completed: list[Record] = []
        self.woken: list[str] = []  #: queues that got a new job
        self.crowded: set[int] = set()  #: queues whose dead letters maintenance has to trim
        self.failed = 0  #: jobs that failed for good
        self.tellings: list[tuple[str, dict[str, Any]]] = []  #: for those who watch, once it is committed
        self._codec = codec
        self._rows: dict[str, _Row] = {}
        self._erased: dict[str, Record] = {}
        self._completions: list[tuple[Record, bytes | None, bool]] = []
        self._bounds: dict[int, int] = {}
        self._freed: list[tuple[int, str, str]] = []
        self._claimed: list[tuple[int, str, KeyOwner]] = []
        self._dropped: list[tuple[str, str | None]] = []
        self._data: dict[str, bytes | None] = {}
        self._names: dict[str, str] = {}
        self._survived: list[tuple[str, str, str, str, bytes]] = []
        self._reopened: list[str] = []
        self._retied: dict[str, Record] = {}
        self._forgotten: list[str] = []
        # Events of one job keep their order: the first of each job go before the second of each.
        self._notices: list[dict[tuple[int, str], tuple[list[str], list[dict[str, Any] | None]]]] = []
        self._noticed: dict[str, int] = {}

    # -- collecting ---------------------------------------------------------------------------------------------------

    def notice(self, record: Record, notice: Notice) -> None:
        """Announce an event of the record's job, after those that it has already."""
        if notice.type == "failed" and (notice.extra is None or notice.extra.get("terminal") is not False):
            self.failed += 1
        rank = self._noticed.get(record.key, 0)
        self._noticed[record.key] = rank + 1
        while len(self._notices) <= rank:
            self._notices.append({})
        keys, extras = self._notices[rank].setdefault((record.queue_id, notice.type), ([], []))
        keys.append(record.key)
        extras.append(notice.extra)

    def repeat_notice(self, queue_id: int, key: str, type: str) -> None:
        """Announce an event of a job of which only the key is at hand; it may happen several times."""
        if not self._notices:
            self._notices.append({})
        keys, extras = self._notices[0].setdefault((queue_id, type), ([], []))
        keys.append(key)
        extras.append(None)

    def notice_queue(self, queue_id: int, type: str) -> None:
        """Announce an event of a queue itself, once however often it is said."""
        if not self._notices:
            self._notices.append({})
        self._notices[0].setdefault((queue_id, type), ([], []))

    def notice_blocked(self, queue_id: int, waiter: str, blocker: Record | str) -> None:
        """Announce that a job waits for one that cannot complete by itself."""
        ended = blocker if isinstance(blocker, Record) else self._ended(blocker)
        if not self._notices:
            self._notices.append({})
        keys, extras = self._notices[-1].setdefault((queue_id, "blocked"), ([], []))
        keys.append(waiter)
        extras.append({"data": {"blockedBy": [ended.job.id]}})

    def _ended(self, key: str) -> Record:
        row = self._rows.get(key)
        return self._erased[key] if row is None else row.record

    def tell(self, name: str, /, **fields: Any) -> None:
        """Tell those who watch, once it is committed."""
        self.tellings.append((name, fields))

    def add(self, record: Record, outcome: Outcome, dlq: DlqConfig | None = None) -> None:
        """Write what ``outcome`` says of the record's job."""
        job = record.job
        for notice in outcome.notices:
            self.notice(record, notice)
        if record.was == Location.ACTIVE and not outcome.keeps_key:
            self._release_key(record, finally_=False)
        if outcome.removed:
            self._end(record)
            self._erased[record.key] = record
            self._rows.pop(record.key, None)
            job.location = Location.GONE
            return
        if outcome.entry is not None:
            self._end(record)
            job.location = Location.DEAD
            if record.was != Location.DEAD:
                self.tell("dlq:added", queue=job.queue, jobId=job.id, reason=outcome.entry.reason)
            record.finished_at = outcome.entry.entered_at
            times = [at for at in (outcome.entry.expires_at, outcome.entry.next_retry_at) if at is not None]
            self._rows[record.key] = _Row(record, pack_dead(outcome.entry), min(times, default=None))
            if dlq is not None:
                kept = job.options.remove_on_fail.count
                bound = dlq.max_entries if kept is None else min(kept, dlq.max_entries)
                if bound <= INLINE_SURPLUS:
                    self._bounds[record.queue_id] = min(bound, self._bounds.get(record.queue_id, bound))
                else:
                    self.crowded.add(record.queue_id)
            return
        if record.was in (Location.COMPLETED, Location.DEAD):
            self._claim_key(record)
            if record.was == Location.COMPLETED and record.awaited:
                self._reopened.append(record.key)
        job.location = outcome.location
        record.finished_at = None
        self._rows[record.key] = _Row(record, None, None)

    def fail(self, record: Record, outcome: Outcome, error: str | None, dlq: DlqConfig) -> None:
        """As :meth:`add`, of a failure: a parent's policy applies if it was the last."""
        self.add(record, outcome, dlq)
        if (outcome.entry is not None or outcome.removed) and record.job.parent_id is not None:
            self.failed_children.append((record, error))
            job = record.job
            self.tell("flow:failed", parentJobId=job.parent_id, failedChildId=job.id, queue=job.queue, error=error)

    def open_gate(self, record: Record, outcome: Outcome) -> None:
        """As :meth:`add`, of a job that has nothing to wait for any more."""
        self.add(record, outcome)
        job = record.job
        self.tell("job:dependencies-resolved", jobId=job.id, queue=job.queue)
        if job.children_ids:
            count = len(job.children_ids)
            self.tell("flow:completed", parentJobId=job.id, queue=job.queue, childrenCount=count)

    def complete(self, record: Record, result: bytes | None, remove: bool) -> None:
        """Complete the record's job."""
        remove = remove or record.job.options.remove_on_complete.remove
        self._completions.append((record, result, remove))
        self.completed.append(record)
        record.job.location = Location.GONE if remove else Location.COMPLETED
        self._end(record)
        self.notice(record, Notice("completed", None if result is None else {"data": Packed(result)}))

    def pending(self, key: str) -> Record | None:
        """The record of a job that was changed, as it is now."""
        row = self._rows.get(key)
        return None if row is None else row.record

    def erase(self, record: Record) -> None:
        """Delete the record's job, silently."""
        self.add(record, Outcome(removed=True))

    def set_data(self, record: Record, data: bytes | None) -> None:
        """Replace the payload."""
        record.job.data = data
        self._data[record.key] = data

    def set_name(self, record: Record, name: str) -> None:
        """Replace the name."""
        record.job.name = name
        self._names[record.key] = name

    def retie(self, record: Record) -> None:
        """Write the job's relations; its state stays."""
        self._retied[record.key] = record

    def drop_edges(self, job_key: str, dependency_key: str | None = None) -> None:
        """Forget that a job waits for one other, or for any."""
        self._dropped.append((job_key, dependency_key))

    def survive(self, parent: Record, child: Record, mode: str, error: str) -> None:
        """Keep the failure of a child for its parent."""
        self._survived.append((parent.key, child.key, child.job.queue, mode, pack(error)))

    def _end(self, record: Record) -> None:
        self._release_key(record, finally_=True)
        if record.flags & WAITING:
            self._dropped.append((record.key, None))
            self._forgotten.append(record.key)

    def _release_key(self, record: Record, *, finally_: bool) -> None:
        """Free the job's deduplication key, unless its scope reaches further."""
        job = record.job
        if finally_:
            # A window without an end would never be one.
            kept = job.options.dedup_scope == "window" and job.options.dedup_ttl_ms is not None
        else:
            kept = job.options.dedup_scope in ("unfinished", "window")
        if job.unique_key is not None and not kept:
            self._freed.append((record.queue_id, to_key(job.unique_key), record.key))

    def _claim_key(self, record: Record) -> None:
        job = record.job
        if job.unique_key is not None and not record.key_windowed:
            owner = new_owner(record.key, job.options, self.now)
            self._claimed.append((record.queue_id, to_key(job.unique_key), owner))

    # -- what it came to ----------------------------------------------------------------------------------------------

    @property
    def rewritten(self) -> list[Job]:
        """Jobs that go on, or lie among the dead letters."""
        return [row.record.job for row in self._rows.values()]

    @property
    def removed(self) -> list[Job]:
        """Jobs that are gone without having completed."""
        return [record.job for record in self._erased.values()]

    @property
    def completions(self) -> list[tuple[Record, bytes | None, bool]]:
        """Completed jobs with their results and whether they are removed."""
        return self._completions

    @property
    def awaited_completions(self) -> list[str]:
        """Keys of completed jobs for which others may wait."""
        return [record.key for record in self.completed if record.flags & AWAITED]

    @property
    def awaited_ends(self) -> list[str]:
        """Keys of jobs for which others may wait and that have ended without completing."""
        dead = [row.record for row in self._rows.values() if row.dead is not None]
        return [record.key for record in (*dead, *self._erased.values()) if record.flags & AWAITED]

    def still_waits(self, waiter: str, dependency: str) -> bool:
        """Whether these changes leave a gated job waiting for another one."""
        row = self._rows.get(waiter)
        return (
            waiter not in self._erased
            and (row is None or row.record.job.location == Location.GATED)
            and (waiter, None) not in self._dropped
            and (waiter, dependency) not in self._dropped
        )

    # -- writing ------------------------------------------------------------------------------------------------------

    async def write(self, connection: AsyncConnection[Any], queries: Queries, ns: int) -> None:
        """Write everything in the connection's transaction, in one round trip."""
        number = Int4(ns)
        execute = connection.execute
        async with connection.pipeline():
            if self._freed:
                queue_ids, keys, owners = zip(*self._freed, strict=True)
                await execute(queries.release_keys, (arrays.int4s(queue_ids), arrays.texts(keys), arrays.texts(owners)))
            if self._rows:
                await execute(queries.rewrite, self._rewrite(number))
            if self._completions:
                await execute(
                    queries.complete,
                    (
                        number,
                        arrays.texts([record.key for record, _, _ in self._completions]),
                        arrays.blobs([result for _, result, _ in self._completions]),
                        arrays.bools([remove for _, _, remove in self._completions]),
                        arrays.int4s([record.queue_id for record, _, _ in self._completions]),
                        Int8(self.now),
                        arrays.int8s([self._kept_until(record) for record, _, _ in self._completions]),
                    ),
                )
            if self._erased:
                await execute(queries.erase, (number, arrays.texts(list(self._erased))))
            if self._claimed:
                await execute(
                    queries.claim_keys,
                    (
                        arrays.int4s([queue_id for queue_id, _, _ in self._claimed]),
                        arrays.texts([key for _, key, _ in self._claimed]),
                        arrays.texts([owner.job_key for _, _, owner in self._claimed]),
                        arrays.int8s([owner.expires_at for _, _, owner in self._claimed]),
                        arrays.bools([owner.windowed for _, _, owner in self._claimed]),
                    ),
                )
            if self._dropped:
                jobs, dependencies = zip(*self._dropped, strict=True)
                await execute(queries.drop_edges, (number, arrays.texts(jobs), arrays.texts(dependencies)))
            if self._reopened:
                await execute(queries.unmeet_edges, (number, arrays.texts(self._reopened)))
            retied = [record for key, record in self._retied.items() if key not in self._rows]
            if retied:
                await execute(
                    queries.retie,
                    (
                        number,
                        arrays.texts([record.key for record in retied]),
                        arrays.blobs([pack_job_extra(record.job, record.key) for record in retied]),
                        arrays.texts(
                            [None if (parent := record.job.parent_id) is None else to_key(parent) for record in retied]
                        ),
                        arrays.int2s([record.flags for record in retied]),
                    ),
                )
            for key, data in self._data.items():
                await execute(queries.set_data, (number, key, data))
            for key, name in self._names.items():
                await execute(queries.set_name, (number, key, None if name == "default" else escape(name)))
            if self._forgotten:
                await execute(queries.forget_child_failures, (number, arrays.texts(self._forgotten)))
            if self._survived:
                parents, children, child_queues, modes, errors = zip(*self._survived, strict=True)
                await execute(
                    queries.add_child_failures,
                    (
                        number,
                        arrays.texts(parents),
                        arrays.texts(children),
                        arrays.texts(child_queues),
                        arrays.texts(modes),
                        arrays.blobs(errors),
                    ),
                )
            for queue_id, bound in self._bounds.items():
                await execute(queries.dead_surplus, (Int4(queue_id), Int8(bound)))
            if self._notices:
                await execute(queries.journal, self._journal(number))

    def _kept_until(self, record: Record) -> int | None:
        age_ms = record.job.options.remove_on_complete.age_ms
        return None if age_ms is None else self.now + age_ms

    def _rewrite(self, ns: Int4) -> tuple[Any, ...]:
        rows = list(self._rows.values())
        records = [row.record for row in rows]
        jobs = [record.job for record in records]
        return (
            ns,
            arrays.texts([record.key for record in records]),
            arrays.int2s([job.location for job in jobs]),
            arrays.int8s([job.run_at for job in jobs]),
            arrays.int4s([job.attempts for job in jobs]),
            arrays.int4s([job.stall_count for job in jobs]),
            arrays.int8s([job.started_at for job in jobs]),
            arrays.int8s([record.finished_at for record in records]),
            arrays.int8s([job.last_heartbeat for job in jobs]),
            arrays.blobs([pack_past(job) for job in jobs]),
            arrays.blobs([row.dead for row in rows]),
            arrays.int8s([row.due_at for row in rows]),
            arrays.int4s([job.priority for job in jobs]),
            arrays.bools([job.options.lifo for job in jobs]),
            arrays.blobs([self._codec.pack(job.options) for job in jobs]),
            arrays.blobs([pack_progress(job) for job in jobs]),
            arrays.int2s([record.flags for record in records]),
            arrays.blobs([pack_job_extra(job, record.key) for job, record in zip(jobs, records, strict=True)]),
            arrays.texts([None if job.parent_id is None else to_key(job.parent_id) for job in jobs]),
        )

    def _journal(self, ns: Int4) -> tuple[Any, ...]:
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
                # A result is read from the job itself.
                extras.append(None if type == "completed" else pack_extras(extra))
        return (
            ns,
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
    return [None if extra is None else {key: _unmark(value) for key, value in extra.items()} for extra in unpack(blob)]


def _unmark(value: Any) -> Any:
    return Packed(value[0]) if isinstance(value, list) and len(value) == 1 and isinstance(value[0], bytes) else value
