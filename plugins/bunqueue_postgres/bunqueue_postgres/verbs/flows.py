"""Flows: whole graphs of jobs, and the ties between parents and children that exist already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg.types.numeric import Int4

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import BrokerClosed, Conflict, NotFound
from bunqueue_core.model.job import Job, Location
from bunqueue_core.model.payload import decode
from bunqueue_core.model.requests import FlowJob
from bunqueue_postgres import arrays, transitions
from bunqueue_postgres.changes import Changes
from bunqueue_postgres.database import Connection
from bunqueue_postgres.keys import to_key, unescape
from bunqueue_postgres.planning import LINKABLE, Planner
from bunqueue_postgres.records import AWAITED, WAITING, Record, unpack
from bunqueue_postgres.verbs.produce import Producing, with_keys


class Flowing(Producing):
    """The verbs around flows."""

    # -- whole graphs -------------------------------------------------------------------------------------------------

    def push_flow(self, flow: Sequence[FlowJob]) -> Answer[list[Job]]:
        if self.draining and not self.closing:
            return Answer.failed(BrokerClosed("Server is shutting down; no new jobs are accepted"))
        return self.command(self._push_flow, flow)

    async def _push_flow(self, flow: Sequence[FlowJob]) -> list[Job]:
        numbers = await self.number_queues(member.queue for member in flow)
        keys = [to_key(member.id) for member in flow]

        async def body(connection: Connection) -> tuple[list[Job], Changes]:
            calls = [(member.queue, numbers[member.queue], [member.spec], [member.id]) for member in flow]
            facts = await self.facts(connection, calls, keys)
            planner = Planner(facts)
            for member in flow:
                planner.refuse_known(member.id)
            for member in flow:
                planner.flow_member(member.queue, numbers[member.queue], member.spec, member.id)
            changes = await self.write_plan(connection, planner)
            cursor = connection.cursor(binary=True)
            await cursor.execute(self.queries.read, (Int4(self.ns), arrays.texts(keys)))
            jobs = {row[0]: self.reader.record(row[:-1]).job for row in await cursor.fetchall()}
            return [jobs[key] for key in keys], changes

        jobs, changes = await self.admitted(body)
        self.written(changes)
        for job in jobs:
            if job.location == Location.READY:
                self.wake(job.queue, 1)
        return jobs

    # -- ties ---------------------------------------------------------------------------------------------------------

    def update_parent(self, child_id: str, parent_id: str) -> Answer[None]:
        return self.command(self._update_parent, child_id, parent_id)

    async def _update_parent(self, child_id: str, parent_id: str) -> None:
        if child_id == parent_id:
            raise Conflict("A flow job cannot be its own parent")
        child_key, parent_key = to_key(child_id), to_key(parent_id)

        async def body(connection: Connection) -> Changes:
            now, records = await self.lock(connection, [child_key, parent_key])
            child, parent = records.get(child_key), records.get(parent_key)
            changes = Changes(now, self.codec)
            if child is None:
                if parent is not None and child_id in parent.job.children_ids:
                    cursor = connection.cursor(binary=True)
                    await cursor.execute(self.queries.proved, (Int4(self.ns), arrays.texts([child_key])))
                    if any(id is not None for id, _ in await cursor.fetchall()):
                        return changes
                raise NotFound(f"Child job not found: {child_id}")
            if parent is None:
                raise NotFound(f"Parent job not found: {parent_id}")
            job = child.job
            data: Any = decode(job.data) if job.data is not None else {}
            marker = data.get("__parentId") if isinstance(data, dict) else None
            for owner in (job.parent_id, marker):
                if owner not in (None, "pending", parent_id):
                    raise Conflict(f"Child job {child_id} already belongs to parent {owner}")
            declared = child_id in parent.job.children_ids
            if not declared and parent.job.location not in LINKABLE:
                raise Conflict(f"Parent job {parent_id} is not linkable")
            job.parent_id = parent_id
            changes.set_data(child, with_keys(job.data, {"__parentId": parent_id, "__parentQueue": parent.job.queue}))
            changes.retie(child)
            if not declared:
                await self._add_child(connection, changes, parent, child)
            if job.location == Location.DEAD:
                changes.failed_children.append((child, child.dead_letter().error or "Child job failed"))
            await self.conclude(connection, changes)
            return changes

        self.written(await self.commit(body))

    async def _add_child(self, connection: Connection, changes: Changes, parent: Record, child: Record) -> None:
        """Let a parent wait for a child that is there, unless that has completed."""
        job = parent.job
        met = child.job.location == Location.COMPLETED
        if child.job.id not in job.children_ids:
            job.children_ids = (*job.children_ids, child.job.id)
        if child.job.id not in job.depends_on:
            job.depends_on = (*job.depends_on, child.job.id)
        parent.flags |= WAITING
        child.flags |= AWAITED
        await connection.execute(
            self.queries.add_edges,
            (Int4(self.ns), arrays.texts([child.key]), arrays.texts([parent.key]), arrays.bools([met])),
        )
        if met or job.location == Location.GATED:
            changes.add(parent, transitions.Outcome(location=job.location))
        else:
            changes.add(parent, transitions.gated(job, changes.now))
        changes.set_data(parent, with_keys(job.data, {"__childrenIds": list(job.children_ids)}))

    def remove_child_dependency(self, child_id: str) -> Answer[bool]:
        return self.command(self._remove_child_dependency, child_id)

    async def _remove_child_dependency(self, child_id: str) -> bool:
        child_key = to_key(child_id)

        async def body(connection: Connection) -> tuple[bool, Changes]:
            now, records = await self.lock(connection, [child_key])
            child = records.get(child_key)
            if child is None:
                raise NotFound(f"Job not found: {child_id}")
            parent_id = child.job.parent_id
            if parent_id is None:
                raise NotFound(f"Job {child_id} has no parent")
            _, parents = await self.lock(connection, [to_key(parent_id)])
            parent = parents.get(to_key(parent_id))
            changes = Changes(now, self.codec)
            if (
                parent is None
                or parent.job.location != Location.GATED
                or child_id not in parent.job.depends_on
                or child.job.location not in (*LINKABLE, Location.ACTIVE)
            ):
                return False, changes
            self._detach(changes, child)
            await self._drop_child(connection, changes, parent, child)
            await self.conclude(connection, changes)
            return True, changes

        removed, changes = await self.commit(body)
        self.written(changes)
        return removed

    @staticmethod
    def _detach(changes: Changes, child: Record) -> None:
        child.job.parent_id = None
        changes.set_data(child, with_keys(child.job.data, {"__parentId": None, "__parentQueue": None}))
        changes.retie(child)

    async def _drop_child(self, connection: Connection, changes: Changes, parent: Record, child: Record) -> None:
        """Remove the tie to a child; the parent starts when nothing is left to wait for."""
        job = parent.job
        job.children_ids = tuple(id for id in job.children_ids if id != child.job.id)
        await connection.execute(
            self.queries.drop_edges, (Int4(self.ns), arrays.texts([parent.key]), arrays.texts([child.key]))
        )
        cursor = connection.cursor(binary=True)
        await cursor.execute(self.queries.edges_of, (Int4(self.ns), parent.key))
        met = {key for key, done in await cursor.fetchall() if done}
        job.depends_on = tuple(id for id in job.depends_on if id != child.job.id and to_key(id) not in met)
        changes.set_data(parent, with_keys(job.data, {"__childrenIds": list(job.children_ids) or None}))
        if job.depends_on:
            changes.add(parent, transitions.Outcome(location=Location.GATED))
        else:
            changes.add(parent, transitions.promoted_parent(job, changes.now))

    def remove_unprocessed_children(self, parent_id: str) -> Answer[None]:
        return self.command(self._remove_unprocessed_children, parent_id)

    async def _remove_unprocessed_children(self, parent_id: str) -> None:
        parent_key = to_key(parent_id)

        async def body(connection: Connection) -> Changes:
            now, records = await self.lock(connection, [parent_key])
            parent = records.get(parent_key)
            changes = Changes(now, self.codec)
            if parent is None:
                return changes
            _, children = await self.lock(connection, map(to_key, parent.job.children_ids))
            cursor = connection.cursor(binary=True)
            for child_id in parent.job.children_ids:
                child = children.get(to_key(child_id))
                if child is None or child.job.location not in LINKABLE:
                    continue
                await cursor.execute(self.queries.waiting_for, (Int4(self.ns), child.key))
                if any(key != parent_key for (key,) in await cursor.fetchall()):
                    self._detach(changes, child)
                else:
                    notice = transitions.Notice("removed", {"prev": "waiting"})
                    changes.add(child, transitions.Outcome(removed=True, notices=[notice]))
                if parent.job.location == Location.GATED:
                    await self._drop_child(connection, changes, parent, child)
            await self.conclude(connection, changes)
            return changes

        self.written(await self.commit(body))

    # -- what children left -------------------------------------------------------------------------------------------

    def children_values(self, id: str) -> Answer[dict[str, bytes]]:
        return self.command(self._children_values, id)

    async def _children_values(self, id: str) -> dict[str, bytes]:
        ns = Int4(self.ns)
        rows = await self.run(self.queries.read, (ns, arrays.texts([to_key(id)])))
        if not rows:
            return {}
        children = self.reader.record(rows[0][:-1]).job.children_ids
        found = await self.run(self.queries.child_results, (ns, arrays.texts([to_key(child) for child in children])))
        results = {key: (queue, result) for key, queue, result in found if result is not None}
        values: dict[str, bytes] = {}
        for child in children:
            queue, result = results.get(to_key(child), (None, None))
            if result is not None:
                values[child if queue is None else f"{queue}:{child}"] = result
        return values

    def children_failures(self, id: str, mode: str) -> Answer[dict[str, str]]:
        return self.command(self._children_failures, id, mode)

    async def _children_failures(self, id: str, mode: str) -> dict[str, str]:
        rows = await self.run(self.queries.child_failures, (Int4(self.ns), to_key(id), mode))
        return {f"{queue}:{unescape(child)}": unpack(error) for child, queue, error in rows}
