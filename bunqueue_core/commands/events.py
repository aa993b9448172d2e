"""Subscribing to events."""

from __future__ import annotations

from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import QueueName, Reply, command


@command("SubscribeEvents")
def subscribe_events(session: Session, queue: QueueName) -> Reply:
    """Send the events of one queue over this connection from now on, in place of an earlier subscription's."""
    session.subscribe(queue)
    return None


@command("UnsubscribeEvents")
def unsubscribe_events(session: Session) -> Reply:
    """Send no events any more."""
    session.unsubscribe()
    return None
