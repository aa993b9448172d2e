"""The read side: what the core asks for at start, and what it no longer holds in memory. Safe beside commits from other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import apsw

from bunqueue_core.model.errors import JournalError
from bunqueue_core.storage.changes import (
    JOB_COLUMNS,
    PLAIN_COLUMNS,
    REST_COLUMNS,
    REST_DEFAULTS,
    DlqRow,
    QueueRow,
    Table,
)
from bunqueue_core.storage.journal import StoredJob
from bunqueue_sqlite.errors import UNSTORABLE, journal_error
from bunqueue_sqlite.schema import INCOMING_COLUMNS, INCOMING_TABLE, PENDING, QUEUE_TABLE
from bunqueue_sqlite.statements import Bound, Planner, Rows

_PLAIN: Final = len(PLAIN_COLUMNS)
_COLUMNS: Final = ",".join(JOB_COLUMNS)

# The order is made from the keys alone, which stand in the index; the rows, with their payloads, are then read one by one in that
# order. Sorting whole rows is slower and holds all payloads in memory. CROSS JOIN fixes which side leads. The last column is null
# where every column behind the plain ones has its default: of most rows these 30 values are not even fetched.
_ALL_DEFAULT: Final = " AND ".join(
    f"jobs.{name} IS NULL" if default is None else f"jobs.{name}={default}"
    for name, default in sorted(REST_COLUMNS, key=lambda column: column[0] not in ("max_attempts", "timeline"))
)
LOAD_PENDING: Final = (
    f"WITH sorted AS MATERIALIZED(SELECT rowid AS row FROM jobs INDEXED BY idx_jobs_pending WHERE {PENDING} "
    "ORDER BY priority DESC,run_at,id) "
    f"SELECT {','.join(f'jobs.{name}' for name in PLAIN_COLUMNS)},CASE WHEN {_ALL_DEFAULT} THEN NULL ELSE jobs.rowid END "
    "FROM sorted CROSS JOIN jobs ON jobs.rowid=sorted.row"
)
_REST_OF_ROWS: Final = Rows(
    f"SELECT rowid,{','.join(name for name, _ in REST_COLUMNS)} FROM jobs WHERE rowid IN(", "?", ")"
)

# What else is read of `jobs` leaves out jobs that were added anew and have not been moved yet: they wait, whatever it says.
_NOT_ANEW: Final = f"id NOT IN(SELECT id FROM {INCOMING_TABLE})"

# The same where there may be small adds that have not been moved yet: each counts instead of the row that `jobs` has. Theirs is
# the last column as a negative place.
_EITHER: Final = ",".join(f"CASE WHEN row IS NULL THEN small.{name} ELSE jobs.{name} END" for name in PLAIN_COLUMNS)
LOAD_ALL_PENDING: Final = (
    "WITH sorted AS MATERIALIZED("
    f"SELECT rowid AS row,NULL AS at,priority,run_at,id FROM jobs INDEXED BY idx_jobs_pending WHERE {PENDING} "
    f"AND {_NOT_ANEW} UNION ALL SELECT NULL,max(place),priority,run_at,id FROM {INCOMING_TABLE} GROUP BY id "
    "ORDER BY priority DESC,run_at,id) "
    f"SELECT {_EITHER},CASE WHEN row IS NULL THEN CASE WHEN small.extended_options IS NULL THEN NULL ELSE -at END "
    f"WHEN {_ALL_DEFAULT} THEN NULL ELSE row END "
    f"FROM sorted LEFT JOIN jobs ON jobs.rowid=row LEFT JOIN {INCOMING_TABLE} AS small ON small.place=at"
)
_REST_AS_STORED: Final = ",".join(
    name if name in INCOMING_COLUMNS else "NULL" if default is None else str(default) for name, default in REST_COLUMNS
)
_REST_OF_PLACES: Final = Rows(f"SELECT -place,{_REST_AS_STORED} FROM {INCOMING_TABLE} WHERE -place IN(", "?", ")")

LOAD_ACTIVE: Final = f"SELECT {_COLUMNS} FROM jobs WHERE state='active' AND {_NOT_ANEW} ORDER BY started_at LIMIT ?"
LOAD_COMPLETED: Final = (
    f"SELECT {_COLUMNS} FROM jobs WHERE state='completed' AND {_NOT_ANEW} ORDER BY completed_at DESC,id DESC LIMIT ?"
)
LOAD_DLQ: Final = "SELECT id,job_id,queue,entry,entered_at FROM dlq ORDER BY entered_at,id"
COMPLETED_COUNTS: Final = "SELECT queue,count(*) FROM jobs WHERE state='completed' GROUP BY queue"
COMPLETED_COUNTS_BUT_ANEW: Final = (
    f"SELECT queue,count(*) FROM jobs WHERE state='completed' AND {_NOT_ANEW} GROUP BY queue"
)
READ_COMPLETED: Final = (
    f"SELECT {_COLUMNS} FROM jobs WHERE queue=? AND state='completed' AND {_NOT_ANEW} "
    "ORDER BY created_at,id LIMIT ? OFFSET ?"
)
READ_COMPLETED_DESCENDING: Final = (
    f"SELECT {_COLUMNS} FROM jobs WHERE queue=? AND state='completed' AND {_NOT_ANEW} "
    "ORDER BY created_at DESC,id DESC LIMIT ? OFFSET ?"
)
COMPLETED_BEFORE: Final = (
    "SELECT id,queue FROM jobs INDEXED BY idx_jobs_completed WHERE state='completed' AND completed_at<=? "
    f"AND {_NOT_ANEW} ORDER BY completed_at,id LIMIT ?"
)
COMPLETED_BEFORE_IN_QUEUE: Final = (
    "SELECT id,queue FROM jobs INDEXED BY idx_jobs_completed WHERE state='completed' AND completed_at<=? AND queue=? "
    f"AND {_NOT_ANEW} ORDER BY completed_at,id LIMIT ?"
)
READ_JOBS: Final = Rows(f"SELECT {_COLUMNS} FROM jobs WHERE id IN(", "?", ")")

# The same where small adds may not have been moved yet: theirs is what counts, and of several the last. One statement, so that
# none is missed that is being moved. It is not sorted by place: SQLite would sort whole rows, with their payloads.
READ_ALL_JOBS: Final = Rows(
    "WITH wanted(id)AS(VALUES",
    "(?)",
    f")SELECT 0,{_COLUMNS} FROM jobs WHERE id IN wanted UNION ALL "
    f"SELECT place,{','.join(PLAIN_COLUMNS)},{_REST_AS_STORED} FROM {INCOMING_TABLE} WHERE id IN wanted",
)
_PLACE: Final = itemgetter(0)
READ_RESULTS: Final = Rows("SELECT job_id,result FROM job_results WHERE job_id IN(", "?", ")")


class Reader:
    """Reads through connections of its own.

    Args:
        connect: opens a connection that can only read.
        planner: the statements of described tables.
    """

    __slots__ = ("_connect", "_connection", "_lock", "_planner", "_streams")

    def __init__(self, connect: Callable[[], apsw.Connection], planner: Planner) -> None:
        self._connect = connect
        self._planner = planner
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = connect()
        self._streams: set[apsw.Connection] = set()

    def close(self) -> None:
        """Close every connection, those of unfinished loads included. Idempotent."""
        with self._lock:
            connection, self._connection = self._connection, None
            streams, self._streams = self._streams, set()
        for each in (*streams, *(() if connection is None else (connection,))):
            each.interrupt()
            each.close()

    # -- at start -----------------------------------------------------------------------------------------------------

    def load_queues(self) -> list[QueueRow]:
        return [QueueRow._make(row) for row in self.load_table(QUEUE_TABLE)]

    def load_active(self, limit: int) -> list[StoredJob]:
        return _jobs(self._rows(LOAD_ACTIVE, (limit,)))

    def load_pending(self, batch_size: int, *, incoming: bool) -> Iterator[list[StoredJob]]:
        """Waiting jobs in batches; ``incoming`` where small adds may be among them."""
        for rows, connection in self._stream(LOAD_ALL_PENDING if incoming else LOAD_PENDING, (), batch_size):
            yield _waiting(rows, connection)

    def load_dlq(self, batch_size: int) -> Iterator[list[DlqRow]]:
        for rows, _ in self._stream(LOAD_DLQ, (), batch_size):
            yield [DlqRow._make(row) for row in rows]

    def load_completed(self, limit: int, batch_size: int) -> Iterator[list[StoredJob]]:
        for rows, _ in self._stream(LOAD_COMPLETED, (limit,), batch_size):
            yield _jobs(rows)

    def completed_counts(self, *, incoming: bool) -> dict[str, int]:
        """Completed jobs by queue; ``incoming`` where some of them may have been added anew."""
        return dict(self._rows(COMPLETED_COUNTS_BUT_ANEW if incoming else COMPLETED_COUNTS, ()))

    def load_table(self, table: Table) -> list[tuple[Any, ...]]:
        return self._rows(self._planner.of(table).load, ())

    # -- later --------------------------------------------------------------------------------------------------------

    def read_jobs(self, ids: Sequence[str], *, incoming: bool) -> dict[str, StoredJob]:
        """Stored jobs by id; ``incoming`` where small adds may be among them."""
        known = list(filter(_storable, ids))
        if incoming:
            rows = self._all(READ_ALL_JOBS.bind_values(known))
            rows.sort(key=_PLACE)
            return {job.id: job for job in _jobs([row[1:] for row in rows])}
        return {job.id: job for job in _jobs(self._all(READ_JOBS.bind_values(known)))}

    def read_results(self, ids: Sequence[str]) -> dict[str, bytes]:
        return dict(self._all(READ_RESULTS.bind_values(list(filter(_storable, ids)))))

    def read_completed(self, queue: str, offset: int, limit: int, ascending: bool) -> list[StoredJob]:
        if not _storable(queue):
            return []
        return _jobs(self._rows(READ_COMPLETED if ascending else READ_COMPLETED_DESCENDING, (queue, limit, offset)))

    def completed_before(self, queue: str | None, before: int, limit: int) -> list[tuple[str, str]]:
        if queue is None:
            return self._rows(COMPLETED_BEFORE, (before, limit))
        if not _storable(queue):
            return []
        return self._rows(COMPLETED_BEFORE_IN_QUEUE, (before, queue, limit))

    def read_rows(self, table: Table, keys: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        known = [key for key in keys if all(_storable(part) for part in key)]
        return {row[: table.key]: row for row in self._all(self._planner.of(table).read.bind(known))}

    # -- how ----------------------------------------------------------------------------------------------------------

    def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """All rows of one statement. They are fetched whole: a statement left open would hold the log's snapshot."""
        return self._all(((sql, values),))

    def _all(self, statements: Iterator[Bound] | Sequence[Bound]) -> list[Any]:
        with self._lock:
            connection = self._connection
            if connection is None:
                raise JournalError("the journal is closed")
            rows: list[Any] = []
            try:
                for sql, values in statements:
                    found = connection.execute(sql, values).fetchall()
                    rows = rows + found if rows else found
            except (apsw.Error, *UNSTORABLE) as error:
                raise journal_error(error, "read", system_errno=connection.system_errno) from error
            return rows

    def _stream(self, sql: str, values: Sequence[Any], batch_size: int) -> Iterator[tuple[list[Any], apsw.Connection]]:
        """The rows of one statement in batches, all from one snapshot, on a connection of its own.

        The connection sees that snapshot until the end, also behind the last row.
        """
        with self._lock:
            if self._connection is None:
                raise JournalError("the journal is closed")
            try:
                connection = self._connect()
            except apsw.Error as error:
                raise journal_error(error, "read") from error
            self._streams.add(connection)
        try:
            connection.execute("BEGIN")
            cursor = connection.execute(sql, values)
            while batch := list(islice(cursor, batch_size)):
                yield batch, connection
        except apsw.Error as error:
            raise journal_error(error, "read") from error
        finally:
            with self._lock:
                self._streams.discard(connection)
            connection.close()


