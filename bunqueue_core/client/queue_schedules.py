# Written by tools/async_to_sync.py from queue_schedules_async.py: edit that file and run the tool, not this one.
"""Schedules, webhooks, workers and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bunqueue_core.client import _job_reads
from bunqueue_core.client._options import (
    milliseconds,
    snake_case,
    template_options,
    wire_options,
)
from bunqueue_core.client.queue_calls import QueueCalls
from bunqueue_core.model.errors import CommandError

#: Flags of a schedule: Python's name → the wire's.
_FLAGS = {
    "immediately": "immediately",
    "skip_missed_on_restart": "skipMissedOnRestart",
    "skip_if_no_worker": "skipIfNoWorker",
    "prevent_overlap": "preventOverlap",
}

_REPEAT = {
    **{wire: name for name, wire in _FLAGS.items()},
    **{name: name for name in (*_FLAGS, "pattern", "every", "tz", "timezone", "limit")},
}


class QueueSchedules(QueueCalls):
    """Manages what adds jobs by itself, and shows who works and how much."""

    logical_name: str
    _prefix_key: str
    _defaults: dict[str, Any] | None

    # -- schedules ----------------------------------------------------------------------------------------------------

    def upsert_job_scheduler(
        self, scheduler_id: str, repeat: Mapping[str, Any], template: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Add a schedule, or replace the one of that id.

        Args:
            scheduler_id: its id.
            repeat: ``pattern`` (cron, 5 or 6 fields) or ``every`` (ms or ``timedelta``); ``tz``, ``limit`` (runs), ``immediately``,
                ``skip_missed_on_restart``, ``skip_if_no_worker``, ``prevent_overlap``.
            template: its jobs: ``name``, ``data``, ``opts`` (job options).

        Returns:
            ``{"id", "name", "next", "pattern", "every", "limit"}``; ``next`` in epoch ms.

        Raises:
            CommandError: the broker refuses the schedule.
            TypeError: an option is not known.
        """
        wanted: dict[str, Any] = {}
        for key, value in repeat.items():
            if key not in _REPEAT:
                raise TypeError(f"unknown repeat option {key!r}")
            wanted[_REPEAT[key]] = value
        template = template or {}
        options = {**(self._defaults or {}), **snake_case(template.get("opts") or {})}
        wire = wire_options({name: options.get(name) for name in ("priority", "unique_key", "deduplication", "group")})
        every = milliseconds(wanted.get("every"))
        response = self._call(
            "Cron",
            name=self._prefix_key + scheduler_id,
            queue=self.queue_key,
            jobName=template.get("name", "default"),
            data=template.get("data"),
            schedule=wanted.get("pattern"),
            repeatEvery=every,
            timezone=wanted.get("tz", wanted.get("timezone")),
            maxLimit=wanted.get("limit"),
            priority=wire.get("priority"),
            uniqueKey=wire.get("uniqueKey"),
            dedup=wire.get("dedup"),
            jobOptions=template_options(options),
            **{wire_name: wanted.get(name) for name, wire_name in _FLAGS.items()},
        )
        return self._schedule(response.get("cron") or {})

    def _schedule(self, cron: Mapping[str, Any]) -> dict[str, Any]:
        whole = _job_reads.whole
        return {
            "id": str(cron.get("name", "")).removeprefix(self._prefix_key),
            "name": cron.get("jobName"),
            "next": whole(cron.get("nextRun")),
            "pattern": cron.get("schedule"),
            "every": whole(cron.get("repeatEvery")),
            "limit": whole(cron.get("maxLimit")),
        }

    def remove_job_scheduler(self, scheduler_id: str) -> None:
        """Remove a schedule.

        Raises:
            CommandError: ``Cron job not found``.
        """
        self._call("CronDelete", name=self._prefix_key + scheduler_id)

    def get_job_scheduler(self, scheduler_id: str) -> dict[str, Any] | None:
        """A schedule as :meth:`upsert_job_scheduler` returns it, None if there is none of that id."""
        try:
            response = self._call("CronGet", name=self._prefix_key + scheduler_id)
        except CommandError as error:
            if _job_reads.is_missing(error):
                return None
            raise
        return self._schedule(response.get("cron") or {})

    def get_job_schedulers(self, start: int = 0, end: int = -1, asc: bool = False) -> list[dict[str, Any]]:
        """Schedules of this queue by their next run.

        Args:
            start: position of the first one.
            end: position of the last one; -1 for all.
            asc: the earliest first, instead of the latest.
        """
        found = self._schedules()
        found.sort(key=lambda schedule: (schedule["next"] or 0, schedule["id"]), reverse=not asc)
        return found[start:] if end == -1 else found[start : end + 1]

    def get_job_schedulers_count(self) -> int:
        """Number of schedules of this queue."""
        return len(self._schedules())

    def _schedules(self) -> list[dict[str, Any]]:
        crons = (self._call("CronList")).get("crons") or ()
        return [self._schedule(cron) for cron in crons if cron.get("queue") == self.queue_key]

    def add_cron(self, name: str, schedule: str, data: Any = None, **repeat: Any) -> None:
        """Add a job named ``name`` whenever the cron expression ``schedule`` says.

        Args:
            name: id of the schedule and name of its jobs.
            schedule: five fields, or six with seconds first.
            data: their payload.
            **repeat: see :meth:`upsert_job_scheduler`.
        """
        self.upsert_job_scheduler(name, {"pattern": schedule, **repeat}, {"name": name, "data": data})

    def every(self, name: str, interval_ms: int, data: Any = None, **repeat: Any) -> None:
        """Add a job named ``name`` every ``interval_ms`` ms; see :meth:`add_cron`."""
        self.upsert_job_scheduler(name, {"every": interval_ms, **repeat}, {"name": name, "data": data})

    # -- webhooks -----------------------------------------------------------------------------------------------------

    def add_webhook(
        self, url: str, events: Sequence[str], queue: str | None = None, secret: str | None = None
    ) -> str | None:
        """Have the server call ``url`` when something happens. Returns the webhook's id.

        Args:
            url: http or https; not of a private network.
            events: of ``job.pushed``, ``job.started``, ``job.completed``, ``job.failed``, ``job.progress``.
            queue: only of this queue; by default of all.
            secret: signs the requests.
        """
        response = self._call("AddWebhook", url=url, events=list(events), queue=queue, secret=secret)
        return _job_reads.data_of(response).get("webhookId")

    def remove_webhook(self, webhook_id: str) -> None:
        """Remove a webhook.

        Raises:
            CommandError: ``Webhook not found``.
        """
        self._call("RemoveWebhook", webhookId=webhook_id)

    def list_webhooks(self) -> list[dict[str, Any]]:
        """All webhooks of the server, without their secrets."""
        return list(_job_reads.whole_numbers(_job_reads.data_of(self._call("ListWebhooks")).get("webhooks") or []))

    def set_webhook_enabled(self, webhook_id: str, enabled: bool) -> None:
        """Switch a webhook on or off.

        Raises:
            CommandError: ``Webhook not found``.
        """
        self._call("SetWebhookEnabled", id=webhook_id, enabled=enabled)

    # -- figures ------------------------------------------------------------------------------------------------------

    def get_workers(self) -> list[dict[str, Any]]:
        """Workers that are registered with the broker, for whatever queue."""
        return list(_job_reads.data_of(self._call("ListWorkers")).get("workers") or ())

    def get_workers_count(self) -> int:
        """Number of registered workers."""
        return len(self.get_workers())

    def get_stats(self) -> dict[str, Any]:
        """Figures of the whole broker: jobs by state, uptime (ms), rates."""
        return dict(_job_reads.whole_numbers((self._call("Stats")).get("stats") or {}))

    def get_metrics(self) -> dict[str, Any]:
        """Totals and latencies of the whole broker."""
        return dict(_job_reads.whole_numbers((self._call("Metrics")).get("metrics") or {}))

    def get_queue_metrics(self, type: str, start: int = 0, end: int = -1) -> dict[str, Any]:
        """Jobs of this queue that ended, by minute, newest first.

        Args:
            type: ``completed`` or ``failed``.
            start: first minute.
            end: last minute; -1 for all.

        Returns:
            ``{"meta": {"count", "prevTS", "prevCount"}, "data": [number], "count"}``.
        """
        response = self._of_queue("Metrics", type=type, start=start, end=end)
        return dict(_job_reads.whole_numbers(_job_reads.data_of(response)))

    def list_queues(self) -> list[str]:
        """Names of all queues of the broker."""
        return list((self._call("ListQueues")).get("queues") or ())

    def trim_events(self, max_length: int) -> int:
        """Keep the newest ``max_length`` recorded events of this queue. Returns how many were removed."""
        return int(_job_reads.data_of(self._of_queue("TrimEvents", maxLength=max_length)).get("removed") or 0)
