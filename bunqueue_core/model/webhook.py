"""Webhooks: the record, the events that they may name, and what may be registered. Data and rules; delivery is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bunqueue_core.model.errors import ValidationError

#: The event that a webhook names, by the type of the job event that causes it.
WEBHOOK_EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pushed": "job.pushed",
        "pulled": "job.started",
        "completed": "job.completed",
        "failed": "job.failed",
        "progress": "job.progress",
    }
)

#: Names that one webhook may list, repetitions included.
MAX_EVENT_NAMES: Final = 100

#: Webhooks of one storage at most. It bounds what the deliveries that wait can hold, and what one event can cause.
MAX_WEBHOOKS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that is called when something happens to a job.

    Attributes:
        id: its id, increasing with the time of registration.
        url: where the calls go, as it was registered.
        events: names from :data:`WEBHOOK_EVENTS`, as registered.
        queue: the only queue that counts; None: all.
        secret: key of the calls' signatures; None or empty: they are not signed. It is never shown.
        created_at: when it was registered, epoch ms.
        enabled: False: it is not called.
        last_triggered: when a call last succeeded, epoch ms; None: never.
        success_count: events whose call succeeded.
        failure_count: events that were given up after the last attempt.
    """

    id: str
    url: str
    events: tuple[str, ...]
    queue: str | None
    secret: str | None
    created_at: int
    enabled: bool = True
    last_triggered: int | None = None
    success_count: int = 0
    failure_count: int = 0

    def __repr__(self) -> str:
        return f"Webhook(id={self.id!r}, events={self.events!r}, queue={self.queue!r}, enabled={self.enabled!r})"


class WebhookTally(NamedTuple):
    """Outcomes of one webhook's calls since they were last told. ``last_triggered``: the latest success, epoch ms, or None."""

    id: str
    successes: int = 0
    failures: int = 0
    last_triggered: int | None = None


def check_webhook_events(value: Any) -> tuple[str, ...]:
    """The event names of a new webhook; order and repetitions are kept, an empty list is fine.

    Raises:
        ValidationError: no list, or unknown names, all of which are told.
    """
    if value is None:
        raise ValidationError("events is required")
    if not isinstance(value, list | tuple):
        raise ValidationError("events must be an array")
    if len(value) > MAX_EVENT_NAMES:
        raise ValidationError(f"events must have at most {MAX_EVENT_NAMES} entries (got {len(value)})")
    known = WEBHOOK_EVENTS.values()
    unknown = ["" if name is None else str(name)[:100] for name in value if name not in known]
    if unknown:
        raise ValidationError(f"Invalid webhook event(s): {', '.join(unknown)}. Valid: {', '.join(known)}")
    return tuple(value)


def webhook_map(webhook: Webhook) -> dict[str, Any]:
    """What is stored of a webhook besides its id, for :func:`webhook_from`."""
    return {
        "url": webhook.url,
        "events": list(webhook.events),
        "queue": webhook.queue,
        "secret": webhook.secret,
        "createdAt": webhook.created_at,
        "enabled": webhook.enabled,
        "lastTriggered": webhook.last_triggered,
        "successCount": webhook.success_count,
        "failureCount": webhook.failure_count,
    }


def webhook_from(id: str, stored: Mapping[str, Any]) -> Webhook:
    """The webhook of a stored map."""
    last = stored.get("lastTriggered")
    events: Sequence[str] = stored["events"]
    return Webhook(
        id=id,
        url=stored["url"],
        events=tuple(events),
        queue=stored.get("queue"),
        secret=stored.get("secret"),
        created_at=int(stored["createdAt"]),
        enabled=bool(stored.get("enabled", True)),
        last_triggered=None if last is None else int(last),
        success_count=int(stored.get("successCount", 0)),
        failure_count=int(stored.get("failureCount", 0)),
    )


__all__ = [
    "MAX_EVENT_NAMES",
    "MAX_WEBHOOKS",
    "WEBHOOK_EVENTS",
    "Webhook",
    "WebhookTally",
    "check_webhook_events",
    "webhook_from",
    "webhook_map",
]