def _jobs(rows: list[tuple[Any, ...]]) -> list[StoredJob]:
    make = StoredJob._make
    return [make((*row[:_PLAIN], row[_PLAIN:])) for row in rows]


def _waiting(rows: list[tuple[Any, ...]], connection: apsw.Connection) -> list[StoredJob]:
    """Rows of :data:`LOAD_PENDING` or :data:`LOAD_ALL_PENDING` with what they leave out."""
    special = [row[_PLAIN] for row in rows if row[_PLAIN] is not None]
    rest: dict[int | None, tuple[Any, ...]] = {None: REST_DEFAULTS}
    for statements, keys in (
        (_REST_OF_ROWS, [key for key in special if key > 0]),
        (_REST_OF_PLACES, [key for key in special if key < 0]),
    ):
        for sql, values in statements.bind_values(keys):
            for row in connection.execute(sql, values):
                rest[row[0]] = row[1:]
    new = tuple.__new__
    return [
        new(StoredJob, (id, queue, name, data, priority, created_at, run_at, state, rest[row]))
        for id, queue, name, data, priority, created_at, run_at, state, row in rows
    ]


def _storable(key: Any) -> bool:
    """False for text with an unpaired surrogate: it has no UTF-8 form, so that no row can have it."""
    if not isinstance(key, str) or key.isascii():
        return True
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
