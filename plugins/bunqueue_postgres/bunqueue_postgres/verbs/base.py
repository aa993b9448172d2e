"""What all verbs stand on: the broker's state, its ways to run statements, and decisions on locked jobs."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import psycopg
from psycopg.types.numeric import Int4

from bunqueue_core.answer import Answer
from bunqueue_core.broker.protocol import Broker
from bunqueue_core.model.errors import (
    BrokerClosed,
    BunqueueError,
    LeaseLost,
)
from bunqueue_core.model.job import JobOptions, Location
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_postgres import arrays, transitions
from bunqueue_postgres.changes import Changes
from bunqueue_postgres.coordination import Coordinator
from bunqueue_postgres.database import Connection, Database
from bunqueue_postgres.errors import translate
from bunqueue_postgres.events import Feed
from bunqueue_postgres.gather import Call, Gatherer
from bunqueue_postgres.keys import to_key
from bunqueue_postgres.marks import Marks
from bunqueue_postgres.notices import NoticeBoard
from bunqueue_postgres.planning import LINKABLE
from bunqueue_postgres.pulls import PullDesk
from bunqueue_postgres.records import (
    AWAITED,
    OptionsCodec,
    Record,
    RecordReader,
    read_dlq_config,
    read_stall_config,
)
from bunqueue_postgres.settings import CAPABILITIES, PostgresStorage
from bunqueue_postgres.sqlfiles import load_queries

if TYPE_CHECKING:
    from bunqueue_postgres.broker import PostgresBroker

T = TypeVar("T")

#: Jobs that one step of recovery, release or shutdown handles.
STEP_ROWS: Final = 500


class BrokerBase(Broker):
    """State and shared steps. Verbs live in the classes that derive from it, one module a family."""

    capabilities = CAPABILITIES

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        self.settings = settings
        self.ports = context.ports
        self.log = context.log
        self.strategies = context.strategies or BACKOFF_STRATEGIES
        self.queries = load_queries()
        self.broker_id = settings.broker_id or (
            f"{socket.gethostname()}:{os.getpid()}:{uuid.UUID(context.ports.new_id()).hex[-12:]}"
        )
        self.database = Database(settings, self.broker_id, self._database_changed)
        self.codec = OptionsCodec()
        self.reader = RecordReader(self.codec)
        self.ns = 0
        self.started = False
        self.closing = False
        self.draining = False
        self._closed: Answer[None] | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self._queue_ids: dict[str, int] = {}
        self._queue_reads: dict[bytes, Gatherer[str]] = {}  #: by statement
        self._desks: dict[str, PullDesk] = {}
        self.marks = Marks()
        self.held: dict[str, str] = {}  #: job id → session, of deliveries that a session would hand back
        self._sessions: dict[str, dict[str, int]] = {}  #: session → job id → started_at of the delivery
        self.detached = False  #: something was delivered without a session
        self.waits: dict[str, list[Answer[tuple[bool, bytes | None]]]] = {}
        self.totals = {"pushed": 0, "pulled": 0, "completed": 0, "failed": 0}
        self._since: dict[str, tuple[str, int]] = {}  #: open problems by subject: text, first seen (epoch ms)
        self.coordinator = Coordinator(cast("PostgresBroker", self))
        self.feed = Feed(cast("PostgresBroker", self))
        self.notices = NoticeBoard(cast("PostgresBroker", self))

    # -- work ---

    def problem(self, subject: str, text: str | None) -> None:
        """Open (``text``) or end (None) a problem that makes the broker unready."""
        if text is None:
            if self._since.pop(subject, None) is not None and not self._since:
                self.log("info", "PostgreSQL storage works again", subject=subject)
            return
        known, since = self._since.get(subject, (None, None))
        if known != text:
            self._since[subject] = (text, self.ports.now() if since is None else since)
            self.log("error", "PostgreSQL storage is degraded", subject=subject, problem=text)

    def _database_changed(self, reason: str | None) -> None:
        self.problem("database", reason)
        if reason is None:
            self.coordinator.reconnected()

    def run(self, query: bytes, parameters: Sequence[Any]) -> Coroutine[Any, Any, list[tuple[Any, ...]]]:
        """Run one statement; see :meth:`Database.run`."""
        return self.database.run(query, parameters)

    async def change(self, query: bytes, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement that writes events; local listeners have heard them when it returns."""
        rows, heard = await self.feed.run(query, parameters)
        if not heard:
            await self.feed.catch_up()
        return rows

    async def commit(self, body: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a transaction (see :meth:`Database.transaction`); local listeners have heard its events when it returns."""
        outcome = await self.database.transaction(body)
        await self.feed.catch_up()
        return outcome

    async def run_first(self, query: bytes, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement although others are held back."""
        return await self.database.run(query, parameters, first=True)

    def hold_statements(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work`` before any statement that has not begun, after what held statements before."""
        earlier = self.database.gate

        async def gate() -> None:
            try:
                if earlier is not None:
                    await asyncio.wait([earlier])
                await work
            except (psycopg.Error, BunqueueError) as error:
                self.log("warn", "PostgreSQL event feed could not begin", error=type(error).__name__)
            finally:
                if self.database.gate is task:
                    self.database.gate = None

        task = self.database.gate = self.spawn(gate(), own=True)

    def spawn(self, work: Coroutine[Any, Any, None], *, own: bool = False) -> asyncio.Task[None]:
        """Start a task that is awaited before the broker closes; ``own``: nobody's command (see :meth:`Database.own`)."""
        task = asyncio.get_running_loop().create_task(work)
        if own:
            self.database.own(task)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def answer(self, work: Coroutine[Any, Any, T], *, own: bool = False) -> Answer[T]:
        """The answer of a verb that needs its own statements; ``own``: see :meth:`spawn`."""
        answer: Answer[T] = Answer()

        async def run() -> None:
            try:
                answer.settle(await work)
            except psycopg.Error as error:
                answer.fail(translate(error))
            except asyncio.CancelledError:
                answer.fail(BrokerClosed("Broker is closed"))
                raise
            except Exception as error:
                answer.fail(error)

        self.spawn(run(), own=own)
        return answer

    def refusal(self) -> BunqueueError | None:
        if self.closing or not self.started:
            return BrokerClosed("Broker is closed" if self.closing else "Broker is not started")
        return None

    def command(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> Answer[T]:
        """The answer of a verb that needs its own statements, unless the broker takes no work."""
        refusal = self.refusal()
        return Answer.failed(refusal) if refusal is not None else self.answer(work(*arguments))

    def read_queue(self, query: bytes, queue: str) -> Answer[list[tuple[Any, ...]]]:
        """Rows of a statement that takes the namespace and names of queues; the rows of this queue, without the name before them.

        Concurrent reads of a kind, of whatever queues, share a statement.
        """
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        gatherer = self._queue_reads.get(query)
        if gatherer is None:

            async def flush(calls: list[Call[str]]) -> None:
                rows = await self.run(query, (Int4(self.ns), arrays.texts(list({call.input for call in calls}))))
                found: dict[str, list[tuple[Any, ...]]] = {}
                for row in rows:
                    found.setdefault(row[0], []).append(row[1:])
                for call in calls:
                    call.answer.settle(found.get(call.input, []))

            gatherer = self._queue_reads[query] = Gatherer(flush, self.spawn)
        return gatherer.add(queue, 1)

    # -- hints ---

    def wake(self, queue: str, jobs: int) -> None:
        """``jobs`` jobs of ``queue`` became claimable."""
        desk = self._desks.get(queue)
        if desk is not None:
            desk.wake(jobs)

    def wake_limited(self) -> None:
        """Jobs have ended: pulls that were kept waiting by a limit may have room."""
        for desk in list(self._desks.values()):
            if desk.parked and desk.watchful:
                desk.wake(1_000_000)

    @property
    def desks(self) -> dict[str, PullDesk]:
        """Queues with pulls at this broker."""
        return self._desks

    async def queue_id(self, name: str) -> int | None:
        """Number of a queue, None if it is not registered."""
        known = self._queue_ids.get(name)
        if known is None:
            rows = await self.read_queue(self.queries.queue, name)
            if not rows:
                return None
            known = self._queue_ids[name] = rows[0][0]
        return known

    def let_go(self, id: str) -> None:
        session = self.held.pop(id, None)
        if session is not None:
            jobs = self._sessions.get(session)
            if jobs is not None:
                jobs.pop(id, None)
                if not jobs:
                    del self._sessions[session]

    # -- decisions on locked jobs -------------------------------------------------------------------------------------

    def policies(self, record: Record) -> transitions.Policies:
        awaited = record.awaited
        parent = record.job.parent_id
        if awaited and parent is not None and _policy(record.job.options) is not None:
            # Its failure means something to its parent, which does not wait for it then.
            awaited = any(waiter != to_key(parent) for waiter in record.waiters)
        return transitions.Policies(record.stall, record.dlq, self.ports.random, self.strategies, awaited)

    async def lock(self, connection: Connection, keys: Iterable[str]) -> tuple[int, dict[str, Record]]:
        """Lock jobs; gives the time (0 if there are none) and their records by key, with what decisions about them need."""
        cursor = connection.cursor(binary=True)
        await cursor.execute(self.queries.lock, (Int4(self.ns), arrays.texts(sorted(set(keys)))))
        records: dict[str, Record] = {}
        now = 0
        awaited: list[str] = []
        keyed: list[Record] = []
        for row in await cursor.fetchall():
            record = self.reader.record(row[:-3])
            record.stall = read_stall_config(row[-2])
            record.dlq = read_dlq_config(row[-1])
            now = max(now, row[-3])
            records[record.key] = record
            if record.flags & AWAITED:
                awaited.append(record.key)
            if record.job.unique_key is not None and record.was in (Location.COMPLETED, Location.DEAD):
                keyed.append(record)
        if awaited:
            await cursor.execute(self.queries.waited_for, (Int4(self.ns), arrays.texts(awaited)))
            for key, waiters in await cursor.fetchall():
                records[key].awaited = True
                records[key].waiters = waiters
        if keyed:
            await self._find_key_owners(connection, keyed, now)
        return now, records

    async def _find_key_owners(self, connection: Connection, records: list[Record], now: int) -> None:
        """Note which other live jobs own the keys of jobs that have ended."""
        names = {(record.queue_id, to_key(record.job.unique_key or "")) for record in records}
        owners = await self.key_owners(connection, names)
        cursor = connection.cursor(binary=True)
        await cursor.execute(
            self.queries.states, (Int4(self.ns), arrays.texts([owner for owner, _, _ in owners.values()]))
        )
        live = {row[0] for row in await cursor.fetchall() if row[1] < Location.COMPLETED}
        for record in records:
            entry = owners.get((record.queue_id, to_key(record.job.unique_key or "")))
            if entry is None or entry[0] == record.key or (entry[1] is not None and entry[1] <= now):
                continue
            if entry[0] in live:
                record.key_owner = entry[0]
            else:
                record.key_windowed = entry[2]

    async def key_owners(
        self, connection: Connection, names: Iterable[tuple[int, str]]
    ) -> dict[tuple[int, str], tuple[str, int | None, bool]]:
        """Owners of deduplication keys, each (job's key, expiry in epoch ms, whether it is a window), by (queue number, key)."""
        wanted = sorted(names)
        if not wanted:
            return {}
        cursor = connection.cursor(binary=True)
        await cursor.execute(
            self.queries.key_owners,
            (arrays.int4s([queue for queue, _ in wanted]), arrays.texts([key for _, key in wanted])),
        )
        return {(queue, key): tuple(owner) for queue, key, *owner in await cursor.fetchall()}

    async def decide(
        self,
        keys: list[str],
        decide: Callable[[Record, int], transitions.Outcome | None],
        *,
        pick: Callable[[Connection], Awaitable[list[str]]] | None = None,
        failing: bool = False,
    ) -> int:
        """Lock jobs, ask ``decide`` what becomes of each (None: nothing), and write it. Gives the number that changed.

        ``pick`` chooses the jobs inside the transaction instead of ``keys``. ``failing``: an end is a failure, to which
        the policies of a parent apply.
        """

        async def body(connection: Connection) -> tuple[int, Changes]:
            chosen = keys if pick is None else await pick(connection)
            now, records = await self.lock(connection, chosen)
            changes = Changes(now, self.codec)
            changed = 0
            for record in records.values():
                outcome = decide(record, now)
                if outcome is None:
                    continue
                changed += 1
                if failing:
                    entry = outcome.entry
                    changes.fail(record, outcome, None if entry is None else entry.error, record.dlq)
                else:
                    changes.add(record, outcome, record.dlq)
            if changed:
                await self.conclude(connection, changes)
            return changed, changes

        changed, changes = await self.commit(body)
        self.written(changes)
        return changed

    async def conclude(self, connection: Connection, changes: Changes) -> None:
        """Decide what the changes mean for jobs that wait for the changed ones, and write everything."""
        completed = changes.awaited_completions
        if completed:
            await self._open_gates(connection, changes, completed)
        if changes.failed_children:
            await self._apply_policies(connection, changes)
        if changes.awaited_ends:
            await self._tell_blocked(connection, changes)
        await changes.write(connection, self.queries, self.ns)

    async def _open_gates(self, connection: Connection, changes: Changes, completed: list[str]) -> None:
        ns = Int4(self.ns)
        cursor = connection.cursor(binary=True)
        await cursor.execute(self.queries.meet_edges, (ns, arrays.texts(completed)))
        waiting = {key for (key,) in await cursor.fetchall()}
        if not waiting:
            return
        _, records = await self.lock(connection, waiting)
        # Only now that their rows are held: another completion may have met the rest meanwhile.
        await cursor.execute(self.queries.unmet, (ns, arrays.texts(sorted(waiting))))
        blocked = {key for (key,) in await cursor.fetchall()}
        for key, record in records.items():
            if key not in blocked and record.job.location == Location.GATED:
                changes.open_gate(record, transitions.gate_opened(record.job, changes.now))

    async def _tell_blocked(self, connection: Connection, changes: Changes) -> None:
        """Announce which jobs cannot start by themselves any more, since one that they wait for has ended otherwise."""
        cursor = connection.cursor(binary=True)
        await cursor.execute(self.queries.waiters, (Int4(self.ns), arrays.texts(changes.awaited_ends)))
        waiting = [row for row in await cursor.fetchall() if changes.still_waits(row[1], row[0])]
        if not waiting:
            return
        await cursor.execute(
            self.queries.blockers, (Int4(self.ns), arrays.texts(sorted({waiter for _, waiter, _ in waiting})))
        )
        told = {waiter for waiter, _ in await cursor.fetchall()}
        for ended, waiter, queue_id in waiting:
            if waiter not in told:
                told.add(waiter)
                changes.notice_blocked(queue_id, waiter, ended)

    async def _apply_policies(self, connection: Connection, changes: Changes) -> None:
        """Apply the policies of jobs that failed for good to their parents, if those wait."""
        affected = [
            (child, mode, error)
            for child, error in changes.failed_children
            if (mode := _policy(child.job.options)) is not None
        ]
        if not affected:
            return
        _, parents = await self.lock(connection, {to_key(child.job.parent_id or "") for child, _, _ in affected})
        cursor = connection.cursor(binary=True)
        for child, mode, error in affected:
            key = to_key(child.job.parent_id or "")
            parent = changes.pending(key) or parents.get(key)
            if parent is None or parent.job.location not in LINKABLE:
                continue
            job = parent.job
            text = error or "unknown error"
            if mode == "fail":
                message = f"Child job {child.job.id} failed: {text}"
                outcome = transitions.failed_with_child(job, changes.now, self.policies(parent), message)
                changes.add(parent, outcome, parent.dlq)
                continue
            if mode in ("continue", "ignore"):
                changes.survive(parent, child, mode, text)
            if job.location != Location.GATED:
                continue
            if mode == "continue":
                job.depends_on = ()
                changes.drop_edges(parent.key)
                changes.open_gate(parent, transitions.promoted_parent(job, changes.now))
                continue
            job.depends_on = tuple(id for id in job.depends_on if id != child.job.id)
            changes.drop_edges(parent.key, child.key)
            await cursor.execute(self.queries.edges_of, (Int4(self.ns), parent.key))
            gone = {to_key(other.job.id) for other, _, _ in affected}
            if any(not met and key not in gone for key, met in await cursor.fetchall()):
                changes.add(parent, transitions.Outcome(location=Location.GATED))
            else:
                changes.open_gate(parent, transitions.promoted_parent(job, changes.now))

    def written(self, changes: Changes) -> None:
        """Tell whoever waits what a committed transaction changed."""
        now = changes.now
        ready: dict[str, int] = {}
        for job in changes.rewritten:
            if job.location == Location.DEAD:
                self._ended(job.id, (False, None))
            elif job.location == Location.READY:
                self.let_go(job.id)
                if job.run_at <= now:
                    ready[job.queue] = ready.get(job.queue, 0) + 1
                else:
                    desk = self._desks.get(job.queue)
                    if desk is not None:
                        desk.wake_in(job.run_at - now)
        for queue, jobs in ready.items():
            # They may stand before what was claimed last.
            self.marks.forget(queue)
            self.wake(queue, jobs)
        for queue in changes.woken:
            self.wake(queue, 1)
        self.totals["failed"] += changes.failed
        for job in changes.removed:
            self._ended(job.id, (False, None))
        for record, result, remove in changes.completions:
            self._ended(record.job.id, (True, None if remove else result))
            self.totals["completed"] += 1
        self.wake_limited()
        if changes.tellings and self.notices.active:
            for name, fields in changes.tellings:
                self.notices.tell(name, fields)
        if changes.crowded:
            self.coordinator.crowded(changes.crowded)
        self.coordinator.announce()

    def _ended(self, id: str, outcome: tuple[bool, bytes | None]) -> None:
        self.let_go(id)
        for answer in self.waits.pop(id, ()):
            answer.settle(outcome)


def _policy(options: JobOptions) -> str | None:
    """What the job's failure does to its parent; the first of several options holds."""
    if options.fail_parent_on_failure:
        return "fail"
    if options.continue_parent_on_failure:
        return "continue"
    if options.ignore_dependency_on_failure:
        return "ignore"
    if options.remove_dependency_on_failure:
        return "remove"
    return None


def lease_lost(id: str, token: str | None, free: bool) -> LeaseLost:
    if not token and not free:
        return LeaseLost(f"Lock token required for job {id}")
    return LeaseLost(f"Invalid or expired lock token for job {id}")


def owns(record: Record, token: str | None, now: int) -> bool:
    """Whether an outcome with ``token`` belongs to the delivery that an active job is under, and in time."""
    if record.lease_until is None or record.lease_until <= now:
        return False
    key = to_key(token) if token else None
    if record.owner is None:
        return key is None or key != record.token
    return key == record.token


def check_lease(record: Record, token: str | None, now: int) -> None:
    """Refuse to steer an active job with a token that is not that of its delivery.

    Raises:
        LeaseLost: with the wire's text.
    """
    if not owns(record, token, now):
        raise lease_lost(record.job.id, token, record.owner is None)
