"""What cron expressions are accepted, which values they mean, and the texts of what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import recorded

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.options import JobReader
from bunqueue_core.scheduling.cron import parse_cron
from bunqueue_core.scheduling.definition import DefinitionReader

JANUARY_2026 = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


def outcome(**fields: Any) -> str:
    """The error of a ``Cron`` request, or ``accepted``."""
    try:
        DefinitionReader(JobReader()).read({"name": "c", "queue": "q", "data": {}, **fields})
    except ValidationError as error:
        return str(error)
    return "accepted"


def refusal(expression: str, timezone: str | None = "UTC") -> str:
    with pytest.raises(ValidationError) as caught:
        parse_cron(expression, timezone)
    return str(caught.value)


def runs(expression: str, count: int, after: int = JANUARY_2026, timezone: str = "UTC") -> list[str]:
    schedule = parse_cron(expression, timezone)
    found = []
    for _ in range(count):
        following = schedule.next_after(after)
        assert following is not None
        found.append(datetime.fromtimestamp(following / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"))
        after = following
    return found


@pytest.mark.parametrize(
    "scenario",
    [
        "cron.aliases",
        "cron.calendar_field_values",
        "cron.number_of_fields",
        "cron.ranges_lists_and_steps",
        "cron.schedules_without_a_date",
        "cron.seconds_field",
    ],
)
def test_expressions_as_recorded(scenario: str) -> None:
    notes = [note for note in recorded(scenario) if isinstance(note, list)]
    assert notes
    assert [[expression, outcome(schedule=expression)] for expression, _ in notes] == notes


def test_time_zone_names_as_recorded() -> None:
    *notes, interval = recorded("cron.time_zone_names")
    for name, expected in notes:
        wanted = "accepted" if expected == name else expected
        assert outcome(schedule="0 0 29 2 *", timezone=name) == wanted
    assert interval == "Nowhere/City"
    assert outcome(repeatEvery=60000, timezone="Nowhere/City") == "accepted"


@pytest.mark.parametrize(
    "scenario",
    [
        "cron_times.minutes_of_every_hour",
        "cron_times.hours_of_the_day",
        "cron_times.zones_with_odd_offsets",
        "cron_times.days_of_the_week",
        "cron_times.days_and_months",
        "cron_times.either_day_field_may_match",
        "cron_times.seconds_of_the_minute",
    ],
)
def test_clock_fields_of_runs_as_recorded(scenario: str) -> None:
    from zoneinfo import ZoneInfo

    for expression, zone, fields, verdict in recorded(scenario):
        assert verdict == "as expected"
        schedule = parse_cron(expression, zone)
        after = JANUARY_2026
        for _ in range(20):
            run = schedule.next_after(after)
            assert run is not None
            local = datetime.fromtimestamp(run / 1000, ZoneInfo(zone))
            for value, wanted in zip((local.hour, local.minute, local.second), fields, strict=True):
                assert wanted in ("*", value)
            after = run


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "Cron expression must have 5 fields, or 6 fields with leading seconds"),
        ("@hourly extra", "Cron expression must have 5 fields, or 6 fields with leading seconds"),
        ("@hourly 0 * * *", "Invalid cron expression: unrecognized field syntax"),
        ("0 @hourly 0 * * *", "Invalid cron expression: unrecognized field syntax"),
        ("@@", "Invalid cron expression: unrecognized field syntax"),
        ("60-5 * * * *", "Invalid cron expression: value out of range for field"),
        ("** * * * *", "Invalid cron expression: value out of range for field"),
        ("1,*/x * * * *", "Invalid cron expression: step value must be a positive integer"),
        ("99/0 * * * *", "Invalid cron expression: step value must be a positive integer"),
        ("1/,2 * * * *", "Invalid cron expression: step value must be a positive integer"),
        ("*/128 * * * *", "Invalid cron expression: step value must be a positive integer"),
        ("x,1,,2 * * * *", "Invalid cron expression: value out of range for field"),
        ("99 50-10 * * *", "Invalid cron expression: value out of range for field"),
        (
            "50-10 99 * * *",
            "Invalid cron expression: range must be ascending (use 'a,b' or 'a-max,0-b' for wrap-around)",
        ),
        (
            "0 0 * * mon-sun",
            "Invalid cron expression: range must be ascending (use 'a,b' or 'a-max,0-b' for wrap-around)",
        ),
        ("0 0 * * 7-1", "Invalid cron expression: range must be ascending (use 'a,b' or 'a-max,0-b' for wrap-around)"),
        ("0 0 jan * *", "Invalid cron expression: value out of range for field"),
        ("0 0 1 1 \u0661", "Invalid cron expression: value out of range for field"),
        ("1_0 * * * *", "Invalid cron expression: value out of range for field"),
        ("\u0661 * * * * *", 'Invalid cron seconds field "\u0661": value must be an integer'),
        ("10/99 * * * * *", 'Invalid cron seconds field "10/99": step must be between 1 and 60'),
        ("99-1/5 * * * * *", 'Invalid cron seconds field "99-1/5": values must be between 0 and 59'),
        ("*-5 * * * * *", 'Invalid cron seconds field "*-5": range start must be an integer'),
        ("** * * * * *", 'Invalid cron seconds field "**": value must be an integer'),
        ("* * * *\x1c*", "Cron expression must have 5 fields, or 6 fields with leading seconds"),
        ("\ud800 * * * * *", "Cron expression must be well-formed Unicode"),
        ("1," * 1024 + "1 * * * *", "Cron expression must be at most 2048 characters"),
        ("0 0 31 2,4,6,9,11 *", "Cron expression has no future occurrences"),
    ],
)
def test_refused(expression: str, reason: str) -> None:
    assert refusal(expression) == reason


def test_the_expression_is_judged_before_the_zone_and_the_zone_before_the_dates() -> None:
    assert refusal("99 * * * *", "Nope/X") == "Invalid cron expression: value out of range for field"
    assert refusal("0 0 30 2 *", "Nope/X") == "Bun.cron: unknown time zone 'Nope/X'"


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["*"]])
def test_an_expression_is_a_string(value: Any) -> None:
    with pytest.raises(ValidationError, match="must be a string"):
        parse_cron(value)


@pytest.mark.parametrize(
    "expression", [" \ufeff@Hourly\u00a0", "*\u3000* * * *", "0\n0\t*\u2009* *", "+5 00007 * JANuary-+3 thursday-7"]
)
def test_accepted_oddities(expression: str) -> None:
    parse_cron(expression, "UTC")


@pytest.mark.parametrize(
    "name",
    [
        "Z",
        "PST",
        "UTC+5",
        "+02:00",
        "posix/Europe/Rome",
        "right/UTC",
        "../UTC",
        "/UTC",
        "Europe/Rome/",
        "localtime",
        "x" * 300,
    ],
)
def test_no_time_zones(name: str) -> None:
    assert refusal("* * * * *", name).startswith("Bun.cron: unknown time zone '")


@pytest.mark.parametrize("name", ["utc", "GMT", "eUROPE/rOME", "Asia/Calcutta", "EST5EDT", "etc/gmt+5", "US/eastern"])
def test_time_zones_in_any_case(name: str) -> None:
    parse_cron("* * * * *", name)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 * * 5-7/2", ["2026-01-02 00:00:00", "2026-01-04 00:00:00", "2026-01-09 00:00:00"]),
        ("0 0 * * 1/2", ["2026-01-02 00:00:00", "2026-01-04 00:00:00", "2026-01-05 00:00:00"]),
        ("0 0 * * 7/1", ["2026-01-04 00:00:00", "2026-01-11 00:00:00", "2026-01-18 00:00:00"]),
        ("0 0 */30 2 *", ["2026-02-01 00:00:00", "2027-02-01 00:00:00", "2028-02-01 00:00:00"]),
        ("5-5/5 * * * *", ["2026-01-01 00:05:00", "2026-01-01 01:05:00", "2026-01-01 02:05:00"]),
        ("59/127 */100 * * *", ["2026-01-01 00:59:00", "2026-01-02 00:59:00", "2026-01-03 00:59:00"]),
        ("0 0 31 2 1", ["2026-02-02 00:00:00", "2026-02-09 00:00:00", "2026-02-16 00:00:00"]),
        ("0-5/60,3 * * * * *", ["2026-01-01 00:00:03", "2026-01-01 00:01:00", "2026-01-01 00:01:03"]),
        ("* * * * * *", ["2026-01-01 00:00:01", "2026-01-01 00:00:02", "2026-01-01 00:00:03"]),
    ],
)
def test_runs(expression: str, expected: list[str]) -> None:
    assert runs(expression, 3) == expected


@pytest.mark.parametrize("day_field", ["*,13", "1-31", "*/1", "13,*"])
def test_a_day_field_that_lists_all_days_still_is_a_restriction(day_field: str) -> None:
    # Either field may match, and this one always does.
    assert runs(f"0 0 {day_field} * 1", 2) == ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]


def test_leap_days_are_found_across_the_year_2100() -> None:
    assert runs("0 0 29 2 *", 2, int(datetime(2096, 3, 1, tzinfo=UTC).timestamp() * 1000)) == [
        "2104-02-29 00:00:00",
        "2108-02-29 00:00:00",
    ]


def test_there_is_an_end_of_time_and_a_beginning() -> None:
    schedule = parse_cron("0 0 * * *", "UTC")
    assert schedule.next_after(10**18) is None
    assert schedule.next_after(int(datetime(9997, 12, 31, tzinfo=UTC).timestamp() * 1000)) is None
    first = schedule.next_after(-(10**18))
    assert first is not None
    assert first < 0


def test_runs_are_strictly_later_to_the_millisecond() -> None:
    schedule = parse_cron("* * * * *", "UTC")
    assert schedule.next_after(60_000) == 120_000
    assert schedule.next_after(59_999) == 60_000
    assert schedule.next_after(60_001) == 120_000
    assert schedule.next_after(-1) == 0


# -- properties ---------------------------------------------------------------------------------------------------------

BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


@st.composite
def plain_entries(draw: st.DrawFn, low: int, high: int) -> tuple[str, set[int]]:
    """An entry of a field, and the values that it means."""
    step = draw(st.integers(1, 20))
    form = draw(st.sampled_from(["*", "*/", "n", "n/", "-", "-/"]))
    if form[0] == "*":
        return ("*", set(range(low, high + 1))) if form == "*" else (f"*/{step}", set(range(low, high + 1, step)))
    first = draw(st.integers(low, high))
    if form == "n":
        return str(first), {first}
    if form == "n/":
        return f"{first}/{step}", set(range(first, high + 1, step))
    last = draw(st.integers(first, high))
    if form == "-":
        return f"{first}-{last}", set(range(first, last + 1))
    return f"{first}-{last}/{step}", set(range(first, last + 1, step))


@st.composite
def plain_fields(draw: st.DrawFn, index: int) -> tuple[str, set[int]]:
    entries = draw(st.lists(plain_entries(*BOUNDS[index]), min_size=1, max_size=3))
    return ",".join(text for text, _ in entries), set[int]().union(*(values for _, values in entries))


@settings(deadline=None)
@given(st.tuples(*(plain_fields(index) for index in range(5))), st.integers(0, 4 * 10**12))
def test_the_next_run_in_utc_is_the_first_day_and_time_that_match(fields: Any, after: int) -> None:
    expression = " ".join(text for text, _ in fields)
    minutes, hours, days, months, weekdays = (values for _, values in fields)
    by_day, by_weekday = fields[2][0] != "*", fields[4][0] != "*"

    def day_matches(day: date) -> bool:
        if day.month not in months:
            return False
        on_day, on_weekday = day.day in days, bool({day.isoweekday() % 7, day.isoweekday()} & weekdays)
        if by_day and by_weekday:
            return on_day or on_weekday
        return on_day if by_day else on_weekday if by_weekday else True

    start = datetime(1970, 1, 1) + timedelta(milliseconds=after)
    day, expected = start.date(), None
    for _ in range(9 * 366):
        if day_matches(day):
            times = [datetime(day.year, day.month, day.day, h, m) for h in sorted(hours) for m in sorted(minutes)]
            expected = next((time for time in times if time > start), None)
            if expected is not None:
                break
        day += timedelta(days=1)
    if expected is None:
        assert refusal(expression) == "Cron expression has no future occurrences"
    else:
        assert (
            parse_cron(expression, "UTC").next_after(after) == (expected - datetime(1970, 1, 1)).total_seconds() * 1000
        )


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        schedule = parse_cron(text, "UTC")
    except ValidationError:
        return
    run = schedule.next_after(JANUARY_2026)
    assert run is not None
    assert run > JANUARY_2026


@settings(deadline=None)
@given(st.from_regex(r"[0-9*,/\-+a-z ]{5,40}", fullmatch=True))
def test_almost_expressions_are_read_or_refused(text: str) -> None:
    try:
        schedule = parse_cron(text, "Europe/Rome")
    except ValidationError:
        return
    assert schedule.next_after(JANUARY_2026) is not None
