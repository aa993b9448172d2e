"""Commits: every kind of change, in every size, is what a plain reading of the change set says, whole or not at all."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from bunqueue_sqlite import journal as journal_module
from bunqueue_sqlite import statements
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_sqlite.statements import SINGLE_FULL_ROWS_CONTENDED, SINGLE_ROWS, SINGLE_ROWS_CONTENDED, Planner, Rows

from bunqueue_core.model.errors import JournalError
from bunqueue_core.storage.changes import (
    REST_COLUMNS,
    REST_DEFAULTS,
    TABLES,
    ChangeSet,
    DlqRow,
    JobRow,
    MoveRow,
    QueueRow,
    ResultRow,
    Table,
    TableChange,
)
from bunqueue_core.testing import DictJournal

NAMES = [name for name, _ in REST_COLUMNS]
STATES = ("waiting", "prioritized", "delayed", "waiting-children", "active", "completed")


def rest(**columns: Any) -> tuple[Any, ...]:
    return tuple(columns.get(name, default) for name, default in REST_COLUMNS)


def row(id: str, state: str = "waiting", queue: str = "q", **columns: Any) -> JobRow:
    return JobRow(id, queue, "n", b"\xc0", 0, 1, 1, state, rest(**columns) if columns else None)


def content(journal: Any, ids: list[str]) -> dict[str, Any]:
    """Everything that a journal holds, as far as its read side shows it."""
    return {
        "jobs": journal.read_jobs(ids),
        "results": journal.read_results(ids),
        "dlq": list(journal.load_dlq(10_000)),
        "queues": sorted(journal.load_queues()),
        "active": sorted(job.id for job in journal.load_active(10_000)),
        "pending": list(journal.load_pending(10_000)),
        "completed": list(journal.load_completed(10_000, 10_000)),
        "counts": journal.completed_counts(),
        "tables": [journal.load_table(table) for table in TABLES],
    }


class Changes:
    """Random change sets over a small set of ids, so that they meet again and again."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ids = [f"job-{n}" for n in range(60)]
        self.clock = 0

    def next(self, most: int) -> ChangeSet:
        """A change set in which every key stands at most once in what puts, moves or stores it."""
        pick = self.random
        touched = pick.sample(self.ids, pick.randint(0, min(most, len(self.ids))))
        changes = ChangeSet()
        for id in touched:
            self.clock += 1
            kind = pick.randrange(7)
            if kind in (0, 1) and pick.random() < 0.5:
                changes.removed.append(id)
            if kind == 0:
                changes.put.append(row(id, pick.choice(STATES[:4])))
            elif kind == 1:
                changes.put.append(
                    row(id, pick.choice(STATES), queue=pick.choice("qrs"), completed_at=self.clock, ttl=self.clock)
                )
            elif kind in (2, 3):
                changes.moved.append(MoveRow(id, pick.choice(STATES), self.clock, self.clock, b"t%d" % self.clock))
            elif kind == 4:
                changes.removed.append(id)
            if kind in (1, 3, 5):
                changes.results.append(ResultRow(id, b"r%d" % self.clock, self.clock))
            if kind == 6:
                changes.dlq_put.append(DlqRow(self.clock, id, "q", b"d", pick.randrange(5)))
        if pick.random() < 0.3:
            changes.dlq_removed += pick.sample(range(1, self.clock + 2), min(3, self.clock + 1))
            changes.dlq_put = [entry for entry in changes.dlq_put if entry.id not in changes.dlq_removed]
        if pick.random() < 0.3:
            changes.queues = [QueueRow(name, pick.randint(0, 1), pick.random()) for name in pick.sample("abcd", 2)]
            changes.queues_removed = [name for name in "ab" if name not in {queue.name for queue in changes.queues}]
        if pick.random() < 0.3:
            changes.tables = [self._table(table) for table in pick.sample(TABLES, 2)]
        return changes

    def _table(self, table: Table) -> TableChange:
        change = TableChange(table)
        for n in self.random.sample(range(8), 4):
            values: dict[str, Any] = {"TEXT": f"t{n}", "INTEGER": n, "BLOB": b"%d" % n, "REAL": n / 2}
            whole = tuple(values[kind] for _, kind in table.columns)
            if self.random.random() < 0.4:
                change.removed.append(whole[: table.key])
            else:
                changed = tuple(
                    self.clock if isinstance(value, int) and at >= table.key else value
                    for at, value in enumerate(whole)
                )
                change.put.append(changed)
        return change


