"""Cron expressions: five fields, or six with leading seconds, aliases, time zones, and what happens when clocks change.

:func:`parse_cron` checks an expression (its error texts are part of the wire protocol), has croniter expand the fields into
values, and returns a :class:`CronSchedule`. Finding the next run is our own, because the rules at clock changes are:

* If the hour field covers all 24 hours, runs follow elapsed time: every real minute whose wall clock matches is a run, both
  passes of a repeated hour included.
* Otherwise runs follow the wall clock: what falls into a skipped hour is run later by the length of the gap, what falls into a
  repeated hour is run at its first pass only, and what would then come at or before a run that has been is dropped.

A sixth field refines a minute that is a run into the seconds that it lists.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Final, NamedTuple

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.scheduling.zones import find_zone

#: Longest expression that is read; the longest useful one (every value of every field spelled out) is shorter.
MAX_EXPRESSION_CHARACTERS: Final = 2048

#: Largest step; a step beyond the field's range is allowed up to here and yields the first value only.
MAX_STEP: Final = 127

ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_FIELD_COUNT = "Cron expression must have 5 fields, or 6 fields with leading seconds"
_SYNTAX = "Invalid cron expression: unrecognized field syntax"
_RANGE = "Invalid cron expression: value out of range for field"
_DESCENDING = "Invalid cron expression: range must be ascending (use 'a,b' or 'a-max,0-b' for wrap-around)"
_STEP = "Invalid cron expression: step value must be a positive integer"
_NEVER = "Cron expression has no future occurrences"

#: White space as the wire's JavaScript clients know it, which is neither Python's nor ASCII's.
_BLANK = "\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_BLANKS = re.compile(f"[{_BLANK}]+")
_EDGES = re.compile(f"^[{_BLANK}]+|[{_BLANK}]+$")
_NUMBER = re.compile(r"\+?[0-9]+", re.ASCII)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)

_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_LONGEST_MONTH = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class _Field(NamedTuple):
    """A calendar field: its lowest and highest value and its names."""

    lowest: int
    highest: int
    names: dict[str, int]


_CALENDAR: Final = (
    _Field(0, 59, {}),
    _Field(0, 23, {}),
    _Field(1, 31, {}),
    _Field(1, 12, {spelling: n for n, month in enumerate(_MONTHS, 1) for spelling in (month, month[:3])}),
    _Field(0, 7, {spelling: n for n, day in enumerate(_DAYS) for spelling in (day, day[:3])}),  # 7 is Sunday too
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH: Final = datetime(1970, 1, 1)
_MINUTE: Final = timedelta(minutes=1)
_DAY_S: Final = 86_400
_ALL_HOURS: Final = (1 << 24) - 1

#: The range of instants in which runs are looked for, in seconds: a year inside of what ``datetime`` can express.
_FIRST_S: Final = int((datetime(2, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
_LAST_S: Final = int((datetime(9998, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())


def parse_cron(expression: Any, timezone: str | None = None) -> CronSchedule:
    """Read a cron expression.

    Args:
        expression: five or six fields, or an alias such as ``@daily``.
        timezone: IANA name in any case; None or empty means the machine's own zone.

    Returns:
        A schedule that runs at least once.

    Raises:
        ValidationError: what is wrong with it, as the wire protocol words it (without a leading ``Invalid cron expression: `` for
            the whole, which the command adds).
    """
    if not isinstance(expression, str):
        raise ValidationError("Cron expression must be a string")
    if len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise ValidationError(f"Cron expression must be at most {MAX_EXPRESSION_CHARACTERS} characters")
    if not expression.isascii():
        try:
            expression.encode()
        except UnicodeEncodeError:  # some messages below quote a part of it
            raise ValidationError("Cron expression must be well-formed Unicode") from None
    text = _EDGES.sub("", expression)
    fields = _BLANKS.split(text) if text else []
    seconds: str | None = None
    if len(fields) == 1 and text.startswith("@"):
        alias = ALIASES.get(text.lower())
        if alias is None:
            raise ValidationError(_SYNTAX)
        fields = alias.split(" ")
    elif len(fields) == 6:
        seconds = _read_seconds(fields.pop(0))
    elif len(fields) != 5:
        raise ValidationError(_FIELD_COUNT)
    if fields[0].startswith("@"):
        raise ValidationError(_SYNTAX)
    plain = [_read_field(field, kind) for field, kind in zip(fields, _CALENDAR, strict=True)]
    zone = find_zone(timezone)
    schedule = CronSchedule(expression, timezone, zone, plain, seconds)
    if schedule.never:
        raise ValidationError(_NEVER)
    return schedule


def _read_field(field: str, kind: _Field) -> str:
    """Check a calendar field and write it with plain numbers only: ``*``, ``n``, ``a-b`` and ``a-b/step``."""
    entries = []
    for entry in field.split(","):
        if not entry:
            raise ValidationError(_SYNTAX)
        base, slash, step_text = entry.partition("/")
        step = 1
        if slash:
            step = int(step_text) if _NUMBER.fullmatch(step_text) is not None else 0
            if not 1 <= step <= MAX_STEP:
                raise ValidationError(_STEP)
        if base == "*":
            first, last = kind.lowest, kind.highest
        elif "-" in base:
            first_text, _, last_text = base.partition("-")
            first, last = _value(first_text, kind), _value(last_text, kind)
            if first > last:
                raise ValidationError(_DESCENDING)
        else:
            first = _value(base, kind)
            last = kind.highest if slash else first
        entries.append(_plain_entry(first, last, step))
    return "*" if field == "*" else ",".join(entries)


def _value(text: str, kind: _Field) -> int:
    named = kind.names.get(text.lower())
    if named is not None:
        return named
    if _NUMBER.fullmatch(text) is not None:
        value = int(text)
        if kind.lowest <= value <= kind.highest:
            return value
    raise ValidationError(_RANGE)


def _plain_entry(first: int, last: int, step: int) -> str:
    if first + step > last:  # one value only; croniter would read "a-a/step" as "a/step"
        return str(first)
    return f"{first}-{last}" if step == 1 else f"{first}-{last}/{step}"


def _read_seconds(field: str) -> str:
    """As :func:`_read_field` for the seconds, whose rules and texts are their own."""

    def refuse(reason: str) -> ValidationError:
        return ValidationError(f'Invalid cron seconds field "{field}": {reason}')

    def integer(text: str, label: str) -> int:
        if _DIGITS.fullmatch(text) is None:
            raise refuse(f"{label} must be an integer")
        return int(text)

    entries = []
    for entry in field.split(","):
        if not entry:
            raise refuse("list entries cannot be empty")
        base, slash, step_text = entry.partition("/")
        if not base or "/" in step_text or (slash and not step_text):
            raise refuse(f'invalid segment "{entry}"')
        step = integer(step_text, "step") if slash else 1
        if not 1 <= step <= 60:
            raise refuse("step must be between 1 and 60")
        if base == "*":
            first, last = 0, 59
        elif "-" in base:
            bounds = base.split("-")
            if len(bounds) != 2 or not bounds[0] or not bounds[1]:
                raise refuse(f'invalid range "{base}"')
            first, last = integer(bounds[0], "range start"), integer(bounds[1], "range end")
        else:
            if slash:
                raise refuse("steps require a wildcard or range")
            first = last = integer(base, "value")
        if first > 59 or last > 59:
            raise refuse("values must be between 0 and 59")
        if first > last:
            raise refuse("range start must not exceed range end")
        entries.append(_plain_entry(first, last, step))
    return ",".join(entries)


def _expand(fields: list[str]) -> list[list[Any]]:
    """The values of each field; croniter writes a field that covers everything as ``["*"]``."""
    from croniter import croniter  # here, because programs without schedules need not pay for loading it

    expanded: list[list[Any]] = croniter.expand(" ".join(fields))[0]
    return expanded


def _mask(values: list[Any], field: _Field) -> int:
    """A set of small numbers as the bits of an integer."""
    if values == ["*"]:
        values = list(range(field.lowest, field.highest + 1))
    mask = 0
    for value in values:
        mask |= 1 << value
    return mask


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


class CronSchedule:
    """A parsed cron expression. Immutable; made by :func:`parse_cron`.

    Attributes:
        expression: the text as it was given.
        timezone: the zone's name as it was given.
        never: no date matches (:func:`parse_cron` refuses such expressions).
    """

    __slots__ = (
        "_days",
        "_elapsed",
        "_first_hour",
        "_first_minute",
        "_first_month",
        "_hours",
        "_minutes",
        "_months",
        "_restricted",
        "_seconds",
        "_weekdays",
        "_zone",
        "expression",
        "never",
        "timezone",
    )

    def __init__(
        self, expression: str, timezone: str | None, zone: tzinfo, fields: list[str], seconds: str | None
    ) -> None:
        self.expression = expression
        self.timezone = timezone
        self._zone = zone
        expanded = _expand(fields if seconds is None else [*fields, seconds])
        minutes, hours, days, months, weekdays = (
            _mask(values, field) for values, field in zip(expanded, _CALENDAR, strict=False)
        )
        self._minutes = minutes
        self._hours = hours
        self._days = days
        self._months = months
        # Day masks of a month that begins on a Monday, a Tuesday, … (the numbers of ``date.weekday``).
        week = [weekdays >> (number % 7) & 1 for number in range(1, 8)]
        self._weekdays = tuple(sum(week[(start + day - 1) % 7] << day for day in range(1, 32)) for start in range(7))
        by_day, by_weekday = fields[2] != "*", fields[4] != "*"
        self._restricted = (by_day, by_weekday)
        self._elapsed = hours & _ALL_HOURS == _ALL_HOURS
        self._first_minute = _lowest(minutes)
        self._first_hour = _lowest(hours)
        self._first_month = _lowest(months)
        self._seconds: tuple[int, ...] | None = None
        if seconds is not None:
            self._seconds = tuple(range(60)) if expanded[5] == ["*"] else tuple(sorted(expanded[5]))
        # Every weekday comes in every month; a day of the month may come in none.
        self.never = not by_weekday and not any(
            months >> month & 1 and _lowest(days) <= _LONGEST_MONTH[month] for month in range(1, 13)
        )

    def next_after(self, instant_ms: int) -> int | None:
        """The first run strictly after ``instant_ms`` (both epoch ms); None beyond the year 9997."""
        second = instant_ms // 1000
        if second >= _LAST_S:
            return None
        if second < _FIRST_S:
            second = _FIRST_S
        found = self._minute_after(second) if self._seconds is None else self._second_after(second)
        return None if found is None else found * 1000

    def __repr__(self) -> str:
        return f"CronSchedule({self.expression!r}, {self.timezone!r})"

    # -- from instants to instants, in whole seconds since the epoch ---------------------------------------------------

    def _local(self, second: int) -> datetime:
        return (_EPOCH + timedelta(seconds=second)).astimezone(self._zone)

    def _offset(self, second: int) -> timedelta | None:
        return self._local(second).utcoffset()

    def _instant(self, wall: datetime, fold: int = 0) -> int:
        """The instant at which the clocks show ``wall``.

        Fold 0 is the first pass of a repeated time and takes a skipped one by the offset before the gap, which moves it behind.
        """
        return int(wall.replace(tzinfo=self._zone, fold=fold).timestamp())

    def _change(self, low: int, high: int) -> int:
        """The instant in (low, high] at which the offset changes from what it is at ``low``."""
        before = self._offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _minute_after(self, second: int) -> int | None:
        local = self._local(second)
        if self._elapsed:
            return self._elapsed_after(second, local)
        wall = self._wall_after(local.replace(tzinfo=None, fold=0))
        while wall is not None:
            instant = self._instant(wall)
            if instant > second:
                return instant
            # In the second pass of a repeated time, whose runs were in the first: go on where it ends.
            change = self._change(instant, max(instant + 1, self._instant(wall, fold=1)))
            end = _WALL_EPOCH + timedelta(seconds=change) + (wall - _WALL_EPOCH - timedelta(seconds=instant))
            wall = self._wall_after(max(end - _MINUTE, wall))
        return None

    def _elapsed_after(self, second: int, local: datetime) -> int | None:
        wall: datetime | None = local.replace(tzinfo=None, fold=0)
        assert wall is not None
        if local.fold == 0:
            again = int(local.replace(fold=1).timestamp())
            if again > second and self._local(again).fold == 1:
                # The clocks will show this hour again: what is left of the first pass, then the second from its beginning.
                change = self._change(second, again)
                match = self._wall_after(wall)
                if match is not None:
                    instant = self._instant(match)
                    if instant < change:
                        return instant
                second = change - 1
                wall = self._local(change).replace(tzinfo=None, fold=0) - _MINUTE
        match = self._wall_after(wall)
        while match is not None:
            instant = self._instant(match)
            if instant <= second:
                instant = self._instant(match, fold=1)
                if instant <= second:  # the clocks were set back by a part of a minute
                    match = self._wall_after(match)
                    continue
            shown = self._local(instant).replace(tzinfo=None, fold=0)
            if shown == match:
                return instant
            # A skipped time: there is no such minute. Go on behind the gap.
            change = self._change(self._instant(match, fold=1), instant)
            match = self._wall_after(max(self._local(change).replace(tzinfo=None, fold=0) - _MINUTE, match))
        return None

    def _second_after(self, second: int) -> int | None:
        seconds = self._seconds
        assert seconds is not None
        local = self._local(second)
        minute = second - local.second
        if self._is_run(minute, local):
            index = bisect_right(seconds, local.second)
            if index < len(seconds):
                return minute + seconds[index]
        found = self._minute_after(second)
        return None if found is None else found + seconds[0]

    def _is_run(self, minute: int, local: datetime) -> bool:
        """Whether the minute that begins at ``minute`` (shown as ``local``) is one of the calendar fields' runs."""
        wall = local.replace(tzinfo=None, fold=0, second=0)
        matches = self._matches(wall)
        if self._elapsed:
            return matches
        offset, before = local.utcoffset(), self._offset(minute - _DAY_S)
        assert offset is not None
        assert before is not None
        if matches and local.fold == 0 and (offset <= before or self._minute_after(minute - 1) == minute):
            return True  # the second condition: right behind a gap, the next run may be one that was moved further back
        # A run that was moved out of a gap? Only in the stretch behind it that is as long as the gap.
        gap = int((offset - before).total_seconds())
        if gap <= 0 or not self._matches(wall - timedelta(seconds=gap)) or self._offset(minute - gap) != before:
            return False
        run: int | None = minute - gap
        while run is not None and run < minute:
            run = self._minute_after(run)
        return run == minute

    # -- on the wall: naive datetimes -----------------------------------------------------------------------------------

    def _matches(self, wall: datetime) -> bool:
        return bool(
            self._minutes >> wall.minute & 1
            and self._hours >> wall.hour & 1
            and self._months >> wall.month & 1
            and self._days_of(wall.year, wall.month) >> wall.day & 1
        )

    def _days_of(self, year: int, month: int) -> int:
        """Bits 1..31: the days of that month that match."""
        by_day, by_weekday = self._restricted
        if by_weekday:
            days = self._weekdays[date(year, month, 1).weekday()]
            if by_day:
                days |= self._days
        else:
            days = self._days
        length = _LONGEST_MONTH[month]
        if month == 2 and (year % 4 != 0 or (year % 100 == 0 and year % 400 != 0)):
            length = 28
        return days & ((1 << (length + 1)) - 2)

    def _wall_after(self, wall: datetime) -> datetime | None:
        """The first matching minute after the minute of ``wall``."""
        year, month, day = wall.year, wall.month, wall.day
        if self._months >> month & 1:
            days = self._days_of(year, month)
            if days >> day & 1:
                hour, minute = wall.hour, wall.minute + 1
                if self._hours >> hour & 1:
                    rest = self._minutes >> minute
                    if rest:
                        return datetime(year, month, day, hour, minute + _lowest(rest))
                rest = self._hours >> (hour + 1)
                if rest:
                    return datetime(year, month, day, hour + 1 + _lowest(rest), self._first_minute)
            day += 1
        else:
            days, day = 0, 1
        while True:
            rest = days >> day
            if rest:
                return datetime(year, month, day + _lowest(rest), self._first_hour, self._first_minute)
            # At most a few rounds: a date that comes at all comes at least every eight years.
            rest = self._months >> (month + 1)
            if rest:
                month += 1 + _lowest(rest)
            else:
                year += 1
                month = self._first_month
                if year >= 9998:
                    return None
            days, day = self._days_of(year, month), 1
