"""Intervals, what follows a run, previews, and the kinds that ship with the core."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.scheduling import KINDS
from bunqueue_core.scheduling.cron import parse_cron
from bunqueue_core.scheduling.interval import IntervalSchedule, parse_interval
from bunqueue_core.scheduling.kinds import AnchoredSchedule, following_run, upcoming_runs

MINUTE = 60_000
DAY = 86_400_000


def test_the_core_has_cron_and_interval() -> None:
    assert [(kind.name, kind.field) for kind in KINDS] == [("cron", "schedule"), ("interval", "repeatEvery")]
    cron, interval = KINDS
    assert cron.parse("0 0 * * *", "UTC").next_after(0) == DAY
    assert interval.parse(1000, None).next_after(5) == 1005
    with pytest.raises(ValidationError, match=r"^Invalid cron expression: Cron expression must have 5 fields"):
        cron.parse("nope", None)


@pytest.mark.parametrize("value", [1, 60_000, 90_061_001, 1000.0, 2**53 - 1])
def test_intervals(value: Any) -> None:
    assert parse_interval(value).next_after(7) == 7 + int(value)


@pytest.mark.parametrize(
    "value", [0, -5, 1.5, "1000", True, None, 2**53, 9007199254740993.0, float("nan"), float("inf"), [1]]
)
def test_no_intervals(value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_interval(value)
    assert str(caught.value) == "Cron repeatEvery must be a positive safe integer number of milliseconds"


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(0, 2 * 10**12), st.integers(0, 10**11))
def test_an_interval_keeps_its_phase_and_leaves_out_what_has_passed(every: int, slot: int, late: int) -> None:
    schedule = IntervalSchedule(every)
    run = schedule.next_slot(slot, slot + late)
    assert run > slot + late
    assert run - every <= slot + late
    assert (run - slot) % every == 0


def test_an_interval_that_is_asked_early_stays_on_its_grid() -> None:
    assert IntervalSchedule(100).next_slot(1000, 400) == 1100


def test_what_follows_a_run() -> None:
    cron, interval = parse_cron("*/10 * * * *", "UTC"), IntervalSchedule(10 * MINUTE)
    assert isinstance(interval, AnchoredSchedule)
    assert not isinstance(cron, AnchoredSchedule)
    for schedule in (cron, interval):
        assert following_run(schedule, 0, 5) == (10 * MINUTE, False)
        assert following_run(schedule, 0, 10 * MINUTE) == (20 * MINUTE, True)
        assert following_run(schedule, 0, 95 * MINUTE) == (100 * MINUTE, True)
    assert following_run(interval, 7, 95 * MINUTE) == (100 * MINUTE + 7, True)


def test_a_late_run_does_not_lose_the_one_that_a_gap_moved() -> None:
    rome = parse_cron("0 1,2 * * *", "Europe/Rome")
    slot, now = 1_774_742_400_000, 1_774_746_060_000  # 2026-03-29 01:00 +01:00, and 03:01 +02:00
    assert rome.next_after(slot) == 1_774_746_000_000  # 02:00, moved to 03:00
    assert following_run(rome, slot, slot + 1000) == (1_774_746_000_000, False)
    assert following_run(rome, slot, now).passed


class Twice:
    """A schedule that ends: two runs."""

    def next_after(self, instant_ms: int) -> int | None:
        return next((run for run in (1000, 2000) if run > instant_ms), None)


def test_a_preview_ends_with_the_schedule_or_the_count() -> None:
    assert upcoming_runs(Twice(), 0, 10) == [1000, 2000]
    assert upcoming_runs(Twice(), 2000, 10) == []
    assert upcoming_runs(IntervalSchedule(5), 0, 3) == [5, 10, 15]
    assert upcoming_runs(parse_cron("0 0 * * *", "UTC"), 1, 2) == [DAY, 2 * DAY]
    assert upcoming_runs(IntervalSchedule(5), 0, -1) == []
    assert len(upcoming_runs(IntervalSchedule(5), 0, 10**9)) == 1000
    assert following_run(Twice(), 1000, 5000) == (None, True)
    assert following_run(Twice(), 2000, 2000) == (None, False)
