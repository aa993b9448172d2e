"""Small adds are committed to a table of their own first, and moved on to ``jobs`` many at a time.

A row of ``jobs`` is also in four index trees, so that a commit of a single job writes five pages to the log, each with two calls
of the operating system. A row of ``jobs_incoming`` is in no index and goes to the end of its table: one page. A job that is added
alone and durably costs half of it, the move included (commits of one plain row with 150 bytes of data, a processor alone: 33 µs
instead of 65).

Both tables are of one database, so that everything a commit promises holds as before. What is in ``jobs_incoming`` comes before
whatever is committed later: the next commit of another kind moves it within its own transaction, a commit that finds
:data:`MOST_ROWS` there moves them, a thread does when nothing has come for :data:`QUIET_S`, and so does the next start. What is
read never waits for that: it takes both tables together, so that a full disk keeps nobody from starting and reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from bunqueue_core.storage.changes import PLAIN_COLUMNS, REST_DEFAULTS, ChangeSet, JobRow
from bunqueue_sqlite.schema import INCOMING_COLUMNS, INCOMING_TABLE, MOVE_INCOMING

#: Most rows of a commit that goes here. With 8 rows it costs half of the direct way, with 16 as much, whose pages then serve many
#: rows, too.
SMALL_ROWS: Final = 8

#: Most bytes of data and options of such a commit: longer ones would fill pages of both tables.
SMALL_BYTES: Final = 4_000

#: Rows that are moved at once at the latest; the commit that does it takes a millisecond.
MOST_ROWS: Final = 128

#: Time without a commit after which a thread moves what there is, s.
QUIET_S: Final = 0.05

#: Time after which it tries again what failed, s.
RETRY_S: Final = 1.0

_COLUMNS: Final = ",".join(INCOMING_COLUMNS)
_ROW: Final = f"({','.join('?' * len(INCOMING_COLUMNS))})"
# OR REPLACE: what is NULL and may not be gets its default, as it does in `jobs`.
_TEXTS: Final = tuple(
    f"INSERT OR REPLACE INTO {INCOMING_TABLE}({_COLUMNS})VALUES{','.join([_ROW] * n)}" for n in range(SMALL_ROWS + 1)
)
_PLAIN: Final = len(PLAIN_COLUMNS)
_BUT_LAST: Final = REST_DEFAULTS[:-1]
_NOT_WAITING: Final = ("active", "completed")

Bound = tuple[str, tuple[object, ...]]


def incoming(changes: ChangeSet) -> Bound | None:
    """The statement that commits ``changes`` to the table of small adds; None if they are not such.

    They are a few rows of jobs that wait, which have nothing but the plain columns and, at most, the last of the others, as durable
    jobs have. So what reads jobs that run or have ended need not look for them here, only leave out what is.
    """
    put = changes.put
    if (
        not 0 < len(put) <= SMALL_ROWS
        or changes.moved
        or changes.removed
        or changes.results
        or changes.dlq_put
        or changes.dlq_removed
        or changes.tables
        or changes.queues
        or changes.queues_removed
        or changes.obliterated
    ):
        return None
    if len(put) == 1:
        values = _values(put[0])
        return (_TEXTS[1], values) if values is not None and _bytes(put[0]) <= SMALL_BYTES else None
    if sum(map(_bytes, put)) > SMALL_BYTES:
        return None
    all_values: list[object] = []
    for row in put:
        values = _values(row)
        if values is None:
            return None
        all_values += values
    return _TEXTS[len(put)], tuple(all_values)


def _bytes(row: JobRow) -> int:
    return len(row.data or b"") + (len(row.rest[-1] or b"") if row.rest is not None else 0)


def _values(row: JobRow) -> tuple[object, ...] | None:
    if row.state in _NOT_WAITING:
        return None
    rest = row.rest
    if rest is None:
        return row  # its ninth value is the None that the column behind the plain ones has then
    return (*row[:_PLAIN], rest[-1]) if rest[:-1] == _BUT_LAST else None


assert JobRow._fields == (*PLAIN_COLUMNS, "rest"), "a plain row is bound as it is"


def copy_into(source: apsw.Connection, path: Path) -> None:
    """Write a compact copy of what ``source`` sees to ``path``, in which small adds are moved, as an orderly stop leaves a file.

    Raises:
        apsw.Error: it cannot be read or written; a part of the copy may be left.
    """
    source.execute("VACUUM INTO ?", (str(path),))
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        if (
            connection.table_exists(None, INCOMING_TABLE)
            and connection.execute(f"SELECT 1 FROM {INCOMING_TABLE} LIMIT 1").fetchall()
        ):
            # A copy that is interrupted here is no good, with or without a way back, which would leave a file beside it.
            connection.execute("PRAGMA journal_mode = MEMORY").fetchall()
            with connection:
                for statement in MOVE_INCOMING:
                    connection.execute(statement)
    finally:
        connection.close()


class Quiet:
    """A thread that acts when there is something to move and nothing has been committed for a while.

    Args:
        commits: number of commits so far.
        move: moves what there is; False if that failed, and is to be tried again.
        retry_s: time until then, s.
    """

    def __init__(self, commits: Callable[[], int], move: Callable[[], bool], *, retry_s: float = RETRY_S) -> None:
        self._commits = commits
        self._move = move
        self._retry_s = retry_s
        self._there = threading.Event()
        self._stop = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """There is something to move. Called by whoever commits, one at a time; cheap where that is known already.

        A system that has no thread to give, or is shutting down, is no error: commits and the end move it, too.
        """
        if self._there.is_set():
            return
        if self._thread is None:
            with self._starting:
                if self._stop.is_set():
                    return
                thread = threading.Thread(target=self._run, name="bunqueue-incoming", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return
                self._thread = thread
        self._there.set()

    def stop(self) -> None:
        """End the thread. Idempotent; none begins any more."""
        with self._starting:
            self._stop.set()
            thread = self._thread
        self._there.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while self._there.wait():
            self._there.clear()
            seen = -1
            while seen != (seen := self._commits()):
                if self._stop.wait(QUIET_S):
                    return
            while not self._move():
                if self._stop.wait(self._retry_s):
                    return
