"""Webhooks: registering, switching, listing, removing them.

Calling them is the server's (:mod:`bunqueue_core.events.webhooks`), and so is telling those who watch it of changes: they may come
by another broker of the same storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from bunqueue_core.answer import Answer
from bunqueue_core.commands.replies import done, then
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import Flag, Members, Reply, Text, command
from bunqueue_core.events.addresses import check_webhook_url
from bunqueue_core.model.errors import NotFound
from bunqueue_core.model.webhook import Webhook, check_webhook_events


@dataclass(frozen=True, slots=True)
class _CheckedByHandler:
    """A field that its handler checks, because the order of the checks or a setting of the server decides."""

    kind: str

    def check(self, value: Any, field: str) -> Any:
        """See :class:`~bunqueue_core.commands.table.Check`."""
        return value


@command("AddWebhook", returns={"data": "{webhookId, url, events, queue: string or null, createdAt: epoch ms}"})
def add_webhook(
    session: Session,
    url: Annotated[Any, _CheckedByHandler("http or https URL, 1..2048 characters, of no private network")],
    events: Annotated[
        Any,
        _CheckedByHandler("list of job.pushed, job.started, job.completed, job.failed, job.progress"),
    ],
    queue: Text | None = None,
    secret: Text | None = None,
) -> Reply:
    """Have a URL called with each of these events, of one queue or of all. Calls are signed if there is a secret."""
    services = session.services
    check_webhook_url(url, allow_private=services.private_webhooks)
    webhook = Webhook(
        id=services.ports.new_id(),
        url=url,
        events=check_webhook_events(events),
        queue=queue,
        secret=secret or None,
        created_at=services.ports.now(),
    )
    return then(session.broker.add_webhook(webhook), lambda _: {"data": _added(webhook)})


@command("RemoveWebhook", returns={"data": "{removed: true}"})
def remove_webhook(session: Session, webhook_id: Text = "") -> Reply:
    """Forget a webhook. Calls that were begun are finished."""
    if not webhook_id:
        raise NotFound("Webhook not found")
    return then(session.broker.remove_webhook(webhook_id), lambda _: {"data": {"removed": True}})


@command("SetWebhookEnabled")
def set_webhook_enabled(session: Session, enabled: Flag, id: Text = "") -> Reply:
    """Switch a webhook on or off. Calls that were begun are finished. Idempotent."""
    if not id:
        raise NotFound("Webhook not found")
    return done(session.broker.set_webhook_enabled(id, enabled))


@command(
    "ListWebhooks",
    returns={
        "data": "{webhooks: list of {id, url, events, queue, createdAt, lastTriggered, successCount, failureCount, enabled}, "
        "stats: {total, enabled}}"
    },
)
def list_webhooks(session: Session) -> Reply:
    """All webhooks in the order of their registration, without their secrets."""
    answer: Answer[list[Webhook]] = session.broker.webhooks()
    return then(answer, _listed)


def _listed(webhooks: Sequence[Webhook]) -> Members:
    return {
        "data": {
            "webhooks": [_shown(webhook) for webhook in webhooks],
            "stats": {"total": len(webhooks), "enabled": sum(webhook.enabled for webhook in webhooks)},
        }
    }


def _added(webhook: Webhook) -> dict[str, Any]:
    return {
        "webhookId": webhook.id,
        "url": webhook.url,
        "events": list(webhook.events),
        "queue": webhook.queue,
        "createdAt": webhook.created_at,
    }


def _shown(webhook: Webhook) -> dict[str, Any]:
    return {
        "id": webhook.id,
        "url": webhook.url,
        "events": list(webhook.events),
        "queue": webhook.queue,
        "createdAt": webhook.created_at,
        "lastTriggered": webhook.last_triggered,
        "successCount": webhook.success_count,
        "failureCount": webhook.failure_count,
        "enabled": webhook.enabled,
    }
