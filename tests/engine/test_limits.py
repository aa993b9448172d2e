"""The token bucket allows a burst, then its rate; the concurrency limiter counts what is active."""

from __future__ import annotations

from bunqueue_core.engine.limits import ConcurrencyLimiter, RateLimiter


def test_a_burst_then_the_rate() -> None:
    rate = RateLimiter(3, 900, None, 0)
    for _ in range(3):
        assert rate.ready(0)
        rate.take()
    assert not rate.ready(0)
    assert rate.next_at(0) == 300
    assert not rate.ready(299)
    assert rate.ready(300)


def test_tokens_never_exceed_the_capacity() -> None:
    rate = RateLimiter(2, 1000, None, 0)
    taken = 0
    while rate.ready(1_000_000):
        rate.take()
        taken += 1
    assert taken == 2


def test_a_clock_that_goes_back_gives_no_tokens() -> None:
    rate = RateLimiter(1, 1000, None, 10_000)
    rate.take()
    assert not rate.ready(0)
    assert not rate.ready(999)
    assert rate.ready(1_000)


def test_limits_below_one_never_let_a_job_through() -> None:
    for limit in (0, -1, 0.5):
        rate = RateLimiter(limit, 1000, None, 0)
        assert not rate.ready(10_000_000)
        assert rate.next_at(0) is None


def test_a_temporary_limit_ends() -> None:
    rate = RateLimiter(1, 1000, 500, 0)
    assert not rate.expired(499)
    assert rate.expired(500)


def test_what_the_wait_says() -> None:
    rate = RateLimiter(2, 1000, None, 0)
    assert rate.wait_ms(0) == 0
    rate.take()
    rate.take()
    assert rate.wait_ms(0) == 500
    assert rate.wait_ms(0, max_jobs=3) == 0
    assert RateLimiter(0, 1000, None, 0).wait_ms(0) == 0
    assert RateLimiter(5e-324, 1000, None, 0).wait_ms(0) == 2**53 - 1


def test_a_fractional_bound_rounds_up() -> None:
    limiter = ConcurrencyLimiter(1.5)
    limiter.active = 1
    assert not limiter.full
    limiter.active = 2
    assert limiter.full
    assert ConcurrencyLimiter(0).full


def test_who_waits_for_a_token_waits_no_longer_than_the_limit_lasts() -> None:
    rate = RateLimiter(1, 60_000, expires_at=10_000, now=0)
    assert rate.ready(0)
    rate.take()
    assert rate.next_at(0) == 10_000
