"""Every way in which jobs are looked for is served by an index: SQLite's own plans, read from a filled database."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest
from bunqueue_sqlite import reading, statements
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_sqlite.schema import DESCRIBED_TABLES, PENDING
from bunqueue_sqlite.statements import table_statements

from bunqueue_core.storage.changes import REST_COLUMNS, ChangeSet, JobRow, Table

STATES = ("waiting", "prioritized", "delayed", "waiting-children", "active", "completed")

#: All states of a queue by creation: six walks of one index, merged.
ALL_STATES = (
    " UNION ALL ".join(f"SELECT id, created_at FROM jobs WHERE queue = ?1 AND state = '{state}'" for state in STATES)
    + " ORDER BY created_at, id LIMIT 50"
)

#: What is looked for, the index that must serve it, and the statement.
PATHS = {
    "by queue and state": (
        "idx_jobs_queue_state_created",
        "SELECT count(*) FROM jobs WHERE queue = ? AND state = ?",
    ),
    "page of all states": ("idx_jobs_queue_state_created", ALL_STATES),
    "next page of all states": (
        "idx_jobs_queue_state_created",
        ALL_STATES.replace("queue = ?1", "queue = ?1 AND (created_at, id) > (?2, ?3)"),
    ),
    "page of a state": (
        "idx_jobs_queue_state_created",
        "SELECT * FROM jobs WHERE queue = ? AND state = ? ORDER BY created_at, id LIMIT 50",
    ),
    "last page of a state": (
        "idx_jobs_queue_state_created",
        "SELECT * FROM jobs WHERE queue = ? AND state = ? ORDER BY created_at DESC, id DESC LIMIT 50",
    ),
    "due delayed jobs": (
        "idx_jobs_delayed",
        "SELECT * FROM jobs WHERE state = 'delayed' AND run_at <= ? ORDER BY run_at",
    ),
    "by unique key": ("idx_jobs_unique", "SELECT * FROM jobs WHERE queue = ? AND unique_key = ?"),
    "by custom id": ("idx_jobs_custom_id", "SELECT * FROM jobs WHERE custom_id = ?"),
    "by parent": ("idx_jobs_parent", "SELECT * FROM jobs WHERE parent_id = ?"),
    "by group": ("idx_jobs_group", "SELECT * FROM jobs WHERE group_id = ?"),
    "active since": (
        "idx_jobs_active",
        "SELECT * FROM jobs WHERE state = 'active' AND started_at < ? ORDER BY started_at",
    ),
    "next by priority": (
        "idx_jobs_pending",
        f"SELECT * FROM jobs WHERE queue = ? AND {PENDING} ORDER BY priority DESC, run_at LIMIT 10",
    ),
    "next of a state by priority": (
        "idx_jobs_pending",
        f"SELECT * FROM jobs WHERE queue = ? AND state = 'waiting' AND {PENDING} ORDER BY priority DESC, run_at LIMIT 10",
    ),
    "newest completed": (
        "idx_jobs_completed",
        "SELECT * FROM jobs WHERE state = 'completed' ORDER BY completed_at DESC, id DESC LIMIT 50",
    ),
    "load active": ("idx_jobs_active", reading.LOAD_ACTIVE),
    "load completed": ("idx_jobs_completed", reading.LOAD_COMPLETED),
    "load dead letters": ("idx_dlq_entered_at", reading.LOAD_DLQ),
    "count completed": ("idx_jobs_queue_state_created", reading.COMPLETED_COUNTS),
    "count completed, some added anew": ("idx_jobs_queue_state_created", reading.COMPLETED_COUNTS_BUT_ANEW),
    "read completed": ("idx_jobs_queue_state_created", reading.READ_COMPLETED),
    "read completed, newest first": ("idx_jobs_queue_state_created", reading.READ_COMPLETED_DESCENDING),
    "completed before": ("COVERING INDEX idx_jobs_completed", reading.COMPLETED_BEFORE),
    "completed before, one queue": ("COVERING INDEX idx_jobs_completed", reading.COMPLETED_BEFORE_IN_QUEUE),
    "read jobs": ("sqlite_autoindex_jobs_1", reading.READ_JOBS.text(3)),
    "read jobs, small adds among them": ("sqlite_autoindex_jobs_1", reading.READ_ALL_JOBS.text(3)),
    "read results": ("sqlite_autoindex_job_results_1", reading.READ_RESULTS.text(3)),
    "move": ("sqlite_autoindex_jobs_1", statements.MOVE.text(3)),
    "remove": ("sqlite_autoindex_jobs_1", statements.REMOVE_JOB.text(3)),
    "remove result": ("sqlite_autoindex_job_results_1", statements.REMOVE_RESULT.text(3)),
    "remove dead letter": ("INTEGER PRIMARY KEY", statements.REMOVE_DLQ.text(3)),
    "obliterate": ("idx_jobs_queue_state_created", "DELETE FROM jobs WHERE queue = ?"),
}


@pytest.fixture
def database(journal: SqliteJournal, db: Path) -> apsw.Connection:
    """A database with a few jobs of every kind."""
    names = [name for name, _ in REST_COLUMNS]
    rows = []
    for n in range(600):
        rest = [default for _, default in REST_COLUMNS]
        for name in ("unique_key", "custom_id", "parent_id", "group_id"):
            if n % 3 == 0:
                rest[names.index(name)] = f"{name}-{n}"
        rest[0] = rest[1] = n
        rows.append(JobRow(f"id-{n}", f"q{n % 3}", "n", b"", n % 5, n, n, STATES[n % 6], tuple(rest)))
    journal.commit(ChangeSet(put=rows))
    journal.close()
    return apsw.Connection(str(db), flags=apsw.SQLITE_OPEN_READONLY)


def plan_of(database: apsw.Connection, sql: str) -> list[str]:
    parameters = len(set(re.findall(r"\?\d+", sql))) or sql.count("?")
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * parameters)]


@pytest.mark.parametrize("name", PATHS)
def test_an_index_serves(database: apsw.Connection, name: str) -> None:
    index, sql = PATHS[name]
    plan = plan_of(database, sql)
    assert any(index in line for line in plan), plan
    assert not any("TEMP B-TREE" in line for line in plan), plan
    # a table is never read from end to end
    assert not any(re.match(r"SCAN (jobs|job_results|dlq)$", line) for line in plan), plan


def test_all_states_are_merged_not_sorted(database: apsw.Connection) -> None:
    plan = plan_of(database, ALL_STATES)
    assert sum("MERGE (UNION ALL)" in line for line in plan) == len(STATES) - 1
    ids = [id for id, _ in database.execute(ALL_STATES, ("q1",))]
    expected = database.execute("SELECT id FROM jobs WHERE queue = 'q1' ORDER BY created_at, id LIMIT 50")
    assert ids == [id for (id,) in expected]


def test_the_load_at_start_sorts_keys_only(database: apsw.Connection) -> None:
    plan = plan_of(database, reading.LOAD_PENDING)
    assert plan[:3] == ["MATERIALIZE sorted", "SCAN jobs USING INDEX idx_jobs_pending", "USE TEMP B-TREE FOR ORDER BY"]
    assert plan[3:] == ["SCAN sorted", "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"]


def test_the_load_with_small_adds_among_them_sorts_keys_only(database: apsw.Connection) -> None:
    plan = plan_of(database, reading.LOAD_ALL_PENDING)
    assert "SCAN jobs USING INDEX idx_jobs_pending" in plan
    reached = plan[plan.index("SCAN sorted") :]
    assert reached == [
        "SCAN sorted",
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
        "SEARCH small USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
    ]


@pytest.mark.parametrize("table", DESCRIBED_TABLES, ids=lambda table: table.name)
def test_described_tables_are_looked_up_by_key(database: apsw.Connection, table: Table) -> None:
    made = table_statements(table)
    for rows in (made.read, made.remove):
        plan = plan_of(database, rows.text(2))
        assert any(line.startswith("SEARCH") for line in plan), plan


def test_a_small_mixed_change_set_looks_up_by_key(database: apsw.Connection) -> None:
    bodies = [text.partition("BEGIN ")[2].removesuffix("END") for text in statements.single_statement_views()]
    # what a trigger does does not show in the plan of the statement that fires it
    steps = [re.sub(r"NEW\.\w+", "?", step) for body in bodies for step in body.split(";") if step]
    looked_up = [step for step in steps if step.startswith(("DELETE", "UPDATE"))]
    assert len(looked_up) == 8
    for step in looked_up:
        plan = plan_of(database, step)
        assert any(line.startswith("SEARCH") for line in plan), (step, plan)


def test_there_is_no_index_that_no_path_needs(database: apsw.Connection) -> None:
    indexes = {
        name
        for (name,) in database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'index' AND name LIKE 'idx\\_%' ESCAPE '\\'"
        )
    }
    assert indexes == {index.removeprefix("COVERING INDEX ") for index, _ in PATHS.values() if "idx_" in index}
