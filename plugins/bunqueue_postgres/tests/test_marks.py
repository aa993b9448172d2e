"""Low-water marks are hints: what comes in behind them is found all the same, and remains of what was claimed cost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from bunqueue_postgres.broker import PostgresBroker

from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import PullRequest

OpenBroker = Callable[..., PostgresBroker]


@pytest.fixture
async def brokers(open_broker: OpenBroker) -> AsyncIterator[list[PostgresBroker]]:
    """Two brokers of one namespace."""
    brokers = [open_broker(), open_broker()]
    for broker in brokers:
        await broker.start()
    yield brokers
    for broker in brokers:
        await broker.close()


async def test_a_job_that_comes_back_behind_another_brokers_mark_is_found(brokers: list[PostgresBroker]) -> None:
    one, other = brokers
    (early,) = (await other.push("q", [JobSpec("n", None, timestamp=1_000)])).ids
    (held,) = await other.pull(PullRequest("q", 1, "w", session="s"))
    assert held.job.id == early
    await other.push("q", [JobSpec("n", None, timestamp=2_000)])
    (_,) = await one.pull(PullRequest("q", 1, "w"))  # from here on it begins behind the first
    waiting = one.pull(PullRequest("q", 1, "w", wait_ms=600_000))
    await other.release("s")
    async with asyncio.timeout(30):
        (delivery,) = await waiting
    assert delivery.job.id == early
