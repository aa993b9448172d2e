"""From one version of the schema to the next: steps, and rewrites of payloads that may take long and may be interrupted.

A step's statements run in one transaction. Where its version also stores payloads in another form, the rows follow in transactions
of at most :data:`BATCH_ROWS` rows or :data:`BATCH_BYTES` of what they hold, each of which commits how far it came: a process that
is killed goes on behind the last batch that it committed, and no row is rewritten twice. The version is marked last; but from the
first of these transactions on older programs, which would not understand the new payloads, take the file for one of that version.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlite_utils import Database

from bunqueue_core.model.errors import ConfigurationError

#: Where our versions stand, one row for each that was applied.
VERSION_TABLE: Final = "bunqueue_schema"

#: How far rewrites have come; there only while a migration is under way.
PROGRESS_TABLE: Final = "bunqueue_migration"

#: Most rows that one transaction of a rewrite takes.
BATCH_ROWS: Final = 500

#: Most bytes of payload that it takes; a larger row is one by itself.
BATCH_BYTES: Final = 8 * 1024 * 1024

#: Time between two reports of progress, s.
REPORT_S: Final = 5.0

#: Writes one log record: level, message, fields.
Log = Callable[..., None]

#: Values of the rewritten columns → their new values, or None to leave the row as it is.
Rewriting = Callable[[tuple[Any, ...]], Sequence[Any] | None]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Rows of one table whose payloads a version stores in another form.

    Attributes:
        phase: its name, which progress is kept under; unique within its version.
        table: the table.
        key: its primary key, one column, in whose order rows are taken.
        columns: the columns that are read and written.
        rewrite: what becomes of a row's columns; called once a row.
    """

    phase: str
    table: str
    key: str
    columns: tuple[str, ...]
    rewrite: Rewriting


@dataclass(frozen=True, slots=True)
class Step:
    """What leads from the version before to ``version``.

    Attributes:
        version: the version that it leads to.
        apply: its statements; they run in one transaction, with the mark that the version is there unless ``rewrites`` follow.
        rewrites: payloads to rewrite after them, in order.
    """

    version: int
    apply: Callable[[Database], None]
    rewrites: tuple[Rewrite, ...] = ()


def mark(db: Database, version: int, now: int) -> None:
    """Record ``version``, in its table and in the header, where it can be read without opening the database."""
    db.table(VERSION_TABLE).insert({"version": version, "applied_at": now})
    db.execute(f"PRAGMA user_version = {version}")


