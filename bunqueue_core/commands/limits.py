"""Limits of queues, and groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from bunqueue_core.commands.replies import done, lenient_number, then, whole_or_none
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import ABSENT, AnyQueue, Members, NumberCheck, QueueName, Reply, Value, command
from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.options import SAFE_INTEGER, group_id, positive_safe_integer
from bunqueue_core.model.requests import QueueLimits


@dataclass(frozen=True, slots=True)
class GroupIdCheck:
    """The id of a group."""

    kind: str = "group id"

    def check(self, value: Any, field: str) -> str:
        """See :class:`~bunqueue_core.commands.table.Check`."""
        if value is None:
            raise ValidationError("groupId is required")
        return group_id(value)


@dataclass(frozen=True, slots=True)
class PositiveCheck:
    """A positive integer."""

    kind: str = "positive integer"

    def check(self, value: Any, field: str) -> int:
        """See :class:`~bunqueue_core.commands.table.Check`."""
        return positive_safe_integer(value, field)


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """A finite number. Texts that JavaScript reads as one, and booleans, count as well.

    One beyond what clients and storages can hold exactly counts as the largest that they can: it limits nothing anyway.
    """

    kind: str = "number"

    def check(self, value: Any, field: str) -> float:
        """See :class:`~bunqueue_core.commands.table.Check`."""
        limit = lenient_number(value)
        if not isinstance(limit, int | float) or limit in (math.inf, -math.inf) or limit != limit:
            raise ValidationError(f"{field} must be a finite number")
        return float(max(-SAFE_INTEGER, min(limit, SAFE_INTEGER)))


GroupId = Annotated[str, GroupIdCheck()]
Positive = Annotated[int, PositiveCheck()]
Limit = Annotated[float, LimitCheck()]
Count = Annotated[int | None, NumberCheck()]


@command("RateLimit")
def rate_limit(session: Session, queue: AnyQueue, limit: Limit, duration: Value = ABSENT, ttl: Value = ABSENT) -> Reply:
    """At most ``limit`` deliveries of a queue per ``duration`` ms (1000), for ``ttl`` ms or until it is cleared."""
    return done(session.broker.set_rate_limit(queue, limit, _period(duration), _period(ttl)))


@command("RateLimitClear")
def rate_limit_clear(session: Session, queue: AnyQueue) -> Reply:
    """Undo RateLimit."""
    return done(session.broker.clear_rate_limit(queue))


@command("SetConcurrency")
def set_concurrency(session: Session, queue: AnyQueue, limit: Limit) -> Reply:
    """At most ``limit`` active jobs of a queue; 0 stops deliveries."""
    return done(session.broker.set_concurrency(queue, limit))


@command("ClearConcurrency")
def clear_concurrency(session: Session, queue: AnyQueue) -> Reply:
    """Undo SetConcurrency."""
    return done(session.broker.clear_concurrency(queue))


@command(
    "GetQueueLimits",
    returns={
        "data": "{limits: {rateLimit: {max, duration} or null, rateLimitTtl: ms, concurrencyLimit: number or null, maxed}}"
    },
)
def get_queue_limits(session: Session, queue: AnyQueue, max_jobs: Count = None) -> Reply:
    """Limits of a queue, and whether they are reached."""

    def shown(limits: QueueLimits) -> Members:
        rate = None if limits.rate_max is None else {"max": limits.rate_max, "duration": limits.rate_duration_ms}
        return {
            "data": {
                "limits": {
                    "rateLimit": rate,
                    "rateLimitTtl": limits.rate_ttl_ms,
                    "concurrencyLimit": limits.concurrency,
                    "maxed": limits.maxed,
                }
            }
        }

    return then(session.broker.queue_limits(queue, max_jobs), shown)


@command("GetGroupJobsCount", returns={"data": "{count}"})
def get_group_jobs_count(session: Session, queue: QueueName, group_id: GroupId) -> Reply:
    """Queued jobs of a group."""
    return then(session.broker.group_jobs_count(queue, group_id), lambda count: {"data": {"count": count}})


@command("GetGroupsJobsCount", returns={"data": "{count}"})
def get_groups_jobs_count(session: Session, queue: QueueName) -> Reply:
    """Queued jobs of all groups."""
    return then(session.broker.group_jobs_count(queue, None), lambda count: {"data": {"count": count}})


@command("GetGroupActiveCount", returns={"data": "{count}"})
def get_group_active_count(session: Session, queue: QueueName, group_id: GroupId) -> Reply:
    """Active jobs of a group."""
    return then(session.broker.group_active_count(queue, group_id), lambda count: {"data": {"count": count}})


@command("SetGroupRateLimit")
def set_group_rate_limit(
    session: Session, queue: QueueName, group_id: GroupId, max: Positive, duration: Positive
) -> Reply:
    """A group's own rate limit; it holds for pulls whose worker gives a default."""
    return done(session.broker.set_group_rate_limit(queue, group_id, max, duration))


