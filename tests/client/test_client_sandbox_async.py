"""Processors in processes of their own: what they do there does not reach the worker."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from bunqueue_core.client._acompat import AEvent
from bunqueue_core.client.queue_async import Queue
from bunqueue_core.client.sandbox_async import SandboxedWorker
from bunqueue_core.model.errors import CommandError

#: Nothing here takes longer, seconds.
PATIENCE = 60.0

PROCESSOR = """
import os, time

def processor(job):
    what = job.data["what"]
    if what == "where":
        return {"pid": os.getpid(), "id": job.id, "queue": job.queue, "attempts": job.attempts, "parent": job.parent_id}
    if what == "tell":
        job.log("looking")
        job.progress(40, "half")
        print("printed", flush=True)
        return "told"
    if what == "raise":
        raise ValueError("not like this")
    if what == "fail":
        job.fail("said so")
    if what == "crash":
        os._exit(3)
    if what == "hang":
        time.sleep(3600)
    if what == "odd":
        return object()
"""

ASYNCHRONOUS = """
async def default(job):
    return job.data["what"] * 2
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "processor.py"
    file.write_text(PROCESSOR)
    return file


async def outcome(queue: Queue, what: str, **options: Any) -> Any:
    """The result of a job with one attempt, or the text of its failure."""
    job = await queue.add("job", {"what": what}, **{"attempts": 1, **options})
    try:
        return await job.wait_until_finished(ttl_ms=PATIENCE * 1000)
    except CommandError:
        found = await queue.get_job(job.id)
        assert found is not None
        return found.failed_reason


async def until_gone(pid: int) -> None:
    """Wait until a process has ended."""
    pause = AEvent()
    deadline = time.monotonic() + PATIENCE
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            await pause.wait(0.02)
        pytest.fail("the process is still there")


async def test_a_job_runs_in_another_process(path: Path, target: dict[str, Any], name: str) -> None:
    async with Queue(name, **target) as queue, SandboxedWorker(name, processor=path, **target) as worker:
        await worker.wait_until_ready()
        first = await outcome(queue, "where", job_id=f"{name}-1")
        assert (first["id"], first["queue"], first["attempts"], first["parent"]) == (f"{name}-1", name, 0, None)
        assert first["pid"] != os.getpid()
        assert (await outcome(queue, "where"))["pid"] == first["pid"]
        assert worker.is_running()
        stats = worker.get_stats()
        assert (stats["total"], stats["recycled"], stats["restarts"]) == (1, 0, 0)
    assert not worker.is_running()


async def test_progress_logs_and_failures_are_the_jobs(path: Path, name: str) -> None:
    progress: list[Any] = []
    async with Queue(name, embedded=True) as queue, SandboxedWorker(name, processor=path, embedded=True) as worker:
        worker.on("progress", lambda job, value: progress.append(value))
        assert await outcome(queue, "tell", job_id="told") == "told"
        assert progress == [40]
        assert [line["message"] for line in await queue.get_job_logs("told")] == ["looking"]
        assert await outcome(queue, "raise") == "not like this"
        assert await outcome(queue, "fail") == "said so"
        assert "object" in await outcome(queue, "odd")
        assert worker.get_stats()["restarts"] == 0


async def test_a_crash_costs_an_attempt_and_a_process(path: Path, name: str) -> None:
    errors: list[str] = []
    async with Queue(name, embedded=True) as queue, SandboxedWorker(name, processor=path, embedded=True) as worker:
        worker.on("error", lambda error: errors.append(str(error)))
        first = (await outcome(queue, "where"))["pid"]
        assert await outcome(queue, "crash") == "Worker crashed"
        assert errors == ["Worker crashed"]
        assert (await outcome(queue, "where"))["pid"] != first
        assert worker.get_stats()["restarts"] == 1


