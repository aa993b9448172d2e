"""Groups are served in turn, by lower number first inside a group, and skipped without losing their turn while they may not run."""

from __future__ import annotations

from bunqueue_core.engine.groups import Groups
from bunqueue_core.model.job import DEFAULT_OPTIONS, Job
from bunqueue_core.model.requests import GroupDefaults


class Lanes:
    """Groups with named jobs: ``A0`` is the first job of group A."""

    def __init__(self) -> None:
        self.groups = Groups()

    def add(self, *names: str, priority: int = 0) -> None:
        for name in names:
            job = Job(name, "q", "n", None, DEFAULT_OPTIONS, priority, 0, 0, "waiting", 0)
            job.group_id = name[0]
            job.group_order = self.groups.next_order
            self.groups.next_order += 1
            self.groups.add(job)

    def take(self, count: int = 100, now: int = 0, defaults: GroupDefaults | None = None) -> str:
        taken = []
        for _ in range(count):
            job, _ = self.groups.select(now, defaults)
            if job is None:
                break
            self.groups.take(job, now, defaults)
            taken.append(job.id)
        return " ".join(taken)


def test_groups_take_turns() -> None:
    lanes = Lanes()
    lanes.add("A0", "B0", "C0", "A1", "B1", "C1")
    assert lanes.take() == "A0 B0 C0 A1 B1 C1"


def test_a_long_group_does_not_hold_up_short_ones() -> None:
    lanes = Lanes()
    lanes.add("A0", "A1", "A2", "B0", "C0")
    assert lanes.take() == "A0 B0 C0 A1 A2"


def test_a_new_group_joins_at_the_tail() -> None:
    lanes = Lanes()
    lanes.add("A0", "B0", "A1", "B1", "A2", "B2")
    assert lanes.take(1) == "A0"
    lanes.add("C0")
    assert lanes.take() == "B0 A1 C0 B1 A2 B2"


def test_inside_a_group_the_lower_number_is_first() -> None:
    lanes = Lanes()
    lanes.add("A0", priority=5)
    lanes.add("A1", priority=0)
    lanes.add("A2", priority=5)
    assert lanes.take() == "A1 A0 A2"


def test_a_paused_group_is_skipped_and_comes_back() -> None:
    lanes = Lanes()
    lanes.add("A0", "B0", "A1", "B1")
    lanes.groups.get("A").paused = True
    assert lanes.take() == "B0 B1"
    lanes.groups.get("A").paused = False
    assert lanes.take() == "A0 A1"


def test_concurrency_counts_active_jobs_and_an_override_needs_a_default() -> None:
    lanes = Lanes()
    lanes.add("A0", "A1", "A2", "B0")
    lanes.groups.get("A").concurrency = 1
    assert lanes.take(defaults=GroupDefaults(concurrency=2)) == "A0 B0"
    assert lanes.take(1) == "A1"


def test_a_rate_window_opens_with_the_first_delivery_and_says_when_it_ends() -> None:
    lanes = Lanes()
    lanes.add("A0", "A1", "A2")
    limited = GroupDefaults(limit_max=2, limit_duration_ms=1000)
    assert lanes.take(now=100, defaults=limited) == "A0 A1"
    assert lanes.groups.select(100, limited) == (None, 1100)
    assert lanes.take(now=1100, defaults=limited) == "A2"


def test_a_manual_limit_blocks_until_its_time() -> None:
    lanes = Lanes()
    lanes.add("A0")
    lanes.groups.get("A").blocked_until = 500
    assert lanes.groups.select(499, None) == (None, 500)
    assert lanes.take(now=500) == "A0"


def test_affinity_takes_one_group_only() -> None:
    lanes = Lanes()
    lanes.add("A0", "B0", "A1")
    assert lanes.take(defaults=GroupDefaults(affine=True, affinity="A")) == "A0 A1"
    assert lanes.take(defaults=GroupDefaults(affine=True, affinity="Z")) == ""


def test_selecting_does_not_cost_more_with_more_groups() -> None:
    lanes = Lanes()
    for number in range(2_000):
        lanes.groups.get(f"{number}")
    lanes.add("A0", "B0")
    visited = []
    original = type(lanes.groups.get("A")).eligible

    def counting(group, now, defaults):
        visited.append(group.id)
        return original(group, now, defaults)

    type(lanes.groups.get("A")).eligible = counting
    try:
        assert lanes.take(1) == "A0"
    finally:
        type(lanes.groups.get("A")).eligible = original
    assert set(visited) == {"A"}
