"""The request limit: a sliding window by client."""

from __future__ import annotations

from bunqueue_core.server.limits import RateLimiter
from bunqueue_core.testing import SettableClock


def test_a_window_holds_so_many_requests_of_each_client() -> None:
    clock = SettableClock()
    limiter = RateLimiter(2, 1000, clock)
    assert [limiter.allow("a") for _ in range(3)] == [True, True, False]
    assert limiter.allow("b")
    clock.advance(999)
    assert not limiter.allow("a")
    clock.advance(1)
    assert [limiter.allow("a") for _ in range(3)] == [True, True, False]


def test_refused_requests_are_not_counted() -> None:
    clock = SettableClock()
    limiter = RateLimiter(1, 1000, clock)
    assert limiter.allow("a")
    clock.advance(900)
    assert not limiter.allow("a")
    clock.advance(100)
    assert limiter.allow("a")


def test_a_client_that_left_starts_afresh() -> None:
    limiter = RateLimiter(1, 1000, SettableClock())
    limiter.allow("a")
    limiter.forget("a")
    assert limiter.allow("a")


def test_sweeping_keeps_those_in_the_window() -> None:
    clock = SettableClock()
    limiter = RateLimiter(1, 1000, clock)
    limiter.allow("old")
    clock.advance(600)
    limiter.allow("young")
    clock.advance(500)
    limiter.sweep()
    assert not limiter.allow("young")
    assert limiter.allow("old")
