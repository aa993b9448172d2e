"""A broker that does nothing by itself, on a clock that only the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import JournalDriver, JournalSettings, OpenContext
from bunqueue_core.plugins.manager import PluginManager
from bunqueue_core.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from bunqueue_core.broker.local import LocalBroker


def manual_broker(
    ports: Ports, *, plugins: PluginManager | None = None, storage: JournalSettings | None = None
) -> LocalBroker:
    """Make a local broker whose work (deadlines, retries, schedulers, commits) is done when the test calls ``run_due`` on it.

    Args:
        ports: clock, ids and randomness; see :func:`~bunqueue_core.testing.deterministic_ports`.
        plugins: where storage driver, backoff strategies and schedule kinds are found; None: only what is built in.
        storage: settings of a journal driver; None: memory.

    Returns:
        A broker that is not started.

    Raises:
        ConfigurationError: no such driver is installed.
        TypeError: the driver is no journal driver.
    """
    # Imported here: who only wants a clock need not load the engine.
    from bunqueue_core.broker.local import LocalBroker

    plugins = plugins or PluginManager(entry_points=())
    storage = storage or MemoryStorage()
    driver = plugins.driver(storage.driver)
    if not isinstance(driver, JournalDriver):
        raise TypeError(f"storage driver '{driver.name}' has a broker of its own; open_broker makes it")
    context = OpenContext(ports=ports, version="0.0.0", role="embedded", log=_ignore)
    return LocalBroker(
        driver.open(storage, context),
        ports=ports,
        capabilities=driver.capabilities,
        settings=storage,
        strategies=plugins.strategies,
        log=_ignore,
        role="manual",
        kinds=tuple(plugins.kinds.values()),
    )


def _ignore(*_: Any, **__: Any) -> None:
    return
