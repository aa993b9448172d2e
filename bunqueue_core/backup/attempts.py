"""Calls of a backup target, repeated while it is only troubled for a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from bunqueue_core.backup.errors import BackupCancelled, StoreError, StoreTimeout

T = TypeVar("T")

#: Pauses before the second, third and fourth attempt, ms.
PAUSES_MS: Final = (500, 1_000, 2_000)

#: Writes one log record: level, message, fields.
Log = Callable[..., None]


class Attempts:
    """Repeats calls of a target, and ends when it is asked to.

    Args:
        label: the target's name, which begins the name of each step in logs and errors.
        log: told of attempts that failed.
        sleep: waits that many seconds, or less once :meth:`cancel` was called; None: really.
    """

    def __init__(self, label: str, log: Log, sleep: Callable[[float], Any] | None = None) -> None:
        self._label = label
        self._log = log
        self._cancelled = threading.Event()
        self._sleep = sleep or self._cancelled.wait

    def cancel(self) -> None:
        """End what runs now, and whatever is begun later. Safe from any thread."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Whether :meth:`cancel` was called."""
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise :class:`BackupCancelled` if it was cancelled."""
        if self._cancelled.is_set():
            raise BackupCancelled("cancelled: the process is stopping")

    def call(self, step: str, function: Callable[[], T], *, once: bool = False) -> T:
        """Call ``function``, up to four times in all while its errors are retryable.

        Args:
            step: what it does, for logs and errors: ``metadata upload``.
            function: may be called several times.
            once: do not repeat it, and call it even after :meth:`cancel`: it tidies up.

        Raises:
            StoreError: the last attempt's error.
            BackupCancelled: it was cancelled.
        """
        name = f"{self._label} {step}"
        for attempt in range(1, len(PAUSES_MS) + 2):
            if not once:
                self.check()
            try:
                return function()
            except StoreError as error:
                if isinstance(error, StoreTimeout):
                    error = StoreTimeout(error.after_ms, name)
                if once or not error.retryable or attempt > len(PAUSES_MS):
                    raise error from None
                pause_ms = PAUSES_MS[attempt - 1]
                self._log(
                    "warn",
                    f"{name} failed (attempt {attempt}/{len(PAUSES_MS) + 1}), retrying in {pause_ms}ms",
                    error=str(error),
                )
            self._sleep(pause_ms / 1000)
        raise AssertionError("unreachable")  # pragma: no cover


__all__ = ["PAUSES_MS", "Attempts", "Log"]
