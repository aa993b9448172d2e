"""Pulls that wait: whatever makes a job claimable wakes one of them, each job goes to one, and waiting costs what wakes up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fixtures.local import Bench, job

from bunqueue_core.answer import Answer
from bunqueue_core.model.requests import Delivery, GroupDefaults, PullRequest
from bunqueue_core.testing import DictJournal


@pytest.fixture(params=["memory", "journal"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(DictJournal() if request.param == "journal" else None)


def test_jobs_that_become_due_one_after_the_other_wake_one_pull_each(bench: Bench) -> None:
    first, second = bench.park(), bench.park()
    bench.add(delay=5_000)
    bench.add(delay=6_000)
    bench.run(5_000)
    assert (first.ready, second.ready) == (True, False)
    bench.run(1_000)
    assert second.ready


def test_jobs_that_become_due_together_wake_all_pulls_that_they_suffice_for(bench: Bench) -> None:
    waiting = [bench.park() for _ in range(3)]
    bench.push(*(job(delay=5_000) for _ in range(5)))
    bench.run(5_000)
    assert all(answer.ready for answer in waiting)


@pytest.mark.parametrize("end", ["deadline", "cancel", "release"])
def test_the_pull_that_waited_first_may_leave(bench: Bench, end: str) -> None:
    first = bench.park(wait_ms=1_000, session="s")
    second = bench.park()
    bench.add(delay=5_000)
    if end == "cancel":
        first.cancel()
    elif end == "release":
        bench.done(bench.broker.release("s"))
    bench.run(1_000)
    assert first.value == []
    assert not second.ready
    bench.run(4_000)
    assert len(second.value) == 1


def test_a_rate_limit_wakes_one_pull_for_each_token(bench: Bench) -> None:
    bench.done(bench.broker.set_rate_limit("q", 1, 1_000))
    bench.push(job(), job(), job())
    bench.take()
    waiting = [bench.park(), bench.park()]
    bench.run(1_000)
    assert [answer.ready for answer in waiting] == [True, False]
    bench.run(1_000)
    assert waiting[1].ready


def test_a_manual_limit_of_a_group_that_is_shortened_wakes(bench: Bench) -> None:
    bench.add(group_id="g")
    bench.done(bench.broker.rate_limit_group("q", "g", 3_600_000))
    waiting = bench.park()
    bench.done(bench.broker.rate_limit_group("q", "g", 1_000))
    bench.run(1_000)
    assert waiting.ready


def test_an_answer_that_calls_verbs_serves_nobody_twice() -> None:
    bench = Bench()
    first, second = bench.park(), bench.park()

    def push_more(answer: Answer[list[Delivery]]) -> None:
        bench.push(job(), job())

    first.add_callback(push_more)
    bench.add()
    assert [len(first.value), len(second.value)] == [1, 1]
    counts = bench.counts()
    assert (counts.active, counts.waiting) == (2, 1)


def test_a_cancelled_pull_gives_back_what_it_claimed_before_the_commit() -> None:
    bench = Bench(DictJournal())
    bench.add()
    answer = bench.broker.pull(PullRequest("q", 1, "w"))
    assert not answer.ready
    answer.cancel()
    bench.run()
    assert bench.counts().waiting == 1
    assert bench.take().job.attempts == 0


async def test_a_task_that_is_cancelled_between_claim_and_delivery_claims_nothing() -> None:
    bench = Bench(DictJournal())
    bench.add()
    for commit_first in (False, True):
        task = asyncio.ensure_future(awaited(bench.broker.pull(PullRequest("q", 1, "w"))))
        await asyncio.sleep(0)
        if commit_first:
            bench.broker.run_due()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        bench.run()
        assert bench.counts().waiting == 1


async def awaited(answer: Answer[Any]) -> Any:
    return await answer


def test_a_push_tries_each_set_of_defaults_once_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(300):
        bench.park(group=GroupDefaults(concurrency=1) if number % 2 else GroupDefaults(concurrency=2))
    bench.add(group_id="g")
    tries = 0
    original = bench.broker._engine.pull

    def counting(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        return original(*arguments)

    monkeypatch.setattr(bench.broker._engine, "pull", counting)
    bench.add(group_id="g")  # one is active: only those who allow two may have it
    assert tries <= 3
    tries = 0
    bench.add(group_id="g")  # and this one nobody
    assert tries <= 2


def test_waiting_leaves_nothing_behind(bench: Bench) -> None:
    for _ in range(4_000):
        answer = bench.park()
        bench.add()
        bench.broker.run_due()
        bench.complete(answer.value[0], remove=True)
    assert len(bench.broker._wakes) < 2_100


def test_a_pull_that_was_claimed_for_when_the_broker_closes_gets_nothing() -> None:
    bench = Bench(DictJournal())
    bench.add()
    answer = bench.broker.pull(PullRequest("q", 1, "w"))
    bench.broker.close().result(5)
    assert answer.value == []
    bench.broker = bench.start()
    assert bench.take().job.attempts == 0
