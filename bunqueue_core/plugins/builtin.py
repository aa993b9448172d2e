"""What ships with the core, registered through the same hooks as any other plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bunqueue_core.backup.folder import FOLDER_TARGET
from bunqueue_core.events.ndjson import configured_sinks
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.plugins.drivers import BackoffStrategy, BackupTarget, EventSink, ScheduleKind, StorageDriver
from bunqueue_core.plugins.hookspecs import hookimpl
from bunqueue_core.scheduling import KINDS
from bunqueue_core.storage.memory import MEMORY_DRIVER


@hookimpl
def bunqueue_storage_drivers() -> Iterable[StorageDriver]:
    """``memory``: the engine without a journal."""
    return [MEMORY_DRIVER]


@hookimpl
def bunqueue_backup_targets() -> Iterable[BackupTarget]:
    """``folder``: a folder of this machine, or one that is mounted."""
    return [FOLDER_TARGET]


@hookimpl
def bunqueue_backoff_strategies() -> Mapping[str, BackoffStrategy]:
    """``fixed`` and ``exponential``."""
    return BACKOFF_STRATEGIES


@hookimpl
def bunqueue_schedule_kinds() -> Iterable[ScheduleKind]:
    """``cron`` expressions and intervals."""
    return KINDS


@hookimpl
def bunqueue_event_sinks(settings: Any) -> Iterable[EventSink]:
    """``ndjson`` and ``stdout``: newline-delimited JSON in a file or on standard output."""
    return configured_sinks(settings.events.sinks)
