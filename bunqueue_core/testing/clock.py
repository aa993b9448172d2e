"""A clock that stands still until it is told to move, and ids and random numbers that repeat."""

from __future__ import annotations

import random
from collections.abc import Callable

from bunqueue_core.model.ports import Ports

#: Where a :class:`SettableClock` stands unless told otherwise: 2025-01-01T00:00:00Z.
DEFAULT_START_MS = 1_735_689_600_000


class SettableClock:
    """Epoch milliseconds that only a test moves. Calling it gives the time, so that it fits where a clock is handed in.

    Args:
        start_ms: epoch ms that it shows first.
    """

    __slots__ = ("now_ms",)

    def __init__(self, start_ms: int = DEFAULT_START_MS) -> None:
        self.now_ms = start_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> int:
        """Move by ``ms`` (negative: back, as a clock that is corrected does) and return the new time in epoch ms."""
        self.now_ms += ms
        return self.now_ms

    def __repr__(self) -> str:
        return f"SettableClock({self.now_ms})"


def counted_ids(now: Callable[[], int], kind: int = 0) -> Callable[[], str]:
    """Give a function that makes UUIDv7 strings from ``now`` and a counter: strictly increasing, the same in every run.

    Args:
        now: epoch ms; where it goes back, the ids do not.
        kind: 0..255, told apart in the last digits, so that two sources on one clock never make the same id.
    """
    last = 0
    counter = 0

    def next_id() -> str:
        nonlocal last, counter
        last = max(last, now())
        counter += 1
        # RFC 9562, 5.7: 48 bits of time, version, 12 bits, variant, 62 bits. The counter fills both random fields, and
        # only ever grows, so that ids of one millisecond stay in order.
        high, low = divmod(counter, 1 << 48)
        stamp = f"{last:012x}"
        return f"{stamp[:8]}-{stamp[8:]}-7{high & 0xFFF:03x}-80{kind:02x}-{low:012x}"

    return next_id


def deterministic_ports(clock: Callable[[], int] | None = None, seed: int = 0) -> Ports:
    """Make ports whose every value a run repeats.

    Args:
        clock: epoch ms; a new :class:`SettableClock` if None.
        seed: of the random numbers.
    """
    now = clock if clock is not None else SettableClock()
    return Ports(now=now, new_id=counted_ids(now, 0), new_token=counted_ids(now, 1), random=random.Random(seed).random)
