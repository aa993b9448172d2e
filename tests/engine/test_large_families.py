"""Parents with thousands of children: every step costs what its own edge costs, and counts and edges stay right."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.local import Bench, job, unpack

from bunqueue_core.engine.dependencies import DependencyRules
from bunqueue_core.model.requests import Failure, FlowJob
from bunqueue_core.testing import DictJournal
from bunqueue_core.testing.invariants import check_broker

CHILDREN = 2_000


class Counted:
    """Counts how often the engine asks whether a dependency is met, and how often it packs or unpacks a payload of a parent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = self.written = 0
        met, told = DependencyRules.is_met, DependencyRules._set_data

        def is_met(engine: Any, id: str) -> bool:
            self.asked += 1
            return met(engine, id)

        def set_data(engine: Any, *arguments: Any) -> None:
            self.written += 1
            told(engine, *arguments)

        monkeypatch.setattr(DependencyRules, "is_met", is_met)
        monkeypatch.setattr(DependencyRules, "_set_data", set_data)

    def settle(self, bound: int) -> None:
        assert self.asked <= bound, self.asked
        assert self.written <= 20, self.written
        self.asked = self.written = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def child(parent: str, **settings: Any) -> Any:
    return job({"__parentId": parent, "__parentQueue": "q"}, parent_id=parent, parent_queue="q", **settings)


def test_children_that_come_one_by_one(counted: Counted) -> None:
    bench = Bench(DictJournal())
    parent = bench.add({})
    ids = [bench.broker.push("c", [child(parent)]).value.ids[0] for _ in range(CHILDREN)]
    counted.settle(4 * CHILDREN)
    view = bench.view(parent)
    assert unpack(view.job.data)["__childrenIds"] == ids
    assert list(view.job.children_ids) == list(view.job.depends_on) == ids
    check_broker(bench.broker)
    bench.run()
    counted.settle(4 * CHILDREN)
    for delivery in bench.pull("c", CHILDREN):
        bench.broker.ack([_ack(delivery)])
    bench.broker.run_due()
    assert bench.state(parent) == "waiting"
    counted.settle(4 * CHILDREN)
    assert unpack(bench.take().job.data)["__childrenIds"] == ids


def test_children_that_come_in_one_bulk(counted: Counted) -> None:
    bench = Bench()
    parent = bench.add({})
    ids = bench.push(*(child(parent) for _ in range(CHILDREN)), queue="c")
    counted.settle(4 * CHILDREN)
    assert unpack(bench.view(parent).job.data)["__childrenIds"] == ids
    check_broker(bench.broker)


