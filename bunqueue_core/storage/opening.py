"""From storage settings to a broker: the one place that knows that there are two ways to be a storage driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import BrokerDriver, JournalSettings, OpenContext, StorageSettings

if TYPE_CHECKING:
    from bunqueue_core.broker.protocol import Broker
    from bunqueue_core.plugins.manager import PluginManager


def open_broker(
    storage: StorageSettings,
    plugins: PluginManager,
    *,
    ports: Ports | None = None,
    role: Literal["server", "embedded"] = "server",
    log: Callable[..., None],
) -> Broker:
    """Make the broker that ``storage`` describes. It does no I/O until ``start`` is called on it.

    Args:
        storage: settings of the chosen driver (``Settings.storage``).
        plugins: where the driver is found.
        ports: clock, ids and randomness; None takes the real ones.
        role: whether it serves a server or is embedded in a client's process.
        log: writes one record: level, message, fields (a :class:`~bunqueue_core.logging.Logger` can be called so).

    Returns:
        A broker that is not started.

    Raises:
        ConfigurationError: no such driver is installed, or it cannot be embedded.
    """
    from bunqueue_core import __version__

    ports = ports or Ports()
    driver = plugins.driver(storage.driver)
    if role == "embedded" and not driver.capabilities.embedded:
        embeddable = sorted(name for name, other in plugins.drivers.items() if other.capabilities.embedded)
        raise ConfigurationError(
            f'Storage driver "{driver.name}" cannot be used embedded (use one of {", ".join(embeddable)}, or connect to a server)'
        )
    kinds = tuple(plugins.kinds.values())
    context = OpenContext(ports, __version__, role, log, plugins.strategies, kinds)
    if isinstance(driver, BrokerDriver):
        return driver.open(storage, context)
    # Imported here: a process whose driver is a broker of its own has no use for the engine.
    from bunqueue_core.broker.local import LocalBroker

    return LocalBroker(
        driver.open(storage, context),
        ports=ports,
        capabilities=driver.capabilities,
        settings=cast(JournalSettings, storage),
        strategies=plugins.strategies,
        log=log,
        role=role,
        kinds=kinds,
    )
