"""Listeners for what happens in a client: isolated from it and from each other."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

Self = TypeVar("Self", bound="Emitter")

#: Where a client tells of what it cannot raise: listeners that fail, outcomes that could not be reported.
LOGGER: Final = logging.getLogger("bunqueue")


class Emitter:
    """Calls listeners by event name.

    A listener runs in the thread, or on the loop, where the event happens, and should return quickly. What it raises is logged.
    On an event loop it may be a coroutine function; it then runs as a task.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, list[tuple[Callable[..., Any], bool]]] = {}
        self._listening: set[asyncio.Future[Any]] = set()

    def on(self: Self, event: str, listener: Callable[..., Any]) -> Self:
        """Call ``listener`` each time ``event`` happens. Returns this object."""
        self._listeners.setdefault(event, []).append((listener, False))
        return self

    def once(self: Self, event: str, listener: Callable[..., Any]) -> Self:
        """Call ``listener`` the next time ``event`` happens. Returns this object."""
        self._listeners.setdefault(event, []).append((listener, True))
        return self

    def off(self: Self, event: str, listener: Callable[..., Any]) -> Self:
        """Stop calling ``listener`` for ``event``. Returns this object."""
        kept = [entry for entry in self._listeners.get(event, ()) if entry[0] != listener]
        if kept:
            self._listeners[event] = kept
        else:
            self._listeners.pop(event, None)
        return self

    def remove_all_listeners(self, event: str | None = None) -> None:
        """Forget the listeners of ``event``, or of every event."""
        if event is None:
            self._listeners.clear()
        else:
            self._listeners.pop(event, None)

    def listens(self, event: str) -> bool:
        """Whether anybody listens to ``event``."""
        return event in self._listeners

    def emit(self, event: str, *arguments: Any) -> bool:
        """Call the listeners of ``event``. Returns whether there were any."""
        entries = self._listeners.get(event)
        if entries is None:
            return False
        for listener, only_once in list(entries):
            if only_once:
                self._forget(event, listener)
            self._call(event, listener, arguments)
        return True

    def _forget(self, event: str, listener: Callable[..., Any]) -> None:
        entries = self._listeners.get(event, [])
        for position, (other, only_once) in enumerate(entries):
            if other == listener and only_once:
                del entries[position]
                break
        if not entries:
            self._listeners.pop(event, None)

    def _call(self, event: str, listener: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            outcome = listener(*arguments)
            if inspect.isawaitable(outcome):
                task = asyncio.ensure_future(outcome)
                self._listening.add(task)
                task.add_done_callback(lambda done: self._heard(event, done))
        except Exception:
            LOGGER.exception("a listener of '%s' failed", event)

    def _heard(self, event: str, task: asyncio.Future[Any]) -> None:
        self._listening.discard(task)
        if not task.cancelled() and task.exception() is not None:
            LOGGER.error("a listener of '%s' failed", event, exc_info=task.exception())
