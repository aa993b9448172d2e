"""What only the asynchronous clients do: loops that come and go, tasks that are cancelled, threads for plain functions."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from bunqueue_core.asyncio import Job, Queue, Worker
from bunqueue_core.model.requests import PullRequest

PATIENCE = 20.0

Target = dict[str, Any]


class Completed:
    """Collects the results of a worker."""

    def __init__(self, worker: Worker, count: int) -> None:
        self._results: list[Any] = []
        self._count = count
        self._done = asyncio.Event()
        worker.on("completed", self._told)

    def _told(self, job: Job, result: Any) -> None:
        self._results.append(result)
        if len(self._results) == self._count:
            self._done.set()

    async def wait(self) -> list[Any]:
        """Wait for all of them."""
        async with asyncio.timeout(PATIENCE):
            await self._done.wait()
        return self._results


async def test_plain_functions_run_in_threads(target: Target, name: str) -> None:
    together = threading.Barrier(3)

    def process(job: Job) -> str:
        together.wait(PATIENCE)
        return threading.current_thread().name

    async with Queue(name, **target) as queue, Worker(name, process, concurrency=3, **target) as worker:
        completed = Completed(worker, 3)
        await queue.add_bulk([{"name": "a"} for _ in range(3)])
        names = await completed.wait()
        assert len(set(names)) == 3
        assert threading.current_thread().name not in names


async def test_jobs_wait_for_each_other(target: Target, name: str) -> None:
    together = asyncio.Barrier(20)

    async def process(job: Job) -> None:
        await together.wait()

    async with Queue(name, **target) as queue, Worker(name, process, concurrency=20, **target) as worker:
        completed = Completed(worker, 60)
        await queue.add_bulk([{"name": "a"} for _ in range(60)])
        assert len(await completed.wait()) == 60


async def test_listeners_may_be_coroutine_functions(target: Target, name: str) -> None:
    heard = asyncio.Event()

    async def listener(job: Job, result: Any) -> None:
        await asyncio.sleep(0)
        heard.set()

    async def process(job: Job) -> None:
        return None

    async with Queue(name, **target) as queue, Worker(name, process, **target) as worker:
        worker.on("completed", listener)
        await queue.add("a", {})
        async with asyncio.timeout(PATIENCE):
            await heard.wait()


async def test_a_cancelled_wait_takes_no_job(target: Target, name: str) -> None:
    async with Queue(name, **target) as queue:
        verbs = await queue._verbs()

        async def wait() -> Any:
            return await verbs.pull(PullRequest(name, 1, "cancelled", 30_000, 3_000))

        task = asyncio.create_task(wait())
        await queue.ping()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        job = await queue.add("a", {})

        async def process(job: Job) -> str:
            return "processed"

        async with Worker(name, process, **target):
            assert await queue.wait_for_job(job.id, 10_000) == "processed"


async def test_a_worker_whose_loop_ends_leaves_its_jobs_to_others(remote: Target, name: str) -> None:
    async with Queue(name, **remote) as queue:
        added = await queue.add("a", {})
        started = asyncio.Event()

        async def process(job: Job) -> None:
            started.set()
            await asyncio.Event().wait()

        worker = Worker(name, process, **remote)
        async with asyncio.timeout(PATIENCE):
            await started.wait()
        (task,) = worker._crew._tasks
        task.cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([task])
        assert await queue.get_state(added.id) == "active"
        assert worker.failed == 0
        await worker.close(force=True)

        async def again(job: Job) -> str:
            return "again"

        async with Worker(name, again, **remote):
            assert await queue.wait_for_job(added.id, 10_000) == "again"


def test_a_queue_outlives_the_loop_that_used_it(remote: Target, name: str) -> None:
    queue = Queue(name, **remote)

    async def first() -> None:
        await queue.add("a", {})
        assert queue._endpoint._own is not None
        await queue._endpoint._own.connect()
        # What a loop leaves open when it ends is its own affair; here it is put in order.
        protocol = queue._endpoint._own._transport._protocol
        assert protocol is not None
        assert protocol.transport is not None
        protocol.transport.abort()
        await asyncio.sleep(0)

    async def second() -> int:
        await queue.add("a", {})
        count = await queue.count()
        await queue.close()
        return count

    asyncio.run(first())
    assert asyncio.run(second()) == 2


async def test_adds_of_one_moment_share_a_write(remote: Target, name: str) -> None:
    async with Queue(name, **remote) as queue:
        jobs = await asyncio.gather(*(queue.add("a", n) for n in range(300)))
        assert len({job.id for job in jobs}) == 300
        assert [job.data for job in await queue.get_waiting(0, -1)] == list(range(300))


async def test_a_worker_made_outside_a_loop_starts_with_run(target: Target, name: str) -> None:
    async def process(job: Job) -> str:
        return "ran"

    made = await asyncio.to_thread(Worker, name, process, **target)
    assert not made.is_running()
    async with Queue(name, **target) as queue:
        running = asyncio.create_task(made.run())
        job = await queue.add("a", {})
        assert await queue.wait_for_job(job.id, 10_000) == "ran"
        await made.close()
        await running
