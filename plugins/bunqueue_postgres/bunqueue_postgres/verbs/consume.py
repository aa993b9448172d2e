"""Deliveries and their outcomes: pull, acknowledge, fail, renew, progress, release, and recovery of leases that ran out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

import psycopg
from psycopg.types.numeric import Int2, Int4, Int8

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import (
    BunqueueError,
    CommandError,
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
    Pushed,
    Renewal,
)
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.scheduling.repeat import Repeats
from bunqueue_postgres import arrays, transitions
from bunqueue_postgres.beats import PatientBeats
from bunqueue_postgres.changes import Changes, pack_extras
from bunqueue_postgres.database import Connection
from bunqueue_postgres.errors import WRITES_REFUSED, is_disconnect, sqlstate, translate
from bunqueue_postgres.gather import Call, Gatherer
from bunqueue_postgres.keys import escape, to_key, unescape
from bunqueue_postgres.marks import LOOK_S, LOOK_SHARE, Mark
from bunqueue_postgres.pulls import PullDesk, Waiter
from bunqueue_postgres.records import (
    PLAIN_FLAGS,
    REMOVE,
    RETIRED,
    Record,
    pack,
)
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.verbs.base import STEP_ROWS, lease_lost, owns
from bunqueue_postgres.verbs.limits import FEATURE_EXPIRING, FEATURE_GROUPS, CarefulPull, Limiting, Slot

#: How long a job without an owner may be silent by default, ms: the stall interval and the confirming look.
DEFAULT_SILENCE_MS: Final = 35_000

#: How long an outcome is tried while the database is away, seconds: shorter than clients wait for their answer.
OUTCOME_PATIENCE_S: Final = 25.0

#: Statements of acknowledgements that see to each job at once, after one met jobs that an update alone does not complete.
ELABORATE_TURNS: Final = 100

#: Age of a delivery, ms, up to which its signs of life may wait for its outcome (see ``beats.py``).
YOUNG_MS: Final = 500

#: Expired jobs that one pull removes at most.
EXPIRED_ROWS: Final = 1_000

#: Fields of the event that tells of each of them, packed.
EXPIRED_FIELDS: Final = pack({"error": "Job TTL expired"})


class Consuming(Limiting):
    """The verbs around deliveries."""

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        super().__init__(settings, context)
        self._acks: Gatherer[Sequence[Ack]] = Gatherer(self._flush_acks, self.spawn, _ids_of)
        self._failures: Gatherer[Sequence[Failure]] = Gatherer(self._flush_failures, self.spawn, _ids_of)
        self._repeats = Repeats()
        self.look_s = LOOK_S  #: seconds to the next look behind the low-water marks
        self._renewals: Gatherer[tuple[Sequence[Renewal], bool]] = Gatherer(self._flush_renewals, self.spawn)
        self._beats = PatientBeats(self._send_beats)
        self._elaborate = 0  #: statements of acknowledgements that are not tried the plain way
        self._claimed_at = (0, 0.0)  #: the database's clock (epoch ms) at the last claim, and the loop's

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
        try:
            queue_id = await self.queue_id(desk.queue)
            if queue_id is None:
                return [[] for _ in waiters]
            return await self._claim_known(desk, queue_id, waiters)
        except psycopg.Error as error:
            raise translate(error) from error

    async def _claim_known(self, desk: PullDesk, queue_id: int, waiters: list[Waiter]) -> list[list[Delivery]]:
        slots = [self._slots(waiter.request) for waiter in waiters]
        careful = desk.limited or any(
            (group := waiter.request.group) is not None and group.affine and group.affinity is not None
            for waiter in waiters
        )
        dealt: list[list[Delivery]] = [[] for _ in waiters]
        if not careful:
            rows = await self._claim_plainly(desk.queue, queue_id, [slot for own in slots for slot in own])
            if not rows:
                return dealt
            alive, paused, desk.limited, features = rows[0][:4]
            if not alive:
                self.coordinator.fenced()
                raise StorageUnavailable("this broker's session has been taken over")
            if paused:
                return dealt
            desk.watchful = bool(desk.limited or features & FEATURE_GROUPS)
            if features & FEATURE_EXPIRING:
                await self._expire(desk.queue, queue_id)
            if rows[0][4] is not None:
                self._deal(desk.queue, waiters, slots, rows, dealt)
            if not desk.limited and not features & FEATURE_GROUPS:
                return dealt
        # What is left to serve needs the queue's row: its limits, or the rotation of its groups.
        short = [
            position
            for position, waiter in enumerate(waiters)
            if len(dealt[position]) < waiter.request.count
            and (careful or desk.limited or (group := waiter.request.group) is None or not group.affine)
        ]
        pulls = [
            CarefulPull(
                slots[position][len(dealt[position]) :], waiters[position].request.group, careful or desk.limited
            )
            for position in short
        ]
        if pulls:
            claimed, retry_ms, desk.limited, desk.watchful, refused = await self.claim_carefully(queue_id, pulls)
            for position, pull, rows in zip(short, pulls, claimed, strict=True):
                request = waiters[position].request
                for row in rows:
                    dealt[position].append(self._delivery(desk.queue, request, row, pull.slots[row[4] - 1][0]))
                self.totals["pulled"] += len(rows)
                if rows:
                    self.coordinator.expect_expiry(min(row[18] - row[17] for row in rows))
            if retry_ms is not None:
                desk.wake_in(retry_ms)
            if refused is not None and self.notices.active:
                self.notices.tell(refused, {"queue": desk.queue})
        return dealt

    def _slots(self, request: PullRequest) -> list[Slot]:
        """Token, owner and lease duration of each delivery that a pull may get."""
        if not request.owner:
            return [(None, None, DEFAULT_SILENCE_MS)] * request.count
        owner = escape(request.owner)
        duration = max(0, int(request.lock_ttl_ms))
        new_token = self.ports.new_token
        return [(new_token(), owner, duration) for _ in range(request.count)]

    async def _claim_plainly(self, queue: str, queue_id: int, slots: list[Slot]) -> list[tuple[Any, ...]]:
        marks = self.marks.take(queue)
        return await self.feed.run_untold(
            self.queries.claim,
            (
                Int4(self.ns),
                Int4(queue_id),
                self.broker_id,
                self.coordinator.session,
                arrays.int4s([mark.priority for mark in marks]),
                arrays.int8s([mark.run_at for mark in marks]),
                arrays.texts([mark.key for mark in marks]),
                Int4(len(slots)),
                arrays.texts([slot[0] for slot in slots]),
                arrays.texts([slot[1] for slot in slots]),
                arrays.int8s([slot[2] for slot in slots]),
                False,
            ),
        )

    async def look_behind_marks(self) -> None:
        """Find jobs that stand before the low-water marks, and have them claimed."""
        looked = self.marks.to_look_behind(
            lambda name: (desk := self._desks.get(name)) is not None and bool(desk.parked)
        )
        if not looked:
            return
        queues = [await self.queue_id(name) for name, _ in looked]
        loop = asyncio.get_running_loop()
        began = loop.time()
        rows = await self.database.run(
            self.queries.behind,
            (
                arrays.int4s([0 if id is None else id for id in queues]),
                arrays.int4s([mark.priority for _, mark in looked]),
                arrays.int8s([mark.run_at for _, mark in looked]),
                arrays.texts([mark.key for _, mark in looked]),
            ),
        )
        self.look_s = max(LOOK_S, LOOK_SHARE * (loop.time() - began))
        for n, run_at, key in rows:
            name, mark = looked[n - 1]
            self.marks.lower(name, Mark(mark.priority, run_at, key))
            self.wake(name, 1_000_000)

    def _deal(
        self,
        queue: str,
        waiters: list[Waiter],
        slots: list[list[Slot]],
        rows: list[tuple[Any, ...]],
        dealt: list[list[Delivery]],
    ) -> None:
        """Share claimed rows out: slots belong to the pulls in order, and the n-th row to the n-th slot."""
        total = len(rows)
        at = 0
        for position, waiter in enumerate(waiters):
            request = waiter.request
            own = slots[position]
            deliveries = dealt[position]
            end = min(total, at + request.count)
            for place in range(end - at):
                deliveries.append(self._delivery(queue, request, rows[at + place], own[place][0]))
            at = end
        self.totals["pulled"] += total
        self._claimed_at = (rows[0][17], asyncio.get_running_loop().time())
        self.coordinator.expect_expiry(min(row[18] - row[17] for row in rows))
        self.marks.claimed(queue, [(row[12], row[14], row[5], row[17]) for row in rows])

    def _delivery(self, queue: str, request: PullRequest, row: tuple[Any, ...], token: str | None) -> Delivery:
        _, job = self.reader.claimed(queue, row[4:])
        started_at: int = row[17]
        if token is not None and request.owner:
            job.lease = Lease(token, request.owner, started_at, row[18] - started_at)
        if request.session is not None:
            job.session = request.session
            self._hold(request.session, job.id, started_at)
        else:
            self.detached = True
        return Delivery(job, token)

    async def _expire(self, queue: str, queue_id: int) -> None:
        """Remove queued jobs whose time to live is over."""
        rows = await self.change(self.queries.expire, (Int4(queue_id), Int4(EXPIRED_ROWS), EXPIRED_FIELDS))
        if rows and self.notices.active:
            for key, ttl, age in rows:
                # Of a very long id the key holds a digest only, and the job is gone.
                fields = {"queue": queue, "jobId": unescape(key), "ttl": ttl, "age": age}
                self.notices.tell("job:expired", fields)

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

        told: list[tuple[str, dict[str, Any]]] = []

        async def pick(connection: Connection) -> list[str]:
            told.clear()  # the transaction may begin anew
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
                # Its worker may still come with an outcome, which is then ignored.
                record.flags |= RETIRED
                told.append(("job:timeout", {"jobId": job.id, "queue": job.queue, "timeout": timeout}))
                return transitions.failed(job, now, policies, transitions.TIMEOUT_ERROR, reason="timeout")
            if record.owner is None:
                return transitions.stalled(job, now, policies)
            told.append(("job:lock-expired", {"jobId": job.id, "queue": job.queue, "renewalCount": record.renewals}))
            return transitions.lease_expired(job, now, policies, record.renewals)

        recovered = await self.decide([], decide, pick=pick, failing=True)
        if told and self.notices.active:
            for name, fields in told:
                self.notices.tell(name, fields)
        return recovered

    # -- acknowledge --------------------------------------------------------------------------------------------------

    def ack(self, acks: Sequence[Ack]) -> Answer[Acknowledged]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if not acks:
            return Answer.of(Acknowledged([], {}))
        return self._acks.add(acks, len(acks))

    async def _flush_acks(self, calls: list[Call[Sequence[Ack]]]) -> None:
        """Complete what was acknowledged, through an outage if need be: the work is done, and would be done again."""
        await self._persist(lambda again: self._complete(calls, again))

    async def _persist(self, work: Callable[[bool], Awaitable[None]]) -> None:
        """Do ``work``, again once the database is back if it went away, for :data:`OUTCOME_PATIENCE_S` at most.

        ``work`` is told whether it is done again: then its outcome may be there already.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OUTCOME_PATIENCE_S
        again = False
        while True:
            try:
                return await work(again)
            except (psycopg.Error, StorageUnavailable) as error:
                away = (
                    isinstance(error, StorageUnavailable) or is_disconnect(error) or sqlstate(error) == WRITES_REFUSED
                )
                if not away or self.closing or not await self.database.returned(deadline - loop.time()):
                    raise
                again = True

    async def _complete(self, calls: list[Call[Sequence[Ack]]], again: bool) -> None:
        members: list[tuple[str, int, int, Ack]] = []
        errors: list[dict[int, Exception]] = []
        for batch, call in enumerate(calls):
            errors.append({})
            seen: set[str] = set()
            for position, ack in enumerate(call.input):
                if ack.id in seen:
                    errors[batch][position] = _not_active(ack.id)
                    continue
                seen.add(ack.id)
                members.append((to_key(ack.id), batch, position, ack))
        # By id: that is the order in which the rows are locked, the same at every broker.
        members.sort(key=_key_of)
        refused: dict[int, tuple[int, Exception]] = {}
        ignored: set[tuple[int, int]] = set()
        stepwise: set[int] = set()
        if not again and await self._complete_plainly(members):
            members = []
        while members:
            parameters = (
                *self._ack_parameters(members),
                arrays.bools([ack.remove for _, _, _, ack in members]),
                arrays.int4s([batch for _, batch, _, _ in members]),
                Int2(PLAIN_FLAGS),
            )
            try:
                rows = await self.feed.run_untold(self.queries.ack, parameters)
            except psycopg.errors.DivisionByZero:  # a row was changed meanwhile: nothing was done
                continue
            missed: list[tuple[str, int, int, Ack]] = []
            for n, status, valid, plain, free, retired, same in rows:
                member = members[n - 1]
                _, batch, position, ack = member
                if again and same and status == Location.COMPLETED:
                    continue  # by this very acknowledgement, whose answer was lost
                if valid and not plain:
                    stepwise.add(batch)
                elif valid:
                    missed.append(member)
                elif status == Location.ACTIVE:
                    if batch not in refused or position < refused[batch][0]:
                        refused[batch] = (position, lease_lost(ack.id, ack.token, free))
                elif retired:
                    ignored.add((batch, position))
                else:
                    errors[batch][position] = _not_active(ack.id)
            # Valid, and yet not completed: of a batch that was left alone because of another one.
            members = [member for member in missed if member[1] not in refused and member[1] not in stepwise]
        # Where limits hold jobs back, the end of one lets another start, perhaps at another broker.
        self.coordinator.announce(hurry=any(desk.watchful for desk in self._desks.values()))
        for batch, call in enumerate(calls):
            if batch in refused:
                call.answer.fail(refused[batch][1])
            elif batch not in stepwise:
                self._acknowledge(call, errors[batch], {n for of, n in ignored if of == batch} if ignored else ())
        self.wake_limited()
        if stepwise:
            await self._complete_stepwise([calls[batch] for batch in sorted(stepwise)])

    async def _complete_plainly(self, members: list[tuple[str, int, int, Ack]]) -> bool:
        """Complete ``members`` in the cheapest way, if all are of the kind that it is for, and else none; gives whether it did."""
        if self._elaborate:
            self._elaborate -= 1
            return False
        if not members or any(ack.remove for _, _, _, ack in members):
            return False
        parameters = (*self._ack_parameters(members), Int2(PLAIN_FLAGS & ~REMOVE))
        with contextlib.suppress(psycopg.errors.DivisionByZero):  # a row was changed meanwhile
            rows = await self.feed.run_untold(self.queries.ack_plain, parameters)
            if rows[0][0]:
                return True
        self._elaborate = ELABORATE_TURNS
        return False

    def _acknowledge(self, call: Call[Sequence[Ack]], errors: dict[int, Exception], ignored: Collection[int]) -> None:
        """Answer one call, whose members were completed but for those with ``errors`` and ``ignored`` ones."""
        waits = self.waits
        held = self.held
        beats = self._beats
        for position, ack in enumerate(call.input):
            if held:
                self.let_go(ack.id)
            if position in errors or position in ignored:
                continue
            beats.ended(ack.id, ack.token)
            if waits:
                for answer in waits.pop(ack.id, ()):
                    answer.settle((True, None if ack.remove else ack.result))
        outcomes: list[Outcome] = ["applied"] * len(call.input)
        for position in ignored:
            outcomes[position] = "already-finalized"
        self.totals["completed"] += len(call.input) - len(errors) - len(ignored)
        call.answer.settle(Acknowledged(outcomes, errors))

    def _ack_parameters(self, members: list[tuple[str, int, int, Ack]]) -> tuple[Any, ...]:
        return (
            Int4(self.ns),
            arrays.texts([key for key, _, _, _ in members]),
            arrays.texts([to_key(ack.token) if ack.token else None for _, _, _, ack in members]),
            arrays.blobs([ack.result for _, _, _, ack in members]),
        )

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
                continue
            for position, ack in enumerate(call.input):
                if position not in verdict.errors:
                    self._beats.ended(ack.id, ack.token)
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
        links: list[tuple[str, str]] = []
        for record in changes.completed:
            if record.job.options.repeat is None:
                continue
            try:
                spec = self._repeats.successor(record.job, changes.now)
            except CommandError:  # a stored pattern that this system does not know ends the chain, not the completion
                spec = None
            if spec is None:
                continue
            call = (record.job.queue, record.queue_id, [spec], [self.ports.new_id()])
            (verdict,), added = await self.admit(connection, [call])
            written.append(added)
            if isinstance(verdict, Pushed) and record.job.location == Location.COMPLETED:
                links.append((record.key, to_key(verdict.ids[0])))
        if links:
            keys, successors = zip(*links, strict=True)
            await connection.execute(
                self.queries.link_successors, (Int4(self.ns), arrays.texts(keys), arrays.texts(successors))
            )
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
        await self._persist(lambda _: self._fail(calls))

    async def _fail(self, calls: list[Call[Sequence[Failure]]]) -> None:
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

        verdicts, changes = await self.commit(body)
        for call, verdict in zip(calls, verdicts, strict=True):
            if isinstance(verdict, Exception):
                call.answer.fail(verdict)
                continue
            for position, failure in enumerate(call.input):
                self.let_go(failure.id)
                if position not in verdict.errors:
                    self._beats.ended(failure.id, failure.token)
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
            elif (record is not None and failure.token and _retired(record, failure.token)) or (
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
        if beats and self.refusal() is None and self._are_young(beats):
            return self._beats.hold(beats)
        return self._renew(beats, False)

    def write_beats(self) -> None:
        """Write the signs of life that wait for an outcome at once."""
        self._beats.close()

    def _send_beats(self, beats: Sequence[Renewal]) -> Answer[list[bool]]:
        """Write signs of life that were taken already."""
        return self._renewals.add((beats, False), len(beats))

    def _are_young(self, beats: Sequence[Renewal]) -> bool:
        """Whether this broker delivered all the jobs a moment ago."""
        claimed_at, then = self._claimed_at
        oldest = claimed_at + 1000 * (asyncio.get_running_loop().time() - then) - YOUNG_MS
        held, sessions = self.held, self._sessions
        for beat in beats:
            session = held.get(beat.id)
            if session is None or sessions[session][beat.id] < oldest:
                return False
        return True

    def _renew(self, renewals: Sequence[Renewal], strict: bool) -> Answer[list[bool]]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if not renewals:
            return Answer.of([])
        return self._renewals.add((renewals, strict), len(renewals))

    async def _flush_renewals(self, calls: list[Call[tuple[Sequence[Renewal], bool]]]) -> None:
        members: list[tuple[str, int, Renewal, bool]] = []
        for call in calls:
            renewals, strict = call.input
            for renewal in renewals:
                members.append((to_key(renewal.id), len(members), renewal, strict or bool(renewal.token)))
        members.sort(key=_key_of)
        done: set[int] = set()
        while members:
            rows = await self.run(self.queries.renew, self._renew_parameters(members))
            renewed = {id for n, id in rows if n is None}
            missed: list[tuple[str, int, Renewal, bool]] = []
            for n, id in rows:
                if n is None:
                    continue
                if id in renewed:
                    done.add(members[n - 1][1])
                else:
                    missed.append(members[n - 1])
            members = missed
        at = 0
        for call in calls:
            count = len(call.input[0])
            call.answer.settle([n in done for n in range(at, at + count)])
            at += count

    def _renew_parameters(self, members: list[tuple[str, int, Renewal, bool]]) -> tuple[Any, ...]:
        return (
            Int4(self.ns),
            arrays.texts([key for key, _, _, _ in members]),
            arrays.texts([to_key(renewal.token) if renewal.token else None for _, _, renewal, _ in members]),
            arrays.bools([renews for _, _, _, renews in members]),
            arrays.bools([renews for _, _, _, renews in members]),
            arrays.int8s(
                [
                    None if renewal.duration_ms is None else max(0, int(renewal.duration_ms))
                    for _, _, renewal, _ in members
                ]
            ),
            self.broker_id,
            self.coordinator.session,
        )

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

        await self.commit(body)

    def progress_of(self, id: str) -> Answer[Progress]:
        return self.job(id).map(_progress_of_view)


def _key_of(member: tuple[Any, ...]) -> str:
    key: str = member[0]
    return key


def _retired(record: Record, token: str) -> bool:
    """Whether the broker itself ended the delivery that the token belongs to."""
    return bool(record.flags & RETIRED) and record.token == to_key(token)


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
