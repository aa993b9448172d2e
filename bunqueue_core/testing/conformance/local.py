"""The kit's setup for journal drivers: a local broker over the journal, on a settable clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Broker
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.plugins.manager import PluginManager
from bunqueue_core.testing.clock import SettableClock, deterministic_ports
from bunqueue_core.testing.conformance.harness import BrokerSetup
from bunqueue_core.testing.manual import manual_broker


def local_setup(
    plugin: Any,
    settings: Callable[[int], JournalSettings],
    crash: Callable[[Any, Any], object] | None = None,
) -> BrokerSetup:
    """Give the ``broker_setup`` of a journal driver.

    Args:
        plugin: the module, or object, whose hook registers the driver.
        settings: gives the settings of storage number *n* of a test. It begins with storage 0; each crash goes on with the next.
        crash: given the settings of a storage that is open and those of the next, makes the next what a process that dies at this
            moment leaves of the first. None: crashes are not offered, and their cases are skipped.
    """
    clock = SettableClock()
    ports = deterministic_ports(clock)
    plugins = PluginManager({"under-test": plugin}, entry_points=())
    storages = [settings(0)]

    def open_broker() -> Broker:
        return manual_broker(ports, plugins=plugins, storage=storages[-1])

    def crashed(_: Broker) -> Broker:
        assert crash is not None
        storages.append(settings(len(storages)))
        crash(storages[-2], storages[-1])
        return open_broker()

    def run_due(broker: Broker) -> None:
        assert isinstance(broker, LocalBroker)
        broker.run_due()

    return BrokerSetup(open=open_broker, clock=clock, run_due=run_due, crash=None if crash is None else crashed)
