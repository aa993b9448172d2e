"""``GET /prometheus``: the text exposition. Names, types and labels are a contract; dashboards and alerts use them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bunqueue_core.answer import Answer
from bunqueue_core.backup.reports import BackupStatistics
from bunqueue_core.commands.meters import Histogram
from bunqueue_core.commands.monitoring import resident_bytes
from bunqueue_core.commands.replies import chain
from bunqueue_core.commands.session import Services
from bunqueue_core.model.requests import Counts, QueueSummary
from bunqueue_core.server.limits import CUT_OFF_REASONS

#: Content type of the exposition.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: The bounds of :data:`LATENCY_BOUNDS_S` as they stand in the ``le`` labels.
_LE: Final = (
    "0.0001",
    "0.0005",
    "0.001",
    "0.0025",
    "0.005",
    "0.01",
    "0.025",
    "0.05",
    "0.1",
    "0.25",
    "0.5",
    "1",
    "2.5",
    "5",
    "10",
)

_STATES: Final = ("waiting", "prioritized", "delayed", "active", "dlq", "completed")
#: Figures of a database server, shown where the broker has them: name, kind, text, name among the statistics.
_DATABASE: Final = (
    ("operations", "gauge", "Statements that run", "databaseOperations"),
    ("operations_queued", "gauge", "Statements that wait for their turn", "databaseOperationsQueued"),
    ("statements", "counter", "Statements since start", "databaseStatements"),
    ("connections", "gauge", "Connections of the pool", "databaseConnections"),
    ("connections_idle", "gauge", "Connections of the pool that nobody uses", "databaseConnectionsIdle"),
    ("connections_waited_for", "gauge", "Statements that wait for a connection", "databaseConnectionsWaitedFor"),
    ("oldest_transaction_seconds", "gauge", "Age of the oldest transaction", "databaseOldestTransactionSeconds"),
    (
        "oldest_snapshot_transactions",
        "gauge",
        "Age of the oldest snapshot, in transactions: dead rows since then stay",
        "databaseOldestSnapshotTransactions",
    ),
    ("age_transactions", "gauge", "Age of the oldest row, in transactions", "databaseAgeTransactions"),
    ("job_dead_rows", "gauge", "Dead rows among the jobs", "databaseDeadJobRows"),
    ("event_dead_rows", "gauge", "Dead rows among the events", "databaseDeadEventRows"),
    (
        "jobs_vacuumed_timestamp_seconds",
        "gauge",
        "When the jobs were last vacuumed; 0: never",
        "databaseJobsVacuumedAtSeconds",
    ),
    (
        "events_vacuumed_timestamp_seconds",
        "gauge",
        "When the events were last vacuumed; 0: never",
        "databaseEventsVacuumedAtSeconds",
    ),
    ("event_rows", "gauge", "Rows of the outbox, each of one or more events", "databaseEventRows"),
    ("brokers", "gauge", "Brokers that share the database", "liveBrokers"),
)

_TRANSPORTS: Final = (("tcp", "tcp"), ("websocket", "ws"), ("sse", "sse"))


def exposition(services: Services, connections: dict[str, int], most_queues: int) -> Answer[bytes]:
    """The metrics of the server, as text.

    Args:
        services: what is measured.
        connections: open connections by transport.
        most_queues: queues that get series of their own, in order of registration.
    """
    broker = services.broker

    def with_queues(names: list[str]) -> Answer[bytes]:
        shown = names[: max(0, most_queues)]
        summaries = broker.summaries(shown) if shown else Answer[list[QueueSummary]].of([])
        return summaries.map(lambda found: written({each.name: each.counts for each in found}, len(names)))

    def written(counts: dict[str, Counts], queues: int) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Snapshot(services, connections, counts, queues))
        # A blank line between families, as the text has always had.
        return generate_latest(registry).replace(b"\n# HELP", b"\n\n# HELP")

    return chain(broker.queues(), with_queues)


class _Snapshot(Collector):
    """The figures of one moment."""

    def __init__(self, services: Services, connections: dict[str, int], counts: dict[str, Counts], queues: int) -> None:
        self._services = services
        self._connections = connections
        self._counts = counts
        self._queues = queues
        self._numbers = services.broker.statistics()
        self._uptime_s = time.monotonic() - services.meters.started_at

    def collect(self) -> Iterable[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        yield from self._jobs()
        yield from self._registrations()
        yield from self._process()
        yield from self._by_queue()
        yield from self._server()
        yield from self._backups()
        yield from self._latencies()
        yield from self._cut_offs()
        yield from self._events()

    def _jobs(self) -> Iterator[Metric]:
        numbers = self._numbers
        ready = {"waiting": numbers.get("waiting", 0) + numbers.get("paused", 0)}
        for state in _STATES:
            yield _gauge(f"bunqueue_jobs_{state}", f"Jobs in state {state}", ready.get(state, numbers.get(state, 0)))
        blocked = numbers.get("blockedJobs", 0)
        yield _gauge("bunqueue_jobs_blocked", "Jobs that wait for jobs that cannot complete by themselves", blocked)
        for name, total in (
            ("pushed", "totalPushed"),
            ("pulled", "totalPulled"),
            ("completed", "totalCompleted"),
            ("failed", "totalFailed"),
        ):
            yield _counter(f"bunqueue_jobs_{name}", f"Jobs {name} since start", numbers.get(total, 0))
        yield _gauge("bunqueue_uptime_seconds", "Seconds since start", int(self._uptime_s))

    def _registrations(self) -> Iterator[Metric]:
        totals = self._services.workers.totals()
        numbers = self._numbers
        health = self._services.broker.health()
        yield _gauge("bunqueue_cron_jobs_registered", "Schedules", numbers.get("schedules", 0))
        yield _gauge("bunqueue_workers_registered", "Registered workers", totals.total)
        yield _gauge("bunqueue_workers_active", "Workers heard of lately", totals.active)
        yield _gauge("bunqueue_worker_active_jobs", "Active jobs that workers report", totals.active_jobs)
        yield _gauge("bunqueue_worker_concurrency_slots", "Slots of active workers", totals.concurrency_slots)
        yield _counter("bunqueue_workers_processed", "Jobs that workers report as processed", totals.processed)
        yield _counter("bunqueue_workers_failed", "Jobs that workers report as failed", totals.failed)
        yield _gauge("bunqueue_webhooks_registered", "Webhooks", numbers.get("webhooks", 0))
        yield _gauge("bunqueue_webhooks_enabled", "Enabled webhooks", numbers.get("webhooksEnabled", 0))
        yield _gauge("bunqueue_storage_degraded", "1 while the storage fails", int(health.degraded))
        yield _gauge("bunqueue_storage_disk_full", "1 while the disk is full", int(health.disk_full))

    def _process(self) -> Iterator[Metric]:
        resident = resident_bytes()
        yield _gauge("bunqueue_process_heap_used_bytes", "Memory in use", resident)
        yield _gauge("bunqueue_process_heap_total_bytes", "Memory reserved", resident)
        yield _gauge("bunqueue_process_resident_memory_bytes", "Resident memory", resident)
        if self._services.broker.capabilities.driver == "sqlite":
            size = self._numbers.get("storageBytes", 0)
            yield _gauge("bunqueue_sqlite_database_size_bytes", "Size of the database", size)
            log = self._numbers.get("storageLogBytes", 0)
            yield _gauge("bunqueue_sqlite_log_size_bytes", "Size of the write-ahead log beside it", log)
            unwritten = self._numbers.get("unwrittenRows", 0)
            yield _gauge("bunqueue_storage_unwritten_rows", "Rows that wait for a commit", unwritten)
            failures = self._numbers.get("commitFailures", 0)
            yield _counter("bunqueue_storage_commit_failures", "Commits that failed since start", failures)

        for name, kind, text, figure in _DATABASE:
            if figure in self._numbers:
                yield (_counter if kind == "counter" else _gauge)(
                    f"bunqueue_database_{name}", text, self._numbers[figure]
                )

    def _by_queue(self) -> Iterator[Metric]:
        if not self._counts:
            return
        for state in ("waiting", "prioritized", "delayed", "active", "dlq"):
            family = GaugeMetricFamily(
                f"bunqueue_queue_jobs_{state}", f"Jobs in state {state}, by queue", labels=["queue"]
            )
            for name, counts in self._counts.items():
                value = {
                    "waiting": counts.ready_waiting,
                    "prioritized": counts.ready_prioritized,
                    "delayed": counts.delayed,
                    "active": counts.active,
                    "dlq": counts.failed,
                }[state]
                family.add_metric([name], value)
            yield family

    def _server(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("bunqueue_build_info", "Versions", labels=["bun_version", "version"])
        info.add_metric(["none", self._services.version], 1)
        yield info
        yield _counter("process_cpu_seconds", "CPU time, user and system", time.process_time())
        yield _gauge("process_start_time_seconds", "Start, epoch seconds", round(time.time() - self._uptime_s, 3))
        yield _gauge("process_resident_memory_bytes", "Resident memory", resident_bytes())
        yield _gauge("process_heap_bytes", "Memory in use", resident_bytes())
        connections = GaugeMetricFamily("bunqueue_connections", "Open connections", labels=["transport"])
        for label, key in _TRANSPORTS:
            connections.add_metric([label], self._connections.get(key, 0))
        yield connections
        shown = len(self._counts)
        yield _gauge("bunqueue_queue_metrics_exported", "Queues with series of their own", shown)
        yield _gauge("bunqueue_queue_metrics_omitted", "Queues without", self._queues - shown)

    def _backups(self) -> Iterator[Metric]:
        # The series are there on every server, as dashboards expect; all zero where no backups can be made.
        numbers = self._services.backups() if self._services.backups is not None else BackupStatistics()
        verified_at = numbers.last_verified_at
        if verified_at is not None:
            # Absent before: an age of nothing would look like the youngest of all to an alert.
            age_s = (self._services.ports.now() - verified_at) / 1000
            yield _gauge("bunqueue_backup_last_verified_age_seconds", "Age of the backup that was verified last", age_s)
        for name, text, value in (
            ("enabled", "Backups are made on a schedule", numbers.enabled),
            ("scheduler_running", "The schedule of backups runs", numbers.scheduler_running),
            ("in_progress", "A backup is being made", numbers.in_progress),
            ("interval_seconds", "Time from one backup to the next", numbers.interval_ms / 1000),
            ("retention", "Backups that are kept", numbers.retention),
            ("consecutive_failures", "Backups that failed since the last success", numbers.consecutive_failures),
            (
                "last_success_timestamp_seconds",
                "When a backup last succeeded; 0: never",
                (numbers.last_success_at or 0) / 1000,
            ),
            (
                "last_failure_timestamp_seconds",
                "When a backup last failed; 0: never",
                (numbers.last_failure_at or 0) / 1000,
            ),
            ("last_duration_seconds", "How long the last backup took", (numbers.last_duration_ms or 0) / 1000),
            ("last_size_bytes", "Size of the last backup", numbers.last_size_bytes or 0),
            (
                "last_verified_timestamp_seconds",
                "When the backup was made that was verified last; 0: none was since the start",
                (verified_at or 0) / 1000,
            ),
        ):
            yield _gauge(f"bunqueue_backup_{name}", text, value)
        for name, text, value in (
            ("attempts", "Backups begun", numbers.attempts),
            ("successes", "Backups that succeeded", numbers.successes),
            ("failures", "Backups that failed", numbers.failures),
            ("overlap_rejections", "Calls for a backup while one was being made", numbers.overlap_rejections),
            ("verifications", "Verifications that succeeded", numbers.verifications),
            ("verification_failures", "Verifications that failed", numbers.verification_failures),
        ):
            yield _counter(f"bunqueue_backup_{name}", text, value)

    def _latencies(self) -> Iterator[Metric]:
        for name, histogram in self._services.meters.latencies.items():
            yield _histogram(f"bunqueue_{name}_duration_seconds", f"Duration of {name} commands", histogram)

    def _cut_offs(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "bunqueue_cut_off_connections", "Connections that the server ended, by reason", labels=["reason"]
        )
        for reason in CUT_OFF_REASONS:
            family.add_metric([reason], self._services.meters.cut_offs[reason])
        yield family

    def _events(self) -> Iterator[Metric]:
        if self._services.events is None:
            return
        statistics = self._services.events()
        webhooks = statistics.webhooks
        deliveries = CounterMetricFamily(
            "bunqueue_webhook_deliveries", "Deliveries to webhooks that are finished, by outcome", labels=["outcome"]
        )
        for outcome, count in (
            ("delivered", webhooks.delivered),
            ("failed", webhooks.failed),
            ("dropped", webhooks.dropped),
        ):
            deliveries.add_metric([outcome], count)
        yield deliveries
        yield _counter("bunqueue_webhook_attempts", "Attempts to call a webhook", webhooks.attempts)
        yield _gauge("bunqueue_webhook_deliveries_waiting", "Deliveries that are not finished", webhooks.waiting)
        if not statistics.sinks:
            return
        events = CounterMetricFamily(
            "bunqueue_sink_events", "Events that a sink took or missed, by outcome", labels=["sink", "outcome"]
        )
        failures = CounterMetricFamily("bunqueue_sink_failures", "Calls of a sink that failed", labels=["sink"])
        waiting = GaugeMetricFamily("bunqueue_sink_events_waiting", "Events that wait for a sink", labels=["sink"])
        for sink in statistics.sinks:
            for outcome, count in (("written", sink.written), ("dropped", sink.dropped), ("lost", sink.lost)):
                events.add_metric([sink.name, outcome], count)
            failures.add_metric([sink.name], sink.failures)
            waiting.add_metric([sink.name], sink.waiting)
        yield from (events, failures, waiting)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    total = 0
    buckets: list[tuple[str, float]] = []
    for label, count in zip((*_LE, "+Inf"), histogram.buckets, strict=True):
        total += count
        buckets.append((label, total))
    family = HistogramMetricFamily(name, text)
    family.add_metric([], buckets=buckets, sum_value=histogram.total_s)
    return family
