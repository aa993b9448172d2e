"""``Journal``: all that a storage plugin for the in-process engine has to write.

The engine decides, the journal keeps: it loads at start, commits change sets one at a time, reads back what memory no longer
holds, and may offer snapshots. Batching, retries, recovery rules and retention are the core's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from bunqueue_core.storage.changes import ChangeSet, DlqRow, JobRow, QueueRow, Table


class StoredJob(NamedTuple):
    """A row of ``jobs`` read back; ``rest`` is always given (see :class:`~bunqueue_core.storage.changes.JobRow`)."""

    id: str
    queue: str
    name: str
    data: bytes | None
    priority: int
    created_at: int
    run_at: int
    state: str
    rest: tuple[Any, ...]


class SnapshotSource(Protocol):
    """Something that a backup can copy."""

    def snapshot(self, path: Path) -> None:
        """Write a consistent, standalone copy to ``path`` (which does not exist yet), beside running commits."""


class SnapshotFiles(SnapshotSource, Protocol):
    """A journal's storage as a file: what backups and restores need to know of it, and only its driver knows.

    Nothing of it needs an open journal. Every method raises :class:`~bunqueue_core.model.errors.JournalError`, or
    :class:`~bunqueue_core.model.errors.ConfigurationError` where the place itself cannot be used.
    """

    @property
    def path(self) -> Path:
        """The file; temporary files of backups and restores are made beside it."""

    def snapshot(self, path: Path) -> None:
        """As :meth:`SnapshotSource.snapshot`, of what is committed, whether or not a process has the storage open."""

    def inspect(self, path: Path) -> Mapping[str, int]:
        """Check that ``path`` is a whole snapshot which this version of the driver can open. Nothing is changed.

        Returns:
            Rows by table, for comparing one copy with another.

        Raises:
            JournalError: it is damaged, none of ours, or newer than this version knows.
        """

    def own(self) -> AbstractContextManager[None]:
        """Hold the storage for this process alone; what a restore that was interrupted left behind is settled first.

        Raises:
            JournalError: another process has it (``busy``); the message names that process.
        """

    def candidate(self, tag: str) -> Path:
        """Where a restore puts what shall take the storage's place; ``tag`` is part of its name."""

    def install(self, tag: str) -> Sequence[str]:
        """Put the candidate of that tag in the storage's place, atomically and durably. Call it while the storage is owned.

        Returns:
            Names of files that could not be removed afterwards; they do no harm.

        Raises:
            JournalError: it could not be put there; the storage is as it was.
        """

    def discard(self, tag: str) -> None:
        """Remove the candidate of that tag, if it is there and an installation that failed does not need it."""

    def interrupt(self) -> None:
        """End a snapshot or an inspection that runs in another thread; it raises."""


@runtime_checkable
class KeepsLog(Protocol):
    """An optional capability of a journal: it commits to a log, which it carries over into its data from time to time."""

    def checkpoint_when_idle(self) -> None:
        """Begin to carry the log over and to cut it. Called when nothing has been committed for a while; must not block."""

    def log_bytes(self) -> int:
        """Bytes of the log, which :meth:`Journal.size_bytes` leaves out."""


class Journal(Protocol):
    """A journal driver. ``commit`` is called from one thread at a time; the read side may be called beside it.

    Every method raises :class:`~bunqueue_core.model.errors.JournalError` when the storage fails.
    """

    def open(self) -> None:
        """Open or create the storage, migrate it, and take it for this process alone."""

    def close(self) -> None:
        """Release it. Idempotent."""

    # -- start: called in this order, before the first commit ---------------------------------------------------------

    def load_queues(self) -> list[QueueRow]:
        """All stored controls."""

    def load_active(self, limit: int) -> list[StoredJob]:
        """Up to ``limit`` jobs in state ``active``, by ``started_at``.

        The caller commits a change that takes them out of that state before it asks again.
        """

    def load_pending(self, batch_size: int) -> Iterator[list[StoredJob]]:
        """Jobs that wait (``waiting``, ``prioritized``, ``delayed``, ``waiting-children``), by priority descending, ``run_at``,
        ``id``, in batches."""

    def load_dlq(self, batch_size: int) -> Iterator[list[DlqRow]]:
        """Dead letters by ``entered_at``, ``id``, in batches."""

    def load_completed(self, limit: int, batch_size: int) -> Iterator[list[StoredJob]]:
        """The newest ``limit`` completed jobs, by ``completed_at`` descending, ``id`` descending, in batches."""

    def completed_counts(self) -> dict[str, int]:
        """Number of completed jobs of each queue that has any."""

    def load_table(self, table: Table) -> list[tuple[Any, ...]]:
        """All rows of a further table in its order."""

    # -- write --------------------------------------------------------------------------------------------------------

    def commit(self, changes: ChangeSet) -> None:
        """Apply ``changes`` in one atomic transaction, durable against the end of the process when it returns.

        On error nothing of it is applied.
        """

    # -- read: what memory no longer holds ----------------------------------------------------------------------------

    def read_jobs(self, ids: Sequence[str]) -> dict[str, StoredJob]:
        """Stored jobs by id; ids without a row are left out."""

    def read_results(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Stored results by job id."""

    def read_completed(self, queue: str, offset: int, limit: int, ascending: bool) -> list[StoredJob]:
        """Completed jobs of ``queue`` by ``created_at``, ``id``."""

    def completed_before(self, queue: str | None, before: int, limit: int) -> list[tuple[str, str]]:
        """(id, queue) of up to ``limit`` jobs completed at or before ``before`` (epoch ms), oldest first."""

    def read_rows(self, table: Table, keys: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Rows of a further table by key; keys without a row are left out."""

    # -- optional -----------------------------------------------------------------------------------------------------

    def snapshot(self, path: Path) -> None:
        """See :class:`SnapshotSource`. Raise :class:`~bunqueue_core.model.errors.CapabilityError` if there is none."""

    def size_bytes(self) -> int:
        """Bytes on disk, 0 if that has no meaning."""


__all__ = [
    "ChangeSet",
    "DlqRow",
    "JobRow",
    "Journal",
    "KeepsLog",
    "QueueRow",
    "SnapshotFiles",
    "SnapshotSource",
    "StoredJob",
]
