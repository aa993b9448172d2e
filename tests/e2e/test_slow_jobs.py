"""A live, slow job is never started twice, and what a dead worker had runs elsewhere within one lease; with a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

from fixtures.server import clean_environment, running_server

import bunqueue_core as blocking
import bunqueue_core.asyncio as bunqueue

#: Handlers that run at once in each worker.
CONCURRENCY = 50

#: Length of a lease, and of a handler.
LEASE_MS = 2_000
HANDLER_S = 20.0

#: When handlers block the event loop for a second, seconds after they began: now and then, and once one after the other for
#: longer than a lease, which nothing that runs on the loop could bridge.
BLOCKS_AT_S = (2.0, 5.0, 9.0, 9.0, 9.0, 9.0, 14.0, 17.5)

#: What a worker process does: take a job, say so after a renewal, and hang.
VICTIM = """
import sys, time
from bunqueue_core import Worker

def hang(job):
    time.sleep(1.5)
    print(job.id, flush=True)
    time.sleep(600)

Worker("victim", hang, host="127.0.0.1", port=int(sys.argv[1]), lock_ttl_ms=2000, autorun=False).run()
"""


async def test_a_slow_job_is_started_once() -> None:
    starts: Counter[str] = Counter()
    stolen: list[str] = []
    counting = threading.Lock()
    blocks = list(BLOCKS_AT_S)

    def begin(job: Any) -> float:
        with counting:
            starts[job.id] += 1
        return time.monotonic() + HANDLER_S

    def plain(job: Any) -> str:
        time.sleep(begin(job) - time.monotonic())
        return "plain"

    async def patient(job: Any) -> str:
        await asyncio.sleep(begin(job) - time.monotonic())
        return "patient"

    async def rude(job: Any) -> str:
        end = begin(job)
        if blocks:
            await asyncio.sleep(blocks.pop())
            time.sleep(1.0)  # noqa: ASYNC251 - that is what users do
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        return "rude"

    with running_server() as server:
        address: dict[str, Any] = {"host": "127.0.0.1", "port": server.port}
        options: dict[str, Any] = {**address, "concurrency": CONCURRENCY, "lock_ttl_ms": LEASE_MS}
        queues = {name: bunqueue.Queue(name, **address) for name in ("async-rude", "async-plain", "plain", "patient")}
        workers: list[Any] = [
            blocking.Worker("plain", plain, **options),
            blocking.Worker("patient", patient, **options),
            bunqueue.Worker("async-plain", plain, **options),
            bunqueue.Worker("async-rude", rude, **options),
        ]
        losses: list[Any] = []
        for worker in workers:
            worker.on("error", losses.append)
        # Whatever is delivered a second time finds somebody who takes it, in a thread of its own.
        for name, queue in queues.items():
            await queue.add_bulk([{"name": "slow", "data": n} for n in range(CONCURRENCY)])
            while (await queue.get_job_counts())["active"] < CONCURRENCY:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            workers.append(blocking.Worker(name, lambda job: stolen.append(job.id), **address))
        for name, queue in queues.items():
            while (counts := await queue.get_job_counts())["active"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert counts["completed"] == CONCURRENCY, (name, counts)
            await queue.close()
        for worker in workers:
            closing = worker.close()
            if closing is not True:
                await closing
    assert blocks == []
    assert stolen == []
    assert sum(starts.values()) == len(starts) == len(queues) * CONCURRENCY
    assert losses == []


async def test_what_was_delivered_to_a_blocked_loop_and_ran_elsewhere_is_not_started() -> None:
    started: list[str] = []
    elsewhere = threading.Event()
    last = asyncio.Event()

    with running_server() as server:
        address: dict[str, Any] = {"host": "127.0.0.1", "port": server.port}

        def meanwhile() -> None:
            """In a thread: a job goes to the pull that waits, and after its lease to another worker."""
            queue = blocking.Queue("q", **address)
            job = queue.add("late", {})
            while job.get_state() != "active":
                time.sleep(0.01)
            other = blocking.Worker("q", lambda job: elsewhere.set(), **address)
            elsewhere.wait(30)
            other.close()
            queue.add("last", {})
            queue.close()

        async def block(job: Any) -> None:
            started.append(job.name)
            if job.name == "first":
                await asyncio.sleep(0.2)  # until a pull waits again
                thread = threading.Thread(target=meanwhile)
                thread.start()
                thread.join()  # blocks the event loop all the time
            else:
                last.set()

        worker = bunqueue.Worker("q", block, concurrency=2, lock_ttl_ms=500, **address)
        queue = bunqueue.Queue("q", **address)
        await queue.add("first", {})
        await asyncio.wait_for(last.wait(), 30)
        await worker.close()
        await queue.close()
    assert started == ["first", "last"]


def test_a_dead_workers_job_runs_elsewhere_within_one_lease() -> None:
    with running_server() as server:
        address: dict[str, Any] = {"host": "127.0.0.1", "port": server.port}
        queue = blocking.Queue("victim", **address)
        id = queue.add("hang", {}).id
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(server.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        try:
            assert victim.stdout is not None
            with victim.stdout:
                assert (
                    victim.stdout.readline().strip() == id
                )  # it has renewed the lease: its connection's end alone frees nothing
                again = threading.Event()
                began: list[float] = []

                def heir(job: Any) -> None:
                    began.append(time.monotonic())
                    again.set()

                worker = blocking.Worker("victim", heir, **address)
                died = time.monotonic()
                os.kill(victim.pid, signal.SIGKILL)
                assert again.wait(30)
        finally:
            victim.kill()
            victim.wait()
        worker.close()
        queue.close()
    # A lease is what it may take; beyond that, only what a busy machine needs to deliver it.
    assert began[0] - died < LEASE_MS / 1000 + 1.0
