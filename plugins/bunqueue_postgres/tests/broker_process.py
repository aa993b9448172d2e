"""A broker in a process of its own, driven through its standard input: each line is a verb with its arguments.

Lines: ``pull COUNT LOCK_TTL_MS`` prints ``id token`` of each delivery, then an empty line; ``work COUNT`` pulls and completes
until it has completed COUNT jobs or finds none for 3 s, then prints their ids and an empty line. End of input closes the broker.
"""

from __future__ import annotations

import asyncio
import sys

from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.settings import PostgresStorage

from bunqueue_core.model.ports import Ports
from bunqueue_core.model.requests import Ack, PullRequest
from bunqueue_core.plugins.drivers import OpenContext


async def main(dsn: str, namespace: str, broker_id: str, lease_ms: str) -> None:
    settings = PostgresStorage.model_validate(
        {
            "url": dsn,
            "namespace": namespace,
            "broker_id": broker_id,
            "lease_duration_ms": int(lease_ms),
            "poll_interval_ms": 50,
        }
    )
    broker = PostgresBroker(settings, OpenContext(Ports(), "0", "server", lambda *_, **__: None))
    await broker.start()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        verb, *arguments = line.split()
        if verb == "pull":
            request = PullRequest("q", int(arguments[0]), broker_id, lock_ttl_ms=int(arguments[1]))
            for delivery in await broker.pull(request):
                print(delivery.job.id, delivery.token)
        elif verb == "work":
            done = 0
            while done < int(arguments[0]):
                deliveries = await broker.pull(PullRequest("q", 20, broker_id, wait_ms=3_000))
                if not deliveries:
                    break
                acknowledged = await broker.ack([Ack(d.job.id, d.token) for d in deliveries])
                assert not acknowledged.errors
                for delivery in deliveries:
                    print(delivery.job.id)
                done += len(deliveries)
        print(flush=True)
    await broker.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
