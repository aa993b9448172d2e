"""The journal: change sets into one LMDB file, and back."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import lmdb
import msgpack

from bunqueue_core.model.errors import CapabilityError, JournalError
from bunqueue_core.storage.changes import REST_DEFAULTS, ChangeSet, DlqRow, JobRow, QueueRow, Table
from bunqueue_core.storage.journal import StoredJob
from bunqueue_lmdb.keys import (
    ACTIVE,
    COMPLETED_AT,
    DONE,
    HISTORY,
    PENDING,
    STARTED_AT,
    TIMELINE,
    digest,
    number,
    places,
)
from bunqueue_lmdb.settings import LmdbStorage

#: Named databases in the file: jobs and their indexes, results, dead letters, controls of queues, rows of further tables.
DATABASES = ("jobs", PENDING, ACTIVE, DONE, HISTORY, "results", "dead", "controls", "tables")

MB = 1024 * 1024


class LmdbJournal:
    """A journal in one LMDB file.

    Args:
        settings: which file, and how large it may grow.
    """

    def __init__(self, settings: LmdbStorage) -> None:
        self._settings = settings
        self._env: lmdb.Environment | None = None
        self._owner: IO[bytes] | None = None
        self._databases: dict[str, Any] = {}

    def open(self) -> None:
        """Take the file for this process alone, and open or create it."""
        if self._env is not None:
            raise JournalError("the journal is open already")
        path = self._settings.file
        try:
            self._owner = path.with_name(path.name + ".owner").open("wb")
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = self._settings.map_size_mb * MB
            env = lmdb.open(str(path), subdir=False, map_size=size, max_dbs=len(DATABASES))
        except (OSError, lmdb.Error) as error:
            self._release()
            raise JournalError(f"cannot open: {_reason(error)}", busy=isinstance(error, BlockingIOError)) from error
        self._databases = {name: env.open_db(name.encode()) for name in DATABASES}
        self._env = env

    def close(self) -> None:
        """Give the file back. Idempotent."""
        env, self._env = self._env, None
        if env is not None:
            env.close()
        self._release()

    def _release(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()

    @contextlib.contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[lmdb.Transaction]:
        """A transaction: committed when the block ends, undone when it raises."""
        if self._env is None:
            raise JournalError("the journal is closed")
        try:
            with self._env.begin(write=write) as txn:
                yield txn
        except lmdb.Error as error:
            raise JournalError(_reason(error), disk_full=isinstance(error, lmdb.MapFullError)) from error
        except (TypeError, ValueError, OverflowError) as error:
            raise JournalError(f"a value cannot be stored: {_reason(error)}") from error

    # -- write --------------------------------------------------------------------------------------------------------

    def commit(self, changes: ChangeSet) -> None:
        """Apply ``changes`` in one transaction, in the order of their fields."""
        with self._transaction(write=True) as txn:
            for queue in changes.obliterated:
                for job in [job for job in map(_job, self._values(txn, "jobs")) if job.queue == queue]:
                    self._remove(txn, job.id)
            for id in changes.removed:
                self._remove(txn, id)
            for row in changes.put:
                self._put(txn, row, self._stored(txn, digest(row.id)))
            for move in changes.moved:
                old = self._stored(txn, digest(move.id))
                if old is not None:
                    rest = list(old.rest)
                    rest[STARTED_AT], rest[COMPLETED_AT], rest[TIMELINE] = move[2:]
                    self._put(txn, old._replace(state=move.state, rest=tuple(rest)), old)
            for result in changes.results:
                self._set(txn, "results", digest(result.job_id), result.result)
            for letter in changes.dlq_removed:
                self._delete(txn, "dead", number(letter))
            for entry in changes.dlq_put:
                self._set(txn, "dead", number(entry.id), entry)
            for controls in changes.queues:
                self._set(txn, "controls", digest(controls.name), controls)
            for name in changes.queues_removed:
                self._delete(txn, "controls", digest(name))
            for table, removed, put in ((change.table, change.removed, change.put) for change in changes.tables):
                for key in removed:
                    self._delete(txn, "tables", _row_key(table, key))
                for values in put:
                    self._set(txn, "tables", _row_key(table, values[: table.key]), values)

    def _put(self, txn: lmdb.Transaction, job: JobRow | StoredJob, old: StoredJob | None) -> None:
        """Store a job, and move it from its old place in the indexes to its new one."""
        if old is not None:
            self._unplace(txn, old)
        key = digest(job.id)
        self._set(txn, "jobs", key, job)
        for index, place in places(job):
            txn.put(place, key, db=self._databases[index])

    def _remove(self, txn: lmdb.Transaction, id: str) -> None:
        key = digest(id)
        old = self._stored(txn, key)
        if old is not None:
            self._unplace(txn, old)
            self._delete(txn, "jobs", key)
        self._delete(txn, "results", key)

    def _unplace(self, txn: lmdb.Transaction, old: StoredJob) -> None:
        for index, place in places(old):
            self._delete(txn, index, place)

    def _set(self, txn: lmdb.Transaction, database: str, key: bytes, value: Any) -> None:
        txn.put(key, msgpack.packb(value), db=self._databases[database])

    def _delete(self, txn: lmdb.Transaction, database: str, key: bytes) -> None:
        txn.delete(key, db=self._databases[database])

    # -- start --------------------------------------------------------------------------------------------------------

    def load_queues(self) -> list[QueueRow]:
        """All stored controls."""
        with self._transaction() as txn:
            return [QueueRow(*values) for values in self._values(txn, "controls")]

    def load_active(self, limit: int) -> list[StoredJob]:
        """Up to ``limit`` active jobs, by start."""
        with self._transaction() as txn:
            return list(islice(self._jobs(txn, ACTIVE), limit))

    def load_pending(self, batch_size: int) -> Iterator[list[StoredJob]]:
        """Waiting jobs by priority descending, run time, id."""
        with self._transaction() as txn:
            jobs = self._jobs(txn, PENDING)
            while batch := list(islice(jobs, batch_size)):
                yield batch

    def load_dlq(self, batch_size: int) -> Iterator[list[DlqRow]]:
        """Dead letters by time of arrival, then id."""
        with self._transaction() as txn:
            letters = [DlqRow(*values) for values in self._values(txn, "dead")]
        letters.sort(key=lambda letter: (letter.entered_at, letter.id))
        for start in range(0, len(letters), batch_size):
            yield letters[start : start + batch_size]

    def load_completed(self, limit: int, batch_size: int) -> Iterator[list[StoredJob]]:
        """The newest ``limit`` completed jobs, newest first."""
        with self._transaction() as txn:
            jobs = islice(self._jobs(txn, DONE, ascending=False), limit)
            while batch := list(islice(jobs, batch_size)):
                yield batch

    def completed_counts(self) -> dict[str, int]:
        """Number of completed jobs of each queue."""
        counts: dict[str, int] = {}
        with self._transaction() as txn:
            for job in self._jobs(txn, DONE):
                counts[job.queue] = counts.get(job.queue, 0) + 1
        return counts

    def load_table(self, table: Table) -> list[tuple[Any, ...]]:
        """All rows of a further table in its order; as in SQL, null comes first."""
        with self._transaction() as txn:
            rows = [tuple(values) for values in self._values(txn, "tables", _row_key(table))]
        order = [table.column_names.index(name) for name in table.order]
        return sorted(rows, key=lambda row: [(row[at] is not None, row[at]) for at in order])

    # -- read ---------------------------------------------------------------------------------------------------------

    def read_jobs(self, ids: Sequence[str]) -> dict[str, StoredJob]:
        """Stored jobs by id."""
        with self._transaction() as txn:
            found = {id: self._stored(txn, digest(id)) for id in ids}
        return {id: job for id, job in found.items() if job is not None}

    def read_results(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Stored results by job id."""
        with self._transaction() as txn:
            found = {id: txn.get(digest(id), db=self._databases["results"]) for id in ids}
        return {id: msgpack.unpackb(blob) for id, blob in found.items() if blob is not None}

    def read_completed(self, queue: str, offset: int, limit: int, ascending: bool) -> list[StoredJob]:
        """A page of the completed jobs of a queue, by creation time, then id."""
        with self._transaction() as txn:
            jobs = self._jobs(txn, HISTORY, digest(queue, 16), ascending=ascending)
            return list(islice(jobs, offset, offset + limit))

    def completed_before(self, queue: str | None, before: int, limit: int) -> list[tuple[str, str]]:
        """(id, queue) of jobs completed at or before ``before``, oldest first."""
        found: list[tuple[str, str]] = []
        with self._transaction() as txn:
            for job in self._jobs(txn, DONE):
                if len(found) == limit or (job.rest[COMPLETED_AT] or 0) > before:
                    break
                if queue in (None, job.queue):
                    found.append((job.id, job.queue))
        return found

    def read_rows(self, table: Table, keys: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Rows of a further table by key."""
        with self._transaction() as txn:
            found = {key: txn.get(_row_key(table, key), db=self._databases["tables"]) for key in keys}
        return {key: tuple(msgpack.unpackb(blob)) for key, blob in found.items() if blob is not None}

    def _stored(self, txn: lmdb.Transaction, key: bytes) -> StoredJob | None:
        blob = txn.get(key, db=self._databases["jobs"])
        return None if blob is None else _job(msgpack.unpackb(blob))

    def _jobs(
        self, txn: lmdb.Transaction, index: str, prefix: bytes = b"", *, ascending: bool = True
    ) -> Iterator[StoredJob]:
        """The jobs of an index whose key starts with ``prefix``, in the order of the keys or the reverse."""
        for key in self._items(txn, index, prefix, ascending):
            job = self._stored(txn, key)
            assert job is not None, "an index names a job that is not there"
            yield job

    def _values(self, txn: lmdb.Transaction, database: str, prefix: bytes = b"") -> Iterator[list[Any]]:
        return (msgpack.unpackb(value) for value in self._items(txn, database, prefix))

    def _items(self, txn: lmdb.Transaction, database: str, prefix: bytes, ascending: bool = True) -> Iterator[bytes]:
        cursor = txn.cursor(db=self._databases[database])
        if ascending:
            there = cursor.set_range(prefix)
        else:  # one back from the first key after all that start with the prefix
            there = cursor.prev() if prefix and cursor.set_range(prefix + b"\xff" * 9) else cursor.last()
        while there and bytes(cursor.key()).startswith(prefix):
            yield bytes(cursor.value())
            there = cursor.next() if ascending else cursor.prev()

    # -- optional -----------------------------------------------------------------------------------------------------

    def snapshot(self, path: Path) -> None:
        """Not offered."""
        raise CapabilityError("snapshot", "lmdb")

    def size_bytes(self) -> int:
        """Bytes of the file that are in use."""
        if self._env is None:
            raise JournalError("the journal is closed")
        return int((self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"])


def _job(values: list[Any]) -> StoredJob:
    *plain, rest = values
    return StoredJob._make([*plain, tuple(rest or REST_DEFAULTS)])


def _row_key(table: Table, key: tuple[Any, ...] | None = None) -> bytes:
    """Key of a row of a further table; without ``key`` what the keys of all its rows begin with."""
    return table.name.encode() + b"\0" + (b"" if key is None else digest(repr(key)))


def _reason(error: Exception) -> str:
    """What went wrong, without the path of the file."""
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
