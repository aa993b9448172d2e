"""What only the synchronous clients do: many threads on one connection, and a worker's threads."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from client_servers import ScriptedServer, obliging

from bunqueue_core.client import Connection, Job, Queue, Worker
from bunqueue_core.client._crew_threads import WATCH_S, ThreadCrew
from bunqueue_core.client._session import ConnectionOptions
from bunqueue_core.client._transport_threads import ThreadTransport
from bunqueue_core.model.errors import ConnectionClosedError

PATIENCE = 20.0

Target = dict[str, Any]


class Done:
    """Counts what a worker completes."""

    def __init__(self, worker: Worker, expected: int) -> None:
        self.results: list[Any] = []
        self._expected = expected
        self._event = threading.Event()
        worker.on("completed", self._completed)

    def _completed(self, job: Job, result: Any) -> None:
        self.results.append(result)
        if len(self.results) == self._expected:
            self._event.set()

    def wait(self) -> list[Any]:
        """Wait for all; their results."""
        assert self._event.wait(PATIENCE), f"only {len(self.results)} completed"
        return self.results


def test_threads_share_a_connection(remote: Target, name: str) -> None:
    with Queue(name, **remote) as queue, ThreadPoolExecutor(8) as threads:
        jobs = list(threads.map(lambda n: queue.add("a", {"n": n}), range(400)))
        assert len({job.id for job in jobs}) == 400
        fetched = list(threads.map(lambda job: queue.get_job(job.id), jobs))
        assert [job.data["n"] for job in fetched if job is not None] == list(range(400))
        assert queue.count() == 400


def test_a_thread_that_waits_long_does_not_hold_up_the_others(remote: Target, name: str) -> None:
    with Connection(**remote) as connection, Queue(name, connection=connection) as queue:
        job = queue.add("a", {})
        waiting = threading.Thread(target=lambda: results.append(queue.wait_for_job(job.id, 20_000)))
        results: list[Any] = []
        waiting.start()
        for _ in range(50):
            assert queue.count() == 1
        with Worker(name, lambda job: "done", **remote):
            waiting.join(PATIENCE)
        assert results == ["done"]


def test_a_server_that_takes_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection("127.0.0.1", listener.getsockname()[1], command_timeout=0.2)
        with connection, pytest.raises(ConnectionClosedError, match="send failed"):
            connection.call({"cmd": "Some", "data": b"x" * 60_000_000})
        assert not connection.connected


def test_a_connection_that_the_server_closed_meanwhile_is_made_anew(scripted: Callable[..., ScriptedServer]) -> None:
    now = 0.0
    server = scripted(obliging)
    transport = ThreadTransport(ConnectionOptions.checked(**server.address), lambda: now)
    assert transport.submit({"cmd": "Some"}).result()["ok"]
    server.connections[0].drop()
    server.connections[0].thread.join(PATIENCE)
    now = 10.0
    assert transport.submit({"cmd": "Some"}).result()["ok"]
    assert transport.generation == 2
    transport.close()


def test_a_slow_job_does_not_hold_up_those_behind_it(target: Target, name: str) -> None:
    others = threading.Event()
    count = 0

    def process(job: Job) -> str:
        nonlocal count
        if job.data == 0:
            assert others.wait(PATIENCE)
            return "slow"
        count += 1
        if count == 30:
            others.set()
        return "quick"

    with Queue(name, **target) as queue, Worker(name, process, concurrency=8, **target) as worker:
        done = Done(worker, 31)
        queue.add_bulk([{"name": "a", "data": n} for n in range(31)])
        assert sorted(done.wait()) == ["quick"] * 30 + ["slow"]


def test_jobs_may_wait_for_each_other(target: Target, name: str) -> None:
    together = threading.Barrier(10)

    def process(job: Job) -> int:
        together.wait(PATIENCE)
        return job.data

    with Queue(name, **target) as queue, Worker(name, process, concurrency=10, **target) as worker:
        done = Done(worker, 40)
        queue.add_bulk([{"name": "a", "data": n} for n in range(40)])
        assert sorted(done.wait()) == list(range(40))


def test_quick_and_slow_jobs_by_turns(target: Target, name: str) -> None:
    lock = threading.Lock()
    running = most = 0

    def process(job: Job) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if job.data % 40 == 0:
            threading.Event().wait(3 * WATCH_S)
        with lock:
            running -= 1
        return job.data

    with Queue(name, **target) as queue, Worker(name, process, concurrency=6, **target) as worker:
        done = Done(worker, 800)
        queue.add_bulk([{"name": "a", "data": n} for n in range(800)])
        assert sorted(done.wait()) == list(range(800))
        assert most <= 6


def test_coroutine_functions_run_on_a_loop_of_the_worker(target: Target, name: str) -> None:
    loops: set[int] = set()
    arrived = 0
    everybody = asyncio.Event()

    async def process(job: Job) -> int:
        nonlocal arrived
        loops.add(id(asyncio.get_running_loop()))
        arrived += 1
        if arrived == 5:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), PATIENCE)
        return job.data

    with Queue(name, **target) as queue, Worker(name, process, concurrency=5, **target) as worker:
        done = Done(worker, 12)
        queue.add_bulk([{"name": "a", "data": n} for n in range(12)])
        assert sorted(done.wait()) == list(range(12))
        assert len(loops) == 1


def test_a_function_may_return_a_coroutine(target: Target, name: str) -> None:
    async def later(value: int) -> int:
        return value + 1

    with Queue(name, **target) as queue, Worker(name, lambda job: later(job.data), **target) as worker:
        done = Done(worker, 1)
        queue.add("a", 1)
        assert done.wait() == [2]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_job_may_close_its_worker(target: Target, name: str, concurrency: int) -> None:
    answers: list[bool] = []

    def process(job: Job) -> str:
        answers.append(worker.close())
        return "last words"

    with Queue(name, **target) as queue:
        worker = Worker(name, process, concurrency=concurrency, **target)
        done = Done(worker, 1)
        queue.add("a", {})
        assert done.wait() == ["last words"]
        assert worker.close(PATIENCE) is True
        assert answers == [False]


def test_a_listener_may_close_its_worker(target: Target, name: str) -> None:
    answers: list[bool] = []
    closed = threading.Event()
    with Queue(name, **target) as queue:
        worker = Worker(name, lambda job: None, **target)
        worker.on("closed", closed.set)
        worker.on("completed", lambda job, result: answers.append(worker.close()))
        queue.add("a", {})
        assert closed.wait(PATIENCE)
        assert answers == [False]


def test_a_forced_close_does_not_wait_for_the_only_thread(target: Target, name: str) -> None:
    started, release = threading.Event(), threading.Event()

    def process(job: Job) -> None:
        started.set()
        release.wait(PATIENCE)

    with Queue(name, **target) as queue:
        worker = Worker(name, process, concurrency=1, **target)
        queue.add("a", {})
        assert started.wait(PATIENCE)
        assert worker.close(0.01) is False
        assert worker.close(PATIENCE, force=True) is True
        release.set()


def test_a_thread_keeps_its_turn_only_while_it_gets_on() -> None:
    """The crew alone: the loop moves to another thread when the one that has it is stuck, and only then."""
    stuck, freed, moved = threading.Event(), threading.Event(), threading.Event()
    threads: list[str] = []

    def process(job: str) -> None:
        threads.append(threading.current_thread().name)
        if job == "stuck":
            stuck.set()
            assert freed.wait(PATIENCE)

    turns = iter([["quick", "quick"], ["stuck", "quick"]])

    def work() -> bool:
        for jobs in turns:
            if not crew.start(jobs):
                return False
        moved.set()
        return True

    crew = ThreadCrew("crew", process, process, work, lambda: 2)
    crew.begin()
    assert stuck.wait(PATIENCE)
    while not moved.is_set():
        crew.watch()
    assert len(threads) >= 3
    freed.set()
    crew.close(False)
    assert len(set(threads[:3])) == 1


def test_a_forked_child_connects_anew(remote: Target, name: str) -> None:
    with Queue(name, **remote) as queue:
        queue.add("a", {"who": "parent"})
        child = os.fork()
        if child == 0:
            try:
                queue.add("a", {"who": "child"})
                os._exit(0 if queue.count() == 2 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert queue.count() == 2
        assert queue._endpoint._own is not None
        assert queue._endpoint._own.generation == 1


def test_a_forked_child_has_embedded_brokers_of_its_own(tmp_path: Path, name: str) -> None:
    with Queue(name, data_path=tmp_path / "parent.db") as queue:
        queue.add("a", {})
        child = os.fork()
        if child == 0:
            try:
                with Queue(name, data_path=tmp_path / "child.db") as own:
                    own.add("a", {}, durable=True)
                    os._exit(0 if own.count() == 1 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert queue.count() == 1
