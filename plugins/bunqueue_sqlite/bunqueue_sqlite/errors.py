"""SQLite's errors as journal errors: what went wrong in words, without SQL, values or paths."""

from __future__ import annotations

import errno
import sqlite3

import apsw

from bunqueue_core.model.errors import JournalError

#: errno values that mean the same as SQLITE_FULL where SQLite reports a plain I/O error (a quota, a file that may not grow).
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_WORDS: tuple[tuple[type[apsw.Error], str], ...] = (
    (apsw.CorruptError, "the database file is damaged; look at it with 'bunqueue db check', and restore a backup"),
    (apsw.NotADBError, "the file is not a database"),
    (apsw.ReadOnlyError, "the database file cannot be written"),
    (apsw.CantOpenError, "the database file cannot be opened"),
    (apsw.PermissionsError, "access to the database file is denied"),
    (apsw.IOError, "the disk reported an error"),
    (apsw.ConstraintError, "a value does not fit its column"),
    (apsw.TooBigError, "a value is larger than SQLite can store"),
    (apsw.NoMemError, "out of memory"),
    (apsw.InterruptError, "interrupted"),
    (apsw.ConnectionClosedError, "the journal is closed"),
)

#: What binding a value raises that SQLite has no type for, or that has no UTF-8 form, or that does not fit 64 bits.
UNSTORABLE = (TypeError, ValueError, OverflowError)


def journal_error(error: Exception, doing: str, *, system_errno: int = 0) -> JournalError:
    """The journal error for ``error``, to be raised from it.

    Args:
        error: what SQLite, or the binding of a value, raised.
        doing: what was tried, for the message ("commit", "read").
        system_errno: the operating system's error number of the connection's last failure, 0 if unknown.
    """
    if isinstance(error, JournalError):
        return error
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and system_errno in _NO_SPACE):
        return JournalError(f"cannot {doing}: the disk is full", disk_full=True)
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return JournalError(f"cannot {doing}: another process has locked the database", busy=True)
    if isinstance(error, apsw.Error):
        words = next((words for kind, words in _WORDS if isinstance(error, kind)), "SQLite refused")
        name = _code(error)
        return JournalError(f"cannot {doing}: {words}{f' ({name})' if name else ''}")
    if isinstance(error, sqlite3.Error):  # of the sqlite3 module, which has classes of its own for the same codes
        code = getattr(error, "sqlite_errorcode", 0)
        if code and code & 0xFF in apsw.mapping_result_codes:
            return journal_error(apsw.exception_for(code), doing)
        if "full" in str(error):
            return JournalError(f"cannot {doing}: the disk is full", disk_full=True)
        return JournalError(f"cannot {doing}: SQLite refused")
    if isinstance(error, OSError):
        full = error.errno in _NO_SPACE
        return JournalError(f"cannot {doing}: {error.strerror or type(error).__name__}", disk_full=full)
    return JournalError(f"cannot {doing}: a value of the change set cannot be stored ({type(error).__name__})")


def _code(error: apsw.Error) -> str | None:
    """The name of the extended result code, as SQLite's documentation lists it."""
    extended = getattr(error, "extendedresult", None)
    for code, names in (
        (extended, apsw.mapping_extended_result_codes),
        (getattr(error, "result", None), apsw.mapping_result_codes),
    ):
        name = names.get(code) if code is not None else None
        if isinstance(name, str):
            return name
    return None
