"""Figures for people who watch a server: an overview, lists of queues, one queue in detail."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from bunqueue_core.answer import Answer, combined
from bunqueue_core.broker.workers import WorkerRecord
from bunqueue_core.commands.meters import Histogram
from bunqueue_core.commands.monitoring import resident_bytes, storage_health
from bunqueue_core.commands.queries import counts_by_state
from bunqueue_core.commands.registry import workforce
from bunqueue_core.commands.replies import chain, then
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import LiteralFlag, Members, NumberCheck, QueueName, Reply, command
from bunqueue_core.model.errors import CapabilityError
from bunqueue_core.model.job import Job, JobState
from bunqueue_core.model.payload import Packed
from bunqueue_core.model.requests import DlqEntry, JobView, Page, QueueMetrics, QueueSummary
from bunqueue_core.scheduling.definition import Entry

T = TypeVar("T")

#: Dead letters in the detail of a queue.
PREVIEWED_DEAD_LETTERS: Final = 10

#: Jobs a state in the detail of a queue, and the most that may be asked for.
LISTED_JOBS: Final = 10
MAX_LISTED_JOBS: Final = 50

#: Sizes of collections that published dashboards show, with the figure of the broker's statistics behind each; collections that
#: no broker has stay 0.
_COLLECTIONS: Final[Mapping[str, str]] = {
    "jobIndex": "jobs",
    "completedJobs": "completed",
    "jobResults": "results",
    "jobLogs": "logs",
    "customIdMap": "",
    "jobLocks": "locks",
    "clientJobs": "sessions",
    "clientJobsTotal": "",
    "pendingDepChecks": "",
    "stalledCandidates": "",
    "processingTotal": "active",
    "queuedTotal": "",
    "waitingDepsTotal": "waitingChildren",
    "temporalIndexTotal": "",
    "delayedHeapTotal": "delayed",
}

#: States whose jobs the detail of a queue lists.
_LISTED_STATES: Final[tuple[JobState, ...]] = ("waiting", "active", "delayed", "paused")


@command(
    "DashboardOverview",
    returns={
        "data": "{stats, throughput, latency (ms), memory (MiB), collections, workers, crons, storage, timestamp}"
    },
)
def dashboard_overview(session: Session) -> Reply:
    """The server at a glance."""
    return then(overview(session), lambda shown: {"data": shown})


@command("DashboardQueues", returns={"data": "{queues: list of counts by queue, timestamp: epoch ms}"})
def dashboard_queues(session: Session) -> Reply:
    """Counts of all queues in order of first appearance; a pause does not change them."""

    def listed(found: list[QueueSummary]) -> Members:
        lines = [queue_line(each) for each in found]
        return {"data": {"queues": lines, "timestamp": session.services.ports.now()}}

    return then(chain(session.broker.queues(), session.broker.summaries), listed)


@command(
    "DashboardQueue",
    returns={"data": "{name, counts, paused, priorityCounts, dlqPreview, timestamp, jobs (only with includeJobs)}"},
)
def dashboard_queue(
    session: Session,
    queue: QueueName,
    include_jobs: LiteralFlag = False,
    jobs_limit: Annotated[int, NumberCheck()] = LISTED_JOBS,
) -> Reply:
    """One queue in detail; with ``includeJobs: true`` also up to ``jobsLimit`` (50 at most) of its jobs a state."""
    most = min(MAX_LISTED_JOBS, max(0, jobs_limit)) if include_jobs else None
    return then(queue_detail(session, queue, most), lambda shown: {"data": shown})


def overview(session: Session) -> Answer[dict[str, Any]]:
    """What ``DashboardOverview`` shows, with all workers and all schedulers."""
    services = session.services
    numbers = services.broker.statistics()
    meters = services.meters
    histograms = meters.latencies
    shown: dict[str, Any] = {
        "stats": {
            "waiting": ready_waiting(numbers),
            **{name: numbers.get(name, 0) for name in ("active", "delayed", "completed", "dlq")},
            **{f"total{name}": numbers.get(f"total{name}", 0) for name in ("Pushed", "Pulled", "Completed", "Failed")},
            "uptime": uptime_ms(session),
        },
        "throughput": rates(session, numbers),
        "latency": {
            "averages": {f"{name}Ms": round(histogram.mean_ms, 3) for name, histogram in _named(histograms)},
            "percentiles": {
                name: {f"p{percentile}": histogram.percentile_ms(percentile) for percentile in (50, 95, 99)}
                for name, histogram in _named(histograms)
            },
        },
        "memory": memory_mib(),
        "collections": collections(numbers),
        "workers": {},
        "crons": [],
        "storage": storage_health(services.broker.health()),
        "timestamp": services.ports.now(),
    }

    def with_registered(found: list[Any]) -> dict[str, Any]:
        entries, workers = found
        totals = workers.totals()
        shown["workers"] = {
            "total": totals.total,
            "active": totals.active,
            "list": [_worker_line(worker) for worker in workers.workers],
        }
        shown["crons"] = [_schedule_line(entry) for entry in entries]
        return shown

    registered: list[Answer[Any]] = [_where_offered(services.broker.schedules(), []), workforce(services)]
    return combined(registered).map(with_registered)


def queue_detail(session: Session, queue: str, listed: int | None) -> Answer[dict[str, Any]]:
    """What ``DashboardQueue`` shows of a queue; of an unknown one, zeros.

    Args:
        session: whose broker is asked.
        queue: its name.
        listed: jobs a state; None lists none.
    """
    broker = session.broker
    answers: list[Answer[Any]] = [
        broker.summaries((queue,)),
        broker.counts_per_priority(queue),
        _where_offered(broker.dead_letters(queue, PREVIEWED_DEAD_LETTERS, None), []),
        *(_where_offered(broker.queue_metrics(queue, kind, 0, 0), None) for kind in ("completed", "failed")),
    ]
    if listed is not None:
        answers += [broker.jobs(queue, (state,), Page(0, listed)) for state in _LISTED_STATES]

    def shown(found: list[Any]) -> dict[str, Any]:
        summary: QueueSummary = found[0][0]
        letters: list[DlqEntry] = found[2]
        detail: dict[str, Any] = {
            "name": queue,
            "counts": {
                **counts_by_state(summary.counts),
                "totalCompleted": _lifetime(found[3]),
                "totalFailed": _lifetime(found[4]),
            },
            "paused": summary.paused,
            "priorityCounts": {str(priority): count for priority, count in found[1].items()},
            "dlqPreview": [_letter_line(entry.job) for entry in letters],
            "timestamp": session.services.ports.now(),
        }
        if listed is not None:
            detail["jobs"] = {
                state: [_job_line(view) for view in views]
                for state, views in zip(_LISTED_STATES, found[5:], strict=True)
            }
        return detail

    return combined(answers).map(shown)


def queue_line(summary: QueueSummary) -> dict[str, Any]:
    """A queue in ``DashboardQueues``."""
    counts = summary.counts
    return {
        "name": summary.name,
        "waiting": counts.ready_waiting,
        "prioritized": counts.ready_prioritized,
        "delayed": counts.delayed,
        "active": counts.active,
        "dlq": counts.failed,
        "paused": summary.paused,
    }


def ready_waiting(numbers: Mapping[str, int | float]) -> int | float:
    """Ready jobs of all queues, those of paused queues too, out of a broker's statistics."""
    return numbers.get("waiting", 0) + numbers.get("paused", 0)


