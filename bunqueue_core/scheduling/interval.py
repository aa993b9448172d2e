"""Intervals: a run every so many milliseconds, on a grid that keeps its phase."""

from __future__ import annotations

from typing import Any, Final

from bunqueue_core.model.errors import ValidationError

_SAFE_INTEGER: Final = 2**53 - 1


class IntervalSchedule:
    """A run every ``every_ms`` milliseconds. Immutable.

    After an arbitrary instant (creation, a restart) the next run is a whole interval away. From run to run it is anchored: the runs
    lie on a grid through the first one, so that lateness does not add up, and grid points that have passed are left out.
    """

    __slots__ = ("every_ms",)

    def __init__(self, every_ms: int) -> None:
        self.every_ms = every_ms

    def next_after(self, instant_ms: int) -> int:
        """``instant_ms`` and one interval (epoch ms)."""
        return instant_ms + self.every_ms

    def next_slot(self, slot_ms: int, now_ms: int) -> int:
        """The first point after both ``slot_ms`` and ``now_ms`` on the grid through ``slot_ms`` (epoch ms)."""
        return slot_ms + self.every_ms * (max(0, now_ms - slot_ms) // self.every_ms + 1)

    def __repr__(self) -> str:
        return f"IntervalSchedule({self.every_ms})"


def parse_interval(value: Any, timezone: str | None = None) -> IntervalSchedule:
    """Read ``repeatEvery``; the time zone does not matter to it.

    Args:
        value: milliseconds, 1..2^53-1; a float without a fraction is an integer.
        timezone: ignored.

    Raises:
        ValidationError: it is no such number.
    """
    if type(value) is not bool and isinstance(value, int | float) and 1 <= value <= _SAFE_INTEGER and value % 1 == 0:
        return IntervalSchedule(int(value))
    raise ValidationError("Cron repeatEvery must be a positive safe integer number of milliseconds")
