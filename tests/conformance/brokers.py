"""Local brokers for the kit: every journal under the same engine."""

from __future__ import annotations

from typing import Any, Literal

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Broker, Capabilities
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.storage.journal import Journal

Role = Literal["server", "embedded", "manual"]


def local_broker(
    journal: Journal | None, capabilities: Capabilities, settings: JournalSettings, ports: Ports, role: Role
) -> LocalBroker:
    """A local broker that is not started and logs nothing."""
    return LocalBroker(
        journal,
        ports=ports,
        capabilities=capabilities,
        settings=settings,
        strategies=BACKOFF_STRATEGIES,
        log=_ignore,
        role=role,
    )


def run_due(broker: Broker) -> None:
    """Fire what is due on a settable clock."""
    assert isinstance(broker, LocalBroker)
    broker.run_due()


def _ignore(*_: Any, **__: Any) -> None:
    return