@pytest.mark.parametrize("contended", [False, True], ids=["alone", "contended"])
@pytest.mark.parametrize("most", [1, SINGLE_ROWS, 60])
@pytest.mark.parametrize("seed", range(3))
def test_random_change_sets_give_what_a_plain_reading_gives(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch, seed: int, most: int, contended: bool
) -> None:
    plan = Planner.plan
    monkeypatch.setattr(Planner, "plan", lambda planner, changes, _: plan(planner, changes, contended))
    model = DictJournal()
    model.open()
    source = Changes(seed * 100 + most)
    for _ in range(40):
        changes = source.next(most)
        model.commit(changes)
        journal.commit(changes)
        assert journal.read_jobs(source.ids) == model.read_jobs(source.ids)
    found, expected = content(journal, source.ids), content(model, source.ids)
    for part in expected:
        if part == "tables":
            for table, ours, theirs in zip(TABLES, found[part], expected[part], strict=True):
                assert sorted(ours, key=str) == sorted(theirs, key=str), table.name
        else:
            assert found[part] == expected[part], part


@pytest.mark.parametrize("count", [1, 2, 24, 25, 26, 99, 100, 101, 799, 800, 801, 1_000, 2_345])
def test_every_number_of_rows(journal: SqliteJournal, count: int) -> None:
    ids = [f"{n}" for n in range(count)]
    journal.commit(ChangeSet(put=[row(id) for id in ids]))
    journal.commit(ChangeSet(put=[row(id, ttl=int(id)) for id in ids]))
    journal.commit(ChangeSet(moved=[MoveRow(id, "completed", 1, int(id), None) for id in ids]))
    journal.commit(ChangeSet(results=[ResultRow(id, id.encode(), 1) for id in ids]))
    assert journal.read_jobs(ids) == {
        id: (id, "q", "n", b"\xc0", 0, 1, 1, "completed", rest(ttl=int(id), started_at=1, completed_at=int(id)))
        for id in ids
    }
    assert journal.read_results(ids) == {id: id.encode() for id in ids}
    journal.commit(ChangeSet(removed=ids))
    assert journal.read_jobs(ids) == {}
    assert journal.read_results(ids) == {}


def test_put_and_moved_and_removed_in_one_large_change_set(journal: SqliteJournal) -> None:
    old = [f"old-{n}" for n in range(300)]
    journal.commit(ChangeSet(put=[row(id) for id in old], results=[ResultRow(id, b"1", 1) for id in old]))
    journal.commit(
        ChangeSet(
            removed=old[:200],
            put=[row(id) for id in old[:100]] + [row(f"new-{n}", ttl=n) for n in range(150)],
            moved=[MoveRow(id, "active", 5, None, None) for id in old[200:]],
            results=[ResultRow(old[0], b"2", 2)],
            dlq_put=[DlqRow(n, "x", "q", b"e", n) for n in range(30)],
        )
    )
    assert sorted(job.id for job in journal.load_active(1_000)) == sorted(old[200:])
    assert sum(map(len, journal.load_pending(1_000))) == 250
    assert journal.read_results(old[:200]) == {old[0]: b"2"}
    assert sum(map(len, journal.load_dlq(100))) == 30


@pytest.mark.parametrize("counts", [(1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 1), (3, 2, 4), (250, 101, 30), (0, 120, 0)])
def test_rows_of_every_form_stand_beside_each_other(journal: SqliteJournal, counts: tuple[int, int, int]) -> None:
    forms: list[dict[str, Any]] = [{}, {"extended_options": b"\x80"}, {"ttl": 5, "extended_options": b"\x81\x01\x02"}]
    rows = [
        row(f"{form}-{n}", **columns)
        for form, (columns, count) in enumerate(zip(forms, counts, strict=True))
        for n in range(count)
    ]
    random.Random(7).shuffle(rows)
    journal.commit(ChangeSet(put=rows))
    stored = journal.read_jobs([put.id for put in rows])
    assert {id: job.rest or REST_DEFAULTS for id, job in stored.items()} == {
        put.id: put.rest or REST_DEFAULTS for put in rows
    }
    again = [put._replace(rest=None) for put in rows]  # what was stored in another column before is gone
    journal.commit(ChangeSet(put=again))
    assert all((job.rest or REST_DEFAULTS) == REST_DEFAULTS for job in journal.read_jobs(list(stored)).values())


