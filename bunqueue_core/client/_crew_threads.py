"""Who runs the jobs of a synchronous worker: threads, and as few switches between them as the jobs allow.

Handing a job to another thread costs more than many jobs do. So as long as jobs are quick, the thread that has the worker's
loop runs them itself, one after the other, and pulls and acknowledges in between: no switch at all. The worker's timer watches
it. When one job takes longer than a tick, the timer gives the loop to another thread and wakes threads for the jobs that wait;
the thread that is stuck becomes an ordinary one. While jobs are slow, each gets a thread of its own at once.

Invariant: exactly one thread has the loop. It changes only under ``_mutex``, by a new ``_turn``; a thread whose turn is over
finds that out under the same lock before it returns to the loop, and does not.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from bunqueue_core.client._acompat import spawn
from bunqueue_core.client._events import LOGGER
from bunqueue_core.client._worker_base import is_async

#: Jobs that take less than this on average are quick, seconds: a switch of threads costs about a tenth of it when nobody
#: else wants the interpreter, and several times as much when somebody does.
QUICK_S: Final = 0.0003

#: How often the thread that runs quick jobs is looked after, seconds.
WATCH_S: Final = 0.002

#: How long it is still looked after when it has nothing to do, in ticks.
IDLE_TICKS: Final = 25


class _Seat:
    """A thread that waits for work."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


