"""What memory has let go is read from the file: three completed jobs in memory, more on disk, and nobody sees the difference.

And what becomes of completed jobs in time: retention of the storage and of the jobs themselves, and names of queues of which
nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest
from fixtures.sqlite_bench import DURABLE, Bench, payload

from bunqueue_core.broker import frame
from bunqueue_core.broker.frame import RETENTION_INTERVAL_MS
from bunqueue_core.engine.base import EMPTY_QUEUE_MS
from bunqueue_core.model.errors import JournalError, StorageUnavailable
from bunqueue_core.model.job import JobOptions, JobSpec, Retention
from bunqueue_core.model.requests import Page, PullRequest

IN_MEMORY = 3
DONE = 8


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "jobs.db", max_completed_jobs=IN_MEMORY)
    yield bench
    bench.broker.close().result()


@pytest.fixture
def done(bench: Bench) -> list[str]:
    """Completed jobs, oldest first, each with a result and a log; all but a few only in the file."""
    ids = bench.add("q", DONE)
    for n, delivery in enumerate(bench.take("q", DONE)):
        bench.clock.advance(1_000)
        bench.finish(bench.broker.add_log(delivery.job.id, f"line {n}", "info"))
        bench.complete([delivery], msgpack.packb(n))
    assert len([id for id in ids if id in bench.broker._engine.jobs]) <= IN_MEMORY
    return ids


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_nobody_sees_where_a_completed_job_is(bench: Bench, done: list[str], restarted: bool) -> None:
    if restarted:
        bench.restart()
    broker = bench.broker
    assert broker.states(done).value == ["completed"] * DONE
    assert broker.results(done).value == [msgpack.packb(n) for n in range(DONE)]
    for n, id in enumerate(done):
        view = broker.job(id).value
        assert view is not None
        assert (view.job.id, view.state, view.result) == (id, "completed", msgpack.packb(n))
        assert [entry["state"] for entry in view.job.timeline or ()] == ["waiting", "active", "completed"]
        assert [line.message for line in broker.logs(id).value] == [f"line {n}"]
        assert broker.wait(id, 1_000).value == (True, msgpack.packb(n))
    assert broker.counts("q").value.completed == DONE
    assert broker.statistics()["completed"] == DONE
    assert broker.queues().value == ["q"]


@pytest.mark.parametrize("ascending", [True, False])
def test_pages_of_completed_jobs_are_whole(bench: Bench, done: list[str], ascending: bool) -> None:
    expected = done if ascending else done[::-1]
    waiting = bench.add("q", 2)
    pages = [
        [view.job.id for view in bench.broker.jobs("q", ["completed"], Page(offset, 3, ascending)).value]
        for offset in (0, 3, 6, 9)
    ]
    assert [id for page in pages for id in page] == expected
    everything = bench.broker.jobs("q", [], Page(0, None, ascending)).value
    assert {view.job.id for view in everything} == {*done, *waiting}
    assert [view.result for view in everything if view.job.id == done[0]] == [msgpack.packb(0)]


def test_verbs_find_completed_jobs_that_memory_has_let_go(bench: Bench, done: list[str]) -> None:
    broker = bench.broker
    bench.finish(broker.add_log(done[0], "later", "info"))
    assert [line.message for line in broker.logs(done[0]).value] == ["line 0", "later"]
    (waiting,) = bench.finish(broker.push("w", [JobSpec("n", payload(1), DURABLE, depends_on=(done[1],))])).ids
    assert broker.states([waiting]).value == ["waiting"]
    assert bench.finish(broker.retry_completed("q", done[2])) == 1
    assert broker.states([done[2]]).value == ["waiting"]
    (gated,) = bench.finish(broker.push("w", [JobSpec("n", payload(1), DURABLE, depends_on=(done[0], waiting))])).ids
    assert broker.states([gated]).value == ["waiting-children"]
    # not the oldest, which another job still needs
    assert bench.finish(broker.clean("q", 0, "completed", 2)) == [done[1], done[3]]
    assert broker.states([done[1], done[3]]).value == ["unknown", "unknown"]
    assert broker.counts("q").value.completed == DONE - 3
    assert bench.journal.read_results([done[1], done[3]]) == {}


def test_a_custom_id_stands_for_its_completed_job(bench: Bench) -> None:
    spec = JobSpec("n", payload(1), DURABLE, custom_id="mine")
    bench.finish(bench.broker.push("q", [spec]))
    bench.complete(bench.take("q", 1))
    bench.add("q", DONE)
    bench.complete(bench.take("q", DONE))
    assert "mine" not in bench.broker._engine.jobs
    view = bench.broker.job_by_custom_id("mine").value
    assert view is not None
    assert view.state == "completed"
    bench.finish(bench.broker.push("q", [spec]))
    assert bench.broker.states(["mine"]).value == ["waiting"]
    assert bench.broker.counts("q").value.completed == DONE


def test_what_is_deleted_is_not_read_while_its_commit_is_to_come(bench: Bench, done: list[str]) -> None:
    broker = bench.broker
    answer = broker.clean("q", 0, "completed", 2)  # not written yet
    assert not answer.ready
    gone, left = done[:2], done[2:]
    assert broker.states(done).value == ["unknown"] * 2 + ["completed"] * (DONE - 2)
    assert broker.results(gone).value == [None, None]
    assert [broker.job(id).value for id in gone] == [None, None]
    assert {view.job.id for view in broker.jobs("q", ["completed"], Page(0, None)).value} == set(left)
    added = broker.add_log(gone[0], "late", "info")
    assert added.error is not None
    bench.run()


def test_a_storage_that_cannot_be_read_is_named_and_nothing_of_it_shown(
    bench: Bench, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise JournalError("cannot read: SELECT secret FROM /path")

    for name in ("read_jobs", "read_results", "read_completed", "completed_before", "read_rows"):
        monkeypatch.setattr(bench.journal, name, broken)
    broker = bench.broker
    for answer in (
        broker.job(done[0]),
        broker.states(done),
        broker.results(done),
        broker.jobs("q", ["completed"], Page(0, None)),
        broker.wait(done[0], 10),
        broker.clean("q", 0, "completed", 5),
        broker.push("q", [JobSpec("n", payload(1), custom_id=done[0])]),
    ):
        with pytest.raises(StorageUnavailable, match=r"^Storage unavailable: reads fail$"):
            answer.result(0)


# -- retention --------------------------------------------------------------------------------------------------------


def test_completed_jobs_are_deleted_when_they_are_old_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "RETENTION_BATCH", 10)
    bench = Bench(tmp_path / "jobs.db", max_completed_jobs=IN_MEMORY, completed_retention_ms=60_000)
    notices: list[Mapping[str, Any]] = []
    bench.broker.subscribe_dashboard(
        lambda name, fields: notices.append(fields) if name == "cleanup:completed-removed" else None
    )
    ids = bench.add("q", 25)
    bench.complete(bench.take("q", 25))
    bench.run(60_000 - 1)
    assert bench.broker.counts("q").value.completed == 25
    for left in (15, 5, 0):
        bench.run(RETENTION_INTERVAL_MS)
        bench.run()
        assert bench.broker.counts("q").value.completed == left
        assert len(bench.journal.read_jobs(ids)) == left
        assert len(bench.journal.read_results(ids)) == left
    assert [fields["count"] for fields in notices] == [10, 10, 5]
    assert bench.broker.states(ids).value == ["unknown"] * 25
    bench.broker.close().result()


def test_what_others_wait_for_is_kept_and_does_not_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "RETENTION_BATCH", 4)
    bench = Bench(tmp_path / "jobs.db", max_completed_jobs=IN_MEMORY, completed_retention_ms=1_000)
    wanted = bench.add("q", 12)
    (open_,) = bench.add("open", 1)
    specs = [JobSpec("n", payload(1), DURABLE, depends_on=(id, open_)) for id in wanted]
    waiting = bench.finish(bench.broker.push("w", specs)).ids
    bench.complete(bench.take("q", 12))
    others = bench.add("q", 6)
    bench.clock.advance(1)
    bench.complete(bench.take("q", 6))
    for _ in range(4):
        bench.run(RETENTION_INTERVAL_MS)
        bench.run()
    assert set(bench.journal.read_jobs([*wanted, *others])) == set(wanted)
    bench.complete(bench.take("open", 1))
    assert len(bench.take("w", 20)) == len(waiting)
    for _ in range(5):
        bench.run(RETENTION_INTERVAL_MS)
        bench.run()
    assert bench.journal.read_jobs(wanted) == {}
    bench.broker.close().result()


def test_retention_goes_on_when_the_storage_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path / "jobs.db", completed_retention_ms=1_000)
    bench.add("q", 2)
    bench.complete(bench.take("q", 2))

    def broken(*_: Any) -> Any:
        raise JournalError("placed here")

    with monkeypatch.context() as patch:
        patch.setattr(bench.journal, "completed_before", broken)
        bench.run(RETENTION_INTERVAL_MS)
        assert "Completed jobs could not be read; tried again later" in bench.log.messages
        assert bench.broker.counts("q").value.completed == 2
    bench.run(RETENTION_INTERVAL_MS)
    assert bench.broker.counts("q").value.completed == 0
    bench.broker.close().result()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_jobs_own_age_holds_in_the_file_too(bench: Bench, restarted: bool) -> None:
    aged = JobOptions(durable=True, remove_on_complete=Retention(age_ms=60_000))
    ids = bench.add("q", DONE, aged)
    bench.complete(bench.take("q", DONE))
    bench.add("q", 1)
    bench.complete(bench.take("q", 1))
    if restarted:  # those that are loaded again are known to have an age; older ones only as long as the process lives
        bench.restart()
    bench.run(59_999)
    assert len(bench.journal.read_jobs(ids)) == DONE
    bench.run(1)
    bench.run()
    left = len(bench.journal.read_jobs(ids))
    assert left == 0 if not restarted else left <= DONE - IN_MEMORY + 1
    assert bench.broker.counts("q").value.completed == left + 1


def test_a_jobs_own_number_holds_in_the_file_too(bench: Bench) -> None:
    newest = JobOptions(durable=True, remove_on_complete=Retention(count=5))
    ids = bench.add("q", DONE, newest)
    for delivery in bench.take("q", DONE):
        bench.clock.advance(1)
        bench.complete([delivery])
    bench.run(1)
    bench.run()
    assert sorted(bench.journal.read_jobs(ids)) == sorted(ids[-5:])
    assert bench.broker.counts("q").value.completed == 5


# -- names of queues --------------------------------------------------------------------------------------------------


def test_a_queue_of_which_nothing_is_left_is_forgotten(bench: Bench) -> None:
    notices: list[tuple[str, Mapping[str, Any]]] = []
    bench.broker.subscribe_dashboard(lambda name, fields: notices.append((name, fields)))
    bench.add("gone", 2, JobOptions(durable=True, remove_on_complete=Retention(remove=True)))
    bench.add("kept", 1)
    bench.finish(bench.broker.pause("paused"))
    bench.complete_and_remove(bench.take("gone", 2))
    bench.finish(bench.broker.drain_queue("kept"))
    bench.add("kept", 1)
    bench.run()
    bench.run(EMPTY_QUEUE_MS - 1)
    assert bench.broker.queues().value == ["gone", "kept", "paused"]
    bench.run(1)
    assert bench.broker.queues().value == ["kept", "paused"]
    assert [fields for name, fields in notices if name == "queue:removed"] == [{"queue": "gone"}]
    metrics = bench.broker.queue_metrics("gone", "completed").value
    assert metrics.count == 2, "its metrics stay"
    bench.finish(bench.broker.resume("paused"))
    for _ in range(2):
        bench.run(EMPTY_QUEUE_MS)
    assert bench.broker.queues().value == ["kept"]
    bench.restart()
    assert bench.broker.queues().value == ["kept"]
    assert bench.broker.queue_metrics("gone", "completed").value.count == 2


def test_a_queue_is_kept_for_those_who_wait_there(bench: Bench) -> None:
    bench.add("q", 1, JobOptions(durable=True))
    waiting = bench.broker.pull(PullRequest("q", owner="w", wait_ms=100_000))
    bench.run()
    ((job, token),) = waiting.value
    parked = bench.broker.pull(PullRequest("q", owner="w", wait_ms=60_000))
    bench.finish(bench.broker.discard(job.id, token))
    bench.finish(bench.broker.purge_dead_letters("q"))
    for _ in range(3):
        bench.run(EMPTY_QUEUE_MS)
    assert bench.broker.queues().value == ["q"]
    assert not parked.ready
    bench.run(60_000)
    assert parked.value == []
    for _ in range(2):
        bench.run(EMPTY_QUEUE_MS)
    assert bench.broker.queues().value == []


def test_the_last_row_that_retention_deletes_takes_the_name_along(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "jobs.db", max_completed_jobs=1, completed_retention_ms=1_000)
    bench.add("q", 5)
    bench.complete(bench.take("q", 5))
    bench.restart()
    assert bench.broker.queues().value == ["q"]
    for _ in range(4):
        bench.run(RETENTION_INTERVAL_MS)
    assert bench.broker.queues().value == []
    bench.broker.close().result()
