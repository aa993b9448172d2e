"""One embedded workload of ours in this process: ``python -m benchmarks.embedded VERB JOBS [FILE] [--asyncio]``.

Prints one line of JSON with the rate in jobs a second; start-up is not counted. Adds count until everything is on disk. Without
a file the jobs are in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.workloads import BULK, CONCURRENCY, PAYLOAD, RESULT

QUEUE = "bench"


def bulks(jobs: int) -> Iterator[list[dict[str, Any]]]:
    """What each bulk call is given."""
    for start in range(0, jobs, BULK):
        yield [{"name": "j", "data": PAYLOAD} for _ in range(min(BULK, jobs - start))]


def run_sync(verb: str, jobs: int, path: str | None) -> float:
    """Seconds that a workload took with the synchronous classes."""
    from bunqueue_core import Queue, Worker

    queue = Queue(QUEUE, embedded=True, data_path=path)
    queue.wait_until_ready()
    start = time.perf_counter()
    if verb == "add_bulk":
        for bulk in bulks(jobs):
            queue.add_bulk(bulk)
        flush(queue, path)
    elif verb == "add":
        for _ in range(jobs):
            queue.add("j", PAYLOAD)
        flush(queue, path)
    elif verb == "add_durable":
        for _ in range(jobs):
            queue.add("j", PAYLOAD, durable=True)
    elif verb == "process":
        for bulk in bulks(jobs):
            queue.add_bulk(bulk)
        flush(queue, path)
        left = jobs + (path is not None)
        done = threading.Event()

        def completed(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done.set()

        start = time.perf_counter()
        worker = Worker(QUEUE, lambda _: RESULT, embedded=True, data_path=path, concurrency=CONCURRENCY, autorun=False)
        worker.on("completed", completed)
        worker.start()
        done.wait()
    else:
        raise SystemExit(f"unknown workload {verb}")
    seconds = time.perf_counter() - start
    if verb == "process":
        worker.close()
    queue.close()
    return seconds


def flush(queue: Any, path: str | None) -> None:
    """Wait until everything added so far is on disk: a durable add answers after the commit that holds it and all before."""
    if path is not None:
        queue.add("last", PAYLOAD, durable=True)


async def run_asyncio(verb: str, jobs: int, path: str | None) -> float:
    """Seconds that a workload took with the asyncio classes."""
    from bunqueue_core.asyncio import Queue, Worker

    queue = Queue(QUEUE, embedded=True, data_path=path)
    await queue.wait_until_ready()
    start = time.perf_counter()
    if verb == "add_bulk":
        for bulk in bulks(jobs):
            await queue.add_bulk(bulk)
        await flush_asyncio(queue, path)
    elif verb == "add":
        for _ in range(jobs):
            await queue.add("j", PAYLOAD)
        await flush_asyncio(queue, path)
    elif verb == "add_durable":
        for _ in range(jobs):
            await queue.add("j", PAYLOAD, durable=True)
    elif verb == "process":
        for bulk in bulks(jobs):
            await queue.add_bulk(bulk)
        await flush_asyncio(queue, path)
        left = jobs + (path is not None)
        done = asyncio.Event()

        def completed(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done.set()

        async def process(_: Any) -> Any:
            return RESULT

        start = time.perf_counter()
        worker = Worker(QUEUE, process, embedded=True, data_path=path, concurrency=CONCURRENCY, autorun=False)
        worker.on("completed", completed)
        worker.start()
        await done.wait()
    else:
        raise SystemExit(f"unknown workload {verb}")
    seconds = time.perf_counter() - start
    if verb == "process":
        await worker.close()
    await queue.close()
    return seconds


async def flush_asyncio(queue: Any, path: str | None) -> None:
    """As :func:`flush`."""
    if path is not None:
        await queue.add("last", PAYLOAD, durable=True)


def main() -> None:
    """Run one workload and print its rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["add_bulk", "add", "add_durable", "process"])
    parser.add_argument("jobs", type=int)
    parser.add_argument("path", nargs="?")
    parser.add_argument("--asyncio", action="store_true", help="the asyncio classes instead of the synchronous ones")
    arguments = parser.parse_args()
    if arguments.asyncio:
        seconds = asyncio.run(run_asyncio(arguments.verb, arguments.jobs, arguments.path))
    else:
        seconds = run_sync(arguments.verb, arguments.jobs, arguments.path)
    print(json.dumps({"rate": round(arguments.jobs / seconds), "seconds": round(seconds, 4)}))


if __name__ == "__main__":
    main()