def uptime_ms(session: Session) -> int:
    """Milliseconds since the server's start."""
    return int((time.monotonic() - session.services.meters.started_at) * 1000)


def rates(session: Session, numbers: Mapping[str, int | float]) -> dict[str, float]:
    """Jobs a second, by what happened to them."""
    meters = session.services.meters
    return {
        "pushPerSec": meters.pushed.read(int(numbers.get("totalPushed", 0))),
        "pullPerSec": meters.pulled.read(int(numbers.get("totalPulled", 0))),
        "completePerSec": meters.completed.read(int(numbers.get("totalCompleted", 0))),
        "failPerSec": meters.failed.read(int(numbers.get("totalFailed", 0))),
    }


def memory_mib() -> dict[str, int]:
    """Memory of this process in whole MiB, under the names that published dashboards know."""
    resident = round(resident_bytes() / 2**20)
    return {"heapUsed": resident, "heapTotal": resident, "rss": resident}


def collections(numbers: Mapping[str, int | float]) -> dict[str, int | float]:
    """Sizes of the broker's collections, under the names that published dashboards know."""
    sizes = {name: numbers.get(key, 0) if key else 0 for name, key in _COLLECTIONS.items()}
    sizes["queuedTotal"] = sum(numbers.get(name, 0) for name in ("waiting", "prioritized", "paused", "delayed"))
    return sizes


def _named(histograms: Mapping[str, Histogram]) -> list[tuple[str, Histogram]]:
    return [(name, histograms[name]) for name in ("push", "pull", "ack")]


def _where_offered(answer: Answer[T], otherwise: T) -> Answer[T]:
    """The answer; ``otherwise`` where the storage driver offers no such verb."""
    return Answer.of(otherwise) if isinstance(answer.error, CapabilityError) else answer


def _lifetime(metrics: QueueMetrics | None) -> int:
    return metrics.count if metrics is not None else 0


def _worker_line(worker: WorkerRecord) -> dict[str, Any]:
    return {
        "id": worker.id,
        "name": worker.name,
        "queues": list(worker.queues),
        "lastSeen": worker.last_seen,
        "activeJobs": worker.active_jobs,
        "processedJobs": worker.processed_jobs,
        "failedJobs": worker.failed_jobs,
    }


def _schedule_line(entry: Entry) -> dict[str, Any]:
    view = entry.view()
    return {name: view[name] for name in ("name", "queue", "schedule", "repeatEvery", "nextRun", "executions")}


def _letter_line(job: Job) -> dict[str, Any]:
    line: dict[str, Any] = {"id": job.id, "attempts": job.attempts, "createdAt": job.created_at}
    if job.data is not None:
        line["data"] = Packed(job.data)
    return line


def _job_line(view: JobView) -> dict[str, Any]:
    job = view.job
    return {
        "id": job.id,
        "priority": job.priority,
        "createdAt": job.created_at,
        "runAt": job.run_at,
        "attempts": job.attempts,
        "progress": job.progress,
    }
