"""The write-ahead log beside the database is kept small, without making anybody wait for it.

Normally every :data:`CHECKPOINT_PAGES` pages a commit carries the log over into the database itself, which takes a few
milliseconds. While somebody reads for long (a backup, a person with the ``sqlite3`` shell) that is not possible and the log
grows; the commit that comes after such a reader would have to carry over all of it: 1 s and more for a gigabyte, during which
nothing else happens. So a log of more than :data:`LARGE_LOG` is left to a thread, which carries it over beside the commits and
then cuts it. The same thread does so when nothing has been written for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import apsw

from bunqueue_sqlite.errors import journal_error

#: Pages of the log after which a commit carries them over into the file. 2,000 pages (8 MB): half the checkpoints of the default
#: at a pause of 5 ms; from 4,000 on the pauses grow (10 ms, 20 ms at 8,000) and the rate of commits does not.
CHECKPOINT_PAGES: Final = 2_000

#: Size to which the log is cut back when it starts over, bytes: well above what it needs between checkpoints, so that it is not
#: cut and grown in turns, and small enough to get rid of what a long reader made it grow to.
LOG_SIZE_LIMIT: Final = 32 * 1024 * 1024

#: Size above which commits leave the log alone, bytes.
LARGE_LOG: Final = 48 * 1024 * 1024

_LARGE: Final = "SQLite log is large: the database is being read for long"

#: Time between two looks at a large log, s.
_RETRY_S: Final = 1.0

#: Time between two tries to find nobody at work on the database, s, and their number.
_MOMENT_S: Final = 0.01
_MOMENTS: Final = 30


class Checkpoints:
    """Keeps the log of one open database small.

    Args:
        connect: opens a connection that can write, for the thread.
        size: gives the size of the log, bytes.
        automatic: sets after how many pages commits carry the log over; 0 is never.
        log: told when the log becomes large, and about errors.
    """

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        size: Callable[[], int],
        automatic: Callable[[int], None],
        log: Callable[..., None],
    ) -> None:
        self._connect = connect
        self._size = size
        self._automatic = automatic
        self._log = log
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._large = False
        self._told: str | None = None

    def look(self) -> None:
        """Called now and then while commits go on: take a log that has become large from them."""
        if self._large or self._size() <= LARGE_LOG:
            return
        with self._lock:
            self._large = True
            self._automatic(0)
        self._begin()

    def now(self) -> None:
        """Nothing has been written for a while: carry everything over and cut the log, beside what else happens."""
        self._begin()

    def stop(self) -> None:
        """End the thread. Idempotent; nothing begins any more."""
        with self._lock:
            self._stop.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the thread has nothing to do. False if it still has after ``timeout_s`` seconds."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="bunqueue-checkpoint", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        self._told = None
        try:
            connection = self._connect()
            try:
                # Until a connection has read, it does not know of the log, and a checkpoint does nothing.
                connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
                self._keep_small(connection)
            finally:
                connection.close()
        except apsw.Error as error:
            self._problem(error)
        if self._told == _LARGE and self._size() <= LARGE_LOG:
            self._log("info", "SQLite log is small again", bytes=self._size())
        with self._lock:
            self._thread = None
            if self._large and not self._stop.is_set():
                self._automatic(CHECKPOINT_PAGES)
            self._large = False

    def _keep_small(self, connection: apsw.Connection) -> None:
        while not (self._carry_over(connection) and self._cut(connection)):
            if self._size() <= LARGE_LOG:
                return  # somebody reads, and nothing presses: commits and the next pause see to it
            self._tell(_LARGE, bytes=self._size())
            if self._stop.wait(_RETRY_S):
                return

    def _carry_over(self, connection: apsw.Connection) -> bool:
        """Copy what no reader needs any more into the database, beside commits. True unless a reader keeps most of it."""
        try:
            pages, done = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            return False  # a commit is at it
        except apsw.Error as error:
            self._problem(error)
            return False
        return pages - done <= CHECKPOINT_PAGES

    def _cut(self, connection: apsw.Connection) -> bool:
        """Copy the little that is left and empty the log, in a moment in which nobody reads or writes."""
        for _ in range(_MOMENTS):
            try:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                return True
            except apsw.BusyError:
                if self._stop.wait(_MOMENT_S):
                    return False
            except apsw.Error as error:
                self._problem(error)
                return False
        return False

    def _problem(self, error: apsw.Error) -> None:
        # Nothing is lost: what is not carried over stays in the log, and is tried again.
        self._tell("SQLite log could not be carried over", error=str(journal_error(error, "checkpoint")))

    def _tell(self, message: str, **fields: Any) -> None:
        """Warn, but not of the same thing every second."""
        if message != self._told:
            self._told = message
            self._log("warn", message, **fields)


__all__ = ["CHECKPOINT_PAGES", "LARGE_LOG", "LOG_SIZE_LIMIT", "Checkpoints"]
