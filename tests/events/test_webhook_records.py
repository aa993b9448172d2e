"""The registered webhooks: kept by the broker, over restarts, with their counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from event_standins import local_broker

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.model.errors import BrokerClosed, Conflict, NotFound, ValidationError
from bunqueue_core.model.webhook import MAX_WEBHOOKS, Webhook, WebhookTally, check_webhook_events
from bunqueue_core.testing.journal import DictJournal


def hook(number: int = 1, **fields: Any) -> Webhook:
    values: dict[str, Any] = {"url": "https://hooks.example.com/in", "queue": None, "secret": "s3cr3t"}
    return Webhook(id=f"w{number:04}", events=("job.failed",), created_at=1_700_000_000_000 + number, **values | fields)


@pytest.fixture
def journal() -> DictJournal:
    return DictJournal()


@pytest.fixture
def broker(journal: DictJournal) -> Iterator[LocalBroker]:
    broker = local_broker(journal)
    broker.start().result(5)
    yield broker
    broker.close().result(5)


def listed(broker: LocalBroker) -> list[Webhook]:
    return broker.webhooks().result(5)


def test_webhooks_are_listed_in_the_order_of_registration(broker: LocalBroker) -> None:
    for number in (2, 1, 3):
        broker.add_webhook(hook(number)).result(5)
    assert [webhook.id for webhook in listed(broker)] == ["w0002", "w0001", "w0003"]


def test_a_webhook_is_removed_once(broker: LocalBroker) -> None:
    broker.add_webhook(hook()).result(5)
    broker.remove_webhook("w0001").result(5)
    with pytest.raises(NotFound, match=r"^Webhook not found$"):
        broker.remove_webhook("w0001").result(5)
    assert listed(broker) == []


def test_switching_is_idempotent(broker: LocalBroker) -> None:
    broker.add_webhook(hook()).result(5)
    for enabled in (False, False, True, True):
        broker.set_webhook_enabled("w0001", enabled).result(5)
        assert [webhook.enabled for webhook in listed(broker)] == [enabled]
    with pytest.raises(NotFound, match=r"^Webhook not found$"):
        broker.set_webhook_enabled("nobody", True).result(5)


def test_outcomes_add_up_and_the_latest_success_counts(broker: LocalBroker) -> None:
    broker.add_webhook(hook()).result(5)
    broker.tally_webhooks([WebhookTally("w0001", 2, 1, 50), WebhookTally("gone", 9, 9, 9)]).result(5)
    broker.tally_webhooks([WebhookTally("w0001", 1, 0, 40), WebhookTally("w0001", 0, 3)]).result(5)
    [webhook] = listed(broker)
    assert (webhook.success_count, webhook.failure_count, webhook.last_triggered) == (3, 4, 50)


def test_webhooks_outlive_a_restart(broker: LocalBroker, journal: DictJournal) -> None:
    broker.add_webhook(hook(1, queue="mail")).result(5)
    broker.add_webhook(hook(2, secret=None)).result(5)
    broker.add_webhook(hook(3)).result(5)
    broker.set_webhook_enabled("w0002", False).result(5)
    broker.tally_webhooks([WebhookTally("w0001", 5, 2, 1_700_000_000_999)]).result(5)
    broker.remove_webhook("w0003").result(5)
    broker.flush()

    again = local_broker(journal.image())
    again.start().result(5)
    assert listed(again) == [
        replace(hook(1, queue="mail"), success_count=5, failure_count=2, last_triggered=1_700_000_000_999),
        replace(hook(2, secret=None), enabled=False),
    ]
    again.close().result(5)


def test_the_number_of_webhooks_is_bounded(broker: LocalBroker) -> None:
    for number in range(MAX_WEBHOOKS):
        broker.add_webhook(hook(number)).result(5)
    with pytest.raises(Conflict, match=r"^Too many webhooks \(max 1000\)$"):
        broker.add_webhook(hook(MAX_WEBHOOKS)).result(5)


def test_a_watcher_is_told_all_webhooks_now_and_after_each_change(broker: LocalBroker) -> None:
    seen: list[list[tuple[str, bool]]] = []

    def watch(webhooks: Sequence[Webhook]) -> None:
        seen.append([(webhook.id, webhook.enabled) for webhook in webhooks])

    broker.add_webhook(hook(1)).result(5)
    stop = broker.watch_webhooks(watch)
    broker.add_webhook(hook(2)).result(5)
    broker.set_webhook_enabled("w0001", True).result(5)  # changes nothing
    broker.set_webhook_enabled("w0001", False).result(5)
    broker.tally_webhooks([WebhookTally("w0001", 1)]).result(5)  # counters are no change
    broker.remove_webhook("w0001").result(5)
    stop()
    broker.remove_webhook("w0002").result(5)
    one, two = ("w0001", True), ("w0002", True)
    assert seen == [[one], [one, two], [("w0001", False), two], [two]]


def test_a_watcher_that_fails_does_not_fail_the_verb(broker: LocalBroker) -> None:
    calls: list[int] = []

    def watch(webhooks: Sequence[Webhook]) -> None:
        calls.append(len(webhooks))
        if webhooks:
            raise RuntimeError("no")

    broker.watch_webhooks(watch)
    broker.add_webhook(hook()).result(5)
    assert (calls, len(listed(broker))) == ([0, 1], 1)


def test_a_draining_broker_takes_no_new_webhook_but_removes_old_ones(broker: LocalBroker) -> None:
    broker.add_webhook(hook()).result(5)
    broker.drain()
    with pytest.raises(BrokerClosed):
        broker.add_webhook(hook(2)).result(5)
    broker.remove_webhook("w0001").result(5)


def test_a_record_does_not_show_its_secret() -> None:
    assert "s3cr3t" not in repr(hook())


VALID = "job.pushed, job.started, job.completed, job.failed, job.progress"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "events is required"),
        ("job.failed", "events must be an array"),
        ({"job.failed": 1}, "events must be an array"),
        (["job.done"], f"Invalid webhook event(s): job.done. Valid: {VALID}"),
        (["job.failed", "pushed", "JOB.FAILED"], f"Invalid webhook event(s): pushed, JOB.FAILED. Valid: {VALID}"),
        ([5, None], f"Invalid webhook event(s): 5, . Valid: {VALID}"),
        (["job.failed"] * 101, "events must have at most 100 entries (got 101)"),
    ],
)
def test_event_names_are_checked(value: Any, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        check_webhook_events(value)
    assert str(caught.value) == text


def test_order_and_repetitions_of_event_names_are_kept() -> None:
    names = ["job.failed", "job.failed", "job.pushed"]
    assert check_webhook_events(names) == tuple(names)
    assert check_webhook_events([]) == ()
