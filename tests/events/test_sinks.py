"""Sinks that are slow, fail or hang: the broker does not feel it, and what was lost is counted and told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from event_standins import Records, local_broker

from bunqueue_core.events.sinks import DROPPED, SinkBounds, SinkRunner, SinkRunners
from bunqueue_core.model.job import DEFAULT_OPTIONS, JobSpec
from bunqueue_core.model.payload import Packed
from bunqueue_core.model.requests import Event

PATIENCE_S = 10
SWIFT = SinkBounds(linger_s=0, retry_pauses_s=(0, 0, 0))


def event(number: int, **extra: Any) -> Event:
    return Event("pushed", "q", f"j{number}", 1_700_000_000_000 + number, extra or None)


class Collecting:
    """A sink that keeps what it gets, and does what a test tells it to before."""

    def __init__(self, name: str = "collecting", before: Callable[[int], None] = lambda _: None) -> None:
        self.name = name
        self.before = before
        self.calls = 0
        self.events: list[Event] = []
        self.batches: list[int] = []
        self.closed = threading.Event()
        self.changed = threading.Condition()

    def write(self, events: Sequence[Event]) -> None:
        self.calls += 1
        self.before(self.calls)
        with self.changed:
            self.events.extend(events)
            self.batches.append(len(events))
            self.changed.notify_all()

    def close(self) -> None:
        self.closed.set()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.events) >= count, PATIENCE_S)

    @property
    def ids(self) -> list[str]:
        return [event.job_id for event in self.events if event.type != DROPPED]

    @property
    def told_missing(self) -> list[int]:
        return [event.extra["count"] for event in self.events if event.type == DROPPED and event.extra]


class Gate:
    """Holds a sink in its first call until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, call: int) -> None:
        if call == 1:
            self.entered.set()
            assert self.open.wait(PATIENCE_S)


@pytest.fixture
def log() -> Records:
    return Records()


@pytest.fixture
def run(log: Records) -> Iterator[Callable[..., SinkRunner]]:
    runners: list[SinkRunner] = []

    def start(sink: Any, bounds: SinkBounds = SWIFT) -> SinkRunner:
        runner = SinkRunner(sink, name=sink.name, log=log, now=lambda: 77, bounds=bounds)
        runners.append(runner)
        runner.start()
        return runner

    yield start
    for runner in runners:
        assert runner.stop(PATIENCE_S)


def test_events_arrive_in_order_and_the_stop_hands_over_the_rest(run: Callable[..., SinkRunner]) -> None:
    sink = Collecting()
    runner = run(sink, SinkBounds(batch=10))
    for number in range(95):
        runner.offer(event(number))
    assert runner.stop(PATIENCE_S)
    assert sink.ids == [f"j{number}" for number in range(95)]
    assert max(sink.batches) <= 10
    assert sink.closed.is_set()
    statistics = runner.statistics()
    assert (statistics.received, statistics.written, statistics.waiting) == (95, 95, 0)


def test_a_batch_gathers_what_comes_together(run: Callable[..., SinkRunner]) -> None:
    sink, gate = Collecting(), Gate()
    sink.before = gate
    runner = run(sink)
    runner.offer(event(0))
    assert gate.entered.wait(PATIENCE_S)
    for number in range(1, 51):
        runner.offer(event(number))
    gate.open.set()
    sink.wait_for(51)
    assert sink.batches == [1, 50]


def test_a_slow_sink_loses_the_oldest_events_and_is_told_how_many(run: Callable[..., SinkRunner]) -> None:
    sink, gate = Collecting(), Gate()
    sink.before = gate
    runner = run(sink, SinkBounds(events=10, linger_s=0))
    runner.offer(event(0))
    assert gate.entered.wait(PATIENCE_S)
    for number in range(1, 31):
        runner.offer(event(number))  # returns although the sink is stuck
    statistics = runner.statistics()
    assert (statistics.received, statistics.dropped, statistics.waiting) == (31, 20, 10)
    gate.open.set()
    sink.wait_for(12)
    assert sink.ids == ["j0", *(f"j{number}" for number in range(21, 31))]
    assert sink.events[1] == Event(DROPPED, "", "", 77, {"count": 20})


def test_payloads_that_wait_are_bounded_by_their_size(run: Callable[..., SinkRunner]) -> None:
    sink, gate = Collecting(), Gate()
    sink.before = gate
    runner = run(sink, SinkBounds(bytes=100_000, linger_s=0))
    runner.offer(event(0))
    assert gate.entered.wait(PATIENCE_S)
    for number in range(1, 6):
        runner.offer(event(number, data=Packed(b"x" * 40_000)))
    runner.offer(event(6, data=Packed(b"x" * 1_000_000)))  # larger than the bound, but alone it may wait
    gate.open.set()
    sink.wait_for(3)
    assert sink.ids == ["j0", "j6"]
    assert sink.told_missing == [5]


