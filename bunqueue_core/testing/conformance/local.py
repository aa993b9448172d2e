"""The kit's setup for journal drivers: a local broker over the journal, on a settable clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Broker
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.plugins.drivers import JournalDriver, JournalSettings, OpenContext
from bunqueue_core.testing.clock import SettableClock, deterministic_ports
from bunqueue_core.testing.conformance.harness import BrokerSetup


def local_setup(
    driver: JournalDriver,
    settings: Callable[[int], JournalSettings],
    crash: Callable[[Any, Any], None] | None = None,
) -> BrokerSetup:
    """Give the ``broker_setup`` of a journal driver.

    Args:
        driver: the driver, as it is registered.
        settings: gives the settings of storage number *n* of a test. It begins with storage 0; each crash goes on with the next.
        crash: given the settings of a storage that is open and those of the next, makes the next what a process that dies at this
            moment leaves of the first. None: crashes are not offered, and their cases are skipped.
    """
    clock = SettableClock()
    ports = deterministic_ports(clock)
    storages = [settings(0)]

    def open_broker() -> Broker:
        context = OpenContext(ports=ports, version="0.0.0", role="embedded", log=_ignore)
        return LocalBroker(
            driver.open(storages[-1], context),
            ports=ports,
            capabilities=driver.capabilities,
            settings=storages[-1],
            strategies=BACKOFF_STRATEGIES,
            log=_ignore,
            role="manual",
        )

    def crashed(_: Broker) -> Broker:
        assert crash is not None
        storages.append(settings(len(storages)))
        crash(storages[-2], storages[-1])
        return open_broker()

    def run_due(broker: Broker) -> None:
        assert isinstance(broker, LocalBroker)
        broker.run_due()

    return BrokerSetup(open=open_broker, clock=clock, run_due=run_due, crash=crashed if crash is not None else None)


def _ignore(*_: Any, **__: Any) -> None:
    return
