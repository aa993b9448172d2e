"""One workload on the PostgreSQL broker in this process, without TCP: python -m benchmarks.broker_load VERB JOBS URL

Prints one line of JSON with the rate. ``add_bulk``: 1,000 jobs a call, one call at a time. ``process``: the queue is filled before;
pulls of 100 jobs, each job acknowledged by a call of its own, until all are completed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time

from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.settings import PostgresStorage

from benchmarks.workloads import BULK, PAYLOAD, RESULT
from bunqueue_core.answer import Answer
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.payload import Packer
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.requests import Ack, Acknowledged, PullRequest
from bunqueue_core.plugins.drivers import OpenContext

#: Claim loops, and jobs that each asks for.
LOOPS = 4
PULLED = 100


async def add_bulk(broker: PostgresBroker, jobs: int) -> None:
    """Add ``jobs`` jobs; payloads are packed on the way, as a client's would be."""
    pack = Packer().pack
    for at in range(0, jobs, BULK):
        await broker.push("bench", [JobSpec("job", pack(PAYLOAD)) for _ in range(min(BULK, jobs - at))])


async def process(broker: PostgresBroker, jobs: int) -> None:
    """Complete all jobs."""
    done = 0
    result = Packer().pack(RESULT)

    async def work() -> None:
        nonlocal done
        while done < jobs:
            deliveries = await broker.pull(PullRequest("bench", PULLED, "bench", wait_ms=50))
            answers: list[Answer[Acknowledged]] = [
                broker.ack([Ack(delivery.job.id, delivery.token, result)]) for delivery in deliveries
            ]
            for answer in answers:
                await answer
            done += len(answers)

    await asyncio.gather(*(work() for _ in range(LOOPS)))
    assert done == jobs, done


async def measure(verb: str, jobs: int, url: str) -> float:
    """Seconds that the workload takes."""
    broker = PostgresBroker(
        PostgresStorage.model_validate({"url": url}), OpenContext(Ports(), "bench", "server", lambda *_, **__: None)
    )
    await broker.start()
    try:
        if verb == "process":
            await add_bulk(broker, jobs)
        gc.collect()
        began = time.perf_counter()
        await (add_bulk if verb == "add_bulk" else process)(broker, jobs)
        return time.perf_counter() - began
    finally:
        await broker.close()


def main() -> None:
    verb, jobs, url = sys.argv[1:]
    seconds = asyncio.run(measure(verb, int(jobs), url))
    print(json.dumps({"rate": round(int(jobs) / seconds), "seconds": seconds}))


if __name__ == "__main__":
    main()
