"""Payload rewrites: bounded transactions, progress that commits with them, and what an interruption leaves behind."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bunqueue_sqlite import migration, schema
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_sqlite.migration import BATCH_BYTES, BATCH_ROWS, Rewrite, Step
from sqlite_utils import Database

from bunqueue_core.model.errors import ConfigurationError, JournalError
from bunqueue_core.storage.changes import ChangeSet, DlqRow, JobRow


def row(id: str, data: bytes | None = b"old:") -> JobRow:
    return JobRow(id, "q", "n", data, 0, 1, 1, "waiting")


def again(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A rewrite that shows how often it was done, and leaves out rows without a payload."""
    (data,) = values
    return None if data is None else (data + b"new",)


def add_column(db: Database) -> None:
    db.execute("ALTER TABLE jobs ADD COLUMN colour TEXT")


def step(rewrite: migration.Rewriting = again, version: int = 2) -> Step:
    return Step(
        version,
        add_column,
        (
            Rewrite("job-payloads", "jobs", "id", ("data",), rewrite),
            Rewrite("dead-letters", "dlq", "id", ("entry",), rewrite),
        ),
    )


def migrate(path: Path, log: Any, *steps: Step) -> None:
    schema.prepare(path, now=lambda: 5, log=log, steps=steps, target=steps[-1].version)


def payloads(path: Path) -> dict[Any, Any]:
    with sqlite3.connect(path) as connection:
        found = dict(connection.execute("SELECT id, data FROM jobs UNION ALL SELECT id, entry FROM dlq").fetchall())
    connection.close()
    return found


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    return names


def progress(log: Any) -> list[dict[str, Any]]:
    return [fields for _, message, fields in log if message == "SQLite migration progress"]


@pytest.fixture
def filled(journal: SqliteJournal, db: Path) -> Path:
    """A file of the older version: 1,234 jobs, every fifth without a payload, and 7 dead letters."""
    journal.commit(
        ChangeSet(
            put=[row(f"{n:04}", None if n % 5 == 0 else b"old:") for n in range(1_234)],
            dlq_put=[DlqRow(n, "x", "q", b"old:", n) for n in range(7)],
        )
    )
    journal.close()
    return db


def expected() -> dict[Any, Any]:
    return {f"{n:04}": None if n % 5 == 0 else b"old:new" for n in range(1_234)} | dict.fromkeys(range(7), b"old:new")


def test_every_row_is_rewritten_once(filled: Path, log: Any, make_journal: Any) -> None:
    migrate(filled, log, step())
    assert payloads(filled) == expected()
    assert migration.PROGRESS_TABLE not in tables(filled)
    first, *_, last = [fields for fields in progress(log) if fields["phase"] == "job-payloads"]
    assert (first["processedRows"], first["totalRows"], first["complete"]) == (BATCH_ROWS, 1_234, False)
    assert (last["processedRows"], last["totalRows"], last["complete"]) == (1_234, 1_234, True)
    for fields in progress(log):
        assert (fields["version"], fields["fromVersion"], fields["toVersion"]) == (2, 1, 2)
        assert fields["databaseBytes"] > 0
        assert fields["elapsedMs"] >= 0
    assert log.messages[0] == "Starting SQLite migration"
    assert log[0][2]["resuming"] is False
    assert log.messages[-2:] == ["Completed SQLite migration step", "Completed SQLite migration"]
    before = len(log)
    migrate(filled, log, step())
    assert len(log) == before


