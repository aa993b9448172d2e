"""One workload on procrastinate: python procrastinate_load.py VERB JOBS URL

Prints one line of JSON with the rate. ``add_bulk``: 1,000 jobs a call, one call at a time. ``process``: the queue is filled before;
its own worker with a concurrency of 50, no-op task, until the queue is empty.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import procrastinate

BULK = 1_000
CONCURRENCY = 50
PAYLOAD = {"to": "user@example.com", "n": 1, "body": "x" * 50}


async def measure(verb: str, jobs: int, url: str) -> float:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=4))
    done = 0

    @app.task(name="bench")
    async def work(**_: object) -> None:
        nonlocal done
        done += 1

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        began = time.perf_counter()
        for at in range(0, jobs, BULK):
            await work.batch_defer_async(*([PAYLOAD] * min(BULK, jobs - at)))
        seconds = time.perf_counter() - began
        if verb == "process":
            began = time.perf_counter()
            await app.run_worker_async(wait=False, concurrency=CONCURRENCY, install_signal_handlers=False)
            seconds = time.perf_counter() - began
            assert done == jobs, done
    return seconds


def main() -> None:
    verb, jobs, url = sys.argv[1:]
    seconds = asyncio.run(measure(verb, int(jobs), url))
    print(json.dumps({"rate": round(int(jobs) / seconds), "seconds": seconds}))


if __name__ == "__main__":
    main()
