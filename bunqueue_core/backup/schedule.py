"""When backups are made, and the thread that makes them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from bunqueue_core.backup.service import Backups

#: Time from the start of the schedule to the first backup, ms.
FIRST_RUN_MS: Final = 60_000

#: No wait is longer; it is simply begun again. ms
_LONGEST_WAIT_MS: Final = 3_600_000

#: What the thread's priority is lowered by, where a thread has one of its own (Linux): compressing gives way to serving.
_NICENESS: Final = 10

Work = Literal["backup", "verify"]


class Agenda:
    """Which work is due when: the first backup a minute after the start, then one every interval, counted from the start.

    What is missed while other work is under way is not made up for. Pure: times are handed in, all of one clock.

    Args:
        started: when the schedule started, ms.
        interval: time from one backup to the next, ms.
        verify_interval: time from one verification to the next, ms; the first follows the first backup. None: no verifications.
    """

    def __init__(self, started: int, interval: int, verify_interval: int | None = None) -> None:
        first = started + FIRST_RUN_MS
        self._started = started
        self._every: dict[Work, int] = {"backup": interval}
        self._next: dict[Work, int] = {"backup": first}
        if verify_interval is not None:
            self._every["verify"] = verify_interval
            self._next["verify"] = first

    @property
    def next_at(self) -> int:
        """When something is due next."""
        return min(self._next.values())

    def take(self, now: int) -> list[Work]:
        """What is due at ``now``, a backup before a verification. It is due again only at its next time after ``now``."""
        due: list[Work] = [work for work, at in self._next.items() if at <= now]
        for work in due:
            every = self._every[work]
            self._next[work] = self._started + ((now - self._started) // every + 1) * every
        return due


class BackupThread:
    """Makes backups on a schedule, on a thread of its own.

    Args:
        backups: what makes them.
        interval: ms from one backup to the next.
        verify_interval: ms from one verification to the next; None: none.
        clock: a monotonic clock, ms.
    """

    def __init__(
        self,
        backups: Backups,
        interval: int,
        verify_interval: int | None = None,
        *,
        clock: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._backups = backups
        self._interval = interval
        self._verify_interval = verify_interval
        self._clock = clock
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping: threading.Event | None = None

    @property
    def running(self) -> bool:
        """Whether the schedule runs."""
        return self._stopping is not None

    def start(self) -> None:
        """Begin. Does nothing while it runs."""
        with self._condition:
            if self._stopping is not None:
                return
            stopping = self._stopping = threading.Event()
            agenda = Agenda(self._clock(), self._interval, self._verify_interval)
            self._thread = threading.Thread(
                target=self._run, args=(agenda, stopping), name="bunqueue-backup", daemon=True
            )
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing any more. What runs goes on, unless the backups are cancelled. Idempotent."""
        with self._condition:
            if self._stopping is not None:
                self._stopping.set()
                self._stopping = None
            self._condition.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of what runs. False if it still does after ``timeout_s`` seconds."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def wake(self) -> None:
        """Look at the clock again: for those who set it."""
        with self._condition:
            self._condition.notify_all()

    def _run(self, agenda: Agenda, stopping: threading.Event) -> None:
        _lower_priority()
        while True:
            with self._condition:
                while not stopping.is_set() and (wait := agenda.next_at - self._clock()) > 0:
                    self._condition.wait(min(wait, _LONGEST_WAIT_MS) / 1000)
                if stopping.is_set():
                    return
                due = agenda.take(self._clock())
            for work in due:
                if stopping.is_set():
                    return
                if work == "backup":
                    self._backups.run()
                else:
                    self._backups.verify()


def _lower_priority() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


__all__ = ["FIRST_RUN_MS", "Agenda", "BackupThread", "Work"]
