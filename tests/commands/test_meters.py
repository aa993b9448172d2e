"""Rates and latencies."""

from __future__ import annotations

import pytest

from bunqueue_core.commands.meters import LATENCY_BOUNDS_S, Histogram, Meters, Rate


class Seconds:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_the_first_reading_is_the_plain_rate_and_later_ones_are_smoothed() -> None:
    clock = Seconds()
    rate = Rate(clock)
    clock.now += 2
    assert rate.read(100) == 50
    clock.now += 1
    assert rate.read(200) == round(0.3 * 100 + 0.7 * 50, 2)


def test_readings_in_quick_succession_give_the_same_rate() -> None:
    clock = Seconds()
    rate = Rate(clock)
    clock.now += 1
    assert rate.read(10) == 10
    clock.now += 0.0625
    assert rate.read(1000) == 10
    clock.now += 0.0625
    assert rate.read(1000) == pytest.approx(0.3 * 990 / 0.125 + 0.7 * 10, abs=0.01)


def test_durations_fall_into_the_bucket_whose_bound_they_do_not_exceed() -> None:
    histogram = Histogram()
    for seconds in (0.0001, 0.00011, 10.0, 11.0):
        histogram.observe(seconds)
    assert histogram.buckets[0] == 1
    assert histogram.buckets[1] == 1
    assert histogram.buckets[len(LATENCY_BOUNDS_S) - 1] == 1
    assert histogram.buckets[-1] == 1
    assert (histogram.count, round(histogram.mean_ms)) == (4, 5250)
    assert Histogram().mean_ms == 0


def test_meters_name_their_series() -> None:
    assert list(Meters().latencies) == ["push", "pull", "ack"]
