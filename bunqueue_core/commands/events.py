"""Subscribing to events."""

from __future__ import annotations

from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import ABSENT, QueueName, Reply, Value, command
from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.options import SAFE_INTEGER


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


@command("TrimEvents", returns={"data": "{removed: number}"})
def trim_events(session: Session, queue: QueueName, max_length: Value = ABSENT) -> Reply:
    """Cut a queue's event journal to its newest events."""
    whole = isinstance(max_length, int | float) and not isinstance(max_length, bool) and float(max_length).is_integer()
    if not whole or not 0 <= max_length <= SAFE_INTEGER:
        raise ValidationError("maxLength must be a non-negative safe integer")
    return session.broker.trim_events(queue, int(max_length)).map(lambda removed: {"data": {"removed": removed}})
