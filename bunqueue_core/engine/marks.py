"""Marks: what the next commit has to write. Marks of one job coalesce; what came and went in between is never written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from bunqueue_core.model.job import Job
from bunqueue_core.model.payload import Packer
from bunqueue_core.model.requests import DlqEntry
from bunqueue_core.storage.changes import ChangeSet, JobRow, MoveRow, QueueRow, ResultRow, Table, TableChange
from bunqueue_core.storage.records import RowBuilder

_CLEAN: Final = 0
_MOVED: Final = 1
_WHOLE: Final = 2
_PLAIN: Final = 3


class Marks:
    """Collects marks between two commits and turns them into one :class:`ChangeSet`.

    Args:
        enabled: False for an engine without a journal: marks are then ignored.
    """

    __slots__ = (
        "_dlq_put",
        "_dlq_removed",
        "_jobs",
        "_obliterated",
        "_queues",
        "_leaving",
        "_leaving_queues",
        "_removed",
        "_results",
        "_rows",
        "_tables",
        "bytes",
        "enabled",
        "fresh",
        "in_flight",
        "pack",
        "prepare",
    )

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._rows = RowBuilder()
        self.pack = Packer().pack
        self._jobs: dict[str, Job] = {}
        self._removed: dict[str, None] = {}
        self._obliterated: dict[str, None] = {}
        self._results: dict[str, ResultRow] = {}
        self._dlq_put: dict[int, DlqEntry] = {}
        self._dlq_removed: dict[int, None] = {}
        self._queues: dict[str, QueueRow | None] = {}
        self._tables: dict[Table, dict[tuple[Any, ...], tuple[Any, ...] | None]] = {}
        self._leaving: dict[str, None] = {}  #: as _removed, of the change set that is being written
        self._leaving_queues: dict[str, None] = {}
        self.in_flight = False  #: a change set was drained and is not known to be written
        self.prepare: Callable[[], None] | None = None  #: called before rows are built
        self.fresh = 0  #: jobs admitted since the last drain
        self.bytes = 0  #: payload bytes of those

    @property
    def pending(self) -> bool:
        """True if there is anything to write."""
        return bool(
            self._jobs
            or self._removed
            or self._obliterated
            or self._results
            or self._dlq_put
            or self._dlq_removed
            or self._queues
            or self._tables
        )

    @property
    def rows(self) -> int:
        """About how many rows the next commit touches."""
        return len(self._jobs) + len(self._removed) + len(self._results) + len(self._dlq_put)

    @property
    def job_ids(self) -> Iterable[str]:
        """Jobs whose rows the next commit writes."""
        return self._jobs

    def hides(self, id: str, queue: str | None = None) -> bool:
        """True if the journal may still show a row of job ``id`` (in ``queue``) that counts as deleted already."""
        return (
            id in self._removed
            or id in self._leaving
            or (queue is not None and (queue in self._obliterated or queue in self._leaving_queues))
        )

    def committed(self) -> None:
        """What was drained last is written."""
        self.in_flight = False
        if self._leaving:
            self._leaving = {}
        if self._leaving_queues:
            self._leaving_queues = {}

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def admitted(self, job: Job) -> None:
        """A new job."""
        if not self.enabled:
            return
        job.dirty = _WHOLE
        self._jobs[job.id] = job
        self.fresh += 1
        if job.data is not None:
            self.bytes += len(job.data)

    def admitted_plain(self, jobs: dict[str, Job]) -> None:
        """New jobs by id that have nothing but the plain columns (and durability)."""
        if not self.enabled:
            return
        size = 0
        for job in jobs.values():
            job.dirty = _PLAIN
            if job.data is not None:
                size += len(job.data)
        self._jobs.update(jobs)
        self.fresh += len(jobs)
        self.bytes += size

    def admitted_one(self, job: Job) -> None:
        """The same for one."""
        if not self.enabled:
            return
        job.dirty = _PLAIN
        self._jobs[job.id] = job
        self.fresh += 1
        if job.data is not None:
            self.bytes += len(job.data)

    def moved(self, job: Job) -> None:
        """State, started_at, completed_at and timeline changed, nothing else."""
        if not self.enabled:
            return
        if job.stored:
            if job.dirty == _CLEAN:
                job.dirty = _MOVED
                self._jobs[job.id] = job
        else:
            job.dirty = _WHOLE
            self._jobs[job.id] = job

    def changed(self, job: Job) -> None:
        """Anything changed: the whole row is written."""
        if not self.enabled:
            return
        job.dirty = _WHOLE
        self._jobs[job.id] = job

    def removed(self, job: Job) -> None:
        """The job's row and result go."""
        if not self.enabled:
            return
        if job.dirty and self._jobs.get(job.id) is job:
            del self._jobs[job.id]
        job.dirty = _CLEAN
        self._results.pop(job.id, None)
        if job.stored:
            self._removed[job.id] = None
            job.stored = False

    def removed_stored(self, id: str) -> None:
        """A row that is not in memory goes."""
        if self.enabled:
            self._removed[id] = None

    def obliterated(self, queue: str) -> None:
        """Every stored row of a queue goes; its jobs must have been forgotten before."""
        if self.enabled:
            self._obliterated[queue] = None

    def replaced(self, old: Job, new: Job) -> None:
        """``new`` stands for ``old`` from now on."""
        if old.dirty:
            self._jobs[new.id] = new
        old.dirty = _CLEAN

    def result(self, job_id: str, result: bytes, completed_at: int) -> None:
        if self.enabled:
            self._results[job_id] = ResultRow(job_id, result, completed_at)

    # -- the rest -----------------------------------------------------------------------------------------------------

    def dead_letter(self, id: int, entry: DlqEntry) -> None:
        if self.enabled:
            self._dlq_put[id] = entry

    def dead_letter_removed(self, id: int) -> None:
        if self.enabled:
            self._dlq_put.pop(id, None)
            self._dlq_removed[id] = None

    def queue(self, name: str, row: QueueRow | None) -> None:
        """Controls of a queue; None when all are default."""
        if self.enabled:
            self._queues[name] = row

    def table(self, table: Table, row: tuple[Any, ...]) -> None:
        """Store a row of a further table."""
        if self.enabled:
            self._tables.setdefault(table, {})[row[: table.key]] = row

    def table_removed(self, table: Table, *key: Any) -> None:
        if self.enabled:
            self._tables.setdefault(table, {})[key] = None

    # -- the swap -----------------------------------------------------------------------------------------------------

    def drain(self) -> ChangeSet:
        """Build the rows of everything marked, from the objects as they are now, and forget the marks.

        If that fails nothing is forgotten.
        """
        if self.prepare is not None:
            self.prepare()
        try:
            return self._drain()
        except Exception:
            for job in self._jobs.values():
                job.dirty = _WHOLE
            raise

    def _drain(self) -> ChangeSet:
        rows = self._rows
        put: list[JobRow] = []
        moved: list[MoveRow] = []
        put_plain = rows.put_plain
        for job in self._jobs.values():
            dirty = job.dirty
            job.dirty = _CLEAN
            if dirty == _PLAIN:
                put.append(put_plain(job))
                job.stored = True
            elif dirty == _MOVED:
                moved.append(rows.move(job))
            elif dirty == _WHOLE:
                put.append(rows.put(job))
                job.stored = True
        changes = ChangeSet([], [], put, moved, [], [], [], [], [], [])
        # Everything that can fail stands above this line, everything that forgets below it.
        if self._dlq_put:
            changes.dlq_put = [rows.dlq(id, entry) for id, entry in self._dlq_put.items()]
            self._dlq_put = {}
        self.in_flight = True
        self._jobs = {}
        self.fresh = 0
        self.bytes = 0
        if self._obliterated:
            changes.obliterated = list(self._obliterated)
            self._leaving_queues = self._obliterated
            self._obliterated = {}
        if self._removed:
            changes.removed = list(self._removed)
            self._leaving = self._removed
            self._removed = {}
        if self._results:
            changes.results = list(self._results.values())
            self._results = {}
        if self._dlq_removed:
            changes.dlq_removed = list(self._dlq_removed)
            self._dlq_removed = {}
        if self._queues:
            changes.queues = [row for row in self._queues.values() if row is not None]
            changes.queues_removed = [name for name, row in self._queues.items() if row is None]
            self._queues = {}
        if self._tables:
            changes.tables = [
                TableChange(
                    table,
                    [key for key, row in rows_by_key.items() if row is None],
                    [row for row in rows_by_key.values() if row is not None],
                )
                for table, rows_by_key in self._tables.items()
            ]
            self._tables = {}
        return changes
