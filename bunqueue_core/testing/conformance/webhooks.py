"""What tells others: the register of webhooks, and the events that webhooks, sinks and dashboards are fed with (rules S-420 on)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bunqueue_core.model.errors import NotFound
from bunqueue_core.model.requests import Event
from bunqueue_core.model.webhook import Webhook, WebhookTally
from bunqueue_core.testing.conformance.harness import Harness, job
from bunqueue_core.testing.conformance.rules import Kit, rule


def _hook(number: int, **fields: Any) -> Webhook:
    fields = {"url": "https://example.com/hook", "events": ("job.completed", "job.failed"), "queue": None, **fields}
    return Webhook(id=f"wh-{number}", secret="s3cret", created_at=1_700_000_000_000 + number, **fields)


class WebhookCases(Kit):
    """The register of webhooks; who calls them is not the broker's business."""

    @rule("S-420")
    def test_webhooks_are_listed_as_they_were_registered(self, h: Harness) -> None:
        hooks = [
            _hook(1),
            _hook(2, queue="q", events=("job.failed",), url="https://example.com/ü?a=b"),
            _hook(3, enabled=False),
        ]
        for hook in hooks:
            assert h.call("add_webhook", hook) is None
        assert h.call("webhooks") == hooks

    @rule("S-420")
    def test_a_removed_webhook_is_gone(self, h: Harness) -> None:
        h.call("add_webhook", _hook(1))
        h.call("add_webhook", _hook(2))
        assert h.call("remove_webhook", "wh-1") is None
        assert h.call("webhooks") == [_hook(2)]
        h.refused("remove_webhook", "wh-1", error=NotFound, text="Webhook not found")

    @rule("S-421")
    def test_a_webhook_can_be_switched(self, h: Harness) -> None:
        h.call("add_webhook", _hook(1))
        for enabled in (False, False, True):
            assert h.call("set_webhook_enabled", "wh-1", enabled) is None
            assert [hook.enabled for hook in h.call("webhooks")] == [enabled]
        h.refused("set_webhook_enabled", "none", True, error=NotFound, text="Webhook not found")

    @rule("S-422")
    def test_outcomes_add_up(self, h: Harness) -> None:
        h.call("add_webhook", _hook(1))
        h.call("tally_webhooks", [WebhookTally("wh-1", 2, 1, 2_000), WebhookTally("none", 5, 5, 9_000)])
        h.call("tally_webhooks", [WebhookTally("wh-1", 1, 0, 1_000), WebhookTally("wh-1", 0, 3, None)])
        (hook,) = h.call("webhooks")
        assert (hook.success_count, hook.failure_count, hook.last_triggered) == (3, 4, 2_000)

    @rule("S-423")
    def test_webhooks_survive_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        for number in (1, 2, 3):
            h.call("add_webhook", _hook(number))
        h.call("tally_webhooks", [WebhookTally("wh-2", 2, 1, 5_000)])
        h.call("set_webhook_enabled", "wh-2", False)
        h.call("remove_webhook", "wh-3")
        before = h.call("webhooks")
        h.reopen()
        assert h.call("webhooks") == before
        assert [hook.id for hook in before] == ["wh-1", "wh-2"]

    @rule("S-424")
    def test_whoever_watches_is_told_of_changes(self, h: Harness) -> None:
        if not h.offers("webhooks"):
            h.not_offered("webhooks")
        told: list[list[tuple[str, bool]]] = []

        def listener(hooks: Sequence[Webhook]) -> None:
            told.append([(hook.id, hook.enabled) for hook in hooks])

        def last(*expected: tuple[str, bool]) -> None:
            h.until(lambda: bool(told) and told[-1] == list(expected), f"{expected}")

        h.call("add_webhook", _hook(1))
        end = h.world.call(lambda: h.broker.watch_webhooks(listener))
        last(("wh-1", True))
        h.call("add_webhook", _hook(2))
        last(("wh-1", True), ("wh-2", True))
        h.call("set_webhook_enabled", "wh-1", False)
        last(("wh-1", False), ("wh-2", True))
        h.call("remove_webhook", "wh-1")
        last(("wh-2", True))
        h.world.call(end)
        count = len(told)
        h.call("add_webhook", _hook(3))
        h.run_due()
        assert len(told) == count

    @rule("S-424")
    def test_brokers_on_one_storage_share_the_register(self, h: Harness) -> None:
        other = h.another()
        told: list[list[str]] = []
        h.world.call(lambda: other.watch_webhooks(lambda hooks: told.append([hook.id for hook in hooks])))
        h.call("add_webhook", _hook(1))
        h.until(lambda: bool(told) and told[-1] == ["wh-1"], "the other broker's webhook")
        assert h.call("webhooks", broker=other) == [_hook(1)]


class FeedCases(Kit):
    """Events for what must happen once each, and what else a broker tells of itself."""

    @rule("S-425")
    def test_shared_events_reach_one_listener_once(self, h: Harness) -> None:
        if not h.offers("subscribe"):
            h.not_offered("subscribe")
        seen: list[Event] = []
        for broker in [h.broker, *([h.another()] if h.capabilities.multi_broker else [])]:
            h.world.call(lambda broker=broker: broker.subscribe_share(seen.append))  # type: ignore[misc]
        ids = h.push("q", *(job(n) for n in range(5)))
        for delivery in h.pull(count=5):
            h.complete(delivery)
        h.until(lambda: len(seen) >= 15, "three events a job")
        assert sorted((event.job_id, event.type) for event in seen) == sorted(
            (id, type) for id in ids for type in ("pushed", "pulled", "completed")
        )

    @rule("S-426")
    @pytest.mark.parametrize("queue", ["q", "a queue", "ü"])
    def test_a_dashboard_is_told_or_left_alone(self, h: Harness, queue: str) -> None:
        told: list[tuple[str, dict[str, Any]]] = []

        def listener(name: str, fields: Mapping[str, Any]) -> None:
            told.append((name, dict(fields)))

        end = h.world.call(lambda: h.broker.subscribe_dashboard(listener))
        h.push(queue, job())
        h.call("drain_queue", queue)
        h.run_due()
        assert all(name.partition(":")[2] and isinstance(fields, dict) for name, fields in told)
        h.world.call(end)
        count = len(told)
        h.push(queue, job())
        h.run_due()
        assert len(told) == count
