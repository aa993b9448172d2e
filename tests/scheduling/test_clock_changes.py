"""Runs around changes of the clocks: the table of the documentation, and a comparison with a walk over UTC minutes."""

from __future__ import annotations

import os
import random
import re
import time
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import recorded
from wall_walk import Rule, Window, changes, utc_minute

from bunqueue_core.scheduling.cron import CronSchedule, parse_cron

FIRST_YEAR, LAST_YEAR = 2020, 2035

#: Zones of the short comparison: changes at different times of the day, of an hour, half an hour and two hours, at midnight, in
#: odd offsets, in both hemispheres, backwards in summer, several times a year, abolished, and none at all.
SAMPLE_ZONES = (
    "Europe/Rome",
    "America/New_York",
    "America/St_Johns",
    "America/Santiago",
    "America/Havana",
    "America/Nuuk",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Europe/Dublin",
    "Africa/Casablanca",
    "Africa/El_Aaiun",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Tehran",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
    "UTC",
)

EXPRESSIONS = (
    "* * * * *",
    "30 * * * *",
    "*/20 0-23 * * *",
    "15 */1 * * 0,6",
    "0 2 * * *",
    "30 2 * * *",
    "15,45 2 * * *",
    "0 2,3 * * *",
    "20,40 2 * * *",
    "* 2 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "30 1 * * *",
    "*/10 1-3 * * *",
    "10,50 0,1,23 * * *",
    "5 0-22 * * *",
    "*/7 */5 * * *",
    "0 0 1 * *",
    "45 0-3 * * 0",
    "0 12 29-31 3,4,10,11 0",
    "*/30 * 1-7,25-31 * *",
    "10,30 15 2 * * *",
    "*/20 0 2 * * *",
    "0,59 59 0-2 * * *",
    "*/15 */30 * * * *",
)

_RULES = {expression: Rule.read(expression) for expression in EXPRESSIONS}


@lru_cache(maxsize=64)
def window(zone: str, middle: int) -> Window:
    return Window(zone, middle)


@cache
def schedule(expression: str, zone: str) -> CronSchedule:
    return parse_cron(expression, zone)


def at(text: str) -> int:
    """Epoch ms of ``YYYY-MM-DD HH:MM[:SS]±HH:MM``."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def runs_in_the_night(expression: str, zone: str, day: str) -> list[str]:
    """Runs from midnight to 05:00 of a day, as the zone's clocks show them, with the offset."""
    place = zoneinfo.ZoneInfo(zone)
    midnight = datetime.fromisoformat(day).replace(tzinfo=place)
    end = midnight.replace(hour=5).timestamp() * 1000
    parsed, found = schedule(expression, zone), []
    run = parsed.next_after(int(midnight.timestamp() * 1000) - 1)
    while run is not None and run <= end:
        local = datetime.fromtimestamp(run / 1000, place)
        found.append(local.strftime("%H:%M:%S %z") if local.second else local.strftime("%H:%M %z"))
        run = parsed.next_after(run)
    return found


def documented() -> list[tuple[str, str, str, list[str]]]:
    """Zone, day, expression and runs of each row of the table in the documentation."""
    text = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
    rows = re.findall(r"^\| (\w+/\w+) \| (\d{4}-\d\d-\d\d) \| `([^`]+)` \| ([^|]+) \|$", text, re.MULTILINE)
    return [(zone, day, expression, runs.split(", ")) for zone, day, expression, runs in rows]


def test_the_table_is_there() -> None:
    assert len(documented()) >= 15


@pytest.mark.parametrize(("zone", "day", "expression", "expected"), documented())
def test_the_documented_runs(zone: str, day: str, expression: str, expected: list[str]) -> None:
    assert runs_in_the_night(expression, zone, day) == expected


