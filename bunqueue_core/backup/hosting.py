"""Backups of a server: opened before its storage, begun once it listens, stopped before its storage closes."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from bunqueue_core.backup.errors import BackupError, StoreError
from bunqueue_core.backup.reports import Announce, BackupStatistics
from bunqueue_core.backup.schedule import BackupThread
from bunqueue_core.backup.service import Backups
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.plugins.drivers import JournalDriver, OpenContext

if TYPE_CHECKING:
    from bunqueue_core.broker.protocol import Broker
    from bunqueue_core.config.settings import Settings
    from bunqueue_core.logging import Logger
    from bunqueue_core.model.ports import Ports
    from bunqueue_core.plugins.drivers import BackupStore, BackupTarget
    from bunqueue_core.plugins.manager import PluginManager
    from bunqueue_core.storage.journal import SnapshotFiles

#: How long the event loop may take to begin and end the commit that a backup asks for, seconds.
_FLUSH_S: Final = 60.0


def open_store(
    settings: Settings, plugins: PluginManager, context: OpenContext
) -> tuple[BackupTarget, BackupStore, SnapshotFiles]:
    """The configured target, its store (not contacted yet), and the storage as files.

    Args:
        settings: a configuration with backups enabled.
        plugins: where target and driver are found.
        context: what the store is opened with.

    Raises:
        ConfigurationError: the storage driver offers no snapshots, or the target's settings cannot be used.
    """
    driver = plugins.driver(settings.storage.driver)
    if not isinstance(driver, JournalDriver) or driver.files is None:
        raise ConfigurationError(
            f'backup.enabled: storage driver "{driver.name}" offers no snapshots; set it to false, or choose another driver'
        )
    target = plugins.target(settings.backup.target)
    return target, target.open(settings.backup.store, context), driver.files(settings.storage)


class ServerBackups:
    """See the module's head::

        backups = ServerBackups(settings, plugins, ports, log)
        await backups.open()
        ...
        backups.start(broker)
        ...
        await backups.stop(deadline_s)

    Args:
        settings: the configuration; ``backup`` and ``storage`` are read.
        plugins: where target and driver are found.
        ports: the clock.
        log: the server's log.
        announce: told of backups, in the event loop; None: nobody.
    """

    def __init__(
        self,
        settings: Settings,
        plugins: PluginManager,
        ports: Ports,
        log: Logger,
        *,
        announce: Announce | None = None,
    ) -> None:
        self._settings = settings
        self._plugins = plugins
        self._ports = ports
        self._log = log.component("Backup")
        self._announce = announce
        self._opened: tuple[BackupTarget, BackupStore, SnapshotFiles] | None = None
        self._backups: Backups | None = None
        self._thread: BackupThread | None = None

    async def open(self) -> None:
        """Open the target and ask it whether backups can be kept there. Does nothing where backups are not enabled.

        A target that refuses stops the start; one that cannot be reached now may be there when the first backup is due.

        Raises:
            ConfigurationError: the target refuses, or its settings cannot be used.
        """
        if not self._settings.backup.enabled:
            return
        from bunqueue_core import __version__

        context = OpenContext(ports=self._ports, version=__version__, role="server", log=self._log)
        self._opened = open_store(self._settings, self._plugins, context)
        try:
            # In a thread: it may wait for a network, and loads what the target needs while nobody is served yet.
            await asyncio.to_thread(self._opened[1].check)
        except StoreError as error:
            self._log.warn("The backup target cannot be reached; backups are tried all the same", error=str(error))

    def start(self, broker: Broker) -> None:
        """Begin the schedule. Does nothing where backups are not enabled.

        Args:
            broker: the open broker.
        """
        if self._opened is None:
            return
        from bunqueue_core import __version__

        target, store, files = self._opened
        backup = self._settings.backup
        loop = asyncio.get_running_loop()
        self._backups = Backups(
            store,
            files,
            # The copy comes from the files, not from the broker's own source: that one also waits for the disk, and this copy is
            # gone again within minutes, most of it before it was ever written there.
            flush=_flush_in(loop, broker),
            retention=backup.retention,
            version=__version__,
            label=target.label or target.name,
            place=next(iter(target.describe(backup.store).values()), target.name),
            log=self._log,
            announce=_announce_in(loop, self._announce),
            now=self._ports.now,
        )
        self._thread = BackupThread(self._backups, backup.interval, backup.verify_interval)
        self._thread.start()

    @property
    def backups(self) -> Backups | None:
        """For backups on demand, from another thread than the event loop's; None until started, or where there are none."""
        return self._backups

    async def stop(self, deadline_s: float) -> None:
        """End the schedule and what runs of it, and close the target. Idempotent.

        Args:
            deadline_s: seconds that a running backup is given to take back what it has begun.
        """
        thread, backups, opened = self._thread, self._backups, self._opened
        self._thread = self._backups = self._opened = None
        if thread is not None and backups is not None:
            thread.stop()
            backups.cancel()
            if not await asyncio.to_thread(thread.join, deadline_s):
                self._log.warn("A backup did not end in time; it ends with the process")
                return  # the store is still in use
        if opened is not None:
            await asyncio.to_thread(opened[1].close)

    def statistics(self) -> BackupStatistics:
        """Numbers since the start; all zero where the storage driver offers no snapshots."""
        if not self._plugins.driver(self._settings.storage.driver).capabilities.snapshots:
            return BackupStatistics()
        backup = self._settings.backup
        numbers = self._backups.statistics() if self._backups is not None else BackupStatistics()
        return replace(
            numbers,
            enabled=backup.enabled,
            scheduler_running=self._thread is not None and self._thread.running,
            interval_ms=backup.interval,
            retention=backup.retention,
        )


def _flush_in(loop: asyncio.AbstractEventLoop, broker: Broker) -> Callable[[], int]:
    """A function for other threads that flushes ``broker`` in its event loop, and gives the number of writes that remain."""

    def flush(done: concurrent.futures.Future[int]) -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            remaining = 0
            if not broker.flush():
                numbers = broker.statistics()
                remaining = max(1, int(numbers.get("unwrittenRows", 0) + numbers.get("retryingRows", 0)))
            done.set_result(remaining)
        except Exception as error:
            done.set_exception(error)

    def call() -> int:
        done: concurrent.futures.Future[int] = concurrent.futures.Future()
        try:
            loop.call_soon_threadsafe(flush, done)
            return done.result(_FLUSH_S)
        except (RuntimeError, TimeoutError) as error:
            done.cancel()
            raise BackupError(
                "Cannot create a consistent backup: the buffered writes were not written in time"
            ) from error

    return call


def _announce_in(loop: asyncio.AbstractEventLoop, announce: Announce | None) -> Announce | None:
    if announce is None:
        return None

    def call(event: str, fields: Mapping[str, Any]) -> None:
        loop.call_soon_threadsafe(announce, event, fields)

    return call


__all__ = ["ServerBackups", "open_store"]