def test_a_failed_batch_is_tried_again(run: Callable[..., SinkRunner], log: Records) -> None:
    def fail(call: int) -> None:
        if call <= 2:
            raise OSError(28, "No space left on device")

    sink = Collecting(before=fail)
    runner = run(sink)
    runner.offer(event(0))
    sink.wait_for(1)
    runner.offer(event(1))
    sink.wait_for(2)
    assert sink.ids == ["j0", "j1"]
    assert sink.told_missing == []
    assert (runner.statistics().failures, runner.statistics().lost) == (2, 0)
    assert log.messages("warn") == ["Event sink failed"]
    assert log.messages("info") == ["Event sink works again"]


def test_a_batch_that_keeps_failing_is_given_up_and_told_as_missing(run: Callable[..., SinkRunner]) -> None:
    def fail(call: int) -> None:
        if call <= 4:
            raise RuntimeError("no")

    sink = Collecting(before=fail)
    runner = run(sink, SinkBounds(batch=1, linger_s=0, retry_pauses_s=(0, 0, 0)))
    runner.offer(event(0))
    runner.offer(event(1))
    sink.wait_for(2)
    assert sink.ids == ["j1"]
    assert sink.told_missing == [1]
    statistics = runner.statistics()
    assert (statistics.written, statistics.lost, statistics.failures) == (1, 1, 4)


def test_a_sink_that_always_fails_ends_with_the_stop(run: Callable[..., SinkRunner], log: Records) -> None:
    def fail(call: int) -> None:
        raise SystemExit("a plugin should not do this")

    sink = Collecting(before=fail)
    runner = run(sink, SinkBounds(linger_s=0, retry_pauses_s=(3_600.0,)))
    for number in range(5):
        runner.offer(event(number))
    assert runner.stop(PATIENCE_S)  # the pause of an hour does not hold it up
    assert sink.closed.is_set()
    assert runner.statistics().lost == 5
    assert log.messages("warn") == ["Event sink failed"]


def test_a_sink_that_hangs_is_left_alone_after_the_deadline(log: Records) -> None:
    gate = Gate()
    sink = Collecting(before=gate)
    runner = SinkRunner(sink, name="stuck", log=log, now=lambda: 0, bounds=SinkBounds(linger_s=0, batch=1))
    runner.start()
    for number in range(3):
        runner.offer(event(number))
    assert gate.entered.wait(PATIENCE_S)
    assert runner.stop(0.01) is False
    assert runner.stop(0.01) is False
    assert runner.statistics().lost == 2
    assert log.messages("error") == ["Event sink did not finish in time"]
    gate.open.set()
    assert sink.closed.wait(PATIENCE_S)
    assert runner.stop(PATIENCE_S)


def test_a_sink_that_cannot_be_closed_is_only_logged(log: Records) -> None:
    class Unclosable(Collecting):
        def close(self) -> None:
            raise OSError("no")

    runner = SinkRunner(Unclosable(), name="x", log=log, now=lambda: 0, bounds=SWIFT)
    runner.start()
    assert runner.stop(PATIENCE_S)
    assert log.messages("warn") == ["Event sink could not be closed"]


def test_nothing_is_taken_after_the_stop(run: Callable[..., SinkRunner]) -> None:
    sink = Collecting()
    runner = run(sink)
    assert runner.stop(PATIENCE_S)
    runner.offer(event(0))
    runner.start()
    assert runner.stop(PATIENCE_S)
    assert runner.statistics().received == 0


def test_a_sink_that_was_never_started_is_closed(log: Records) -> None:
    sink = Collecting()
    runner = SinkRunner(sink, name="x", log=log, now=lambda: 0)
    assert runner.stop(PATIENCE_S)
    assert sink.closed.is_set()


def test_sinks_do_not_wait_for_each_other(log: Records) -> None:
    gate = Gate()
    stuck, swift = Collecting("same", gate), Collecting("same")
    sinks = SinkRunners([stuck, swift], log=log, now=lambda: 0, bounds=SWIFT)
    sinks.start()
    for number in range(20):
        for runner in sinks.runners:
            runner.offer(event(number))
    swift.wait_for(20)
    assert stuck.events == []
    assert [statistics.name for statistics in sinks.statistics()] == ["same", "same#2"]
    gate.open.set()
    assert sinks.stop(PATIENCE_S)
    assert stuck.ids == swift.ids


def test_verbs_go_on_while_a_sink_hangs(run: Callable[..., SinkRunner]) -> None:
    broker = local_broker()
    broker.start().result(5)
    gate = Gate()
    sink = Collecting(before=gate)
    runner = run(sink, SinkBounds(linger_s=0, events=50))
    broker.subscribe(runner.offer)
    for _ in range(200):
        broker.push("q", [JobSpec("n", None, DEFAULT_OPTIONS)]).result(5)
    assert broker.counts("q").result(5).waiting == 200
    assert gate.entered.wait(PATIENCE_S)
    gate.open.set()
    assert runner.stop(PATIENCE_S)
    statistics = runner.statistics()
    assert statistics.received == 200
    assert statistics.written + statistics.dropped == 200
    assert sum(sink.told_missing) == statistics.dropped
    broker.close().result(5)
