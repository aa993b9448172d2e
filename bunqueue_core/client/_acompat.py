"""The small vocabulary in which asynchronous sources and their synchronous twins differ.

Each word exists twice: ``AEvent`` waits in an event loop, ``Event`` in a thread, and so on. ``tools/async_to_sync.py`` renames the
first to the second. Every wait can be interrupted: by the event's being set, or by its time running out.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from bunqueue_core.answer import Answer

T = TypeVar("T")

Lock = threading.Lock
ALock = asyncio.Lock


class AEvent:
    """A flag that tasks wait for. Set it from the loop's own thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Raise the flag and wake who waits."""
        self._event.set()

    def clear(self) -> None:
        """Lower the flag."""
        self._event.clear()

    def is_set(self) -> bool:
        """Whether the flag is up."""
        return self._event.is_set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until the flag is up, at most ``seconds`` (None: no limit). Returns whether it is up."""
        if self._event.is_set():
            return True
        if seconds is None:
            return await self._event.wait()
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return self._event.is_set()
        return True


class Event(threading.Event):
    """A flag that threads wait for."""

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the flag is up, at most ``seconds`` (None: no limit). Returns whether it is up."""
        return super().wait(seconds)


#: How long a wait in the main thread may keep a signal's handler waiting, seconds.
_LOOK_S: Final = 0.5


class AInbox(Generic[T]):
    """A queue that any thread fills and one task empties."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[T] = asyncio.Queue()

    def put(self, item: T) -> None:
        """Add ``item``. After the loop has ended, it is dropped."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def get(self) -> T:
        """Wait for the next item."""
        return await self._queue.get()


class Inbox(Generic[T]):
    """A queue that any thread fills and one thread empties."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[T] = queue.SimpleQueue()

    def put(self, item: T) -> None:
        """Add ``item``."""
        self._queue.put(item)

    def get(self) -> T:
        """Wait for the next item."""
        while True:
            try:
                return self._queue.get(timeout=_LOOK_S)
            except queue.Empty:
                # A signal that came just before the wait began has not ended it: its handler runs now.
                continue


def asettled(answer: Answer[T]) -> Answer[T]:
    """The answer itself: it is awaitable."""
    return answer


def settled(answer: Answer[T]) -> T:
    """Wait for ``answer`` in this thread and return its value."""
    return answer.result()


def aspawn(name: str, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
    """Run ``function(*arguments)`` as a task of this loop. The caller keeps the task."""
    return asyncio.get_running_loop().create_task(function(*arguments), name=name)


def spawn(name: str, function: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Run ``function(*arguments)`` in a daemon thread."""
    thread = threading.Thread(target=functools.partial(function, *arguments), name=name, daemon=True)
    thread.start()
    return thread


def acan_spawn() -> bool:
    """Whether an event loop runs here, on which tasks can be started."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def can_spawn() -> bool:
    """Whether threads can be started: always."""
    return True


def afinished(task: asyncio.Task[None]) -> bool:
    """Whether a spawned task has ended."""
    return task.done()


def finished(thread: threading.Thread) -> bool:
    """Whether a spawned thread has ended."""
    return not thread.is_alive()
