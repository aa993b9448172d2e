"""What a schedule is, whatever says when it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Schedule(Protocol):
    """A parsed schedule."""

    def next_after(self, instant_ms: int) -> int | None:
        """The first run strictly after ``instant_ms`` (both epoch ms); None if there is none."""


@dataclass(frozen=True, slots=True)
class ScheduleKind:
    """A way to say when. ``field`` is the scheduler's field that selects it (``schedule``, ``repeatEvery``).

    ``parse`` takes the field's value and a time-zone name (or None) and raises
    :class:`~bunqueue_core.model.errors.ValidationError`.
    """

    name: str
    field: str
    parse: Callable[[Any, str | None], Schedule]
