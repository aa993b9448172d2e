"""Brokers inside a client's process: clients of the same file share one.

This module keeps the one table that is global to a process on purpose: two brokers on one file would each believe that the jobs
are theirs, so whoever opens a path that is open already gets the broker that has it. The table belongs to the process that
filled it; a forked child starts with an empty one, and the file stays the parent's.

A broker of a storage is closed with its last client. The broker in memory is kept until :func:`shutdown_manager`, because its jobs
would be gone with it.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bunqueue_core.model.errors import BunqueueError, ConfigurationError

if TYPE_CHECKING:
    from bunqueue_core.broker.protocol import Broker
    from bunqueue_core.client.local import LocalVerbs
    from bunqueue_core.plugins.drivers import StorageSettings
    from bunqueue_core.plugins.manager import PluginManager

#: Where embedded brokers log; as clients do.
LOGGER: Final = logging.getLogger("bunqueue")

#: Environment variables that name the database file, the first one that is set.
PATH_VARIABLES: Final = ("BUNQUEUE_DATA_PATH", "BQ_DATA_PATH", "DATA_PATH", "SQLITE_PATH")

#: Stands for a database in memory.
MEMORY: Final = ":memory:"

#: Storage driver of embedded files.
FILE_DRIVER: Final = "sqlite"

_LEVELS: Final[Mapping[str, int]] = {"debug": 10, "info": 10, "warn": 30, "error": 40}


class EmbeddedBroker:
    """One client's hold on a broker of this process. Give it back with :meth:`close`."""

    def __init__(self, entry: _Entry, registry: BrokerRegistry) -> None:
        self._entry: _Entry | None = entry
        self._registry = registry
        #: The broker's verbs.
        self.verbs: LocalVerbs = entry.verbs

    def close(self) -> None:
        """Give the hold back: what was added is on disk when this returns. Idempotent."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._registry.release(entry)

    async def aclose(self) -> None:
        """:meth:`close` beside an event loop."""
        await asyncio.to_thread(self.close)


class _Entry:
    """An open broker, what it was opened with and the number of its clients."""

    def __init__(self, key: str, storage: StorageSettings, broker: Broker, verbs: LocalVerbs) -> None:
        self.key = key
        self.storage = storage
        self.broker = broker
        self.verbs = verbs
        self.clients = 0

    @property
    def kept(self) -> bool:
        """Whether it stays open without clients, because closing it would lose its jobs."""
        return not self.broker.capabilities.persistent


class BrokerRegistry:
    """The open brokers of this process by the real path of their file.

    Args:
        plugins: makes the plugin manager that finds the storage drivers.
        environ: where the default path is looked up.
        at_first: called before the first broker of the process is opened.
    """

    def __init__(
        self,
        plugins: Callable[[], PluginManager],
        environ: Mapping[str, str],
        at_first: Callable[[], Any] = lambda: None,
    ) -> None:
        self._make_plugins = plugins
        self._environ = environ
        self._at_first = at_first
        self._plugins: PluginManager | None = None
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._opened = 0  #: brokers so far

    def acquire(
        self, data_path: str | None, storage: StorageSettings | Mapping[str, Any] | None = None
    ) -> EmbeddedBroker:
        """Give a hold on the broker of a storage, opening it if it is not open.

        Args:
            data_path: the database file, ``:memory:``, or None: the environment's, else the one that is open already, else memory.
            storage: the section ``storage`` of a configuration in place of a path: any driver that can be embedded.

        Raises:
            ConfigurationError: the storage driver is not installed, its settings are wrong, or the storage is open with others.
            ValueError: no path was given and several databases are open.
        """
        if self._pid != os.getpid():
            # Forked: the parent's brokers are the parent's. Their locks may even be held by threads that are not here.
            self._start_afresh()
        with self._lock:
            if storage is None:
                key = self._key(data_path)
                entry = self._entries.get(key)
                if entry is None:
                    name = "memory" if key == MEMORY else FILE_DRIVER
                    model = self._plugin_manager().driver(name).settings
                    entry = self._open(key, model.model_validate({} if key == MEMORY else {"data_path": key}))
            else:
                settings = self._read(storage)
                key = self._storage_key(settings)
                entry = self._entries.get(key)
                if entry is None:
                    entry = self._open(key, settings)
                elif entry.storage != settings:
                    raise ConfigurationError(
                        f'storage: the same storage (driver "{settings.driver}") is open in this process with other settings; '
                        "give all its clients the same ones"
                    )
            entry.clients += 1
            return EmbeddedBroker(entry, self)

    def release(self, entry: _Entry) -> None:
        """Take a hold back. The last one of a file closes its broker; others flush."""
        if self._pid != os.getpid():
            return
        with self._lock:
            entry.clients -= 1
            if entry.kept or self._entries.get(entry.key) is not entry:
                return
            if entry.clients > 0:
                _flush(entry.broker)
                return
            del self._entries[entry.key]
            entry.broker.close().result()

    def close(self) -> None:
        """Close every broker, whoever still uses it, and forget them.

        Raises:
            StorageUnavailable: a storage did not take everything that was accepted.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
            failures = []
            for entry in entries:
                try:
                    entry.broker.close().result()
                except BunqueueError as error:
                    failures.append(error)
        if failures:
            raise failures[0]

    def _key(self, data_path: str | None) -> str:
        if data_path is None:
            data_path = next((self._environ[name] for name in PATH_VARIABLES if self._environ.get(name)), None)
        if data_path is not None:
            return MEMORY if data_path == MEMORY else os.path.realpath(data_path)
        if not self._entries or MEMORY in self._entries:
            return MEMORY
        if len(self._entries) > 1:
            raise ValueError("data_path is required: several embedded databases are open in this process")
        return next(iter(self._entries))

    def _plugin_manager(self) -> PluginManager:
        if self._plugins is None:
            self._plugins = self._make_plugins()
            self._at_first()
        return self._plugins

    def _read(self, storage: StorageSettings | Mapping[str, Any]) -> StorageSettings:
        """Check settings with the installed drivers, as the same section of a configuration file is."""
        from bunqueue_core.config.resolution import resolve

        return resolve(self._plugin_manager(), file={"storage": storage}).require().storage

    def _storage_key(self, settings: StorageSettings) -> str:
        from bunqueue_core.plugins.drivers import JournalDriver

        driver = self._plugin_manager().driver(settings.driver)
        identity = driver.identity(settings) if isinstance(driver, JournalDriver) else None
        if settings.driver == "memory":
            return MEMORY
        if settings.driver == FILE_DRIVER and identity is not None:
            return os.path.realpath(identity)  # the same as of a client that only names the path
        if identity is not None:
            return f"{settings.driver}:{identity}"
        # The driver cannot tell storages apart: clients with the same settings share one.
        same = (key for key, entry in self._entries.items() if entry.storage == settings)
        return next(same, f"{settings.driver}#{self._opened}")

    def _open(self, key: str, storage: StorageSettings) -> _Entry:
        # Imported here: a program that only talks to a server needs neither plugins nor an engine.
        from bunqueue_core import __version__
        from bunqueue_core.broker.workers import WorkerRegistry
        from bunqueue_core.client.local import LocalVerbs
        from bunqueue_core.commands import COMMANDS
        from bunqueue_core.commands.session import Services
        from bunqueue_core.logging import Logger
        from bunqueue_core.model.options import JobReader
        from bunqueue_core.model.ports import Ports
        from bunqueue_core.scheduling.repeat import Repeats
        from bunqueue_core.storage.opening import open_broker as make_broker

        plugins = self._plugin_manager()
        ports = Ports()
        broker = make_broker(storage, plugins, ports=ports, role="embedded", log=_log)
        broker.start().result()
        services = Services(
            broker=broker,
            ports=ports,
            log=Logger("Embedded", level="error"),
            workers=WorkerRegistry(),
            reader=JobReader(plugins.strategies, Repeats().check_pattern),
            version=__version__,
        )
        broker.has_worker = services.workers.has_active
        entry = _Entry(key, storage, broker, LocalVerbs(broker, services, COMMANDS, plugins.strategies))
        self._entries[key] = entry
        self._opened += 1
        return entry


