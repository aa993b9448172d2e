"""Server processes on one database while things go wrong: a broker dies or stands still, the database stops, is slow, is locked.

What must hold is read from the database's own log (see ``multi_cluster.py``): nothing that was accepted is lost, nothing completes
twice, nobody whose lease has ended completes anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.testing import PostgresServer
from fixtures.server import ServerProcess
from fixtures.wire import Wire
from multi_cluster import (
    ACTIVE,
    COMPLETED,
    QUEUED,
    Cluster,
    Entry,
    Load,
    check,
    claims,
    completions,
    get,
    loaded,
    most_active,
    ready,
    surplus,
    until,
)

#: Lease setting of the servers, ms, and what follows from it: the longest time between two looks for leases that have ended, and
#: the silence after which a broker's session is taken away.
LEASE_MS, SCAN_MS, STALE_MS = 2_000, 1_000, 3_000

#: What a recovery may take beyond lease and scan, ms: the statements themselves, on a machine that does other things, too.
ALLOWANCE_MS = 5_000

QUEUE = "q"

#: How long the campaign goes on, seconds.
CAMPAIGN_S = int(os.environ.get("BUNQUEUE_CAMPAIGN_S", "300"))


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    """A database that these tests may stop. What it answered survives its end, as with any server in service."""
    server = PostgresServer(options=("synchronous_commit=on",))
    yield server
    server.close()


@pytest.fixture
async def cluster(database: PostgresServer) -> AsyncIterator[Cluster]:
    """A namespace without servers yet."""
    cluster = Cluster(database.dsn, LEASE_DURATION_MS=LEASE_MS, POLL_INTERVAL_MS=50)
    await cluster.prepare()
    yield cluster
    cluster.close()


@asynccontextmanager
async def connected(*servers: ServerProcess) -> AsyncIterator[list[Wire]]:
    """A connection to each server."""
    wires = [await Wire.connect(server.port) for server in servers]
    try:
        yield wires
    finally:
        for wire in wires:
            await wire.close()


@asynccontextmanager
async def admin(database: PostgresServer) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection of the database's administrator."""
    async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as connection:
        yield connection


def jobs(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": "n", "data": {}, "backoff": 0, **fields} for _ in range(count)]


def settled(cluster: Cluster) -> Callable[[], Awaitable[bool]]:
    """Whether every job has completed."""

    async def is_settled() -> bool:
        return not await cluster.count(QUEUE, QUEUED) and not await cluster.count(QUEUE, ACTIVE)

    return is_settled


def recoveries(log: list[Entry]) -> list[int]:
    """How long after its lease had ended each job that lost one was put back, ms."""
    return [
        entry.at - entry.lease_until
        for entry in log
        if entry.before == ACTIVE and entry.after == QUEUED and entry.lease_until is not None
    ]


async def cut(database: PostgresServer) -> None:
    """Cut every connection that a broker has."""
    async with admin(database) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'bunqueue:%'"
        )


# -- brokers ----------------------------------------------------------------------------------------------------------


async def test_the_leases_of_a_killed_broker_are_recovered(cluster: Cluster) -> None:
    victim, one, other = cluster.start_all(["victim", "one", "other"])
    async with connected(victim, one, other) as (dying, *alive):
        ids = (await alive[0].call("PUSHB", queue=QUEUE, jobs=jobs(120)))["ids"]
        held = await dying.call("PULLB", queue=QUEUE, count=24, owner="dead", lockTtl=1_500)
        dead = dict(zip([job["id"] for job in held["jobs"]], held["tokens"], strict=True))
        assert len(dead) == 24
        # Renewed, so that it is not the end of the connection that gives them back.
        renewed = await dying.call("JobHeartbeatB", ids=list(dead), tokens=list(dead.values()))
        assert renewed["data"]["count"] == 24
        victim.kill()
        async with loaded([one, other], QUEUE, consumers=4, lease_ms=60_000) as load:
            await load.finish(settled(cluster))
        for id, token in dead.items():
            answer = await alive[1].send("ACK", id=id, token=token, result={"by": "the dead"})
            assert not answer["ok"] or answer["data"] == {"applied": False, "reason": "already-finalized"}
        log = await cluster.log(QUEUE)
        done = completions(log)
        assert {id: len(entries) for id, entries in done.items()} == dict.fromkeys(ids, 1)
        assert not {entry.token for entries in done.values() for entry in entries} & set(dead.values())
        assert {id for id, entries in claims(log).items() if len(entries) == 2} == set(dead)
        late = recoveries(log)
        assert len(late) == 24
        assert all(0 <= ms <= SCAN_MS + ALLOWANCE_MS for ms in late)
        recovered = await alive[0].call("GetJob", id=next(iter(dead)))
        assert (recovered["job"]["attempts"], recovered["job"]["stallCount"]) == (1, 1)