class ThreadCrew:
    """Runs jobs in threads. See the module's head.

    Args:
        name: for the names of threads.
        processor: the user's function.
        process: runs one job and hands in its outcome.
        work: the worker's loop; False when it ended because another thread has it.
        size: how many jobs may run at once.
    """

    def __init__(
        self,
        name: str,
        processor: Callable[..., Any],
        process: Callable[[Any], None],
        work: Callable[[], bool],
        size: Callable[[], int],
    ) -> None:
        self._name = name
        self._processor = processor
        self._process = process
        self._work = work
        self._size = size
        self._is_async = is_async(processor)
        self._mutex = threading.Lock()
        self._inbox: deque[Any] = deque()
        self._idle: list[_Seat] = []
        self._threads = 0
        self._closed = False
        self._inside = threading.local()
        self._loop: asyncio.AbstractEventLoop | None = None
        # The thread that has the loop: its turn, whether it runs jobs, and how many it has begun.
        self._turn = 0
        self._inline = False
        self._begun = 0
        # What the watcher saw last, and whether it looks at all.
        self._seen = -1
        self._idle_ticks = 0
        self._watched = False
        self._call_watcher: Callable[[], None] = _nobody
        #: Average time of a job, seconds.
        self._cost = 0.0

    # -- watching -----------------------------------------------------------------------------------------------------

    def on_watch(self, wanted: Callable[[], None]) -> None:
        """``wanted`` is called when :meth:`watch` must be called soon."""
        self._call_watcher = wanted

    def watch_s(self) -> float | None:
        """Seconds after which :meth:`watch` is to be called, None if nobody runs quick jobs."""
        if not self._watched:
            return None
        if self._idle_ticks >= IDLE_TICKS:
            self._watched = False
            if not self._inline:
                return None
            # Begun just now, when it still looked as if somebody watched.
            self._watched = True
            self._idle_ticks = 0
        return WATCH_S

    def watch(self) -> None:
        """Look after the thread that runs quick jobs: one that has not got on since the last look is stuck."""
        if not self._inline:
            self._idle_ticks += 1
            self._seen = -1
            return
        self._idle_ticks = 0
        if self._begun == self._seen:
            self.release_loop()
        else:
            self._seen = self._begun

    def release_loop(self) -> None:
        """If the thread that has the loop runs a job, give the loop to another thread."""
        with self._mutex:
            if not self._inline or self._closed:
                return
            self._turn += 1
            self._inline = False
            self._cost = max(self._cost, WATCH_S)
            seats = self._take_seats(len(self._inbox))
        for seat in seats:
            seat.lock.release()
        self.begin()

    # -- starting -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Run the worker's loop."""
        spawn(f"{self._name}-loop", self._have_loop)

    def _have_loop(self) -> None:
        self._inside.job = True
        if not self._work():
            # The loop was given to another thread while this one ran a job: it is one of many now.
            self._serve()

    def start(self, jobs: Iterable[Any]) -> bool:
        """Start ``jobs``. False: the caller's turn is over, another thread has the worker's loop."""
        self._inbox.extend(jobs)
        size = self._size()
        if size == 1 or self._cost < QUICK_S:
            return self._run_inline(watched=size > 1)
        self._wake_threads()
        return True

    def hand_over(self, jobs: Iterable[Any]) -> None:
        """Start ``jobs`` from wherever, in another thread or after the caller's own job."""
        self._inbox.extend(jobs)
        self._wake_threads()

    def _wake_threads(self) -> None:
        with self._mutex:
            seats = self._take_seats(len(self._inbox))
        for seat in seats:
            seat.lock.release()

    def _take_seats(self, wanted: int) -> list[_Seat]:
        """Threads to wake for ``wanted`` jobs, after starting new ones where there are too few. Under the lock."""
        seats = [self._idle.pop() for _ in range(min(wanted, len(self._idle)))]
        for _ in range(min(wanted - len(seats), self._size() - self._threads)):
            self._threads += 1
            spawn(f"{self._name}-job", self._serve)
        return seats

    def _run_inline(self, watched: bool) -> bool:
        inbox, process = self._inbox, self._process
        turn = self._turn
        self._inline = True
        if watched and not self._watched:
            self._watched = True
            self._idle_ticks = 0
            self._call_watcher()
        try:
            while turn == self._turn:
                try:
                    job = inbox.popleft()
                except IndexError:
                    break
                self._begun += 1
                process(job)
        finally:
            with self._mutex:
                mine = turn == self._turn
                if mine:
                    self._inline = False
                else:
                    self._threads += 1
        return mine

    def _serve(self) -> None:
        """Run jobs until the crew is closed."""
        inbox, process = self._inbox, self._process
        seat = _Seat()
        self._inside.job = True
        while True:
            try:
                job = inbox.popleft()
            except IndexError:
                with self._mutex:
                    if self._closed or self._threads > self._size():
                        self._threads -= 1
                        return
                    if inbox:
                        continue
                    self._idle.append(seat)
                seat.lock.acquire()
                continue
            try:
                process(job)
            except Exception:  # a fault of ours must not cost the worker a thread
                LOGGER.exception("a job's outcome was lost")

    def take_unstarted(self) -> list[Any]:
        """Jobs that were handed over and not started; they will not be."""
        jobs = []
        while True:
            try:
                jobs.append(self._inbox.popleft())
            except IndexError:
                return jobs

    def inside(self) -> bool:
        """Whether the caller runs a job, or has the worker's loop."""
        return getattr(self._inside, "job", False)

    def cancelled(self, error: BaseException) -> bool:
        """Whether ``error`` ended a job from outside: a thread cannot be cancelled."""
        return False

    # -- calling ------------------------------------------------------------------------------------------------------

    def call(self, arguments: tuple[Any, ...]) -> Any:
        """Call the processor and return what it returns."""
        started = time.perf_counter()
        result = self._processor(*arguments)
        if self._is_async or hasattr(result, "__await__"):
            result = self._finish(result)
        spent = time.perf_counter() - started
        # Down quickly, up slowly: threads that compete for the interpreter make quick jobs look slow.
        cost = self._cost
        self._cost = cost + (spent - cost) * (0.25 if spent < cost else 0.125)
        return result

    def invoke(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call another function of the user's and return what it returns."""
        result = function(*arguments)
        return self._finish(result) if hasattr(result, "__await__") else result

    def _finish(self, awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(_await(awaitable), self._event_loop()).result()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """The loop, in a thread of its own, on which asynchronous processors run."""
        with self._mutex:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                spawn(f"{self._name}-asyncio", _run_loop, self._loop)
            return self._loop

    def close(self, force: bool) -> None:
        """End. Threads that run a job end after it."""
        with self._mutex:
            self._closed = True
            seats, self._idle = self._idle, []
            loop, self._loop = self._loop, None
        for seat in seats:
            seat.lock.release()
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)


def _nobody() -> None:
    """Nobody watches yet."""


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
