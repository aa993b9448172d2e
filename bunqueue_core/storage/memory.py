"""The memory driver's settings: nothing is kept, everything else is the engine as on any journal."""

from __future__ import annotations

from typing import Literal

from bunqueue_core.plugins.drivers import JournalSettings


class MemoryStorage(JournalSettings):
    """Jobs live in this process only and are gone when it ends."""

    driver: Literal["memory"] = "memory"