@pytest.mark.parametrize(
    ("zone", "day", "expression", "expected"),
    [
        ("Europe/Rome", "2026-03-29", "0 2 * * *", ["03:00 +0200"]),
        ("Europe/Rome", "2026-03-29", "*/30 0 2 * * *", ["03:00 +0200", "03:00:30 +0200"]),
        ("Europe/Rome", "2026-10-25", "10,30 15 2 * * *", ["02:15:10 +0200", "02:15:30 +0200"]),
        (
            "Europe/Rome",
            "2026-10-25",
            "10 15 */1 * * *",
            [
                f"{t} {o}"
                for t, o in (
                    ("00:15:10", "+0200"),
                    ("01:15:10", "+0200"),
                    ("02:15:10", "+0200"),
                    ("02:15:10", "+0100"),
                    ("03:15:10", "+0100"),
                    ("04:15:10", "+0100"),
                )
            ],
        ),
        # The repeated hour ends the day that matches; the day after does not.
        (
            "America/Nuuk",
            "2026-10-24",
            "30 * * * 6",
            ["00:30 -0100", "01:30 -0100", "02:30 -0100", "03:30 -0100", "04:30 -0100"],
        ),
    ],
)
def test_further_runs(zone: str, day: str, expression: str, expected: list[str]) -> None:
    assert runs_in_the_night(expression, zone, day) == expected


def test_a_repeated_last_hour_of_the_only_day_that_matches_runs_twice() -> None:
    shown = []
    parsed = schedule("30 * 24 10 *", "America/Nuuk")  # on that evening 00:00 becomes 23:00
    run = parsed.next_after(at("2026-10-24 22:00-01:00"))
    while run is not None and run < at("2026-10-26 00:00-02:00"):
        shown.append(datetime.fromtimestamp(run / 1000, zoneinfo.ZoneInfo("America/Nuuk")).strftime("%d %H:%M %z"))
        run = parsed.next_after(run)
    assert shown == ["24 22:30 -0100", "24 23:30 -0100", "24 23:30 -0200"]


def test_a_start_inside_the_repeated_hour_waits_for_the_next_day() -> None:
    second_pass = at("2026-10-25 02:10+01:00")
    assert schedule("30 2 * * *", "Europe/Rome").next_after(second_pass) == at("2026-10-26 02:30+01:00")
    assert schedule("30 * * * *", "Europe/Rome").next_after(second_pass) == at("2026-10-25 02:30+01:00")


def test_a_start_behind_the_gap_does_not_make_up_for_it() -> None:
    behind = at("2026-03-29 03:05+02:00")
    for expression in ("15 2 * * *", "0 15 2 * * *"):
        assert schedule(expression, "Europe/Rome").next_after(behind) == at("2026-03-30 02:15+02:00")


@pytest.mark.parametrize("scenario", ["cron_times.clock_jumps_forward", "cron_times.clock_falls_back"])
@pytest.mark.parametrize("year", [2020, 2026, 2035])
def test_runs_on_the_days_of_a_change_as_recorded(scenario: str, year: int) -> None:
    for zone, direction, time_of_day, same_day, shown, offset in recorded(scenario):
        forward = direction == "forward"
        change = next(c for c in changes(zone, year, year) if (c[2] > c[1]) == forward)
        day = (datetime(1970, 1, 1) + timedelta(minutes=change[0] + change[1])).date()
        minute, hour = time_of_day.split()
        run = schedule(f"{minute} {hour} {day.day} {day.month} *", zone).next_after((change[0] - 1440) * 60_000)
        assert run is not None
        local = datetime.fromtimestamp(run / 1000, zoneinfo.ZoneInfo(zone))
        assert [local.date() == day, local.strftime("%H:%M")] == [same_day, shown]
        assert local.utcoffset() == timedelta(minutes=offset)


# -- the machine's own zone ---------------------------------------------------------------------------------------------


