"""Adding jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from psycopg.types.numeric import Int4

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import (
    BrokerClosed,
    BunqueueError,
)
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import (
    Pushed,
)
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_postgres import arrays
from bunqueue_postgres.admission import Columns, Push
from bunqueue_postgres.gather import Call, Gatherer
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.verbs.base import BrokerBase

#: Queue numbers that the broker remembers.
QUEUES_REMEMBERED: Final = 10_000


class Producing(BrokerBase):
    """The verb ``push``."""

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        super().__init__(settings, context)
        self._pushes: Gatherer[Push] = Gatherer(self._flush_pushes, self.spawn)
        self._named_pushes: Gatherer[Push] = Gatherer(self._flush_named_pushes, self.spawn)

    # -- produce ------------------------------------------------------------------------------------------------------

    def push(self, queue: str, specs: Sequence[JobSpec]) -> Answer[Pushed]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if self.draining:
            return Answer.failed(BrokerClosed("the broker is stopping"))
        if not specs:
            return Answer.of(Pushed([], []))
        try:
            push = Push(queue, specs, self.codec, self.ports.new_id)
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
                rows = await self.database.run(self.queries.register_queues, (Int4(self.ns), arrays.texts(unknown)))
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
        await self.database.run(self.queries.push, columns.parameters(Int4(self.ns)))
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
        rows = await self.database.run(self.queries.push_named, columns.parameters(Int4(self.ns)))
        created = {key for (key,) in rows}
        self.totals["pushed"] += len(created)
        for call in calls:
            outcomes: list[Any] = []
            for key in call.input.columns.keys:
                outcomes.append("created" if key in created else "found")
                created.discard(key)
            self._announce_push(call.input)
            call.answer.settle(Pushed(call.input.ids, outcomes))

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