async def test_a_broker_that_stood_still_past_its_lease_is_fenced(cluster: Cluster) -> None:
    sleeper, other = cluster.start_all(["sleeper", "other"])
    async with connected(sleeper, other) as (asleep, awake):
        ids = (await awake.call("PUSHB", queue=QUEUE, jobs=jobs(10)))["ids"]
        held = await asleep.call("PULLB", queue=QUEUE, count=10, owner="asleep", lockTtl=1_000)
        tokens = dict(zip([job["id"] for job in held["jobs"]], held["tokens"], strict=True))
        sleeper.process.send_signal(signal.SIGSTOP)
        # What it is asked now it finds when it wakes up.
        acknowledging = [asleep.send("ACK", id=id, token=token) for id, token in [*tokens.items()][:5]]
        claiming = asleep.send("PULLB", queue=QUEUE, count=10, owner="asleep", lockTtl=60_000)

        async def recovered() -> bool:
            return await cluster.count(QUEUE, QUEUED) == 10

        await until(recovered)
        again = await awake.call("PULLB", queue=QUEUE, count=10, owner="awake", lockTtl=60_000)
        assert sorted(job["id"] for job in again["jobs"]) == sorted(ids)

        async def taken_away() -> bool:
            rows = await cluster.rows("SELECT FROM bunqueue.brokers WHERE broker_id = 'sleeper'")
            return not rows

        await until(taken_away)
        sleeper.process.send_signal(signal.SIGCONT)
        for answer in await asyncio.gather(*acknowledging):
            assert not answer["ok"]
            assert "Invalid or expired lock token" in answer["error"]
        late = await claiming
        assert not late["ok"] or late["jobs"] == []
        await awake.call("ACKB", ids=[job["id"] for job in again["jobs"]], tokens=again["tokens"])
        # It comes back as a broker like any other.
        await until(lambda: ready(sleeper))
        await awake.call("PUSH", queue=QUEUE, name="n", data={})
        pulled = await asleep.call("PULL", queue=QUEUE, owner="w", timeout=30_000)
        await asleep.call("ACK", id=pulled["job"]["id"], token=pulled["token"])
        done = completions(await cluster.log(QUEUE))
        assert len(done) == 11
        assert not {entry.token for entries in done.values() for entry in entries} & set(tokens.values())


# -- the database -----------------------------------------------------------------------------------------------------


async def some_more(load: Load, count: int) -> None:
    """Wait until the load has had ``count`` more jobs acknowledged."""
    enough = len(load.acknowledged) + count

    async def reached() -> bool:
        return len(load.acknowledged) >= enough

    await until(reached)


async def all_ready(servers: list[ServerProcess]) -> None:
    for server in servers:
        await until(lambda server=server: ready(server))  # type: ignore[misc]


