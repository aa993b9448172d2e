"""Workers that are programs of their own: Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fixtures.server import clean_environment

#: Nothing here takes longer, seconds.
PATIENCE_S = 30.0

#: A job that says that it runs and ends when a line comes in.
_SYNCHRONOUS = """
import sys
from bunqueue_core import Queue, Worker

def process(job):
    print("begun", flush=True)
    sys.stdin.readline()
    print("done", flush=True)

queue = Queue("q", embedded=True)
queue.add("job")
worker = Worker("q", process, embedded=True, concurrency=2, autorun=False)
worker.run()
print("completed", queue.get_job_counts()["completed"])
"""

_ASYNCHRONOUS = """
import asyncio, sys
from bunqueue_core.asyncio import Queue, Worker

async def process(job):
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("done", flush=True)

async def main():
    queue = Queue("q", embedded=True)
    await queue.add("job")
    worker = Worker("q", process, embedded=True, autorun=False)
    await worker.run()
    print("completed", (await queue.get_job_counts())["completed"])

asyncio.run(main())
"""


@contextmanager
def _program(source: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a program whose job has begun."""
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def _finish(process: subprocess.Popen[str], line: str) -> tuple[str, str]:
    return process.communicate(line, timeout=PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("source", [_SYNCHRONOUS, _ASYNCHRONOUS], ids=["threads", "asyncio"])
def test_the_first_signal_lets_running_jobs_end(source: str, number: signal.Signals) -> None:
    with _program(source) as process:
        process.send_signal(number)
        assert process.stderr is not None
        warning = process.stderr.readline()
        out, err = _finish(process, "\n")
    assert "stops when its 1 running jobs have ended; a second signal ends it at once" in warning
    assert (process.returncode, out, err) == (0, "done\ncompleted 1\n", "")


@pytest.mark.parametrize("source", [_SYNCHRONOUS], ids=["threads"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_does_not_wait(source: str, number: signal.Signals) -> None:
    with _program(source) as process:
        process.send_signal(number)
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(number)
        # The job's thread reads until the program is gone.
        code = process.wait(PATIENCE_S)
        assert process.stdout is not None
        assert (code, process.stdout.read(), process.stderr.read()) == (128 + number, "", "")


def test_a_handler_of_the_program_stays() -> None:
    source = """
import os, signal, threading
from bunqueue_core import Worker

signal.signal(signal.SIGTERM, lambda *_: worker.close(timeout=0) or print("its own"))
worker = Worker("q", print, embedded=True)
worker.on("ready", lambda: os.kill(os.getpid(), signal.SIGTERM))
worker.run()
print("after", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    result = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=clean_environment(),
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "its own\nafter True\n", "")


def test_run_in_another_thread_leaves_signals_alone() -> None:
    source = """
import signal, threading
from bunqueue_core import Worker

worker = Worker("q", print, embedded=True)
thread = threading.Thread(target=worker.run)
thread.start()
worker.wait_until_ready()
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
worker.close()
thread.join()
"""
    result = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=clean_environment(),
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")
