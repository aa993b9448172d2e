"""The schedule kind ``workdays``: from Monday to Friday at a time of day.

A scheduler has ``workdays: {"at": "09:00"}``, and ``timezone`` where that is not UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.plugins import ScheduleKind

SATURDAY = 5


class Workdays:
    """Runs at a time of day, from Monday to Friday.

    A time that the clocks skip comes later by what they skip; of one that they repeat the first counts.

    Args:
        at: the time of day.
        zone: the time zone that it is meant in.
    """

    def __init__(self, at: time, zone: ZoneInfo) -> None:
        self._at = at
        self._zone = zone

    def next_after(self, instant_ms: int) -> int:
        """The first run strictly after ``instant_ms`` (epoch ms)."""
        day = datetime.fromtimestamp(instant_ms / 1000, self._zone).date()
        while True:
            run = datetime.combine(day, self._at, self._zone).astimezone(UTC)
            run_ms = int(run.timestamp() * 1000)
            if day.weekday() < SATURDAY and run_ms > instant_ms:
                return run_ms
            day += timedelta(days=1)


def parse(value: Any, timezone: str | None) -> Workdays:
    """Read the field ``workdays``.

    Raises:
        ValidationError: it is not ``{"at": "HH:MM"}``, or there is no such time zone.
    """
    at = value.get("at") if isinstance(value, dict) else None
    try:
        moment = datetime.strptime(at or "", "%H:%M").time()
    except (TypeError, ValueError):
        raise ValidationError('workdays must be {"at": "HH:MM"}') from None
    try:
        zone = ZoneInfo(timezone or "UTC")
    except (KeyError, OSError, ValueError):
        raise ValidationError(f"timezone {timezone!r} is not known") from None
    return Workdays(moment, zone)


WORKDAYS = ScheduleKind(name="workdays", field="workdays", parse=parse)
