"""``SqliteJournal``: what the in-process engine decides, kept in one SQLite file."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import apsw

from bunqueue_core.model.errors import ConfigurationError, JournalError
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.storage.changes import ChangeSet, DlqRow, QueueRow, Table
from bunqueue_core.storage.journal import StoredJob
from bunqueue_sqlite import schema
from bunqueue_sqlite.checkpoints import CHECKPOINT_PAGES, LOG_SIZE_LIMIT, Checkpoints
from bunqueue_sqlite.errors import UNSTORABLE, journal_error
from bunqueue_sqlite.files import OwnerLock, check_place, resolve
from bunqueue_sqlite.incoming import MOST_ROWS, Quiet, copy_into, incoming
from bunqueue_sqlite.reading import Reader
from bunqueue_sqlite.settings import SqliteStorage
from bunqueue_sqlite.snapshots import settle
from bunqueue_sqlite.statements import Bound, Planner, single_statement_views

#: Oldest SQLite of the live connection: 3.51.3 mends the WAL-reset bug, by which a checkpoint beside a commit could lose pages.
REQUIRED_SQLITE: Final = (3, 51, 3)

#: How long a statement waits for a lock that another process holds, ms.
BUSY_TIMEOUT_MS: Final = 5_000

#: Time after which BEGIN, or the insert of a small add, must have waited for something, s. They take some 2 and 20 µs; beside a
#: thread that is busy in Python they take as long as that thread may keep the interpreter (5 ms, ``sys.getswitchinterval``).
CONTENDED_S: Final = 0.001

#: Commits that take this to go on before they look again.
CONTENDED_COMMITS: Final = 50

#: Commits after which the size of the log is looked at.
LOOK_COMMITS: Final = 16

#: Memory for pages while a snapshot is made, KiB. It reads every page once; a larger cache would only push memory up.
SNAPSHOT_CACHE_KIB: Final = 8_000

#: Compiled statements kept a connection (apsw's cache, least recently used first out).
_STATEMENTS: Final = 192

_READ_PRAGMAS: Final = (
    "PRAGMA cache_size = -16000",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA mmap_size = 268435456",
    "PRAGMA query_only = 1",
)

_SHOWN_PRAGMAS: Final = (
    "application_id",
    "user_version",
    "encoding",
    "page_size",
    "page_count",
    "freelist_count",
    "journal_mode",
    "synchronous",
    "cache_size",
    "temp_store",
    "mmap_size",
    "busy_timeout",
    "journal_size_limit",
    "wal_autocheckpoint",
)


class SqliteJournal:
    """A :class:`~bunqueue_core.storage.journal.Journal` in a SQLite file that this process owns.

    One connection writes, one reads, loads and snapshots open their own. ``commit`` is called from one thread at a time; everything
    else may be called beside it.

    Args:
        settings: where the file is and how it is written.
        context: clock and log.
        vfs: SQLite's file layer to use, by name; "" is the operating system's. Tests put faults there.
    """

    def __init__(self, settings: SqliteStorage, context: OpenContext, *, vfs: str = "") -> None:
        self._settings = settings
        self._context = context
        self._vfs = vfs
        self._path = resolve(settings.data_path)
        self._planner = Planner()
        self._contended = 0  #: commits that are still taken to be beside a busy thread
        self._slow = False  #: the last commit of a single statement was
        self._incoming = 0  #: rows of small adds that are not in ``jobs`` yet, or more, never fewer
        self._commits = 0
        self._quiet: Quiet | None = None
        self._commit_lock = threading.Lock()
        self._snapshot_lock = threading.Lock()
        self._snapshotting: apsw.Connection | None = None
        self._owner: OwnerLock | None = None
        self._live: apsw.Connection | None = None
        self._execute: Callable[..., Any] | None = None
        self._reader: Reader | None = None
        self._checkpoints: Checkpoints | None = None
        self._until_look = LOOK_COMMITS
        self._of_parent: tuple[Any, ...] = ()
        self._fork_noticed = False

    @property
    def path(self) -> Path:
        """The resolved path of the database."""
        return self._path

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the file for this process, bring its schema up to date, and connect.

        Raises:
            ConfigurationError: the file cannot be used: its folder is missing, it is on a network file system, it belongs to
                another program or to a newer version, or SQLite is too old.
            JournalError: another process owns it (``busy``), or it cannot be read or written.
        """
        if self._live is not None:
            raise JournalError("the journal is open already")
        check_library()
        check_place(self._path, allow_network=self._settings.allow_network_filesystem)
        owner = OwnerLock(self._path)
        owner.acquire()
        try:
            settle(self._path, self._context.log)
            # Until here nobody in this process may have the file open: reading its header closes a handle on it, which would drop
            # the locks of another connection.
            schema.prepare(self._path, now=self._context.ports.now, log=self._context.log, vfs=self._vfs)
            live = self._connect_live()
            try:
                left = len(live.execute(f"SELECT 1 FROM {schema.INCOMING_TABLE}").fetchall())
                self._reader = Reader(self._connect_reader, self._planner)
            except BaseException:
                live.close()
                raise
        except apsw.Error as error:
            owner.release()
            raise journal_error(error, "open the database") from error
        except BaseException:
            owner.release()
            raise
        self._owner = owner
        self._live = live
        self._incoming = left
        self._execute = live.cursor().execute
        self._quiet = Quiet(lambda: self._commits, self._move_when_quiet)
        if not self._move_when_quiet():
            self._quiet.begin()  # a full disk, for instance: all can be read as it is
        self._checkpoints = Checkpoints(
            partial(self._connect, apsw.SQLITE_OPEN_READWRITE),
            self.log_bytes,
            self._checkpoint_automatically,
            self._context.log,
        )
        if hasattr(os, "register_at_fork") and not self._fork_noticed:
            self._fork_noticed = True
            forked = weakref.WeakMethod(self._after_fork_in_child)

            def leave() -> None:
                method = forked()
                if method is not None:
                    method()

            os.register_at_fork(after_in_child=leave)

    def close(self) -> None:
        """Carry the log over into the file, so that only the file is left, and give it back. Idempotent."""
        quiet, self._quiet = self._quiet, None
        if quiet is not None:
            quiet.stop()
            self._move_when_quiet()
        checkpoints, self._checkpoints = self._checkpoints, None
        if checkpoints is not None:
            checkpoints.stop()
        with self._commit_lock:
            live, self._live = self._live, None
            self._execute = None
        if live is None:
            return
        snapshotting = self._snapshotting
        if snapshotting is not None:
            with contextlib.suppress(apsw.Error):
                snapshotting.interrupt()
        with self._snapshot_lock:
            pass  # an interrupted snapshot ends at once
        reader, self._reader = self._reader, None
        owner, self._owner = self._owner, None
        try:
            if reader is not None:
                reader.close()
            live.set_busy_timeout(0)
            live.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            # Nothing is lost: the log stays beside the file, and the next opening reads it.
            self._context.log(
                "warn",
                "SQLite log left beside the database",
                error=str(journal_error(error, "checkpoint", system_errno=live.system_errno)),
            )
        finally:
            with contextlib.suppress(apsw.Error):
                live.close()
            if owner is not None:
                owner.release()

    def _connect(self, flags: int, *, statements: int = 100) -> apsw.Connection:
        return apsw.Connection(str(self._path), flags=flags, vfs=self._vfs or None, statementcachesize=statements)

    def _connect_live(self) -> apsw.Connection:
        connection = self._connect(apsw.SQLITE_OPEN_READWRITE, statements=_STATEMENTS)
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            mode = connection.pragma("journal_mode", "WAL")
            if mode != "wal":
                raise ConfigurationError(
                    f"storage.dataPath: the file system of '{self._path}' does not offer what SQLite's write-ahead log needs"
                    f" (shared memory); choose another one (journal mode stays '{mode}')"
                )
            for pragma in (
                f"PRAGMA synchronous = {self._settings.synchronous.upper()}",
                "PRAGMA cache_size = -64000",
                "PRAGMA temp_store = MEMORY",
                "PRAGMA mmap_size = 268435456",
                f"PRAGMA journal_size_limit = {LOG_SIZE_LIMIT}",
                f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}",
            ):
                connection.execute(pragma).fetchall()
            for statement in single_statement_views():
                connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_reader(self) -> apsw.Connection:
        connection = self._connect(apsw.SQLITE_OPEN_READONLY)
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            for pragma in _READ_PRAGMAS:
                connection.execute(pragma).fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _after_fork_in_child(self) -> None:
        """SQLite's connections must not be used across a fork, and the lock is the parent's: leave both alone."""
        # kept referred to, so that nothing closes them here
        self._of_parent = (self._live, self._execute, self._reader, self._checkpoints, self._quiet)
        self._live = self._execute = self._reader = self._checkpoints = self._quiet = None
        self._commit_lock = threading.Lock()
        self._snapshot_lock = threading.Lock()
        self._snapshotting = None
        if self._owner is not None:
            self._owner.abandon()
            self._owner = None

    # -- write --------------------------------------------------------------------------------------------------------

    def commit(self, changes: ChangeSet) -> None:
        """Apply ``changes`` in one transaction.

        When it returns they survive the end of the process and, with ``synchronous`` full, the loss of power.

        Raises:
            JournalError: nothing was applied; ``disk_full`` and ``busy`` say why where that is known. The next commit may succeed.
        """
        contended = self._contended
        if contended:
            self._contended = contended - 1
        # Beside a busy thread statements count, not pages, and what goes the short way needs more of them later.
        small = incoming(changes) if not contended else None
        statements = [small] if small is not None else self._planner.plan(changes, contended > 0)
        with self._commit_lock:
            if small is not None and self._incoming < MOST_ROWS:
                # Counted first, and still if it fails: whatever strikes once they are committed, nothing may come before them.
                self._incoming += len(changes.put)
                self._apply(statements)
                quiet = self._quiet  # read once: a close beside this takes it away
                if quiet is not None:
                    quiet.begin()
            elif self._incoming:
                self._apply([*statements, *_MOVE_INCOMING] if small is not None else [*_MOVE_INCOMING, *statements])
                self._incoming = 0
            else:
                self._apply(statements)
            self._commits += 1
        self._until_look -= 1
        if not self._until_look:
            self._until_look = LOOK_COMMITS
            checkpoints = self._checkpoints
            if checkpoints is not None:
                checkpoints.look()

    def _apply(self, statements: Sequence[Bound]) -> None:
        """Run statements in one transaction. Under the commit lock.

        Raises:
            JournalError: it was rolled back.
        """
        execute = self._execute
        if execute is None:
            raise JournalError("the journal is closed")
        try:
            begun = perf_counter()
            if len(statements) == 1:
                execute(*statements[0])  # a statement is a transaction
                # One that carries the log over takes long, too, but not the next.
                slow = perf_counter() - begun > CONTENDED_S
                if slow and self._slow:
                    self._contended = CONTENDED_COMMITS
                self._slow = slow
            elif statements:
                execute("BEGIN IMMEDIATE")
                if perf_counter() - begun > CONTENDED_S:
                    self._contended = CONTENDED_COMMITS
                for sql, values in statements:
                    execute(sql, values)
                execute("COMMIT")
        except BaseException as error:
            live = self._live
            assert live is not None
            code = live.system_errno if isinstance(error, apsw.Error) else 0
            if live.in_transaction:
                with contextlib.suppress(apsw.Error):  # a failing rollback ends the transaction as well
                    execute("ROLLBACK")
            if isinstance(error, (apsw.Error, *UNSTORABLE)):
                raise journal_error(error, "commit", system_errno=code) from error
            raise

    def _move_incoming(self) -> None:
        """Move small adds on to ``jobs``.

        Raises:
            JournalError: they are where they were, and safe.
        """
        if self._incoming:
            with self._commit_lock:
                if self._incoming:
                    self._apply(_MOVE_INCOMING)
                    self._incoming = 0

    def _move_when_quiet(self) -> bool:
        try:
            self._move_incoming()
        except JournalError:  # they are safe, and the next commit comes across it
            return False
        return True

    def checkpoint_when_idle(self) -> None:
        """Carry the log over into the file and cut it to nothing. Worth calling when nothing has been committed for a while.

        Returns at once; a thread does it. What a reader still needs stays in the log.
        """
        checkpoints = self._checkpoints
        if checkpoints is not None:
            checkpoints.now()

    def wait_for_checkpoint(self, timeout_s: float) -> bool:
        """Wait until the log is as small as it can be made now. False if it is not after ``timeout_s`` seconds."""
        checkpoints = self._checkpoints
        return checkpoints is None or checkpoints.wait(timeout_s)

    def _checkpoint_automatically(self, pages: int) -> None:
        with self._commit_lock:
            if self._live is not None:
                self._live.wal_autocheckpoint(pages)

    # -- start --------------------------------------------------------------------------------------------------------

    def load_queues(self) -> list[QueueRow]:
        """All stored controls."""
        return self._reading.load_queues()

    def load_active(self, limit: int) -> list[StoredJob]:
        """Up to ``limit`` jobs in state ``active``, by ``started_at``."""
        return self._reading.load_active(limit)

    def load_pending(self, batch_size: int) -> Iterator[list[StoredJob]]:
        """Waiting jobs by priority descending, ``run_at``, ``id``, all as they were when the first batch was asked for."""
        yield from self._reading.load_pending(batch_size, incoming=self._incoming > 0)

    def load_dlq(self, batch_size: int) -> Iterator[list[DlqRow]]:
        """Dead letters by ``entered_at``, ``id``."""
        return self._reading.load_dlq(batch_size)

    def load_completed(self, limit: int, batch_size: int) -> Iterator[list[StoredJob]]:
        """The newest ``limit`` completed jobs, newest first."""
        return self._reading.load_completed(limit, batch_size)

    def completed_counts(self) -> dict[str, int]:
        """Number of completed jobs of each queue that has any."""
        return self._reading.completed_counts(incoming=self._incoming > 0)

    def load_table(self, table: Table) -> list[tuple[Any, ...]]:
        """All rows of a further table in its order."""
        return self._reading.load_table(table)

    # -- read ---------------------------------------------------------------------------------------------------------

    def read_jobs(self, ids: Sequence[str]) -> dict[str, StoredJob]:
        """Stored jobs by id; ids without a row are left out."""
        return self._reading.read_jobs(ids, incoming=self._incoming > 0)

    def read_results(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Stored results by job id."""
        return self._reading.read_results(ids)

    def read_completed(self, queue: str, offset: int, limit: int, ascending: bool) -> list[StoredJob]:
        """Completed jobs of ``queue`` by ``created_at``, ``id``."""
        return self._reading.read_completed(queue, offset, limit, ascending)

    def completed_before(self, queue: str | None, before: int, limit: int) -> list[tuple[str, str]]:
        """(id, queue) of up to ``limit`` jobs completed at or before ``before`` (epoch ms), oldest first."""
        return self._reading.completed_before(queue, before, limit)

    def read_rows(self, table: Table, keys: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Rows of a further table by key; keys without a row are left out."""
        return self._reading.read_rows(table, keys)

    @property
    def _reading(self) -> Reader:
        reader = self._reader
        if reader is None:
            raise JournalError("the journal is closed")
        return reader

    # -- snapshot -----------------------------------------------------------------------------------------------------

    def snapshot(self, path: Path) -> None:
        """Write a consistent, compact copy to ``path``, beside running commits.

        Args:
            path: the file to make; it must not exist, its folder must.

        Raises:
            JournalError: it exists, or cannot be written (``disk_full``). No part of it is left.
        """
        with self._snapshot_lock:
            if self._live is None:
                raise JournalError("the journal is closed")
            if path.exists():
                raise JournalError("cannot make a snapshot: the file exists already")
            try:
                self._vacuum_into(path)
                _sync(path)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    path.unlink()
                if isinstance(error, apsw.Error | OSError):
                    raise journal_error(error, "make a snapshot") from error
                raise

    def _vacuum_into(self, path: Path) -> None:
        connection = self._connect(apsw.SQLITE_OPEN_READONLY)
        self._snapshotting = connection
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            # Without mmap: it would show up as resident memory of the size of what is read.
            for pragma in ("PRAGMA mmap_size = 0", f"PRAGMA cache_size = -{SNAPSHOT_CACHE_KIB}"):
                connection.execute(pragma).fetchall()
            copy_into(connection, path)
        finally:
            self._snapshotting = None
            connection.close()

    def pragmas(self) -> dict[str, int | str]:
        """How the file is written: the settings of the connection that commits, and the version of SQLite."""
        with self._commit_lock:
            live = self._live
            if live is None:
                raise JournalError("the journal is closed")
            try:
                return {
                    "sqlite_version": apsw.sqlite_lib_version(),
                    **{name: live.pragma(name) for name in _SHOWN_PRAGMAS},
                }
            except apsw.Error as error:
                raise journal_error(error, "read") from error

    def size_bytes(self) -> int:
        """Bytes of the database file."""
        return _size(self._path)

    def log_bytes(self) -> int:
        """Bytes of the log beside it."""
        return _size(self._path.with_name(self._path.name + "-wal"))


_MOVE_INCOMING: Final[list[Bound]] = [(sql, ()) for sql in schema.MOVE_INCOMING]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def check_library(version: str | None = None) -> None:
    """Refuse a SQLite that is too old.

    Args:
        version: version of the library; None asks the one that apsw brings.

    Raises:
        ConfigurationError: it is older than :data:`REQUIRED_SQLITE`.
    """
    version = version if version is not None else apsw.sqlite_lib_version()
    found = tuple(int(part) for part in version.split(".")[:3])
    if found < REQUIRED_SQLITE:
        needed = ".".join(map(str, REQUIRED_SQLITE))
        raise ConfigurationError(
            f"storage.driver 'sqlite' needs SQLite {needed} or newer, which mends a bug that can damage a database; apsw"
            f" brings {version}: upgrade it (pip install --upgrade 'apsw>={needed}')"
        )


def _sync(path: Path) -> None:
    """Make the finished file survive the loss of power: VACUUM INTO leaves that to the operating system."""
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
