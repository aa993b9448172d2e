"""Who runs the jobs of an asynchronous worker: a task each; processors that are no coroutine functions run in threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bunqueue_core.client._acompat import aspawn
from bunqueue_core.client._worker_base import is_async


class AsyncioCrew:
    """Runs jobs on the loop.

    Args:
        name: for the names of threads.
        processor: the user's function.
        process: runs one job and hands in its outcome.
        work: the worker's loop.
        size: how many jobs may run at once.
    """

    def __init__(
        self,
        name: str,
        processor: Callable[..., Any],
        process: Callable[[Any], Awaitable[None]],
        work: Callable[[], Awaitable[bool]],
        size: Callable[[], int],
    ) -> None:
        self._name = name
        self._processor = processor
        self._process = process
        self._work = work
        self._size = size
        self._is_async = is_async(processor)
        self._loop_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None

    def watch_s(self) -> float | None:
        """Seconds after which :meth:`watch` is to be called: never."""
        return None

    def watch(self) -> None:
        """Nothing to see to: a job that takes long suspends its task."""

    def on_watch(self, wanted: Callable[[], None]) -> None:
        """Nobody needs to watch."""

    def begin(self) -> None:
        """Run the worker's loop."""
        self._loop_task = aspawn(f"{self._name}-loop", self._have_loop)

    async def _have_loop(self) -> None:
        await self._work()

    async def start(self, jobs: Iterable[Any]) -> bool:
        """Start ``jobs``. True: the caller still has the worker's loop."""
        loop = asyncio.get_running_loop()
        tasks = self._tasks
        for job in jobs:
            task: asyncio.Task[None] = loop.create_task(self._process(job))  # type: ignore[arg-type]
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return True

    async def hand_over(self, jobs: Iterable[Any]) -> None:
        """Start ``jobs``."""
        await self.start(jobs)

    def take_unstarted(self) -> list[Any]:
        """Jobs that were handed over and not started: none, all start at once."""
        return []

    def release_loop(self) -> None:
        """See that a job does not keep the worker's loop: it never does."""

    def inside(self) -> bool:
        """Whether the caller is one of the jobs, or the worker's loop."""
        task = asyncio.current_task()
        return task in self._tasks or task is self._loop_task

    def cancelled(self, error: BaseException) -> bool:
        """Whether ``error`` ended a job because its task was cancelled from outside, not by the processor's own doing."""
        task = asyncio.current_task()
        return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0

    async def call(self, arguments: tuple[Any, ...]) -> Any:
        """Call the processor and return what it returns."""
        if self._is_async:
            return await self._processor(*arguments)
        return await self._in_thread(self._processor, arguments)

    async def invoke(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call another function of the user's and return what it returns."""
        if is_async(function):
            return await function(*arguments)
        return await self._in_thread(function, arguments)

    async def _in_thread(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._size(), thread_name_prefix=f"{self._name}-job")
        result = await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*arguments))
        return await result if inspect.isawaitable(result) else result

    def close(self, force: bool) -> None:
        """End; with ``force`` the tasks of running jobs are cancelled (a thread cannot be)."""
        if force:
            for task in self._tasks:
                task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
