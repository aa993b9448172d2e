"""The database as a file: copied, checked and replaced, for backups and restores.

A restore puts the old database's log and shared memory aside (quarantine) before it renames the candidate over the database: a
new database beside an old log would be a damaged one. A process that is killed in between leaves the quarantine; whether the
candidate is still there says how far it came. While it is, nothing has been replaced, and what was put aside goes back; once it is
gone, it *is* the database, and what was put aside goes away. Every owner of the file settles that first (:func:`settle`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from bunqueue_core.model.errors import JournalError
from bunqueue_sqlite.errors import journal_error
from bunqueue_sqlite.files import OwnerLock, check_place, resolve
from bunqueue_sqlite.incoming import copy_into
from bunqueue_sqlite.schema import APPLICATION_ID, SCHEMA_VERSION, VERSION_TABLE
from bunqueue_sqlite.settings import SqliteStorage

#: How long a snapshot waits for a lock that another process holds, ms.
BUSY_TIMEOUT_MS: Final = 30_000

#: Memory for pages of a file that is read from one end to the other, KiB.
CACHE_KIB: Final = 8_000

#: What SQLite puts beside a database, in the order in which it is put aside.
SIDECARS: Final = ("-wal", "-shm", "-journal")

_MAGIC: Final = b"SQLite format 3\0"
_DAMAGED: Final = "Database integrity check failed: corrupt or invalid database"

#: Errors by which file systems say that folders cannot be synced there.
_NO_SUCH_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF})

#: How much of what the integrity check found is told.
_FINDINGS: Final = 3

Log = Callable[..., None]


class SqliteFiles:
    """A :class:`~bunqueue_core.storage.journal.SnapshotFiles` of the database that ``settings`` name.

    Args:
        settings: where it is.
    """

    def __init__(self, settings: SqliteStorage) -> None:
        self._settings = settings
        self._path = resolve(settings.data_path)
        self._reading: apsw.Connection | None = None

    @property
    def path(self) -> Path:
        """The resolved path of the database."""
        return self._path

    # -- reading ------------------------------------------------------------------------------------------------------

    def snapshot(self, path: Path) -> None:
        """Copy what is committed to ``path``, whether or not a process has the database open.

        Args:
            path: the file to make; it must not exist.

        Raises:
            JournalError: there is no database, a restore of it was interrupted, or the copy cannot be written (``disk_full``).
        """
        if not self._path.is_file():
            raise JournalError(f"Database file not found: {self._path}")
        if path.exists():
            raise JournalError("cannot make a snapshot: the file exists already")
        if any(self.candidate(tag).exists() for tag in _quarantined(self._path)):
            raise JournalError(
                "cannot make a snapshot: a restore of the database runs or was interrupted; start the server or restore again"
            )
        try:
            # Writable, although nothing is written: only then does SQLite remove its log and shared memory when it closes as the
            # last one. Where that is not allowed, reading is.
            try:
                self._copy(path, apsw.SQLITE_OPEN_READWRITE)
            except (apsw.ReadOnlyError, apsw.CantOpenError):
                path.unlink(missing_ok=True)
                self._copy(path, apsw.SQLITE_OPEN_READONLY)
        except BaseException as error:
            for leftover in (path, *_sidecars(path)):
                with contextlib.suppress(OSError):
                    leftover.unlink(missing_ok=True)
            if isinstance(error, apsw.Error | OSError):
                raise journal_error(error, "make a snapshot") from error
            raise

    def _copy(self, path: Path, flags: int) -> None:
        connection = apsw.Connection(str(self._path), flags=flags)
        self._reading = connection
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            _read_once(connection)
            copy_into(connection, path)
        finally:
            self._reading = None
            connection.close()

    def inspect(self, path: Path) -> Mapping[str, int]:
        """Check that ``path`` is a whole database of ours, in a version that we know; gives its rows by table."""
        with open(path, "rb") as file:
            header = file.read(100)
        if not header.startswith(_MAGIC):
            raise JournalError("Restored data is not a valid SQLite database")
        try:
            # Nobody else has it: no locks, no log, no shared memory.
            connection = apsw.Connection(
                f"file:{quote(str(path))}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            )
        except apsw.Error as error:
            raise JournalError(_DAMAGED) from error
        self._reading = connection
        try:
            _read_once(connection)
            found = [str(text) for (text,) in connection.execute(f"PRAGMA integrity_check({_FINDINGS})")]
            if found != ["ok"]:
                raise JournalError(f"Database integrity check failed: {'; '.join(found)}")
            names = [
                str(name)
                for (name,) in connection.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name"
                )
            ]
            _check_ours(connection, header, names)
            return {
                name: _number(connection, f'SELECT count(*) FROM "{_quoted(name)}"')
                for name in names
                if name != VERSION_TABLE
            }
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise JournalError(_DAMAGED) from error
        except apsw.Error as error:
            raise journal_error(error, "check the database") from error
        finally:
            self._reading = None
            connection.close()

    def interrupt(self) -> None:
        """End a snapshot or an inspection that runs in another thread."""
        connection = self._reading
        if connection is not None:
            with contextlib.suppress(apsw.Error):
                connection.interrupt()

    # -- replacing ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Hold the database for this process; settles what an interrupted restore left behind.

        Raises:
            JournalError: another process has it; the message names that process.
            ConfigurationError: its place cannot be used.
        """
        check_place(self._path, allow_network=self._settings.allow_network_filesystem)
        owner = OwnerLock(self._path)
        owner.acquire()
        try:
            settle(self._path)
            yield
        finally:
            owner.release()

    def candidate(self, tag: str) -> Path:
        """Where the candidate of a restore lies."""
        return _candidate(self._path, tag)

    def install(self, tag: str) -> Sequence[str]:
        """Put the candidate in the database's place; see the module's head.

        Returns:
            Names of files that were put aside and could not be removed.

        Raises:
            JournalError: it could not be put there. The database is as it was; or, if even that is not possible, what is left to be
                done is done by the next owner.
        """
        path = self._path
        candidate = self.candidate(tag)
        aside = [(sidecar, _aside(sidecar, tag)) for sidecar in _sidecars(path) if sidecar.exists()]
        moved: list[tuple[Path, Path]] = []
        try:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(candidate, path.stat().st_mode & 0o7777)
            for sidecar, hidden in aside:
                os.rename(sidecar, hidden)
                moved.append((sidecar, hidden))
            _sync(
                path.parent
            )  # first the old log is aside, then the new database is there: in this order on the disk, too
            os.replace(candidate, path)
        except OSError as error:
            problems = [error.strerror or type(error).__name__]
            for sidecar, hidden in reversed(moved):
                try:
                    os.rename(hidden, sidecar)
                except OSError as second:
                    problems.append(f"{sidecar.name}: {second.strerror or type(second).__name__}")
            if len(problems) > 1:
                raise JournalError(f"Restore failed and sidecar rollback failed: {'; '.join(problems)}") from error
            raise journal_error(error, "put the restored database in its place") from error
        # It has happened: nothing that follows may make a failure of it.
        try:
            _sync(path.parent)
        except OSError:
            # The old log is needed if a loss of power undoes the last step. Whoever owns the database next removes it.
            return [hidden.name for _, hidden in moved]
        return [*_removed(hidden for _, hidden in moved), *_removed(_sidecars(candidate))]

    def discard(self, tag: str) -> None:
        """Remove the candidate, unless an installation failed half-way: then it says that nothing was replaced.

        What cannot be looked for or removed is left to the next owner.
        """
        with contextlib.suppress(OSError):
            if tag not in _quarantined(self._path):
                _removed([*_sidecars(self.candidate(tag)), self.candidate(tag)])


