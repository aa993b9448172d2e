"""Parts that fail (plugins, callbacks, rules of repetition, work that is due) cost what they were asked for and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fixtures.local import Bench, job

from bunqueue_core.model.requests import PullRequest
from bunqueue_core.testing import DictJournal
from bunqueue_core.testing.invariants import check_broker


def raising(*_: Any) -> float:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "strategy",
    [raising, lambda *_: math.nan, lambda *_: math.inf, lambda *_: -5, lambda *_: "soon", lambda *_: None],
)
def test_a_failure_is_recorded_whatever_a_plugin_makes_of_its_backoff(strategy: Any) -> None:
    bench = Bench(DictJournal(), strategies={"odd": strategy})
    bench.add(backoff={"type": "odd", "delay": 1_000})
    delivery = bench.take()
    bench.fail(delivery)
    check_broker(bench.broker)
    assert bench.state(delivery.job.id) in ("waiting", "delayed")
    assert bench.view(delivery.job.id).job.run_at <= bench.now + 3_600_000


def test_lost_leases_are_handled_whatever_a_plugin_makes_of_their_backoff() -> None:
    bench = Bench(DictJournal(), strategies={"odd": raising})
    ids = bench.push(
        *(job(backoff={"type": "odd", "delay": 1}, stall_timeout_ms=1_000, max_attempts=5) for _ in range(3))
    )
    bench.pull(count=3, lock_ttl_ms=3_600_000)
    bench.run(60_000)
    assert {*bench.states(*ids)} <= {"waiting", "delayed"}


def test_work_that_is_due_and_fails_stops_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(DictJournal())
    ids = bench.push(*(job(max_attempts=5) for _ in range(3)))
    bench.pull(count=3, lock_ttl_ms=1_000)
    bench.add(queue="other")
    engine = bench.broker._engine
    original = engine.job_due
    failing = [ids[1]]

    def job_due(job: Any, now: int) -> bool:
        if job.id in failing:
            raise RuntimeError("a fault was placed here")
        return original(job, now)

    monkeypatch.setattr(engine, "job_due", job_due)
    written = bench.journal.commits if bench.journal else 0
    for _ in range(3):
        bench.run(61_000)
    assert bench.states(*ids).count("waiting") == 2
    assert bench.journal is not None
    assert bench.journal.commits > written
    failing.clear()
    bench.run(61_000)
    assert bench.states(*ids) == ["waiting"] * 3


def test_an_action_that_fails_is_tried_again() -> None:
    bench = Bench()
    calls: list[int] = []

    def action(now: int) -> None:
        calls.append(now)
        if len(calls) == 1:
            raise RuntimeError("a fault was placed here")

    bench.broker._engine.agenda.set("test", bench.now + 1_000, action)
    bench.run(1_000)
    bench.run(60_000)
    assert len(calls) == 2


def test_a_callback_that_fails_keeps_nobody_from_their_answer() -> None:
    bench = Bench(DictJournal())

    def fail(_: Any) -> None:
        raise RuntimeError("a fault was placed here")

    first = bench.broker.push("q", [job(durable=True)])
    first.add_callback(fail)
    second = bench.broker.push("q", [job(durable=True)])
    bench.broker.run_due()
    assert first.ready
    assert second.ready


def test_a_repeat_job_completes_although_its_successor_is_refused() -> None:
    bench = Bench()
    id = bench.add(unique_key="k", dedup_extend=True, dedup_ttl_ms=60_000, repeat={"every": 1_000, "count": 0})
    delivery = bench.take()
    bench.done(bench.broker.remove_key("q", "k"))
    other = bench.add(unique_key="k", dedup_ttl_ms=60_000)
    assert bench.take().job.id == other
    bench.complete(delivery, "result")
    assert bench.state(id) == "completed"
    check_broker(bench.broker)


def test_a_refused_bulk_changes_nothing() -> None:
    bench = Bench()
    owner = bench.add(unique_key="k", dedup_ttl_ms=5_000)
    bench.events.clear()
    bulk = [
        job(unique_key="k"),
        job(unique_key="k", dedup_extend=True, dedup_ttl_ms=600_000),
        job(group_id="g", group_max_size=1),
        job(group_id="g", group_max_size=1),
    ]
    answer = bench.broker.push("q", bulk)
    assert str(answer.error) == "Group g has reached its maximum size of 1"
    assert not bench.events
    bench.run(5_000)
    assert bench.add(unique_key="k") != owner  # its time to live was not extended


def test_a_member_cannot_wait_for_what_the_same_bulk_removes() -> None:
    bench = Bench()
    owner = bench.add(unique_key="k")
    replacing = job(unique_key="k", dedup_replace=True)
    waiting = job(depends_on=(owner,))
    assert str(bench.broker.push("q", [replacing, waiting]).error) == f"Dependency job not found: {owner}"
    refused = bench.broker.push("q", [waiting, replacing])
    assert str(refused.error) == f"Cannot replace deduplicated job {owner} because live jobs depend on it"
    child = job({"__parentId": owner, "__parentQueue": "q"}, parent_id=owner, parent_queue="q")
    assert str(bench.broker.push("q", [replacing, child]).error) == f"Parent job not found: {owner}"
    refused = bench.broker.push("q", [child, replacing])
    assert str(refused.error) == f"Cannot replace deduplicated job {owner} because live jobs depend on it"
    usurper = job({"__parentId": owner, "__parentQueue": "q"}, parent_id=owner, parent_queue="q", unique_key="k")
    usurper.options = replacing.options
    refused = bench.broker.push("q", [usurper])
    assert str(refused.error) == f"Cannot replace deduplicated job {owner} because live jobs depend on it"
    assert bench.counts().waiting == 1
    check_broker(bench.broker)


@pytest.mark.parametrize("later", [True, False])
def test_a_member_waits_for_the_new_generation_of_another(later: bool) -> None:
    bench = Bench()
    bench.add(custom_id="c")
    bench.complete(bench.take())
    again, waiting = job(custom_id="c"), job(depends_on=("c",))
    ids = bench.push(*((waiting, again) if later else (again, waiting)))
    waiter = ids[0] if later else ids[1]
    assert bench.state(waiter) == "waiting-children"
    check_broker(bench.broker)
    bench.complete(bench.take())
    assert bench.state(waiter) == "waiting"


def test_a_delivery_that_nobody_took_does_not_steal_the_key_of_its_successor() -> None:
    bench = Bench(DictJournal())
    old = bench.add(unique_key="k")
    answer = bench.broker.pull(PullRequest("q", 1, "w"))
    new = bench.add(unique_key="k", dedup_replace=True)
    answer.cancel()
    bench.run()
    assert bench.state(old) == "waiting"
    assert bench.add(unique_key="k") == new
