"""Numbers, health, and the registry of workers."""

from __future__ import annotations

import gc
import os
import time
from typing import Annotated, Any

from bunqueue_core.broker.workers import WorkerRecord
from bunqueue_core.commands.registry import Workforce, workforce
from bunqueue_core.commands.replies import then
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import (
    ABSENT,
    ListCheck,
    Members,
    NumberCheck,
    Reply,
    Text,
    TextCheck,
    Value,
    command,
)
from bunqueue_core.model.errors import CapabilityError, NotFound, ValidationError
from bunqueue_core.model.options import SAFE_INTEGER
from bunqueue_core.model.requests import Health, QueueMetrics
from bunqueue_core.model.rules import check_queue_name

Amount = Annotated[int | None, NumberCheck(0)]


@command(
    "Stats",
    returns={"stats": "{waiting, active, delayed, dlq, completed, failed, uptime (ms), pushPerSec, pullPerSec}"},
)
def stats(session: Session) -> Reply:
    """Jobs of all queues by state, and rates."""
    numbers = session.broker.statistics()
    meters = session.services.meters
    return {
        "stats": {
            "waiting": numbers.get("waiting", 0) + numbers.get("paused", 0),
            "active": numbers.get("active", 0),
            "delayed": numbers.get("delayed", 0),
            "dlq": numbers.get("dlq", 0),
            "completed": numbers.get("completed", 0),
            "failed": numbers.get("totalFailed", 0),
            "uptime": int((time.monotonic() - meters.started_at) * 1000),
            "pushPerSec": meters.pushed.read(int(numbers.get("totalPushed", 0))),
            "pullPerSec": meters.pulled.read(int(numbers.get("totalPulled", 0))),
        }
    }


@command(
    "Metrics",
    returns={
        "metrics": "{totalPushed, totalPulled, totalCompleted, totalFailed, avgLatencyMs, avgProcessingMs, memoryUsageMb, "
        "sqliteSizeMb, activeConnections} (without queue and type)",
        "data": "{meta: {count, prevTS, prevCount}, data: list of numbers, count} (with them)",
    },
)
def metrics(session: Session, queue: Value = ABSENT, type_: Value = ABSENT, start: Value = 0, end: Value = -1) -> Reply:
    """Totals since the server's start and mean latencies; or jobs of one queue by minute, newest first."""
    if queue is not ABSENT or type_ is not ABSENT:
        return _queue_metrics(session, queue, type_, start, end)
    numbers = session.broker.statistics()
    latencies = session.services.meters.latencies
    return {
        "metrics": {
            "totalPushed": numbers.get("totalPushed", 0),
            "totalPulled": numbers.get("totalPulled", 0),
            "totalCompleted": numbers.get("totalCompleted", 0),
            "totalFailed": numbers.get("totalFailed", 0),
            "avgLatencyMs": round((latencies["push"].mean_ms + latencies["pull"].mean_ms) / 2, 2),
            "avgProcessingMs": round(latencies["ack"].mean_ms, 2),
            "memoryUsageMb": round(resident_bytes() / 2**20, 2),
            "sqliteSizeMb": 0,
            "activeConnections": 0,
        }
    }


@command("Prometheus", returns={"data": "{metrics: text in the format of Prometheus}"})
def prometheus(session: Session) -> Reply:
    """The metrics of the server, the same as over HTTP."""
    metrics = session.services.metrics
    if metrics is None:
        raise CapabilityError("Prometheus", session.broker.capabilities.driver)
    return then(metrics(), lambda text: {"data": {"metrics": text.decode()}})


@command("CompactMemory")
def compact_memory(session: Session) -> Reply:
    """Collect garbage. Collections of the broker are bounded and need no compaction."""
    gc.collect()
    return None


@command("StorageStatus", returns={"data": "{diskFull: boolean, error: string or null, since: epoch ms or null}"})
def storage_status(session: Session) -> Reply:
    """Whether the storage takes writes."""
    return {"data": storage_health(session.broker.health())}