@pytest.mark.parametrize("policy", ["ignore_dependency_on_failure", "remove_dependency_on_failure"])
def test_children_that_fail_one_by_one(counted: Counted, policy: str) -> None:
    bench = Bench(DictJournal())
    parent = bench.add({})
    ids = bench.push(*(child(parent, **{policy: True}) for _ in range(CHILDREN)), queue="c")
    bench.run()
    counted.settle(8 * CHILDREN)
    failed = []
    for delivery in bench.pull("c", CHILDREN // 2):
        bench.broker.fail([Failure(delivery.job.id, "boom", delivery.token, unrecoverable=True)])
        failed.append(delivery.job.id)
    bench.run()
    assert set(bench.view(parent).job.depends_on) == set(ids) - set(failed)
    counted.settle(8 * CHILDREN)
    bench.crash()  # half of them is not waited for any more
    assert set(bench.view(parent).job.depends_on) == set(ids) - set(failed)
    check_broker(bench.broker)
    counted.asked = counted.written = 0
    for delivery in bench.pull("c", CHILDREN):
        bench.broker.fail([Failure(delivery.job.id, "boom", delivery.token, unrecoverable=True)])
    bench.run()
    counted.settle(8 * CHILDREN)
    assert bench.state(parent) == "waiting"
    assert not bench.view(parent).job.depends_on


def test_children_that_are_removed_before_they_began(counted: Counted) -> None:
    bench = Bench()
    parent = bench.add({})
    bench.push(*(child(parent) for _ in range(CHILDREN)), queue="c")
    counted.settle(4 * CHILDREN)
    bench.done(bench.broker.remove_unprocessed_children(parent))
    counted.settle(8 * CHILDREN)
    assert bench.state(parent) == "waiting"
    assert bench.counts("c").waiting == 0
    assert "__childrenIds" not in unpack(bench.view(parent).job.data)
    check_broker(bench.broker)


def test_one_job_that_thousands_wait_for(counted: Counted) -> None:
    bench = Bench()
    first = bench.add()
    waiting = bench.push(*(job(depends_on=(first,)) for _ in range(CHILDREN)), queue="w")
    check_broker(bench.broker)
    counted.asked = counted.written = 0
    bench.complete(bench.take())
    counted.settle(2 * CHILDREN)
    assert bench.counts("w").waiting == CHILDREN
    assert set(bench.states(*waiting)) == {"waiting"}


def test_a_flow_of_ten_thousand() -> None:
    bench = Bench()
    ids = [f"c{number}" for number in range(9_999)]
    top = job({"__childrenIds": ids})
    top.depends_on, top.children_ids = tuple(ids), tuple(ids)
    members = [FlowJob("top", "q", top)]
    members += [FlowJob(id, "c", child("top")) for id in ids]
    bench.done(bench.broker.push_flow(members))
    for _ in range(10):
        for delivery in bench.pull("c", 1_000):
            bench.complete(delivery, 1, remove=True)
    assert bench.state("top") == "waiting"
    check_broker(bench.broker)


def _ack(delivery: Any) -> Any:
    from bunqueue_core.model.requests import Ack

    return Ack(delivery.job.id, delivery.token)


# -- who cannot start -------------------------------------------------------------------------------------------------


def blocked(bench: Bench, id: str) -> list[str]:
    return list(bench.view(id).blocked_by)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_parent_says_what_it_is_blocked_by(persistent: bool) -> None:
    bench = Bench(DictJournal() if persistent else None)
    failing, fine = bench.push(job(max_attempts=1), job())
    parent = bench.add(queue="p", depends_on=(failing, fine))
    assert blocked(bench, parent) == []
    bench.fail(bench.take())
    assert bench.state(parent) == "waiting-children"
    assert blocked(bench, parent) == [failing]
    assert bench.told("blocked") == [parent]
    assert bench.broker.statistics()["blockedJobs"] == 1
    if persistent:
        bench.crash()
        assert blocked(bench, parent) == [failing]
        assert bench.broker.statistics()["blockedJobs"] == 1
    assert bench.done(bench.broker.retry_dead_letters("q", failing)) == 1
    assert blocked(bench, parent) == []
    assert bench.broker.statistics()["blockedJobs"] == 0
    for delivery in bench.pull(count=2):
        bench.complete(delivery)
    assert bench.state(parent) == "waiting"
    check_broker(bench.broker)


@pytest.mark.parametrize("end", ["cancel", "discard", "drain", "clean", "ttl", "obliterate", "remove on fail", "purge"])
def test_whatever_ends_a_dependency_blocks(end: str) -> None:
    bench = Bench()
    id = bench.add(ttl_ms=1_000, max_attempts=1)
    parent = bench.add(queue="p", depends_on=(id,))
    broker = bench.broker
    if end == "ttl":
        bench.clock.advance(2_000)
        assert bench.pull() == []
    elif end == "remove on fail":
        bench.fail(bench.take(), remove=True)
    elif end == "purge":
        bench.fail(bench.take())
        bench.done(broker.purge_dead_letters("q"))
    else:
        verb: Any = {
            "cancel": lambda: broker.cancel(id),
            "discard": lambda: broker.discard(id),
            "drain": lambda: broker.drain_queue("q"),
            "clean": lambda: broker.clean("q", 0, None, 10),
            "obliterate": lambda: broker.obliterate("q"),
        }[end]
        bench.done(verb())
    assert blocked(bench, parent) == [id]
    assert bench.told("blocked") == [parent]
    check_broker(bench.broker)


def test_a_new_generation_unblocks() -> None:
    bench = Bench()
    bench.add(custom_id="c")
    parent = bench.add(queue="p", depends_on=("c",))
    bench.done(bench.broker.cancel("c"))
    assert blocked(bench, parent) == ["c"]
    bench.add(custom_id="c")
    assert blocked(bench, parent) == []
    bench.complete(bench.take())
    assert bench.state(parent) == "waiting"


def test_a_policy_that_lets_the_parent_go_on_blocks_nobody() -> None:
    bench = Bench()
    parent = bench.add({})
    bench.push(child(parent, max_attempts=1, ignore_dependency_on_failure=True), child(parent), queue="c")
    bench.fail(bench.pull("c")[0])
    assert blocked(bench, parent) == []
    assert not bench.told("blocked")


def test_a_job_that_waits_longer_than_an_hour_waits_on() -> None:
    bench = Bench(DictJournal())
    slow = bench.add()
    parent = bench.add(queue="p", depends_on=(slow,))
    delivery = bench.take(lock_ttl_ms=10 * 3_600_000)
    for _ in range(9):
        bench.run(1_000_000)
        bench.done(bench.broker.heartbeat([_renewal(delivery)]))
    assert bench.state(parent) == "waiting-children"
    bench.complete(delivery)
    assert bench.state(parent) == "waiting"


def _renewal(delivery: Any) -> Any:
    from bunqueue_core.model.requests import Renewal

    return Renewal(delivery.job.id, delivery.token)
