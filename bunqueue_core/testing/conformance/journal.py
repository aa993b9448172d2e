"""Cases for journal drivers: what is committed is there, in the promised order, whole or not at all (rules J-001 to J-039)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bunqueue_core.model.errors import CapabilityError, JournalError
from bunqueue_core.model.payload import NULL
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
from bunqueue_core.storage.journal import Journal, StoredJob
from bunqueue_core.testing.conformance.rules import rule


@dataclass(frozen=True, slots=True)
class JournalSetup:
    """What a journal driver's author tells the kit.

    Attributes:
        open: makes a journal on this test's own storage, not opened. Called again after the first was closed it must find what
            that one left.
        image: given an open journal, makes one (not opened) on a copy of what a crash at this moment would leave. None: not
            offered.
        open_snapshot: makes a journal (not opened) on what :meth:`Journal.snapshot` wrote to a path. None: the driver has none.
        exclusive: an open storage refuses a second opener.
    """

    open: Callable[[], Journal]
    image: Callable[[Journal], Journal] | None = None
    open_snapshot: Callable[[Path], Journal] | None = None
    exclusive: bool = True


def job_row(id: str, queue: str = "q", state: str = "waiting", **columns: Any) -> JobRow:
    """A row of ``jobs`` with its defaults; columns after the plain ones may be given by name."""
    plain = {
        name: columns.pop(name, default)
        for name, default in (
            ("name", "n"),
            ("data", b"\xc0"),
            ("priority", 0),
            ("created_at", 1_000),
            ("run_at", 1_000),
        )
    }
    unknown = set(columns) - {name for name, _ in REST_COLUMNS}
    assert not unknown, unknown
    rest = tuple(columns.get(name, default) for name, default in REST_COLUMNS) if columns else None
    return JobRow(id, queue, state=state, rest=rest, **plain)


def as_stored(row: JobRow) -> StoredJob:
    """What reading ``row`` back must give."""
    return StoredJob(*row[:8], tuple(row.rest if row.rest is not None else REST_DEFAULTS))


_FULL_COLUMNS: dict[str, Any] = {
    "name": "send",
    "data": b"\x81\xa1a\x01",
    "priority": -7,
    "created_at": 1_111,
    "run_at": 2_222,
    "state": "prioritized",
    **{
        name: (
            b"blob" + name.encode()
            if name
            in {"depends_on", "children_ids", "tags", "timeline", "stacktrace", "dlq_retry_state", "extended_options"}
            else f"text of {name}"
            if name in {"unique_key", "custom_id", "parent_id", "group_id", "progress_msg"}
            else 1
            if isinstance(default, int) and default == 0
            else 41 + index
        )
        for index, (name, default) in enumerate(REST_COLUMNS)
    },
}

#: A row with a value in every column, none of them the default.
FULL_ROW = job_row("full", **_FULL_COLUMNS)


class JournalConformance:
    """Every case that a journal driver is held to. Override ``journal_setup``."""

    @pytest.fixture
    def journal_setup(self) -> JournalSetup:
        """How to make journals on a storage that belongs to this test alone. To be overridden."""
        raise NotImplementedError("a conformance class must override the fixture journal_setup")

    @pytest.fixture
    def journal(self, journal_setup: JournalSetup) -> Iterator[Journal]:
        """An open journal."""
        journal = journal_setup.open()
        journal.open()
        yield journal
        journal.close()

    def _reopened(self, journal: Journal, setup: JournalSetup, request: pytest.FixtureRequest) -> Journal:
        journal.close()
        again = setup.open()
        again.open()
        request.addfinalizer(again.close)
        return again

    # -- empty --------------------------------------------------------------------------------------------------------

    @rule("J-001")
    def test_a_new_storage_is_empty(self, journal: Journal) -> None:
        assert journal.load_queues() == []
        assert journal.load_active(10) == []
        assert list(journal.load_pending(10)) == []
        assert list(journal.load_dlq(10)) == []
        assert list(journal.load_completed(10, 10)) == []
        assert journal.completed_counts() == {}
        assert [journal.load_table(table) for table in TABLES if table.order] == [[] for table in TABLES if table.order]
        assert journal.read_jobs(["x"]) == {}
        assert journal.read_results(["x"]) == {}
        assert journal.read_completed("q", 0, 10, True) == []
        assert journal.completed_before(None, 10**15, 10) == []
        assert journal.size_bytes() >= 0

    @rule("J-001")
    def test_an_empty_change_set_is_fine(self, journal: Journal) -> None:
        journal.commit(ChangeSet())
        assert journal.read_jobs([]) == {}
        assert journal.read_results([]) == {}

    # -- jobs ---------------------------------------------------------------------------------------------------------

    @rule("J-002")
    def test_rows_come_back_as_they_were(
        self, journal: Journal, journal_setup: JournalSetup, request: pytest.FixtureRequest
    ) -> None:
        rows = [job_row("plain"), FULL_ROW, job_row("no-data", data=None), job_row("late", state="delayed", ttl=5)]
        expected = {row.id: as_stored(row) for row in rows}
        journal.commit(ChangeSet(put=rows))
        assert journal.read_jobs([*expected, "unknown"]) == expected
        assert self._reopened(journal, journal_setup, request).read_jobs(list(expected)) == expected

    @rule("J-003")
    def test_a_row_is_replaced_whole(self, journal: Journal) -> None:
        journal.commit(ChangeSet(put=[FULL_ROW]))
        again = job_row("full", "other")
        journal.commit(ChangeSet(put=[again]))
        assert journal.read_jobs(["full"]) == {"full": as_stored(again)}

    @rule("J-003")
    @pytest.mark.parametrize("state", ["waiting", "delayed", "active", "completed"])
    def test_a_row_that_is_replaced_is_read_nowhere_as_it_was(self, journal: Journal, state: str) -> None:
        """Also when nothing else is committed with it, and nothing was removed before."""
        olds = ("waiting", "active", "completed")
        ended: dict[str, Any] = {"started_at": 1, "completed_at": 5}
        before = [job_row(old, "q", old, **(ended if old == "completed" else {})) for old in olds]
        journal.commit(ChangeSet(put=before))
        after = [job_row(old, "other", state, **(ended if state == "completed" else {})) for old in olds]
        for row in after:
            journal.commit(ChangeSet(put=[row]))
        there = {row.id: as_stored(row) for row in after}
        assert journal.read_jobs(olds) == there
        completed = there if state == "completed" else {}
        waiting = there if state in ("waiting", "delayed") else {}
        assert {job.id: job for batch in journal.load_completed(10, 10) for job in batch} == completed
        assert journal.completed_counts() == ({"other": 3} if completed else {})
        for queue in ("q", "other"):
            found = completed if queue == "other" else {}
            assert {job.id: job for job in journal.read_completed(queue, 0, 10, True)} == found
            assert sorted(journal.completed_before(queue, 9, 10)) == [(id, queue) for id in sorted(found)]
        assert {job.id: job for batch in journal.load_pending(10) for job in batch} == waiting
        assert {job.id: job for job in journal.load_active(10)} == (there if state == "active" else {})

    @rule("J-004")
    def test_a_move_changes_five_columns(self, journal: Journal) -> None:
        other = job_row("other")
        journal.commit(ChangeSet(put=[FULL_ROW, other]))
        journal.commit(ChangeSet(moved=[MoveRow("full", "active", 5_000, None, b"steps")]))
        stored = journal.read_jobs(["full"])["full"]
        changed = {"started_at": 5_000, "completed_at": None, "timeline": b"steps"}
        expected = tuple(
            changed.get(name, value) for (name, _), value in zip(REST_COLUMNS, FULL_ROW.rest or (), strict=True)
        )
        assert stored == as_stored(FULL_ROW)._replace(state="active", rest=expected)
        assert journal.read_jobs(["other"]) == {"other": as_stored(other)}

    @rule("J-005")
    def test_a_removed_row_takes_its_result_along(self, journal: Journal) -> None:
        journal.commit(
            ChangeSet(put=[job_row("a"), job_row("b")], results=[ResultRow("a", NULL, 1), ResultRow("b", NULL, 1)])
        )
        journal.commit(ChangeSet(removed=["a", "never-stored"]))
        assert list(journal.read_jobs(["a", "b"])) == ["b"]
        assert journal.read_results(["a", "b"]) == {"b": NULL}

    @rule("J-005")
    def test_a_recycled_id_starts_afresh(self, journal: Journal) -> None:
        journal.commit(ChangeSet(put=[FULL_ROW], results=[ResultRow("full", b"\x01", 1)]))
        again = job_row("full")
        journal.commit(ChangeSet(removed=["full"], put=[again]))
        assert journal.read_jobs(["full"]) == {"full": as_stored(again)}
        assert journal.read_results(["full"]) == {}

    @rule("J-006")
    def test_results_are_stored_and_replaced(self, journal: Journal) -> None:
        journal.commit(ChangeSet(results=[ResultRow("a", NULL, 1), ResultRow("b", b"\x01", 1)]))
        journal.commit(ChangeSet(results=[ResultRow("b", b"\x02" * 100_000, 2)]))
        assert journal.read_results(["a", "b", "c"]) == {"a": NULL, "b": b"\x02" * 100_000}

    # -- loading ------------------------------------------------------------------------------------------------------

    @rule("J-010")
    def test_pending_jobs_are_loaded_in_order(self, journal: Journal) -> None:
        rows = [
            job_row("d", priority=0, run_at=300),
            job_row("c", priority=0, run_at=200),
            job_row("b2", state="prioritized", priority=9, run_at=100),
            job_row("b1", state="prioritized", priority=9, run_at=100),
            job_row("e", state="delayed", priority=-1, run_at=100),
            job_row("f", state="waiting-children", priority=-2),
            job_row("x", state="active", started_at=1),
            job_row("y", state="completed", completed_at=1),
        ]
        journal.commit(ChangeSet(put=rows))
        batches = list(journal.load_pending(4))
        assert [len(batch) for batch in batches] == [4, 2]
        assert [job.id for batch in batches for job in batch] == ["b1", "b2", "c", "d", "e", "f"]
        assert batches[0][2] == as_stored(rows[1])

    @rule("J-010")
    @pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 100])
    def test_every_pending_job_is_loaded_once(self, journal: Journal, batch_size: int) -> None:
        journal.commit(ChangeSet(put=[job_row(f"j{n}", priority=n % 2, run_at=n % 3) for n in range(20)]))
        loaded = [job.id for batch in journal.load_pending(batch_size) for job in batch]
        assert sorted(loaded) == sorted(f"j{n}" for n in range(20))

    @rule("J-011")
    def test_active_jobs_are_loaded_in_order_of_their_start(self, journal: Journal) -> None:
        journal.commit(ChangeSet(put=[job_row(f"j{n}", state="active", started_at=100 - n) for n in range(5)]))
        assert [job.id for job in journal.load_active(3)] == ["j4", "j3", "j2"]
        journal.commit(ChangeSet(put=[job_row(id, run_at=1) for id in ("j4", "j3", "j2")]))
        assert [job.id for job in journal.load_active(3)] == ["j1", "j0"]

    @rule("J-012")
    def test_dead_letters_are_loaded_in_order(self, journal: Journal) -> None:
        rows = [
            DlqRow(3, "c", "q", b"3", 100),
            DlqRow(1, "a", "q", b"1", 100),
            DlqRow(2, "b", "r", b"2", 50),
            DlqRow(9, "d", "q", b"9", 200),
        ]
        journal.commit(ChangeSet(dlq_put=rows))
        batches = list(journal.load_dlq(3))
        assert batches == [[rows[2], rows[1], rows[0]], [rows[3]]]

    @rule("J-012")
    def test_dead_letters_are_replaced_and_removed(self, journal: Journal) -> None:
        journal.commit(ChangeSet(dlq_put=[DlqRow(1, "a", "q", b"1", 1), DlqRow(2, "b", "q", b"2", 2)]))
        journal.commit(ChangeSet(dlq_removed=[1, 77], dlq_put=[DlqRow(2, "b", "q", b"again", 2)]))
        assert list(journal.load_dlq(10)) == [[DlqRow(2, "b", "q", b"again", 2)]]

    @rule("J-013")
    def test_the_newest_completed_jobs_are_loaded(self, journal: Journal) -> None:
        rows = [job_row(f"j{n}", state="completed", completed_at=100 + n // 2) for n in range(7)]
        journal.commit(ChangeSet(put=[*rows, job_row("w")]))
        batches = list(journal.load_completed(5, 2))
        assert [job.id for batch in batches for job in batch] == ["j6", "j5", "j4", "j3", "j2"]
        assert [len(batch) for batch in batches] == [2, 2, 1]

    @rule("J-013")
    def test_completed_jobs_are_counted(self, journal: Journal) -> None:
        journal.commit(
            ChangeSet(
                put=[
                    job_row("a", "q", "completed", completed_at=1),
                    job_row("b", "q", "completed", completed_at=2),
                    job_row("c", "r", "completed", completed_at=3),
                    job_row("d", "s"),
                ]
            )
        )
        assert journal.completed_counts() == {"q": 2, "r": 1}

    # -- reading ------------------------------------------------------------------------------------------------------

    @rule("J-014")
    def test_completed_jobs_are_read_in_pages(self, journal: Journal) -> None:
        rows = [job_row(f"j{n}", state="completed", created_at=100 + n // 2, completed_at=1) for n in range(6)]
        journal.commit(ChangeSet(put=[*rows, job_row("other", "r", "completed", completed_at=1), job_row("w")]))

        def read(offset: int, limit: int, ascending: bool) -> list[str]:
            return [job.id for job in journal.read_completed("q", offset, limit, ascending)]

        assert read(0, 4, True) == ["j0", "j1", "j2", "j3"]
        assert read(4, 4, True) == ["j4", "j5"]
        assert read(0, 4, False) == ["j5", "j4", "j3", "j2"]
        assert read(6, 4, True) == []
        assert journal.read_completed("q", 0, 1, True) == [as_stored(rows[0])]

    @rule("J-015")
    def test_jobs_completed_before_a_time(self, journal: Journal) -> None:
        journal.commit(
            ChangeSet(
                put=[
                    job_row("c", "q", "completed", completed_at=30),
                    job_row("a", "q", "completed", completed_at=10),
                    job_row("b", "r", "completed", completed_at=20),
                    job_row("w", "q"),
                ]
            )
        )
        assert journal.completed_before(None, 20, 10) == [("a", "q"), ("b", "r")]
        assert journal.completed_before("q", 30, 10) == [("a", "q"), ("c", "q")]
        assert journal.completed_before(None, 30, 1) == [("a", "q")]

    @rule("J-016")
    def test_reading_many_ids(self, journal: Journal) -> None:
        ids = [f"j{n}" for n in range(3_000)]
        journal.commit(
            ChangeSet(put=[job_row(id) for id in ids], results=[ResultRow(id, id.encode(), 1) for id in ids])
        )
        assert set(journal.read_jobs(ids)) == set(ids)
        assert journal.read_results(ids) == {id: id.encode() for id in ids}

    # -- controls and further tables ----------------------------------------------------------------------------------

    @rule("J-017")
    def test_controls_of_queues(
        self, journal: Journal, journal_setup: JournalSetup, request: pytest.FixtureRequest
    ) -> None:
        full = QueueRow("full", 1, 2.5, 3, 4, 5, 0, 7, 8, 9, b"config")
        journal.commit(ChangeSet(queues=[full, QueueRow("plain"), QueueRow("gone", paused=1)]))
        changed = QueueRow("plain", paused=1, max_stalls=0)
        journal.commit(ChangeSet(queues=[changed], queues_removed=["gone", "never-stored"]))
        expected = {"full": full, "plain": changed}
        assert {row.name: row for row in journal.load_queues()} == expected
        again = self._reopened(journal, journal_setup, request)
        assert {row.name: row for row in again.load_queues()} == expected

    @rule("J-018")
    @pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
    def test_further_tables(
        self, journal: Journal, journal_setup: JournalSetup, request: pytest.FixtureRequest, table: Table
    ) -> None:
        rows = [self._row(table, n) for n in range(4)]
        journal.commit(ChangeSet(tables=[TableChange(table, put=rows)]))
        keys = [row[: table.key] for row in rows]
        changed = (*keys[1], *self._row(table, 1, "changed")[table.key :])
        journal.commit(ChangeSet(tables=[TableChange(table, removed=[keys[0], keys[3]], put=[changed])]))
        again = self._reopened(journal, journal_setup, request)
        assert sorted(again.load_table(table), key=str) == sorted([changed, rows[2]], key=str)

    @rule("J-018")
    @pytest.mark.parametrize("table", [table for table in TABLES if table.order], ids=lambda table: table.name)
    def test_further_tables_are_loaded_in_order(self, journal: Journal, table: Table) -> None:
        rows = [self._row(table, n) for n in range(5)]
        journal.commit(ChangeSet(tables=[TableChange(table, put=rows[::-1])]))
        assert journal.load_table(table) == rows

    def _row(self, table: Table, n: int, word: str = "text") -> tuple[Any, ...]:
        values: dict[str, Any] = {
            "TEXT": f"{word} {n}",
            "INTEGER": n + (100 if word == "changed" else 0),
            "BLOB": f"{word} {n}".encode(),
            "REAL": n + 0.5,
        }
        return tuple(values[kind.upper().split()[0]] for _, kind in table.columns)

    # -- atomicity ----------------------------------------------------------------------------------------------------

    @rule("J-020")
    def test_a_change_set_is_applied_whole_or_not_at_all(self, journal: Journal) -> None:
        journal.commit(ChangeSet(put=[job_row("old")], dlq_put=[DlqRow(1, "a", "q", b"1", 1)]))
        unstorable: Any = object()
        broken = ChangeSet(
            removed=["old"],
            put=[job_row("new")],
            results=[ResultRow("new", b"\x01", 1)],
            dlq_removed=[1],
            queues=[QueueRow("q", paused=1), QueueRow("r", dlq_config=unstorable)],
        )
        self._refused(journal, broken)
        assert list(journal.read_jobs(["old", "new"])) == ["old"]
        assert journal.read_results(["new"]) == {}
        assert len(list(journal.load_dlq(10))) == 1
        assert journal.load_queues() == []

    @rule("J-020")
    def test_a_refused_change_set_can_be_followed_by_another(self, journal: Journal) -> None:
        unstorable: Any = object()
        self._refused(journal, ChangeSet(put=[job_row("a"), job_row("b", data=unstorable)]))
        journal.commit(ChangeSet(put=[job_row("a"), job_row("c")]))
        assert sorted(journal.read_jobs(["a", "b", "c"])) == ["a", "c"]

    def _refused(self, journal: Journal, changes: ChangeSet) -> None:
        try:
            journal.commit(changes)
        except Exception:
            return  # which error it is, is the driver's choice; what counts is what it leaves
        pytest.fail("a change set with a value that nothing can store was accepted")

    @rule("J-021")
    def test_a_large_change_set(self, journal: Journal) -> None:
        rows = [job_row(f"j{n:05}") if n % 2 else job_row(f"j{n:05}", ttl=n) for n in range(5_001)]
        journal.commit(ChangeSet(put=rows))
        journal.commit(ChangeSet(moved=[MoveRow(row.id, "active", n, None, None) for n, row in enumerate(rows)]))
        assert len(journal.load_active(10_000)) == 5_001
        journal.commit(ChangeSet(removed=[row.id for row in rows[:5_000]]))
        assert list(journal.read_jobs([row.id for row in rows])) == ["j05000"]

    @rule("J-022")
    def test_odd_values_come_back_equal(self, journal: Journal) -> None:
        texts = ["\U0001f407", "a\0b", "'; DROP TABLE jobs; --", " ", "x" * 100_000]
        rows = [job_row(text, queue=text, name=text, progress_msg=text, custom_id=text) for text in texts]
        rows.append(job_row("numbers", priority=-(2**53), created_at=2**53, run_at=-(2**62), attempts=2**62))
        rows.append(job_row("bytes", data=bytes(range(256)) * 4_096, timeline=b""))
        rows.append(job_row("fraction", progress=62.5))
        journal.commit(ChangeSet(put=rows))
        assert journal.read_jobs([row.id for row in rows]) == {row.id: as_stored(row) for row in rows}

    # -- life cycle ---------------------------------------------------------------------------------------------------

    @rule("J-030")
    def test_closing_twice_is_fine(self, journal: Journal) -> None:
        journal.close()
        journal.close()

    @rule("J-030")
    def test_a_closed_journal_takes_nothing(self, journal: Journal) -> None:
        journal.close()
        with pytest.raises(JournalError):
            journal.commit(ChangeSet(put=[job_row("a")]))

    @rule("J-031")
    def test_a_second_opener_is_refused(self, journal: Journal, journal_setup: JournalSetup) -> None:
        if not journal_setup.exclusive:
            pytest.skip("not offered: exclusive ownership")
        second = journal_setup.open()
        with pytest.raises(JournalError):
            second.open()
        second.close()
        journal.commit(ChangeSet(put=[job_row("a")]))
        assert list(journal.read_jobs(["a"])) == ["a"]

    @rule("J-032")
    def test_a_commit_is_there_after_a_crash(
        self, journal: Journal, journal_setup: JournalSetup, request: pytest.FixtureRequest
    ) -> None:
        if journal_setup.image is None:
            pytest.skip("not offered: crash")
        journal.commit(ChangeSet(put=[FULL_ROW], results=[ResultRow("full", NULL, 1)]))
        found = journal_setup.image(journal)
        found.open()
        request.addfinalizer(found.close)
        assert found.read_jobs(["full"]) == {"full": as_stored(FULL_ROW)}
        assert found.read_results(["full"]) == {"full": NULL}

    @rule("J-033")
    def test_reading_beside_commits_sees_whole_change_sets(self, journal: Journal) -> None:
        journal.commit(ChangeSet(put=[job_row("a", ttl=0), job_row("b", ttl=0)]))
        ttl = [name for name, _ in REST_COLUMNS].index("ttl")
        torn: list[Any] = []
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                found = journal.read_jobs(["a", "b"])
                pair = [found[id].rest[ttl] for id in ("a", "b") if id in found]
                if len(set(pair)) != 1 or len(pair) != 2:
                    torn.append(pair)
                    return

        reader = threading.Thread(target=read)
        reader.start()
        for n in range(200):
            journal.commit(ChangeSet(put=[job_row("a", ttl=n), job_row("b", ttl=n)]))
        ended.set()
        reader.join()
        assert torn == []

    @rule("J-034")
    def test_a_snapshot_is_a_copy_of_its_own(
        self, journal: Journal, journal_setup: JournalSetup, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        path = tmp_path / "snapshot"
        if journal_setup.open_snapshot is None:
            with pytest.raises(CapabilityError):
                journal.snapshot(path)
            return
        journal.commit(ChangeSet(put=[FULL_ROW], results=[ResultRow("full", NULL, 1)]))
        journal.snapshot(path)
        journal.commit(ChangeSet(put=[job_row("later")]))
        copy = journal_setup.open_snapshot(path)
        copy.open()
        request.addfinalizer(copy.close)
        assert copy.read_jobs(["full", "later"]) == {"full": as_stored(FULL_ROW)}
        assert copy.read_results(["full"]) == {"full": NULL}
