"""Repeat jobs: each successful run of a job with ``repeat`` adds the next one (they are no schedulers of their own).

The input is checked where jobs are read (``model.options``, which takes :meth:`Repeats.check_pattern`); here is what follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from bunqueue_core.model.job import Job, JobSpec
from bunqueue_core.scheduling.cron import CronSchedule, parse_cron

#: Parsed patterns that are kept; emptied when full. Reading one costs more than finding its next run.
MAX_PATTERNS: Final = 512


class Repeats:
    """Finds the successors of repeat jobs. Pure but for a bounded memory of parsed patterns; belongs to one engine or reader."""

    __slots__ = ("_parsed",)

    def __init__(self) -> None:
        self._parsed: dict[tuple[str, str | None], CronSchedule] = {}

    def check_pattern(self, pattern: str, timezone: str | None) -> None:
        """Refuse a pattern that makes no schedule.

        Raises:
            ValidationError: the reason, without ``Invalid repeat pattern: `` before it.
        """
        self._schedule(pattern, timezone)

    def next_run(self, repeat: Mapping[str, Any], now: int) -> int | None:
        """When the generation after ``repeat`` runs (epoch ms, after ``now``), whatever its ``limit``; None if it never does.

        Args:
            repeat: as read by ``model.options`` (camelCase; ``every``, ``offset`` in ms, ``startDate``, ``endDate``, ``prevMillis``
                in epoch ms), possibly as stored, where large numbers come back as floats.
            now: epoch ms.

        Raises:
            ValidationError: a stored pattern, or its time zone, that this system does not know.
        """
        start, end = _integer(repeat.get("startDate")), _integer(repeat.get("endDate"))
        pattern = repeat.get("pattern")
        run: int | None
        if pattern is None:
            run = _next_interval(repeat, start, now)
        else:
            run = self._next_match(pattern, repeat, start, now)
        if run is None or run <= 0 or (start is not None and run < start) or (end is not None and run > end):
            return None
        return run

    def successor(self, job: Job, now: int) -> JobSpec | None:
        """The job to add after ``job`` has completed successfully at ``now`` (epoch ms), None if the chain ends.

        It keeps name, data, priority, group, tags, unique key and all options, and starts with fresh attempts.
        """
        repeat = job.options.repeat
        if repeat is None:
            return None
        count = _integer(repeat.get("count")) or 0
        limit = _integer(repeat.get("limit"))
        if limit is not None and count >= limit:
            return None
        run = self.next_run(repeat, now)
        if run is None:
            return None
        return JobSpec(
            job.name,
            job.data,
            replace(job.options, repeat={**repeat, "count": count + 1, "prevMillis": run}),
            priority=job.priority,
            delay=run - now,
            timestamp=now,
            unique_key=job.unique_key,
            group_id=job.group_id,
            tags=job.tags,
        )

    def _next_match(self, pattern: str, repeat: Mapping[str, Any], start: int | None, now: int) -> int | None:
        offset = _integer(repeat.get("offset")) or 0
        previous = _integer(repeat.get("prevMillis"))
        schedule = self._schedule(pattern, repeat.get("tz"))
        after = now - offset
        if start is not None:
            after = max(after, start - offset - 1)
        if previous is not None:
            after = max(after, previous - offset)
        base = schedule.next_after(after)
        return None if base is None else base + offset

    def _schedule(self, pattern: str, timezone: str | None) -> CronSchedule:
        key = (pattern, timezone)
        schedule = self._parsed.get(key)
        if schedule is None:
            schedule = parse_cron(pattern, timezone)
            if len(self._parsed) >= MAX_PATTERNS:
                self._parsed.clear()
            self._parsed[key] = schedule
        return schedule


def _next_interval(repeat: Mapping[str, Any], start: int | None, now: int) -> int:
    every: int = max(1, math.floor(repeat["every"]))
    offset = _integer(repeat.get("offset")) or 0
    previous = _integer(repeat.get("prevMillis"))
    if previous is not None:
        run = previous + every
    elif start is not None and start > now:
        run = start + offset
    else:
        run = now + every + offset
    earliest = now + 1 if start is None else max(now + 1, start)
    if run < earliest:
        run += -((run - earliest) // every) * every
    return run


def _integer(value: Any) -> int | None:
    return None if value is None else math.floor(value)
