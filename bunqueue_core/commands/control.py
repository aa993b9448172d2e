"""Controlling queues."""

from __future__ import annotations

from bunqueue_core.commands.replies import done, then, whole_or_none
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import ABSENT, AnyQueue, Reply, Text, Value, command
from bunqueue_core.model.options import SAFE_INTEGER

#: Jobs that one Clean removes when it names no limit.
DEFAULT_CLEAN_LIMIT = 1000


@command("Pause")
def pause(session: Session, queue: AnyQueue) -> Reply:
    """Stop deliveries of a queue; pushes and active jobs go on. Idempotent."""
    return done(session.broker.pause(queue))


@command("Resume")
def resume(session: Session, queue: AnyQueue) -> Reply:
    """Undo Pause. Idempotent."""
    return done(session.broker.resume(queue))


@command("IsPaused", returns={"paused": "boolean"})
def is_paused(session: Session, queue: AnyQueue) -> Reply:
    """Whether a queue is paused."""
    return then(session.broker.is_paused(queue), lambda paused: {"paused": paused})


@command("Drain", returns={"count": "number of jobs removed"})
def drain(session: Session, queue: AnyQueue) -> Reply:
    """Remove all queued jobs (waiting, prioritized, delayed); gated, active and finished ones stay."""
    return then(session.broker.drain_queue(queue), lambda count: {"count": count})


@command("Obliterate")
def obliterate(session: Session, queue: AnyQueue) -> Reply:
    """Remove a queue with everything in it: active jobs, results, logs, dead letters, limits."""
    return done(session.broker.obliterate(queue))


@command("Clean", returns={"count": "number of jobs removed", "ids": "list of their ids"})
def clean(session: Session, queue: AnyQueue, grace: Value = ABSENT, state: Text = "", limit: Value = ABSENT) -> Reply:
    """Remove jobs older than ``grace`` ms, oldest first, ``limit`` at most: queued ones, or ``completed`` or ``failed`` ones."""
    most = DEFAULT_CLEAN_LIMIT if limit is ABSENT or limit is None else whole_or_none(limit)
    if not most or most < 0:
        return {"count": 0, "ids": []}
    answer = session.broker.clean(queue, whole_or_none(grace), state or None, min(most, SAFE_INTEGER))
    return then(answer, lambda ids: {"count": len(ids), "ids": ids})
