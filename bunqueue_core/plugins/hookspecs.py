"""The hooks of bunqueue: signatures and docstrings only (pluggy project ``bunqueue``, entry points ``bunqueue.plugins``).

Hooks are called at start, never on a job's path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from bunqueue_core.plugins.drivers import BackoffStrategy, BackupTarget, EventSink, ScheduleKind, StorageDriver

#: Name of the pluggy project.
PROJECT = "bunqueue"

#: Entry-point group in which a distribution names its plugin module.
ENTRY_POINT_GROUP = "bunqueue.plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def bunqueue_storage_drivers() -> Iterable[StorageDriver]:
    """Storage drivers, selected by ``storage.driver``."""
    raise NotImplementedError


@hookspec
def bunqueue_backup_targets() -> Iterable[BackupTarget]:
    """Backup targets, selected by ``backup.target``."""
    raise NotImplementedError


@hookspec
def bunqueue_schedule_kinds() -> Iterable[ScheduleKind]:
    """Schedule kinds, selected by the fields of a scheduler."""
    raise NotImplementedError


@hookspec
def bunqueue_backoff_strategies() -> Mapping[str, BackoffStrategy]:
    """Back-off strategies by name, selected by a job's ``backoff.type``."""
    raise NotImplementedError


@hookspec
def bunqueue_event_sinks(settings: Any) -> Iterable[EventSink]:
    """Sinks for every event, chosen in ``events.sinks``; ``settings`` is the loaded configuration."""
    raise NotImplementedError


@hookspec
def bunqueue_configure(settings: Any) -> None:
    """Check or complete the configuration before start; raise ``ConfigurationError`` to stop it."""
