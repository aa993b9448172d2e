"""Operations that would load a whole queue: within the bounds of the settings, or refused by name; nothing is cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from bunqueue_postgres.broker import PostgresBroker

from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.job import JobOptions, JobSpec
from bunqueue_core.model.requests import Ack, Failure, Page, PullRequest

if TYPE_CHECKING:
    from conftest import OpenBroker

BOUND = 30


@pytest.fixture
async def broker(open_broker: OpenBroker) -> AsyncIterator[PostgresBroker]:
    """A broker that loads 30 jobs and 100,000 bytes at once."""
    broker = open_broker(max_snapshot_jobs=BOUND, max_snapshot_payload_bytes=100_000)
    await broker.start()
    yield broker
    await broker.close()


async def push(broker: PostgresBroker, count: int, data: bytes | None = None, max_attempts: int = 3) -> list[str]:
    specs = [JobSpec("n", data, options=JobOptions(max_attempts=max_attempts)) for _ in range(count)]
    return (await broker.push("q", specs)).ids


async def bury(broker: PostgresBroker, count: int) -> None:
    await push(broker, count, max_attempts=1)
    for delivery in await broker.pull(PullRequest("q", count, "w")):
        await broker.fail([Failure(delivery.job.id, "boom", delivery.token)])


async def test_a_listing_of_everything(broker: PostgresBroker) -> None:
    everything = Page(limit=None)
    ids = await push(broker, BOUND)
    assert [view.job.id for view in await broker.jobs("q", [], everything)] == ids
    await push(broker, 1)
    with pytest.raises(CommandError, match='Queue "q" has more jobs to load at once than maxSnapshotJobs=30') as caught:
        await broker.jobs("q", [], everything)
    assert "raise storage.maxSnapshotJobs" in str(caught.value)
    with pytest.raises(CommandError, match="maxSnapshotJobs"):
        await broker.jobs("q", [], Page(limit=BOUND + 1))
    assert len(await broker.jobs("q", [], Page(offset=1, limit=BOUND))) == BOUND


async def test_heavy_payloads(broker: PostgresBroker) -> None:
    await push(broker, BOUND, b"\xc5\x0f\xa0" + bytes(4_000))
    with pytest.raises(CommandError, match="more payload bytes to load at once than maxSnapshotPayloadBytes=100000"):
        await broker.jobs("q", [], Page(limit=None))
    assert len(await broker.jobs("q", [], Page(limit=10))) == 10


async def test_dead_letters(broker: PostgresBroker) -> None:
    await bury(broker, BOUND + 5)
    with pytest.raises(CommandError, match="maxSnapshotJobs"):
        await broker.dead_letters("q", None, None)
    with pytest.raises(CommandError, match="maxSnapshotJobs"):
        await broker.dlq_stats("q")
    assert len(await broker.dead_letters("q", BOUND, None)) == BOUND
    # Work that goes job by job loads no queue: all of them are retried.
    assert await broker.retry_dead_letters("q") == BOUND + 5


async def test_what_goes_in_steps_is_whole(broker: PostgresBroker) -> None:
    specs = [JobSpec("n", None, delay=600_000) for _ in range(2 * BOUND + 5)]
    await broker.push("q", specs)
    assert await broker.promote_jobs("q") == 2 * BOUND + 5
    deliveries = await broker.pull(PullRequest("q", 2 * BOUND + 5, "w"))
    await broker.ack([Ack(delivery.job.id, delivery.token, None) for delivery in deliveries])
    assert await broker.retry_completed("q", count=BOUND + 1) == BOUND + 1
    assert await broker.retry_completed("q") == BOUND + 4
