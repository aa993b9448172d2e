"""The options of a job as types: editors complete them and type checkers check them.

Every option exists under the name that Python programs use; the TypeScript client's spelling (``jobId``) is understood as well, so
that options can be taken over as they are. What the options mean stands at :meth:`bunqueue_core.Queue.add`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypeAlias, TypedDict

#: A length of time: milliseconds, or a ``timedelta``.
Duration: TypeAlias = int | float | timedelta

#: A point in time: milliseconds since the epoch, or a ``datetime`` or ``date`` (UTC where it has no zone).
Instant: TypeAlias = int | float | datetime | date


class Backoff(TypedDict, total=False):
    """Pauses between attempts. ``type`` is ``fixed``, ``exponential`` or a plugin's; ``max_delay`` bounds a growing one."""

    type: str
    delay: Duration
    max_delay: Duration
    maxDelay: Duration


class Deduplication(TypedDict, total=False):
    """One job per ``id``: for ``ttl``, prolonged by each further one with ``extend``, or the newest in the place of the old with
    ``replace``."""

    id: str
    ttl: Duration
    extend: bool
    replace: bool
    scope: str


class Debounce(TypedDict, total=False):
    """The newest job of an ``id`` runs when none has come for ``ttl``, at the latest ``max_wait`` after the first."""

    id: str
    ttl: Duration
    max_wait: Duration
    maxWait: Duration


class Group(TypedDict, total=False):
    """The group of a job. A lower ``priority`` comes first within it; ``max_size`` refuses more queued jobs than that."""

    id: str | int
    priority: int
    max_size: int
    maxSize: int


class Parent(TypedDict):
    """The job that waits for this one."""

    id: str
    queue: str


class Keep(TypedDict, total=False):
    """Which finished jobs are kept: those of the last ``age`` seconds, and at most ``count`` of them."""

    age: int
    count: int


class Repeat(TypedDict, total=False):
    """Each completed run adds the next one: every ``every`` ms, or by the cron expression ``pattern`` in the zone ``tz``."""

    every: Duration
    pattern: str
    tz: str
    limit: int
    count: int
    start_date: Instant
    startDate: Instant
    end_date: Instant
    endDate: Instant
    immediately: bool
    prev_millis: Instant
    prevMillis: Instant
    offset: Duration
    job_id: str
    jobId: str


class JobOptions(TypedDict, total=False):
    """The options of a job under Python's names. None counts as not given."""

    priority: int | None
    delay: Duration | None
    attempts: int | None
    backoff: Duration | Backoff | Mapping[str, Any] | None
    ttl: Duration | None
    timeout: Duration | None
    stall_timeout: Duration | None
    job_id: str | None
    unique_key: str | None
    deduplication: Deduplication | Mapping[str, Any] | None
    debounce: Debounce | Mapping[str, Any] | None
    depends_on: Sequence[str] | None
    children_ids: Sequence[str] | None
    tags: Sequence[str] | None
    parent: Parent | Mapping[str, Any] | None
    parent_id: str | None
    group: Group | Mapping[str, Any] | None
    group_id: str | None
    group_max_size: int | None
    lifo: bool | None
    durable: bool | None
    remove_on_complete: bool | int | Keep | Mapping[str, Any] | None
    remove_on_fail: bool | int | Keep | Mapping[str, Any] | None
    repeat: Repeat | Mapping[str, Any] | None
    stack_trace_limit: int | None
    keep_logs: int | None
    size_limit: int | None
    timestamp: Instant | None
    fail_parent_on_failure: bool | None
    remove_dependency_on_failure: bool | None
    continue_parent_on_failure: bool | None
    ignore_dependency_on_failure: bool | None


class AnyJobOptions(JobOptions, total=False):
    """The options of a job under either spelling."""

    maxAttempts: int | None
    stallTimeout: Duration | None
    jobId: str | None
    uniqueKey: str | None
    dependsOn: Sequence[str] | None
    childrenIds: Sequence[str] | None
    parentId: str | None
    groupId: str | None
    groupMaxSize: int | None
    removeOnComplete: bool | int | Keep | Mapping[str, Any] | None
    removeOnFail: bool | int | Keep | Mapping[str, Any] | None
    stackTraceLimit: int | None
    keepLogs: int | None
    sizeLimit: int | None
    failParentOnFailure: bool | None
    removeDependencyOnFailure: bool | None
    continueParentOnFailure: bool | None
    ignoreDependencyOnFailure: bool | None


__all__ = [
    "AnyJobOptions",
    "Backoff",
    "Debounce",
    "Deduplication",
    "Duration",
    "Group",
    "Instant",
    "JobOptions",
    "Keep",
    "Parent",
    "Repeat",
]