def _flush(broker: Broker) -> None:
    flush = getattr(broker, "flush", None)
    if flush is not None:
        flush()


def _log(level: str, message: str, fields: Mapping[str, Any] | None = None, /, **more: Any) -> None:
    LOGGER.log(_LEVELS.get(level, 20), "%s %s", message, {**(fields or {}), **more})


def _installed_plugins() -> PluginManager:
    from bunqueue_core.plugins.manager import PluginManager

    return PluginManager(environ=os.environ)


def _close_at_exit() -> None:
    try:
        _registry.close()
    except BunqueueError as error:
        LOGGER.error("an embedded database could not be closed cleanly: %s", error)


#: The process's table; see the module's head.
_registry: Final = BrokerRegistry(_installed_plugins, os.environ, lambda: atexit.register(_close_at_exit))


def open_broker(data_path: str | None, storage: StorageSettings | Mapping[str, Any] | None = None) -> EmbeddedBroker:
    """Give a hold on the broker of a storage; see :meth:`BrokerRegistry.acquire`."""
    return _registry.acquire(data_path, storage)


async def aopen_broker(
    data_path: str | None, storage: StorageSettings | Mapping[str, Any] | None = None
) -> EmbeddedBroker:
    """:func:`open_broker` beside an event loop: opening reads the whole database."""
    return await asyncio.to_thread(open_broker, data_path, storage)


def shutdown_manager() -> None:
    """Close every embedded broker of this process, whoever still uses it; jobs in memory are gone.

    Raises:
        StorageUnavailable: a storage did not take everything that was accepted.
    """
    _registry.close()


__all__ = ["BrokerRegistry", "ConfigurationError", "EmbeddedBroker", "aopen_broker", "open_broker", "shutdown_manager"]
