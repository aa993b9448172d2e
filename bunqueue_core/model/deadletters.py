"""The rules of dead letters that every broker shares: becoming one, matching a filter, being retried by itself."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, get_args

from bunqueue_core.model.job import Job, RetryHistory
from bunqueue_core.model.options import YEAR_MS
from bunqueue_core.model.requests import DlqConfig, DlqEntry, DlqFilter, DlqReason

#: Every reason that statistics list, in the order of the wire.
DLQ_REASONS: Final[tuple[DlqReason, ...]] = get_args(DlqReason)

#: Doublings of the pause between automatic retries that may matter: more exceed every bound.
_MAX_DOUBLINGS: Final = 62


def buried(job: Job, now: int, reason: DlqReason, error: str | None, config: DlqConfig) -> DlqEntry:
    """The dead letter of a job that has failed for good.

    A job that was retried automatically comes back as the letter that it was: same entry and expiry times, its retries counted.
    """
    entry = DlqEntry(job=job, entered_at=now, reason=reason, error=error)
    history = job.history
    job.history = None
    if history is not None:
        entry.attempts = history.attempts
        if history.entered_at is not None:
            entry.entered_at = history.entered_at
            entry.expires_at = history.expires_at
            entry.retry_count = history.retry_count
            entry.last_retry_at = history.last_retry_at
            entry.next_retry_at = history.next_retry_at
            return entry
    entry.expires_at = None if config.max_age_ms is None else now + config.max_age_ms
    entry.next_retry_at = now + config.auto_retry_interval_ms if config.auto_retry else None
    return entry


def expire_with(entry: DlqEntry, now: int, age_ms: int) -> None:
    """Bound a letter's life by its job's ``removeOnFail.age``, in ms from ``now``."""
    expires_at = now + age_ms
    entry.expires_at = expires_at if entry.expires_at is None else min(entry.expires_at, expires_at)


def retry_automatically(entry: DlqEntry, now: int, config: DlqConfig) -> RetryHistory:
    """Count an automatic retry on the letter, and give what its job carries so that it can come back as the same letter.

    The next one is due after ``auto_retry_interval_ms`` doubled with each retry, a year at most.
    """
    entry.retry_count += 1
    entry.last_retry_at = now
    pause = config.auto_retry_interval_ms << min(entry.retry_count - 1, _MAX_DOUBLINGS)
    entry.next_retry_at = now + min(pause, YEAR_MS) if entry.retry_count < config.max_auto_retries else None
    history = RetryHistory()
    history.attempts = entry.attempts
    history.entered_at = entry.entered_at
    history.expires_at = entry.expires_at
    history.retry_count = entry.retry_count
    history.last_retry_at = now
    history.next_retry_at = entry.next_retry_at
    return history


def retriable(entry: DlqEntry, config: DlqConfig, now: int) -> bool:
    """Whether an automatic retry of the letter is due."""
    return (
        entry.retry_count < config.max_auto_retries and entry.next_retry_at is not None and entry.next_retry_at <= now
    )


def has_expired(entry: DlqEntry, now: int) -> bool:
    """Whether the letter is to be removed."""
    return entry.expires_at is not None and entry.expires_at <= now


def matching(entries: Iterable[DlqEntry], filter: DlqFilter, config: DlqConfig, now: int) -> Iterable[DlqEntry]:
    """The letters that match a filter, from its offset on, at most as many as its limit. An empty or zero bound is none."""

    def matches(entry: DlqEntry) -> bool:
        return (
            (not filter.reason or entry.reason == filter.reason)
            and (not filter.older_than or entry.entered_at <= filter.older_than)
            and (not filter.newer_than or entry.entered_at >= filter.newer_than)
            and (not filter.retriable or retriable(entry, config, now))
            and (not filter.expired or has_expired(entry, now))
        )

    start = filter.offset or 0
    return islice((entry for entry in entries if matches(entry)), start, start + filter.limit if filter.limit else None)


def statistics(queue: str, entries: Iterable[DlqEntry], config: DlqConfig, now: int) -> dict[str, Any]:
    """Statistics of a queue's dead letters, by their wire names."""
    total = pending = over = 0
    reasons: dict[str, int] = dict.fromkeys(DLQ_REASONS, 0)
    oldest: int | None = None
    newest: int | None = None
    for entry in entries:
        total += 1
        reasons[entry.reason] += 1
        pending += retriable(entry, config, now)
        over += has_expired(entry, now)
        at = entry.entered_at
        oldest = at if oldest is None else min(oldest, at)
        newest = at if newest is None else max(newest, at)
    return {
        "total": total,
        "byReason": reasons,
        "byQueue": {queue: total},
        "pendingRetry": pending,
        "expired": over,
        "oldestEntry": oldest,
        "newestEntry": newest,
    }
