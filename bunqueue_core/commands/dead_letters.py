"""Dead letters and the policies that decide about them."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from bunqueue_core.commands.replies import chain, done, lenient_number, then, whole_or_none
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import ABSENT, AnyQueue, JobId, Map, NumberCheck, Reply, Text, Value, command
from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.options import SAFE_INTEGER, number, text
from bunqueue_core.model.requests import DlqConfig, DlqEntry, DlqFilter, StallConfig

Count = Annotated[int | None, NumberCheck()]


@command("Dlq", returns={"jobs": "list of jobs", "entries": "list of dead letters"})
def dlq(session: Session, queue: AnyQueue, count: Count = None, filter: Value = ABSENT) -> Reply:
    """Dead letters of a queue, oldest first; ``jobs`` and ``entries`` run parallel."""

    def listed(entries: list[DlqEntry]) -> dict[str, Any]:
        return {"jobs": [entry.job for entry in entries], "entries": entries}

    bound = None if count is None else max(0, count)
    return then(session.broker.dead_letters(queue, bound, _filter(filter)), listed)


@command("RetryDlq", returns={"count": "number of jobs requeued"})
def retry_dlq(
    session: Session, queue: AnyQueue, job_id: Text = "", count: Value = ABSENT, filter: Value = ABSENT
) -> Reply:
    """Requeue dead letters with fresh attempts: those of ``filter``, else job ``jobId``, else the first ``count``, else all."""
    bound = None if count is ABSENT or count is None else min(max(0, whole_or_none(count) or 0), SAFE_INTEGER)
    answer = session.broker.retry_dead_letters(queue, job_id or None, bound, _filter(filter))
    return then(answer, lambda retried: {"count": retried})


@command("RetryCompleted", returns={"count": "number of jobs requeued"})
def retry_completed(
    session: Session, queue: Text = "", id: Text = "", count: Value = ABSENT, timestamp: Value = ABSENT
) -> Reply:
    """Run completed jobs again: job ``id``, else the oldest up to ``count`` that completed at or before ``timestamp``."""
    if not queue:
        return {"count": 0}
    bound = None if count is ABSENT or count is None else min(max(0, whole_or_none(count) or 0), SAFE_INTEGER)
    answer = session.broker.retry_completed(queue, id or None, bound, whole_or_none(timestamp))
    return then(answer, lambda retried: {"count": retried})


@command(
    "GetDlqStats",
    returns={"data": "{stats: {total, byReason, byQueue, pendingRetry, expired, oldestEntry, newestEntry}}"},
)
def get_dlq_stats(session: Session, queue: AnyQueue) -> Reply:
    """Dead letters of a queue in numbers."""
    return then(session.broker.dlq_stats(queue), lambda stats: {"data": {"stats": stats}})


@command("PurgeDlq", returns={"count": "number of dead letters deleted"})
def purge_dlq(session: Session, queue: AnyQueue) -> Reply:
    """Delete all dead letters of a queue with their jobs."""
    return then(session.broker.purge_dead_letters(queue), lambda purged: {"count": purged})


@command("RemoveDlqJob", returns={"data": "{removed: boolean}"})
def remove_dlq_job(session: Session, queue: AnyQueue, job_id: JobId) -> Reply:
    """Delete one dead letter with its job. A miss is no error."""
    return then(session.broker.remove_dead_letter(queue, job_id), lambda removed: {"data": {"removed": removed}})


@command("GetDlqConfig", returns={"config": "{autoRetry, autoRetryInterval, maxAutoRetries, maxAge, maxEntries}"})
def get_dlq_config(session: Session, queue: AnyQueue) -> Reply:
    """The dead-letter policy of a queue."""

    def shown(config: DlqConfig) -> dict[str, Any]:
        return {
            "config": {
                "autoRetry": config.auto_retry,
                "autoRetryInterval": config.auto_retry_interval_ms,
                "maxAutoRetries": config.max_auto_retries,
                "maxAge": config.max_age_ms,
                "maxEntries": config.max_entries,
            }
        }

    return then(session.broker.dlq_config(queue), shown)


@command("SetDlqConfig")
def set_dlq_config(session: Session, queue: AnyQueue, config: Map) -> Reply:
    """Change the given members of a queue's dead-letter policy; members that make no sense are ignored."""

    def merged(current: DlqConfig) -> DlqConfig:
        changes: dict[str, Any] = {}
        if isinstance(config.get("autoRetry"), bool):
            changes["auto_retry"] = config["autoRetry"]
        for name, field, least in (
            ("autoRetryInterval", "auto_retry_interval_ms", 0),
            ("maxAutoRetries", "max_auto_retries", 0),
            ("maxAge", "max_age_ms", 0),
            ("maxEntries", "max_entries", 1),
        ):
            value = whole_or_none(config.get(name))
            if value is not None:
                changes[field] = min(max(least, value), SAFE_INTEGER)
        if "maxAge" in config and config["maxAge"] is None:
            changes["max_age_ms"] = None
        return dataclasses.replace(current, **changes)

    broker = session.broker
    return done(chain(broker.dlq_config(queue), lambda current: broker.set_dlq_config(queue, merged(current))))


@command("GetStallConfig", returns={"config": "{enabled, stallInterval, maxStalls, gracePeriod}"})
def get_stall_config(session: Session, queue: AnyQueue) -> Reply:
    """When a silent active job of a queue counts as stalled."""

    def shown(config: StallConfig) -> dict[str, Any]:
        return {
            "config": {
                "enabled": config.enabled,
                "stallInterval": config.stall_interval_ms,
                "maxStalls": config.max_stalls,
                "gracePeriod": config.grace_period_ms,
            }
        }

    return then(session.broker.stall_config(queue), shown)


@command("SetStallConfig")
def set_stall_config(session: Session, queue: AnyQueue, config: Value = ABSENT) -> Reply:
    """Change the given members of a queue's stall policy; numeric strings count as numbers, what makes no sense is ignored."""
    given: dict[str, Any] = config if isinstance(config, dict) else {}

    def merged(current: StallConfig) -> StallConfig:
        changes: dict[str, Any] = {}
        if isinstance(given.get("enabled"), bool):
            changes["enabled"] = given["enabled"]
        for name, field in (
            ("stallInterval", "stall_interval_ms"),
            ("maxStalls", "max_stalls"),
            ("gracePeriod", "grace_period_ms"),
        ):
            value = whole_or_none(lenient_number(given.get(name)))
            if value is not None and 0 <= value <= SAFE_INTEGER:
                changes[field] = value
        return dataclasses.replace(current, **changes)

    broker = session.broker
    return done(chain(broker.stall_config(queue), lambda current: broker.set_stall_config(queue, merged(current))))


def _filter(value: Any) -> DlqFilter | None:
    if value is ABSENT or value is None:
        return None
    if not isinstance(value, dict):
        raise ValidationError("filter must be an object")

    def bound(name: str) -> int | None:
        given = value.get(name)
        return number(given, f"filter.{name}", -SAFE_INTEGER, SAFE_INTEGER) if given else None

    reason = value.get("reason")
    return DlqFilter(
        reason=text(reason, "filter.reason") if reason else None,
        older_than=bound("olderThan"),
        newer_than=bound("newerThan"),
        retriable=bool(value.get("retriable")),
        expired=bool(value.get("expired")),
        offset=max(0, bound("offset") or 0),
        limit=None if bound("limit") is None else max(0, bound("limit") or 0),
    )
