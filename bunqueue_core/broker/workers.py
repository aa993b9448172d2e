"""The registry of workers: who says that they work, on what, and when they were last heard of. It never influences delivery.

In memory: workers register anew with every connection. Pure data under a clock that is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from bunqueue_core.model.ports import uuid7, wall_clock_ms

#: A worker that is silent for this many ms counts as stale.
DEFAULT_TIMEOUT_MS: Final = 30_000

#: A worker that is silent for this many time-outs is removed by :meth:`WorkerRegistry.sweep`.
TIMEOUTS_UNTIL_REMOVAL: Final = 3

#: Registered workers at most; it bounds memory when workers are registered and never seen again.
MAX_WORKERS: Final = 100_000


#: Numbers of failures at which a worker is told to fail.
TOLD_FAILURES: Final = (5, 10, 25, 50, 100)


@dataclass(slots=True)
class WorkerRecord:
    """One worker. Times in epoch ms; the counters are the worker's own reports. ``session``: the connection it came on."""

    id: str
    name: str
    queues: list[str]
    concurrency: int
    hostname: str
    pid: int
    registered_at: int
    last_seen: int
    session: str | None = None
    active_jobs: int = 0
    processed_jobs: int = 0
    failed_jobs: int = 0
    current_job: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    """Sums over the registry. ``processed`` and ``failed`` count from the server's start; slots are those of active workers."""

    total: int = 0
    active: int = 0
    processed: int = 0
    failed: int = 0
    active_jobs: int = 0
    concurrency_slots: int = 0


