"""The registry of workers."""

from __future__ import annotations

import pytest

import bunqueue_core.broker.workers as module
from bunqueue_core.broker.workers import WorkerRegistry, WorkerTotals
from bunqueue_core.testing import SettableClock


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def registry(clock: SettableClock) -> WorkerRegistry:
    return WorkerRegistry(timeout_ms=30_000, now=clock, new_id=lambda: "minted")


def test_an_id_is_minted_when_none_is_named(registry: WorkerRegistry) -> None:
    assert registry.register("n", ["q"]).id == "minted"


def test_a_second_registration_keeps_what_identifies_the_worker(registry: WorkerRegistry, clock: SettableClock) -> None:
    first = registry.register("first", ["a"], id="w", session="one", started_at=5)
    registry.heartbeat("w", processed=7)
    clock.advance(10)
    again = registry.register("second", ["b"], id="w", concurrency=4, hostname="h", pid=9, session="two")
    assert again is first
    assert (again.name, again.registered_at, again.processed_jobs, again.session) == ("first", 5, 7, "one")
    assert (again.queues, again.concurrency, again.hostname, again.pid) == (["b"], 4, "h", 9)
    assert again.last_seen == clock()
    registry.register("third", ["b"], id="w")
    assert (again.concurrency, again.hostname, again.pid) == (1, "h", 9)


def test_heartbeats_set_only_what_they_carry(registry: WorkerRegistry) -> None:
    worker = registry.register("n", [], id="w")
    assert registry.heartbeat("w", active_jobs=2, processed=10, failed=1)
    assert registry.heartbeat("w", processed=11)
    assert (worker.active_jobs, worker.processed_jobs, worker.failed_jobs) == (2, 11, 1)
    assert not registry.heartbeat("other")


def test_a_silent_worker_is_stale_then_gone(registry: WorkerRegistry, clock: SettableClock) -> None:
    worker = registry.register("n", [], id="w")
    clock.advance(29_999)
    assert registry.status(worker) == "active"
    clock.advance(1)
    assert registry.status(worker) == "stale"
    clock.advance(60_000)
    assert registry.sweep() == 0
    clock.advance(1)
    assert registry.sweep() == 1
    assert len(registry) == 0


def test_workers_leave_with_the_connection_that_brought_them(registry: WorkerRegistry) -> None:
    registry.register("n", [], id="a", session="one")
    registry.register("n", [], id="b", session="two")
    registry.register("n", [], id="a", session="two")
    registry.unregister("b")
    assert registry.remove_session("two") == 0
    assert registry.remove_session("one") == 1
    assert registry.remove_session("one") == 0
    assert len(registry) == 0


def test_sums_keep_what_workers_did_who_left(registry: WorkerRegistry, clock: SettableClock) -> None:
    registry.register("n", [], id="a", concurrency=3)
    registry.register("n", [], id="b", concurrency=5)
    registry.heartbeat("a", active_jobs=1, processed=10, failed=2)
    registry.heartbeat("b", active_jobs=4, processed=20, failed=3)
    registry.unregister("a")
    assert registry.totals() == WorkerTotals(1, 1, 30, 5, 4, 5)
    clock.advance(30_000)
    assert registry.totals() == WorkerTotals(1, 0, 30, 5, 4, 0)


def test_the_registry_is_bounded(
    registry: WorkerRegistry, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WORKERS", 2)
    for name in ("a", "b", "c"):
        registry.register("n", [], id=name)
        clock.advance(1)
    assert [worker.id for worker in registry] == ["b", "c"]
