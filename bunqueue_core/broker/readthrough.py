"""What memory has let go, read from the journal: completed jobs beyond the bound, results, logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from bunqueue_core.engine.engine import Engine
from bunqueue_core.model.errors import JournalError, StorageUnavailable
from bunqueue_core.model.requests import LogEntry
from bunqueue_core.storage.changes import LOG_TABLE
from bunqueue_core.storage.journal import Journal, StoredJob
from bunqueue_core.storage.records import job_from_row, logs_from

T = TypeVar("T")

#: Jobs that are looked up at once.
_AT_ONCE: Final = 500

#: Completed jobs that are looked through at most for some that nothing depends on.
_MOST: Final = 64_000


class ReadThrough:
    """The journal's read side, as verbs may see it. Used under the engine's lock.

    Rows that count as deleted, although the commit that deletes them is still to come or under way, are left out. An error of the
    storage becomes one that a client may see.

    Args:
        journal: where the rows are.
        engine: what has been marked since the last commit, and where jobs are taken into memory.
    """

    __slots__ = ("_engine", "_hides", "_journal")

    def __init__(self, journal: Journal, engine: Engine) -> None:
        self._journal = journal
        self._engine = engine
        self._hides = engine.marks.hides

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except JournalError as error:
            reason = "disk full" if error.disk_full else "database busy" if error.busy else "reads fail"
            raise StorageUnavailable(reason) from error

    def jobs(self, ids: Iterable[str]) -> dict[str, StoredJob]:
        """Rows of those of ``ids`` that memory does not hold.

        Raises:
            StorageUnavailable: the journal cannot be read. (So do all of these methods.)
        """
        known, hides = self._engine.jobs, self._hides
        missing = [id for id in ids if id not in known]
        found: dict[str, StoredJob] = {}
        for start in range(0, len(missing), _AT_ONCE):
            found.update(self._read(lambda part=missing[start : start + _AT_ONCE]: self._journal.read_jobs(part)))  # type: ignore[misc]
        return {id: row for id, row in found.items() if not hides(id, row.queue)}

    def results(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Stored results by job id."""
        if not ids:
            return {}
        hides = self._hides
        found = self._read(lambda: self._journal.read_results(ids))
        return {id: result for id, result in found.items() if not hides(id)}

    def completed(self, queue: str, limit: int, ascending: bool) -> list[StoredJob]:
        """The first ``limit`` completed jobs of a queue by creation time, without those that memory holds."""
        known, hides = self._engine.jobs, self._hides
        rows = self._read(lambda: self._journal.read_completed(queue, 0, limit, ascending))
        return [row for row in rows if row.id not in known and not hides(row.id, row.queue)]

    def completed_before(self, queue: str | None, before: int, limit: int) -> list[str]:
        """Ids of the oldest stored jobs that completed at or before ``before`` (epoch ms), in memory or not."""
        hides = self._hides
        found = self._read(lambda: self._journal.completed_before(queue, before, limit))
        return [id for id, name in found if not hides(id, name)]

    def adopt_oldest(self, queue: str | None, before: int, limit: int) -> list[str]:
        """Take into memory the ``limit`` oldest jobs that completed at or before ``before`` and that nothing depends on.

        Gives their ids. Those that others depend on may stand in front of them: it looks past some.
        """
        dependents = self._engine.dependents
        asked = limit
        while True:
            found = self.completed_before(queue, before, asked)
            free = [id for id in found if not dependents.get(id)]
            if len(free) >= limit or len(found) < asked or asked >= _MOST:
                break
            asked *= 2
        del free[limit:]
        self.adopt(free)
        return free

    def logs(self, id: str) -> list[LogEntry] | None:
        """Stored log lines of a job, None if there are none (or what is stored cannot be decoded)."""
        row = self._read(lambda: self._journal.read_rows(LOG_TABLE, [(id,)])).get((id,))
        try:
            return None if row is None else logs_from(row[1])
        except Exception:
            return None

    def adopt(self, ids: Iterable[str]) -> None:
        """Take those of the completed jobs ``ids`` into memory that it does not hold, so that a verb can work on them."""
        for row in self.jobs(ids).values():
            if row.state == "completed":
                self._engine.adopt_completed(job_from_row(row, tolerate_corrupt=True))


__all__ = ["ReadThrough"]
