"""A journal that keeps its rows in dictionaries: for tests of what stands above a journal, with faults placed on purpose."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bunqueue_core.model.errors import CapabilityError, JournalError
from bunqueue_core.storage.changes import (
    REST_COLUMNS,
    REST_DEFAULTS,
    ChangeSet,
    DlqRow,
    JobRow,
    MoveRow,
    QueueRow,
    ResultRow,
    Table,
)
from bunqueue_core.storage.journal import StoredJob

_PENDING_STATES = frozenset({"waiting", "prioritized", "delayed", "waiting-children"})
_STARTED_AT = 0
_COMPLETED_AT = 1
_TIMELINE = next(index for index, (name, _) in enumerate(REST_COLUMNS) if name == "timeline")


class DictJournal:
    """A :class:`~bunqueue_core.storage.journal.Journal` without a disk. Its read side may be called from any thread.

    What was committed outlives :meth:`close`, so that one object can be opened again; :meth:`image` gives another journal with what
    a crash would have left behind. ``fail_commits`` commits fail from now on, each before anything of it is applied.

    Attributes:
        commits: number of commits that were applied.
        fail_commits: number of commits to refuse from now on; each lowers it by one.
        disk_full: whether those refusals say that the disk is full.
    """

    def __init__(self) -> None:
        self.commits = 0
        self.fail_commits = 0
        self.disk_full = False
        self._opened = False
        self._lock = threading.Lock()
        self._jobs: dict[str, StoredJob] = {}
        self._results: dict[str, ResultRow] = {}
        self._dlq: dict[int, DlqRow] = {}
        self._queues: dict[str, QueueRow] = {}
        self._tables: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}

    def image(self) -> DictJournal:
        """Copy what is committed now, as another process would find it after this one died."""
        other = DictJournal()
        other._jobs = dict(self._jobs)
        other._results = dict(self._results)
        other._dlq = dict(self._dlq)
        other._queues = dict(self._queues)
        other._tables = copy.deepcopy(self._tables)
        return other

    def open(self) -> None:
        if self._opened:
            raise JournalError("the journal is open already")
        self._opened = True

    def close(self) -> None:
        self._opened = False

    # -- start --------------------------------------------------------------------------------------------------------

    def load_queues(self) -> list[QueueRow]:
        return list(self._queues.values())

    def load_active(self, limit: int) -> list[StoredJob]:
        found = [job for job in self._jobs.values() if job.state == "active"]
        return sorted(found, key=lambda job: (job.rest[_STARTED_AT] or 0, job.id))[:limit]

    def load_pending(self, batch_size: int) -> Iterator[list[StoredJob]]:
        found = [job for job in self._jobs.values() if job.state in _PENDING_STATES]
        return _batches(sorted(found, key=lambda job: (-job.priority, job.run_at, job.id)), batch_size)

    def load_dlq(self, batch_size: int) -> Iterator[list[DlqRow]]:
        return _batches(sorted(self._dlq.values(), key=lambda row: (row.entered_at, row.id)), batch_size)

    def load_completed(self, limit: int, batch_size: int) -> Iterator[list[StoredJob]]:
        found = [job for job in self._jobs.values() if job.state == "completed"]
        found.sort(key=lambda job: (job.rest[_COMPLETED_AT] or 0, job.id), reverse=True)
        return _batches(found[:limit], batch_size)

    def completed_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for job in self._jobs.values():
            if job.state == "completed":
                counts[job.queue] = counts.get(job.queue, 0) + 1
        return counts

    def load_table(self, table: Table) -> list[tuple[Any, ...]]:
        rows = list(self._tables.get(table.name, {}).values())
        order = [table.column_names.index(name) for name in table.order]
        return sorted(rows, key=lambda row: tuple((row[at] is not None, row[at]) for at in order))

    # -- write --------------------------------------------------------------------------------------------------------

    def commit(self, changes: ChangeSet) -> None:
        if not self._opened:
            raise JournalError("the journal is closed")
        if self.fail_commits > 0:
            self.fail_commits -= 1
            raise JournalError("a fault was placed here", disk_full=self.disk_full)
        _check(changes)
        with self._lock:
            self._apply(changes)
            self.commits += 1

    def _apply(self, changes: ChangeSet) -> None:
        for name in changes.obliterated:
            for id in [id for id, job in self._jobs.items() if job.queue == name]:
                del self._jobs[id]
                self._results.pop(id, None)
        for id in changes.removed:
            self._jobs.pop(id, None)
            self._results.pop(id, None)
        for row in changes.put:
            self._jobs[row.id] = _stored(row)
        for move in changes.moved:
            job = self._jobs.get(move.id)
            if job is not None:
                self._jobs[move.id] = _moved(job, move)
        for result in changes.results:
            self._results[result.job_id] = result
        for entry_id in changes.dlq_removed:
            self._dlq.pop(entry_id, None)
        for entry in changes.dlq_put:
            self._dlq[entry.id] = entry
        for queue in changes.queues:
            self._queues[queue.name] = queue
        for name in changes.queues_removed:
            self._queues.pop(name, None)
        for change in changes.tables:
            rows = self._tables.setdefault(change.table.name, {})
            for key in change.removed:
                rows.pop(tuple(key), None)
            for values in change.put:
                rows[tuple(values[: change.table.key])] = tuple(values)

    # -- read ---------------------------------------------------------------------------------------------------------

    def read_jobs(self, ids: Sequence[str]) -> dict[str, StoredJob]:
        with self._lock:
            return {id: self._jobs[id] for id in ids if id in self._jobs}

    def read_results(self, ids: Sequence[str]) -> dict[str, bytes]:
        with self._lock:
            return {id: self._results[id].result for id in ids if id in self._results}

    def read_completed(self, queue: str, offset: int, limit: int, ascending: bool) -> list[StoredJob]:
        with self._lock:
            found = [job for job in self._jobs.values() if job.queue == queue and job.state == "completed"]
        found.sort(key=lambda job: (job.created_at, job.id), reverse=not ascending)
        return found[offset : offset + limit]

    def completed_before(self, queue: str | None, before: int, limit: int) -> list[tuple[str, str]]:
        with self._lock:
            jobs = list(self._jobs.values())
        found = [
            (job.rest[_COMPLETED_AT], job.id, job.queue)
            for job in jobs
            if job.state == "completed"
            and (queue is None or job.queue == queue)
            and job.rest[_COMPLETED_AT] is not None
            and job.rest[_COMPLETED_AT] <= before
        ]
        return [(id, name) for _, id, name in sorted(found)[:limit]]

    def read_rows(self, table: Table, keys: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        with self._lock:
            rows = self._tables.get(table.name, {})
            return {tuple(key): rows[tuple(key)] for key in keys if tuple(key) in rows}

    # -- optional -----------------------------------------------------------------------------------------------------

    def snapshot(self, path: Path) -> None:
        raise CapabilityError("snapshot", "dict")

    def size_bytes(self) -> int:
        return 0


def _check(changes: ChangeSet) -> None:
    """Refuse what no storage could hold, before anything is applied."""
    rows: list[tuple[Any, ...]] = [*changes.moved, *changes.results, *changes.dlq_put, *changes.queues]
    for row in changes.put:
        rows.append(row[:8])
        rows.append(row.rest or ())
    for change in changes.tables:
        rows.extend(change.put)
    for values in rows:
        for value in values:
            if isinstance(value, str):
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    raise JournalError("a text is not well-formed Unicode") from error
            elif value is not None and not isinstance(value, int | float | bytes):
                raise JournalError(f"a value of type {type(value).__name__} cannot be stored")


def _stored(row: JobRow) -> StoredJob:
    rest = row.rest if row.rest is not None else REST_DEFAULTS
    return StoredJob(
        row.id, row.queue, row.name, row.data, row.priority, row.created_at, row.run_at, row.state, tuple(rest)
    )


def _moved(job: StoredJob, move: MoveRow) -> StoredJob:
    rest = list(job.rest)
    rest[_STARTED_AT] = move.started_at
    rest[_COMPLETED_AT] = move.completed_at
    rest[_TIMELINE] = move.timeline
    return job._replace(state=move.state, rest=tuple(rest))


def _batches(rows: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
