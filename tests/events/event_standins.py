"""Brokers, logs and HTTP servers for the tests of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.storage.journal import Journal


def local_broker(
    journal: Journal | None = None,
    *,
    ports: Ports | None = None,
    role: Any = "manual",
    log: Any = lambda *_, **__: None,
) -> LocalBroker:
    """A local broker that is not started."""
    return LocalBroker(
        journal,
        ports=ports or Ports(),
        capabilities=Capabilities(driver="test", persistent=journal is not None),
        settings=JournalSettings(driver="test"),
        strategies=BACKOFF_STRATEGIES,
        log=log,
        role=role,
    )


class Records:
    """A log that keeps what is written: (level, message, fields)."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str, Mapping[str, Any]]] = []

    def __call__(self, level: str, message: str, fields: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        self.records.append((level, message, {**(fields or {}), **more}))

    def messages(self, level: str) -> list[str]:
        return [message for at, message, _ in self.records if at == level]
