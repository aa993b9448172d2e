"""``Backups``: from a snapshot source to a backup target, and back.

A backup, in this order; what fails leaves neither half a backup nor any trace on the disk:

1. write what is buffered, and end if anything stays unwritten;
2. take a snapshot beside the storage;
3. check it;
4. compress it, hashing the uncompressed bytes on the way;
5. publish its metadata;
6. publish the payload: from here on there is a backup;
7. delete backups beyond the newest ones that are kept.

A restore: download the payload, load its metadata, decompress and authenticate it, check it as the storage's driver would open it,
put it in the storage's place. The storage stays as it is until that last step, which is atomic.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from bunqueue_core.backup.archive import Packed, pack, pieces
from bunqueue_core.backup.attempts import Attempts, Log
from bunqueue_core.backup.errors import BackupError, StoreError, StoreTimeout
from bunqueue_core.backup.fetching import fetch, reason
from bunqueue_core.backup.metadata import BackupMetadata
from bunqueue_core.backup.names import (
    METADATA_SUFFIX,
    METADATA_TYPE,
    PAYLOAD_TYPE,
    is_ours,
    is_payload,
    iso,
    metadata_key,
    payload_key,
)
from bunqueue_core.backup.reports import Announce, Backup, BackupStatistics, Outcome, Progress, silent
from bunqueue_core.backup.scratch import Scratch, sweep, sync_file, sync_folder
from bunqueue_core.model.errors import BunqueueError
from bunqueue_core.model.ports import wall_clock_ms

if TYPE_CHECKING:
    from bunqueue_core.plugins.drivers import BackupStore
    from bunqueue_core.storage.journal import SnapshotFiles, SnapshotSource

#: Metadata without payload, and what interrupted uploads left in the target, are deleted once they are this old, ms: a backup that
#: another process makes has its metadata there before its payload.
ABANDONED_MS: Final = 24 * 60 * 60 * 1000

_OVERLAP: Final = "Backup already in progress"


class Backups:
    """Makes, lists, verifies and restores backups of one storage. Blocks; safe to call from any thread.

    Args:
        store: where backups go.
        files: the storage as a file.
        source: gives the snapshot; None: ``files``, which sees what is committed.
        flush: writes what is buffered, and gives the number of writes that remain; None: nothing is.
        retention: backups that are kept.
        version: version of the software, for the metadata.
        label: the target's name for people.
        place: where in the target, for events.
        log: told what happens.
        announce: told ``storage:backup-started``, ``storage:backup-completed`` and ``storage:backup-failed``.
        now: epoch ms.
        unique: a random part of names.
        clock: a monotonic clock, seconds.
        sleep: waits between attempts, for so many seconds; None: really.
    """

    def __init__(
        self,
        store: BackupStore,
        files: SnapshotFiles,
        *,
        source: SnapshotSource | None = None,
        flush: Callable[[], int] | None = None,
        retention: int = 7,
        version: str,
        label: str = "S3",
        place: str = "",
        log: Log,
        announce: Announce | None = None,
        now: Callable[[], int] = wall_clock_ms,
        unique: Callable[[], str] = lambda: str(uuid.uuid4()),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._store = store
        self._files = files
        self._source: SnapshotSource = source or files
        self._flush = flush
        self._retention = retention
        self._version = version
        self._place = place
        self._log = log
        self._announce = announce
        self._now = now
        self._unique = unique
        self._clock = clock
        self._attempts = Attempts(label, log, sleep)
        self._running = threading.Lock()
        self._lock = threading.Lock()
        self._statistics = BackupStatistics(retention=retention)

    # -- making -------------------------------------------------------------------------------------------------------

    def run(self, progress: Progress = silent) -> Outcome:
        """Make a backup now.

        Args:
            progress: told how far it is; what it raises ends the backup.

        Returns:
            How it ended. A second call while one is running ends at once, as a failure that counts as no attempt.
        """
        if not self._running.acquire(blocking=False):
            with self._lock:
                numbers = self._statistics
                self._statistics = replace(numbers, overlap_rejections=numbers.overlap_rejections + 1)
            return Outcome(success=False, error=_OVERLAP)
        try:
            with self._lock:
                numbers = self._statistics
                self._statistics = replace(numbers, attempts=numbers.attempts + 1, in_progress=True)
            self._tell("storage:backup-started")
            begun = self._clock()
            outcome = Outcome(success=False, error="interrupted")
            try:
                outcome = self._make(progress)
            except Exception as error:
                outcome = Outcome(success=False, error=reason(error))
            finally:
                self._ended(outcome, round((self._clock() - begun) * 1000))
            return outcome
        finally:
            self._running.release()

    def _make(self, progress: Progress) -> Outcome:
        if self._flush is not None:
            progress("flush", 0, None)
            remaining = self._flush()
            if remaining:
                writes = "1 write remains" if remaining == 1 else f"{remaining} writes remain"
                raise BackupError(f"Cannot create a consistent backup while {writes} buffered")
        begun = self._clock()
        self._attempts.check()
        self._sweep()
        now = self._now()
        key = payload_key(self._store.prefix, now, self._unique())
        with Scratch(self._files.path, "backup-snapshot", self._tag()) as scratch:
            try:
                progress("snapshot", 0, None)
                self._source.snapshot(scratch.snapshot)
                self._attempts.check()
                progress("check", 0, None)
                counts = self._files.inspect(scratch.snapshot)
                packed = self._pack(scratch, progress)
                metadata = BackupMetadata(
                    iso(now), self._version, packed.size, packed.compressed_size, packed.checksum, counts
                )
                self._publish(key, metadata, scratch, progress)
            except BunqueueError:
                # What interrupts a snapshot or a check does not know why: the stop that asked for it does.
                self._attempts.check()
                raise
        if scratch.left:
            self._log("warn", "Failed to clean backup snapshot artifacts", files=scratch.left)
        progress("clean up", 0, None)
        self._clean_up()
        return Outcome(
            success=True,
            key=key,
            size=packed.size,
            compressed_size=packed.compressed_size,
            duration_ms=round((self._clock() - begun) * 1000),
        )

    def _pack(self, scratch: Scratch, progress: Progress) -> Packed:
        total = scratch.snapshot.stat().st_size

        def told(done: int) -> None:
            self._attempts.check()
            progress("compress", done, total)

        with open(scratch.snapshot, "rb", buffering=0) as snapshot:
            packed = pack(snapshot, scratch.file, told)
        scratch.file.flush()
        scratch.drop_snapshot()
        return packed

    def _publish(self, key: str, metadata: BackupMetadata, scratch: Scratch, progress: Progress) -> None:
        """Metadata first, then the payload: whoever finds a payload finds its metadata too."""
        encoded = metadata.encode()
        in_doubt = False  # an attempt that timed out may still publish it: then its metadata must be there

        def put_metadata() -> None:
            self._store.put(metadata_key(key), [encoded], size=len(encoded), content_type=METADATA_TYPE)

        def put_payload() -> None:
            nonlocal in_doubt
            scratch.file.seek(0)
            size = metadata.compressed_size
            try:
                self._store.put(key, pieces(scratch.file, told), size=size, content_type=PAYLOAD_TYPE)
            except StoreTimeout:
                in_doubt = True
                raise

        def told(done: int) -> None:
            self._attempts.check()
            progress("upload", done, metadata.compressed_size)

        progress("upload metadata", 0, None)
        self._attempts.call("metadata upload", put_metadata)
        try:
            self._attempts.call("backup upload", put_payload)
        except BaseException:
            if not in_doubt:
                self._withdraw(key)
            raise

    def _withdraw(self, key: str) -> None:
        """Best effort: what is not deleted is no backup without its other half, and goes with a later clean-up."""
        for step, name in (("failed payload cleanup", key), ("orphaned metadata cleanup", metadata_key(key))):
            try:
                self._delete(step, name, once=True)
            except (BunqueueError, OSError) as error:
                self._log("warn", "Failed to clean incomplete backup publication", key=name, error=reason(error))

    def _ended(self, outcome: Outcome, duration_ms: int) -> None:
        now = self._now()
        with self._lock:
            numbers = replace(self._statistics, in_progress=False, last_duration_ms=duration_ms)
            if outcome.success:
                numbers = replace(
                    numbers,
                    successes=numbers.successes + 1,
                    consecutive_failures=0,
                    last_success_at=now,
                    last_size_bytes=outcome.compressed_size,
                )
            else:
                numbers = replace(
                    numbers,
                    failures=numbers.failures + 1,
                    consecutive_failures=numbers.consecutive_failures + 1,
                    last_failure_at=now,
                )
            self._statistics = numbers
        if outcome.success:
            sizes = {"size": outcome.size, "compressedSize": outcome.compressed_size, "durationMs": duration_ms}
            self._log("info", "Backup completed", key=outcome.key, **sizes)
            self._tell("storage:backup-completed", key=outcome.key)
        else:
            self._log("error", "Backup failed", error=outcome.error)
            self._tell("storage:backup-failed", error=outcome.error)

    # -- keeping ------------------------------------------------------------------------------------------------------

    def list(self) -> list[Backup]:
        """All backups, newest first.

        Raises:
            BackupError: the store refused or could not be reached; never a part of them.
        """
        try:
            objects = self._attempts.call("backup list", self._store.list)
        except StoreError as error:
            self._log("error", "Failed to list backups", error=str(error))
            raise BackupError(f"Failed to list backups: {error}") from error
        return _newest_first([Backup(*each) for each in objects if is_payload(each[0])])

    def _clean_up(self) -> None:
        """Keep the newest backups. What cannot be deleted now is tried again after the next backup."""
        if self._retention < 1:
            return
        prefix = self._store.prefix
        try:
            objects = self._attempts.call("backup list", self._store.list)
        except (BunqueueError, OSError) as error:
            self._log("warn", "Backup cleanup failed", error=reason(error))
            return
        keys = {key for key, _, _ in objects}
        payloads = _newest_first([Backup(*each) for each in objects if is_ours(each[0], prefix)])
        for backup in payloads[self._retention :]:
            self._delete_old(backup.key, payload=True)
        # Ages by the store's own clock: its newest object is as good as its present time.
        latest = max((modified for _, _, modified in objects), default=0)
        for key, _, modified in objects:
            payload = key.removesuffix(METADATA_SUFFIX)
            abandoned = modified < latest - ABANDONED_MS and payload != key and payload not in keys
            if abandoned and is_ours(payload, prefix):
                self._delete_old(payload, payload=False)
        try:
            self._store.tidy(latest - ABANDONED_MS)
        except (BunqueueError, OSError) as error:
            self._log("debug", "Interrupted uploads were not cleaned", error=reason(error))

    def _delete_old(self, key: str, *, payload: bool) -> None:
        try:
            if payload:
                self._delete("backup delete", key)
            self._delete("metadata delete", metadata_key(key))
        except (BunqueueError, OSError) as error:
            self._log("warn", "Failed to delete old backup", key=key, error=reason(error))

    def _delete(self, step: str, key: str, *, once: bool = False) -> None:
        self._attempts.call(step, lambda: self._store.delete(key), once=once)

    # -- verifying and restoring --------------------------------------------------------------------------------------

    def verify(self, key: str | None = None, progress: Progress = silent) -> Outcome:
        """Restore a backup to a file of its own beside the storage, check that, and remove it.

        Its metadata, its checksum, the storage's own integrity check and the number of rows in each table must all agree.

        Args:
            key: its key; None takes the newest.
            progress: told how far it is; what it raises ends the verification.
        """
        begun = self._clock()
        try:
            outcome, made_at = self._verify(key, begun, progress)
        except Exception as error:
            with self._lock:
                numbers = self._statistics
                self._statistics = replace(numbers, verification_failures=numbers.verification_failures + 1)
            self._log("error", "Backup verification failed", key=key, error=reason(error))
            return Outcome(success=False, key=key, error=reason(error))
        with self._lock:
            numbers = self._statistics
            self._statistics = replace(
                numbers,
                verifications=numbers.verifications + 1,
                last_verified_at=made_at if made_at is not None else numbers.last_verified_at,
            )
        self._log("info", "Backup verified", key=outcome.key, durationMs=outcome.duration_ms)
        return outcome

    def _verify(self, key: str | None, begun: float, progress: Progress) -> tuple[Outcome, int | None]:
        modified_at: int | None = None
        if key is None:
            prefix = self._store.prefix
            newest = next((backup for backup in self.list() if is_ours(backup.key, prefix)), None)
            if newest is None:
                raise BackupError("There is no backup to verify")
            key, modified_at = newest.key, newest.modified_at
        self._sweep()
        with Scratch(self._files.path, "verify", self._tag()) as scratch:
            fetched = fetch(self._store, key, scratch, self._attempts, progress)
            progress("check", 0, None)
            counts = self._files.inspect(scratch.snapshot)
        metadata = fetched.metadata
        if metadata is not None:
            for table, expected in metadata.counts.items():
                if counts.get(table) != expected:
                    raise BackupError(
                        f"Backup has {counts.get(table, 'no')} rows in {table}, and its metadata says {expected}"
                    )
        outcome = Outcome(
            success=True,
            key=key,
            size=fetched.size,
            compressed_size=fetched.compressed_size,
            duration_ms=round((self._clock() - begun) * 1000),
            counts=counts,
        )
        return outcome, _epoch_ms(metadata.timestamp) if metadata is not None else modified_at

    def restore(self, key: str, progress: Progress = silent) -> Outcome:
        """Put a backup in the storage's place. No process may have the storage open; it is held while this works.

        Args:
            key: the backup's key, taken as it is; it need not lie under the prefix.
            progress: told how far it is; what it raises ends the restore.
        """
        begun = self._clock()
        files = self._files
        try:
            with files.own():
                tag = self._tag()
                try:
                    with Scratch(files.path, "restore", tag, files.candidate(tag)) as scratch:
                        fetched = fetch(self._store, key, scratch, self._attempts, progress)
                        progress("check", 0, None)
                        files.inspect(scratch.snapshot)
                        sync_file(scratch.snapshot)
                        progress("install", 0, None)
                        left = files.install(tag)
                    if left:
                        self._log("warn", "Restore committed but quarantine cleanup was incomplete", files=list(left))
                finally:
                    files.discard(tag)
                    self._sync_folder()
                if scratch.left:
                    self._log("warn", "Failed to clean restore candidate artifacts", files=scratch.left)
        except Exception as error:
            self._log("error", "Restore failed", error=reason(error))
            return Outcome(success=False, key=key, error=reason(error))
        duration_ms = round((self._clock() - begun) * 1000)
        self._log("info", "Restore completed", key=key, size=fetched.size, durationMs=duration_ms)
        return Outcome(
            success=True,
            key=key,
            size=fetched.size,
            compressed_size=fetched.compressed_size,
            duration_ms=duration_ms,
        )

    def _sync_folder(self) -> None:
        """What was done is done, whether or not it is known to survive a loss of power."""
        try:
            sync_folder(self._files.path.parent)
        except OSError as error:
            self._log("warn", "The folder of the database cannot be synced", error=error.strerror)

    # -- the rest -----------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End what runs, as a failure, and refuse to begin anything else. Safe from any thread."""
        self._attempts.cancel()
        self._files.interrupt()

    def statistics(self) -> BackupStatistics:
        """Numbers since the start; ``enabled`` and ``scheduler_running`` are the schedule's to say."""
        with self._lock:
            return self._statistics

    def _tell(self, event: str, **fields: str | None) -> None:
        if self._announce is None:
            return
        with contextlib.suppress(Exception):  # whoever listens does not fail a backup
            self._announce(event, {"bucket": self._place, **fields})

    def _sweep(self) -> None:
        removed = sweep(self._files.path)
        if removed:
            self._log("info", "Removed what an interrupted backup left behind", files=removed)

    def _tag(self) -> str:
        return f"{self._now()}-{self._unique()}"


def _newest_first(backups: list[Backup]) -> list[Backup]:
    """By time, then by name: stores know seconds only, and names hold milliseconds."""
    return sorted(backups, key=lambda backup: (backup.modified_at, backup.key), reverse=True)


def _epoch_ms(timestamp: str) -> int | None:
    try:
        return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
    except ValueError:
        return None


__all__ = ["ABANDONED_MS", "Backups"]