@dataclass(slots=True)
class WorkerRegistry:
    """Workers by id, in order of registration.

    Attributes:
        timeout_ms: silence after which a worker is stale.
        now: epoch ms.
        new_id: an id for a worker that names none.
        tell: takes what happens to workers, a name such as ``worker:connected`` and its fields; None while nobody watches.
        removed: takes the id of a worker that has left, for whoever has made it known elsewhere.
    """

    timeout_ms: int = DEFAULT_TIMEOUT_MS
    now: Callable[[], int] = wall_clock_ms
    new_id: Callable[[], str] = uuid7
    tell: Callable[[str, Mapping[str, Any]], None] | None = None
    removed: Callable[[str], object] | None = None
    _workers: dict[str, WorkerRecord] = field(default_factory=dict)
    _by_session: dict[str, set[str]] = field(default_factory=dict)
    _past_processed: int = 0
    _past_failed: int = 0

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[WorkerRecord]:
        return iter(list(self._workers.values()))

    def get(self, id: str) -> WorkerRecord | None:
        """The worker of that id."""
        return self._workers.get(id)

    def register(
        self,
        name: str,
        queues: list[str],
        *,
        id: str | None = None,
        concurrency: int = 1,
        hostname: str | None = None,
        pid: int | None = None,
        started_at: int | None = None,
        session: str | None = None,
    ) -> WorkerRecord:
        """Add a worker, or refresh the one of that ``id``.

        A known worker keeps its name, registration time, counters and connection; queues, concurrency and, where given, host
        name and process id are replaced.
        """
        now = self.now()
        worker = self._workers.get(id) if id else None
        if worker is not None:
            worker.queues = list(queues)
            worker.concurrency = concurrency
            worker.last_seen = now
            worker.hostname = hostname or worker.hostname
            worker.pid = pid or worker.pid
            self._tell_connected(worker)
            return worker
        if len(self._workers) >= MAX_WORKERS:
            self._remove(min(self._workers.values(), key=lambda known: known.last_seen))
        worker = WorkerRecord(
            id=id or self.new_id(),
            name=name,
            queues=list(queues),
            concurrency=concurrency,
            hostname=hostname or "unknown",
            pid=pid or 0,
            registered_at=now if started_at is None else started_at,
            last_seen=now,
            session=session,
        )
        self._workers[worker.id] = worker
        if session is not None:
            self._by_session.setdefault(session, set()).add(worker.id)
        self._tell_connected(worker)
        return worker

    def _tell_connected(self, worker: WorkerRecord) -> None:
        if self.tell is not None:
            fields = {"workerId": worker.id, "name": worker.name, "queues": list(worker.queues)}
            self.tell("worker:connected", {**fields, "hostname": worker.hostname, "pid": worker.pid})

    def heartbeat(
        self, id: str, *, active_jobs: int | None = None, processed: int | None = None, failed: int | None = None
    ) -> bool:
        """Note a sign of life and, where given, the worker's counters (absolute). False for an unknown worker."""
        worker = self._workers.get(id)
        if worker is None:
            return False
        worker.last_seen = self.now()
        busy, failures = worker.active_jobs > 0, worker.failed_jobs
        if active_jobs is not None:
            worker.active_jobs = active_jobs
        if processed is not None:
            worker.processed_jobs = processed
        if failed is not None:
            worker.failed_jobs = failed
        if self.tell is not None:
            self.tell("worker:heartbeat", {"workerId": id})
            if busy and worker.active_jobs == 0:
                self.tell("worker:idle", {"workerId": id, "processedJobs": worker.processed_jobs})
            if any(failures < mark <= worker.failed_jobs for mark in TOLD_FAILURES):
                self.tell("worker:error", _failing(worker))
        return True

    def unregister(self, id: str) -> bool:
        """Remove a worker. False for an unknown one."""
        worker = self._workers.get(id)
        if worker is None:
            return False
        self._remove(worker)
        if self.tell is not None:
            self.tell("worker:disconnected", {"workerId": id})
        return True

    def remove_session(self, session: str) -> int:
        """Remove the workers that first registered on a connection which has closed. Gives their number."""
        ids = self._by_session.pop(session, None)
        if not ids:
            return 0
        for id in ids:
            worker = self._workers[id]
            self._remove(worker)
            if self.tell is not None:
                self.tell("worker:disconnected", {"workerId": id, "name": worker.name, "clientId": session})
        return len(ids)

    def sweep(self) -> int:
        """Remove workers that have been silent for long. Gives their number."""
        limit = self.now() - TIMEOUTS_UNTIL_REMOVAL * self.timeout_ms
        silent = [worker for worker in self._workers.values() if worker.last_seen < limit]
        for worker in silent:
            self._remove(worker)
            if self.tell is not None:
                self.tell("worker:removed-stale", {"workerId": worker.id, "name": worker.name})
        return len(silent)

    def status(self, worker: WorkerRecord) -> Literal["active", "stale"]:
        """Whether the worker was heard of within the time-out."""
        return "active" if self.now() - worker.last_seen < self.timeout_ms else "stale"

    def has_active(self, queue: str) -> bool:
        """Whether an active worker is registered for ``queue``."""
        return any(queue in worker.queues and self.status(worker) == "active" for worker in self._workers.values())

    def totals(self, others: Sequence[WorkerRecord] = ()) -> WorkerTotals:
        """Sums over all workers, and over ``others`` that another registry keeps."""
        active = 0
        slots = 0
        active_jobs = 0
        processed, failed = self._past_processed, self._past_failed
        for worker in (*self._workers.values(), *others):
            active_jobs += worker.active_jobs
            processed += worker.processed_jobs
            failed += worker.failed_jobs
            if self.status(worker) == "active":
                active += 1
                slots += worker.concurrency
        return WorkerTotals(len(self._workers) + len(others), active, processed, failed, active_jobs, slots)

    def _remove(self, worker: WorkerRecord) -> None:
        del self._workers[worker.id]
        # The sums cover the server's whole life, so what a worker did stays counted when it leaves.
        self._past_processed += worker.processed_jobs
        self._past_failed += worker.failed_jobs
        if self.removed is not None:
            self.removed(worker.id)
        if worker.session is not None:
            mine = self._by_session.get(worker.session)
            if mine is not None:
                mine.discard(worker.id)
                if not mine:
                    del self._by_session[worker.session]


def _failing(worker: WorkerRecord) -> dict[str, Any]:
    done = worker.processed_jobs + worker.failed_jobs
    return {
        "workerId": worker.id,
        "name": worker.name,
        "failedJobs": worker.failed_jobs,
        "processedJobs": worker.processed_jobs,
        "failureRate": round(worker.failed_jobs / done, 2) if done else 0,
    }