def settle(path: Path, log: Log | None = None) -> None:
    """Finish or take back what a restore left that was killed; only the owner of the database may call it.

    Args:
        path: the resolved path of the database.
        log: told what was done.

    Raises:
        JournalError: it cannot be settled.
    """
    try:
        for tag, hidden in _quarantined(path).items():
            candidate = _candidate(path, tag)
            if candidate.exists():
                _refuse_rivals(hidden)
                for sidecar, aside in reversed(hidden):
                    os.rename(aside, sidecar)
                _sync(path.parent)
                text = "Took back a restore that was interrupted: the database is as it was before"
            else:
                _removed(aside for _, aside in hidden)
                text = "Finished a restore that was interrupted: the database is the restored one"
            if log is not None:
                log("warn", text, files=[sidecar.name for sidecar, _ in hidden])
        # No restore is running, since this process owns the database.
        leftovers = [entry for entry in _beside(path) if _is_restore_file(path, entry)]
        _removed(path.with_name(name) for name in leftovers)
    except OSError as error:
        raise journal_error(error, "settle a restore that was interrupted") from error


def _refuse_rivals(hidden: list[tuple[Path, Path]]) -> None:
    """What was put aside must not replace what another program has written since."""
    for sidecar, aside in hidden:
        if not sidecar.name.endswith("-shm") and sidecar.exists() and sidecar.stat().st_size:
            raise JournalError(
                "a restore of the database was interrupted, and another program has written to the database since:"
                f" '{sidecar.name}' and '{aside.name}' belong to different states of it; remove one of them"
            )