async def test_the_database_restarts_under_load(cluster: Cluster, database: PostgresServer) -> None:
    servers = cluster.start_all(["a", "b", "c"])

    async def unready() -> bool:
        return not any([await ready(server) for server in servers])

    async with loaded(servers, QUEUE, producers=3, consumers=4) as load:
        await some_more(load, 100)
        await asyncio.to_thread(database.stop, "fast")
        await until(unready)
        assert [(await get(server, "/live"))[0] for server in servers] == [200] * 3
        await asyncio.to_thread(database.start)
        await some_more(load, 100)
        await asyncio.to_thread(database.stop, "immediate")
        await asyncio.to_thread(database.start)
        await some_more(load, 100)
        await load.finish(settled(cluster))
    await all_ready(servers)
    check(load, await cluster.log(QUEUE))
    # Whatever was refused was refused by these names, without a word about the database's address or statements.
    assert all(error.startswith(("Storage unavailable: ", "Invalid or expired lock token")) for error in load.errors)
    assert not any("127.0.0.1" in error or "SELECT" in error for error in load.errors)


async def test_connections_are_cut_under_load(cluster: Cluster, database: PostgresServer) -> None:
    servers = cluster.start_all(["a", "b", "c"])
    async with loaded(servers, QUEUE, producers=3, consumers=4) as load:
        for _ in range(8):
            await some_more(load, 30)
            await cut(database)
        await load.finish(settled(cluster))
    await all_ready(servers)
    check(load, await cluster.log(QUEUE))


async def test_a_database_too_slow_for_the_time_limits_is_reported_and_left_alone(
    cluster: Cluster, database: PostgresServer
) -> None:
    server = cluster.start("slow", STATEMENT_TIMEOUT_MS=300, LOCK_TIMEOUT_MS=2_147_483_647)
    async with connected(server) as (wire,), admin(database) as connection:
        await wire.call("PUSH", queue=QUEUE, name="n", data={})
        pulled = await wire.call("PULL", queue=QUEUE, owner="w", lockTtl=60_000)
        async with connection.transaction():
            await connection.execute("LOCK TABLE bunqueue.jobs IN ACCESS EXCLUSIVE MODE")
            answers = await asyncio.gather(
                wire.send("PUSH", queue=QUEUE, name="n", data={}),
                wire.send("PULL", queue=QUEUE, owner="w"),
                wire.send("ACK", id=pulled["job"]["id"], token=pulled["token"]),
                wire.send("GetJob", id=pulled["job"]["id"]),
            )
            assert [answer["error"] for answer in answers] == [
                "Storage unavailable: a statement exceeded its time limit"
            ] * 4
            assert (await wire.call("Ping"))["ok"]
        await wire.call("ACK", id=pulled["job"]["id"], token=pulled["token"])
        await until(lambda: ready(server))
        assert await cluster.count(QUEUE, COMPLETED) == 1
        assert await cluster.count(QUEUE, QUEUED) == 0


async def test_a_lock_that_is_held_for_too_long_says_busy(cluster: Cluster, database: PostgresServer) -> None:
    server = cluster.start("locked", LOCK_TIMEOUT_MS=200)
    async with connected(server) as (wire,), admin(database) as connection:
        await wire.call("PUSH", queue=QUEUE, name="n", data={})
        async with connection.transaction():
            await connection.execute("LOCK TABLE bunqueue.jobs IN ACCESS EXCLUSIVE MODE")
            answer = await wire.send("PUSH", queue=QUEUE, name="n", data={})
            assert answer["error"] == "Backend busy: a lock is held for too long; retry later"
        await wire.call("PUSH", queue=QUEUE, name="n", data={})
        assert await cluster.count(QUEUE, QUEUED) == 2


async def answered(wire: Wire, cmd: str, **fields: Any) -> bool:
    """Whether a command is answered, and not refused because the broker is busy."""
    answer = await wire.send(cmd, **fields)
    assert answer["ok"] or answer["error"].startswith("Backend busy: ")
    return bool(answer["ok"])


