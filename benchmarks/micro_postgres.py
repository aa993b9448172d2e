"""The PostgreSQL broker in this process, without TCP: adding in bulk, adding one by one, processing, the whole life at once.

Starts a PostgreSQL of its own with ``fsync`` and ``synchronous_commit`` on, opens two brokers on one namespace and prints jobs a
second (medians of ``--rounds``). Payload and result are those of the other benchmarks.

    python benchmarks/micro_postgres.py --jobs 20000 --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable

from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.testing import PostgresServer

from bunqueue_core.answer import Answer
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.payload import Packer
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.requests import Ack, PullRequest
from bunqueue_core.plugins.drivers import OpenContext

PAYLOAD = Packer().pack({"to": "user@example.com", "n": 1, "body": "x" * 50})
RESULT = Packer().pack({"ok": True})

#: Jobs a call of the bulk workload.
BULK = 1_000


class Bench:
    """Two started brokers on one namespace."""

    def __init__(self, brokers: list[PostgresBroker], jobs: int) -> None:
        self.brokers = brokers
        self.jobs = jobs

    async def add_bulk(self, in_flight: int = 2) -> None:
        """Calls of :data:`BULK` jobs, ``in_flight`` at once, over both brokers."""
        batches = iter([[JobSpec("job", PAYLOAD) for _ in range(BULK)] for _ in range(self.jobs // BULK)])

        async def produce(broker: PostgresBroker) -> None:
            for batch in batches:
                await broker.push("bench", batch)

        await asyncio.gather(*(produce(self.brokers[n % len(self.brokers)]) for n in range(in_flight)))

    async def add(self) -> None:
        """One job a call, 100 calls in flight."""
        left = iter(range(self.jobs))

        async def produce(broker: PostgresBroker) -> None:
            for _ in left:
                await broker.push("bench", [JobSpec("job", PAYLOAD)])

        await asyncio.gather(*(produce(self.brokers[n % 2]) for n in range(100)))

    async def process(self, loops: int = 16, count: int = 50) -> None:
        """``loops`` claim loops of ``count`` jobs; every job is acknowledged by a call of its own."""
        done = 0

        async def work(broker: PostgresBroker) -> None:
            nonlocal done
            while done < self.jobs:
                deliveries = await broker.pull(PullRequest("bench", count, "bench", wait_ms=100))
                answers: list[Answer[object]] = [
                    broker.ack([Ack(delivery.job.id, delivery.token, RESULT)]) for delivery in deliveries
                ]
                for answer in answers:
                    await answer
                done += len(answers)

        await asyncio.gather(*(work(self.brokers[n % 2]) for n in range(loops)))
        assert done == self.jobs, done

    async def lifecycle(self) -> None:
        """Adding one by one, 100 in flight, and processing at the same time."""
        await asyncio.gather(self.add(), self.process())


async def measured(work: Awaitable[None]) -> float:
    gc.collect()
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def run(dsn: str, jobs: int, only: str | None) -> dict[str, float]:
    """One round; jobs a second by workload."""
    rates: dict[str, float] = {}
    plans: dict[str, list[Callable[[Bench], Awaitable[None]]]] = {
        "add_bulk": [Bench.add_bulk],
        "add": [Bench.add],
        "process": [Bench.add_bulk, Bench.process],
        "lifecycle": [Bench.lifecycle],
    }
    for name, steps in plans.items():
        if only is not None and name != only:
            continue
        namespace = uuid.uuid4().hex
        brokers = [
            PostgresBroker(
                PostgresStorage.model_validate({"url": dsn, "namespace": namespace}),
                OpenContext(Ports(), "bench", "server", lambda *_, **__: None),
            )
            for _ in range(2)
        ]
        for broker in brokers:
            await broker.start()
        bench = Bench(brokers, jobs)
        for step in steps[:-1]:
            await step(bench)
        rates[name] = jobs / await measured(steps[-1](bench))
        for broker in brokers:
            await broker.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["add_bulk", "add", "process", "lifecycle"])
    parser.add_argument("--dsn", help="an existing database instead of a server of its own")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        dsn = arguments.dsn
        if dsn is None:
            server = PostgresServer(durable=True)
            stack.callback(server.close)
            dsn = server.dsn
        rounds = [asyncio.run(run(dsn, arguments.jobs, arguments.only)) for _ in range(arguments.rounds)]
    for name in rounds[0]:
        values = sorted(round_[name] for round_ in rounds)
        print(f"{name:10} {statistics.median(values):10,.0f} jobs/s   ({values[0]:,.0f} to {values[-1]:,.0f})")


if __name__ == "__main__":
    main()
