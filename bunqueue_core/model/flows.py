"""Flows: graphs of jobs that are admitted whole or not at all, checked here before a broker sees them.

A member names its id, its queue and its input. It waits for its ``dependsOn``; a parent also lists its ``childrenIds`` (all of
which it depends on), and each child points back by ``parentId``. Both sides repeat the edge in their data (``__childrenIds``;
``__parentId`` and ``__parentQueue``), because workers read it there. Checks run member by member in order, then over the whole
graph; the first violation is the one that is reported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.options import DAY_MS, SAFE_INTEGER, YEAR_MS, JobReader, group_id
from bunqueue_core.model.payload import decode
from bunqueue_core.model.requests import FlowJob
from bunqueue_core.model.rules import check_job_name, check_queue_name

#: Members of one flow at most.
MAX_FLOW_JOBS: Final = 10_000

#: JSON text of the data of one flow may have this many characters.
MAX_FLOW_CHARACTERS: Final = 64 * 1024 * 1024

#: Longest id of a member, characters.
MAX_ID_CHARACTERS: Final = 1024

#: (option, its name in errors, least, most, whole numbers only).
_NUMBERS: Final[tuple[tuple[str, str, int, int, bool], ...]] = (
    ("delay", "delay", 0, YEAR_MS, False),
    ("ttl", "ttl", 0, YEAR_MS, False),
    ("timeout", "timeout", 0, DAY_MS, False),
    ("stallTimeout", "stallTimeout", 0, DAY_MS, False),
    ("maxAttempts", "attempts", 1, 1000, True),
    ("stackTraceLimit", "stackTraceLimit", 0, 10_000, True),
    ("keepLogs", "keepLogs", 0, 1_000_000, True),
    ("sizeLimit", "sizeLimit", 0, 10_485_760, True),
    ("timestamp", "timestamp", 0, SAFE_INTEGER, False),
    ("groupMaxSize", "group.maxSize", 1, SAFE_INTEGER, True),
)
_POLICIES: Final = (
    "failParentOnFailure",
    "removeDependencyOnFailure",
    "ignoreDependencyOnFailure",
    "continueParentOnFailure",
)
_FLAGS: Final = ("lifo", "removeOnComplete", "removeOnFail", "durable", *_POLICIES)
_ABSENT: Final[Any] = object()


class FlowReader:
    """Reads flows.

    Args:
        reader: reads the input of each member once its own checks have passed.
        strategies: names allowed as ``backoff.type``.
    """

    __slots__ = ("_reader",)

    def __init__(self, reader: JobReader) -> None:
        self._reader = reader

    def read(self, raws: Any) -> list[FlowJob]:
        """Check a flow and read its members, in order.

        Raises:
            ValidationError: the first violation.
        """
        if not isinstance(raws, list):
            raise ValidationError("flow jobs must be an array")
        if len(raws) > MAX_FLOW_JOBS:
            raise ValidationError(f"flow exceeds the {MAX_FLOW_JOBS} job limit")
        members: dict[str, FlowJob] = {}
        sizes = _Sizes()
        for index, raw in enumerate(raws):
            member = self._member(index, raw, members)
            sizes.add(member.spec.data)
            members[member.id] = member
        _check_topology(members)
        return list(members.values())

    def _member(self, index: int, raw: Any, earlier: Mapping[str, FlowJob]) -> FlowJob:
        if not isinstance(raw, Mapping):
            raise ValidationError(f"flow jobs[{index}] must be an object")
        id = raw.get("id")
        if not isinstance(id, str):
            raise ValidationError("flow job id must be a string")
        if not _is_id(id):
            raise ValidationError("flow job id is invalid or is not well-formed Unicode")
        if ":" in id:
            raise ValidationError("flow job id cannot contain a colon")
        if id in earlier:
            raise ValidationError(f"duplicate flow job id: {id}")
        queue = raw.get("queue")
        try:
            queue = check_queue_name(queue)
        except ValidationError:
            raise ValidationError(f"invalid flow queue: {_shown(queue)}") from None
        given = raw.get("input")
        if not isinstance(given, Mapping):
            raise ValidationError(f"flow job input is invalid: {id}")
        spec = self._input(id, given)
        return FlowJob(id, queue, spec)

    def _input(self, id: str, given: Mapping[str, Any]) -> JobSpec:
        custom_id = given.get("customId")
        if custom_id is not None and custom_id != id:
            raise ValidationError(f"custom id does not match planned id: {id}")
        parent_id = given.get("parentId")
        if parent_id is not None and not (isinstance(parent_id, str) and _is_id(parent_id)):
            raise ValidationError(f"flow parent id is invalid: {id}")
        for field in ("dependsOn", "childrenIds"):
            ids = given.get(field)
            if ids is not None and not (isinstance(ids, list) and all(isinstance(x, str) and _is_id(x) for x in ids)):
                raise ValidationError(f"{field} must be an array of valid string job ids")
        data = given.get("data")
        name = given.get("name", _ABSENT)
        if name is _ABSENT and isinstance(data, dict) and isinstance(data.get("name"), str):
            name = data["name"]
        if name is not _ABSENT:
            check_job_name(name)
        if not isinstance(data, dict):
            raise ValidationError("flow job data must be an object")
        options = given
        if isinstance(given.get("backoff"), Mapping) and given["backoff"].get("delay") is None:
            options = {**given, "backoff": {**given["backoff"], "delay": 1000}}
        # The payload is the costly part, and its errors come before those of the options: let the reader pack it first.
        spec = self._reader.read_member(options, lambda: _check_options(given))
        spec.parent_queue = None  # the edge is part of the flow, not a link to a job that exists
        return spec


class _Sizes:
    """Adds up the JSON text of payloads, which is only written where the bound is near."""

    __slots__ = ("_blobs", "_bytes", "_counted")

    def __init__(self) -> None:
        self._blobs: list[bytes] | None = []
        self._bytes = 0
        self._counted = 0

    def add(self, blob: bytes | None) -> None:
        if blob is None:
            return
        self._bytes += len(blob)
        if self._blobs is not None:
            self._blobs.append(blob)
            # A JSON text is at most six times as long as its MessagePack (escapes).
            if self._bytes * 6 <= MAX_FLOW_CHARACTERS:
                return
            blobs, self._blobs = self._blobs, None
            self._counted = sum(map(_characters, blobs))
        else:
            self._counted += _characters(blob)
        if self._counted > MAX_FLOW_CHARACTERS:
            raise ValidationError("flow data is too large (max 64MB per atomic batch)")


def _characters(blob: bytes) -> int:
    return len(json.dumps(decode(blob), separators=(",", ":"), ensure_ascii=False, default=lambda _: None))


def _check_options(given: Mapping[str, Any]) -> None:
    grouped = "groupId" in given
    priority = given.get("priority")
    if grouped and isinstance(given["groupId"], str):
        _number(priority, "group.priority", 0, 2_097_151, True)
    else:
        _number(priority, "priority", -1_000_000, 1_000_000, True)
    for option, name, least, most, whole in _NUMBERS:
        _number(given.get(option), name, least, most, whole)
    backoff = given.get("backoff")
    if isinstance(backoff, Mapping):
        _number(backoff.get("delay"), "backoff.delay", 0, DAY_MS, False)
    else:
        _number(backoff, "backoff", 0, DAY_MS, False)
    for flag in _FLAGS:
        value = given.get(flag)
        if value is not None and not isinstance(value, bool):
            raise ValidationError(f"{flag} must be a boolean")
    if grouped:
        group_id(given["groupId"])
    tags = given.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(x, str) and len(x) <= 256 for x in tags)):
        raise ValidationError("tags must be an array of strings of at most 256 characters")
    for options, what in (
        (("repeat",), "repeat"),
        (("uniqueKey", "dedup"), "deduplication"),
        (("debounceId", "debounceTtl", "debounceMaxWait"), "debounce"),
    ):
        if any(given.get(option) is not None for option in options):
            raise ValidationError(f"{what} is not supported inside an atomic flow")
    policies = sum(given.get(policy) is True for policy in _POLICIES)
    if policies > 1:
        raise ValidationError("flow failure policies are mutually exclusive")
    if policies and given.get("parentId") is None:
        raise ValidationError("a flow failure policy requires a parent")


def _number(value: Any, name: str, least: int, most: int, whole: bool) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))):
        raise ValidationError(f"{name} must be a finite number")
    if whole and value != math.floor(value):
        raise ValidationError(f"{name} must be an integer")
    if not least <= value <= most:
        raise ValidationError(f"{name} must be between {least} and {most}")


def _check_topology(members: Mapping[str, FlowJob]) -> None:
    edges = {id: _Edges(member) for id, member in members.items()}
    for id, member in members.items():
        for check in (_check_dependencies, _check_children, _check_parent, _check_children_data):
            check(id, member, members, edges)
    _check_order(members)


class _Edges:
    """What a member's data says of its edges."""

    __slots__ = ("children", "parent_id", "parent_queue")

    def __init__(self, member: FlowJob) -> None:
        spec: JobSpec = member.spec
        self.children: Any = None
        self.parent_id: Any = None
        self.parent_queue: Any = None
        if spec.data is not None and b"__" in spec.data:
            data = decode(spec.data)
            self.children = data.get("__childrenIds")
            self.parent_id = data.get("__parentId")
            self.parent_queue = data.get("__parentQueue")


