"""The broker with a loop thread of its own: the conformance kit from a program without an event loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.threads import ThreadedBroker
from postgres_contexts import open_context

from bunqueue_core.model.errors import BunqueueError
from bunqueue_core.testing.conformance import BrokerSetup, ClaimCases, CompletionCases, EventCases, LifecycleCases

OpenBroker = Callable[..., PostgresBroker]


class TestFromThreads(ClaimCases, CompletionCases, EventCases, LifecycleCases):
    """Verbs are called, and answers waited for, in the test's own thread."""

    world = "thread"

    @pytest.fixture
    def broker_setup(self, open_broker: OpenBroker) -> BrokerSetup:
        settings = open_broker().settings
        return BrokerSetup(
            open=lambda: ThreadedBroker(settings, open_context()), missing_rules=frozenset({"S-080", "S-081"})
        )


def test_a_start_that_fails_says_why_and_leaves_no_thread() -> None:
    settings = PostgresStorage.model_validate({"url": "postgresql://nobody@127.0.0.1:1/none"})
    broker = ThreadedBroker(settings, open_context())
    with pytest.raises(BunqueueError, match="nothing accepts connections"):
        broker.start().result(20)
    with pytest.raises(BunqueueError):
        broker.counts("q").result(5)
    broker.close().result(5)
