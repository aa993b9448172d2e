"""Temporary files of backups and verifications, beside the storage. What a killed process left there is found and removed."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Literal

#: What temporary files are for; part of their names.
Purpose = Literal["backup-snapshot", "verify", "restore"]

_PAYLOAD: Final = ".gz.tmp"
_SNAPSHOT: Final = ".tmp"

#: What SQLite, and perhaps other storages, put beside a file that they open.
_SIDECARS: Final = ("-wal", "-shm", "-journal")

#: Errors by which file systems say that folders cannot be synced there.
_NO_SUCH_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF})

#: Purposes whose files :func:`sweep` removes. A restore's files belong to the storage driver: they say how far it came.
_SWEPT: Final[tuple[Purpose, ...]] = ("backup-snapshot", "verify")


class Scratch:
    """The two files of one run: the compressed payload, and the snapshot. A context manager; both are gone at its end.

    The payload's file is made first, removed last, and locked in between, so that others see that the run is alive.

    Args:
        storage: the storage's file.
        purpose: what the run is for.
        tag: makes the names unique.
        snapshot: where the snapshot goes, and is left to whoever owns that place; None: a file of the run's own.
    """

    def __init__(self, storage: Path, purpose: Purpose, tag: str, snapshot: Path | None = None) -> None:
        stem = f"{storage.name}.{purpose}-{tag}"
        self.payload = storage.with_name(stem + _PAYLOAD)
        self.snapshot = snapshot or storage.with_name(stem + _SNAPSHOT)
        self._own = snapshot is None
        self._file: BinaryIO | None = None
        #: Names of files that could not be removed.
        self.left: list[str] = []

    def __enter__(self) -> Scratch:
        self._file = open(self.payload, "x+b")
        _lock(self._file.fileno())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own:
            self.drop_snapshot()
        if self._file is not None:
            if sys.platform == "win32":
                self._file.close()
            self._remove(self.payload)
            self._file.close()
            self._file = None

    @property
    def file(self) -> BinaryIO:
        """The payload's file, open for reading and writing."""
        assert self._file is not None
        return self._file

    def drop_snapshot(self) -> None:
        """Remove the snapshot and whatever lies beside it, to have the space back early."""
        for path in _with_sidecars(self.snapshot):
            self._remove(path)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            self.left.append(path.name)


def sweep(storage: Path) -> list[str]:
    """Remove the files of runs whose process is gone. Gives the names of the payloads' files."""
    removed: list[str] = []
    for payload in _payloads(storage):
        try:
            with open(payload, "r+b", buffering=0) as file:
                if not _lock(file.fileno()):
                    continue
                for path in _with_sidecars(payload.with_name(payload.name.removesuffix(_PAYLOAD) + _SNAPSHOT)):
                    path.unlink(missing_ok=True)
                if sys.platform != "win32":
                    payload.unlink(missing_ok=True)
            payload.unlink(missing_ok=True)
        except OSError:
            continue  # somebody else's, or open: whoever can removes it
        removed.append(payload.name)
    return removed


def sync_file(path: Path) -> None:
    """Have a finished file survive the loss of power."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Have names that were given, changed or removed in a folder survive the loss of power, where the system offers that."""
    if sys.platform == "win32":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SUCH_SYNC:
            raise
    finally:
        os.close(fd)


def _payloads(storage: Path) -> Iterator[Path]:
    prefixes = tuple(f"{storage.name}.{purpose}-" for purpose in _SWEPT)
    with contextlib.suppress(OSError), os.scandir(storage.parent) as entries:
        for entry in entries:
            if entry.name.startswith(prefixes) and entry.name.endswith(_PAYLOAD):
                yield storage.with_name(entry.name)


def _with_sidecars(path: Path) -> list[Path]:
    return [path, *(path.with_name(path.name + suffix) for suffix in _SIDECARS)]


if sys.platform == "win32":

    def _lock(fd: int) -> bool:
        return True  # an open file cannot be removed there, which is all that the lock is for

else:
    import fcntl

    def _lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


__all__ = ["Purpose", "Scratch", "sweep", "sync_file", "sync_folder"]
