"""``removeOnComplete: {age, count}`` by the clock and by number, over restarts, and for jobs that memory has let go."""

from __future__ import annotations

from fixtures.local import Bench, job

from bunqueue_core.model.job import Retention
from bunqueue_core.storage.changes import AGE_TABLE
from bunqueue_core.testing import DictJournal

HOUR = 3_600_000


def finish(bench: Bench, count: int, **settings: object) -> list[str]:
    """Complete ``count`` jobs, one a second."""
    ids = []
    for _ in range(count):
        ids.append(bench.add(**settings))
        bench.complete(bench.take())
        bench.run(1_000)
    return ids


def test_age_is_applied_by_the_clock() -> None:
    bench = Bench()
    (id,) = finish(bench, 1, remove_on_complete=Retention(age_ms=10_000))
    bench.run(8_900)
    assert bench.state(id) == "completed"
    bench.run(200)
    assert bench.state(id) == "unknown"
    assert bench.counts().completed == 0


def test_age_is_applied_after_a_restart() -> None:
    bench = Bench(DictJournal())
    (id,) = finish(bench, 1, remove_on_complete=Retention(age_ms=10_000))
    bench.crash()
    bench.run(10_000)
    assert bench.state(id) == "unknown"
    assert bench.journal is not None
    assert not bench.journal.read_jobs([id])


def test_age_is_applied_to_jobs_that_only_the_journal_holds() -> None:
    bench = Bench(DictJournal(), max_completed_jobs=5)
    ids = finish(bench, 20, remove_on_complete=Retention(age_ms=HOUR))
    kept = finish(bench, 20)
    assert ids[0] not in bench.broker._engine.jobs
    assert bench.states(*ids) == ["completed"] * 20
    bench.run(HOUR)
    bench.run(1)
    assert bench.states(*ids) == ["unknown"] * 20
    assert bench.states(*kept) == ["completed"] * 20
    assert bench.counts().completed == 20


def test_age_is_applied_after_a_restart_to_jobs_that_only_the_journal_holds() -> None:
    bench = Bench(DictJournal(), max_completed_jobs=5)
    ids = finish(bench, 20, remove_on_complete=Retention(age_ms=HOUR))
    bench.crash()
    assert ids[0] not in bench.broker._engine.jobs
    bench.run(HOUR)
    bench.run(1)
    assert bench.states(*ids) == ["unknown"] * 20
    assert bench.journal is not None
    assert bench.journal.load_table(AGE_TABLE) == []


def test_age_is_applied_whichever_jobs_memory_held_before_a_restart() -> None:
    """Of jobs that end in the same millisecond a start may load others than those that were in memory."""
    bench = Bench(DictJournal(), max_completed_jobs=5)
    ids = [bench.add(remove_on_complete=Retention(age_ms=HOUR)) for _ in range(20)]
    for delivery in reversed(bench.pull(count=20)):
        bench.complete(delivery)
    bench.crash()
    bench.run(HOUR)
    bench.run(1)
    assert bench.states(*ids) == ["unknown"] * 20
    assert bench.journal is not None
    assert bench.journal.load_table(AGE_TABLE) == []


def test_a_job_that_is_removed_or_runs_again_leaves_no_age_behind() -> None:
    bench = Bench(DictJournal())
    gone, again, _ = finish(bench, 3, remove_on_complete=Retention(age_ms=HOUR))
    assert bench.done(bench.broker.clean("q", 2_000, "completed", 1)) == [gone]
    assert bench.done(bench.broker.retry_completed("q", again)) == 1
    bench.crash()
    bench.run(2 * HOUR)
    assert bench.states(gone, again) == ["unknown", "waiting"]
    assert bench.journal is not None
    assert bench.journal.load_table(AGE_TABLE) == []


def test_number_is_applied_at_once() -> None:
    bench = Bench(DictJournal())
    ids = finish(bench, 10, remove_on_complete=Retention(count=3))
    assert bench.states(*ids) == ["unknown"] * 7 + ["completed"] * 3
    assert bench.counts().completed == 3


def test_number_may_be_larger_than_what_memory_holds() -> None:
    bench = Bench(DictJournal(), max_completed_jobs=5)
    ids = finish(bench, 40, remove_on_complete=Retention(count=20))
    bench.run(1)
    assert bench.counts().completed == 20
    assert bench.states(*ids) == ["unknown"] * 20 + ["completed"] * 20


def test_what_others_wait_for_stays() -> None:
    bench = Bench(DictJournal())
    first = bench.add(remove_on_complete=Retention(age_ms=1_000, count=0))
    second = bench.add(queue="other")
    parent = bench.add(queue="p", depends_on=(first, second))
    bench.complete(bench.take())
    bench.run(60_000)
    bench.complete(bench.take("other"))
    assert bench.state(parent) == "waiting"
    bench.run(60_000)
    assert bench.state(first) == "unknown"


def test_dead_letters_have_an_age_and_a_number_of_their_own() -> None:
    bench = Bench(DictJournal())
    ids = []
    for _ in range(6):
        ids.append(bench.add(max_attempts=1, remove_on_fail=Retention(age_ms=60_000, count=4)))
        bench.fail(bench.take())
        bench.run(1_000)
    assert bench.states(*ids) == ["unknown"] * 2 + ["failed"] * 4
    bench.crash()
    bench.run(56_500)
    assert bench.states(*ids) == ["unknown"] * 3 + ["failed"] * 3
    bench.run(10_000)
    assert set(bench.states(*ids)) == {"unknown"}


def test_a_new_generation_is_not_removed_for_the_age_of_the_old_one() -> None:
    bench = Bench(DictJournal())
    for _ in range(2):
        bench.push(job(custom_id="c", remove_on_complete=Retention(age_ms=10_000)))
        bench.complete(bench.take())
        bench.run(6_000)
    assert bench.state("c") == "completed"
    bench.run(5_000)
    assert bench.state("c") == "unknown"
