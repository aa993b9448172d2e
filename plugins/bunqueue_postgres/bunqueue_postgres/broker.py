"""``PostgresBroker``: the verbs of the queue on PostgreSQL, which is the authority for all of them.

The broker keeps no copy of the queue. It gathers concurrent calls into shared statements, parks pulls that found nothing, and
remembers hints (queue numbers, low-water marks, which connection holds which job); whatever it forgets costs a look-up, never
correctness. Leases, time to live, back-off and scans run on the database's clock.

A broker belongs to the event loop in which it was started: verbs are called in that loop's thread, and answers are settled there.
:class:`~bunqueue_postgres.threads.ThreadedBroker` puts a loop of its own around one for callers without a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg.types.numeric import Int2, Int4, Int8

from bunqueue_core.answer import Answer
from bunqueue_core.broker.protocol import Broker
from bunqueue_core.model.errors import (
    BrokerClosed,
    BunqueueError,
    LeaseLost,
    NotFound,
    StorageUnavailable,
)
from bunqueue_core.model.job import JobSpec, JobState, Lease, Location
from bunqueue_core.model.requests import (
    Ack,
    Acknowledged,
    Counts,
    Delivery,
    DlqConfig,
    DlqEntry,
    DlqFilter,
    Failure,
    Health,
    JobView,
    Outcome,
    Page,
    Progress,
    PullRequest,
    Pushed,
    Renewal,
    StallConfig,
)
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_postgres import arrays, schema, transitions
from bunqueue_postgres.admission import Columns, Push
from bunqueue_postgres.changes import Changes, pack_extras
from bunqueue_postgres.coordination import Coordinator
from bunqueue_postgres.database import Connection, Database
from bunqueue_postgres.errors import translate
from bunqueue_postgres.gather import Call, Gatherer
from bunqueue_postgres.keys import escape, to_key
from bunqueue_postgres.marks import Marks
from bunqueue_postgres.pulls import PullDesk, Waiter
from bunqueue_postgres.records import (
    PLAIN_FLAGS,
    OptionsCodec,
    Record,
    RecordReader,
    pack,
    pack_dlq_config,
    pack_stall_config,
    read_dlq_config,
    read_stall_config,
    state_from_columns,
)
from bunqueue_postgres.settings import CAPABILITIES, PostgresStorage
from bunqueue_postgres.sqlfiles import load_queries

T = TypeVar("T")

#: Bits of a queue's ``features``: some job of it expires.
FEATURE_EXPIRING: Final = 1

#: Expired jobs that one pull removes at most.
EXPIRED_ROWS: Final = 1_000

#: Jobs that one step of recovery, release or shutdown handles.
STEP_ROWS: Final = 500

#: Queue numbers that the broker remembers.
QUEUES_REMEMBERED: Final = 10_000

_LISTED_STATES: Final[tuple[JobState, ...]] = (
    "waiting",
    "prioritized",
    "delayed",
    "waiting-children",
    "active",
    "completed",
    "failed",
)


class PostgresBroker(Broker):
    """See the module's head.

    Args:
        settings: the driver's settings.
        context: what the core hands to a driver.
    """

    capabilities = CAPABILITIES

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        self._settings = settings
        self._ports = context.ports
        self._log = context.log
        self._queries = load_queries()
        self.broker_id = settings.broker_id or (
            f"{socket.gethostname()}:{os.getpid()}:{uuid.UUID(context.ports.new_id()).hex[-12:]}"
        )
        self._database = Database(settings, self.broker_id, self._database_changed)
        self._codec = OptionsCodec()
        self._reader = RecordReader(self._codec)
        self._ns = 0
        self._started = False
        self._closing = False
        self._closed: Answer[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._queue_ids: dict[str, int] = {}
        self._desks: dict[str, PullDesk] = {}
        self._marks = Marks()
        self._held: dict[str, str] = {}  #: job id → session, of deliveries that a session would hand back
        self._sessions: dict[str, dict[str, int]] = {}  #: session → job id → started_at of the delivery
        self._waits: dict[str, list[Answer[tuple[bool, bytes | None]]]] = {}
        self._totals = {"pushed": 0, "pulled": 0, "completed": 0, "failed": 0}
        self._since: dict[str, tuple[str, int]] = {}  #: open problems by subject: text, first seen (epoch ms)
        self._coordinator = Coordinator(self)
        self._pushes: Gatherer[Push] = Gatherer(self._flush_pushes, self._spawn)
        self._named_pushes: Gatherer[Push] = Gatherer(self._flush_named_pushes, self._spawn)
        self._acks: Gatherer[Sequence[Ack]] = Gatherer(self._flush_acks, self._spawn, _ids_of)
        self._failures: Gatherer[Sequence[Failure]] = Gatherer(self._flush_failures, self._spawn, _ids_of)
        self._renewals: Gatherer[tuple[Sequence[Renewal], bool]] = Gatherer(self._flush_renewals, self._spawn)
        self._state_reads: Gatherer[Sequence[str]] = Gatherer(self._flush_states, self._spawn)
        self._result_reads: Gatherer[Sequence[str]] = Gatherer(self._flush_results, self._spawn)
        self._job_reads: Gatherer[Sequence[str]] = Gatherer(self._flush_jobs, self._spawn)

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> Answer[None]:
        return self._answer(self._start())

    async def _start(self) -> None:
        try:
            connection = await self._database.connect()
            try:
                await schema.initialise(connection)
                cursor = await connection.execute(self._queries.namespace, (self._settings.namespace,))
                row = await cursor.fetchone()
                assert row is not None
                self._ns = int(row[0])
            finally:
                await connection.close()
            await self._database.open()
            await self._coordinator.start()
        except BaseException as error:
            await self._database.close(5.0)
            if isinstance(error, psycopg.Error | OSError):
                raise translate(error) from error
            raise
        self._started = True

    def close(self, deadline_s: float = 30.0) -> Answer[None]:
        if self._closed is None:
            self._closing = True
            self._closed = self._answer(self._close(deadline_s))
        return self._closed

    async def _close(self, deadline_s: float) -> None:
        for desk in list(self._desks.values()):
            desk.close()
        for answers in self._waits.values():
            for answer in answers:
                answer.settle((False, None))
        self._waits.clear()
        if self._started:
            try:
                async with asyncio.timeout(deadline_s):
                    await self._coordinator.stop()
                    # What was admitted is finished; then nothing of this session can be claimed any more, and its leases go back.
                    while others := [task for task in self._tasks if task is not asyncio.current_task()]:
                        await asyncio.wait(others)
                    await self._hand_back_all()
                    await self._coordinator.unregister()
            except (TimeoutError, psycopg.Error, BunqueueError) as error:
                # The leases end by themselves; what was accepted is committed.
                self._log(
                    "warning", "PostgreSQL broker closed without handing back its jobs", error=type(error).__name__
                )
        await self._database.close(5.0)

    async def _hand_back_all(self) -> None:
        """Put every job that is leased through this session back, uncharged."""
        session = self._coordinator.session

        def decide(record: Record, _: int) -> transitions.Outcome | None:
            return transitions.given_back(record.job) if record.session == session else None

        while True:
            rows = await self._database.run(self._queries.held, (Int4(self._ns), session, Int4(STEP_ROWS)))
            if not rows:
                return
            await self._decide([key for (key,) in rows], decide)

    def health(self) -> Health:
        problems = sorted(self._since.values(), key=lambda problem: problem[1])
        if not self._started or self._closing:
            return Health(False, True, "the broker is closed" if self._closing else "the broker is not started")
        if problems:
            text, since = problems[0]
            return Health(False, True, text, since=since)
        return Health(True)

    def statistics(self) -> dict[str, int | float]:
        active, queued = self._database.load
        totals = self._totals
        return {
            "totalPushed": totals["pushed"],
            "totalPulled": totals["pulled"],
            "totalCompleted": totals["completed"],
            "totalFailed": totals["failed"],
            "databaseOperations": active,
            "databaseOperationsQueued": queued,
            "databaseStatements": self._database.statements,
            "gatheredRows": sum(
                gatherer.waiting_rows for gatherer in (self._pushes, self._named_pushes, self._acks, self._failures)
            ),
            "parkedPulls": sum(len(desk.parked) for desk in self._desks.values()),
            "connectedJobs": len(self._held),
            "liveBrokers": self._coordinator.brokers,
        }

    def problem(self, subject: str, text: str | None) -> None:
        """Open (``text``) or end (None) a problem that makes the broker unready."""
        if text is None:
            self._since.pop(subject, None)
        elif subject not in self._since:
            self._since[subject] = (text, self._ports.now())
            self._log("error", "PostgreSQL storage is degraded", subject=subject, problem=text)

    def _database_changed(self, reason: str | None) -> None:
        self.problem("database", reason)
        if reason is None:
            self._coordinator.reconnected()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _answer(self, work: Coroutine[Any, Any, T]) -> Answer[T]:
        """The answer of a verb that needs its own statements."""
        answer: Answer[T] = Answer()

        async def run() -> None:
            try:
                answer.settle(await work)
            except psycopg.Error as error:
                answer.fail(translate(error))
            except asyncio.CancelledError:
                answer.fail(BrokerClosed("the broker is closed"))
                raise
            except Exception as error:
                answer.fail(error)

        self._spawn(run())
        return answer

    def _refusal(self) -> BunqueueError | None:
        if self._closing or not self._started:
            return BrokerClosed("the broker is closed" if self._closing else "the broker is not started")
        return None

    # -- produce ------------------------------------------------------------------------------------------------------

    def push(self, queue: str, specs: Sequence[JobSpec]) -> Answer[Pushed]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if not specs:
            return Answer.of(Pushed([], []))
        try:
            push = Push(queue, specs, self._codec, self._ports.new_id)
        except BunqueueError as error:
            return Answer.failed(error)
        return (self._named_pushes if push.named else self._pushes).add(push, len(specs))

    async def _number_queues(self, calls: Sequence[Call[Push]]) -> None:
        """Give every job its queue's number, registering queues that are new."""
        known = self._queue_ids
        unknown = sorted({call.input.queue for call in calls if call.input.queue not in known})
        if unknown:
            while len(known) + len(unknown) > QUEUES_REMEMBERED and known:
                known.pop(next(iter(known)))
            # Twice: a name that another broker registered at the same moment is in neither half of the first answer.
            for _ in range(2):
                rows = await self._database.run(self._queries.register_queues, (Int4(self._ns), arrays.texts(unknown)))
                known.update((name, id) for id, name in rows)
                if len(rows) >= len(unknown):
                    break
        for call in calls:
            columns = call.input.columns
            columns.queue_ids = [known[call.input.queue]] * len(columns.keys)

    async def _flush_pushes(self, calls: list[Call[Push]]) -> None:
        await self._number_queues(calls)
        if len(calls) == 1:
            columns = calls[0].input.columns
        else:
            columns = Columns()
            for call in calls:
                columns.extend(call.input.columns)
        await self._database.run(self._queries.push, columns.parameters(Int4(self._ns)))
        self._totals["pushed"] += len(columns.keys)
        for call in calls:
            self._announce_push(call.input)
            ids = call.input.ids
            call.answer.settle(Pushed(ids, ["created"] * len(ids)))

    async def _flush_named_pushes(self, calls: list[Call[Push]]) -> None:
        await self._number_queues(calls)
        columns = Columns()
        first: set[str] = set()
        for call in calls:
            for position, key in enumerate(call.input.columns.keys):
                if key not in first:
                    first.add(key)
                    columns.take(call.input.columns, position)
        rows = await self._database.run(self._queries.push_named, columns.parameters(Int4(self._ns)))
        created = {key for (key,) in rows}
        self._totals["pushed"] += len(created)
        for call in calls:
            outcomes: list[Any] = []
            for key in call.input.columns.keys:
                outcomes.append("created" if key in created else "found")
                created.discard(key)
            self._announce_push(call.input)
            call.answer.settle(Pushed(call.input.ids, outcomes))

    def _announce_push(self, push: Push) -> None:
        if push.backdated:
            self._marks.forget(push.queue)
        if push.ready:
            self.wake(push.queue, push.ready)
        if push.delayed_ms is not None:
            desk = self._desks.get(push.queue)
            if desk is not None:
                desk.wake_in(push.delayed_ms)
        self._coordinator.announce()

    def wake(self, queue: str, jobs: int) -> None:
        """``jobs`` jobs of ``queue`` became claimable."""
        desk = self._desks.get(queue)
        if desk is not None:
            desk.wake(jobs)

    # -- pull ---------------------------------------------------------------------------------------------------------

    def pull(self, request: PullRequest) -> Answer[list[Delivery]]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if request.count <= 0:
            return Answer.of([])
        desk = self._desks.get(request.queue)
        if desk is None:
            desk = self._desks[request.queue] = PullDesk(
                request.queue, self._claim, self._take_back, self._spawn, self._forget_desk
            )
        return desk.pull(request)

    def _forget_desk(self, desk: PullDesk) -> None:
        if self._desks.get(desk.queue) is desk:
            del self._desks[desk.queue]

    @property
    def desks(self) -> dict[str, PullDesk]:
        """Queues with pulls at this broker."""
        return self._desks

    async def queue_id(self, name: str) -> int | None:
        """Number of a queue, None if it is not registered."""
        known = self._queue_ids.get(name)
        if known is None:
            rows = await self._database.run(self._queries.queue, (Int4(self._ns), name))
            if not rows:
                return None
            known = self._queue_ids[name] = rows[0][0]
        return known

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
            new_token = self._ports.new_token
            lease_ms = self._settings.effective_lease_ms
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
            marks = self._marks.of(queue, asyncio.get_running_loop().time())
            rows = await self._database.run(
                self._queries.claim,
                (
                    Int4(self._ns),
                    Int4(queue_id),
                    self.broker_id,
                    self._coordinator.session,
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
            self._coordinator.fenced()
            raise StorageUnavailable("this broker's session has been taken over")
        if features & FEATURE_EXPIRING and not paused:
            await self._expire(queue_id)
        claimed = rows if rows[0][4] is not None else []
        self._totals["pulled"] += len(claimed)
        return self._deal(queue, waiters, claimed, tokens)

    def _deal(
        self, queue: str, waiters: list[Waiter], rows: list[tuple[Any, ...]], tokens: list[str | None]
    ) -> list[list[Delivery]]:
        """Share claimed rows out: the n-th row belongs to the n-th slot, and slots to the pulls in order."""
        dealt: list[list[Delivery]] = []
        claimed = self._reader.claimed
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
                deliveries.append(Delivery(job, token))
                at += 1
            slot += request.count
            dealt.append(deliveries)
        if rows:
            self._marks.claimed(queue, [(row[12], row[14], row[5], row[17]) for row in rows])
        return dealt

    async def _expire(self, queue_id: int) -> None:
        """Remove queued jobs whose time to live is over."""
        await self._database.run(self._queries.expire, (Int4(queue_id), Int4(EXPIRED_ROWS)))

    def _hold(self, session: str, id: str, started_at: int) -> None:
        self._held[id] = session
        jobs = self._sessions.get(session)
        if jobs is None:
            jobs = self._sessions[session] = {}
        jobs[id] = started_at

    def _let_go(self, id: str) -> None:
        session = self._held.pop(id, None)
        if session is not None:
            jobs = self._sessions.get(session)
            if jobs is not None:
                jobs.pop(id, None)
                if not jobs:
                    del self._sessions[session]

    def _take_back(self, deliveries: list[Delivery]) -> None:
        """Undo deliveries that nobody took."""
        taken = {delivery.job.id: delivery for delivery in deliveries}
        for id in taken:
            self._let_go(id)

        def decide(record: Record, _: int) -> transitions.Outcome | None:
            delivery = taken[record.job.id]
            if record.job.location != Location.ACTIVE or record.started_at != delivery.job.started_at:
                return None
            if (record.token if record.owner is not None else None) != delivery.token:
                return None
            return transitions.given_back(record.job)

        async def work() -> None:
            with contextlib.suppress(psycopg.Error, BunqueueError):  # then the lease ends by itself
                await self._decide([to_key(id) for id in taken], decide)

        self._spawn(work())

    def release(self, session: str) -> Answer[int]:
        for desk in list(self._desks.values()):
            desk.release(session)
        jobs = self._sessions.pop(session, None)
        if not jobs:
            return Answer.of(0)
        for id in jobs:
            self._held.pop(id, None)
        return self._answer(self._release(jobs))

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

        policies = self._policies
        released = 0
        keys = [to_key(id) for id in jobs]
        for at in range(0, len(keys), STEP_ROWS):
            released += await self._decide(keys[at : at + STEP_ROWS], decide)
        return released

    # -- decisions on locked jobs -------------------------------------------------------------------------------------

    def _policies(self, record: Record) -> transitions.Policies:
        return transitions.Policies(record.stall, record.dlq, self._ports.random)

    async def _lock(self, connection: Connection, keys: list[str]) -> tuple[int, dict[str, Record]]:
        """Lock jobs; gives the time and their records by key."""
        cursor = connection.cursor(binary=True)
        await cursor.execute(self._queries.lock, (Int4(self._ns), arrays.texts(sorted(keys))))
        records: dict[str, Record] = {}
        now = 0
        for row in await cursor.fetchall():
            record = self._reader.record(row[:-3])
            record.stall = read_stall_config(row[-2])
            record.dlq = read_dlq_config(row[-1])
            now = max(now, row[-3])
            records[record.key] = record
        return now, records

    async def _decide(
        self, keys: list[str], decide: Callable[[Record, int], transitions.Outcome | None], *, pick: Any = None
    ) -> int:
        """Lock jobs, ask ``decide`` what becomes of each (None: nothing), and write it. Gives the number that changed."""

        async def body(connection: Connection) -> tuple[int, Changes]:
            chosen = keys if pick is None else await pick(connection)
            now, records = await self._lock(connection, chosen)
            changes = Changes(now)
            changed = 0
            for record in records.values():
                outcome = decide(record, now)
                if outcome is not None:
                    changes.add(record, outcome, record.dlq)
                    changed += 1
            if changed:
                await changes.write(connection, self._queries, self._ns)
            return changed, changes

        changed, changes = await self._database.transaction(body)
        self._written(changes)
        return changed

    def _written(self, changes: Changes) -> None:
        """Tell whoever waits what a committed transaction changed."""
        for queue, jobs in changes.ready.items():
            # They may stand before what was claimed last.
            self._marks.forget(queue)
            self.wake(queue, jobs)
        for queue, delay in changes.due.items():
            desk = self._desks.get(queue)
            if desk is not None:
                desk.wake_in(delay)
        for id in changes.ended:
            self._let_go(id)
            for answer in self._waits.pop(id, ()):
                answer.settle((False, None))
        self._totals["failed"] += len(changes.ended)
        if changes.crowded:
            self._coordinator.crowded(changes.crowded)
        if changes.ready or changes.ended or changes.due:
            self._coordinator.announce()

    async def recover(self) -> int:
        """Put back, or end, jobs whose lease is over; gives their number (at most :data:`STEP_ROWS`)."""

        async def pick(connection: Connection) -> list[str]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(self._queries.expired, (Int4(self._ns), Int4(STEP_ROWS)))
            return [key for (key,) in await cursor.fetchall()]

        def decide(record: Record, now: int) -> transitions.Outcome | None:
            job = record.job
            if job.location != Location.ACTIVE or record.lease_until is None or record.lease_until > now:
                return None
            policies = self._policies(record)
            timeout = job.options.timeout_ms
            if timeout and record.started_at is not None and record.started_at + timeout <= now:
                return transitions.failed(job, now, policies, transitions.TIMEOUT_ERROR, reason="timeout")
            if record.owner is None:
                return transitions.stalled(job, now, policies)
            return transitions.lease_expired(job, now, policies, record.renewals)

        return await self._decide([], decide, pick=pick)

    async def trim_dead_letters(self, queue_id: int) -> None:
        """Remove the oldest dead letters of a queue beyond its bound."""
        rows = await self._database.run(self._queries.policies, (Int4(queue_id),))
        for (dlq,) in rows:
            bound = read_dlq_config(dlq).max_entries
            await self._database.run(self._queries.dead_surplus, (Int4(queue_id), Int8(bound)))

    # -- acknowledge --------------------------------------------------------------------------------------------------

    def ack(self, acks: Sequence[Ack]) -> Answer[Acknowledged]:
        refusal = self._refusal()
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
        rows = await self._database.run(
            self._queries.ack,
            (
                Int4(self._ns),
                arrays.texts(keys),
                arrays.texts(tokens),
                arrays.blobs(results),
                arrays.bools(removes),
                arrays.int4s(batches),
                Int2(PLAIN_FLAGS),
            ),
        )
        refused: dict[int, tuple[int, Exception]] = {}
        for n, status, valid, _plain, free in rows:
            batch, position = places[n - 1]
            ack = calls[batch].input[position]
            if status == Location.ACTIVE and not valid:
                if batch not in refused or position < refused[batch][0]:
                    refused[batch] = (position, _lease_lost(ack.id, ack.token, free))
            elif not valid:
                errors[batch][position] = _not_active(ack.id)
        for batch, call in enumerate(calls):
            if batch in refused:
                call.answer.fail(refused[batch][1])
                continue
            failed = errors[batch]
            waits = self._waits
            held = self._held
            for position, ack in enumerate(call.input):
                if held:
                    self._let_go(ack.id)
                if waits and position not in failed:
                    for answer in waits.pop(ack.id, ()):
                        answer.settle((True, None if ack.remove else ack.result))
            self._totals["completed"] += len(call.input) - len(failed)
            call.answer.settle(Acknowledged(["applied"] * len(call.input), failed))
        self._coordinator.announce()

    # -- fail ---------------------------------------------------------------------------------------------------------

    def fail(self, failures: Sequence[Failure]) -> Answer[Acknowledged]:
        refusal = self._refusal()
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
            now, records = await self._lock(connection, keys)
            changes = Changes(now)
            verdicts: list[Acknowledged | Exception] = []
            wrote = False
            for call in calls:
                verdict = self._failures_of(call.input, records, now, changes)
                verdicts.append(verdict)
                wrote = wrote or isinstance(verdict, Acknowledged)
            if wrote:
                await changes.write(connection, self._queries, self._ns)
            return verdicts, changes

        verdicts, changes = await self._database.transaction(body)
        for call, verdict in zip(calls, verdicts, strict=True):
            if isinstance(verdict, Exception):
                call.answer.fail(verdict)
                continue
            for failure in call.input:
                self._let_go(failure.id)
            call.answer.settle(verdict)
        self._written(changes)

    def _failures_of(
        self, failures: Sequence[Failure], records: dict[str, Record], now: int, changes: Changes
    ) -> Acknowledged | Exception:
        """Check and apply one call's failures to locked records."""
        for failure in failures:
            record = records.get(to_key(failure.id))
            if record is not None and record.job.location == Location.ACTIVE and not _owns(record, failure.token, now):
                return _lease_lost(failure.id, failure.token, record.owner is None)
        outcomes: list[Outcome] = []
        errors: dict[int, Exception] = {}
        for position, failure in enumerate(failures):
            outcomes.append("applied")
            record = records.get(to_key(failure.id))
            if record is not None and record.job.location == Location.ACTIVE:
                outcome = transitions.failed(
                    record.job,
                    now,
                    self._policies(record),
                    failure.error,
                    failure.stack,
                    unrecoverable=failure.unrecoverable,
                    remove=failure.remove,
                )
                changes.add(record, outcome, record.dlq)
                if outcome.removed:
                    record.job.location = Location.GONE
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
        refusal = self._refusal()
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
        rows = await self._database.run(
            self._queries.renew,
            (
                Int4(self._ns),
                arrays.texts(keys),
                arrays.texts(tokens),
                arrays.bools(renews),
                arrays.bools(stricts),
                arrays.int8s(durations),
                self.broker_id,
                self._coordinator.session,
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
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self._answer(self._progress(id, min(100, max(0, progress)), message, keep_message))

    async def _progress(self, id: str, value: int | float, message: str | None, keep_message: bool) -> None:
        pack(message)
        key = to_key(id)

        async def body(connection: Connection) -> None:
            now, records = await self._lock(connection, [key])
            record = records.get(key)
            if record is None:
                raise NotFound("Job not found")
            if record.job.location != Location.ACTIVE:
                raise NotFound(f"Job is not active (current state: {record.state(now)})")
            text = record.job.progress_message if keep_message else message
            extra: dict[str, Any] = {"progress": value, "data": {"progress": value, "message": text}}
            await connection.execute(
                self._queries.set_progress,
                (
                    Int4(self._ns),
                    key,
                    pack([value, text]),
                    Int8(self._settings.effective_lease_ms),
                    pack_extras([extra]),
                ),
            )

        await self._database.transaction(body)

    def progress_of(self, id: str) -> Answer[Progress]:
        return self.job(id).map(_progress_of_view)

    # -- query --------------------------------------------------------------------------------------------------------

    def job(self, id: str) -> Answer[JobView | None]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self._job_reads.add([id], 1).map(_first)

    async def _flush_jobs(self, calls: list[Call[Sequence[str]]]) -> None:
        keys = list({to_key(id) for call in calls for id in call.input})
        views = await self._views(keys)
        for call in calls:
            call.answer.settle([views.get(to_key(id)) for id in call.input])

    async def _views(self, keys: list[str]) -> dict[str, JobView]:
        rows = await self._database.run(self._queries.read, (Int4(self._ns), arrays.texts(keys)))
        return {row[0]: self._reader.record(row[:-1]).view(row[-1]) for row in rows}

    def job_by_custom_id(self, custom_id: str) -> Answer[JobView | None]:
        return self.job(custom_id).map(
            lambda view: view if view is not None and view.job.custom_id is not None else None
        )

    def jobs(self, queue: str, states: Sequence[JobState], page: Page) -> Answer[list[JobView]]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self._answer(self._jobs(queue, states, page))

    async def _jobs(self, queue: str, states: Sequence[JobState], page: Page) -> list[JobView]:
        wanted = set(states) if states else set(_LISTED_STATES)
        if states:
            rows = await self._database.run(self._queries.queue, (Int4(self._ns), queue))
            if rows and rows[0][1]:
                # While a queue is paused its ready jobs show as paused only.
                ready: set[JobState] = {"waiting", "prioritized"}
                wanted -= ready
                if "paused" in wanted:
                    wanted |= ready
        limit = self._settings.max_snapshot_jobs if page.limit is None else max(0, page.limit)
        rows = await self._database.run(
            self._queries.list,
            (
                Int4(self._ns),
                queue,
                *(state in wanted for state in _LISTED_STATES),
                page.ascending,
                Int8(max(0, page.offset)),
                Int8(min(limit, self._settings.max_snapshot_jobs)),
            ),
        )
        keys = [key for (key,) in rows]
        views = await self._views(keys)
        return [views[key] for key in keys if key in views]

    def states(self, ids: Sequence[str]) -> Answer[list[JobState]]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if not ids:
            return Answer.of([])
        return self._state_reads.add(ids, len(ids))

    async def _flush_states(self, calls: list[Call[Sequence[str]]]) -> None:
        keys = list({to_key(id) for call in calls for id in call.input})
        rows = await self._database.run(self._queries.states, (Int4(self._ns), arrays.texts(keys)))
        known: dict[str, JobState] = {
            key: state_from_columns(status, priority, run_at, now) for key, status, priority, run_at, now in rows
        }
        for call in calls:
            call.answer.settle([known.get(to_key(id), "unknown") for id in call.input])

    def results(self, ids: Sequence[str]) -> Answer[list[bytes | None]]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if not ids:
            return Answer.of([])
        return self._result_reads.add(ids, len(ids))

    async def _flush_results(self, calls: list[Call[Sequence[str]]]) -> None:
        keys = list({to_key(id) for call in calls for id in call.input})
        rows = await self._database.run(self._queries.outcomes, (Int4(self._ns), arrays.texts(keys)))
        known = {key: result for key, _, result in rows if result is not None}
        for call in calls:
            call.answer.settle([known.get(to_key(id)) for id in call.input])

    def counts(self, queue: str) -> Answer[Counts]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self._answer(self._counts(queue))

    async def _counts(self, queue: str) -> Counts:
        rows = await self._database.run(self._queries.counts, (Int4(self._ns), queue))
        if not rows:
            return Counts()
        paused, waiting, prioritized, delayed, active, completed, failed, gated = rows[0]
        counts = Counts(waiting, prioritized, delayed, active, completed, failed, gated)
        if paused:
            counts.paused = waiting + prioritized
            counts.waiting = counts.prioritized = 0
        return counts

    def counts_per_priority(self, queue: str) -> Answer[dict[int, int]]:
        return self._read(self._queries.priorities, queue).map(lambda rows: {row[0]: row[1] for row in rows})

    def queues(self) -> Answer[list[str]]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        answer = self._answer(self._database.run(self._queries.queues, (Int4(self._ns),)))
        return answer.map(lambda rows: [row[0] for row in rows])

    def _read(self, query: bytes, queue: str) -> Answer[list[tuple[Any, ...]]]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self._answer(self._database.run(query, (Int4(self._ns), queue)))

    def wait(self, id: str, timeout_ms: int) -> Answer[tuple[bool, bytes | None]]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self._answer(self._wait(id, timeout_ms))

    async def _wait(self, id: str, timeout_ms: int) -> tuple[bool, bytes | None]:
        # Registered before the look, so that an end between the two is not missed.
        ended: Answer[tuple[bool, bytes | None]] = Answer()
        self._waits.setdefault(id, []).append(ended)
        try:
            if not await self.look_at_waits([id]):
                raise NotFound("Job not found")
            if not ended.ready:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0, timeout_ms) / 1000):
                        return await ended
                return False, None
            return ended.value
        finally:
            answers = self._waits.get(id)
            if answers is not None and ended in answers:
                answers.remove(ended)
                if not answers:
                    del self._waits[id]

    async def look_at_waits(self, ids: Sequence[str]) -> bool:
        """Answer waits for jobs that have ended; gives whether any of ``ids`` is known."""
        keys = {to_key(id): id for id in ids}
        rows = await self._database.run(self._queries.outcomes, (Int4(self._ns), arrays.texts(list(keys))))
        found = {keys[key]: (status, result) for key, status, result in rows}
        for id in ids:
            status, result = found.get(id, (Location.GONE, None))
            if status == Location.COMPLETED:
                outcome: tuple[bool, bytes | None] = (True, result)
            elif id in found and status == Location.GONE:
                outcome = (True, None)  # completed and removed
            elif status in (Location.DEAD, Location.GONE):
                outcome = (False, None)
            else:
                continue
            if id in found or id in self._waits:
                for answer in self._waits.pop(id, ()):
                    answer.settle(outcome)
        return any(status != Location.GONE for status, _ in found.values())

    @property
    def waited(self) -> list[str]:
        """Jobs whose end somebody waits for at this broker."""
        return list(self._waits)

    # -- control ------------------------------------------------------------------------------------------------------

    def pause(self, queue: str) -> Answer[None]:
        return self._set_paused(queue, True)

    def resume(self, queue: str) -> Answer[None]:
        return self._set_paused(queue, False)

    def _set_paused(self, queue: str, paused: bool) -> Answer[None]:
        async def work() -> None:
            await self._database.run(self._queries.set_paused, (Int4(self._ns), queue, paused))
            if not paused:
                self.wake(queue, 1_000_000)
            self._coordinator.announce()

        refusal = self._refusal()
        return Answer.failed(refusal) if refusal is not None else self._answer(work())

    def is_paused(self, queue: str) -> Answer[bool]:
        return self._read(self._queries.queue, queue).map(lambda rows: bool(rows and rows[0][1]))

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_letters(self, queue: str, count: int | None, filter: DlqFilter | None) -> Answer[list[DlqEntry]]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)

        async def work() -> list[DlqEntry]:
            return [record.dead_letter() for record in await self._dead(queue, count, filter)]

        return self._answer(work())

    async def _dead(self, queue: str, count: int | None, filter: DlqFilter | None) -> list[Record]:
        """Dead letters of ``queue``, oldest first: those that match, then the first ``count``."""
        limit = self._settings.max_snapshot_jobs if count is None or filter is not None else max(0, count)
        rows = await self._database.run(
            self._queries.dead, (Int4(self._ns), queue, Int8(min(limit, self._settings.max_snapshot_jobs)))
        )
        keys = [key for (key,) in rows]
        read = await self._database.run(self._queries.read, (Int4(self._ns), arrays.texts(keys)))
        by_key = {row[0]: (self._reader.record(row[:-1]), row[-1]) for row in read}
        records = [by_key[key] for key in keys if key in by_key and by_key[key][0].dead is not None]
        if filter is None:
            return [record for record, _ in records]
        matching = [record for record, now in records if _matches(record.dead_letter(), filter, now)]
        matching = matching[max(0, filter.offset) :]
        if filter.limit:
            matching = matching[: filter.limit]
        return matching if count is None else matching[: max(0, count)]

    def retry_dead_letters(
        self, queue: str, id: str | None = None, count: int | None = None, filter: DlqFilter | None = None
    ) -> Answer[int]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self._answer(self._retry_dead_letters(queue, id, count, filter))

    async def _retry_dead_letters(self, queue: str, id: str | None, count: int | None, filter: DlqFilter | None) -> int:
        if filter is not None:
            keys = [record.key for record in await self._dead(queue, None, filter)]
        elif id is not None:
            keys = [to_key(id)]
        else:
            keys = [record.key for record in await self._dead(queue, count, None)]

        def decide(record: Record, now: int) -> transitions.Outcome | None:
            if record.job.location != Location.DEAD or record.job.queue != queue:
                return None
            return transitions.retried(record.job, now, record.dead_letter())

        retried = 0
        for at in range(0, len(keys), STEP_ROWS):
            retried += await self._decide(keys[at : at + STEP_ROWS], decide)
        return retried

    def remove_dead_letter(self, queue: str, id: str) -> Answer[bool]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self._answer(self._erase_dead(queue, [to_key(id)])).map(bool)

    def purge_dead_letters(self, queue: str) -> Answer[int]:
        refusal = self._refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self._answer(self._purge(queue))

    async def _purge(self, queue: str) -> int:
        purged = 0
        while True:
            rows = await self._database.run(self._queries.dead, (Int4(self._ns), queue, Int8(STEP_ROWS)))
            erased = await self._erase_dead(queue, [key for (key,) in rows]) if rows else 0
            purged += erased
            if not erased:
                return purged

    async def _erase_dead(self, queue: str, keys: list[str]) -> int:
        async def body(connection: Connection) -> int:
            now, records = await self._lock(connection, keys)
            changes = Changes(now)
            erased = 0
            for record in records.values():
                if record.job.location == Location.DEAD and record.job.queue == queue:
                    changes.erase(record)
                    erased += 1
            if erased:
                await changes.write(connection, self._queries, self._ns)
            return erased

        return await self._database.transaction(body)

    def dlq_config(self, queue: str) -> Answer[DlqConfig]:
        return self._read(self._queries.queue, queue).map(lambda rows: read_dlq_config(rows[0][3] if rows else None))

    def set_dlq_config(self, queue: str, config: DlqConfig) -> Answer[None]:
        return self._set_policies(queue, None, config)

    def stall_config(self, queue: str) -> Answer[StallConfig]:
        return self._read(self._queries.queue, queue).map(lambda rows: read_stall_config(rows[0][2] if rows else None))

    def set_stall_config(self, queue: str, config: StallConfig) -> Answer[None]:
        return self._set_policies(queue, config, None)

    def _set_policies(self, queue: str, stall: StallConfig | None, dlq: DlqConfig | None) -> Answer[None]:
        async def work() -> None:
            rows = await self._database.run(
                self._queries.set_policies,
                (
                    Int4(self._ns),
                    queue,
                    None if stall is None else pack_stall_config(stall),
                    None if dlq is None else pack_dlq_config(dlq),
                ),
            )
            if dlq is not None:
                await self._database.run(self._queries.dead_surplus, (Int4(rows[0][0]), Int8(dlq.max_entries)))

        refusal = self._refusal()
        return Answer.failed(refusal) if refusal is not None else self._answer(work())


def _ids_of(items: Sequence[Ack] | Sequence[Failure]) -> list[str]:
    return [item.id for item in items]


def _first(values: list[Any]) -> Any:
    return values[0]


def _not_active(id: str) -> NotFound:
    return NotFound(f"Job not found or not in processing state: {id}")


def _lease_lost(id: str, token: str | None, free: bool) -> LeaseLost:
    if not token and not free:
        return LeaseLost(f"Lock token required for job {id}")
    return LeaseLost(f"Invalid or expired lock token for job {id}")


def _owns(record: Record, token: str | None, now: int) -> bool:
    """Whether an outcome with ``token`` belongs to the delivery that an active job is under, and in time."""
    if record.lease_until is None or record.lease_until <= now:
        return False
    key = to_key(token) if token else None
    if record.owner is None:
        return key is None or key != record.token
    return key == record.token


def _progress_of_view(view: JobView | None) -> Progress:
    if view is None:
        raise NotFound("Job not found")
    if view.state != "active":
        raise NotFound(f"Job is not active (current state: {view.state})")
    return Progress(view.job.progress, view.job.progress_message)


def _matches(entry: DlqEntry, filter: DlqFilter, now: int) -> bool:
    if filter.reason is not None and entry.reason != filter.reason:
        return False
    if filter.older_than is not None and entry.entered_at > filter.older_than:
        return False
    if filter.newer_than is not None and entry.entered_at < filter.newer_than:
        return False
    if filter.retriable and (entry.next_retry_at is None or entry.next_retry_at > now):
        return False
    return not filter.expired or (entry.expires_at is not None and entry.expires_at <= now)
