"""An orderly stop: nothing is handed out or taken in, outcomes are, and what workers hold is counted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from bunqueue_core.model.errors import BrokerClosed
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import Ack, FlowJob, PullRequest

if TYPE_CHECKING:
    from conftest import OpenBroker


async def test_a_broker_that_drains(open_broker: OpenBroker) -> None:
    one, other = open_broker(broker_id="one"), open_broker(broker_id="other")
    await one.start()
    await other.start()
    try:
        await one.push("q", [JobSpec("n", None) for _ in range(5)])
        connected = await one.pull(PullRequest("q", 1, "w", session="c", lock_ttl_ms=60_000))
        free = await one.pull(PullRequest("q", 1, "w", lock_ttl_ms=60_000))
        await other.pull(PullRequest("q", 1, "w", lock_ttl_ms=60_000))
        waiting = one.pull(PullRequest("empty", wait_ms=60_000, owner="w"))
        one.drain()
        one.drain()
        assert one.active_jobs > 0
        health = one.health()
        assert (health.ready, health.degraded, health.problem) == (False, False, "draining")
        # Its own deliveries only, with a connection or without: not those of the other broker.
        async with asyncio.timeout(20):
            while one.active_jobs != 2:  # noqa: ASYNC110 - the database's doing
                await asyncio.sleep(0.02)
        with pytest.raises(BrokerClosed, match="Server is shutting down; no new jobs are accepted"):
            await one.push("q", [JobSpec("n", None)])
        with pytest.raises(BrokerClosed, match="Server is shutting down; no new jobs are accepted"):
            await one.push_flow([FlowJob(id="f", queue="q", spec=JobSpec("n", None, custom_id="f"))])
        assert await one.pull(PullRequest("q", 1, "w")) == []
        assert not waiting.ready
        for delivery in (*connected, *free):
            assert (await one.ack([Ack(delivery.job.id, delivery.token, None)])).errors == {}
        async with asyncio.timeout(20):
            while one.active_jobs:  # noqa: ASYNC110 - the database's doing
                await asyncio.sleep(0.02)
        await one.close()
        assert await waiting == []
        assert len(await other.pull(PullRequest("q", 5, "w"))) == 2
    finally:
        await one.close()
        await other.close()
