"""The ready set gives jobs in the queue's order, whatever order they came in and whoever left in between."""

from __future__ import annotations

import sys
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bunqueue_core.engine.ready import READY_SET, ReadySet
from bunqueue_core.model.job import DEFAULT_OPTIONS, Job

LIFO = replace(DEFAULT_OPTIONS, lifo=True)


def job(number: int, priority: int = 0, run_at: int = 0, lifo: bool = False) -> Job:
    return Job(f"{number:06d}", "q", "n", None, LIFO if lifo else DEFAULT_OPTIONS, priority, 0, run_at, "waiting", 0)


def expected_order(jobs: list[Job]) -> list[str]:
    """Priority descending; LIFO before FIFO; LIFO by id descending; FIFO by time, then id."""
    lifo = sorted((j for j in jobs if j.options.lifo), key=lambda j: j.id, reverse=True)
    fifo = sorted((j for j in jobs if not j.options.lifo), key=lambda j: (j.run_at, j.id))
    return [j.id for j in sorted([*lifo, *fifo], key=lambda j: -j.priority)]


def take_all(ready: ReadySet) -> list[str]:
    taken = []
    while (first := ready.first()) is not None:
        ready.take(first)
        taken.append(first.id)
    return taken


JOBS = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 5), st.booleans()), max_size=60).map(
    lambda rows: [job(i, priority, run_at, lifo) for i, (priority, run_at, lifo) in enumerate(rows)]
)


@given(JOBS, st.randoms(use_true_random=False))
def test_order_does_not_depend_on_the_order_of_arrival(jobs: list[Job], random) -> None:
    arrivals = jobs[:]
    random.shuffle(arrivals)
    ready = ReadySet()
    for one in arrivals:
        ready.add(one)
    assert len(ready) == len(jobs)
    assert take_all(ready) == expected_order(jobs)
    assert len(ready) == 0


@given(JOBS, st.integers(1, 10), st.data())
def test_sorted_batches_may_follow_jobs_that_come_later(jobs: list[Job], size: int, data: st.DataObject) -> None:
    early = data.draw(st.sets(st.sampled_from(jobs)) if jobs else st.just(set()))
    ready = ReadySet()
    for one in jobs:
        if one in early or one.options.lifo:
            ready.add(one)
    gone = data.draw(st.sets(st.sampled_from(sorted(early, key=lambda one: one.id))) if early else st.just(set()))
    for one in gone:
        ready.drop(one)
    batches = sorted(
        (one for one in jobs if one not in early and not one.options.lifo),
        key=lambda one: (-one.priority, one.run_at, one.id),
    )
    for start in range(0, len(batches), size):
        ready.extend(batches[start : start + size])
    left = [one for one in jobs if one not in gone]
    assert len(ready) == len(left)
    assert sum(ready.per_priority().values()) == len(left)
    assert take_all(ready) == expected_order(left)


@given(JOBS, st.data())
def test_jobs_that_left_are_never_given(jobs: list[Job], data: st.DataObject) -> None:
    ready = ReadySet()
    for one in jobs:
        ready.add(one)
    gone = data.draw(st.lists(st.sampled_from(jobs), unique_by=id) if jobs else st.just([]))
    for one in gone:
        ready.drop(one)
    left = [one for one in jobs if one not in gone]
    assert len(ready) == len(left)
    assert sorted(one.id for one in ready) == sorted(one.id for one in left)
    assert sum(ready.per_priority().values()) == len(left)
    assert ready.prioritized == sum(one.priority > 0 for one in left)
    assert take_all(ready) == expected_order(left)


def test_dead_entries_do_not_pile_up() -> None:
    ready = ReadySet()
    keeper = job(0)
    ready.add(keeper)
    for number in range(1, 20_000):
        passing = job(number)
        ready.add(passing)
        ready.drop(passing)
    bucket = ready._buckets[0]
    assert bucket.dead + bucket.live < 3_000
    assert ready.first() is keeper
    assert keeper.where == READY_SET


@given(st.lists(st.tuples(st.integers(-400, 400), st.sampled_from(["add", "take", "drop"])), max_size=400))
def test_many_priorities(steps: list[tuple[int, str]]) -> None:
    """Against a sorted list: what is next, how many are there, how many of them have a priority."""
    ready = ReadySet()
    inside: list[Job] = []
    for number, (priority, step) in enumerate(steps):
        if step == "add" or not inside:
            new = job(number, priority)
            ready.add(new)
            inside.append(new)
            inside.sort(key=lambda one: (-one.priority, one.id))
        elif step == "take":
            first = ready.first()
            assert first is inside[0]
            ready.take(first)
            del inside[0]
        else:
            ready.drop(inside.pop(priority % len(inside)))
        assert len(ready) == len(inside)
        assert ready.prioritized == sum(one.priority > 0 for one in inside)
    assert {priority for priority in ready.per_priority()} == {one.priority for one in inside}
    assert [one.id for one in ready] == [one.id for one in inside]


def test_priorities_that_are_used_once_leave_nothing_behind() -> None:
    ready = ReadySet()
    ready.add(job(0, -1))
    for number in range(1, 5_000):
        ready.add(one := job(number, number))
        if number % 2:
            ready.drop(one)
        else:
            ready.take(ready.first() or one)
    assert sys.getsizeof(ready._heap) < 4_096  # what it holds is not visible otherwise
    assert take_all(ready) == ["000000"]
