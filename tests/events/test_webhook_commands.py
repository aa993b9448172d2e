"""The commands of webhooks, on a local broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from event_standins import local_broker
from fixtures.scripted_broker import services_of

from bunqueue_core.answer import Answer
from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.commands import COMMANDS
from bunqueue_core.commands.session import Session
from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.webhook import WebhookTally

URL = "https://hooks.example.com/in"
VALID = "job.pushed, job.started, job.completed, job.failed, job.progress"


class Desk:
    """Runs commands."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.services = services_of(broker)
        self.session = Session(self.services, "conn-1")

    def run(self, cmd: str, **request: Any) -> Any:
        reply = COMMANDS[cmd].run(self.session, {"cmd": cmd, **request})
        if isinstance(reply, Answer):
            reply = reply.result(5)
        return dict(reply) if isinstance(reply, Mapping) else reply

    def refused(self, cmd: str, **request: Any) -> str:
        with pytest.raises(CommandError) as caught:
            self.run(cmd, **request)
        return str(caught.value)

    def add(self, url: str = URL, **fields: Any) -> str:
        added: str = self.run("AddWebhook", url=url, **{"events": ["job.failed"], **fields})["data"]["webhookId"]
        return added

    def listed(self) -> list[dict[str, Any]]:
        webhooks: list[dict[str, Any]] = self.run("ListWebhooks")["data"]["webhooks"]
        return webhooks


@pytest.fixture
def desk() -> Iterator[Desk]:
    broker = local_broker()
    broker.start().result(5)
    yield Desk(broker)
    broker.close().result(5)


def test_a_new_webhook_answers_with_its_id_and_without_its_secret(desk: Desk) -> None:
    answer = desk.run("AddWebhook", url=URL, events=["job.failed", "job.pushed"], queue="mail", secret="s3cr3t")
    assert list(answer["data"]) == ["webhookId", "url", "events", "queue", "createdAt"]
    assert answer["data"] | {"webhookId": ""} == {
        "webhookId": "",
        "url": URL,
        "events": ["job.failed", "job.pushed"],
        "queue": "mail",
        "createdAt": desk.services.ports.now(),
    }


def test_a_listing_shows_counters_and_no_secret(desk: Desk) -> None:
    first = desk.add(secret="s3cr3t")
    second = desk.add(queue="mail", events=[])
    desk.broker.tally_webhooks([WebhookTally(first, 3, 1, 1_700_000_000_000)]).result(5)
    desk.run("SetWebhookEnabled", id=second, enabled=False)
    answer = desk.run("ListWebhooks")["data"]
    created = desk.services.ports.now()
    assert answer == {
        "webhooks": [
            {
                "id": first,
                "url": URL,
                "events": ["job.failed"],
                "queue": None,
                "createdAt": created,
                "lastTriggered": 1_700_000_000_000,
                "successCount": 3,
                "failureCount": 1,
                "enabled": True,
            },
            {
                "id": second,
                "url": URL,
                "events": [],
                "queue": "mail",
                "createdAt": created,
                "lastTriggered": None,
                "successCount": 0,
                "failureCount": 0,
                "enabled": False,
            },
        ],
        "stats": {"total": 2, "enabled": 1},
    }
    assert "s3cr3t" not in repr(answer)


def test_the_url_is_checked_before_the_events(desk: Desk) -> None:
    assert desk.refused("AddWebhook", url="ftp://x.example.com/", events=["nope"]) == (
        "Webhook URL must use http or https protocol"
    )
    assert desk.refused("AddWebhook", url="http://10.0.0.1/", events=5) == ("Webhook URL cannot point to private IP")
    assert desk.refused("AddWebhook") == "Webhook URL is required"
    assert desk.refused("AddWebhook", url=URL) == "events is required"
    assert desk.refused("AddWebhook", url=URL, events=["job.done"]) == (
        f"Invalid webhook event(s): job.done. Valid: {VALID}"
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"queue": 7}, "queue must be a string"),
        ({"secret": 5}, "secret must be a string"),
        ({"secret": "\0"}, "secret must not contain NUL characters"),
    ],
)
def test_other_fields_are_checked(desk: Desk, fields: dict[str, Any], text: str) -> None:
    assert desk.refused("AddWebhook", url=URL, events=[], **fields) == text
    assert desk.listed() == []


def test_the_address_is_kept_as_it_was_given(desk: Desk) -> None:
    desk.add("HTTPS://Hooks.Example.COM/Path")
    assert [webhook["url"] for webhook in desk.listed()] == ["HTTPS://Hooks.Example.COM/Path"]


def test_switching_and_removing(desk: Desk) -> None:
    id = desk.add()
    assert desk.run("SetWebhookEnabled", id=id, enabled=False) is None
    assert desk.run("SetWebhookEnabled", id=id, enabled=False) is None
    assert [webhook["enabled"] for webhook in desk.listed()] == [False]
    assert desk.run("SetWebhookEnabled", id=id, enabled=1) is None
    assert desk.refused("SetWebhookEnabled", id=id) == "enabled must be a boolean"
    assert desk.refused("SetWebhookEnabled", webhookId=id, enabled=True) == "Webhook not found"
    assert desk.refused("RemoveWebhook", id=id) == "Webhook not found"
    assert desk.run("RemoveWebhook", webhookId=id) == {"data": {"removed": True}}
    assert desk.refused("RemoveWebhook", webhookId=id) == "Webhook not found"
    assert desk.refused("SetWebhookEnabled", id=id, enabled=True) == "Webhook not found"


def test_private_networks_are_open_where_the_setting_says_so(desk: Desk) -> None:
    desk.services.private_webhooks = True
    desk.add("http://127.0.0.1:8080/")
    assert desk.refused("AddWebhook", url="ftp://127.0.0.1/", events=[]) == (
        "Webhook URL must use http or https protocol"
    )
