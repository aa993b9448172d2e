"""Warnings for those who watch a server: idle and long queues, overloaded workers, memory, size of the storage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from bunqueue_core.commands.monitoring import resident_bytes
from bunqueue_core.commands.session import Services
from bunqueue_core.config.settings import MonitoringSettings

#: Queues that are looked at, in order of first appearance.
MAX_QUEUES: Final = 1000

#: A warning that is raised once may be raised again when the figure has fallen below this part of its threshold.
_REARM: Final = 0.9

_MIB: Final = 2**20

Announce = Callable[[str, Mapping[str, Any]], None]


class Monitor:
    """Looks at figures from time to time. What lasts is counted from the first look that finds it.

    Args:
        services: what is looked at.
        settings: the thresholds; 0 switches a warning off.
        announce: takes the warnings.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        services: Services,
        settings: MonitoringSettings,
        announce: Announce,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services = services
        self._settings = settings
        self._announce = announce
        self._clock = clock
        self._idle: dict[str, float] = {}  # queues and since when they are idle
        self._full: dict[str, float] = {}  # workers and since when they are
        self._long: set[str] = set()  # queues whose length has been told
        self._told: set[str] = set()  # warnings about the server that have been

    async def check(self) -> None:
        """Look once.

        Raises:
            BunqueueError: the storage cannot say; what was found before is told already.
        """
        self._check_memory()
        self._check_workers()
        if self._settings.queue_idle_threshold_ms or self._settings.queue_size_threshold:
            await self._check_queues()

    async def _check_queues(self) -> None:
        broker = self._services.broker
        names = (await broker.queues())[:MAX_QUEUES]
        now = self._clock()
        threshold = self._settings.queue_size_threshold
        idle: set[str] = set()
        for name, counts, _ in await broker.summaries(names):
            size = counts.ready_waiting + counts.ready_prioritized
            if not size and not counts.active:
                idle.add(name)
            if threshold and size >= threshold:
                if name not in self._long:
                    self._long.add(name)
                    self._announce("queue:threshold", {"queue": name, "size": size, "threshold": threshold})
            else:
                self._long.discard(name)
        self._long.intersection_update(names)
        for name, seconds in self._lasting(self._idle, idle, now, self._settings.queue_idle_threshold_ms):
            self._announce("queue:idle", {"queue": name, "idleSeconds": round(seconds)})

    def _check_workers(self) -> None:
        full = {worker.id: worker for worker in self._services.workers if 0 < worker.concurrency <= worker.active_jobs}
        threshold = self._settings.worker_overload_threshold_ms
        for id, seconds in self._lasting(self._full, set(full), self._clock(), threshold):
            worker = full[id]
            self._announce(
                "worker:overloaded",
                {
                    "workerId": id,
                    "name": worker.name,
                    "activeJobs": worker.active_jobs,
                    "concurrency": worker.concurrency,
                    "overloadedSeconds": round(seconds),
                },
            )

    @staticmethod
    def _lasting(since: dict[str, float], present: set[str], now: float, threshold_ms: int) -> list[tuple[str, float]]:
        """Which of ``present`` have been there for ``threshold_ms``, and for how many seconds; these begin anew."""
        for name in since.keys() - present:
            del since[name]
        found: list[tuple[str, float]] = []
        for name in present if threshold_ms else ():
            lasted = now - since.setdefault(name, now)
            if lasted * 1000 >= threshold_ms:
                found.append((name, lasted))
                since[name] = now
        return sorted(found)

    def _check_memory(self) -> None:
        resident = round(resident_bytes() / _MIB)
        threshold = self._settings.memory_warning_mb
        if self._exceeded("memory", resident, threshold):
            fields = {"heapUsedMB": resident, "thresholdMB": threshold, "rssMB": resident}
            self._announce("server:memory-warning", fields)
        threshold = self._settings.storage_warning_mb
        if threshold:
            size = round(self._services.broker.statistics().get("storageBytes", 0) / _MIB)
            if self._exceeded("storage", size, threshold):
                self._announce("storage:size-warning", {"sizeMB": size, "thresholdMB": threshold})

    def _exceeded(self, what: str, value: float, threshold: int) -> bool:
        """Whether to warn that ``value`` has reached ``threshold``."""
        if not threshold:
            return False
        if value < threshold * _REARM:
            self._told.discard(what)
        if value < threshold or what in self._told:
            return False
        self._told.add(what)
        return True
