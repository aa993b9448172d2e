"""The official Python SDK against a server process: ten thousand jobs through their whole life, and an orderly stop under it."""

from __future__ import annotations

import concurrent.futures
import threading
from pathlib import Path
from typing import Any

import pytest
from bunqueue import CommandError, Queue, Worker
from fixtures.server import running_server

JOBS = 10_000
PER_CALL = 1_000
CONCURRENCY = 50

#: Seconds for the whole of one test's work.
PATIENCE_S = 90.0


class Tally:
    """Counts outcomes that come from many threads and says when there are enough."""

    def __init__(self, expected: int) -> None:
        self._lock = threading.Lock()
        self._expected = expected
        self.runs: dict[str, int] = {}
        self.complete = threading.Event()

    def ran(self, id: str) -> None:
        with self._lock:
            self.runs[id] = self.runs.get(id, 0) + 1

    def completed(self, *_: Any) -> None:
        with self._lock:
            self._expected -= 1
            if self._expected == 0:
                self.complete.set()


@pytest.mark.timeout(240)
def test_ten_thousand_jobs(tmp_path: Path) -> None:
    with running_server(tmp_path / "queue.db") as server:
        queue = Queue("work", host="127.0.0.1", port=server.port)
        ids: list[str] = []
        for start in range(0, JOBS, PER_CALL):
            jobs = [{"name": "square", "data": {"n": n}} for n in range(start, start + PER_CALL)]
            ids += queue.add_bulk(jobs)
        assert len(set(ids)) == JOBS
        assert queue.get_job_counts()["waiting"] == JOBS

        tally = Tally(JOBS)

        def square(job: Any) -> dict[str, int]:
            tally.ran(job.id)
            return {"n": job.data["n"], "square": job.data["n"] ** 2}

        worker = Worker(
            "work", square, host="127.0.0.1", port=server.port, concurrency=CONCURRENCY, batch_size=100, autorun=False
        )
        worker.on("completed", tally.completed)
        worker.start()
        assert tally.complete.wait(PATIENCE_S), f"{sum(tally.runs.values())} of {JOBS} ran"
        assert worker.close(timeout=30)
        assert set(tally.runs) == set(ids)
        assert set(tally.runs.values()) == {1}

        counts = queue.get_job_counts()
        assert (counts["completed"], counts["waiting"], counts["active"], counts["failed"]) == (JOBS, 0, 0, 0)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            results = list(pool.map(queue.get_result, ids))
        assert results == [{"n": n, "square": n**2} for n in range(JOBS)]
        assert server.stop() == 0

    # What was read back is on disk, too.
    with running_server(tmp_path / "queue.db") as server:
        queue = Queue("work", host="127.0.0.1", port=server.port)
        assert queue.get_job_counts()["completed"] == JOBS
        assert queue.get_result(ids[-1]) == {"n": JOBS - 1, "square": (JOBS - 1) ** 2}
        assert server.stop() == 0


def test_retries_delays_and_dead_letters() -> None:
    with running_server() as server:
        queue = Queue("mixed", host="127.0.0.1", port=server.port)
        tally = Tally(2)
        attempts: dict[str, int] = {}

        def process(job: Any) -> str:
            kind: str = job.data["kind"]
            attempts[kind] = attempts.get(kind, 0) + 1
            if kind == "hopeless" or attempts[kind] < 2:
                raise RuntimeError(f"{kind} failed")
            return kind

        worker = Worker(
            "mixed", process, host="127.0.0.1", port=server.port, concurrency=4, poll_timeout_ms=1_000, autorun=False
        )
        worker.on("completed", tally.completed)
        worker.start()
        again = queue.add("job", {"kind": "again"}, attempts=3, backoff=10)
        hopeless = queue.add("job", {"kind": "hopeless"}, attempts=2, backoff=10)
        later = queue.add("job", {"kind": "later"}, delay=200, attempts=3, backoff=10)
        assert tally.complete.wait(PATIENCE_S)
        assert queue.wait_for_job(again.id) == "again"
        assert queue.wait_for_job(later.id) == "later"
        assert attempts["again"] == attempts["later"] == 2
        with pytest.raises(CommandError, match="failed before completion"):
            queue.wait_for_job(hopeless.id, timeout_ms=10_000)
        assert queue.get_state(hopeless.id) == "failed"
        assert [job.id for job in queue.get_failed()] == [hopeless.id]
        assert worker.close(timeout=30)
        assert server.stop() == 0


def test_a_stop_lets_workers_finish(tmp_path: Path) -> None:
    with running_server(tmp_path / "queue.db") as server:
        queue = Queue("slow", host="127.0.0.1", port=server.port)
        begun, go_on = threading.Event(), threading.Event()
        runs: list[str] = []
        tally = Tally(1)

        def slow(job: Any) -> str:
            runs.append(job.id)
            begun.set()
            go_on.wait(PATIENCE_S)
            return "finished"

        worker = Worker("slow", slow, host="127.0.0.1", port=server.port, concurrency=1, batch_size=1, autorun=False)
        worker.on("completed", tally.completed)
        worker.start()
        first, second = queue.add("first", {}), queue.add("second", {})
        assert begun.wait(PATIENCE_S)
        server.terminate()
        # It takes in nothing more, and waits for what is out.
        with pytest.raises(CommandError, match="shutting down"):
            while server.process.poll() is None:
                queue.add("late", {})
        assert server.process.poll() is None
        go_on.set()
        assert tally.complete.wait(PATIENCE_S)
        assert server.wait() == 0
        worker.close(timeout=30)

    with running_server(tmp_path / "queue.db") as server:
        queue = Queue("slow", host="127.0.0.1", port=server.port)
        assert queue.get_state(first.id) == "completed"
        assert queue.get_result(first.id) == "finished"
        assert queue.get_state(second.id) == "waiting"
        job = queue.get_job(second.id)
        assert job is not None
        assert job.raw["attempts"] == 0
        assert runs == [first.id]
        assert server.stop() == 0
