"""What becomes of a job when its delivery ends other than by completion: pure rules on a job that the caller has locked.

Each function changes the job and says where it goes; the caller writes the row. Times are epoch ms on the database's clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bunqueue_core.model.deadletters import buried, expire_with, retry_automatically
from bunqueue_core.model.job import (
    Job,
    Location,
    RetryHistory,
    TimelineEntry,
    append_timeline,
    ready_state,
    timeline_of,
)
from bunqueue_core.model.payload import Packed
from bunqueue_core.model.requests import DlqConfig, DlqEntry, DlqReason, StallConfig
from bunqueue_core.model.rules import BACKOFF_STRATEGIES, backoff_delay, stack_lines
from bunqueue_core.plugins.drivers import BackoffStrategy

#: Error of a job that ran longer than its ``timeout``.
TIMEOUT_ERROR: Final = "Job timeout exceeded"


class Notice(NamedTuple):
    """An event of the job at hand."""

    type: str
    extra: dict[str, Any] | None = None


@dataclass(slots=True)
class Outcome:
    """Where the job goes: to the dead letters (``entry``), away (``removed``), or to ``location``, its queue by default."""

    entry: DlqEntry | None = None
    removed: bool = False
    location: int = Location.READY
    keeps_key: bool = False  #: the delivery is undone, its deduplication key with it
    notices: list[Notice] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Policies:
    """What the decision depends on beside the job."""

    stall: StallConfig
    dlq: DlqConfig
    random: Callable[[], float]
    strategies: Mapping[str, BackoffStrategy] = field(default_factory=lambda: BACKOFF_STRATEGIES)
    awaited: bool = False  #: live jobs wait for the job: it is kept, whatever its options say

    def backoff(self, job: Job, attempts: int) -> int:
        """Delay before the next run, ms."""
        return backoff_delay(job.options, attempts, self.random, self.strategies)


def failed(
    job: Job,
    now: int,
    policies: Policies,
    error: str | None,
    stack: list[str] | None = None,
    *,
    unrecoverable: bool = False,
    remove: bool = False,
    reason: DlqReason = "explicit_fail",
) -> Outcome:
    """An attempt failed: retry with back-off, or end."""
    options = job.options
    if job.history is not None:
        job.history.losses = 0
    job.attempts += 1
    if stack is not None:
        job.stacktrace = stack_lines(stack, options.stack_trace_limit)
    _failed_entry(job, now, error)
    extra: dict[str, Any] = {}
    if error is not None:
        extra["error"] = error
    if job.data is not None:
        extra["data"] = Packed(job.data)
    if not unrecoverable and job.attempts < options.max_attempts:
        _record(job, now, reason, error)
        _back_to_queue(job, now + policies.backoff(job, job.attempts))
        append_timeline(job, {"state": "waiting", "timestamp": now, "attempt": job.attempts + 1})
        return Outcome(notices=[Notice("failed", {**extra, "terminal": False}), Notice("retried", {"prev": "failed"})])
    final: DlqReason = "timeout" if reason == "timeout" else "max_attempts_exceeded"
    _record(job, now, final, error)
    outcome = _ended(job, now, policies, final, error, remove=remove)
    outcome.notices.append(Notice("failed", {**extra, "terminal": True}))
    return outcome


def lease_expired(job: Job, now: int, policies: Policies, renewals: int) -> Outcome:
    """The owner's lease ran out. The job comes back at once, or ends at its last attempt or the queue's stall limit."""
    job.attempts += 1
    job.stall_count += 1
    maximum = job.options.max_attempts
    if job.attempts >= maximum:
        text = "Lock expired (max attempts reached)"
        return _lost_for_good(
            job, now, policies, "max_attempts_exceeded", f"Lock expired at max attempts ({maximum})", text
        )
    if 0 < policies.stall.max_stalls <= job.stall_count:
        text = "Lock expired (max stalls reached)"
        return _lost_for_good(job, now, policies, "stalled", f"Lock expired after {renewals} renewals", text)
    _record(job, now, "stalled", "Lock expired")
    _back_to_queue(job, job.run_at)
    return Outcome(notices=[Notice("stalled")])


def stalled(job: Job, now: int, policies: Policies) -> Outcome:
    """A job without a lease of its own has been silent for too long: retry with back-off, or end."""
    job.attempts += 1
    job.stall_count += 1
    maximum = job.options.max_attempts
    exhausted = job.attempts >= maximum
    if exhausted or job.stall_count >= policies.stall.max_stalls:
        reason: DlqReason = "max_attempts_exceeded" if exhausted else "stalled"
        error = f"Job stalled at max attempts ({maximum})" if exhausted else f"Job stalled {job.stall_count} times"
        job.started_at = None
        _record(job, now, reason, error)
        outcome = _ended(job, now, policies, reason, error)
        outcome.notices.append(_stalled_notice(job, "move_to_dlq"))
        return outcome
    _record(job, now, "stalled", "stalled")
    _failed_entry(job, now, "stalled")
    append_timeline(job, {"state": "waiting", "timestamp": now, "attempt": job.attempts + 1})
    _back_to_queue(job, now + policies.backoff(job, job.attempts))
    return Outcome(notices=[_stalled_notice(job, "retry")])


def lost(job: Job, now: int, policies: Policies, owner: str | None) -> Outcome:
    """The connection that held the job is gone. At once the first time, with back-off from the second, ended at the stall limit."""
    history = job.history
    losses = (history.losses if history is not None else 0) + 1
    if 0 < policies.stall.max_stalls <= losses:
        worker = f"; last worker: {owner}" if owner else ""
        error = f"Job lost with its connection {losses} times{worker}"
        return _lost_for_good(job, now, policies, "stalled", error, error)
    if history is None:
        history = job.history = RetryHistory()
    history.losses = losses
    run_at = job.run_at if losses == 1 else now + policies.backoff(job, losses - 1)
    _back_to_queue(job, run_at)
    job.last_heartbeat = now
    return Outcome()


def given_back(job: Job) -> Outcome:
    """A delivery that nobody took is undone."""
    if job.timeline and job.timeline[-1]["state"] == "active":
        job.timeline.pop()
    _back_to_queue(job, job.run_at)
    return Outcome(keeps_key=True)


def retried(job: Job, now: int) -> Outcome:
    """A dead letter starts afresh, by hand."""
    job.attempts = 0
    job.stall_count = 0
    job.history = None
    job.last_heartbeat = now
    append_timeline(job, {"state": "waiting", "timestamp": now})
    _back_to_queue(job, now)
    return Outcome()


def auto_retried(job: Job, now: int, entry: DlqEntry, config: DlqConfig) -> Outcome:
    """A dead letter starts afresh by itself; should it fail again it comes back as the same letter."""
    history = retry_automatically(entry, now, config)
    outcome = retried(job, now)
    job.history = history
    return outcome


def discarded(job: Job, now: int, policies: Policies) -> Outcome:
    """A job is buried by hand."""
    _record(job, now, "unknown", None)
    return _ended(job, now, policies, "unknown", None, keep=True)


def moved(job: Job, run_at: int) -> Outcome:
    """A queued job moves in time."""
    _own_timeline(job)
    job.run_at = run_at
    return Outcome()


def handed_back(job: Job, run_at: int, notice: Notice) -> Outcome:
    """An active job goes back to its queue by hand: nothing is charged."""
    _back_to_queue(job, run_at)
    return Outcome(notices=[notice])


def parked(job: Job, now: int, location: int) -> Outcome:
    """An active job waits for children."""
    job.started_at = None
    append_timeline(job, {"state": "waiting-children", "timestamp": now})
    return Outcome(location=location, notices=[Notice("waiting-children", {"prev": "active"})])


def reordered(job: Job, priority: int, lifo: bool | None) -> Outcome:
    """A queued job moves within the order."""
    _own_timeline(job)
    job.priority = priority
    if lifo is not None and lifo != job.options.lifo:
        job.options = dataclasses.replace(job.options, lifo=lifo)
    return Outcome()


def run_again(job: Job, now: int) -> Outcome:
    """A completed job runs again from the start."""
    job.attempts = 0
    job.progress = 0
    job.progress_message = None
    job.completed_at = None
    job.history = None
    append_timeline(job, {"state": "waiting", "timestamp": now})
    _back_to_queue(job, now)
    return Outcome()


def gate_opened(job: Job, now: int) -> Outcome:
    """What the job waited for has completed: it keeps its ``run_at``."""
    append_timeline(job, {"state": ready_state(job, now), "timestamp": now})
    return Outcome()


def promoted_parent(job: Job, now: int) -> Outcome:
    """A policy or a detachment released the job: it runs now, whatever its delay was."""
    _own_timeline(job)
    job.run_at = now
    append_timeline(job, {"state": ready_state(job, now), "timestamp": now})
    return Outcome(notices=[Notice("waiting", {"prev": "waiting-children"})])


def gated(job: Job, now: int) -> Outcome:
    """A queued job waits for a child that it got."""
    append_timeline(job, {"state": "waiting-children", "timestamp": now})
    return Outcome(location=Location.GATED)


def failed_with_child(job: Job, now: int, policies: Policies, message: str) -> Outcome:
    """A child's failure is its parent's."""
    job.history = None
    _record(job, now, "unknown", message)
    outcome = _ended(job, now, policies, "unknown", message, keep=True)
    extra: dict[str, Any] = {"error": message}
    if job.data is not None:
        extra["data"] = Packed(job.data)
    outcome.notices.append(Notice("failed", extra))
    return outcome


def _own_timeline(job: Job) -> None:
    """Make the timeline explicit before a change after which it could not be derived any more."""
    if job.timeline is None:
        job.timeline = timeline_of(job)


def _back_to_queue(job: Job, run_at: int) -> None:
    job.started_at = None
    job.run_at = run_at


def _failed_entry(job: Job, now: int, error: str | None) -> None:
    step: TimelineEntry = {"state": "failed", "timestamp": now, "attempt": job.attempts}
    if error is not None:
        step["error"] = error
    append_timeline(job, step)


def _record(job: Job, now: int, reason: DlqReason, error: str | None) -> None:
    history = job.history
    if history is None:
        history = job.history = RetryHistory()
    started = job.started_at
    history.attempts.append(
        {
            "attempt": job.attempts,
            "startedAt": started if started is not None else job.created_at,
            "failedAt": now,
            "reason": reason,
            "error": error,
            "duration": now - started if started is not None else 0,
        }
    )


def _stalled_notice(job: Job, action: str) -> Notice:
    return Notice("stalled", {"data": {"stallCount": job.stall_count, "action": action}})


def _lost_for_good(job: Job, now: int, policies: Policies, reason: DlqReason, error: str, text: str) -> Outcome:
    _record(job, now, reason, error)
    outcome = _ended(job, now, policies, reason, error)
    outcome.notices += [_stalled_notice(job, "move_to_dlq"), Notice("failed", {"error": text})]
    return outcome


def _ended(
    job: Job,
    now: int,
    policies: Policies,
    reason: DlqReason,
    error: str | None,
    *,
    remove: bool = False,
    keep: bool = False,
) -> Outcome:
    """The end of a job that failed: removed, or a dead letter (the same one as before if it was retried from there by itself)."""
    if not keep and not policies.awaited and (remove or job.options.remove_on_fail.remove):
        return Outcome(removed=True)
    entry = buried(job, now, reason, error, policies.dlq)
    kept = job.options.remove_on_fail.age_ms
    if kept is not None:
        expire_with(entry, now, kept)
    return Outcome(entry=entry)