async def test_too_many_crashes_end_the_work(path: Path, name: str) -> None:
    done = AEvent()
    worker = SandboxedWorker(name, processor=path, embedded=True, auto_restart=False)

    def heard(error: Exception) -> None:
        if "no more jobs are taken" in str(error):
            done.set()

    worker.on("error", heard)
    async with Queue(name, embedded=True) as queue, worker:
        assert await outcome(queue, "crash") == "Worker crashed"
        assert await done.wait(PATIENCE)
        assert worker.get_stats()["total"] == 0


async def test_an_attempt_that_takes_too_long_is_ended(path: Path, name: str) -> None:
    async with (
        Queue(name, embedded=True) as queue,
        SandboxedWorker(name, processor=path, embedded=True, timeout_ms=200) as worker,
    ):
        # Its process exists when time begins to run, however slow the machine is.
        assert await outcome(queue, "hang") == "Job timed out after 200ms"
        assert worker.get_stats()["busy"] == 0


async def test_stopping_by_force_ends_what_runs(path: Path, name: str) -> None:
    active = AEvent()
    async with Queue(name, embedded=True) as queue:
        worker = SandboxedWorker(name, processor=path, embedded=True, timeout_ms=0, idle_recycle_ms=0)
        worker.on("active", lambda job: active.set())
        worker.start()
        await queue.add("job", {"what": "hang"})
        assert await active.wait(PATIENCE)
        await worker.stop(force=True)
        await worker.stop()


async def test_an_asynchronous_processor(tmp_path: Path, name: str) -> None:
    file = tmp_path / "processor.py"
    file.write_text(ASYNCHRONOUS)
    async with Queue(name, embedded=True) as queue, SandboxedWorker(name, processor=file, embedded=True):
        assert await outcome(queue, "ab") == "abab"


async def test_files_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"Processor file not visible after polling: .*none\.py"):
        SandboxedWorker(name, processor=tmp_path / "none.py", embedded=True).start()
    file = tmp_path / "processor.py"
    file.write_text("x = 1\n")
    async with Queue(name, embedded=True) as queue, SandboxedWorker(name, processor=file, embedded=True):
        assert "has no function named processor or default" in await outcome(queue, "where")


async def test_it_stops_when_it_has_nothing_to_do(path: Path, target: dict[str, Any], name: str) -> None:
    closed = AEvent()
    async with Queue(name, **target) as queue:
        worker = SandboxedWorker(name, processor=path, idle_timeout_ms=300, **target)
        worker.on("closed", closed.set)
        worker.start()
        pid = (await outcome(queue, "where"))["pid"]
        assert await closed.wait(PATIENCE)
        await until_gone(pid)
        assert not worker.is_running()


async def test_it_rests_until_jobs_wait_again(path: Path, target: dict[str, Any], name: str) -> None:
    async with (
        Queue(name, **target) as queue,
        SandboxedWorker(
            name,
            processor=path,
            concurrency=2,
            idle_timeout_ms=200,
            auto_start=True,
            auto_start_poll_ms=100,
            **target,
        ) as worker,
    ):
        pids = set()
        for round in range(1, 3):
            pids.add(pid := (await outcome(queue, "where"))["pid"])
            await until_gone(pid)
            assert len(pids) == round
        assert worker.is_running()
        assert worker.get_stats()["total"] == 2
        # A queue that is paused has nothing to do for anybody.
        await queue.pause()
        job = await queue.add("job", {"what": "where"})
        assert await queue.get_waiting_count() == 0
        await queue.resume()
        assert (await job.wait_until_finished(ttl_ms=PATIENCE * 1000))["pid"] not in pids


async def test_bounds_of_idleness(path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="idle_timeout_ms is -1, and must be at least 0"):
        SandboxedWorker(name, processor=path, embedded=True, idle_timeout_ms=-1)
    with pytest.raises(ValueError, match="auto_start_poll_ms is 0, and must be at least 1"):
        SandboxedWorker(name, processor=path, embedded=True, auto_start_poll_ms=0)
