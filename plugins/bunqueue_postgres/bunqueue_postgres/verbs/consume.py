"""Deliveries and their outcomes: pull, acknowledge, fail, renew, progress, release, and recovery of leases that ran out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.types.numeric import Int2, Int4, Int8

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import (
    BunqueueError,
    NotFound,
    StorageUnavailable,
)
from bunqueue_core.model.job import Lease, Location
from bunqueue_core.model.requests import (
    Ack,
    Acknowledged,
    Delivery,
    Failure,
    JobView,
    Outcome,
    Progress,
    PullRequest,
    Renewal,
)
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.scheduling.repeat import Repeats
from bunqueue_postgres import arrays, transitions
from bunqueue_postgres.changes import Changes, pack_extras
from bunqueue_postgres.database import Connection
from bunqueue_postgres.errors import translate
from bunqueue_postgres.gather import Call, Gatherer
from bunqueue_postgres.keys import escape, to_key
from bunqueue_postgres.pulls import PullDesk, Waiter
from bunqueue_postgres.records import (
    PLAIN_FLAGS,
    Record,
    pack,
)
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.verbs.base import STEP_ROWS, lease_lost, owns
from bunqueue_postgres.verbs.produce import Producing

#: Bits of a queue's ``features``: some job of it expires.
FEATURE_EXPIRING: Final = 1

#: Expired jobs that one pull removes at most.
EXPIRED_ROWS: Final = 1_000


class Consuming(Producing):
    """The verbs around deliveries."""

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        super().__init__(settings, context)
        self._acks: Gatherer[Sequence[Ack]] = Gatherer(self._flush_acks, self.spawn, _ids_of)
        self._failures: Gatherer[Sequence[Failure]] = Gatherer(self._flush_failures, self.spawn, _ids_of)
        self._repeats = Repeats()
        self._renewals: Gatherer[tuple[Sequence[Renewal], bool]] = Gatherer(self._flush_renewals, self.spawn)

    # -- pull ---------------------------------------------------------------------------------------------------------

    def pull(self, request: PullRequest) -> Answer[list[Delivery]]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if request.count <= 0:
            return Answer.of([])
        desk = self._desks.get(request.queue)
        if desk is None:
            desk = self._desks[request.queue] = PullDesk(
                request.queue, self._claim, self._take_back, self.spawn, self._forget_desk
            )
            if self.draining:
                desk.drain()
        return desk.pull(request)

    def _forget_desk(self, desk: PullDesk) -> None:
        if self._desks.get(desk.queue) is desk:
            del self._desks[desk.queue]

    async def _claim(self, desk: PullDesk, waiters: list[Waiter]) -> list[list[Delivery]]:
        """Claim for ``waiters``, in order; gives each its deliveries."""
        queue = desk.queue
        try:
            queue_id = await self.queue_id(queue)
            if queue_id is None:
                return [[] for _ in waiters]
            tokens: list[str | None] = []
            owners: list[str | None] = []
            durations: list[int] = []
            new_token = self.ports.new_token
            lease_ms = self.settings.effective_lease_ms
            for waiter in waiters:
                request = waiter.request
                count = request.count
                if request.owner:
                    tokens += [new_token() for _ in range(count)]
                    owners += [escape(request.owner)] * count
                    durations += [max(0, int(request.lock_ttl_ms))] * count
                else:
                    tokens += [None] * count
                    owners += [None] * count
                    durations += [lease_ms] * count
            marks = self.marks.of(queue, asyncio.get_running_loop().time())
            rows = await self.database.run(
                self.queries.claim,
                (
                    Int4(self.ns),
                    Int4(queue_id),
                    self.broker_id,
                    self.coordinator.session,
                    arrays.int4s([mark.priority for mark in marks]),
                    arrays.int8s([mark.run_at for mark in marks]),
                    arrays.texts([mark.key for mark in marks]),
                    Int4(len(tokens)),
                    arrays.texts(tokens),
                    arrays.texts(owners),
                    arrays.int8s(durations),
                ),
            )
        except psycopg.Error as error:
            raise translate(error) from error
        if not rows:
            return [[] for _ in waiters]
        alive, paused, _limited, features = rows[0][:4]
        if not alive:
            self.coordinator.fenced()
            raise StorageUnavailable("this broker's session has been taken over")
        if features & FEATURE_EXPIRING and not paused:
            await self._expire(queue_id)
        claimed = rows if rows[0][4] is not None else []
        self.totals["pulled"] += len(claimed)
        return self._deal(queue, waiters, claimed, tokens)

    def _deal(
        self, queue: str, waiters: list[Waiter], rows: list[tuple[Any, ...]], tokens: list[str | None]
    ) -> list[list[Delivery]]:
        """Share claimed rows out: the n-th row belongs to the n-th slot, and slots to the pulls in order."""
        dealt: list[list[Delivery]] = []
        claimed = self.reader.claimed
        total = len(rows)
        at = 0
        slot = 0
        for waiter in waiters:
            request = waiter.request
            deliveries: list[Delivery] = []
            end = min(total, slot + request.count)
            while at < end:
                row = rows[at]
                _, job = claimed(queue, row[4:])
                token = tokens[at]
                started_at: int = row[17]
                if token is not None and request.owner:
                    job.lease = Lease(token, request.owner, started_at, row[18] - started_at)
                if request.session is not None:
                    job.session = request.session
                    self._hold(request.session, job.id, started_at)
                else:
                    self.detached = True
                deliveries.append(Delivery(job, token))
                at += 1
            slot += request.count
            dealt.append(deliveries)
        if rows:
            self.marks.claimed(queue, [(row[12], row[14], row[5], row[17]) for row in rows])
        return dealt

    async def _expire(self, queue_id: int) -> None:
        """Remove queued jobs whose time to live is over."""
        await self.database.run(self.queries.expire, (Int4(queue_id), Int4(EXPIRED_ROWS)))

    def _hold(self, session: str, id: str, started_at: int) -> None:
        self.held[id] = session
        jobs = self._sessions.get(session)
        if jobs is None:
            jobs = self._sessions[session] = {}
        jobs[id] = started_at

    def _take_back(self, deliveries: list[Delivery]) -> None:
        """Undo deliveries that nobody took."""
        taken = {delivery.job.id: delivery for delivery in deliveries}
        for id in taken:
            self.let_go(id)

        def decide(record: Record, _: int) -> transitions.Outcome | None:
            delivery = taken[record.job.id]
            if record.job.location != Location.ACTIVE or record.started_at != delivery.job.started_at:
                return None
            if (record.token if record.owner is not None else None) != delivery.token:
                return None
            return transitions.given_back(record.job)

        async def work() -> None:
            with contextlib.suppress(psycopg.Error, BunqueueError):  # then the lease ends by itself
                await self.decide([to_key(id) for id in taken], decide)

        self.spawn(work())

    def release(self, session: str) -> Answer[int]:
        for desk in list(self._desks.values()):
            desk.release(session)
        jobs = self._sessions.pop(session, None)
        if not jobs:
            return Answer.of(0)
        for id in jobs:
            self.held.pop(id, None)
        return self.answer(self._release(jobs))

    async def _release(self, jobs: dict[str, int]) -> int:
        def decide(record: Record, now: int) -> transitions.Outcome | None:
            job = record.job
            if (
                job.location != Location.ACTIVE
                or record.started_at != jobs[job.id]
                or record.renewals > 0
                or record.lease_until is None
                or record.lease_until <= now
            ):
                return None
            return transitions.lost(job, now, policies(record), record.owner)

        policies = self.policies
        released = 0
        keys = [to_key(id) for id in jobs]
        for at in range(0, len(keys), STEP_ROWS):
            released += await self.decide(keys[at : at + STEP_ROWS], decide, failing=True)
        return released

    async def recover(self) -> int:
        """Put back, or end, jobs whose lease is over; gives their number (at most :data:`STEP_ROWS`)."""

        async def pick(connection: Connection) -> list[str]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(self.queries.expired, (Int4(self.ns), Int4(STEP_ROWS)))
            return [key for (key,) in await cursor.fetchall()]

        def decide(record: Record, now: int) -> transitions.Outcome | None:
            job = record.job
            if job.location != Location.ACTIVE or record.lease_until is None or record.lease_until > now:
                return None
            policies = self.policies(record)
            timeout = job.options.timeout_ms
            if timeout and record.started_at is not None and record.started_at + timeout <= now:
                return transitions.failed(job, now, policies, transitions.TIMEOUT_ERROR, reason="timeout")
            if record.owner is None:
                return transitions.stalled(job, now, policies)
            return transitions.lease_expired(job, now, policies, record.renewals)

        return await self.decide([], decide, pick=pick, failing=True)

    # -- acknowledge --------------------------------------------------------------------------------------------------

    def ack(self, acks: Sequence[Ack]) -> Answer[Acknowledged]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if not acks:
            return Answer.of(Acknowledged([], {}))
        return self._acks.add(acks, len(acks))

    async def _flush_acks(self, calls: list[Call[Sequence[Ack]]]) -> None:
        keys: list[str] = []
        tokens: list[str | None] = []
        results: list[bytes | None] = []
        removes: list[bool] = []
        batches: list[int] = []
        places: list[tuple[int, int]] = []
        errors: list[dict[int, Exception]] = []
        for batch, call in enumerate(calls):
            errors.append({})
            seen: set[str] = set()
            for position, ack in enumerate(call.input):
                if ack.id in seen:
                    errors[batch][position] = _not_active(ack.id)
                    continue
                seen.add(ack.id)
                keys.append(to_key(ack.id))
                tokens.append(to_key(ack.token) if ack.token else None)
                results.append(ack.result)
                removes.append(ack.remove)
                batches.append(batch)
                places.append((batch, position))
        rows = await self.database.run(
            self.queries.ack,
            (
                Int4(self.ns),
                arrays.texts(keys),
                arrays.texts(tokens),
                arrays.blobs(results),
                arrays.bools(removes),
                arrays.int4s(batches),
                Int2(PLAIN_FLAGS),
            ),
        )
        refused: dict[int, tuple[int, Exception]] = {}
        stepwise: set[int] = set()
        for n, status, valid, plain, free in rows:
            batch, position = places[n - 1]
            ack = calls[batch].input[position]
            if valid and not plain:
                stepwise.add(batch)
            elif status == Location.ACTIVE and not valid:
                if batch not in refused or position < refused[batch][0]:
                    refused[batch] = (position, lease_lost(ack.id, ack.token, free))
            elif not valid:
                errors[batch][position] = _not_active(ack.id)
        for batch, call in enumerate(calls):
            if batch in refused:
                call.answer.fail(refused[batch][1])
                continue
            if batch in stepwise:
                continue
            failed = errors[batch]
            waits = self.waits
            held = self.held
            for position, ack in enumerate(call.input):
                if held:
                    self.let_go(ack.id)
                if waits and position not in failed:
                    for answer in waits.pop(ack.id, ()):
                        answer.settle((True, None if ack.remove else ack.result))
            self.totals["completed"] += len(call.input) - len(failed)
            call.answer.settle(Acknowledged(["applied"] * len(call.input), failed))
        self.coordinator.announce()
        if stepwise:
            await self._complete_stepwise([calls[batch] for batch in sorted(stepwise)])

    async def _complete_stepwise(self, calls: list[Call[Sequence[Ack]]]) -> None:
        """Complete jobs that others wait for, or that have a deduplication key, a successor or a retention of their own."""
        keys = {to_key(ack.id) for call in calls for ack in call.input}

        async def body(connection: Connection) -> tuple[list[Acknowledged | Exception], list[Changes]]:
            now, records = await self.lock(connection, keys)
            changes = Changes(now, self.codec)
            verdicts = [self._completions_of(call.input, records, now, changes) for call in calls]
            written = [changes]
            if changes.completed:
                await self.conclude(connection, changes)
                written += await self._add_successors(connection, changes)
                await self._apply_retention(connection, changes)
            return verdicts, written

        verdicts, written = await self.admitted(body)
        for changes in written:
            self.written(changes)
        for call, verdict in zip(calls, verdicts, strict=True):
            if isinstance(verdict, Exception):
                call.answer.fail(verdict)
            else:
                call.answer.settle(verdict)

    @staticmethod
    def _completions_of(
        acks: Sequence[Ack], records: dict[str, Record], now: int, changes: Changes
    ) -> Acknowledged | Exception:
        """Check and apply one call's acknowledgements to locked records."""
        for ack in acks:
            record = records.get(to_key(ack.id))
            if record is not None and record.job.location == Location.ACTIVE and not owns(record, ack.token, now):
                return lease_lost(ack.id, ack.token, record.owner is None)
        errors: dict[int, Exception] = {}
        for position, ack in enumerate(acks):
            record = records.get(to_key(ack.id))
            if record is not None and record.job.location == Location.ACTIVE:
                changes.complete(record, ack.result, ack.remove)
            else:
                errors[position] = _not_active(ack.id)
        return Acknowledged(["applied"] * len(acks), errors)

    async def _add_successors(self, connection: Connection, changes: Changes) -> list[Changes]:
        """Admit the next generations of completed repeat jobs."""
        written: list[Changes] = []
        for record in changes.completed:
            if record.job.options.repeat is None:
                continue
            spec = self._repeats.successor(record.job, changes.now)
            if spec is not None:
                call = (record.job.queue, record.queue_id, [spec], [self.ports.new_id()])
                _, added = await self.admit(connection, [call])
                written.append(added)
        return written

    async def _apply_retention(self, connection: Connection, changes: Changes) -> None:
        """Keep only the newest completed jobs of queues whose jobs say how many."""
        bounds: dict[int, int] = {}
        for record in changes.completed:
            count = record.job.options.remove_on_complete.count
            if count is not None:
                bounds[record.queue_id] = min(count, bounds.get(record.queue_id, count))
        for queue_id, bound in bounds.items():
            await connection.execute(self.queries.completed_surplus, (Int4(queue_id), Int8(bound)))

    # -- fail ---------------------------------------------------------------------------------------------------------

    def fail(self, failures: Sequence[Failure]) -> Answer[Acknowledged]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if not failures:
            return Answer.of(Acknowledged([], {}))
        try:
            # Refused before anything is written, and before it could spoil calls that it is gathered with.
            pack([(failure.error, failure.stack) for failure in failures])
        except BunqueueError as error:
            return Answer.failed(error)
        return self._failures.add(failures, len(failures))

    async def _flush_failures(self, calls: list[Call[Sequence[Failure]]]) -> None:
        keys = list({to_key(failure.id) for call in calls for failure in call.input})

        async def body(connection: Connection) -> tuple[list[Acknowledged | Exception], Changes]:
            now, records = await self.lock(connection, keys)
            changes = Changes(now, self.codec)
            verdicts: list[Acknowledged | Exception] = []
            wrote = False
            for call in calls:
                verdict = self._failures_of(call.input, records, now, changes)
                verdicts.append(verdict)
                wrote = wrote or isinstance(verdict, Acknowledged)
            if wrote:
                await self.conclude(connection, changes)
            return verdicts, changes

        verdicts, changes = await self.database.transaction(body)
        for call, verdict in zip(calls, verdicts, strict=True):
            if isinstance(verdict, Exception):
                call.answer.fail(verdict)
                continue
            for failure in call.input:
                self.let_go(failure.id)
            call.answer.settle(verdict)
        self.written(changes)

    def _failures_of(
        self, failures: Sequence[Failure], records: dict[str, Record], now: int, changes: Changes
    ) -> Acknowledged | Exception:
        """Check and apply one call's failures to locked records."""
        for failure in failures:
            record = records.get(to_key(failure.id))
            if record is not None and record.job.location == Location.ACTIVE and not owns(record, failure.token, now):
                return lease_lost(failure.id, failure.token, record.owner is None)
        outcomes: list[Outcome] = []
        errors: dict[int, Exception] = {}
        for position, failure in enumerate(failures):
            outcomes.append("applied")
            record = records.get(to_key(failure.id))
            if record is not None and record.job.location == Location.ACTIVE:
                outcome = transitions.failed(
                    record.job,
                    now,
                    self.policies(record),
                    failure.error,
                    failure.stack,
                    unrecoverable=failure.unrecoverable,
                    remove=failure.remove,
                )
                changes.fail(record, outcome, failure.error, record.dlq)
            elif (
                record is not None
                and record.job.location == Location.READY
                and record.job.attempts > 0
                and failure.token
                and record.started_at is None
            ):
                outcomes[position] = "already-finalized"
            else:
                errors[position] = _not_active(failure.id)
        return Acknowledged(outcomes, errors)

    # -- leases -------------------------------------------------------------------------------------------------------

    def extend(self, renewals: Sequence[Renewal]) -> Answer[list[bool]]:
        return self._renew(renewals, True)

    def heartbeat(self, beats: Sequence[Renewal]) -> Answer[list[bool]]:
        return self._renew(beats, False)

    def _renew(self, renewals: Sequence[Renewal], strict: bool) -> Answer[list[bool]]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if not renewals:
            return Answer.of([])
        return self._renewals.add((renewals, strict), len(renewals))

    async def _flush_renewals(self, calls: list[Call[tuple[Sequence[Renewal], bool]]]) -> None:
        keys: list[str] = []
        tokens: list[str | None] = []
        renews: list[bool] = []
        stricts: list[bool] = []
        durations: list[int | None] = []
        for call in calls:
            renewals, strict = call.input
            for renewal in renewals:
                keys.append(to_key(renewal.id))
                tokens.append(to_key(renewal.token) if renewal.token else None)
                renews.append(strict or bool(renewal.token))
                stricts.append(strict or bool(renewal.token))
                durations.append(None if renewal.duration_ms is None else max(0, int(renewal.duration_ms)))
        rows = await self.database.run(
            self.queries.renew,
            (
                Int4(self.ns),
                arrays.texts(keys),
                arrays.texts(tokens),
                arrays.bools(renews),
                arrays.bools(stricts),
                arrays.int8s(durations),
                self.broker_id,
                self.coordinator.session,
            ),
        )
        done = {n for (n,) in rows}
        at = 0
        for call in calls:
            count = len(call.input[0])
            call.answer.settle([n in done for n in range(at + 1, at + count + 1)])
            at += count

    # -- progress -----------------------------------------------------------------------------------------------------

    def progress(self, id: str, progress: int | float, message: str | None, keep_message: bool) -> Answer[None]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self.answer(self._progress(id, min(100, max(0, progress)), message, keep_message))

    async def _progress(self, id: str, value: int | float, message: str | None, keep_message: bool) -> None:
        pack(message)
        key = to_key(id)

        async def body(connection: Connection) -> None:
            now, records = await self.lock(connection, [key])
            record = records.get(key)
            if record is None:
                raise NotFound("Job not found")
            if record.job.location != Location.ACTIVE:
                raise NotFound(f"Job is not active (current state: {record.state(now)})")
            text = record.job.progress_message if keep_message else message
            extra: dict[str, Any] = {"progress": value, "data": {"progress": value, "message": text}}
            await connection.execute(
                self.queries.set_progress,
                (
                    Int4(self.ns),
                    key,
                    pack([value, text]),
                    Int8(self.settings.effective_lease_ms),
                    pack_extras([extra]),
                ),
            )

        await self.database.transaction(body)

    def progress_of(self, id: str) -> Answer[Progress]:
        return self.job(id).map(_progress_of_view)


def _ids_of(items: Sequence[Ack] | Sequence[Failure]) -> list[str]:
    return [item.id for item in items]


def _not_active(id: str) -> NotFound:
    return NotFound(f"Job not found or not in processing state: {id}")


def _progress_of_view(view: JobView | None) -> Progress:
    if view is None:
        raise NotFound("Job not found")
    if view.state != "active":
        raise NotFound(f"Job is not active (current state: {view.state})")
    return Progress(view.job.progress, view.job.progress_message)
