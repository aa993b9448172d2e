"""The server is killed under load, again and again, and started on the same file.

After each kill: every durable add that was answered is there; every buffered add that was answered 250 ms before or earlier is
there; no job whose acknowledgement was answered runs again, and its result is there; nothing exists twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fixtures.server import ServerProcess
from fixtures.wire import Wire

KILLS = 20
CAMPAIGN_KILLS = 500

#: Answered this long before the kill, a buffered add must have been written.
BUFFERED_MS = 250

#: A kill comes this many ms after the load began, at random.
KILL_AFTER_MS = (20, 700)

#: Adds that are under way at once.
IN_FLIGHT = 30

#: Jobs that wait above which adds come one after the other, so that acknowledgements are not starved.
MAX_BACKLOG = 1_000

#: Jobs that were found after an earlier kill and are asked about again after each.
SAMPLE = 300

QUEUE = "load"


class Ledger:
    """What the server has answered so far."""

    def __init__(self) -> None:
        self.durable: set[str] = set()
        self.buffered: dict[str, float] = {}  #: when the answer came (monotonic seconds)
        self.acked: dict[str, Any] = {}  #: result by id
        self.numbers: dict[str, int] = {}  #: what each job was pushed with
        self.lost: set[str] = set()  #: buffered adds that a kill may have taken
        self.seen: set[str] = set()  #: adds and acknowledgements that were found after an earlier kill
        self.next_number = 0

    def number(self) -> int:
        self.next_number += 1
        return self.next_number


async def produce(wire: Wire, ledger: Ledger, chance: random.Random) -> None:
    """Add single jobs and small bulks, durable and not, without waiting for the answers of earlier ones."""
    flying: set[asyncio.Task[None]] = set()

    async def single(durable: bool) -> None:
        number = ledger.number()
        answer = await wire.call("PUSH", queue=QUEUE, name="n", data={"n": number}, backoff=0, durable=durable)
        note([(answer["id"], number)], durable)

    async def bulk(durable: bool, count: int) -> None:
        numbers = [ledger.number() for _ in range(count)]
        jobs = [{"name": "n", "data": {"n": number}, "backoff": 0, "durable": durable} for number in numbers]
        answer = await wire.call("PUSHB", queue=QUEUE, jobs=jobs)
        note(zip(answer["ids"], numbers, strict=True), durable)

    def note(pushed: Iterable[tuple[str, int]], durable: bool) -> None:
        now = time.monotonic()
        for id, number in pushed:
            ledger.numbers[id] = number
            if durable:
                ledger.durable.add(id)
            else:
                ledger.buffered[id] = now

    async def add() -> None:
        durable = chance.random() < 0.4
        try:
            if chance.random() < 0.8:
                await single(durable)
            else:
                await bulk(durable, chance.randint(2, 40))
        except ConnectionError:
            return

    while not wire.ended:
        task = asyncio.ensure_future(add())
        flying.add(task)
        task.add_done_callback(flying.discard)
        backlog = len(ledger.numbers) - len(ledger.acked)
        if len(flying) >= (IN_FLIGHT if backlog < MAX_BACKLOG else 1):
            await asyncio.wait(flying, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(0)
    await asyncio.gather(*flying)
    raise ConnectionError("the server is gone")


async def consume(wire: Wire, ledger: Ledger, chance: random.Random) -> None:
    """Take jobs and acknowledge them, one by one or in bulk; now and then let one fail."""

    async def end(job: dict[str, Any], token: str, result: Any) -> None:
        if chance.random() < 0.05:
            await wire.call("FAIL", id=job["id"], token=token, error="boom")
        else:
            await wire.call("ACK", id=job["id"], token=token, result=result)
            ledger.acked[job["id"]] = result

    while True:
        answer = await wire.call(
            "PULLB", queue=QUEUE, count=chance.randint(1, 20), owner="w", lockTtl=60_000, timeout=1_000
        )
        jobs, tokens = answer["jobs"], answer["tokens"]
        if not jobs:
            continue
        taken_again = [job["id"] for job in jobs if job["id"] in ledger.acked]
        assert not taken_again, f"acknowledged jobs run again: {taken_again}"
        results = [{"n": job["data"]["n"], "r": chance.random()} for job in jobs]
        if len(jobs) > 1 and chance.random() < 0.5:
            ids = [job["id"] for job in jobs]
            await wire.call("ACKB", ids=ids, tokens=tokens, results=results)
            ledger.acked.update(zip(ids, results, strict=True))
            continue
        await asyncio.gather(
            *(end(job, token, result) for job, token, result in zip(jobs, tokens, results, strict=True))
        )


async def load_until_killed(server: ServerProcess, ledger: Ledger, chance: random.Random) -> float:
    """Load the server and kill it; when (monotonic seconds)."""
    producer, consumer = await Wire.connect(server.port), await Wire.connect(server.port)
    workers = [
        asyncio.ensure_future(produce(producer, ledger, chance)),
        *(asyncio.ensure_future(consume(consumer, ledger, chance)) for _ in range(4)),
    ]
    await asyncio.sleep(chance.uniform(*KILL_AFTER_MS) / 1000)
    killed_at = time.monotonic()
    server.process.kill()
    ends = await asyncio.gather(*workers, return_exceptions=True)
    wrong = [end for end in ends if not isinstance(end, ConnectionError)]
    assert not wrong, wrong
    await producer.close()
    await consumer.close()
    server.wait()
    return killed_at


async def in_bulk(wire: Wire, cmd: str, ids: list[str]) -> list[dict[str, Any]]:
    """Ask about many jobs, all requests in flight at once."""
    return list(await asyncio.gather(*(wire.call(cmd, id=id) for id in ids)))


async def check(server: ServerProcess, ledger: Ledger, killed_at: float, chance: random.Random) -> None:
    """What was answered before the kill is there: all that is new, and some of what was found before."""
    wire = await Wire.connect(server.port)
    old = set(chance.sample(sorted(ledger.seen), min(SAMPLE, len(ledger.seen))))
    due = [*ledger.durable, *(id for id, at in ledger.buffered.items() if killed_at - at >= BUFFERED_MS / 1000)]
    must = [id for id in due if id not in ledger.seen or id in old]
    states = dict(zip(must, await in_bulk(wire, "GetState", must), strict=True))
    missing = [id for id, answer in states.items() if answer["state"] == "unknown"]
    durable = sorted(ledger.durable.intersection(missing))
    assert not missing, f"{len(missing)} answered adds are missing, {len(durable)} of them durable"
    acked = [id for id in ledger.acked if f"acked {id}" not in ledger.seen or id in old]
    ended = await in_bulk(wire, "GetState", acked)
    assert {answer["state"] for answer in ended} <= {"completed"}
    results = await in_bulk(wire, "GetResult", acked)
    assert [answer.get("result") for answer in results] == [ledger.acked[id] for id in acked]
    # Younger buffered adds may be gone; those that are there must stay from now on.
    young = [id for id in ledger.buffered if id not in states and id not in ledger.seen]
    kept = await in_bulk(wire, "GetState", young)
    for id, answer in zip(young, kept, strict=True):
        if answer["state"] == "unknown":
            del ledger.buffered[id]
            ledger.lost.add(id)
        else:
            ledger.buffered[id] = 0.0
    ledger.seen.update(must, ledger.buffered, (f"acked {id}" for id in acked))
    await wire.close()


async def finish(server: ServerProcess, ledger: Ledger) -> None:
    """Run everything that is left; nothing exists twice, nothing acknowledged comes back."""
    wire = await Wire.connect(server.port)
    seen: dict[int, str] = {}
    while True:
        answer = await wire.call("PULLB", queue=QUEUE, count=1_000, owner="w", lockTtl=60_000)
        jobs, tokens = answer["jobs"], answer["tokens"]
        if not jobs:
            counts = (await wire.call("GetJobCounts", queue=QUEUE))["counts"]
            if counts["delayed"] == 0:
                break
            continue
        for job in jobs:
            assert job["id"] not in ledger.acked, "an acknowledged job runs again"
            assert job["id"] not in ledger.lost, "an add that was gone after a kill is back"
            assert seen.setdefault(job["data"]["n"], job["id"]) == job["id"], "a job exists twice"
            assert ledger.numbers.get(job["id"], job["data"]["n"]) == job["data"]["n"]
        await wire.call("ACKB", ids=[job["id"] for job in jobs], tokens=tokens)
    numbers = {ledger.numbers[id] for id in ledger.acked if id in ledger.numbers}
    assert numbers.isdisjoint(seen), "a job exists twice: one acknowledged, one waiting"
    counts = (await wire.call("GetJobCounts", queue=QUEUE))["counts"]
    assert (counts["waiting"], counts["active"], counts["prioritized"]) == (0, 0, 0)
    assert counts["completed"] + counts["failed"] >= len(ledger.durable | set(ledger.buffered))
    await wire.close()


def kill_again_and_again(path: Path, kills: int, seed: int) -> Ledger:
    chance = random.Random(seed)
    ledger = Ledger()
    server = ServerProcess(path)
    try:
        for _ in range(kills):
            killed_at = asyncio.run(load_until_killed(server, ledger, chance))
            server = ServerProcess(path)
            asyncio.run(check(server, ledger, killed_at, chance))
        ledger.seen.clear()
        asyncio.run(check(server, ledger, time.monotonic(), chance))
        asyncio.run(finish(server, ledger))
        assert server.stop() == 0
    finally:
        server.kill()
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = database.execute("SELECT count(*), count(DISTINCT id) FROM jobs").fetchone()
        assert rows[0] == rows[1]
    database.close()
    return ledger


def _seed() -> int:
    """A new seed each run, or that of a run to be repeated."""
    return int(os.environ.get("BUNQUEUE_TEST_SEED") or random.SystemRandom().randrange(2**32))


@pytest.mark.timeout(300)
def test_answered_work_survives_kills(tmp_path: Path) -> None:
    seed = _seed()
    print(f"repeat with BUNQUEUE_TEST_SEED={seed}")
    ledger = kill_again_and_again(tmp_path / "queue.db", KILLS, seed)
    # The load was one: there was something of each kind to lose.
    assert len(ledger.durable) > KILLS
    assert len(ledger.buffered) > KILLS
    assert len(ledger.acked) > KILLS


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_answered_work_survives_many_kills(tmp_path: Path) -> None:
    seed = _seed()
    print(f"repeat with BUNQUEUE_TEST_SEED={seed}")
    for round in range(CAMPAIGN_KILLS // KILLS):
        kill_again_and_again(tmp_path / f"queue-{round}.db", KILLS, seed + round)
