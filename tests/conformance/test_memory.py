"""The memory driver under the conformance kit: on a settable clock, awaited and waited for, and on the real clock in both roles."""

from __future__ import annotations

import pytest
from brokers import Role, local_broker, run_due

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.model.ports import Ports
from bunqueue_core.storage.memory import MEMORY_DRIVER, MemoryStorage
from bunqueue_core.testing import SettableClock, deterministic_ports
from bunqueue_core.testing.conformance import (
    BrokerConformance,
    BrokerSetup,
    ClaimCases,
    FailureCases,
    LeaseCases,
    WaitCases,
)


def memory_broker(ports: Ports, role: Role) -> LocalBroker:
    return local_broker(None, MEMORY_DRIVER.capabilities, MemoryStorage(), ports, role)


class TestMemory(BrokerConformance):
    """Answers are awaited; nothing happens but what the case or its clock brings about."""

    @pytest.fixture
    def broker_setup(self) -> BrokerSetup:
        clock = SettableClock()
        ports = deterministic_ports(clock)

        return BrokerSetup(open=lambda: memory_broker(ports, "manual"), clock=clock, run_due=run_due)


class TestMemoryFromThreads(TestMemory):
    """The same, with answers that are waited for in the calling thread."""

    world = "thread"


class TestMemoryInServer(ClaimCases, LeaseCases, FailureCases, WaitCases):
    """What depends on time, on the real clock, worked by the event loop."""

    @pytest.fixture
    def broker_setup(self) -> BrokerSetup:
        return BrokerSetup(open=lambda: memory_broker(Ports(), "server"), unit_ms=150)


class TestMemoryEmbedded(ClaimCases, LeaseCases, FailureCases, WaitCases):
    """What depends on time, on the real clock, worked by the broker's own thread."""

    world = "thread"

    @pytest.fixture
    def broker_setup(self) -> BrokerSetup:
        return BrokerSetup(open=lambda: memory_broker(Ports(), "embedded"), unit_ms=150)
