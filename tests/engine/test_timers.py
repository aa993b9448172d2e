"""Deadlines come up in time, once, and can be taken back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bunqueue_core.engine.deadlines import SLOT_MS, Agenda, JobTimers
from bunqueue_core.model.job import DEFAULT_OPTIONS, Job


def job(number: int) -> Job:
    return Job(str(number), "q", "n", None, DEFAULT_OPTIONS, 0, 0, 0, "active", 0)


@given(st.lists(st.integers(0, 10_000), max_size=50), st.data())
def test_each_timer_comes_up_once_and_not_early(times: list[int], data: st.DataObject) -> None:
    timers = JobTimers()
    jobs = [job(i) for i in range(len(times))]
    for one, when in zip(jobs, times, strict=True):
        timers.add(one, when)
    removed = data.draw(st.sets(st.sampled_from(range(len(jobs)))) if jobs else st.just(set()))
    for index in removed:
        timers.remove(jobs[index])
    seen: dict[str, int] = {}
    while (next_at := timers.next()) is not None:
        for one in timers.due(next_at, 3):
            assert one.id not in seen
            seen[one.id] = next_at
    assert set(seen) == {str(i) for i in range(len(jobs)) if i not in removed}
    for id, at in seen.items():
        assert times[int(id)] < at <= times[int(id)] + SLOT_MS


def test_due_is_bounded() -> None:
    timers = JobTimers()
    for number in range(10):
        timers.add(job(number), 0)
    assert len(timers.due(SLOT_MS, 4)) == 4
    assert len(timers.due(SLOT_MS, 100)) == 6
    assert timers.next() is None


def test_an_action_that_is_named_again_moves() -> None:
    agenda = Agenda()
    called: list[str] = []
    agenda.set("a", 100, lambda now: called.append("old"))
    agenda.set("a", 50, lambda now: called.append("new"))
    agenda.set("b", 70, lambda now: called.append("b"))
    agenda.set_earlier("b", 90, lambda now: called.append("later"))
    agenda.set("c", 60, lambda now: called.append("cleared"))
    agenda.clear("c")
    assert agenda.next() == 50
    while (due := agenda.due(100)) is not None:
        due[1](100)
    assert called == ["new", "b"]
    assert agenda.next() is None


def test_nothing_is_due_early() -> None:
    agenda = Agenda()
    agenda.set("a", 100, lambda now: None)
    assert agenda.due(99) is None
    assert agenda.due(100) is not None
