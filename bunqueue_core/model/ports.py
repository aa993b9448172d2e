"""Clock, ids and randomness, handed in, so that tests can set them and the engine stays pure."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import uuid_utils


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def uuid7() -> str:
    """A UUIDv7; ids made in one process are strictly increasing, so that they order jobs of one millisecond."""
    return str(uuid_utils.uuid7())


@dataclass(slots=True)
class Ports:
    """What the engine may not make itself.

    Attributes:
        now: epoch ms.
        new_id: a job id, increasing.
        new_token: a lock token.
        random: a float in [0, 1).
        steady: seconds on a clock that is never set, by which it is noticed that ``now`` was; None: ``now`` is set by nobody. The
            system's clock has one unless another is given.
    """

    now: Callable[[], int] = wall_clock_ms
    new_id: Callable[[], str] = uuid7
    new_token: Callable[[], str] = uuid7
    random: Callable[[], float] = field(default_factory=lambda: random.Random().random)
    steady: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        if self.steady is None and self.now is wall_clock_ms:
            self.steady = time.monotonic