@pytest.fixture
def machine_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    if not hasattr(time, "tzset"):
        pytest.skip("the zone of this platform's C library cannot be set")
    before = os.environ.get("TZ")

    def move(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield move
    monkeypatch.undo()
    assert os.environ.get("TZ") == before
    time.tzset()


@pytest.mark.parametrize("zone", ["Europe/Rome", "America/Havana", "Australia/Lord_Howe", "America/Santiago"])
def test_without_a_zone_the_machines_own_counts(machine_in: Callable[[str], None], zone: str) -> None:
    machine_in(zone)
    generator = random.Random(zone)
    for minute, before, after in changes(zone, 2026, 2027):
        for expression in EXPRESSIONS:
            start = (minute + generator.randint(-2 * abs(after - before) - 60, 2 * abs(after - before) + 60)) * 60_000
            expected = schedule(expression, zone).next_after(start)
            assert parse_cron(expression, None).next_after(start) == expected
            assert parse_cron(expression, "").next_after(start) == expected


# -- comparison with the walk -------------------------------------------------------------------------------------------


def starts(change: tuple[int, int, int], generator: random.Random) -> list[int]:
    """Moments (epoch seconds) from which to look, most of them close to a change."""
    minute, before, after = change
    size = abs(after - before)
    near = [-size, -size - 1, -1, 0, 1, size - 1, size, size + 1, size // 2]
    picked = [
        *generator.sample(near, 4),
        generator.randint(-2 * size - 5, 2 * size + 5),
        generator.randint(-1400, 2000),
    ]
    return [(minute + offset) * 60 + generator.choice([0, 0, 1, 15, 59, -1]) for offset in picked]


def compare(zone: str, change: tuple[int, int, int], expressions: tuple[str, ...], generator: random.Random) -> int:
    """Compare around one change; returns the number of comparisons."""
    view = window(zone, change[0])
    compared = 0
    for expression in expressions:
        rule = _RULES[expression]
        for start in starts(change, generator):
            expected = view.next_run(rule, start)
            found = schedule(expression, zone).next_after(start * 1000)
            where = f"{expression!r} in {zone} after {datetime.fromtimestamp(start, UTC)}"
            if expected is None:
                assert found is None or found >= view.end * 60_000, where
            else:
                assert found == expected * 1000, where
            compared += 1
    return compared


@pytest.mark.parametrize("zone", SAMPLE_ZONES)
def test_a_sample_agrees_with_a_walk_over_utc_minutes(zone: str) -> None:
    generator = random.Random(zone)
    known = list(changes(zone, FIRST_YEAR, LAST_YEAR))
    picked = generator.sample(known, min(3, len(known)))
    picked.append((utc_minute(generator.randint(FIRST_YEAR, LAST_YEAR), 2, 27), 0, 60))  # and days without a change
    for change in picked:
        assert compare(zone, change, tuple(generator.sample(EXPRESSIONS, 8)), generator) > 0


NUMBERS = st.integers(0, 59)


@st.composite
def timed_expressions(draw: st.DrawFn) -> str:
    """Expressions that have something to do in the hours in which clocks change."""
    minutes = draw(st.sampled_from(["*", "*/5", "*/7", "0", "30", "0,30", "15,45", "1-58/3", "20-40", "59"]))
    hours = draw(
        st.sampled_from(["*", "0-23", "*/1", "0", "1", "2", "3", "1,2", "2,3", "0-3", "*/2", "23", "0,23", "1-23"])
    )
    days = draw(st.sampled_from(["*", "*", "*", "1-7", "25-31", "*/2"]))
    months = draw(st.sampled_from(["*", "*", "3,4,9-11"]))
    weekdays = draw(st.sampled_from(["*", "*", "0", "6-7", "1-5"]))
    expression = f"{minutes} {hours} {days} {months} {weekdays}"
    seconds = draw(st.sampled_from(["", "", "0", "30", "*/20", "0,59"]))
    return f"{seconds} {expression}" if seconds else expression


@settings(deadline=None, max_examples=150)
@given(timed_expressions(), st.sampled_from(SAMPLE_ZONES[:12]), st.integers(0, 10_000), st.integers(-300, 300), NUMBERS)
def test_any_timed_expression_agrees_with_the_walk(
    expression: str, zone: str, number: int, offset: int, second: int
) -> None:
    known = changes(zone, FIRST_YEAR, LAST_YEAR)
    change = known[number % min(4, len(known))]
    start = (change[0] + offset) * 60 + second
    view = window(zone, change[0])
    expected = view.next_run(Rule.read(expression), start)
    found = parse_cron(expression, zone).next_after(start * 1000)
    if expected is None:
        assert found is None or found >= view.end * 60_000
    else:
        assert found == expected * 1000


@settings(deadline=None)
@given(
    timed_expressions(),
    st.sampled_from(SAMPLE_ZONES),
    st.integers(at("2020-01-01 00:00+00:00"), at("2035-12-31 00:00+00:00")),
)
def test_runs_go_forward_and_a_run_is_what_follows_the_millisecond_before_it(
    expression: str, zone: str, start: int
) -> None:
    parsed = parse_cron(expression, zone)
    run = parsed.next_after(start)
    assert run is not None
    assert run > start
    if not _near_a_change(zone, run):
        assert parsed.next_after(run - 1) == run


def _near_a_change(zone: str, run: int) -> bool:
    return any(abs(run // 60_000 - minute) <= 24 * 60 for minute, _, _ in changes(zone, FIRST_YEAR, LAST_YEAR))


@settings(deadline=None)
@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "0 0 * * *", "* 0-22 * * *", "*/9 * * * * *", "30 */5 2 * * *"]),
    st.sampled_from(
        ["Europe/Amsterdam", "Africa/Monrovia", "Europe/Dublin", "Asia/Manila", "Pacific/Apia", "Asia/Kolkata"]
    ),
    st.integers(at("1830-01-01 00:00+00:00"), at("2040-01-01 00:00+00:00")),
)
def test_clocks_of_the_past_with_odd_seconds_and_lost_days(expression: str, zone: str, start: int) -> None:
    run = schedule(expression, zone).next_after(start)
    assert run is not None
    assert start < run <= start + 49 * 3_600_000


@pytest.mark.parametrize(
    "zone", ["Europe/Amsterdam", "Africa/Monrovia", "Asia/Manila", "Pacific/Apia", "America/Juneau"]
)
def test_changes_of_the_past(zone: str) -> None:
    for minute, before, after in changes(zone, 1830, 2019):
        for start in range(minute - 3, minute + abs(after - before) + 3, max(1, abs(after - before) // 5)):
            for expression in ("* * * * *", "* 0-22 * * *", "*/20 * 1-23 * * *"):
                run = schedule(expression, zone).next_after(start * 60_000)
                assert run is not None
                assert run > start * 60_000


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_all_zones_agree_with_a_walk_over_utc_minutes() -> None:
    """Every zone of the database, every change of its clocks 2020–2035, all expressions; zones with equal changes once."""
    generator = random.Random(2035)
    representatives: dict[tuple[tuple[int, int, int], ...], str] = {}
    compared = 0
    names = sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})
    for zone in names:
        known = changes(zone, FIRST_YEAR, LAST_YEAR)
        if not known:
            # Fixed offsets: no two need be equal, and there is little to see.
            year = generator.randint(FIRST_YEAR, LAST_YEAR)
            compared += compare(
                zone, (utc_minute(year, 2, 27), 0, 60), tuple(generator.sample(EXPRESSIONS, 3)), generator
            )
        elif representatives.setdefault(known, zone) == zone:
            for change in known:
                compared += compare(zone, change, EXPRESSIONS, generator)
        else:
            change = generator.choice(known)
            compared += compare(zone, change, tuple(generator.sample(EXPRESSIONS, 3)), generator)
    print(f"{len(names)} zones, {len(representatives)} histories, {compared} comparisons")
    assert compared > 100_000
