"""Brokers in processes of their own: shared work, a process that is killed, one that is stopped and comes back."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from bunqueue_postgres.broker import PostgresBroker

from bunqueue_core.model.errors import LeaseLost
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import Ack, PullRequest

OpenBroker = Callable[..., PostgresBroker]


class Process:
    """A broker process (see ``broker_process.py``)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    async def line(self) -> str:
        async with asyncio.timeout(30):
            return (await self._stdout.readline()).decode().rstrip("\n")

    def say(self, line: str) -> None:
        self._stdin.write(f"{line}\n".encode())

    async def told(self) -> list[str]:
        """Lines up to the empty one."""
        lines = []
        while line := await self.line():
            lines.append(line)
        return lines

    async def end(self) -> None:
        self._stdin.close()
        async with asyncio.timeout(30):
            assert await self.process.wait() == 0


@pytest.fixture
async def spawn(open_broker: OpenBroker) -> AsyncIterator[Callable[..., Any]]:
    """Starts broker processes of the test's namespace; gives them once they are ready."""
    settings = open_broker().settings
    processes: list[Process] = []

    async def spawned(broker_id: str, lease_ms: int = 1_000) -> Process:
        process = Process(
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).parent / "broker_process.py"),
                *(settings.url.get_secret_value(), settings.namespace, broker_id, str(lease_ms)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        )
        processes.append(process)
        assert await process.line() == "ready"
        return process

    yield spawned
    for process in processes:
        if process.process.returncode is None:
            process.process.kill()
            await process.process.wait()


@pytest.fixture
async def broker(open_broker: OpenBroker) -> AsyncIterator[PostgresBroker]:
    broker = open_broker()
    await broker.start()
    yield broker
    await broker.close()


async def push(broker: PostgresBroker, count: int) -> list[str]:
    return (await broker.push("q", [JobSpec("n", b"\x01") for _ in range(count)])).ids


async def until_waiting(broker: PostgresBroker, count: int) -> None:
    async with asyncio.timeout(20):
        while (await broker.counts("q")).waiting < count:  # noqa: ASYNC110 - another process's leases have to end
            await asyncio.sleep(0.05)


async def test_processes_share_the_work(broker: PostgresBroker, spawn: Any) -> None:
    ids = await push(broker, 1_000)
    workers = [await spawn(f"worker-{n}") for n in range(2)]
    for worker in workers:
        worker.say("work 1000")
    done = [id for worker in workers for id in await worker.told()]
    assert Counter(done) == Counter(ids)
    assert (await broker.counts("q")).completed == 1_000
    for worker in workers:
        await worker.end()


async def test_the_jobs_of_a_killed_process_run_elsewhere(broker: PostgresBroker, spawn: Any) -> None:
    ids = await push(broker, 60)
    victim = await spawn("victim")
    victim.say("pull 24 1500")
    held = dict(line.split() for line in await victim.told())
    assert len(held) == 24
    victim.process.send_signal(signal.SIGKILL)
    await victim.process.wait()
    survivor = await spawn("survivor")
    survivor.say("work 60")  # the 36 that are free, and the others once they are: within the lease and one scan
    done = await survivor.told()
    assert Counter(done) == Counter(ids)
    for id, token in held.items():
        acknowledged = await broker.ack([Ack(id, token)])
        assert list(acknowledged.errors) == [0]
        view = await broker.job(id)
        assert view is not None
        assert (view.job.attempts, view.job.stall_count) == (1, 1)
    await survivor.end()


async def test_a_process_that_was_stopped_past_its_lease_is_fenced(broker: PostgresBroker, spawn: Any) -> None:
    await push(broker, 5)
    sleeper = await spawn("sleeper")
    sleeper.say("pull 5 700")
    held = dict(line.split() for line in await sleeper.told())
    sleeper.process.send_signal(signal.SIGSTOP)
    await until_waiting(broker, 5)
    deliveries = await broker.pull(PullRequest("q", 5, "w"))
    sleeper.process.send_signal(signal.SIGCONT)
    for id, token in held.items():
        with pytest.raises(LeaseLost):
            await broker.ack([Ack(id, token)])
    await sleeper.end()  # its orderly stop must not touch what is not its own any more
    assert await broker.states(list(held)) == ["active"] * 5
    assert (await broker.ack([Ack(d.job.id, d.token) for d in deliveries])).errors == {}
