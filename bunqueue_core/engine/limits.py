"""Queue limits: a token bucket for deliveries a second and a bound on active jobs."""

from __future__ import annotations

import math
from typing import Final

#: Period of a rate limit that names none, ms.
DEFAULT_RATE_DURATION_MS: Final = 1000

#: A wait that a limit next to nothing makes endless is shown as this, ms: the largest integer that every client can represent.
NEVER_MS: Final = 2**53 - 1


class RateLimiter:
    """Token bucket: ``limit`` tokens at most, refilled evenly over ``duration_ms``. One delivery takes one token."""

    __slots__ = ("_last", "_tokens", "duration_ms", "expires_at", "limit")

    def __init__(self, limit: float, duration_ms: int, expires_at: int | None, now: int) -> None:
        self.limit = limit
        self.duration_ms = duration_ms
        self.expires_at = expires_at  #: epoch ms after which the limit is gone; None: permanent
        self._tokens = float(limit)
        self._last = now

    def expired(self, now: int) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def _refill(self, now: int) -> float:
        if now > self._last:
            self._tokens = min(float(self.limit), self._tokens + (now - self._last) * self.limit / self.duration_ms)
        self._last = now
        return self._tokens

    @property
    def use(self) -> tuple[int, float]:
        """When it was looked at last (epoch ms), and the tokens that were gone then."""
        return self._last, self.limit - self._tokens

    def resume(self, looked_at: int, used: float, now: int) -> None:
        """Go on where an earlier process stopped.

        Args:
            looked_at: epoch ms; one that lies ahead counts as now.
            used: tokens that were gone then.
            now: epoch ms.
        """
        self._tokens = min(float(self.limit), self.limit - used)
        self._last = min(looked_at, now)

    def ready(self, now: int) -> bool:
        """True if a token is there."""
        return self._refill(now) >= 1

    def take(self) -> None:
        """Use a token that :meth:`ready` has just seen."""
        self._tokens -= 1

    def next_at(self, now: int) -> int | None:
        """When the next token will be there, or the limit gone (epoch ms); None if never."""
        if self.limit < 1:
            return self.expires_at
        token_at = now + self.wait_ms(now)
        return token_at if self.expires_at is None else min(token_at, self.expires_at)

    def wait_ms(self, now: int, max_jobs: int | None = None) -> int:
        """ms until a token is there, as ``GetQueueLimits`` shows it: 0 if one is, or if fewer than ``max_jobs`` were used."""
        tokens = self._refill(now)
        if max_jobs is not None and self.limit - tokens < max_jobs:
            return 0
        if tokens >= 1 or self.limit <= 0:
            return 0
        wait = (1 - tokens) * self.duration_ms / self.limit
        return math.ceil(wait) if wait < NEVER_MS else NEVER_MS


class ConcurrencyLimiter:
    """At most ``limit`` active jobs that were delivered since the limit was set."""

    __slots__ = ("active", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.active = 0

    @property
    def full(self) -> bool:
        return self.active >= self.limit
