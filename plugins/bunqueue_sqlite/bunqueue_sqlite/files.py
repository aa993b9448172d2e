"""The file and its surroundings: where it may lie, and the lock that makes this process its only owner."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

from bunqueue_core.model.errors import ConfigurationError, JournalError

#: File systems (types of Linux' mount table) whose locks and shared memory mappings are not those of one machine: SQLite's
#: documentation asks for a local file system for WAL ("all processes must be on the same host").
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "fuse.glusterfs"}
)

_MOUNT_TABLE = Path("/proc/self/mountinfo")

#: Largest owner file that is read; ours has some 60 bytes.
_OWNER_FILE_BYTES = 4096


def resolve(data_path: str | Path) -> Path:
    """The real absolute path of the database: two spellings of one file give one path."""
    return Path(os.path.realpath(data_path))


def check_place(path: Path, *, allow_network: bool) -> None:
    """Refuse a path at which no database can be kept.

    Args:
        path: the resolved path of the database.
        allow_network: accept a network file system.

    Raises:
        ConfigurationError: the folder does not exist, the path is not a file, or it lies on a network file system.
    """
    if not path.parent.is_dir():
        raise ConfigurationError(
            f"storage.dataPath: the folder '{path.parent}' of the database '{path.name}' does not exist; create it first"
        )
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"storage.dataPath: '{path}' is not a file; name a file in an existing folder")
    if allow_network:
        return
    kind = file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigurationError(
            f"storage.dataPath: '{path}' lies on a network file system ({kind}), where locks and shared memory are not reliable"
            " and a database can be damaged; choose a local disk, or set storage.allowNetworkFilesystem to true"
        )


def file_system(path: Path, mount_table: str | None = None) -> str | None:
    """Type of the file system at ``path``, as Linux names it; None where there is no mount table to read.

    Args:
        path: a resolved path.
        mount_table: text in the format of ``/proc/self/mountinfo`` (proc(5)); None reads that file.
    """
    if mount_table is None:
        try:
            mount_table = _MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    best: tuple[int, str] | None = None
    text = str(path)
    for line in mount_table.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        kind = after.partition(" ")[0]
        if not separator or len(fields) < 5 or not kind:
            continue
        point = _unescape(fields[4])
        inside = point == "/" or text == point or text.startswith(point + "/")
        # of mounts on one point the last one hides the others
        if inside and (best is None or len(point) >= best[0]):
            best = (len(point), kind)
    return best[1] if best is not None else None


def _unescape(field: str) -> str:
    """Undo the octal escapes of a mount table (blank, tab, newline, backslash)."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


class OwnerLock:
    """An operating-system lock on a file beside the database, held while the database is open.

    The lock is on a file of its own, because closing any other handle on the database file in this process would drop a lock on
    that one. The file holds the owner's process id and host, for the message that a second opener gets. The lock goes with the
    process, however that ends; a file that was left behind is simply taken over.

    Args:
        database: the resolved path of the database; the lock file is ``<database>.owner``.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".owner")
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock without waiting.

        Raises:
            JournalError: another owner holds it (``busy``); the message names that owner.
            ConfigurationError: the lock file cannot be created, or the file system has no locks.
        """
        while True:
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
            except OSError as error:
                raise ConfigurationError(
                    f"storage.dataPath: cannot write '{self.path.name}' beside the database: {error.strerror};"
                    " the folder must be writable"
                ) from error
            try:
                if not _lock(fd):
                    raise JournalError(self._held(fd), busy=True)
                if not self._is_current(fd):
                    # an owner that was closing removed the file between our opening and our locking it
                    os.close(fd)
                    continue
                os.ftruncate(fd, 0)
                os.write(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
            except OSError as error:
                os.close(fd)
                raise ConfigurationError(
                    f"storage.dataPath: cannot lock '{self.path.name}' beside the database: {error.strerror};"
                    " choose a file system with locks"
                ) from error
            except BaseException:
                os.close(fd)
                raise
            self._fd = fd
            return

    def release(self) -> None:
        """Remove the file and give the lock back. Idempotent."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        # Removed while still locked: whoever opens the name from now on gets a file of its own; whoever has opened this one
        # already finds after locking that the name has gone on (see acquire).
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        os.close(fd)

    def abandon(self) -> None:
        """Close the inherited handle after a fork, in the child: the lock is the parent's, and must not outlive it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _held(self, fd: int) -> str:
        return (
            f"storage.dataPath: the database is in use by {_named(fd)}; one process owns a file: connect to that one as a client,"
            " stop it, or choose another file"
        )


def owner_of(database: Path) -> str | None:
    """Who has the database at a resolved path, in words; None if nobody has."""
    try:
        fd = os.open(database.with_name(database.name + ".owner"), os.O_RDWR)
    except OSError:
        return None
    try:
        return None if _lock(fd) else _named(fd)
    finally:
        os.close(fd)  # gives a lock that was just taken back


def _named(fd: int) -> str:
    """The owner that an owner file names."""
    owner = "another process"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        os.lseek(fd, 0, os.SEEK_SET)
        found = json.loads(os.read(fd, _OWNER_FILE_BYTES))
        owner = f"process {int(found['pid'])} on host {found['host']}"
        if int(found["pid"]) == os.getpid() and found["host"] == socket.gethostname():
            owner += ", this process"
    return owner


if sys.platform == "win32":
    import msvcrt

    #: The locked byte lies far behind the text, so that others can read that.
    _LOCKED_BYTE = 1 << 30

    def _lock(fd: int) -> bool:
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(fd, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _lock(fd: int) -> bool:
        # flock, not fcntl: it also tells two openers in one process apart
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
