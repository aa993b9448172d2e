"""How a processor is told that it should stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bunqueue_core.client._events import LOGGER


class CancelSignal:
    """Tells a processor that it should stop: the job was cancelled, timed out, or belongs to another worker by now."""

    __slots__ = ("_callbacks", "reason")

    def __init__(self) -> None:
        #: Why, None while there is no reason to stop.
        self.reason: str | None = None
        self._callbacks: list[Callable[[str], None]] = []

    @property
    def aborted(self) -> bool:
        """Whether the processor should stop."""
        return self.reason is not None

    def on_abort(self, callback: Callable[[str], None]) -> None:
        """Call ``callback(reason)`` when the processor should stop, at once if it should already."""
        if self.reason is not None:
            callback(self.reason)
        else:
            self._callbacks.append(callback)

    def abort(self, reason: str) -> bool:
        """Tell it. Returns False if it was told before."""
        if self.reason is not None:
            return False
        self.reason = reason
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(reason)
            except Exception:
                LOGGER.exception("a callback of a cancelled job failed")
        return True


class ProcessorContext(NamedTuple):
    """Second argument of a processor that takes two."""

    signal: CancelSignal
