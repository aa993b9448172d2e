"""Rotation over many groups: the same order whether or not lanes sleep, at a cost that those who may not run do not raise."""

from __future__ import annotations

import random

import pytest

from bunqueue_core.engine.groups import Groups
from bunqueue_core.model.job import DEFAULT_OPTIONS, Job
from bunqueue_core.model.requests import GroupDefaults


class Plain:
    """The rotation as it is described: a list of lanes from the cursor on, looked at one by one."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups  #: for the policies and counters only
        self.lanes: list[str] = []
        self.jobs: dict[str, list[str]] = {}

    def add(self, job: Job) -> None:
        assert job.group_id is not None
        if not self.jobs.get(job.group_id):
            self.lanes.append(job.group_id)
        self.jobs.setdefault(job.group_id, []).append(job.id)

    def next(self, now: int, defaults: GroupDefaults | None) -> tuple[str | None, int | None]:
        hints = []
        for id in self.lanes:
            eligible, at = self.groups.by_id[id].eligible(now, defaults)
            if eligible:
                return self.jobs[id][0], None
            if at is not None:
                hints.append(at)
        return None, min(hints, default=None)

    def took(self, id: str, name: str) -> None:
        at = self.lanes.index(id)
        self.lanes = self.lanes[at + 1 :] + self.lanes[: at + 1]
        self.jobs[id].remove(name)
        if not self.jobs[id]:
            self.lanes.remove(id)


def make(groups: Groups, name: str, group: str) -> Job:
    job = Job(name, "q", "n", None, DEFAULT_OPTIONS, 0, 0, 0, "waiting", 0)
    job.group_id = group
    job.group_order = groups.next_order
    groups.next_order += 1
    return job


@pytest.mark.parametrize("seed", range(12))
def test_order_and_hints_are_those_of_looking_at_every_lane(seed: int) -> None:
    dice = random.Random(seed)
    groups = Groups()
    plain = Plain(groups)
    active: list[str] = []
    choices = [None, GroupDefaults(concurrency=1), GroupDefaults(limit_max=1, limit_duration_ms=500)]
    if seed % 2:
        choices = [choices[1 + seed % 4 // 2]]
    now = 0
    number = 0
    for _ in range(4_000):
        kind = dice.random()
        id = f"g{dice.randrange(200)}"
        if kind < 0.30:
            job = make(groups, f"j{number}", id)
            number += 1
            groups.add(job)
            plain.add(job)
        elif kind < 0.40:
            group = groups.get(id)
            group.paused = dice.random() < 0.8
            groups.changed(group)
        elif kind < 0.45:
            group = groups.get(id)
            group.blocked_until = now + dice.randrange(1_000)
            groups.changed(group)
        elif kind < 0.60 and active:
            groups.left_active(groups.get(active.pop(dice.randrange(len(active)))))
        elif kind < 0.65:
            now += dice.randrange(400)
        elif kind < 0.68 and plain.jobs.get(id):
            name = dice.choice(plain.jobs[id])
            lane = [job for job in groups.by_id[id] if job.id == name]
            groups.drop(lane[0])
            plain.jobs[id].remove(name)
            if not plain.jobs[id]:
                plain.lanes.remove(id)
        else:
            defaults = dice.choice(choices)
            chosen, hint = groups.select(now, defaults)
            assert (chosen.id if chosen is not None else None, hint) == plain.next(now, defaults)
            if chosen is not None:
                assert chosen.group_id is not None
                groups.take(chosen, now, defaults)
                plain.took(chosen.group_id, chosen.id)
                active.append(chosen.group_id)
        assert not groups.problems()
        assert [group.id for group in groups.ring()] == plain.lanes


def looks(groups: Groups, now: int, defaults: GroupDefaults | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many lanes one selection looks at."""
    seen = 0
    kind = type(groups.get("g0"))
    original = kind.eligible

    def counting(group, now, defaults):  # type: ignore[no-untyped-def]
        nonlocal seen
        seen += 1
        return original(group, now, defaults)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "eligible", counting)
        groups.select(now, defaults)
    return seen


def test_lanes_that_used_up_their_rate_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups()
    limited = GroupDefaults(limit_max=1, limit_duration_ms=60_000)
    for number in range(5_000):
        groups.add(make(groups, f"j{number}", f"g{number}"))
        groups.add(make(groups, f"k{number}", f"g{number}"))
    for number in range(5_000):
        job, _ = groups.select(number, limited)
        assert job is not None
        groups.take(job, number, limited)
    assert groups.select(5_000, limited) == (None, 60_000)
    assert looks(groups, 5_000, limited, monkeypatch) == 0
    job, _ = groups.select(60_000, limited)
    assert job is not None
    assert job.id == "k0"


def test_paused_lanes_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups()
    for number in range(5_000):
        groups.get(f"g{number}").paused = number != 4_000
        groups.add(make(groups, f"j{number}", f"g{number}"))
        groups.add(make(groups, f"k{number}", f"g{number}"))
    assert groups.select(0, None)[0] is not None
    assert looks(groups, 0, None, monkeypatch) == 1
    groups.get("g7").paused = False
    groups.changed(groups.get("g7"))
    job, _ = groups.select(0, None)
    assert job is not None
    assert job.id == "j7"


def test_groups_are_forgotten_when_their_windows_have_ended() -> None:
    groups = Groups()
    limited = GroupDefaults(limit_max=1, limit_duration_ms=1_000)
    for number in range(100):
        groups.add(make(groups, f"j{number}", f"g{number}"))
        job, _ = groups.select(number, limited)
        assert job is not None
        groups.take(job, number, limited)
        groups.left_active(groups.get(f"g{number}"))
    assert len(groups.by_id) == 100
    groups.select(1_050, limited)
    assert len(groups.by_id) == 49
    groups.prune(2_000)
    assert not groups.by_id


def test_a_lane_does_not_grow_when_its_jobs_come_and_go() -> None:
    groups = Groups()
    jobs = [make(groups, f"j{number}", "g") for number in range(10)]
    for job in jobs:
        groups.add(job)
    for _ in range(200):
        for job in jobs[1:]:
            groups.drop(job)
            groups.add(job)
    assert len(groups.by_id["g"].lane) < 200
    assert [job.id for job in groups] == [job.id for job in jobs]