Members = Mapping[str, FlowJob]
Known = Mapping[str, _Edges]
TopologyCheck = Callable[[str, FlowJob, Members, Known], None]


def _check_dependencies(id: str, member: FlowJob, members: Members, edges: Known) -> None:
    depends_on: Sequence[str] = member.spec.depends_on
    if len(set(depends_on)) != len(depends_on):
        raise ValidationError(f"duplicate dependency in flow job: {id}")
    children: Sequence[str] = member.spec.children_ids
    if len(set(children)) != len(children):
        raise ValidationError(f"duplicate child in flow job: {id}")
    for other in depends_on:
        if other not in members:
            raise ValidationError(f"flow dependency not found: {other}")
        if other == id:
            raise ValidationError(f"flow job cannot depend on itself: {id}")


def _check_children(id: str, member: FlowJob, members: Members, edges: Known) -> None:
    needed = set(member.spec.depends_on)
    for child in member.spec.children_ids:
        if child not in needed:
            raise ValidationError(f"flow child is missing from dependencies: {child}")
        if child not in members:
            raise ValidationError(f"flow child not found: {child}")
        if members[child].spec.parent_id != id:
            raise ValidationError(f"flow child {child} does not point back to parent {id}")


def _check_parent(id: str, member: FlowJob, members: Members, edges: Known) -> None:
    parent_id = member.spec.parent_id
    if parent_id is None:
        return
    parent = members.get(parent_id)
    if parent is None:
        raise ValidationError(f"flow parent not found: {parent_id}")
    if id not in parent.spec.children_ids:
        raise ValidationError(f"flow parent {parent_id} does not own child {id}")
    said = edges[id]
    if said.parent_id != parent_id or said.parent_queue != parent.queue:
        raise ValidationError(f"flow child {id} metadata does not match parent {parent_id}")


def _check_children_data(id: str, member: FlowJob, members: Members, edges: Known) -> None:
    children = member.spec.children_ids
    if children and edges[id].children != list(children):
        raise ValidationError(f"flow parent {id} children does not match the canonical flow topology")


def _check_order(members: Members) -> None:
    """Refuse a cycle: take away what waits for nothing until nothing is left."""
    waiting = {id: len(member.spec.depends_on) for id, member in members.items()}
    dependents: dict[str, list[str]] = {}
    for id, member in members.items():
        for other in member.spec.depends_on:
            dependents.setdefault(other, []).append(id)
    free = [id for id, count in waiting.items() if count == 0]
    taken = 0
    while free:
        taken += 1
        for id in dependents.get(free.pop(), ()):
            waiting[id] -= 1
            if waiting[id] == 0:
                free.append(id)
    if taken != len(members):
        raise ValidationError("flow contains a dependency cycle")


def _is_id(text: str) -> bool:
    if not 0 < len(text) <= MAX_ID_CHARACTERS:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    """A refused value in an error, short and printable."""
    return str(value)[:300].encode("utf-8", "replace").decode()