async def test_more_than_may_wait_is_refused_at_once(cluster: Cluster, database: PostgresServer) -> None:
    server = cluster.start("crowded", POOL_SIZE=2, MAX_CONCURRENT_OPERATIONS=2, MAX_QUEUED_OPERATIONS=3)
    async with connected(server) as (wire,), admin(database) as connection:
        # What a broker does by itself when it starts counts, too, and may fill so few places for a moment.
        await until(lambda: answered(wire, "PUSH", queue=QUEUE, jobId="known", name="n", data={}))
        id = (await wire.call("GetJobByCustomId", customId="known"))["job"]["id"]
        async with connection.transaction():
            await connection.execute("LOCK TABLE bunqueue.logs IN ACCESS EXCLUSIVE MODE")
            asked = [wire.send("GetLogs", id=id) for _ in range(40)]
            done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            busy = [task.result()["error"] for task in done]
            assert all(error.startswith("Backend busy: ") and error.endswith("; retry later") for error in busy)
            assert len(waiting) >= 1
            status, body = await get(server, f"/jobs/{id}/logs")
            assert status == 503
            assert json.loads(body)["error"].startswith("Backend busy: ")
        answers = await asyncio.gather(*asked)
        assert {answer["ok"] for answer in answers} == {True, False}
        await until(lambda: answered(wire, "GetLogs", id=id))


# -- everything at once -----------------------------------------------------------------------------------------------


@pytest.mark.campaign
@pytest.mark.timeout(CAMPAIGN_S + 300)
async def test_whatever_fails_in_whatever_order(cluster: Cluster, database: PostgresServer) -> None:
    seed = os.environ.get("BUNQUEUE_TEST_SEED") or str(uuid.uuid4())
    print(f"BUNQUEUE_TEST_SEED={seed}")
    chance = random.Random(seed)
    limit, duration_ms, concurrency = 400, 500, 60
    servers = cluster.start_all(f"broker-{n}" for n in range(4))
    async with connected(servers[0]) as (wire,):
        await wire.call("RateLimit", queue=QUEUE, limit=limit, duration=duration_ms)
        await wire.call("SetConcurrency", queue=QUEUE, limit=concurrency)
        await wire.call("SetStallConfig", queue=QUEUE, config={"maxStalls": 0})
    names = iter(range(4, 1_000_000))

    async def replace() -> None:
        place = chance.randrange(len(servers))
        servers[place].kill()
        await asyncio.sleep(chance.uniform(0, 2))
        servers[place] = await asyncio.to_thread(cluster.start, f"broker-{next(names)}")

    async def stand_still() -> None:
        process = chance.choice(servers).process
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(chance.uniform(0.1, 2 * STALE_MS / 1_000))
        process.send_signal(signal.SIGCONT)

    async def restart() -> None:
        await asyncio.to_thread(database.stop, chance.choice(["fast", "immediate"]))
        await asyncio.sleep(chance.uniform(0, 2))
        await asyncio.to_thread(database.start)

    async def lock() -> None:
        async with admin(database) as connection, connection.transaction():
            table = chance.choice(["jobs", "queues", "events", "brokers"])
            with suppress(psycopg.errors.DeadlockDetected):
                await connection.execute(f"LOCK TABLE bunqueue.{table} IN ACCESS EXCLUSIVE MODE")
                await asyncio.sleep(chance.uniform(0.1, 6))

    faults = [replace, stand_still, restart, lock, lambda: cut(database)]
    end = time.monotonic() + CAMPAIGN_S
    count = 0
    async with loaded(servers, QUEUE, producers=3, consumers=6) as load:
        while time.monotonic() < end:
            await chance.choice(faults)()
            count += 1
            await asyncio.sleep(chance.uniform(0.5, 4))
        await load.finish(settled(cluster), 120)
    await all_ready(servers)
    log = await cluster.log(QUEUE)
    print(f"{count} faults, {len(load.added)} jobs accepted, {len(recoveries(log))} recovered")
    check(load, log)
    assert surplus(await cluster.rated_claims(QUEUE), limit, duration_ms) <= 0.001
    assert most_active(log) <= concurrency + expired_at_once(log)


def expired_at_once(log: list[Entry]) -> int:
    """The largest number of active jobs at once whose lease had ended, and which no longer count, but were not put back yet."""
    ends = sorted(
        (moment, step)
        for entry in log
        if entry.before == ACTIVE and entry.lease_until is not None and entry.lease_until < entry.at
        for moment, step in ((entry.lease_until, 1), (entry.at, -1))
    )
    now = most = 0
    for _, step in ends:
        now += step
        most = max(most, now)
    return most
