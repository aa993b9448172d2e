"""The kinds of schedule that ship with the core, and how a run follows a run whatever the kind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.schedule import Schedule, ScheduleKind
from bunqueue_core.scheduling.cron import CronSchedule, parse_cron
from bunqueue_core.scheduling.interval import parse_interval

#: Most runs that one preview lists.
MAX_PREVIEW: Final = 1000


@runtime_checkable
class AnchoredSchedule(Schedule, Protocol):
    """A schedule whose runs depend on the run before, not on the clock alone (intervals). Kinds of plugins may be such, too.

    ``next_after(slot)`` is the run that follows a run at ``slot`` when none was missed.
    """

    def next_slot(self, slot_ms: int, now_ms: int) -> int | None:
        """The first run after ``now_ms`` of those that follow the run at ``slot_ms`` (epoch ms); None if there is none."""


def _parse_cron_field(value: Any, timezone: str | None) -> CronSchedule:
    try:
        return parse_cron(value, timezone)
    except ValidationError as error:
        raise ValidationError(f"Invalid cron expression: {error}") from None


#: In the order in which they are looked for: a scheduler that names several fields runs by the first of them.
KINDS: Final[tuple[ScheduleKind, ...]] = (
    ScheduleKind("cron", "schedule", _parse_cron_field),
    ScheduleKind("interval", "repeatEvery", parse_interval),
)


class Following(NamedTuple):
    """The run after a run: when (epoch ms, None if there is none), and whether other runs had to be left out before it."""

    run: int | None
    passed: bool


def following_run(schedule: Schedule, slot_ms: int, now_ms: int) -> Following:
    """The run after the one that was meant for ``slot_ms``, when it is now ``now_ms`` (epoch ms): never at or before now."""
    following = schedule.next_after(slot_ms)
    if following is None or following > now_ms:
        return Following(following, False)
    if isinstance(schedule, AnchoredSchedule):
        return Following(schedule.next_slot(slot_ms, now_ms), True)
    return Following(schedule.next_after(now_ms), True)


def upcoming_runs(schedule: Schedule, after_ms: int, count: int) -> list[int]:
    """Preview: the next ``count`` runs strictly after ``after_ms`` (epoch ms), fewer if the schedule ends, at most 1000."""
    return list(islice(_runs(schedule, after_ms), min(max(0, count), MAX_PREVIEW)))


def _runs(schedule: Schedule, after_ms: int) -> Iterator[int]:
    run = schedule.next_after(after_ms)
    while run is not None:
        yield run
        run = schedule.next_after(run)
