"""Webhooks: kept for all brokers; each event's call is made by one of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from psycopg.types.numeric import Int4

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import BunqueueError, Conflict, NotFound
from bunqueue_core.model.requests import Event
from bunqueue_core.model.webhook import MAX_WEBHOOKS, Webhook, WebhookTally, webhook_from, webhook_map
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_postgres import arrays
from bunqueue_postgres.keys import to_key, unescape
from bunqueue_postgres.records import pack, unpack
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.verbs.base import BrokerBase

#: Seconds between looks whether another broker has changed webhooks, at least: notifications come with every change of anything.
WEBHOOK_LOOK_S: Final = 0.25

Watcher = Callable[[Sequence[Webhook]], None]


class Hooking(BrokerBase):
    """The verbs of webhooks."""

    def __init__(self, settings: PostgresStorage, context: OpenContext) -> None:
        super().__init__(settings, context)
        self._watchers: dict[int, Watcher] = {}
        self._watcher_number = 0
        self._told_revision: int | None = None
        self._webhooks_seen_at = float("-inf")
        self._webhooks_due = False

    def add_webhook(self, webhook: Webhook) -> Answer[None]:
        return self.command(self._add_webhook, webhook)

    async def _add_webhook(self, webhook: Webhook) -> None:
        rows = await self.run(
            self.queries.add_webhook,
            (Int4(self.ns), to_key(webhook.id), webhook.enabled, pack(webhook_map(webhook)), Int4(MAX_WEBHOOKS)),
        )
        if not rows[0][0]:
            raise Conflict(f"Too many webhooks (max {MAX_WEBHOOKS})")
        await self._changed()

    def remove_webhook(self, id: str) -> Answer[None]:
        return self.command(self._change_webhook, self.queries.drop_webhook, id)

    def set_webhook_enabled(self, id: str, enabled: bool) -> Answer[None]:
        return self.command(self._change_webhook, self.queries.switch_webhook, id, enabled)

    async def _change_webhook(self, query: bytes, id: str, *values: Any) -> None:
        rows = await self.run(query, (Int4(self.ns), to_key(id), *values))
        if not rows[0][0]:
            raise NotFound("Webhook not found")
        await self._changed()

    async def _changed(self) -> None:
        self.coordinator.announce()
        await self.tell_webhooks()

    def webhooks(self) -> Answer[list[Webhook]]:
        return self.command(self._webhooks)

    async def _webhooks(self) -> list[Webhook]:
        rows = await self.run(self.queries.webhooks, (Int4(self.ns),))
        return [
            webhook_from(
                unescape(id),
                {
                    **unpack(record),
                    "enabled": enabled,
                    "successCount": successes,
                    "failureCount": failures,
                    "lastTriggered": last_success_at,
                },
            )
            for id, enabled, record, successes, failures, last_success_at in rows
        ]

    def tally_webhooks(self, tallies: Sequence[WebhookTally]) -> Answer[None]:
        return self.command(self._tally, sorted(tallies, key=lambda tally: tally.id))

    async def _tally(self, tallies: Sequence[WebhookTally]) -> None:
        await self.run(
            self.queries.tally_webhooks,
            (
                Int4(self.ns),
                arrays.texts([to_key(tally.id) for tally in tallies]),
                arrays.int8s([tally.successes for tally in tallies]),
                arrays.int8s([tally.failures for tally in tallies]),
                arrays.int8s([tally.last_triggered for tally in tallies]),
            ),
        )

    # -- watching -----------------------------------------------------------------------------------------------------

    def watch_webhooks(self, listener: Watcher) -> Callable[[], None]:
        self._watcher_number += 1
        number = self._watcher_number
        self._watchers[number] = listener

        async def first() -> None:
            try:
                self._tell(listener, await self._webhooks())
            except (psycopg.Error, BunqueueError):
                self._told_revision = None  # the next poll tells everybody

        self.spawn(first(), own=True)
        return lambda: self._watchers.pop(number, None) and None

    def look_at_webhooks(self) -> None:
        """Something was changed, perhaps webhooks: look, at once or soon."""
        if self._watchers and not self._webhooks_due:
            self._webhooks_due = True
            self.spawn(self._look_at_webhooks(), own=True)

    async def _look_at_webhooks(self) -> None:
        loop = asyncio.get_running_loop()
        await self.coordinator.pause(self._webhooks_seen_at + WEBHOOK_LOOK_S - loop.time())
        self._webhooks_seen_at = loop.time()
        self._webhooks_due = False
        with contextlib.suppress(psycopg.Error, BunqueueError):  # the next poll looks again
            await self.tell_webhooks()

    async def tell_webhooks(self) -> None:
        """Tell watchers if webhooks were changed, here or by another broker, since they were last told."""
        if not self._watchers:
            return
        rows = await self.run(self.queries.webhooks_revision, (Int4(self.ns),))
        revision = rows[0][0]
        if revision == self._told_revision:
            return
        webhooks = await self._webhooks()
        self._told_revision = revision
        for listener in list(self._watchers.values()):
            self._tell(listener, webhooks)

    def _tell(self, listener: Watcher, webhooks: Sequence[Webhook]) -> None:
        try:
            listener(webhooks)
        except Exception as error:
            self.log("warn", "a listener for webhooks failed", error=type(error).__name__)

    def subscribe_share(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        return self.feed.subscribe_share(listener)
