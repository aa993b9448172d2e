# Written by tools/async_to_sync.py from flow_async.py: edit that file and run the tool, not this one.
"""The flow producer: jobs that wait for each other, created together or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from bunqueue_core.client import _job_reads
from bunqueue_core.client._acompat import settled
from bunqueue_core.client._flow_plan import FlowPlan, PlannedJob, created_records
from bunqueue_core.client._session import TelemetryHandler, TlsOption
from bunqueue_core.client._target import StorageOption, find_target
from bunqueue_core.client._verbs import Verbs
from bunqueue_core.client.connection import Connection
from bunqueue_core.client.connection_pool import ConnectionPool
from bunqueue_core.client.endpoint import Endpoint
from bunqueue_core.client.job import Job
from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.payload import widen


class FlowNode:
    """A job of a flow and the jobs below it.

    Attributes:
        job: the job.
        children: nodes of the jobs that it waits for.
    """

    def __init__(self, job: Job, children: Sequence[FlowNode] | None = None) -> None:
        self.job = job
        self.children: list[FlowNode] = list(children or ())

    def __repr__(self) -> str:
        return f"FlowNode({self.job!r}, {len(self.children)} children)"


class FlowProducer:
    """Creates jobs that wait for each other. Each call creates all of its jobs or none.

    A node is a dict with ``name``, ``queueName``, and where wanted ``data`` (a dict), ``opts`` (job options) and ``children``.

    Args:
        host: name or address of the server.
        port: its TCP port.
        token: sent with ``Auth``; by default taken from ``BQ_TOKEN`` or ``BUNQUEUE_TOKEN``.
        tls: see :class:`Connection`.
        connection: a connection to share, which stays open; or a mapping of its arguments.
        on_telemetry: called with events of the connection.
        embedded: True for queues of this process; see :class:`Queue`.
        data_path: the database file of embedded queues.
        storage: their storage in place of a path; see :class:`Queue`.
        prefix_key: goes before the names of queues.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 6789,
        token: str | None = None,
        tls: TlsOption = None,
        connection: Connection | ConnectionPool | Mapping[str, Any] | None = None,
        on_telemetry: TelemetryHandler | None = None,
        *,
        embedded: bool | None = None,
        data_path: str | os.PathLike[str] | None = None,
        storage: StorageOption = None,
        prefix_key: str = "",
    ) -> None:
        self._prefix_key = prefix_key
        self._endpoint = Endpoint(
            find_target(
                host=host,
                port=port,
                token=token,
                tls=tls,
                connection=connection,
                command_timeout=10.0,
                on_telemetry=on_telemetry,
                embedded=embedded,
                data_path=data_path,
                storage=storage,
            )
        )

    # -- creating -----------------------------------------------------------------------------------------------------

    def add(self, flow: Mapping[str, Any], opts: Mapping[str, Any] | None = None) -> FlowNode:
        """Create a tree whose children run before their parents.

        Args:
            flow: the root.
            opts: ``{"queues_options": {queue: job options}}``: defaults of a queue's jobs.

        Returns:
            The tree with its jobs.

        Raises:
            CommandError: the broker refuses it.
            ValueError: it is not well-formed.
        """
        plan = FlowPlan(self._prefix_key, _queue_defaults(opts))
        root = plan.tree(flow, PlannedJob.adopt)
        return (self._create(plan, [root]))[0]

    def add_bulk(self, flows: Sequence[Mapping[str, Any]]) -> list[FlowNode]:
        """Create several trees together; see :meth:`add`."""
        if not flows:
            return []
        plan = FlowPlan(self._prefix_key)
        return self._create(plan, [plan.tree(flow, PlannedJob.adopt) for flow in flows])

    def add_chain(self, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Create jobs that run one after the other. Returns their ids."""
        plan = FlowPlan(self._prefix_key)
        previous: PlannedJob | None = None
        for step in steps:
            job = plan.step(step)
            job.follow(previous)
            previous = job
        return self._create_ids(plan)

    def add_bulk_then(self, parallel: Sequence[Mapping[str, Any]], final: Mapping[str, Any]) -> dict[str, Any]:
        """Create jobs that run in any order, and one that runs when all of them are completed.

        Returns:
            ``{"parallel_ids": [...], "final_id": ...}``.
        """
        plan = FlowPlan(self._prefix_key)
        first = [plan.step(step) for step in parallel]
        last = plan.step(final)
        last.data["__flowParentIds"] = [job.id for job in first]
        last.adopt(first)
        self._create_ids(plan)
        return {"parallel_ids": [job.id for job in first], "final_id": last.id}

    def add_tree(self, root: Mapping[str, Any]) -> dict[str, Any]:
        """Create a tree whose parents run before their children.

        Returns:
            ``{"job_ids": [...]}``, the root's first.
        """
        plan = FlowPlan(self._prefix_key)
        plan.tree(root, _follow_all).follow(None)
        return {"job_ids": self._create_ids(plan)}

    def _create_ids(self, plan: FlowPlan) -> list[str]:
        self._push(plan)
        return [job.id for job in plan.jobs]

    def _create(self, plan: FlowPlan, roots: Sequence[PlannedJob]) -> list[FlowNode]:
        records = self._push(plan)
        verbs = self._endpoint.open()
        nodes = {job.id: FlowNode(Job(records[job.id], verbs)) for job in plan.jobs}
        for job in plan.jobs:
            nodes[job.id].children = [nodes[child.id] for child in job.children]
        return [nodes[root.id] for root in roots]

    def _push(self, plan: FlowPlan) -> dict[str, dict[str, Any]]:
        if not plan.jobs:
            return {}
        verbs = self._endpoint.open()
        response = settled(verbs.command("PUSHF", {"jobs": [job.wire() for job in plan.jobs]}))
        try:
            return created_records(response, plan.jobs)
        except ValueError as error:
            raise CommandError(str(error)) from None

    # -- reading ------------------------------------------------------------------------------------------------------

    def get_flow(
        self,
        job_id: str,
        depth: int | None = None,
        queue_name: str | None = None,
        max_children: int | None = None,
    ) -> FlowNode | None:
        """The tree below a job.

        Args:
            job_id: the root.
            depth: levels below it; None for all.
            queue_name: only if the root is in this queue.
            max_children: children that are followed at each job; None for all.

        Returns:
            The tree, without jobs that are gone; None if the root is.
        """
        verbs = self._endpoint.open()
        found = self._fetch(verbs, [job_id])
        if not found:
            return None
        root = FlowNode(found[0])
        if queue_name is not None and root.job.queue != self._prefix_key + queue_name:
            return None
        seen = {job_id}
        level = [root]
        while level and (depth is None or depth > 0):
            depth = None if depth is None else depth - 1
            following: list[FlowNode] = []
            for node in level:
                ids = [id for id in node.job.children_ids[:max_children] if id not in seen]
                seen.update(ids)
                node.children = [FlowNode(job) for job in self._fetch(verbs, ids)]
                following.extend(node.children)
            level = following
        return root

    def _fetch(self, verbs: Verbs, ids: Sequence[str]) -> list[Job]:
        """The jobs of those ids, without those that are gone."""
        answers = [verbs.command("GetJob", {"id": id}) for id in ids]
        jobs: list[Job] = []
        for answer in answers:
            try:
                record = (settled(answer)).get("job")
            except CommandError as error:
                if not _job_reads.is_missing(error):
                    raise
                continue
            if record is not None:
                jobs.append(Job(record, verbs))
        return jobs

    def get_parent_result(self, parent_id: str) -> Any:
        """The result of the job that the present one follows (``data["__flowParentId"]``)."""
        verbs = self._endpoint.open()
        return widen((settled(verbs.command("GetResult", {"id": parent_id}))).get("result"))

    def get_parent_results(self, parent_ids: Sequence[str]) -> dict[str, Any]:
        """The results of several jobs by id (``data["__flowParentIds"]``)."""
        verbs = self._endpoint.open()
        answers = [verbs.command("GetResult", {"id": id}) for id in parent_ids]
        return {id: widen((settled(answer)).get("result")) for id, answer in zip(parent_ids, answers, strict=True)}

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def wait_until_ready(self) -> None:
        """Connect, or open the embedded database.

        Raises:
            BunqueueError: that is not possible; the message says why.
        """
        self._endpoint.connect()

    def close(self) -> None:
        """Close the connection unless it is shared, or release the embedded database. Idempotent."""
        self._endpoint.close()

    def disconnect(self) -> None:
        """The same as :meth:`close`."""
        self.close()

    def __enter__(self) -> FlowProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _queue_defaults(opts: Mapping[str, Any] | None) -> Mapping[str, Mapping[str, Any]] | None:
    given = opts or {}
    defaults = given.get("queues_options", given.get("queuesOptions"))
    if defaults is not None and not isinstance(defaults, Mapping):
        raise ValueError("queues_options must be an object")
    return defaults


def _follow_all(job: PlannedJob, children: list[PlannedJob]) -> None:
    for child in children:
        child.follow(job)
