"""What backups, restores and verifications report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Told how far a run is: the step, and how many of how many bytes are done (None: not known, or not a matter of bytes).
#: Steps of a backup: ``flush``, ``snapshot``, ``check``, ``compress``, ``upload metadata``, ``upload``, ``clean up``; of a restore
#: and a verification: ``download``, ``download metadata``, ``decompress``, ``check``; and ``install`` of a restore.
Progress = Callable[[str, int, int | None], None]

#: Told of what happens: the event's name and its fields. Called in the thread that works.
Announce = Callable[[str, Mapping[str, Any]], None]


def silent(step: str, done: int, total: int | None) -> None:
    """A :data:`Progress` that tells nobody."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup as it stands in the listing.

    Attributes:
        key: its key.
        size: bytes of its payload.
        modified_at: when it was published, epoch ms of the store's clock.
    """

    key: str
    size: int
    modified_at: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a backup, a restore or a verification ended.

    Attributes:
        success: whether it did what it should.
        key: the backup's key.
        size: bytes of the snapshot.
        compressed_size: bytes of the payload.
        duration_ms: how long it took; for a backup from the snapshot on.
        error: why it failed.
        counts: rows by table of what was verified.
    """

    success: bool
    key: str | None = None
    size: int | None = None
    compressed_size: int | None = None
    duration_ms: int | None = None
    error: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """It as JSON-like values in camelCase; what is not known is left out."""
        document: dict[str, Any] = {
            "success": self.success,
            "key": self.key,
            "size": self.size,
            "compressedSize": self.compressed_size,
            "duration": self.duration_ms,
            "error": self.error,
            "counts": dict(self.counts) or None,
        }
        return {name: value for name, value in document.items() if value is not None}


@dataclass(frozen=True, slots=True)
class BackupStatistics:
    """Numbers of backups since the start. ``attempts`` = ``successes`` + ``failures`` + (1 while one is in progress).

    Attributes:
        enabled: backups are made on a schedule.
        scheduler_running: the schedule runs.
        in_progress: a backup is being made.
        interval_ms: time from one backup to the next.
        retention: backups that are kept.
        attempts: backups that were begun.
        successes: those that succeeded.
        failures: those that failed.
        overlap_rejections: calls while one was in progress; they are no attempts.
        consecutive_failures: failures since the last success.
        last_success_at: when the last one succeeded, epoch ms; None: never.
        last_failure_at: when the last one failed, epoch ms; None: never.
        last_duration_ms: how long the last attempt took, flush and clean-up included; None: none ended.
        last_size_bytes: bytes of the last success's payload; None: none.
        verifications: verifications that succeeded.
        verification_failures: verifications that failed.
        last_verified_at: when the backup was made that was verified last, epoch ms; None: none was.
    """

    enabled: bool = False
    scheduler_running: bool = False
    in_progress: bool = False
    interval_ms: int = 0
    retention: int = 0
    attempts: int = 0
    successes: int = 0
    failures: int = 0
    overlap_rejections: int = 0
    consecutive_failures: int = 0
    last_success_at: int | None = None
    last_failure_at: int | None = None
    last_duration_ms: int | None = None
    last_size_bytes: int | None = None
    verifications: int = 0
    verification_failures: int = 0
    last_verified_at: int | None = None


__all__ = ["Announce", "Backup", "BackupStatistics", "Outcome", "Progress", "silent"]