def test_transactions_are_bounded_by_rows_and_by_bytes(
    journal: SqliteJournal, db: Path, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [3_000_000] * 7 + [20_000_000, 1_000] + [9_000_000] * 2 + [10] * 1_200
    journal.commit(ChangeSet(put=[row(f"{n:04}", bytes(size)) for n, size in enumerate(sizes)]))
    journal.close()
    monkeypatch.setattr(migration, "REPORT_S", 0.0)
    seen: list[int] = []

    def look(values: tuple[Any, ...]) -> None:
        seen.append(len(values[0]))

    migrate(db, log, Step(2, add_column, (Rewrite("sizes", "jobs", "id", ("data",), look),)))
    assert seen == sizes
    ends = [(0, 0), *((fields["processedRows"], fields["processedBytes"]) for fields in progress(log))]
    batches = [(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in pairwise(ends)]
    assert all(rows <= BATCH_ROWS and (size <= BATCH_BYTES or rows == 1) for rows, size in batches)
    assert [rows for rows, _ in batches] == [2, 2, 2, 1, 1, 1, 1, 1, 500, 500, 200, 0]
    assert payloads(db) == {f"{n:04}": bytes(size) for n, size in enumerate(sizes)}


def test_progress_is_reported_at_most_every_five_seconds(
    filled: Path, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "BATCH_ROWS", 10)
    clock = [100.0]

    class Time:
        @staticmethod
        def monotonic() -> float:
            return clock[0]

    def slow(values: tuple[Any, ...]) -> None:
        clock[0] += 0.125

    monkeypatch.setattr(migration, "time", Time)
    migrate(filled, log, Step(2, add_column, (Rewrite("slow", "jobs", "id", ("data",), slow),)))
    reports = progress(log)
    # 1,234 rows of an eighth of a second: one after the first batch, one every five seconds, one at the end
    assert [fields["processedRows"] for fields in reports] == [10, *range(50, 1_234, 40), 1_234]
    assert [fields["elapsedMs"] for fields in reports[:3]] == [1_250, 6_250, 11_250]


class Stop(Exception):
    """An interruption placed by a test."""


def test_an_interrupted_rewrite_goes_on_where_it_was(filled: Path, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "BATCH_ROWS", 100)
    committed = 0
    places = (1, 250, 251, 1_000, 1_234, 1_237)  # of all 1,241 rows
    for place in places:
        calls = committed

        def interrupted(values: tuple[Any, ...], place: int = place) -> tuple[Any, ...] | None:
            nonlocal calls
            calls += 1
            if calls == place:
                raise Stop
            return again(values)

        with pytest.raises(Stop):
            migrate(filled, log, step(interrupted))
        level, message, fields = log[-1]
        assert (level, message) == ("error", "SQLite migration failed")
        assert (fields["resumable"], fields["failedVersion"], fields["error"]) == (True, 2, "Stop")
        # The batch that was under way is not there, the ones before it are. The last jobs and the dead letters are batches.
        committed = (place - 1) // 100 * 100 if place <= 1_234 else 1_234
        jobs = list(expected().items())
        half = {id: data if at < committed else data and b"old:" for at, (id, data) in enumerate(jobs)}
        assert payloads(filled) == half
    migrate(filled, log, step())
    assert payloads(filled) == expected()
    assert [fields["resuming"] for _, message, fields in log if message == "Starting SQLite migration"] == [
        False,
        *[True] * len(places),
    ]


def test_an_interrupted_migration_is_refused_by_an_older_program(
    filled: Path, log: Any, make_journal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(values: tuple[Any, ...]) -> None:
        raise Stop

    with pytest.raises(Stop):
        migrate(filled, log, step(stops))
    before = filled.read_bytes()
    with pytest.raises(ConfigurationError, match=r"schema version 2, .* versions up to\s+1; upgrade bunqueue_sqlite"):
        make_journal(filled).open()
    assert filled.read_bytes() == before
    assert [path.name for path in filled.parent.iterdir()] == [filled.name]
    migrate(filled, log, step())
    assert payloads(filled) == expected()


def test_versions_follow_one_another_each_resumable(filled: Path, log: Any) -> None:
    def stops(values: tuple[Any, ...]) -> None:
        raise Stop

    third = Step(3, lambda db: None, (Rewrite("job-payloads", "jobs", "id", ("data",), again),))
    broken = Step(3, lambda db: None, (Rewrite("job-payloads", "jobs", "id", ("data",), stops),))
    with pytest.raises(Stop):
        migrate(filled, log, step(), broken)
    with sqlite3.connect(filled) as connection:
        assert connection.execute("SELECT max(version) FROM bunqueue_schema").fetchone() == (2,)
    connection.close()
    migrate(filled, log, step(), third)
    assert payloads(filled)["0001"] == b"old:newnew"
    assert payloads(filled)[1] == b"old:new"
    assert log[-1][2]["fromVersion"] == 2


def test_a_full_disk_stops_the_start_and_nothing_is_lost(filled: Path, log: Any) -> None:
    def full(values: tuple[Any, ...]) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(JournalError) as caught:
        migrate(filled, log, step(full))
    assert caught.value.disk_full
    migrate(filled, log, step())
    assert payloads(filled) == expected()


def test_a_damaged_page_that_is_met_on_the_way_is_named(filled: Path, log: Any) -> None:
    with sqlite3.connect(filled) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'jobs'").fetchall()
    connection.close()
    content = bytearray(filled.read_bytes())
    content[(root - 1) * 4_096 : root * 4_096] = b"\xff" * 4_096
    filled.write_bytes(content)
    with pytest.raises(
        JournalError, match="the database file is damaged; look at it with 'bunqueue db check', and restore a backup"
    ):
        migrate(filled, log, step())
