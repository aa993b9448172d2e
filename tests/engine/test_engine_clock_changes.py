"""Clocks that are set and processes that stand still: no live job runs twice, and nothing waits for an hour that is not there."""

from __future__ import annotations

import threading

import pytest
from fixtures.local import Bench, job

from bunqueue_core.broker.hosts import ThreadHost
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.requests import PullRequest, Renewal
from bunqueue_core.storage.changes import ChangeSet
from bunqueue_core.testing import DictJournal, SettableClock

HOUR = 3_600_000


class Clocks:
    """A clock that can be set, and one that only goes on."""

    def __init__(self) -> None:
        self.wall = SettableClock()
        self.steady = 1_000.0

    def __call__(self) -> int:
        return self.wall.now_ms

    def elapse(self, ms: int) -> None:
        self.wall.advance(ms)
        self.steady += ms / 1000

    def set(self, ms: int) -> None:
        self.wall.advance(ms)


class ClockBench(Bench):
    """A bench whose clock is set now and then."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        super().__init__(ports=Ports(now=self.clocks, steady=lambda: self.clocks.steady))

    def after(self, ms: int) -> None:
        """Let time pass in steps that a broker which works would not oversleep."""
        for _ in range(ms // 500):
            self.clocks.elapse(500)
            self.broker.run_due()


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 10 * 60_000])
def test_a_lease_lasts_as_long_as_it_should_when_the_clock_is_set(jump: int) -> None:
    bench = ClockBench()
    bench.add(max_attempts=5)
    delivery = bench.take(lock_ttl_ms=10_000)
    bench.after(4_000)
    bench.clocks.set(jump)
    bench.after(4_000)
    assert bench.state(delivery.job.id) == "active"
    assert bench.done(bench.broker.extend([Renewal(delivery.job.id, delivery.token)])) == [True]
    bench.after(9_000)
    assert bench.state(delivery.job.id) == "active"
    bench.after(2_000)
    assert bench.state(delivery.job.id) == "waiting"


def test_a_renewal_that_comes_first_after_a_jump_finds_its_lease() -> None:
    bench = ClockBench()
    bench.add()
    delivery = bench.take(lock_ttl_ms=10_000)
    bench.clocks.set(HOUR)
    assert bench.done(bench.broker.heartbeat([Renewal(delivery.job.id, delivery.token)])) == [True]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_processing_timeout_counts_time_that_passed(jump: int) -> None:
    bench = ClockBench()
    bench.add(timeout_ms=20_000, max_attempts=1)
    delivery = bench.take(lock_ttl_ms=600_000)
    bench.after(10_000)
    bench.clocks.set(jump)
    bench.after(9_000)
    assert bench.state(delivery.job.id) == "active"
    bench.after(2_000)
    assert bench.state(delivery.job.id) == "failed"


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_whoever_waits_waits_as_long_as_was_asked_for(jump: int) -> None:
    bench = ClockBench()
    id = bench.add(delay=10 * HOUR)
    pull = bench.park(wait_ms=10_000)
    wait = bench.broker.wait(id, 10_000)
    bench.after(5_000)
    bench.clocks.set(jump)
    bench.after(4_000)
    assert (pull.ready, wait.ready) == (False, False)
    bench.after(2_000)
    assert pull.value == []
    assert wait.value == (False, None)


def test_a_process_that_stood_still_ends_no_lease_before_its_owner_could_renew() -> None:
    bench = ClockBench()
    bench.add(max_attempts=5)
    delivery = bench.take(lock_ttl_ms=2_000)
    bench.clocks.elapse(5_000)  # nothing ran: neither the broker nor, in the same process, its worker
    bench.broker.run_due()
    assert bench.state(delivery.job.id) == "active"
    assert bench.done(bench.broker.extend([Renewal(delivery.job.id, delivery.token)])) == [True]
    bench.after(1_500)
    assert bench.state(delivery.job.id) == "active"
    bench.after(1_500)
    assert bench.state(delivery.job.id) == "waiting"


def test_overdue_work_runs_soon_after_the_clock_was_set_forward() -> None:
    # The host sleeps five seconds at most, whatever it was told to wait for.
    woken = threading.Event()
    clock = SettableClock()
    host = ThreadHost()
    host.start(woken.set, clock, lambda: 0)
    try:
        host.at(clock.now_ms + HOUR)
        clock.advance(2 * HOUR)
        assert woken.wait(10)
    finally:
        host.stop()


class SignallingJournal(DictJournal):
    """Says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def commit(self, changes: ChangeSet) -> None:
        super().commit(changes)
        self.written.set()


def test_buffered_adds_are_written_although_the_clock_went_back() -> None:
    journal = SignallingJournal()
    bench = Bench(journal, role="embedded")
    bench.broker.push("q", [job()])
    bench.clock.advance(-HOUR)
    assert journal.written.wait(10)
    journal.written.clear()
    bench.broker.push("q", [job()])
    assert journal.written.wait(10)
    bench.broker.close().result(5)


def test_a_group_window_that_was_opened_before_the_clock_went_back_does_not_last_an_hour() -> None:
    from bunqueue_core.model.requests import GroupDefaults

    bench = Bench()
    limited = GroupDefaults(limit_max=1, limit_duration_ms=1_000)
    bench.push(job(group_id="g"), job(group_id="g"))
    assert len(bench.pull(count=5, group=limited)) == 1
    bench.clock.advance(-HOUR)
    assert len(bench.pull(group=limited)) == 1


def test_jobs_added_before_the_clock_went_back_are_delivered() -> None:
    bench = Bench(DictJournal())
    ids = bench.push(job(), job())
    bench.clock.advance(-HOUR)
    ids += bench.push(job())
    deliveries = bench.done(bench.broker.pull(PullRequest("q", 5, "w")))
    assert {delivery.job.id for delivery in deliveries} == set(ids)