class Migration:
    """Takes a database through the steps that it lacks.

    Args:
        db: a connection that nobody else can use the file beside, in autocommit mode.
        path: the file, for its size.
        now: epoch ms, for the marks.
        log: told about every step and about the progress of long ones.
        found: the version that the file has.
        target: the version to end at.
    """

    def __init__(self, db: Database, path: Path, *, now: Callable[[], int], log: Log, found: int, target: int) -> None:
        self._db = db
        self._path = path
        self._now = now
        self._log = log
        self._found = found
        self._target = target
        self._at = found
        self._begun = 0.0

    def run(self, steps: Sequence[Step]) -> None:
        """Apply those of ``steps`` that are due, in their order.

        Raises:
            ConfigurationError: they do not lead to the target.
            Exception: whatever a step raises. What was committed before stays; the next run goes on there.
        """
        self._begun = time.monotonic()
        resuming = PROGRESS_TABLE in self._db.table_names()
        self._tell(
            "Starting SQLite migration",
            databaseBytes=os.path.getsize(self._path),
            resuming=resuming,
            interruptionPolicy="start the same or a newer version again; do not downgrade",
        )
        try:
            for step in steps:
                if self._found < step.version <= self._target:
                    self._at = step.version
                    self._step(step)
            if self._at != self._target:
                raise ConfigurationError(
                    f"storage.dataPath: '{self._path}' has schema version {self._found}, from which there is no way to version"
                    f" {self._target}; open it with an earlier version of bunqueue_sqlite first"
                )
            self._db.execute(f"DROP TABLE IF EXISTS {PROGRESS_TABLE}")
        except BaseException as error:
            self._log(
                "error",
                "SQLite migration failed",
                **self._versions,
                failedVersion=self._at,
                durationMs=self._elapsed_ms,
                resumable=True,
                error=type(error).__name__,
            )
            raise

    def finished(self) -> None:
        """Report the end, once the connection is closed and the file has its final size."""
        self._tell("Completed SQLite migration", durationMs=self._elapsed_ms, databaseBytes=os.path.getsize(self._path))

    @property
    def _versions(self) -> dict[str, int]:
        return {"fromVersion": self._found, "toVersion": self._target}

    @property
    def _elapsed_ms(self) -> int:
        return round((time.monotonic() - self._begun) * 1000)

    def _tell(self, message: str, **fields: Any) -> None:
        self._log("info", message, **self._versions, **fields)

    def _step(self, step: Step) -> None:
        db = self._db
        started = time.monotonic()
        self._tell("Applying SQLite migration step", version=step.version)
        if not step.rewrites:
            db.execute("BEGIN EXCLUSIVE")
            step.apply(db)
            mark(db, step.version, self._now())
            db.execute("COMMIT")
        else:
            self._begin(step)
            for rewrite in step.rewrites:
                self._rewrite(step.version, rewrite)
            db.execute("BEGIN EXCLUSIVE")
            mark(db, step.version, self._now())
            db.execute(f"DELETE FROM {PROGRESS_TABLE} WHERE version = ?", (step.version,))
            db.execute("COMMIT")
        self._tell(
            "Completed SQLite migration step",
            version=step.version,
            durationMs=round((time.monotonic() - started) * 1000),
        )

    def _begin(self, step: Step) -> None:
        """The step's statements, and an entry for each of its rewrites; nothing if an earlier run came that far."""
        db = self._db
        db.execute("BEGIN EXCLUSIVE")
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {PROGRESS_TABLE} (version INTEGER NOT NULL, phase TEXT NOT NULL, last_key,"
            " processed_rows INTEGER NOT NULL DEFAULT 0, processed_bytes INTEGER NOT NULL DEFAULT 0,"
            " total_rows INTEGER NOT NULL, started_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,"
            " PRIMARY KEY (version, phase))"
        )
        if not db.execute(f"SELECT 1 FROM {PROGRESS_TABLE} WHERE version = ?", (step.version,)).fetchall():
            step.apply(db)
            now = self._now()
            for rewrite in step.rewrites:
                ((total,),) = db.execute(f'SELECT count(*) FROM "{rewrite.table}"').fetchall()
                db.execute(
                    f"INSERT INTO {PROGRESS_TABLE}(version, phase, total_rows, started_at, updated_at) VALUES(?,?,?,?,?)",
                    (step.version, rewrite.phase, total, now, now),
                )
            # Not the mark, but enough for older programs to leave the file alone.
            db.execute(f"PRAGMA user_version = {step.version}")
        db.execute("COMMIT")

    def _rewrite(self, version: int, rewrite: Rewrite) -> None:
        db = self._db
        ((last_key, rows, size, total),) = db.execute(
            f"SELECT last_key, processed_rows, processed_bytes, total_rows FROM {PROGRESS_TABLE}"
            " WHERE version = ? AND phase = ?",
            (version, rewrite.phase),
        ).fetchall()
        batches = _Batches(db, rewrite)
        reported: float | None = None
        while True:
            db.execute("BEGIN EXCLUSIVE")
            found = batches.rewrite_after(last_key)
            if found is not None:
                last_key, batch_rows, batch_bytes = found
                rows += batch_rows
                size += batch_bytes
                db.execute(
                    f"UPDATE {PROGRESS_TABLE} SET last_key = ?, processed_rows = ?, processed_bytes = ?, updated_at = ?"
                    " WHERE version = ? AND phase = ?",
                    (last_key, rows, size, self._now(), version, rewrite.phase),
                )
            db.execute("COMMIT")
            time_s = time.monotonic()
            if found is None or reported is None or time_s - reported >= REPORT_S:
                reported = time_s
                self._tell(
                    "SQLite migration progress",
                    version=version,
                    phase=rewrite.phase,
                    table=rewrite.table,
                    processedRows=rows,
                    totalRows=total,
                    processedBytes=size,
                    databaseBytes=os.path.getsize(self._path),
                    elapsedMs=self._elapsed_ms,
                    complete=found is None,
                )
            if found is None:
                return


class _Batches:
    """The rows of one rewrite, a batch at a time."""

    def __init__(self, db: Database, rewrite: Rewrite) -> None:
        self._execute = db.execute
        self._many = db.conn.executemany
        self._rewriting = rewrite.rewrite
        key = f'"{rewrite.key}"'
        columns = [f'"{name}"' for name in rewrite.columns]
        # Of a blob, length() reads only the record's head: a row of many megabytes is not loaded to learn how large it is.
        size = " + ".join(f"coalesce(length({name}), 0)" for name in columns)
        head = f'SELECT {key}, {size} FROM "{rewrite.table}"'
        self._first = f"{head} ORDER BY {key} LIMIT {BATCH_ROWS}"
        self._next = f"{head} WHERE {key} > ? ORDER BY {key} LIMIT {BATCH_ROWS}"
        self._read = (
            f'SELECT {", ".join(columns)}, {key} FROM "{rewrite.table}" WHERE {key} BETWEEN ? AND ? ORDER BY {key}'
        )
        self._write = f'UPDATE "{rewrite.table}" SET {", ".join(f"{name} = ?" for name in columns)} WHERE {key} = ?'

    def rewrite_after(self, last_key: Any) -> tuple[Any, int, int] | None:
        """Rewrite the batch behind ``last_key`` (None: the first). Gives its last key, rows and bytes; None if there is none."""
        if last_key is None:
            ahead = self._execute(self._first).fetchall()
        else:
            ahead = self._execute(self._next, (last_key,)).fetchall()
        if not ahead:
            return None
        rows = size = 0
        for _, row_size in ahead:
            if rows and size + row_size > BATCH_BYTES:
                break
            rows += 1
            size += row_size
        first, last = ahead[0][0], ahead[rows - 1][0]
        changed = []
        for *values, key in self._execute(self._read, (first, last)):
            rewritten = self._rewriting(tuple(values))
            if rewritten is not None:
                changed.append((*rewritten, key))
        self._many(self._write, changed)
        return last, rows, size


__all__ = ["BATCH_BYTES", "BATCH_ROWS", "PROGRESS_TABLE", "VERSION_TABLE", "Migration", "Rewrite", "Step", "mark"]
