"""Plugins: hook specifications, the values that plugins hand over, and the manager that loads them.

A plugin imports from here::

    from bunqueue_core.plugins import JournalDriver, JournalSettings, hookimpl
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bunqueue_core.plugins.drivers import (
    BackoffStrategy,
    BackupStore,
    BackupTarget,
    BrokerDriver,
    Env,
    EventSink,
    JournalDriver,
    JournalSettings,
    OpenContext,
    Schedule,
    ScheduleKind,
    Secret,
    SettingsModel,
    StorageDriver,
    StorageSettings,
    Unit,
)
from bunqueue_core.plugins.hookspecs import ENTRY_POINT_GROUP, PROJECT, hookimpl, hookspec

if TYPE_CHECKING:
    from bunqueue_core.plugins.manager import LoadedPlugin as LoadedPlugin
    from bunqueue_core.plugins.manager import PluginManager as PluginManager


def __getattr__(name: str) -> Any:
    # The manager imports the built-in plugin, which imports drivers, which import this package: so it comes on demand.
    if name in ("PluginManager", "LoadedPlugin"):
        from bunqueue_core.plugins import manager

        return getattr(manager, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ENTRY_POINT_GROUP",
    "PROJECT",
    "BackoffStrategy",
    "BackupStore",
    "BackupTarget",
    "BrokerDriver",
    "Env",
    "EventSink",
    "JournalDriver",
    "JournalSettings",
    "LoadedPlugin",
    "OpenContext",
    "PluginManager",
    "Schedule",
    "ScheduleKind",
    "Secret",
    "SettingsModel",
    "StorageDriver",
    "StorageSettings",
    "Unit",
    "hookimpl",
    "hookspec",
]
