"""The registered webhooks, as the engine keeps them; who calls them is none of its business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bunqueue_core.engine.base import EngineBase
from bunqueue_core.model.errors import Conflict, NotFound
from bunqueue_core.model.webhook import MAX_WEBHOOKS, Webhook, WebhookTally, webhook_from, webhook_map
from bunqueue_core.storage.changes import WEBHOOK_TABLE
from bunqueue_core.storage.records import unpack


class Registering(EngineBase):
    """Verbs of webhooks."""

    def add_webhook(self, webhook: Webhook) -> None:
        """Keep a new webhook. See ``Broker.add_webhook``."""
        if len(self.webhooks) >= MAX_WEBHOOKS:
            raise Conflict(f"Too many webhooks (max {MAX_WEBHOOKS})")
        self._keep(webhook)

    def remove_webhook(self, id: str) -> None:
        """Forget a webhook. See ``Broker.remove_webhook``."""
        if self.webhooks.pop(id, None) is None:
            raise NotFound("Webhook not found")
        self.marks.table_removed(WEBHOOK_TABLE, id)

    def set_webhook_enabled(self, id: str, enabled: bool) -> bool:
        """Switch a webhook on or off; False if it was so already. See ``Broker.set_webhook_enabled``."""
        webhook = self.webhooks.get(id)
        if webhook is None:
            raise NotFound("Webhook not found")
        if webhook.enabled == enabled:
            return False
        self._keep(replace(webhook, enabled=enabled))
        return True

    def tally_webhooks(self, tallies: Sequence[WebhookTally]) -> None:
        """Add outcomes to the counters. See ``Broker.tally_webhooks``."""
        for tally in tallies:
            webhook = self.webhooks.get(tally.id)
            if webhook is None:
                continue
            last = webhook.last_triggered
            if tally.last_triggered is not None and (last is None or tally.last_triggered > last):
                last = tally.last_triggered
            self._keep(
                replace(
                    webhook,
                    success_count=webhook.success_count + tally.successes,
                    failure_count=webhook.failure_count + tally.failures,
                    last_triggered=last,
                )
            )

    def restore_webhook(self, row: tuple[Any, ...]) -> None:
        """A stored webhook."""
        id, entry = row
        self.webhooks[id] = webhook_from(id, unpack(entry))

    def _keep(self, webhook: Webhook) -> None:
        self.webhooks[webhook.id] = webhook
        if self.marks.enabled:
            self.marks.table(WEBHOOK_TABLE, (webhook.id, self.marks.pack(webhook_map(webhook))))
