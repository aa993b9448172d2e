"""Back-off strategies of plugins: used as they are, and never the reason why a failure is not recorded."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bunqueue_core.model.job import JobOptions
from bunqueue_core.model.rules import BACKOFF_STRATEGIES, backoff_delay

OPTIONS = JobOptions(backoff={"type": "mine", "delay": 1000, "maxDelay": 60_000})


def broken(delay_ms: int, attempts: int, random: Any) -> float:
    raise RuntimeError("out of order")


def delay(strategies: dict[str, Any], attempts: int = 2) -> int:
    return backoff_delay(OPTIONS, attempts, lambda: 0.5, {**BACKOFF_STRATEGIES, **strategies})


def test_a_strategy_decides() -> None:
    assert delay({"mine": lambda delay_ms, attempts, random: delay_ms * attempts * random()}) == 1000


@pytest.mark.parametrize(
    "strategy",
    [broken, lambda *_: math.nan, lambda *_: math.inf, lambda *_: "soon", lambda *_: None],
    ids=["raises", "nan", "infinite", "text", "nothing"],
)
def test_one_that_fails_counts_as_exponential(strategy: Any) -> None:
    assert delay({"mine": strategy}) == delay({"mine": BACKOFF_STRATEGIES["exponential"]}) == 4000


def test_one_that_is_not_installed_any_more_counts_as_exponential() -> None:
    assert delay({}) == 4000


def test_what_it_gives_is_kept_within_bounds() -> None:
    assert delay({"mine": lambda *_: 10**9}) == 60_000
    assert delay({"mine": lambda *_: -5}) == 0
