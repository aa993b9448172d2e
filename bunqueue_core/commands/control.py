"""Controlling queues."""

from __future__ import annotations

from bunqueue_core.commands.replies import done, then
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import AnyQueue, Reply, command


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
