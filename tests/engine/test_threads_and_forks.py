"""An embedded broker under many threads at once, closed while they work, and in the child of a fork."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fixtures.local import Bench, job, pack

from bunqueue_core.model.errors import BrokerClosed, CommandTimeoutError
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.requests import Ack, Failure, GroupDefaults, PullRequest
from bunqueue_core.testing import DictJournal
from bunqueue_core.testing.invariants import check_broker

JOBS = 1_500


class Crowd:
    """Threads that push, pull, acknowledge, fail, cancel, give up waiting and lose connections, all at once."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.broker = bench.broker
        self.seed = seed
        self.lock = threading.Lock()
        self.pushed: set[str] = set()
        self.done: list[str] = []
        self.failures: list[BaseException] = []
        self.over = threading.Event()  #: no more pushes
        self.threads: list[threading.Thread] = []

    def run(self, producers: int, workers: int) -> None:
        kinds: list[tuple[Callable[[random.Random, str], None], int]] = [
            (self.produce, producers),
            (self.work, workers),
        ]
        for function, count in kinds:
            for number in range(count):
                dice = random.Random(self.seed * 100 + len(self.threads))
                name = f"{function.__name__}{number}"
                self.threads.append(threading.Thread(target=self.guarded, args=(function, dice, name), name=name))
        for thread in self.threads:
            thread.start()

    def guarded(self, function: Callable[[random.Random, str], None], dice: random.Random, name: str) -> None:
        try:
            function(dice, name)
        except BrokerClosed:
            return
        except BaseException as error:
            self.failures.append(error)
            raise

    def produce(self, dice: random.Random, name: str) -> None:
        while not self.over.is_set():
            specs = [
                job(
                    durable=dice.random() < 0.3,
                    delay=dice.choice((0, 0, 0, 10)),
                    group_id=dice.choice((None, None, "g1", "g2")),
                    priority=dice.choice((0, 0, 5)),
                    max_attempts=50,
                    backoff_ms=0,
                )
                for _ in range(dice.choice((1, 1, 5)))
            ]
            if dice.random() < 0.02:
                specs = [job() for _ in range(150)]  # which is written beside whoever adds it
            ids = self.broker.push(dice.choice("ab"), specs).result(30).ids
            with self.lock:
                self.pushed.update(ids)
                if len(self.pushed) >= JOBS:
                    self.over.set()

    def work(self, dice: random.Random, name: str) -> None:
        while not (self.over.is_set() and len(self.done) >= len(self.pushed)):
            defaults = GroupDefaults(concurrency=2) if dice.random() < 0.5 else None
            wait_ms = dice.choice((0, 20, 100))
            answer = self.broker.pull(
                PullRequest(dice.choice("ab"), dice.choice((1, 3)), name, 60_000, wait_ms, None, defaults)
            )
            if dice.random() < 0.05:
                answer.cancel()
                continue
            try:
                deliveries = answer.result(dice.choice((30, 0.001)))
            except CommandTimeoutError:
                answer.cancel()
                continue
            for delivery in deliveries:
                if dice.random() < 0.03:
                    self.broker.fail([Failure(delivery.job.id, "e", delivery.token)]).result(30)
                    continue
                outcome = self.broker.ack([Ack(delivery.job.id, delivery.token, pack(1))]).result(30)
                outcome.raise_first()
                with self.lock:
                    self.done.append(delivery.job.id)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)
        assert not [thread.name for thread in self.threads if thread.is_alive()]
        assert not self.failures


def opened(persistent: bool) -> Bench:
    return Bench(DictJournal() if persistent else None, role="embedded", ports=Ports(), max_completed_jobs=200)


@pytest.mark.parametrize("persistent", [False, True])
def test_every_job_is_done_once(persistent: bool) -> None:
    bench = opened(persistent)
    crowd = Crowd(bench, 1)
    crowd.run(producers=2, workers=5)
    crowd.join()
    assert sorted(crowd.done) == sorted(crowd.pushed)
    check_broker(bench.broker)
    bench.broker.close().result(30)


def test_closing_under_load_loses_nothing_that_was_answered() -> None:
    bench = opened(True)
    crowd = Crowd(bench, 2)
    crowd.run(producers=2, workers=4)
    while len(crowd.done) < 100:
        assert not crowd.failures
        threading.Event().wait(0.01)
    bench.broker.close().result(30)
    crowd.join()
    bench.broker = bench.start()
    check_broker(bench.broker)
    assert bench.journal is not None
    states = {row.id: row.state for row in bench.journal.read_jobs(sorted(crowd.pushed)).values()}
    assert states.keys() == crowd.pushed
    assert {states[id] for id in crowd.done} == {"completed"}
    assert "active" not in states.values()
    bench.broker.close().result(30)


def test_whoever_closes_second_waits_for_the_first() -> None:
    bench = opened(True)
    held, go = threading.Event(), threading.Event()
    journal: Any = bench.journal
    commit = journal.commit

    def slow(changes: Any) -> None:
        held.set()
        assert go.wait(30)
        commit(changes)

    bench.broker.push("q", [job()])
    journal.commit = slow
    first = threading.Thread(target=lambda: bench.broker.close().result(30))
    first.start()
    assert held.wait(30)
    second = threading.Thread(target=lambda: bench.broker.close().result(30))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go.set()
    first.join(30)
    second.join(30)
    assert journal.commits == 1


def test_waiting_pulls_end_empty_when_the_broker_closes() -> None:
    bench = opened(True)
    answers = [bench.broker.pull(PullRequest("q", 1, "w", wait_ms=60_000)) for _ in range(5)]
    results: list[Any] = []
    threads = [threading.Thread(target=lambda answer=answer: results.append(answer.result(30))) for answer in answers]
    for thread in threads:
        thread.start()
    bench.broker.close().result(30)
    for thread in threads:
        thread.join(30)
    assert results == [[]] * 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_cannot_use_the_broker_of_its_parent() -> None:
    bench = opened(True)
    bench.broker.push("q", [job(durable=True)]).result(30)
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with bench.broker._lock:
            holding.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(30)
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        code = 1
        try:
            errors = (bench.broker.push("q", [job()]).error, bench.broker.pull(PullRequest("q")).error)
            closed = bench.broker.close().result(5) is None
            code = 0 if closed and all(isinstance(error, BrokerClosed) for error in errors) else 2
        finally:
            os._exit(code)
    done.set()
    holder.join(30)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(bench.broker.pull(PullRequest("q", 5)).result(30)) == 1
    bench.broker.close().result(30)