def test_an_obliterated_queue_goes_whole(journal: SqliteJournal) -> None:
    mine = [row(f"a{n}", state, "gone") for n, state in enumerate(STATES)]
    other = [row("b", "waiting", "stays")]
    journal.commit(ChangeSet(put=mine + other, results=[ResultRow(job.id, b"1", 1) for job in mine + other]))
    journal.commit(ChangeSet(obliterated=["gone", "never-there"], put=[row("a0", "waiting", "gone")]))
    ids = [job.id for job in mine + other]
    assert sorted(journal.read_jobs(ids)) == ["a0", "b"]
    assert sorted(journal.read_results(ids)) == ["b"]


def test_a_move_of_an_unknown_job_changes_nothing(journal: SqliteJournal) -> None:
    journal.commit(ChangeSet(moved=[MoveRow("x", "active", 1, None, None)]))
    journal.commit(ChangeSet(moved=[MoveRow(str(n), "active", 1, None, None) for n in range(200)]))
    assert journal.load_active(1_000) == []


def test_awkward_values(journal: SqliteJournal) -> None:
    texts = ["", "a\0b", "\0", "x" * 100_000, "ünïcode 🐇", "'; DROP TABLE jobs; --", "\ufeff", "a" * 1_000_000]
    rows = [JobRow(text, text, text, text.encode(), 0, 1, 1, "waiting", rest(custom_id=text)) for text in texts]
    rows += [
        JobRow("none", "q", "n", None, -(2**63), 2**63 - 1, 0, "waiting", None),
        JobRow("ten megabytes", "q", "n", bytes(range(256)) * 40_960, 0, 1, 1, "waiting", None),
        JobRow("empty", "q", "n", b"", 0, 1, 1, "waiting", rest(timeline=b"", progress=0.5)),
    ]
    journal.commit(ChangeSet(put=rows, results=[ResultRow(job.id, job.data or b"", 1) for job in rows]))
    found = journal.read_jobs([job.id for job in rows])
    assert found == {job.id: (*job[:8], job.rest or REST_DEFAULTS) for job in rows}
    assert journal.read_results([job.id for job in rows]) == {job.id: job.data or b"" for job in rows}
    journal.commit(ChangeSet(moved=[MoveRow(job.id, "completed", 1, 2, b"t") for job in rows]))
    assert len(journal.read_completed("q", 0, 10, True)) == 3
    assert journal.completed_counts() == {**dict.fromkeys(texts, 1), "q": 3}


def test_keys_without_a_utf8_form_are_unknown(journal: SqliteJournal) -> None:
    journal.commit(ChangeSet(put=[row("a")]))
    assert list(journal.read_jobs(["a", "\ud800", "b\udfff"])) == ["a"]
    assert journal.read_results(["\ud800"]) == {}
    assert journal.read_completed("\ud800", 0, 10, True) == []
    assert journal.completed_before("\ud800", 10, 10) == []
    assert journal.read_rows(TABLES[0], [("\ud800",)]) == {}


def test_rows_of_further_tables_are_read_by_key(journal: SqliteJournal) -> None:
    for table in TABLES:
        values: dict[str, Any] = {"TEXT": "t", "INTEGER": 1, "BLOB": b"b", "REAL": 0.5}
        whole = tuple(values[kind] for _, kind in table.columns)
        others = [(f"k{n}", *whole[1:]) for n in range(60)]
        journal.commit(ChangeSet(tables=[TableChange(table, put=[whole, *others])]))
        keys = [stored[: table.key] for stored in (whole, *others)]
        unknown = tuple("?" for _ in range(table.key))
        assert journal.read_rows(table, [*keys, unknown]) == dict(zip(keys, [whole, *others], strict=True))


