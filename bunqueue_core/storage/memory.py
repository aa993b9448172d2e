"""The built-in memory driver: the engine without a journal. Nothing is kept beyond the end of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.plugins.drivers import JournalDriver, JournalSettings

if TYPE_CHECKING:
    from bunqueue_core.plugins.drivers import OpenContext
    from bunqueue_core.storage.journal import Journal


class MemoryStorage(JournalSettings):
    """Jobs live in this process only and are gone when it ends."""

    driver: Literal["memory"] = "memory"


def _open(settings: Any, context: OpenContext) -> Journal | None:
    return None


def _describe(settings: Any) -> str:
    return "in-memory · ephemeral"


#: The driver as it is registered by :mod:`bunqueue_core.plugins.builtin`.
MEMORY_DRIVER = JournalDriver(
    name="memory",
    settings=MemoryStorage,
    capabilities=Capabilities(driver="memory", persistent=False),
    open=_open,
    describe=_describe,
)
