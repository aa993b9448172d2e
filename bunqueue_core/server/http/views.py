"""Answers that no single command gives: lists and figures for dashboards. They take a request as commands do."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from bunqueue_core.answer import Answer, combined
from bunqueue_core.broker.workers import WorkerRecord
from bunqueue_core.commands.dashboards import (
    collections,
    memory_mib,
    overview,
    queue_line,
    rates,
    ready_waiting,
    uptime_ms,
)
from bunqueue_core.commands.registry import Workforce, workforce
from bunqueue_core.commands.replies import chain, then
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import Members, Reply
from bunqueue_core.model.requests import Counts, DlqEntry, DlqFilter, QueueSummary

#: Workers and schedulers that the overview lists.
LISTED: Final = 100

#: Queues on a page of the dashboard unless another number is asked for, and at most.
PAGE: Final = 100
MAX_PAGE: Final = 500

#: Types in the heap statistics.
HEAP_TYPES: Final = 20


def queue_summaries(session: Session, request: Mapping[str, Any]) -> Reply:
    """All queues with their counts, which a pause does not change; a bare list."""

    def listed(found: list[QueueSummary]) -> Members:
        return {"queues": [_summary(each) for each in found]}

    return then(chain(session.broker.queues(), session.broker.summaries), listed)


def queue_workers(session: Session, request: Mapping[str, Any]) -> Reply:
    """Active workers that are registered for a queue."""
    registry, queue = session.services.workers, request["queue"]

    def listed(found: Workforce) -> Members:
        return {
            "workers": [
                _worker(worker)
                for worker in found.workers
                if queue in worker.queues and registry.status(worker) == "active"
            ]
        }

    return then(workforce(session.services), listed)


def dead_letter_page(session: Session, request: Mapping[str, Any]) -> Reply:
    """Dead letters of a queue, oldest first, from ``offset`` on and ``limit`` at most, and the number of all."""
    broker, queue, limit = session.broker, request["queue"], request.get("limit")
    entries: Answer[list[DlqEntry]] = Answer.of([])
    if limit != 0:
        entries = broker.dead_letters(queue, None, DlqFilter(offset=request.get("offset", 0), limit=limit))
    counts: Answer[Counts] = broker.counts(queue)
    answers: list[Answer[Any]] = [entries, counts]
    return then(combined(answers), lambda found: {"entries": found[0], "total": found[1].failed})


def stats(session: Session, request: Mapping[str, Any]) -> Reply:
    """Jobs of all queues by state, totals and rates; memory in MiB; sizes of collections."""
    numbers = session.broker.statistics()
    return {
        "stats": {
            "waiting": ready_waiting(numbers),
            **{name: numbers.get(name, 0) for name in ("prioritized", "delayed", "active", "dlq", "completed")},
            "waiting-children": numbers.get("waitingChildren", 0),
            **{f"total{name}": numbers.get(f"total{name}", 0) for name in ("Pushed", "Pulled", "Completed", "Failed")},
            "uptime": uptime_ms(session),
            "cronJobs": numbers.get("schedules", 0),
            "cronPending": numbers.get("schedulesPending", 0),
            **rates(session, numbers),
        },
        "memory": {**memory_mib(), "external": 0, "arrayBuffers": 0},
        "collections": collections(numbers),
    }


def totals(session: Session, request: Mapping[str, Any]) -> Reply:
    """What has been done since the server's start."""
    numbers = session.broker.statistics()
    names = ("totalPushed", "totalPulled", "totalCompleted", "totalFailed")
    return {"metrics": {name: numbers.get(name, 0) for name in names}}


def dashboard(session: Session, request: Mapping[str, Any]) -> Reply:
    """The server at a glance, with its first 100 workers and schedulers."""

    def cut(shown: dict[str, Any]) -> Members:
        workers, crons = shown["workers"], shown["crons"]
        return {
            **shown,
            "workers": {
                **workers,
                "list": workers["list"][:LISTED],
                "truncated": len(workers["list"]) > LISTED,
            },
            "crons": {"total": len(crons), "list": crons[:LISTED], "truncated": len(crons) > LISTED},
        }

    return then(overview(session), cut)


def queue_page(session: Session, request: Mapping[str, Any]) -> Reply:
    """A page of the queues in order of first appearance: ``limit`` (1..500, 100) of them from ``offset`` on."""
    limit = min(MAX_PAGE, max(1, request.get("limit") or PAGE))
    offset = max(0, request.get("offset", 0))
    broker = session.broker
    total = 0

    def summaries(names: list[str]) -> Answer[list[QueueSummary]]:
        nonlocal total
        total = len(names)
        return broker.summaries(names[offset : offset + limit])

    def page(found: list[QueueSummary]) -> Members:
        lines = [queue_line(each) for each in found]
        for line in lines:
            del line["prioritized"]
        now = session.services.ports.now()
        return {"queues": lines, "total": total, "limit": limit, "offset": offset, "timestamp": now}

    return then(chain(broker.queues(), summaries), page)


def collect_garbage(session: Session, request: Mapping[str, Any]) -> Reply:
    """Collect garbage; memory before and after in MiB."""
    before = memory_mib()
    gc.collect()
    session.services.tell("memory:compacted")
    return {"before": before, "after": memory_mib()}


def heap(session: Session, request: Mapping[str, Any]) -> Reply:
    """Memory in MiB, objects that the garbage collector knows, by type, and sizes of collections."""
    objects = gc.get_objects()
    kinds = Counter(type(each).__name__ for each in objects)
    return {
        "memory": memory_mib(),
        "heap": {"objectCount": len(objects), "protectedCount": 0, "globalCount": 0},
        "collections": collections(session.broker.statistics()),
        "topObjectTypes": [{"type": name, "count": count} for name, count in kinds.most_common(HEAP_TYPES)],
    }


def _summary(summary: QueueSummary) -> dict[str, Any]:
    counts = summary.counts
    return {
        "name": summary.name,
        "paused": summary.paused,
        "counts": {
            "waiting": counts.ready_waiting,
            "prioritized": counts.ready_prioritized,
            "active": counts.active,
            "completed": counts.completed,
            "failed": counts.failed,
            "delayed": counts.delayed,
        },
    }


def _worker(worker: WorkerRecord) -> dict[str, Any]:
    return {
        "id": worker.id,
        "name": worker.name,
        "queues": list(worker.queues),
        "concurrency": worker.concurrency,
        "registeredAt": worker.registered_at,
        "lastSeen": worker.last_seen,
        "activeJobs": worker.active_jobs,
        "processedJobs": worker.processed_jobs,
        "failedJobs": worker.failed_jobs,
    }
