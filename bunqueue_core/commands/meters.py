"""Rates and latencies of the server, computed from what the broker counts and the commands take."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Final

#: Upper bounds of the latency buckets, seconds; what is slower falls into a last, open one.
LATENCY_BOUNDS_S: Final = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: Weight of the newest reading in a rate, and the shortest time between two readings that gives a new one, seconds.
_SMOOTHING: Final = 0.3
_SHORTEST_READING_S: Final = 0.1


class Rate:
    """Events a second, smoothed over readings of a counter that only grows."""

    __slots__ = ("_clock", "_last_count", "_last_time", "_rate")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_time = clock()
        self._last_count = 0
        self._rate = 0.0

    def read(self, count: int) -> float:
        """The rate after the counter stands at ``count``, to two decimals."""
        now = self._clock()
        passed = now - self._last_time
        if passed >= _SHORTEST_READING_S:
            rate = (count - self._last_count) / passed
            self._rate = rate if self._rate == 0 else _SMOOTHING * rate + (1 - _SMOOTHING) * self._rate
            self._last_time, self._last_count = now, count
        return round(self._rate, 2)


class Histogram:
    """Durations by bucket."""

    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.count = 0
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.count += 1
        self.total_s += seconds

    @property
    def mean_ms(self) -> float:
        """Mean duration in ms, 0 while there is none."""
        return self.total_s / self.count * 1000 if self.count else 0.0

    def percentile_ms(self, percentile: float) -> float:
        """The bound in ms below which ``percentile`` percent of the durations lie; 0 while there is none.

        What is slower than the last bound counts as that bound.
        """
        wanted = self.count * percentile / 100
        reached = 0
        for bound, count in zip(LATENCY_BOUNDS_S, self.buckets, strict=False):
            reached += count
            if reached >= wanted:
                return round(bound * 1000, 1) if self.count else 0.0
        return LATENCY_BOUNDS_S[-1] * 1000


class Meters:
    """All of them. Used from the server's event loop only.

    ``latencies`` holds the time from a command's start to its answer; a pull that waited for a job is not counted. ``cut_offs``
    counts connections that the server ended, by reason.
    """

    __slots__ = ("completed", "cut_offs", "failed", "latencies", "pulled", "pushed", "started_at")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.started_at = clock()
        self.pushed = Rate(clock)
        self.pulled = Rate(clock)
        self.completed = Rate(clock)
        self.failed = Rate(clock)
        self.cut_offs: Counter[str] = Counter()
        self.latencies = {"push": Histogram(), "pull": Histogram(), "ack": Histogram()}
