"""SIGINT and SIGTERM for a worker that is a program of its own: the first one stops it in order, the second one at once."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

#: Base of the exit code of a program that a signal ended.
EXIT_CODE_BASE: Final = 128

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While it is entered, SIGINT and SIGTERM are told instead of ending the program.

    Only what nobody else handles is taken: a handler that the program has set stays. Outside the main thread, where Python allows
    no handlers, it does nothing.

    Args:
        tell: called with the number of each signal, in the main thread between any two of its steps; it must not wait for a lock.
        wanted: False takes no signal at all.
    """

    def __init__(self, tell: Callable[[int], None], wanted: bool = True) -> None:
        self._tell = tell
        self._wanted = wanted
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if self._wanted and threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                present = signal.getsignal(number)
                if _is_default(present):
                    self._before[number] = present
                    signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._tell(number)


def _is_default(handler: Any) -> bool:
    """Whether ``handler`` is the interpreter's own, or the one by which ``asyncio.run`` cancels its task."""
    if handler is signal.SIG_DFL or handler is signal.default_int_handler:
        return True
    return isinstance(handler, functools.partial) and isinstance(
        getattr(handler.func, "__self__", None), asyncio.Runner
    )
