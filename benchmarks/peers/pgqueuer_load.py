"""One workload on pgqueuer: python pgqueuer_load.py VERB JOBS URL

Prints one line of JSON with the rate. ``add_bulk``: 1,000 jobs a call, one call at a time, on asyncpg. ``process``: the queue is
filled before; its own worker in batches of 100, no-op processor, until the queue is empty.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta

import asyncpg
from pgqueuer import Job, PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

BULK = 1_000
BATCH = 100
PAYLOAD = {"to": "user@example.com", "n": 1, "body": "x" * 50}


async def add_bulk(queries: Queries, jobs: int) -> None:
    for at in range(0, jobs, BULK):
        count = min(BULK, jobs - at)
        payloads: list[bytes | None] = [json.dumps(PAYLOAD).encode() for _ in range(count)]
        await queries.enqueue(["bench"] * count, payloads, [0] * count)


async def process(connection: asyncpg.Connection, jobs: int) -> float:
    """Seconds until the last job was processed."""
    queue = PgQueuer(AsyncpgDriver(connection))
    done = 0

    @queue.entrypoint("bench")
    async def work(job: Job) -> None:
        nonlocal done
        done += 1

    began = time.perf_counter()
    await queue.run(
        batch_size=BATCH,
        max_concurrent_tasks=10 * BATCH,
        dequeue_timeout=timedelta(seconds=1),
        mode=QueueExecutionMode.drain,
    )
    seconds = time.perf_counter() - began
    assert done == jobs, done
    return seconds


async def measure(verb: str, jobs: int, url: str) -> float:
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    began = time.perf_counter()
    await add_bulk(queries, jobs)
    seconds = time.perf_counter() - began
    if verb == "process":
        seconds = await process(connection, jobs)
    await connection.close()
    return seconds


def main() -> None:
    verb, jobs, url = sys.argv[1:]
    seconds = asyncio.run(measure(verb, int(jobs), url))
    print(json.dumps({"rate": round(int(jobs) / seconds), "seconds": seconds}))


if __name__ == "__main__":
    main()