@command("RegisterWorker", returns={"data": "worker, with workerId in place of id"})
def register_worker(
    session: Session,
    name: Text,
    queues: Annotated[list[str], ListCheck(TextCheck())],
    concurrency: Annotated[int, NumberCheck(0)] = 1,
    worker_id: Text = "",
    hostname: Text = "",
    pid: Annotated[int, NumberCheck()] = 0,
    started_at: Amount = None,
) -> Reply:
    """Say that a worker works here. A known ``workerId`` keeps its name, registration time, counters and connection."""
    worker = session.services.workers.register(
        name,
        queues,
        id=worker_id or None,
        concurrency=concurrency,
        hostname=hostname or None,
        pid=pid or None,
        started_at=started_at,
        session=session.id,
    )
    reply = {"data": {"workerId": worker.id, **_registered(worker), "status": "active"}}
    # The other brokers know it when the answer is there.
    return then(session.broker.share_workers([worker]), lambda _: reply)


@command("Heartbeat", returns={"data": "{ok: true}"})
def heartbeat(
    session: Session, id: Text = "", active_jobs: Amount = None, processed: Amount = None, failed: Amount = None
) -> Reply:
    """A worker's sign of life, with its counters as they stand."""
    known = session.services.workers.heartbeat(id, active_jobs=active_jobs, processed=processed, failed=failed)
    worker = session.services.workers.get(id)
    if not known or worker is None:
        raise NotFound("Worker not found")
    # Not waited for: should it fail, the next sign of life makes it good.
    session.broker.share_workers([worker])
    return {"data": {"ok": True}}


@command("UnregisterWorker", returns={"data": "{removed: true}"})
def unregister_worker(session: Session, worker_id: Text = "") -> Reply:
    """Take a worker off the registry."""
    if not session.services.workers.unregister(worker_id):
        raise NotFound("Worker not found")
    return {"data": {"removed": True}}


@command(
    "ListWorkers",
    returns={"data": "{workers, stats: {total, active, totalProcessed, totalFailed, activeJobs, concurrencySlots}}"},
)
def list_workers(session: Session) -> Reply:
    """The registered workers, and sums over them."""
    return then(workforce(session.services), lambda workers: {"data": _listed(session, workers)})


def _listed(session: Session, workforce: Workforce) -> dict[str, Any]:
    registry = session.services.workers
    now = session.services.ports.now()
    totals = workforce.totals()
    return {
        "workers": [
            {
                "id": worker.id,
                **_registered(worker),
                "status": registry.status(worker),
                "uptime": max(0, now - worker.registered_at),
            }
            for worker in workforce.workers
        ],
        "stats": {
            "total": totals.total,
            "active": totals.active,
            "totalProcessed": totals.processed,
            "totalFailed": totals.failed,
            "activeJobs": totals.active_jobs,
            "concurrencySlots": totals.concurrency_slots,
        },
    }


def _queue_metrics(session: Session, queue: Any, kind: Any, start: Any, end: Any) -> Reply:
    if queue is ABSENT:
        raise ValidationError("Metrics queue is required")
    name = check_queue_name(queue)
    if kind not in ("completed", "failed"):
        raise ValidationError("Metrics type must be 'completed' or 'failed'")
    first = _position(start, "start", 0)
    last = _position(end, "end", -1)

    def shown(found: QueueMetrics) -> Members:
        meta = {"count": found.count, "prevTS": found.previous_at, "prevCount": found.previous_count}
        return {"data": {"meta": meta, "data": found.data, "count": found.buckets}}

    return then(session.broker.queue_metrics(name, kind, first, last), shown)


def _position(value: Any, field: str, least: int) -> int:
    if value is None:
        return least
    if type(value) is bool or not isinstance(value, int | float) or not least <= value <= SAFE_INTEGER or value % 1:
        raise ValidationError(f"{field} must be a non-negative safe integer")
    return int(value)


def storage_health(health: Health) -> dict[str, Any]:
    """The storage's health as clients see it."""
    return {"diskFull": health.disk_full, "error": health.problem if health.degraded else None, "since": health.since}


def resident_bytes() -> int:
    """Resident memory of this process, 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _registered(worker: WorkerRecord) -> dict[str, Any]:
    return {
        "name": worker.name,
        "queues": list(worker.queues),
        "concurrency": worker.concurrency,
        "hostname": worker.hostname,
        "pid": worker.pid,
        "registeredAt": worker.registered_at,
        "lastSeen": worker.last_seen,
        "activeJobs": worker.active_jobs,
        "processedJobs": worker.processed_jobs,
        "failedJobs": worker.failed_jobs,
        "currentJob": worker.current_job,
    }
