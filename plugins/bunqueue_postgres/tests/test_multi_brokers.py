"""Four server processes on one database: the work, the limits, the order and the schedules that they share."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.testing import PostgresServer
from fixtures.wire import Wire
from multi_cluster import (
    COMPLETED,
    QUEUED,
    Cluster,
    claims,
    completions,
    most_active,
    surplus,
    until,
)

BROKERS = 4


@pytest.fixture(scope="module")
def cluster(postgres: PostgresServer) -> Iterator[Cluster]:
    """Four servers on a database of their own."""
    name = f"multi_{uuid.uuid4().hex}"
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        cluster = Cluster(postgres.dsn.rsplit("/", 1)[0] + f"/{name}", LEASE_DURATION_MS=6_000, POLL_INTERVAL_MS=50)
        try:
            asyncio.run(cluster.prepare())
            cluster.start_all(f"broker-{n}" for n in range(BROKERS))
            yield cluster
        finally:
            cluster.close()
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
async def wires(cluster: Cluster) -> AsyncIterator[list[Wire]]:
    """A connection to each server."""
    wires = [await Wire.connect(server.port) for server in cluster.servers]
    yield wires
    for wire in wires:
        await wire.close()


@pytest.fixture
def queue() -> str:
    """A queue that only this test has."""
    return f"q-{uuid.uuid4()}"


def jobs(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": "n", "data": {"n": n}, **fields} for n in range(count)]


async def consume(claiming: Wire, acknowledging: Wire, queue: str, done: asyncio.Event, **pull: Any) -> None:
    """Take jobs at one broker and acknowledge them at another, until ``done``."""
    while not done.is_set():
        pulled = await claiming.call("PULLB", queue=queue, owner="w", lockTtl=60_000, timeout=200, **pull)
        if pulled["jobs"]:
            ids = [job["id"] for job in pulled["jobs"]]
            await acknowledging.call("ACKB", ids=ids, tokens=pulled["tokens"])


async def work_off(cluster: Cluster, wires: list[Wire], queue: str, total: int, loops: int = 1, **pull: Any) -> None:
    """Have all brokers consume until ``total`` jobs have completed."""
    done = asyncio.Event()
    workers = [
        asyncio.ensure_future(consume(wires[n % BROKERS], wires[(n + 1) % BROKERS], queue, done, **pull))
        for n in range(BROKERS * loops)
    ]
    try:

        async def completed() -> bool:
            return await cluster.count(queue, COMPLETED) >= total

        await until(completed)
    finally:
        done.set()
        await asyncio.gather(*workers)


async def test_every_job_runs_once_whoever_adds_claims_and_acknowledges(
    cluster: Cluster, wires: list[Wire], queue: str
) -> None:
    async def produce(wire: Wire) -> list[str]:
        added: list[str] = []
        for _ in range(10):
            added += (await wire.call("PUSHB", queue=queue, jobs=jobs(25)))["ids"]
        return added

    producing = asyncio.gather(*(produce(wire) for wire in wires))
    await work_off(cluster, wires, queue, 1_000, count=20)
    ids = [id for added in await producing for id in added]
    log = await cluster.log(queue)
    assert {id: len(entries) for id, entries in claims(log).items()} == Counter(ids)
    assert {id: len(entries) for id, entries in completions(log).items()} == Counter(ids)
    counts = [(await wire.call("GetJobCounts", queue=queue))["counts"] for wire in wires]
    assert counts == [counts[0]] * BROKERS
    assert counts[0]["completed"] == 1_000


async def test_a_rate_limit_holds_for_all_together(cluster: Cluster, wires: list[Wire], queue: str) -> None:
    await wires[0].call("RateLimit", queue=queue, limit=15, duration=400)
    await wires[1].call("PUSHB", queue=queue, jobs=jobs(60))
    await work_off(cluster, wires, queue, 60, loops=2, count=4)
    claimed = await cluster.rated_claims(queue)
    assert sum(count for _, count in claimed) == 60
    assert surplus(claimed, 15, 400) <= 0.001


async def test_a_concurrency_limit_holds_for_all_together(cluster: Cluster, wires: list[Wire], queue: str) -> None:
    await wires[0].call("SetConcurrency", queue=queue, limit=5)
    await wires[1].call("PUSHB", queue=queue, jobs=jobs(200))
    await work_off(cluster, wires, queue, 200, loops=2, count=3)
    assert 3 <= most_active(await cluster.log(queue)) <= 5


async def test_groups_keep_their_order_and_their_limit(cluster: Cluster, wires: list[Wire], queue: str) -> None:
    groups = [f"g{n}" for n in range(5)]
    added: dict[str, list[str]] = defaultdict(list)
    for round in range(8):
        pushed = await wires[round % BROKERS].call(
            "PUSHB", queue=queue, jobs=[{"name": "n", "data": {}, "groupId": group} for group in groups]
        )
        for group, id in zip(groups, pushed["ids"], strict=True):
            added[group].append(id)
    await work_off(cluster, wires, queue, 40, count=3, group={"concurrency": 1})
    log = await cluster.log(queue)
    for group in groups:
        own = [entry for entry in log if entry.group == group]
        assert list(claims(own)) == added[group]
        assert most_active(own) == 1


async def test_groups_take_turns_whichever_broker_serves_them(cluster: Cluster, wires: list[Wire], queue: str) -> None:
    for group in ("a", "b"):
        await wires[0].call("PUSHB", queue=queue, jobs=jobs(3, groupId=group))
    await wires[1].call("PUSH", queue=queue, name="n", data={})
    served = []
    for turn in range(7):
        pulled = await wires[turn % BROKERS].call("PULL", queue=queue, owner="w")
        served.append(pulled["job"].get("groupId"))
    assert served == [None, "a", "b", "a", "b", "a", "b"]


async def test_a_full_group_takes_no_more_from_any_broker(cluster: Cluster, wires: list[Wire], queue: str) -> None:
    answers = await asyncio.gather(
        *(
            wires[n % BROKERS].send("PUSH", queue=queue, name="n", data={}, groupId="g", groupMaxSize=5)
            for n in range(40)
        )
    )
    assert sum(answer["ok"] for answer in answers) == 5
    assert {answer["error"] for answer in answers if not answer["ok"]} == {"Group g has reached its maximum size of 5"}
    assert await cluster.count(queue, QUEUED) == 5


async def test_a_paused_group_is_served_by_nobody(wires: list[Wire], queue: str) -> None:
    await wires[0].call("PUSHB", queue=queue, jobs=[*jobs(1, groupId="held"), *jobs(1, groupId="free")])
    await wires[1].call("PauseGroup", queue=queue, groupId="held")
    pulled = [await wire.call("PULL", queue=queue, owner="w") for wire in wires]
    assert [answer["job"] and answer["job"]["groupId"] for answer in pulled] == ["free", None, None, None]
    waiting = wires[2].send("PULL", queue=queue, owner="w", timeout=30_000)
    await wires[3].call("ResumeGroup", queue=queue, groupId="held")
    assert (await waiting)["job"]["groupId"] == "held"


async def test_a_pause_holds_at_once_for_all_and_a_resume_wakes_all(wires: list[Wire], queue: str) -> None:
    await wires[0].call("PUSHB", queue=queue, jobs=jobs(BROKERS))
    await wires[1].call("Pause", queue=queue)
    pulled = [await wire.call("PULL", queue=queue, owner="w") for wire in wires]
    assert [answer["job"] for answer in pulled] == [None] * BROKERS
    assert [(await wire.call("IsPaused", queue=queue))["paused"] for wire in wires] == [True] * BROKERS
    waiting = [wire.send("PULL", queue=queue, owner="w", timeout=30_000) for wire in wires]
    await wires[2].call("Resume", queue=queue)
    assert len({(await answer)["job"]["id"] for answer in waiting}) == BROKERS


async def test_a_scheduler_fires_once_a_slot(cluster: Cluster, wires: list[Wire], queue: str) -> None:
    name = f"every-{queue}"
    await wires[0].call("Cron", name=name, queue=queue, repeatEvery=300, maxLimit=6, preventOverlap=False, data={})
    fired: list[dict[str, Any]] = []
    for turn in range(6):
        pulled = await wires[turn % BROKERS].call("PULL", queue=queue, owner="w", timeout=30_000)
        fired.append(pulled["job"])
    # The sixth was the last. What another broker may have fired beside these would be there by now, in the same transactions.
    log = await cluster.log(queue)
    assert {entry.id for entry in log if entry.before is None} == {job["id"] for job in fired}
    assert len({job["id"] for job in fired}) == 6


async def test_an_end_is_heard_of_at_every_broker(wires: list[Wire], queue: str) -> None:
    id = (await wires[0].call("PUSH", queue=queue, name="n", data={}))["id"]
    waiting = [wire.send("WaitJob", id=id, timeout=30_000) for wire in wires]
    pulled = await wires[1].call("PULL", queue=queue, owner="w")
    await wires[2].call("ACK", id=id, token=pulled["token"], result={"by": "another"})
    assert [(await answer)["result"] for answer in waiting] == [{"by": "another"}] * BROKERS