def _candidate(path: Path, tag: str) -> Path:
    return path.with_name(f"{path.name}.restore-{tag}.tmp")


def _is_restore_file(path: Path, name: str) -> bool:
    """Candidates of restores, what SQLite put beside them, and downloads."""
    return re.fullmatch(rf"{re.escape(path.name)}\.restore-.*\.tmp(-wal|-shm|-journal)?", name) is not None


def _aside(sidecar: Path, tag: str) -> Path:
    return sidecar.with_name(f"{sidecar.name}.restore-quarantine-{tag}")


def _quarantined(path: Path) -> dict[str, list[tuple[Path, Path]]]:
    """By tag of the restore, (its own name, its present name) of each file that was put aside, in that order."""
    found: dict[str, list[tuple[Path, Path]]] = {}
    names = _beside(path)
    for sidecar in _sidecars(path):
        prefix = f"{sidecar.name}.restore-quarantine-"
        for name in names:
            if name.startswith(prefix):
                found.setdefault(name.removeprefix(prefix), []).append((sidecar, sidecar.with_name(name)))
    return found


def _beside(path: Path) -> list[str]:
    """Names in the database's folder that begin with its name."""
    try:
        with os.scandir(path.parent) as entries:
            return sorted(entry.name for entry in entries if entry.name.startswith(path.name))
    except FileNotFoundError:
        return []


def _sidecars(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in SIDECARS]


def _removed(paths: Iterator[Path] | Sequence[Path]) -> list[str]:
    """Remove files; gives the names of those that could not be."""
    left = []
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            left.append(path.name)
    return left


def _check_ours(connection: apsw.Connection, header: bytes, names: list[str]) -> None:
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID or VERSION_TABLE not in names:
        if {"jobs", "migrations", "queue_events"} <= set(names):
            raise JournalError("the backup is of the bunqueue server for Bun, whose schema is its own")
        raise JournalError("the backup is a database of another program")
    version = _number(connection, f"SELECT coalesce(max(version), 0) FROM {VERSION_TABLE}")
    if not 0 < version <= SCHEMA_VERSION:
        raise JournalError(
            f"the backup has schema version {version}, and this version of bunqueue_sqlite knows versions up to {SCHEMA_VERSION};"
            " upgrade bunqueue_sqlite first"
        )


def _number(connection: apsw.Connection, sql: str) -> int:
    ((value,),) = connection.execute(sql).fetchall()
    assert isinstance(value, int)
    return value


def _read_once(connection: apsw.Connection) -> None:
    """Read pages through a small cache. Mapped, the whole file would count as resident memory."""
    for pragma in ("PRAGMA mmap_size = 0", f"PRAGMA cache_size = -{CACHE_KIB}"):
        connection.execute(pragma).fetchall()


def _quoted(name: str) -> str:
    return name.replace('"', '""')


def _sync(folder: Path) -> None:
    """Have names that were changed in a folder survive the loss of power, where the system offers that."""
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


__all__ = ["SqliteFiles", "settle"]