@pytest.mark.parametrize("value", [object(), "\ud800", 2**63, {"a": 1}], ids=["object", "surrogate", "wide", "dict"])
@pytest.mark.parametrize("others", [0, 5, 500])
def test_a_value_that_cannot_be_stored_refuses_the_whole_change_set(
    journal: SqliteJournal, value: Any, others: int
) -> None:
    changes = ChangeSet(
        removed=["old"],
        put=[row("new"), *(row(str(n)) for n in range(others))],
        results=[ResultRow("old", b"2", 1)],
        dlq_put=[DlqRow(2, "x", "q", value, 1)],
    )
    journal.commit(ChangeSet(put=[row("old")], results=[ResultRow("old", b"1", 1)]))
    with pytest.raises(JournalError, match="cannot commit: a value of the change set cannot be stored") as caught:
        journal.commit(changes)
    assert not caught.value.disk_full
    assert not caught.value.busy
    assert sorted(journal.read_jobs(["old", "new", "0"])) == ["old"]
    assert journal.read_results(["old"]) == {"old": b"1"}
    changes.dlq_put = []
    journal.commit(changes)
    assert sorted(journal.read_jobs(["old", "new"])) == ["new"]


@pytest.mark.parametrize("others", [0, 3, 300])
def test_a_broken_constraint_refuses_the_whole_change_set(journal: SqliteJournal, others: int) -> None:
    journal.commit(ChangeSet(put=[row("a"), row("b")]))
    nothing: Any = None
    for broken in (
        ChangeSet(put=[*(row(str(n)) for n in range(others)), row("c")._replace(queue=nothing)]),
        ChangeSet(
            moved=[MoveRow("a", "active", 1, None, None), MoveRow("b", nothing, 1, None, None)],
            put=[row(str(n)) for n in range(others)],
        ),
        ChangeSet(moved=[MoveRow("a", "active", 1, None, None), MoveRow("b", nothing, 1, None, None)]),
    ):
        with pytest.raises(JournalError, match="a value does not fit its column") as caught:
            journal.commit(broken)
        assert "jobs" not in str(caught.value)
        assert sorted(journal.read_jobs(["a", "b", "c", "0"])) == ["a", "b"]
        assert journal.load_active(10) == []
    journal.commit(ChangeSet(put=[row("c")]))
    assert list(journal.read_jobs(["c"])) == ["c"]


