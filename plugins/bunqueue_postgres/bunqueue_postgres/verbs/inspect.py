"""Questions: jobs, states, results, counts, listings, and waiting for an outcome."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

from psycopg.types.numeric import Int4, Int8

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import (
    NotFound,
)
from bunqueue_core.model.job import JobState, Location
from bunqueue_core.model.requests import (
    Counts,
    JobView,
    Page,
    QueueSummary,
)
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_postgres import arrays
from bunqueue_postgres.gather import Call, Gatherer
from bunqueue_postgres.keys import to_key
from bunqueue_postgres.records import (
    state_from_columns,
)
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.verbs.snapshots import Snapshotting

_LISTED_STATES: Final[tuple[JobState, ...]] = (
    "waiting",
    "prioritized",
    "delayed",
    "waiting-children",
    "active",
    "completed",
    "failed",
)


class Inspecting(Snapshotting):
    """The verbs that only read."""

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        super().__init__(settings, context)
        self._state_reads: Gatherer[Sequence[str]] = Gatherer(self._flush_states, self.spawn)
        self._result_reads: Gatherer[Sequence[str]] = Gatherer(self._flush_results, self.spawn)
        self._job_reads: Gatherer[Sequence[str]] = Gatherer(self._flush_jobs, self.spawn)

    # -- query --------------------------------------------------------------------------------------------------------

    def job(self, id: str) -> Answer[JobView | None]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        return self._job_reads.add([id], 1).map(_first)

    async def _flush_jobs(self, calls: list[Call[Sequence[str]]]) -> None:
        keys = list({to_key(id) for call in calls for id in call.input})
        views = await self._views(keys)
        for call in calls:
            call.answer.settle([views.get(to_key(id)) for id in call.input])

    async def _views(self, keys: list[str]) -> dict[str, JobView]:
        rows = await self.database.run(self.queries.read, (Int4(self.ns), arrays.texts(keys)))
        views = {row[0]: self.reader.record(row[:-1]).view(row[-1]) for row in rows}
        gated = [key for key, view in views.items() if view.job.location == Location.GATED]
        if gated:
            await self._add_blockers(views, gated)
        return views

    async def _add_blockers(self, views: dict[str, JobView], gated: list[str]) -> None:
        """Say what gated jobs wait for that cannot complete by itself any more."""
        rows = await self.database.run(self.queries.blockers, (Int4(self.ns), arrays.texts(gated)))
        blockers: dict[str, set[str]] = {}
        for key, dependency in rows:
            blockers.setdefault(key, set()).add(dependency)
        for key, found in blockers.items():
            view = views[key]
            names = tuple(id for id in dict.fromkeys(view.job.depends_on) if to_key(id) in found)
            views[key] = dataclasses.replace(view, blocked_by=names)

    def job_by_custom_id(self, custom_id: str) -> Answer[JobView | None]:
        return self.job(custom_id).map(
            lambda view: view if view is not None and view.job.custom_id is not None else None
        )

    def jobs(self, queue: str, states: Sequence[JobState], page: Page) -> Answer[list[JobView]]:
        return self.command(self._jobs, queue, states, page)

    async def _jobs(self, queue: str, states: Sequence[JobState], page: Page) -> list[JobView]:
        wanted = set(states) if states else set(_LISTED_STATES)
        if states:
            rows = await self.read_queue(self.queries.queue, queue)
            if rows and rows[0][1]:
                # While a queue is paused its ready jobs show as paused only.
                ready: set[JobState] = {"waiting", "prioritized"}
                wanted -= ready
                if "paused" in wanted:
                    wanted |= ready
        rows = await self.database.run(
            self.queries.list,
            (
                Int4(self.ns),
                queue,
                *(state in wanted for state in _LISTED_STATES),
                page.ascending,
                Int8(max(0, page.offset)),
                Int8(self.ids_to_ask_for(page.limit)),
            ),
        )
        keys = [key for (key,) in rows]
        await self.check_size(queue, keys)
        views = await self._views(keys)
        return [views[key] for key in keys if key in views]

    def states(self, ids: Sequence[str]) -> Answer[list[JobState]]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if not ids:
            return Answer.of([])
        return self._state_reads.add(ids, len(ids))

    async def _flush_states(self, calls: list[Call[Sequence[str]]]) -> None:
        keys = list({to_key(id) for call in calls for id in call.input})
        rows = await self.database.run(self.queries.states, (Int4(self.ns), arrays.texts(keys)))
        known: dict[str, JobState] = {
            key: state_from_columns(status, priority, run_at, now) for key, status, priority, run_at, now in rows
        }
        for call in calls:
            call.answer.settle([known.get(to_key(id), "unknown") for id in call.input])

    def results(self, ids: Sequence[str]) -> Answer[list[bytes | None]]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        if not ids:
            return Answer.of([])
        return self._result_reads.add(ids, len(ids))

    async def _flush_results(self, calls: list[Call[Sequence[str]]]) -> None:
        keys = list({to_key(id) for call in calls for id in call.input})
        rows = await self.database.run(self.queries.outcomes, (Int4(self.ns), arrays.texts(keys)))
        known = {key: result for key, status, result, _ in rows if status != Location.GONE}
        for call in calls:
            call.answer.settle([known.get(to_key(id)) for id in call.input])

    def counts(self, queue: str) -> Answer[Counts]:
        return self.read_queue(self.queries.counts, queue).map(_counts_of_rows)

    def counts_per_priority(self, queue: str) -> Answer[dict[int, int]]:
        return self.read_queue(self.queries.priorities, queue).map(lambda rows: {row[0]: row[1] for row in rows})

    def summaries(self, queues: Sequence[str]) -> Answer[list[QueueSummary]]:
        return self.command(self._summaries, queues) if queues else Answer.of([])

    async def _summaries(self, queues: Sequence[str]) -> list[QueueSummary]:
        rows = await self.run(self.queries.counts, (Int4(self.ns), arrays.texts(list(dict.fromkeys(queues)))))
        found = {row[0]: row[1:] for row in rows}
        return [
            QueueSummary(queue, _counts_of_rows([found[queue]]), found[queue][0])
            if queue in found
            else QueueSummary(queue, Counts(), False)
            for queue in queues
        ]

    def queues(self) -> Answer[list[str]]:
        refusal = self.refusal()
        if refusal is not None:
            return Answer.failed(refusal)
        answer = self.answer(self.database.run(self.queries.queues, (Int4(self.ns),)))
        return answer.map(lambda rows: [row[0] for row in rows])

    def wait(self, id: str, timeout_ms: int) -> Answer[tuple[bool, bytes | None]]:
        return self.command(self._wait, id, timeout_ms)

    async def _wait(self, id: str, timeout_ms: int) -> tuple[bool, bytes | None]:
        # Registered before the look, so that an end between the two is not missed.
        began = monotonic()
        ended: Answer[tuple[bool, bytes | None]] = Answer()
        self.waits.setdefault(id, []).append(ended)
        try:
            end = (await self._ends([id])).get(id)
            # A round that looks for ends meanwhile takes a job that never was for one that is gone.
            if ended.ready and (end is not None or ended.value[0]):
                return ended.value
            if end is None or (end.removed_for is not None and end.removed_for > (monotonic() - began) * 1000):
                raise NotFound("Job not found")
            if end.outcome is not None:
                return end.outcome
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0, timeout_ms) / 1000):
                    return await ended
            return False, None
        finally:
            answers = self.waits.get(id)
            if answers is not None and ended in answers:
                answers.remove(ended)
                if not answers:
                    del self.waits[id]

    async def look_at_waits(self) -> None:
        """Answer waits for jobs that other brokers have brought to their end."""
        ids = list(self.waits)
        ends = await self._ends(ids)
        for id in ids:
            outcome = ends[id].outcome if id in ends else (False, None)
            if outcome is not None:
                for answer in self.waits.pop(id, ()):
                    answer.settle(outcome)

    async def _ends(self, ids: Sequence[str]) -> dict[str, _End]:
        keys = {to_key(id): id for id in ids}
        rows = await self.database.run(self.queries.outcomes, (Int4(self.ns), arrays.texts(list(keys))))
        return {keys[key]: _end(status, result, removed_for) for key, status, result, removed_for in rows}


class _End(NamedTuple):
    """How a job has ended, if it has."""

    outcome: tuple[bool, bytes | None] | None
    #: Milliseconds since it was removed, if it was.
    removed_for: int | None


def _end(status: int, result: bytes | None, removed_for: int | None) -> _End:
    if status in (Location.COMPLETED, Location.GONE):
        return _End((True, result), removed_for)
    return _End((False, None) if status == Location.DEAD else None, removed_for)


def _first(values: list[Any]) -> Any:
    return values[0]


def _counts_of_rows(rows: list[tuple[Any, ...]]) -> Counts:
    if not rows:
        return Counts()
    paused, waiting, prioritized, delayed, active, completed, failed, gated = rows[0]
    counts = Counts(waiting, prioritized, delayed, active, completed, failed, gated)
    if paused:
        counts.paused = waiting + prioritized
        counts.paused_prioritized = prioritized
        counts.waiting = counts.prioritized = 0
    return counts
