"""The rules at clock changes once more, by walking minute after minute over UTC and looking at the clocks.

Slow and simple on purpose, and apart from the code under test: it knows offsets only, reads expressions with a few set
comprehensions, and follows ``docs/schedules.md`` literally.
"""

from __future__ import annotations

import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WALL_EPOCH = datetime(1970, 1, 1)

#: Minutes of a window before and after the minute that it is about.
BEFORE, AFTER = 3 * 1440, 2 * 1440

#: The walk looks this far back for what the clocks have shown already; no clock is set back further.
MEMORY = 1440


def utc_minute(*date: int) -> int:
    return int((datetime(*date, tzinfo=UTC) - EPOCH).total_seconds()) // 60  # type: ignore[arg-type,misc]


def offset_minutes(zone: tzinfo, minute: int) -> int:
    offset = (EPOCH + timedelta(minutes=minute)).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds()) // 60


@lru_cache(maxsize=2048)
def changes(name: str, first_year: int, last_year: int) -> tuple[tuple[int, int, int], ...]:
    """(minute, offset before, offset after) of each change of a zone's clocks, found by looking every quarter of an hour."""
    zone = zoneinfo.ZoneInfo(name)
    found = []
    minute, end = utc_minute(first_year, 1, 1), utc_minute(last_year + 1, 1, 1)
    before = offset_minutes(zone, minute)
    while minute < end:
        ahead = minute + 1440
        after = offset_minutes(zone, ahead)
        if after != before:
            for step in range(minute + 1, ahead + 1):
                if offset_minutes(zone, step) != before:
                    found.append((step, before, after))
                    break
        minute, before = ahead, after
    return tuple(found)


def shown(wall: int) -> tuple[int, int, int, int, int]:
    """Minute, hour, day, month, weekday (Sunday 0) of a wall clock's minute number."""
    moment = WALL_EPOCH + timedelta(minutes=wall)
    return moment.minute, moment.hour, moment.day, moment.month, moment.isoweekday() % 7


@dataclass(frozen=True)
class Rule:
    """A numeric cron expression, read with nothing in common with the code under test."""

    seconds: tuple[int, ...]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    @classmethod
    def read(cls, expression: str) -> Rule:
        fields = expression.split()
        seconds = (0,)
        if len(fields) == 6:
            seconds = tuple(sorted(_values(fields.pop(0), 0, 59)))
        minutes, hours, days, months, weekdays = (
            _values(field, low, high)
            for field, (low, high) in zip(fields, ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7)), strict=True)
        )
        return cls(
            seconds,
            frozenset(minutes),
            frozenset(hours),
            frozenset(days),
            frozenset(months),
            frozenset(day % 7 for day in weekdays),
            fields[2] == "*",
            fields[4] == "*",
        )

    @property
    def every_hour(self) -> bool:
        return len(self.hours) == 24

    def matches(self, fields: tuple[int, int, int, int, int]) -> bool:
        minute, hour, day, month, weekday = fields
        if minute not in self.minutes or hour not in self.hours or month not in self.months:
            return False
        if self.any_day and self.any_weekday:
            return True
        if self.any_weekday:
            return day in self.days
        if self.any_day:
            return weekday in self.weekdays
        return day in self.days or weekday in self.weekdays


def _values(field: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for entry in field.split(","):
        base, _, step = entry.partition("/")
        if base == "*":
            first, last = low, high
        elif "-" in base:
            first, last = (int(bound) for bound in base.split("-"))
        else:
            first = int(base)
            last = high if step else first
        values |= set(range(first, last + 1, int(step or 1)))
    return values


class Window:
    """Five days of a zone's clock, minute by minute, around ``middle`` (minutes since the epoch)."""

    def __init__(self, name: str, middle: int) -> None:
        zone = zoneinfo.ZoneInfo(name)
        self.start = middle - BEFORE
        self.end = middle + AFTER
        self.walls = [minute + offset_minutes(zone, minute) for minute in range(self.start, self.end)]
        self.fields = [shown(wall) for wall in self.walls]

    def next_minute(self, rule: Rule, after_s: int) -> int | None:
        """The first run strictly after ``after_s`` (epoch seconds) of the five calendar fields, in epoch seconds."""
        at = after_s // 60 - self.start
        if rule.every_hour:
            for i in range(at + 1, len(self.walls)):
                if rule.matches(self.fields[i]):
                    return (self.start + i) * 60
            return None
        reached = max(self.walls[max(0, at - MEMORY) : at + 1])  # what the clocks have shown does not come again
        for i in range(at + 1, len(self.walls)):
            wall = self.walls[i]
            if wall <= reached:
                continue
            for skipped in range(
                reached + 1, wall
            ):  # a gap: as long after its end as the time lies after its beginning
                if rule.matches(shown(skipped)):
                    return (self.start + i + skipped - (reached + 1)) * 60
            if rule.matches(self.fields[i]):
                return (self.start + i) * 60
            reached = wall
        return None

    def next_run(self, rule: Rule, after_s: int) -> int | None:
        """The first run strictly after ``after_s`` (epoch seconds); None if there is none in the window."""
        if rule.seconds == (0,):
            return self.next_minute(rule, after_s)
        minute = after_s - after_s % 60
        later = [second for second in rule.seconds if minute + second > after_s]
        if later and self._is_run(rule, minute):
            return minute + later[0]
        found = self.next_minute(rule, after_s)
        return None if found is None else found + rule.seconds[0]

    def _is_run(self, rule: Rule, minute: int) -> bool:
        """A minute is a run if it is the next one after some moment before it."""
        return any(self.next_minute(rule, minute - 60 * back) == minute for back in (1, 10, 30, 60, 90, 120, 180))