@command("GetGroupRateLimit", returns={"data": "{limit: {max, duration} or null}"})
def get_group_rate_limit(session: Session, queue: QueueName, group_id: GroupId) -> Reply:
    """A group's own rate limit."""

    def shown(limit: tuple[int, int] | None) -> Members:
        return {"data": {"limit": None if limit is None else {"max": limit[0], "duration": limit[1]}}}

    return then(session.broker.group_rate_limit(queue, group_id), shown)


@command("RemoveGroupRateLimit", returns={"data": "{removed: 0 or 1}"})
def remove_group_rate_limit(session: Session, queue: QueueName, group_id: GroupId) -> Reply:
    """Undo SetGroupRateLimit."""
    return then(session.broker.remove_group_rate_limit(queue, group_id), _removed)


@command("GetGroupRateLimitTtl", returns={"data": "{ttl: ms, -2 without limit}"})
def get_group_rate_limit_ttl(session: Session, queue: QueueName, group_id: GroupId, max_jobs: Count = None) -> Reply:
    """Time until a group's limit ends or its window opens."""
    return then(session.broker.group_rate_limit_ttl(queue, group_id, max_jobs), lambda ttl: {"data": {"ttl": ttl}})


@command("SetGroupConcurrency")
def set_group_concurrency(session: Session, queue: QueueName, group_id: GroupId, concurrency: Positive) -> Reply:
    """A group's own bound of active jobs; it holds for pulls whose worker gives a default."""
    return done(session.broker.set_group_concurrency(queue, group_id, concurrency))


@command("GetGroupConcurrency", returns={"data": "{concurrency: number or null}"})
def get_group_concurrency(session: Session, queue: QueueName, group_id: GroupId) -> Reply:
    """A group's own bound of active jobs."""
    return then(session.broker.group_concurrency(queue, group_id), lambda bound: {"data": {"concurrency": bound}})


@command("RemoveGroupConcurrency", returns={"data": "{removed: 0 or 1}"})
def remove_group_concurrency(session: Session, queue: QueueName, group_id: GroupId) -> Reply:
    """Undo SetGroupConcurrency."""
    return then(session.broker.remove_group_concurrency(queue, group_id), _removed)


@command("PauseGroup", returns={"data": "{changed: boolean}"})
def pause_group(session: Session, queue: QueueName, group_id: GroupId) -> Reply:
    """Stop deliveries of a group."""
    return then(session.broker.pause_group(queue, group_id), lambda changed: {"data": {"changed": changed}})


@command("ResumeGroup", returns={"data": "{changed: boolean}"})
def resume_group(session: Session, queue: QueueName, group_id: GroupId) -> Reply:
    """Undo PauseGroup."""
    return then(session.broker.resume_group(queue, group_id), lambda changed: {"data": {"changed": changed}})


@command("IsGroupPaused", returns={"data": "{paused: boolean}"})
def is_group_paused(session: Session, queue: QueueName, group_id: GroupId) -> Reply:
    """Whether a group is paused."""
    return then(session.broker.is_group_paused(queue, group_id), lambda paused: {"data": {"paused": paused}})


@command("RateLimitGroup")
def rate_limit_group(session: Session, queue: QueueName, group_id: GroupId, duration: Positive) -> Reply:
    """Block a group for ``duration`` ms from now."""
    return done(session.broker.rate_limit_group(queue, group_id, duration))


def _period(value: Any) -> int | None:
    """A positive number of whole ms, None for everything else."""
    period = whole_or_none(lenient_number(value))
    return period if period is not None and period > 0 else None


def _removed(removed: bool) -> Members:
    return {"data": {"removed": int(removed)}}
