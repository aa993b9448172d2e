"""Planning a flow: every job of it, with its id and its links, before anything is sent.

A flow is created by one atomic command, so all ids are chosen here. Jobs that belong together know each other twice: in their
records (``parentId``, ``childrenIds``, ``dependsOn``) and in their payloads, where the keys that begin with ``__`` are reserved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from bunqueue_core.client._options import snake_case, wire_options
from bunqueue_core.client._target import queue_key
from bunqueue_core.model.ports import uuid7

#: Bounds of one flow.
MAX_DEPTH: Final = 100
MAX_JOBS: Final = 10_000

_NOT_IN_FLOWS: Final = {
    "repeat": "repeat",
    "deduplication": "deduplication",
    "unique_key": "deduplication",
    "debounce": "debounce",
}
_OWN_LINKS: Final = ("parent", "parent_id", "children_ids", "depends_on")


class PlannedJob:
    """One job of a flow."""

    __slots__ = ("children", "data", "depends_on", "id", "name", "options", "parent", "queue")

    def __init__(self, id: str, queue: str, name: str, data: dict[str, Any], options: dict[str, Any]) -> None:
        self.id = id
        self.queue = queue
        self.name = name
        self.data = data
        self.options = options
        self.parent: PlannedJob | None = None
        self.children: list[PlannedJob] = []
        self.depends_on: list[PlannedJob] = []

    def adopt(self, children: Iterable[PlannedJob]) -> None:
        """Let this job wait for ``children``, as their parent."""
        for child in children:
            child.parent = self
            child.data.update(__parentId=self.id, __parentQueue=self.queue)
            self.children.append(child)
            self.depends_on.append(child)
        if self.children:
            self.data["__childrenIds"] = [child.id for child in self.children]

    def follow(self, other: PlannedJob | None) -> None:
        """Let this job run after ``other``; the first of a flow follows None."""
        self.data["__flowParentId"] = None if other is None else other.id
        if other is not None:
            self.data.update(__parentId=other.id, __parentQueue=other.queue)
            self.depends_on.append(other)

    def wire(self) -> dict[str, Any]:
        """The element of the command that creates it."""
        entry: dict[str, Any] = {"name": self.name, "data": self.data, **self.options}
        if self.parent is not None:
            entry["parentId"] = self.parent.id
        if self.children:
            entry["childrenIds"] = [child.id for child in self.children]
        if self.depends_on:
            entry["dependsOn"] = [other.id for other in self.depends_on]
        return {"id": self.id, "queue": self.queue, "input": entry}


class FlowPlan:
    """Plans the jobs of one command.

    Args:
        prefix_key: goes before every queue's name.
        queue_defaults: options of the jobs of a queue, unless a job has its own.
        new_id: makes ids.

    Raises:
        ValueError: a default is none that a queue may have.
    """

    def __init__(
        self,
        prefix_key: str = "",
        queue_defaults: Mapping[str, Mapping[str, Any]] | None = None,
        new_id: Callable[[], str] = uuid7,
    ) -> None:
        self._prefix_key = prefix_key
        self._defaults = {queue: snake_case(options) for queue, options in (queue_defaults or {}).items()}
        if any("job_id" in options for options in self._defaults.values()):
            raise ValueError("jobId cannot be a queue default")
        self._new_id = new_id
        self._seen: set[int] = set()
        self._ids: set[str] = set()
        #: The jobs in the order in which they were planned.
        self.jobs: list[PlannedJob] = []

    def tree(self, node: Any, link: Callable[[PlannedJob, list[PlannedJob]], None]) -> PlannedJob:
        """Plan ``node`` and everything below it; ``link(job, children)`` ties the levels together.

        Raises:
            ValueError: the tree is not well-formed; the text says how.
        """
        # Without recursion: the depth is the caller's to choose, up to the limit.
        root = self._job(node)
        levels = [(root, node, 1)]
        ties: list[tuple[PlannedJob, list[PlannedJob]]] = []
        while levels:
            job, given, depth = levels.pop()
            children = _children_of(given)
            if children and depth >= MAX_DEPTH:
                raise ValueError(f"flow exceeds the {MAX_DEPTH} level depth limit")
            planned = [self._job(child) for child in children]
            ties.append((job, planned))
            levels.extend((child, child_node, depth + 1) for child, child_node in zip(planned, children, strict=True))
        for job, children in ties:
            link(job, children)
        return root

    def step(self, node: Any) -> PlannedJob:
        """Plan a node that has no children.

        Raises:
            ValueError: it is not well-formed.
        """
        job = self._job(node)
        if _children_of(node):
            raise ValueError("nested children are only supported by addTree")
        return job

    def _job(self, node: Any) -> PlannedJob:
        if not isinstance(node, Mapping):
            raise ValueError("flow node must be an object")
        if id(node) in self._seen:
            raise ValueError("flow contains a cycle or shared node")
        self._seen.add(id(node))
        name, queue = node.get("name"), node.get("queueName", node.get("queue_name"))
        if not isinstance(name, str) or not name:
            raise ValueError("flow job name is required")
        if not isinstance(queue, str) or not queue:
            raise ValueError("flow queueName is required")
        data = node.get("data")
        if data is not None and not isinstance(data, Mapping):
            raise ValueError("flow job data must be an object")
        for key in data or ():
            if isinstance(key, str) and key.startswith("__"):
                raise ValueError(f"flow job data key is reserved: {key}")
        options = {**self._defaults.get(queue, {}), **snake_case(node.get("opts") or {})}
        job = PlannedJob(
            self._id(options.pop("job_id", None)),
            queue_key(self._prefix_key, queue),
            name,
            dict(data or {}),
            _options(options),
        )
        if len(self.jobs) >= MAX_JOBS:
            raise ValueError(f"flow exceeds the {MAX_JOBS} job limit")
        self.jobs.append(job)
        return job

    def _id(self, wanted: Any) -> str:
        if wanted is None:
            return self._new_id()
        if not isinstance(wanted, str) or not wanted or ":" in wanted:
            raise ValueError("flow jobId must be non-empty and cannot contain a colon")
        if wanted in self._ids:
            raise ValueError(f"duplicate flow job id: {wanted}")
        self._ids.add(wanted)
        return wanted


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name, feature in _NOT_IN_FLOWS.items():
        if options.get(name) is not None:
            raise ValueError(f"{feature} is not supported inside an atomic flow")
    for name in _OWN_LINKS:
        if options.get(name) is not None:
            raise ValueError(f"FlowProducer owns parent links; opts.{name} is not allowed")
    return wire_options(options)


def _children_of(node: Mapping[str, Any]) -> Sequence[Any]:
    children = node.get("children")
    if children is None:
        return ()
    if not isinstance(children, list | tuple):
        raise ValueError("flow children must be an array")
    return children


def created_records(response: Mapping[str, Any], jobs: Sequence[PlannedJob]) -> dict[str, dict[str, Any]]:
    """The records of the created jobs by id.

    Raises:
        ValueError: the response does not have exactly those that were asked for.
    """
    data = response.get("data")
    records = data.get("jobs") if isinstance(data, Mapping) else None
    if not isinstance(records, list):
        raise ValueError("Invalid PUSHF response: committed job snapshots are missing")
    if [record.get("id") for record in records] != [job.id for job in jobs]:
        raise ValueError("Invalid PUSHF response: committed job snapshots IDs do not match the request")
    return {record["id"]: record for record in records}
