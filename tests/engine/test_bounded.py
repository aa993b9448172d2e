"""Whatever the engine keeps beside jobs is bounded by the jobs that are alive, however many have come and gone."""

from __future__ import annotations

from fixtures.local import Bench, job

from bunqueue_core.model.job import REMOVE, Retention
from bunqueue_core.model.requests import DlqConfig
from bunqueue_core.testing import DictJournal

YEAR = 31_536_000_000
MANY = 5_000


def cycle(bench: Bench, times: int, **settings: object) -> None:
    """Add, deliver and complete jobs, a hundred at a time."""
    for _ in range(times // 100):
        bench.push(*(job(**settings) for _ in range(100)))
        for delivery in bench.pull(count=100, lock_ttl_ms=YEAR):
            bench.complete(delivery)
        bench.broker.run_due()


def test_times_to_live_of_jobs_that_are_over() -> None:
    bench = Bench()
    cycle(bench, MANY, ttl_ms=YEAR, remove_on_complete=REMOVE)
    assert len(bench.broker._engine.queues["q"].expiring) < 2_100


def test_the_order_of_completed_jobs() -> None:
    bench = Bench()
    cycle(bench, MANY, remove_on_complete=Retention(count=10))
    assert len(bench.broker._engine.completed_order) == 10
    assert bench.counts().completed == 10


def test_ages_of_completed_jobs_that_went_before_their_time() -> None:
    bench = Bench()
    cycle(bench, MANY, remove_on_complete=Retention(age_ms=YEAR, count=10))
    assert len(bench.broker._engine.completed_expiry) < 2_100


def test_deduplication_keys_without_owners() -> None:
    bench = Bench()
    for number in range(MANY):
        bench.add(unique_key=f"k{number}", ttl_ms=1)
        bench.clock.advance(5)
        bench.pull()  # finds nothing: the job has outlived its time
    assert len(bench.broker._engine.queues["q"].unique) < 1_100
    live = [bench.add(unique_key=f"live{number}") for number in range(3_000)]
    assert [bench.add(unique_key=f"live{number}") for number in range(3_000)] == live


def test_debounce_ids_of_jobs_that_are_over() -> None:
    bench = Bench()
    for number in range(MANY):
        bench.add(debounce_id=f"d{number}", debounce_ttl_ms=10, remove_on_complete=REMOVE)
        bench.clock.advance(20)
        bench.complete(bench.take())
    assert len(bench.broker._engine.queues["q"].debounced) < 1_100


def test_deadlines_of_deliveries_that_are_over() -> None:
    bench = Bench()
    for _ in range(10_000):
        bench.add(remove_on_complete=REMOVE)
        bench.complete(bench.take(lock_ttl_ms=YEAR))
        bench.clock.advance(60)
    assert len(bench.broker._engine.timers._heap) < 4_200


def test_times_of_dead_letters_that_were_taken_out() -> None:
    bench = Bench()
    for _ in range(MANY):
        bench.add(max_attempts=1)
        delivery = bench.take()
        bench.fail(delivery)
        bench.done(bench.broker.remove_dead_letter("q", delivery.job.id))
    assert len(bench.broker._engine.letter_times) < 1_100
    assert not bench.broker._engine.letters


def test_completed_jobs_in_memory_while_nothing_may_go() -> None:
    journal = DictJournal()
    bench = Bench(journal, max_completed_jobs=10)
    ids = bench.push(*(job() for _ in range(100)))
    for delivery in bench.pull(count=100):
        bench.broker.ack([_ack(delivery)])  # not written yet: memory is the only place that knows
    assert bench.states(*ids) == ["completed"] * 100
    bench.run()
    bench.add()
    bench.complete(bench.take())
    for _ in range(20):
        bench.add()
        bench.complete(bench.take())
    assert bench.broker._engine.completed_in_memory < 100
    assert bench.counts().completed == 121
    assert bench.states(*ids) == ["completed"] * 100


def _ack(delivery):  # type: ignore[no-untyped-def]
    from bunqueue_core.model.requests import Ack

    return Ack(delivery.job.id, delivery.token)


def test_a_bound_on_completed_jobs_takes_no_evidence_from_those_who_wait() -> None:
    bench = Bench(max_completed_jobs=10)
    children = bench.push(*(job() for _ in range(60)))
    parent = bench.add(queue="p", depends_on=tuple(children))
    for delivery in bench.pull(count=60):
        bench.complete(delivery)
    assert bench.state(parent) == "waiting"


def test_results_of_children_outlive_the_bound_on_completed_jobs() -> None:
    bench = Bench(max_completed_jobs=10)
    parent = bench.add({})
    children = bench.push(
        *(job({"__parentId": parent, "__parentQueue": "q"}, parent_id=parent, parent_queue="q") for _ in range(40)),
        queue="c",
    )
    for number, delivery in enumerate(bench.pull("c", 40)):
        bench.complete(delivery, number)
    values = bench.done(bench.broker.children_values(parent))
    assert {key.rpartition(":")[2] for key in values} == set(children)


def test_removed_rows_are_not_read_back_before_the_commit_that_deletes_them() -> None:
    bench = Bench(DictJournal(), max_completed_jobs=1)
    for number in range(5):
        bench.add(custom_id=f"c{number}")
        bench.complete(bench.take())
    assert "c0" not in bench.broker._engine.jobs
    cleaned = bench.broker.clean("q", 0, "completed", 100)
    again = bench.broker.push("q", [job(custom_id="c0"), job(depends_on=("c0",))])
    assert again.value.outcomes == ["created", "created"]
    assert bench.state(again.value.ids[1]) == "waiting-children"
    bench.run()
    assert sorted(cleaned.value) == [f"c{number}" for number in range(5)]
    assert bench.counts().completed == 0


def test_dead_letters_are_looked_at_when_they_are_due_and_not_all_each_time() -> None:
    bench = Bench()
    bench.done(bench.broker.set_dlq_config("q", DlqConfig(max_age_ms=1_000_000, max_entries=100_000)))
    for _ in range(500):
        bench.add(max_attempts=1)
        bench.fail(bench.take())
        bench.clock.advance(1_000)
    looked = 0
    engine = bench.broker._engine
    original = engine._letter

    def counting(time: tuple[int, int, str, str]) -> object:
        nonlocal looked
        looked += 1
        return original(time)

    engine._letter = counting  # type: ignore[method-assign, assignment]
    bench.clock.advance(1_000_000 - 500_000)
    for _ in range(500):
        bench.broker.run_due()
        bench.clock.advance(1_000)
    assert bench.counts().failed == 0
    assert looked <= 1_000
