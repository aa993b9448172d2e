"""Changing single jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from bunqueue_core.answer import Answer
from bunqueue_core.commands.replies import chain, done, then
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import (
    ABSENT,
    AnyQueue,
    Flag,
    FreeText,
    JobId,
    Members,
    NumberCheck,
    Reply,
    Text,
    Value,
    command,
)
from bunqueue_core.model.errors import NotFound, ValidationError
from bunqueue_core.model.job import JobState
from bunqueue_core.model.requests import LogEntry

#: Largest shift of a run time, ms: half of what a JavaScript date can hold, so that the sum stays one.
MAX_SHIFT_MS: Final = 4_320_000_000_000_000

#: Priorities fit 32 bits in every storage.
MAX_PRIORITY: Final = 2**31 - 1

Shift = Annotated[int, NumberCheck(-MAX_SHIFT_MS, MAX_SHIFT_MS)]
Count = Annotated[int | None, NumberCheck()]
Key = Text


@command("Cancel")
def cancel(session: Session, id: JobId) -> Reply:
    """Remove a job that waits (queued, or for other jobs)."""
    return done(session.broker.cancel(id))


@command("Update")
def update(session: Session, id: JobId, data: Value = ABSENT) -> Reply:
    """Replace the payload of a live job; the keys by which a flow holds together are kept."""
    if data is ABSENT:
        raise ValidationError("data is required")
    return done(session.broker.update_data(id, session.services.reader.read_data(data)))


@command("UpdateParent")
def update_parent(session: Session, child_id: JobId, parent_id: JobId) -> Reply:
    """Give an existing job its parent, which then waits for it."""
    return done(session.broker.update_parent(child_id, parent_id))


@command("ChangePriority")
def change_priority(
    session: Session,
    id: JobId,
    priority: Annotated[int, NumberCheck(-MAX_PRIORITY, MAX_PRIORITY)],
    lifo: Flag | None = None,
) -> Reply:
    """Move a queued job within the order of its queue."""
    return done(session.broker.change_priority(id, priority, lifo))


@command("Promote")
def promote(session: Session, id: JobId) -> Reply:
    """Make a delayed job ready."""
    return done(session.broker.promote(id))


@command("PromoteJobs", returns={"count": "number of jobs promoted"})
def promote_jobs(session: Session, queue: AnyQueue, count: Count = None) -> Reply:
    """Make delayed jobs ready, oldest first."""
    most = None if count is None else max(0, count)
    return then(session.broker.promote_jobs(queue, most), lambda promoted: {"count": promoted})


@command("MoveToDelayed")
def move_to_delayed(session: Session, id: JobId, delay: Shift, token: Text = "") -> Reply:
    """Let a queued job run ``delay`` ms from now, or hand an active one back until then."""

    def explain(moved: bool) -> Answer[None]:
        return Answer.of(None) if moved else _not_active(session, id)

    return done(chain(session.broker.change_delay(id, delay, token or None), explain))


@command("ChangeDelay")
def change_delay(session: Session, id: JobId, delay: Shift, token: Text = "") -> Reply:
    """The same as MoveToDelayed."""

    def moved(moved: bool) -> Members:
        if not moved:
            raise NotFound("Job not found or cannot change delay")
        return None

    return then(session.broker.change_delay(id, delay, token or None), moved)


@command("MoveToWait")
def move_to_wait(session: Session, id: JobId, token: Text = "") -> Reply:
    """Make a job ready now, whether it is active, delayed or dead-lettered."""
    return done(session.broker.move_to_wait(id, token or None))


@command("MoveToWaitingChildren", returns={"data": "{moved: true}"})
def move_to_waiting_children(session: Session, id: JobId, token: Text = "") -> Reply:
    """Park an active job until children that it gets have completed."""
    return then(session.broker.move_to_waiting_children(id, token or None), lambda _: {"data": {"moved": True}})


@command("Discard")
def discard(session: Session, id: JobId, token: Text = "") -> Reply:
    """Dead-letter a queued or active job."""
    return done(session.broker.discard(id, token or None))


@command("RemoveChildDependency", returns={"removed": "boolean"})
def remove_child_dependency(session: Session, id: JobId) -> Reply:
    """Detach a child from its parent, on both sides."""
    return then(session.broker.remove_child_dependency(id), lambda removed: {"removed": removed})


@command("RemoveUnprocessedChildren")
def remove_unprocessed_children(session: Session, id: JobId) -> Reply:
    """Cancel the children of a job that are still queued."""
    return done(session.broker.remove_unprocessed_children(id))


@command("GetDeduplicationJobId", returns={"data": "{jobId: job id or null}"})
def get_deduplication_job_id(session: Session, queue: AnyQueue, deduplication_id: Key) -> Reply:
    """The job that owns a deduplication key."""
    return then(session.broker.key_owner(queue, deduplication_id), lambda id: {"data": {"jobId": id}})


@command("RemoveDeduplicationKey", returns={"data": "{count: 0 or 1}"})
def remove_deduplication_key(session: Session, queue: AnyQueue, deduplication_id: Key) -> Reply:
    """Free a deduplication key."""
    return then(session.broker.remove_key(queue, deduplication_id), lambda count: {"data": {"count": count}})


@command("RemoveJobDeduplicationKey", returns={"data": "{removed: boolean}"})
def remove_job_deduplication_key(session: Session, id: JobId) -> Reply:
    """Free the deduplication key that a job owns."""
    return then(session.broker.remove_job_key(id), lambda removed: {"data": {"removed": removed}})


@command("AddLog", returns={"data": "{added: true}"})
def add_log(session: Session, id: JobId, message: FreeText, level: FreeText = "info") -> Reply:
    """Append a line to a job's log."""
    return then(session.broker.add_log(id, message, level), lambda _: {"data": {"added": True}})


@command("GetLogs", returns={"data": "{logs: list of {timestamp, level, message}, count: number of all lines}"})
def get_logs(session: Session, id: JobId, start: Count = None, end: Count = None) -> Reply:
    """A job's log from line ``start`` to line ``end`` inclusive; a negative start counts from the end."""

    def cut(lines: list[LogEntry]) -> Members:
        stop = None if end is None else end + 1
        shown = lines[start:stop]
        return {"data": {"logs": [line._asdict() for line in shown], "count": len(lines)}}

    return then(session.broker.logs(id), cut)


@command("ClearLogs")
def clear_logs(session: Session, id: JobId, keep_logs: Count = None) -> Reply:
    """Drop all lines of a job's log but the newest ``keepLogs``."""
    return done(session.broker.clear_logs(id, max(0, keep_logs or 0)))


def _not_active(session: Session, id: str) -> Answer[None]:
    def refuse(states: Sequence[JobState]) -> None:
        if states[0] == "unknown":
            raise NotFound("Job not found")
        raise NotFound(f"Job is not active (current state: {states[0]})")

    return session.broker.states((id,)).map(refuse)