def test_an_interruption_in_the_middle_leaves_nothing_behind(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting:
        def __iter__(self) -> Any:
            yield "INSERT INTO dlq(id,job_id,queue,entry,entered_at)VALUES(?,?,?,?,?)", (1, "a", "q", b"", 1)
            raise KeyboardInterrupt

        def __len__(self) -> int:
            return 2

    with monkeypatch.context() as patch:
        patch.setattr(Planner, "plan", lambda *_: Interrupting())
        with pytest.raises(KeyboardInterrupt):
            journal.commit(ChangeSet(put=[row("a")], queues=[QueueRow("q", 1)]))
    assert list(journal.load_dlq(10)) == []
    journal.commit(ChangeSet(put=[row("a")]))
    assert list(journal.read_jobs(["a"])) == ["a"]


def test_another_writer_makes_a_commit_wait_and_then_fail_as_busy(
    make_journal: Any, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "BUSY_TIMEOUT_MS", 20)
    journal = make_journal(db)
    journal.open()
    other = apsw.Connection(str(db))
    other.execute("BEGIN IMMEDIATE")
    for changes in (ChangeSet(put=[row("a")]), ChangeSet(put=[row("a")], queues=[QueueRow("q", 1)])):
        with pytest.raises(JournalError, match="another process has locked the database") as caught:
            journal.commit(changes)
        assert caught.value.busy
    other.execute("ROLLBACK")
    journal.commit(ChangeSet(put=[row("a")], queues=[QueueRow("q", 1)]))
    assert list(journal.read_jobs(["a"])) == ["a"]
    other.close()


def test_a_commit_waits_for_a_writer_that_ends(journal: SqliteJournal, db: Path) -> None:
    other = apsw.Connection(str(db))
    other.execute("BEGIN IMMEDIATE")
    thread = threading.Thread(target=journal.commit, args=(ChangeSet(put=[row("a")]),))
    thread.start()
    other.execute("ROLLBACK")
    thread.join()
    assert list(journal.read_jobs(["a"])) == ["a"]
    other.close()


# -- how a change set is divided ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        (ChangeSet(), 0),
        (ChangeSet(put=[row("a")]), 1),
        (ChangeSet(put=[row("a", ttl=1)]), 1),
        (ChangeSet(put=[row(str(n)) for n in range(100)]), 1),
        (ChangeSet(put=[row(str(n)) for n in range(1_000)]), 1),
        (ChangeSet(put=[row(str(n)) for n in range(1_010)]), 2),
        (ChangeSet(put=[row(str(n))._replace(priority=n) for n in range(1_000)]), 2),
        (ChangeSet(moved=[MoveRow(str(n), "active", 1, None, None) for n in range(100)]), 1),
        (ChangeSet(moved=[MoveRow("a", "active", 1, None, None)], results=[ResultRow("a", b"", 1)]), 1),
        (ChangeSet(removed=["a"]), 1),
        (ChangeSet(removed=["a"], put=[row("a"), row("b", ttl=1)], dlq_put=[DlqRow(1, "a", "q", b"", 1)]), 1),
        (ChangeSet(moved=[MoveRow(str(n), "active", 1, None, None) for n in range(25)], removed=["a"]), 3),
    ],
)
def test_how_many_statements_a_change_set_takes(changes: ChangeSet, count: int) -> None:
    assert len(Planner().plan(changes)) == count


@pytest.mark.parametrize(
    ("rows", "full", "alone", "contended"),
    [
        (SINGLE_ROWS, False, True, True),
        (SINGLE_ROWS + 1, False, False, True),
        (SINGLE_ROWS_CONTENDED, False, False, True),
        (SINGLE_ROWS_CONTENDED + 1, False, False, False),
        (SINGLE_FULL_ROWS_CONTENDED, True, False, True),
        (SINGLE_FULL_ROWS_CONTENDED + 1, True, False, False),
    ],
)
def test_beside_a_busy_thread_larger_change_sets_become_one_statement(
    rows: int, full: bool, alone: bool, contended: bool
) -> None:
    put = [row(str(n), ttl=1) if full else row(str(n)) for n in range(rows - 1)]
    changes = ChangeSet(removed=["x"], put=put)
    assert (len(Planner().plan(changes, False)) == 1) is alone
    assert (len(Planner().plan(changes, True)) == 1) is contended


def test_waiting_at_the_beginning_of_a_transaction_is_noticed(
    journal: SqliteJournal, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    plan = Planner.plan

    def spy(planner: Planner, changes: ChangeSet, contended: bool) -> Any:
        told.append(contended)
        return plan(planner, changes, contended)

    monkeypatch.setattr(Planner, "plan", spy)
    monkeypatch.setattr(journal_module, "CONTENDED_S", 0.0)
    large = ChangeSet(removed=["x"], put=[row(str(n)) for n in range(SINGLE_ROWS_CONTENDED)])
    journal.commit(large)
    monkeypatch.setattr(journal_module, "CONTENDED_S", 1_000.0)
    for _ in range(journal_module.CONTENDED_COMMITS + 2):
        journal.commit(large)
    assert told == [False, *[True] * journal_module.CONTENDED_COMMITS, False, False]


def test_no_statement_is_too_long_for_the_cache_or_has_too_many_parameters() -> None:
    every = [value for value in vars(statements).values() if isinstance(value, Rows)]
    assert len(every) >= 9
    for rows in every:
        for count in (1, 7, 100, 9_999):
            for size in rows.sizes(count):
                text = rows.text(size)
                assert len(text) < 16_384
                assert text.count("?") <= 32_766


def test_sizes_cover_every_row() -> None:
    rows = Rows("", "?", exact=10)
    for count in range(200):
        assert sum(rows.sizes(count)) == count
