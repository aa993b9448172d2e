"""Scopes of deduplication, debounce, and how both outlive restarts."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.local import Bench, job, unpack

from bunqueue_core.model.job import REMOVE
from bunqueue_core.storage.changes import WINDOW_TABLE
from bunqueue_core.testing import DictJournal


def outcome(bench: Bench, **settings: Any) -> tuple[str, str]:
    pushed = bench.done(bench.broker.push("q", [job(unique_key="k", **settings)]))
    return pushed.ids[0], pushed.outcomes[0]


def test_by_default_the_first_failure_frees_the_key() -> None:
    bench = Bench()
    first, _ = outcome(bench)
    assert outcome(bench) == (first, "found")
    delivery = bench.take()
    assert outcome(bench) == (first, "found")
    bench.fail(delivery)
    second, how = outcome(bench)
    assert (second != first, how) == (True, "created")


def test_waiting_frees_the_key_with_the_delivery() -> None:
    bench = Bench()
    first, _ = outcome(bench, dedup_scope="waiting")
    assert outcome(bench, dedup_scope="waiting") == (first, "found")
    bench.take()
    assert outcome(bench, dedup_scope="waiting")[1] == "created"


def test_unfinished_keeps_the_key_through_every_attempt() -> None:
    bench = Bench(DictJournal())
    first, _ = outcome(bench, dedup_scope="unfinished", max_attempts=2, backoff_ms=0)
    bench.fail(bench.take())
    assert outcome(bench, dedup_scope="unfinished") == (first, "found")
    bench.crash()
    assert outcome(bench, dedup_scope="unfinished") == (first, "found")
    bench.fail(bench.take())
    assert outcome(bench, dedup_scope="unfinished")[1] == "created"


@pytest.mark.parametrize("removed", [False, True])
def test_a_window_outlives_its_job(removed: bool) -> None:
    bench = Bench()
    keep = {"remove_on_complete": REMOVE} if removed else {}
    first, _ = outcome(bench, dedup_scope="window", dedup_ttl_ms=60_000, **keep)
    bench.complete(bench.take())
    bench.run(59_000)
    assert outcome(bench, dedup_scope="window", dedup_ttl_ms=60_000) == (first, "found")
    bench.run(1_000)
    assert outcome(bench, dedup_scope="window", dedup_ttl_ms=60_000)[1] == "created"


def test_a_window_keeps_the_name_of_a_queue_of_which_nothing_else_remains() -> None:
    bench = Bench(DictJournal())
    window: dict[str, Any] = {"dedup_scope": "window", "dedup_ttl_ms": 60_000}
    first, _ = outcome(bench, remove_on_complete=REMOVE, **window)
    bench.complete(bench.take())
    for _ in range(5):
        bench.run(11_000)
    assert outcome(bench, **window) == (first, "found")
    for _ in range(3):
        bench.run(11_000)
    assert bench.done(bench.broker.queues()) == []
    assert bench.journal is not None
    assert bench.journal.load_table(WINDOW_TABLE) == []


@pytest.mark.parametrize("end", ["waiting", "completed", "failed"])
def test_a_window_ends_when_it_would_have_without_a_restart(end: str) -> None:
    bench = Bench(DictJournal())
    first, _ = outcome(bench, dedup_scope="window", dedup_ttl_ms=60_000, max_attempts=1)
    if end == "completed":
        bench.complete(bench.take())
    elif end == "failed":
        bench.fail(bench.take())
    bench.run(30_000)
    bench.crash()
    bench.run(29_000)
    assert outcome(bench, dedup_scope="window", dedup_ttl_ms=60_000) == (first, "found")
    bench.run(1_000)
    assert outcome(bench, dedup_scope="window", dedup_ttl_ms=60_000)[1] == "created"


def test_a_window_without_an_end_is_over_with_its_job() -> None:
    bench = Bench()
    outcome(bench, dedup_scope="window")
    bench.complete(bench.take())
    assert outcome(bench, dedup_scope="window")[1] == "created"


def test_a_dead_letter_comes_back_although_a_window_of_another_is_open() -> None:
    bench = Bench()
    first, _ = outcome(bench, max_attempts=1)
    bench.fail(bench.take())
    second, _ = outcome(bench, dedup_scope="window", dedup_ttl_ms=60_000)
    assert bench.done(bench.broker.retry_dead_letters("q", first)) == 0  # the other is still unfinished
    bench.complete(bench.take())
    assert bench.done(bench.broker.retry_dead_letters("q", first)) == 1
    assert outcome(bench, dedup_scope="window", dedup_ttl_ms=60_000) == (second, "found")


def test_a_completed_job_runs_again_although_an_expired_key_has_another_owner() -> None:
    bench = Bench()
    first, _ = outcome(bench)
    bench.complete(bench.take())
    outcome(bench, dedup_ttl_ms=1_000, delay=60_000)
    assert bench.done(bench.broker.retry_completed("q", first)) == 0
    bench.run(1_000)
    assert bench.done(bench.broker.retry_completed("q", first)) == 1


def test_the_job_that_was_added_last_owns_the_key_after_a_restart() -> None:
    bench = Bench(DictJournal())
    first, _ = outcome(bench, max_attempts=5, priority=0)
    bench.fail(bench.take())
    bench.clock.advance(10)
    second, _ = outcome(bench, priority=7)
    bench.run()
    bench.crash()
    assert outcome(bench) == (second, "found")
    assert first != second


# -- debounce -----------------------------------------------------------------------------------------------------------


def debounced(
    bench: Bench, data: object, ttl: int = 5_000, wait: int | None = None, **settings: Any
) -> tuple[str, str]:
    spec = job(data, debounce_id="d", debounce_ttl_ms=ttl, debounce_max_wait_ms=wait, **settings)
    pushed = bench.done(bench.broker.push("q", [spec]))
    return pushed.ids[0], pushed.outcomes[0]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_newest_data_wins_and_the_run_moves_out(persistent: bool) -> None:
    bench = Bench(DictJournal() if persistent else None)
    id, how = debounced(bench, 1)
    assert (bench.state(id), how) == ("delayed", "created")
    bench.run(4_000)
    assert debounced(bench, 2, name="renamed") == (id, "found")
    bench.run(4_000)
    if persistent:
        bench.crash()
    assert debounced(bench, 3) == (id, "found")
    bench.run(4_000)
    assert bench.state(id) == "delayed"
    bench.run(1_000)
    delivery = bench.take()
    assert (delivery.job.id, unpack(delivery.job.data)) == (id, 3)
    assert debounced(bench, 4)[1] == "created"


def test_it_waits_no_longer_than_it_may() -> None:
    bench = Bench()
    id, _ = debounced(bench, 0, wait=12_000)
    for number in range(1, 4):
        bench.run(4_000)
        if number < 3:
            assert bench.state(id) == "delayed"
            debounced(bench, number, wait=12_000)
    assert unpack(bench.take().job.data) == 2


def test_a_job_that_was_delivered_takes_over_nothing() -> None:
    bench = Bench()
    id, _ = debounced(bench, 1)
    bench.run(5_000)
    delivery = bench.take()
    assert debounced(bench, 2)[1] == "created"
    bench.fail(delivery)
    assert unpack(bench.view(id).job.data) == 1


def test_a_bulk_debounces_within_itself() -> None:
    bench = Bench()
    specs = [job(number, debounce_id="d", debounce_ttl_ms=1_000) for number in range(3)]
    pushed = bench.done(bench.broker.push("q", specs))
    assert len(set(pushed.ids)) == 1
    assert pushed.outcomes == ["created", "found", "found"]
    bench.run(1_000)
    assert unpack(bench.take().job.data) == 2


def test_other_ids_and_other_queues_are_apart() -> None:
    bench = Bench()
    spec = {"debounce_ttl_ms": 1_000}
    ids = {
        bench.add(1, debounce_id="a", **spec),
        bench.add(2, debounce_id="b", **spec),
        bench.add(3, "other", debounce_id="a", **spec),
        bench.add(4, debounce_id="a"),  # without a time nothing is waited for
    }
    assert len(ids) == 4


def test_a_refused_bulk_debounces_nothing() -> None:
    bench = Bench()
    id, _ = debounced(bench, 1)
    refused = bench.broker.push(
        "q", [job(2, debounce_id="d", debounce_ttl_ms=5_000), *(job(group_id="g", group_max_size=1) for _ in range(2))]
    )
    assert refused.error is not None
    bench.run(5_000)
    assert unpack(bench.take().job.data) == 1
    assert bench.state(id) == "active"
