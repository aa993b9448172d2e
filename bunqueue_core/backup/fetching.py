"""The first three steps of a restore, which a verification shares: download, metadata, decompress and authenticate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from bunqueue_core.backup.archive import is_gzip, pieces, unpack
from bunqueue_core.backup.attempts import Attempts
from bunqueue_core.backup.errors import BackupError, ObjectMissing
from bunqueue_core.backup.metadata import MAX_METADATA_BYTES, BackupMetadata, decode
from bunqueue_core.backup.names import metadata_key
from bunqueue_core.backup.reports import Progress
from bunqueue_core.backup.scratch import Scratch
from bunqueue_core.model.errors import BunqueueError

if TYPE_CHECKING:
    from bunqueue_core.plugins.drivers import BackupStore


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was fetched.

    Attributes:
        metadata: what its metadata says; None: there was none, and the payload was not compressed.
        size: bytes of the snapshot.
    """

    metadata: BackupMetadata | None
    size: int

    @property
    def compressed_size(self) -> int | None:
        """Bytes of the payload, if its metadata says so."""
        return self.metadata.compressed_size if self.metadata is not None else None


def fetch(store: BackupStore, key: str, scratch: Scratch, attempts: Attempts, progress: Progress) -> Fetched:
    """Bring the snapshot of backup ``key`` into ``scratch.snapshot``, held to its metadata.

    Args:
        store: where it is.
        key: its key, taken as it is.
        scratch: where it goes.
        attempts: repeats what fails for a moment.
        progress: told how far it is.

    Raises:
        BackupError: there is none, or it is not what its metadata says.
        StoreError: the store refused or could not be reached.
        OSError: the disk did.
    """
    payload_size = attempts.call("backup download", lambda: _download(store, key, scratch.file, attempts, progress))
    progress("download metadata", 0, None)
    metadata = attempts.call("metadata download", lambda: _read_metadata(store, key, payload_size))
    scratch.file.seek(0)
    with open(scratch.snapshot, "xb") as target:
        if metadata is None:
            size = _take_uncompressed(scratch.file, target, payload_size, attempts, progress)
        else:
            size = metadata.size

            def told(done: int) -> None:
                attempts.check()
                progress("decompress", done, size)

            unpack(scratch.file, target, size, metadata.checksum, told)
    return Fetched(metadata, size)


def _download(store: BackupStore, key: str, file: BinaryIO, attempts: Attempts, progress: Progress) -> int:
    """One attempt, from the beginning; gives the number of bytes."""
    file.seek(0)
    file.truncate()
    done = 0
    progress("download", 0, None)
    try:
        for piece in store.get(key):
            attempts.check()
            file.write(piece)
            done += len(piece)
            progress("download", done, None)
    except ObjectMissing:
        raise BackupError(f"Backup not found: {key}") from None
    file.flush()
    return done


def _read_metadata(store: BackupStore, key: str, payload_size: int) -> BackupMetadata | None:
    data = bytearray()
    try:
        for piece in store.get(metadata_key(key)):
            data += piece
            if len(data) > MAX_METADATA_BYTES:
                raise BackupError("Backup metadata is invalid")
    except ObjectMissing:
        return None
    return decode(bytes(data), payload_size)


def _take_uncompressed(source: BinaryIO, target: BinaryIO, size: int, attempts: Attempts, progress: Progress) -> int:
    """A backup of old has no metadata and is not compressed: nothing but the storage itself can tell whether it is whole."""
    if is_gzip(source.read(2)):
        raise BackupError("Compressed backup is invalid because metadata is missing")
    source.seek(0)

    def told(done: int) -> None:
        attempts.check()
        progress("decompress", done, size)

    for piece in pieces(source, told):
        target.write(piece)
    return size


def reason(error: BaseException) -> str:
    """What is said of an error, without the paths that the system's own texts contain."""
    if isinstance(error, BunqueueError):
        return str(error)
    if isinstance(error, OSError):
        return f"cannot write beside the database: {error.strerror or type(error).__name__}"
    return f"{type(error).__name__}: {error}"


__all__ = ["Fetched", "fetch", "reason"]
