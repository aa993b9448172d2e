"""The backup target ``folder``: a local folder, a mounted disk or a network share."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, field_validator

from bunqueue_core.backup.archive import CHUNK_BYTES
from bunqueue_core.backup.errors import ObjectMissing, StoreError
from bunqueue_core.backup.scratch import sync_folder
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.plugins.drivers import BackupTarget, Env, OpenContext, SettingsModel

#: What an unfinished file is called: hidden, so that no listing shows it.
_PART_PREFIX: Final = ".bunqueue-"
_PART_SUFFIX: Final = ".part"

#: Errors of network shares and of disks that wake up: the next try may succeed.
_PASSING: Final = frozenset({errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.ESTALE, errno.ETIMEDOUT})


class FolderBackup(SettingsModel):
    """Where backups go: a folder. Put it on another disk than the database, or on another machine."""

    folder: Annotated[str | Path, Env("BUNQUEUE_BACKUP_FOLDER")] = Field(
        description="The folder. It must exist: a disk that is not mounted is noticed, not replaced by a new folder."
    )

    @field_validator("folder")
    @classmethod
    def _a_path(cls, value: str | Path) -> str | Path:
        if not str(value).strip():
            raise ValueError("backup.folder is empty; name an existing folder")
        if "\0" in str(value):
            raise ValueError("backup.folder cannot contain a NUL character")
        return value


class FolderStore:
    """A :class:`~bunqueue_core.plugins.drivers.BackupStore` in a folder. Keys are the names of its files.

    A file gets its name once it is whole and on the disk.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).absolute()

    @property
    def prefix(self) -> str:
        """Empty: the folder belongs to the backups of one database."""
        return ""

    def check(self) -> None:
        """Find out whether the folder is there and can be written to."""
        if not self._folder.is_dir():
            raise ConfigurationError(
                f"backup.folder: '{self._folder}' is not an existing folder; create it, or mount what it stands for"
            )
        probe = self._part()
        try:
            probe.touch(exist_ok=False)
            probe.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"backup.folder: cannot write to '{self._folder}': {error.strerror}; mend its permissions or name another folder"
            ) from error

    def put(
        self, key: str, chunks: Iterable[bytes], *, size: int | None = None, content_type: str | None = None
    ) -> None:
        """See :class:`~bunqueue_core.plugins.drivers.BackupStore`; there are no media types here."""
        target = self._file(key)
        part = self._part()
        try:
            with open(part, "xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
                written = file.tell()
            if size is not None and written != size:
                raise StoreError(f"{key} has {written} bytes instead of {size}")
            os.replace(part, target)
            sync_folder(self._folder)
        except BaseException as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _refused("write a file", error) from error
            raise

    def get(self, key: str) -> Iterator[bytes]:
        """See :class:`~bunqueue_core.plugins.drivers.BackupStore`."""
        try:
            with open(self._file(key), "rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except (FileNotFoundError, IsADirectoryError) as error:
            raise ObjectMissing(key) from error
        except OSError as error:
            raise _refused("read a file", error) from error

    def list(self) -> Sequence[tuple[str, int, int]]:
        """See :class:`~bunqueue_core.plugins.drivers.BackupStore`."""
        found = []
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or not entry.is_file():
                        continue
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        status = entry.stat()
                        found.append((entry.name, status.st_size, status.st_mtime_ns // 1_000_000))
        except OSError as error:
            raise _refused("list the folder", error) from error
        return found

    def delete(self, key: str) -> None:
        """See :class:`~bunqueue_core.plugins.drivers.BackupStore`."""
        try:
            self._file(key).unlink(missing_ok=True)
        except OSError as error:
            raise _refused("delete a file", error) from error

    def tidy(self, before: int) -> int:
        """See :class:`~bunqueue_core.plugins.drivers.BackupStore`."""
        removed = 0
        try:
            for path in self._folder.glob(f"{_PART_PREFIX}*{_PART_SUFFIX}"):
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime_ns // 1_000_000 < before:
                        path.unlink()
                        removed += 1
        except OSError as error:
            raise _refused("list the folder", error) from error
        return removed

    def close(self) -> None:
        """Nothing is held open."""

    def _part(self) -> Path:
        return self._folder / f"{_PART_PREFIX}{uuid.uuid4()}{_PART_SUFFIX}"

    def _file(self, key: str) -> Path:
        if not key or key.startswith(".") or "/" in key or "\0" in key or os.sep in key:
            raise StoreError(f"'{key}' is not the name of a file in backup.folder")
        return self._folder / key


def _refused(doing: str, error: OSError) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(f"cannot {doing} in backup.folder: its disk is full")
    words = error.strerror or type(error).__name__
    return StoreError(f"cannot {doing} in backup.folder: {words}", retryable=error.errno in _PASSING)


def _open(settings: FolderBackup, context: OpenContext) -> FolderStore:
    return FolderStore(settings.folder)


def _describe(settings: Any) -> Mapping[str, str]:
    return {"folder": str(settings.folder)}


#: The target as it is registered by :mod:`bunqueue_core.plugins.builtin`.
FOLDER_TARGET = BackupTarget(name="folder", settings=FolderBackup, open=_open, describe=_describe, label="Folder")

__all__ = ["FOLDER_TARGET", "FolderBackup", "FolderStore"]
