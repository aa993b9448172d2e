"""Adding jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from psycopg.types.numeric import Int4

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import (
    BackendBusy,
    BrokerClosed,
    BunqueueError,
    CommandError,
)
from bunqueue_core.model.job import JobSpec, Location
from bunqueue_core.model.payload import Packer, decode
from bunqueue_core.model.requests import (
    Pushed,
)
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_postgres import arrays, transitions
from bunqueue_postgres.admission import Columns, Push
from bunqueue_postgres.changes import Changes
from bunqueue_postgres.database import Connection
from bunqueue_postgres.gather import Call, Gatherer
from bunqueue_postgres.keys import to_key
from bunqueue_postgres.planning import Facts, KeyOwner, Plan, Planner
from bunqueue_postgres.records import WAITING, Record
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.verbs.base import BrokerBase

T = TypeVar("T")

#: Queue numbers that the broker remembers.
QUEUES_REMEMBERED: Final = 10_000


#: Times that an admission is tried while others admit the same ids.
ADMISSION_TRIES: Final = 4


class OvertakenError(Exception):
    """Another transaction admitted an id between the look and the insertion."""


class Producing(BrokerBase):
    """The verb ``push``."""

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        super().__init__(settings, context)
        self._pushes: Gatherer[Push] = Gatherer(self._flush_pushes, self.spawn)
        self._named_pushes: Gatherer[Push] = Gatherer(self._flush_named_pushes, self.spawn)
        self._special_pushes: Gatherer[Push] = Gatherer(self._flush_special_pushes, self.spawn)

    # -- produce ------------------------------------------------------------------------------------------------------

    def push(self, queue: str, specs: Sequence[JobSpec]) -> Answer[Pushed]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if self.draining:
            return Answer.failed(BrokerClosed("Server is shutting down; no new jobs are accepted"))
        if not specs:
            return Answer.of(Pushed([], []))
        try:
            push = Push(queue, specs, self.codec, self.ports.new_id)
        except BunqueueError as error:
            return Answer.failed(error)
        if push.special:
            return self._special_pushes.add(push, len(specs))
        return (self._named_pushes if push.named else self._pushes).add(push, len(specs))

    async def number_queues(self, names: Iterable[str], connection: Connection | None = None) -> dict[str, int]:
        """Numbers of queues, registering those that are new.

        ``connection``: of the caller's transaction, which then holds its only turn at the database. What is registered in it
        is not remembered, since it may be rolled back.
        """
        known = self._queue_ids
        numbers: dict[str, int] = {}
        unknown: list[str] = []
        for name in set(names):
            number = known.get(name)
            if number is None:
                unknown.append(name)
            else:
                numbers[name] = number
        if unknown:
            parameters = (Int4(self.ns), arrays.texts(sorted(unknown)))
            # Twice: a name that another broker registered at the same moment is in neither half of the first answer.
            for _ in range(2):
                if connection is None:
                    rows = await self.run(self.queries.register_queues, parameters)
                else:
                    cursor = connection.cursor(binary=True)
                    await cursor.execute(self.queries.register_queues, parameters)
                    rows = await cursor.fetchall()
                numbers.update((name, id) for id, name in rows)
                if len(rows) >= len(unknown):
                    break
            if connection is None:
                while len(known) + len(unknown) > QUEUES_REMEMBERED and known:
                    known.pop(next(iter(known)))
                known.update((name, numbers[name]) for name in unknown)
        return numbers

    async def _number_queues(self, calls: Sequence[Call[Push]]) -> None:
        """Give every job its queue's number."""
        numbers = await self.number_queues(call.input.queue for call in calls)
        for call in calls:
            columns = call.input.columns
            columns.queue_ids = [numbers[call.input.queue]] * len(columns.keys)

    async def _flush_pushes(self, calls: list[Call[Push]]) -> None:
        await self._number_queues(calls)
        if len(calls) == 1:
            columns = calls[0].input.columns
        else:
            columns = Columns()
            for call in calls:
                columns.extend(call.input.columns)
        await self.feed.run_untold(self.queries.push, columns.parameters(Int4(self.ns)))
        self.totals["pushed"] += len(columns.keys)
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
        rows = await self.change(self.queries.push_named, columns.parameters(Int4(self.ns)))
        if any(blocked for _, blocked in rows):
            # Nothing was admitted: one by one, to say which, and to admit the others.
            for call in calls:
                try:
                    await self._flush_special_pushes([call])
                except Exception as error:
                    call.answer.fail(error)
            return
        created = {key for key, _ in rows}
        self.totals["pushed"] += len(created)
        for call in calls:
            outcomes: list[Any] = []
            for key in call.input.columns.keys:
                outcomes.append("created" if key in created else "found")
                created.discard(key)
            self._announce_push(call.input)
            call.answer.settle(Pushed(call.input.ids, outcomes))

    # -- admissions that need decisions -------------------------------------------------------------------------------

    async def _flush_special_pushes(self, calls: list[Call[Push]]) -> None:
        numbers = await self.number_queues(call.input.queue for call in calls)

        async def body(connection: Connection) -> tuple[list[Pushed | CommandError], Changes]:
            specs = [(call.input.queue, numbers[call.input.queue], call.input.specs, call.input.ids) for call in calls]
            return await self.admit(connection, specs)

        verdicts, changes = await self.admitted(body)
        self.written(changes)
        for call, verdict in zip(calls, verdicts, strict=True):
            if isinstance(verdict, CommandError):
                call.answer.fail(verdict)
                continue
            self._announce_push(call.input)
            call.answer.settle(verdict)

    async def admitted(self, body: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an admitting transaction, anew while others admit the same ids at the same moment."""
        for _ in range(ADMISSION_TRIES - 1):
            try:
                return await self.commit(body)
            except OvertakenError:
                continue
        try:
            return await self.commit(body)
        except OvertakenError:
            raise BackendBusy("others admit the same jobs at the same time") from None

    async def admit(
        self, connection: Connection, calls: Sequence[tuple[str, int, Sequence[JobSpec], Sequence[str]]]
    ) -> tuple[list[Pushed | CommandError], Changes]:
        """Admit the jobs of several calls (queue, its number, specs, ids) in the connection's transaction, each all or none.

        Raises:
            OvertakenError: another transaction admitted one of the ids meanwhile; roll back and try again.
        """
        facts = await self.facts(connection, calls)
        planner = Planner(facts)
        verdicts: list[Pushed | CommandError] = []
        for queue, queue_id, specs, ids in calls:
            try:
                verdicts.append(Pushed(*planner.push(queue, queue_id, specs, ids)))
            except CommandError as error:
                verdicts.append(error)
        return verdicts, await self.write_plan(connection, planner)

    async def facts(
        self,
        connection: Connection,
        calls: Sequence[tuple[str, int, Sequence[JobSpec], Sequence[str]]],
        more: Iterable[str] = (),
    ) -> Facts:
        """Lock and read all that decisions about the calls depend on (and jobs of ``more`` keys): names first, then rows."""
        unique: set[tuple[int, str]] = set()
        groups: set[tuple[int, str]] = set()
        debounces: set[tuple[int, str]] = set()
        ids: set[str] = set(more)
        for _, queue_id, specs, _ in calls:
            for spec in specs:
                if spec.unique_key is not None:
                    unique.add((queue_id, to_key(spec.unique_key)))
                if spec.options.debounce_id is not None:
                    debounces.add((queue_id, to_key(spec.options.debounce_id)))
                if spec.group_id is not None and spec.group_max_size is not None:
                    groups.add((queue_id, spec.group_id))
                if spec.custom_id:
                    ids.add(to_key(spec.custom_id))
                ids.update(map(to_key, spec.depends_on))
                if spec.parent_queue is not None and spec.parent_id is not None:
                    ids.add(to_key(spec.parent_id))
        names = [f"bunqueue:key:{queue}:{key}" for queue, key in unique]
        names += [f"bunqueue:group:{queue}:{group}" for queue, group in groups]
        names += [f"bunqueue:debounce:{queue}:{key}" for queue, key in debounces]
        if names:
            await connection.execute(self.queries.lock_names, (arrays.texts(names),))
        owners = await self.key_owners(connection, unique)
        ids.update(owner for owner, _, _ in owners.values())
        cursor = connection.cursor(binary=True)
        debounced: dict[tuple[int, str], str] = {}
        if debounces:
            wanted = sorted(debounces)
            await cursor.execute(
                self.queries.debounced,
                (arrays.int4s([queue for queue, _ in wanted]), arrays.texts([key for _, key in wanted])),
            )
            debounced = {(queue, key): job for queue, key, job in await cursor.fetchall()}
            ids.update(debounced.values())
        _, records = await self.lock(connection, ids)
        await cursor.execute(self.queries.proved, (Int4(self.ns), arrays.texts(sorted(ids))))
        rows = await cursor.fetchall()
        sizes: dict[tuple[int, str], int] = {}
        if groups:
            wanted = sorted(groups)
            await cursor.execute(
                self.queries.group_sizes,
                (arrays.int4s([queue for queue, _ in wanted]), arrays.texts([group for _, group in wanted])),
            )
            sizes = {(queue, group): size for queue, group, size in await cursor.fetchall()}
        await cursor.execute(self.queries.waited_for, (Int4(self.ns), arrays.texts(sorted(ids))))
        return Facts(
            now=rows[0][1],
            awaited=frozenset(key for key, _ in await cursor.fetchall()),
            records=records,
            proofs=frozenset(id for id, _ in rows if id is not None),
            owners={name: KeyOwner(*owner) for name, owner in owners.items()},
            sizes=sizes,
            debounced=debounced,
        )

    async def write_plan(self, connection: Connection, planner: Planner) -> Changes:
        """Write what was planned."""
        plan, facts = planner.plan, planner.facts
        changes = Changes(facts.now, self.codec)
        for owner in plan.removed:
            changes.erase(facts.records[owner])
        for queue_id, owner in plan.duplicated:
            record = facts.records.get(owner)
            changes.repeat_notice(queue_id, owner if record is None else record.key, "duplicated")
        for key, (spec, run_at) in plan.updates.items():
            if key not in plan.removed:  # a later job may have taken its place
                self._take_over(changes, facts.records[key], spec, run_at)
        for parent_key, child_key in plan.links:
            self._link(changes, facts.records[parent_key], plan, child_key)
        await self.conclude(connection, changes)
        cursor = connection.cursor(binary=True)
        if plan.jobs:
            columns = planner.columns(self.codec)
            await cursor.execute(self.queries.push_named, columns.parameters(Int4(self.ns)))
            if sum(not blocked for _, blocked in await cursor.fetchall()) < len(plan.jobs):
                raise OvertakenError
            self.totals["pushed"] += len(plan.jobs)
            for planned in plan.jobs.values():
                if planned.gated:
                    waits_for = list(planned.spec.depends_on)
                    changes.tell("job:waiting-children", jobId=planned.id, queue=planned.queue, dependsOn=waits_for)
        if plan.edges:
            dependencies, waiting = zip(*plan.edges, strict=True)
            await cursor.execute(
                self.queries.add_edges,
                (
                    Int4(self.ns),
                    arrays.texts(dependencies),
                    arrays.texts(waiting),
                    arrays.bools(list(plan.edges.values())),
                ),
            )
        if plan.debounced:
            await cursor.execute(
                self.queries.note_debounces,
                (
                    arrays.int4s([queue for queue, _ in plan.debounced]),
                    arrays.texts([key for _, key in plan.debounced]),
                    arrays.texts(list(plan.debounced.values())),
                ),
            )
        for claim in plan.extended.values():
            owning = facts.records.get(claim.job_key)
            if owning is not None:
                job = owning.job
                changes.tell("job:deduplicated", queue=job.queue, jobId=job.id, strategy="extend")
        owners = {**planner.postponed, **plan.keys, **plan.extended}
        if owners:
            await cursor.execute(
                self.queries.claim_keys,
                (
                    arrays.int4s([queue for queue, _ in owners]),
                    arrays.texts([key for _, key in owners]),
                    arrays.texts([owner.job_key for owner in owners.values()]),
                    arrays.int8s([owner.expires_at for owner in owners.values()]),
                    arrays.bools([owner.windowed for owner in owners.values()]),
                ),
            )
        blocked = self._blocked_from_the_start(planner)
        if blocked is not None:
            await blocked.write(connection, self.queries, self.ns)
        return changes

    def _blocked_from_the_start(self, planner: Planner) -> Changes | None:
        """Announcements of planned jobs that wait for dead letters."""
        plan, facts = planner.plan, planner.facts
        blocked: dict[str, Record] = {}
        for (dependency, waiter), met in plan.edges.items():
            record = facts.records.get(dependency)
            if not met and waiter in plan.jobs and record is not None and record.was == Location.DEAD:
                blocked.setdefault(waiter, record)
        if not blocked:
            return None
        changes = Changes(facts.now, self.codec)
        for waiter, record in blocked.items():
            changes.notice_blocked(plan.jobs[waiter].queue_id, waiter, record)
        return changes

    @staticmethod
    def _take_over(changes: Changes, record: Record, spec: JobSpec, run_at: int) -> None:
        """Let a debounced job that waits become what ``spec`` says."""
        job = record.job
        outcome = transitions.moved(job, run_at)
        outcome.location = job.location
        changes.add(record, outcome)
        changes.set_data(record, spec.data)
        changes.set_name(record, spec.name)

    @staticmethod
    def _link(changes: Changes, parent: Record, plan: Plan, child_key: str) -> None:
        """Let an existing parent wait for a child that is being admitted."""
        job = parent.job
        child_id = plan.jobs[child_key].id
        if child_id not in job.children_ids:
            job.children_ids = (*job.children_ids, child_id)
        if child_id not in job.depends_on:
            job.depends_on = (*job.depends_on, child_id)
        plan.edges[child_key, parent.key] = False
        parent.flags |= WAITING
        if job.location == Location.GATED:
            changes.add(parent, transitions.Outcome(location=Location.GATED))
        else:
            changes.add(parent, transitions.gated(job, changes.now))
        changes.set_data(parent, with_keys(job.data, {"__childrenIds": list(job.children_ids)}))

    def _announce_push(self, push: Push) -> None:
        if push.backdated:
            self.marks.forget(push.queue)
        if push.ready:
            self.wake(push.queue, push.ready)
        if push.delayed_ms is not None:
            desk = self._desks.get(push.queue)
            if desk is not None:
                desk.wake_in(push.delayed_ms)
        self.coordinator.announce()


def with_keys(data: bytes | None, keys: dict[str, Any]) -> bytes | None:
    """A payload with keys set (or, with None, taken away); a payload that is no map stays as it is."""
    value = decode(data) if data is not None else {}
    if not isinstance(value, dict):
        return data
    for key, item in keys.items():
        if item is None:
            value.pop(key, None)
        else:
            value[key] = item
    return Packer().pack(value)
