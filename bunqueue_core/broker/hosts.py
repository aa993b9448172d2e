"""Who does a local broker's work between calls: deadlines, buffered flushes, commits that callers wait for.

In a server that is the event loop itself, between its reads, where nothing contends with it. An embedded broker has one thread
of its own. In tests nobody does: the test calls ``run_due``.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

#: No timer sleeps longer than this; it is simply armed again. So a clock that is set forward delays nothing by more. seconds
_LONGEST_SLEEP_S = 5.0

#: While each round of the event loop brings more who wait for a commit, it is put off by a round, at most this long. A commit
#: costs system calls however much it holds: under load one in eight is saved; a lone command waits for one empty round. seconds
_GATHER_S = 0.001


class Host(Protocol):
    """Runs ``work`` in time. All methods may be called under the engine's lock and from any thread."""

    def start(self, work: Callable[[], None], clock: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Begin; ``work`` is what to call, ``waiting`` tells how many answers wait for the next commit."""

    def soon(self) -> None:
        """Have the work done as soon as possible."""

    def at(self, when: int) -> None:
        """Have the work done at ``when`` (epoch ms) at the latest; an earlier time that was asked for before still holds."""

    def beside(self) -> bool:
        """Whether the work is done by another thread than the calling one."""

    def stop(self) -> None:
        """End. Does not wait when called from the work itself."""


class ManualHost:
    """Does nothing by itself."""

    def start(self, work: Callable[[], None], clock: Callable[[], int], waiting: Callable[[], int]) -> None:
        pass

    def soon(self) -> None:
        pass

    def at(self, when: int) -> None:
        pass

    def beside(self) -> bool:
        return False

    def stop(self) -> None:
        pass


class LoopHost:
    """Works on the event loop that is running when the broker starts."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._thread = 0
        self._gathered = 0
        self._gathering_until = 0.0

    def start(self, work: Callable[[], None], clock: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._clock = clock
        self._waiting = waiting
        self._thread = threading.get_ident()

    def soon(self) -> None:
        if self._soon or self._loop is None:
            return
        self._soon = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._run_soon)
        else:
            self._loop.call_soon_threadsafe(self._run_soon)

    def _run_soon(self) -> None:
        loop = self._loop
        if loop is None:
            return
        waiting = self._waiting()
        if waiting > self._gathered:
            now = loop.time()
            if not self._gathered:
                self._gathering_until = now + _GATHER_S
            if now < self._gathering_until:
                self._gathered = waiting
                loop.call_soon(self._run_soon)
                return
        self._gathered = 0
        self._soon = False
        self._work()

    def at(self, when: int) -> None:
        if self._loop is None or (self._timer is not None and self._timer_at <= when):
            return
        if threading.get_ident() == self._thread:
            self._arm(when)
        else:
            self._loop.call_soon_threadsafe(self._arm, when)

    def _arm(self, when: int) -> None:
        if self._loop is None or (self._timer is not None and self._timer_at <= when):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        delay = min(_LONGEST_SLEEP_S, max(0, when - self._clock()) / 1000)
        self._timer = self._loop.call_later(delay, self._run_timer)

    def _run_timer(self) -> None:
        self._timer = None
        if self._loop is not None:
            self._work()

    def beside(self) -> bool:
        return threading.get_ident() != self._thread

    def stop(self) -> None:
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ThreadHost:
    """Works on one daemon thread of its own, started with the broker and ended by ``stop``; a fork's child has none."""

    def __init__(self, name: str = "bunqueue") -> None:
        self._name = name
        self._condition = threading.Condition(threading.Lock())
        self._wake_at: int | None = None  #: epoch ms: what was asked for, to tell what is earlier
        self._due = 0.0  #: the same on a clock that is never set, seconds
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._pid = 0

    def start(self, work: Callable[[], None], clock: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._work = work
        self._clock = clock
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def soon(self) -> None:
        self.at(0)

    def at(self, when: int) -> None:
        wake_at = self._wake_at
        if wake_at is not None and wake_at <= when:
            return
        with self._condition:
            if self._wake_at is None or self._wake_at > when:
                self._wake_at = when
                self._due = time.monotonic() + (when - self._clock()) / 1000 if when else 0.0
                self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopped:
                    if self._wake_at is None:
                        self._condition.wait()
                        continue
                    delay = self._due - time.monotonic()
                    if delay <= 0 or self._wake_at <= self._clock():
                        break
                    self._condition.wait(min(_LONGEST_SLEEP_S, delay))
                if self._stopped:
                    return
                self._wake_at = None
            self._work()

    def beside(self) -> bool:
        thread = self._thread
        return (
            thread is not None
            and thread is not threading.current_thread()
            and not self._stopped
            and self._pid == os.getpid()
        )

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify()
        if self._thread is not None and self._thread is not threading.current_thread() and self._pid == os.getpid():
            self._thread.join()
