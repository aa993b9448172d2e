"""Completed and failed jobs by minute, per queue, for two weeks."""

from __future__ import annotations

from typing import Any, Final

from bunqueue_core.engine.base import MAX_BUCKETS, TOTAL_MINUTE, EngineBase, Series
from bunqueue_core.engine.queue import QueueState
from bunqueue_core.model.requests import QueueMetrics
from bunqueue_core.storage.changes import METRICS_TABLE

#: Queues and types whose minutes are kept; the least recently created ones go.
MAX_SERIES: Final = 50_000

#: Counts are stored at most so often, ms: they tell a trend, and would otherwise be two more rows of nearly every commit.
STORE_INTERVAL_MS: Final = 1_000


class Measuring(EngineBase):
    """Counting, and the query of the counts."""

    def count_metric(self, queue: QueueState, type: str, now: int) -> None:
        key = (queue.name, type)
        series = self.metrics.get(key)
        if series is None:
            series = self.metrics[key] = Series()
            if len(self.metrics) > MAX_SERIES:
                self.forget_series(next(iter(self.metrics)))
        minute = now // 60_000
        count = series.buckets.get(minute)
        if count is None:
            count = 0
            self._prune(key, series, minute)
        series.buckets[minute] = count + 1
        series.total += 1
        series.previous_at = now
        series.previous_count = count + 1
        if self.marks.enabled:
            if not self.unstored_metrics:
                self.agenda.set("metrics", now + STORE_INTERVAL_MS, self.store_metrics)
            self.unstored_metrics[key, minute] = None

    def store_metrics(self, now: int) -> None:
        """Have the counts written that changed since the last time."""
        for key, minute in self.unstored_metrics:
            series = self.metrics.get(key)
            if series is None or minute not in series.buckets:
                continue
            self.marks.table(METRICS_TABLE, (*key, minute, series.buckets[minute], None, None))
            self.marks.table(
                METRICS_TABLE, (*key, TOTAL_MINUTE, series.total, series.previous_at, series.previous_count)
            )
        self.unstored_metrics.clear()

    def _prune(self, key: tuple[str, str], series: Series, minute: int) -> None:
        while series.buckets:
            oldest = next(iter(series.buckets))
            if oldest > minute - MAX_BUCKETS:
                return
            del series.buckets[oldest]
            self.marks.table_removed(METRICS_TABLE, *key, oldest)

    def restore_metric(self, row: tuple[Any, ...]) -> None:
        queue, type, minute, count, previous_at, previous_count = row
        series = self.metrics.setdefault((queue, type), Series())
        if minute == TOTAL_MINUTE:
            series.total, series.previous_at, series.previous_count = count, previous_at or 0, previous_count or 0
        else:
            series.buckets[minute] = count

    def queue_metrics(self, name: str, type: str, start: int, end: int) -> QueueMetrics:
        """Minute buckets, newest first, cut to the inclusive window ``start..end`` (-1: to the oldest); gaps are 0."""
        series = self.metrics.get((name, type))
        if series is None or not series.buckets:
            return QueueMetrics(series.total if series is not None else 0, 0, 0, [], 0)
        newest, oldest = max(series.buckets), min(series.buckets)
        buckets = newest - oldest + 1
        last = buckets - 1 if end < 0 else min(end, buckets - 1)
        data = [series.buckets.get(newest - offset, 0) for offset in range(start, last + 1)]
        return QueueMetrics(series.total, series.previous_at, series.previous_count, data, buckets)
