"""Schedulers in the in-process engine: deadlines for their runs, rows for their state.

What a due run comes to is decided by ``scheduling.service``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bunqueue_core.engine.base import EngineBase
from bunqueue_core.engine.produce import Producing
from bunqueue_core.model.errors import CapabilityError, CommandError
from bunqueue_core.model.job import Location
from bunqueue_core.storage.changes import CRON_TABLE

if TYPE_CHECKING:
    from bunqueue_core.scheduling.definition import Entry
    from bunqueue_core.scheduling.service import Scheduler


class Scheduling(Producing, EngineBase):
    """The schedule verbs."""

    scheduler: Scheduler | None = None
    #: Whether an active worker is registered for a queue.
    has_worker: Callable[[str], bool] = staticmethod(lambda queue: False)

    def _schedules(self) -> Scheduler:
        if self.scheduler is None:
            raise CapabilityError("schedules", "engine")
        return self.scheduler

    def load_schedules(self, rows: Sequence[Sequence[Any]], now: int) -> None:
        """Take over stored schedulers, before any job is touched.

        Raises:
            ConfigurationError: one of them cannot be used.
        """
        loaded = self._schedules().load(rows, now)
        for entry in loaded.moved:
            self._store_schedule(entry)
        for name in loaded.ended:
            self.marks.table_removed(CRON_TABLE, name)

    def start_schedules(self) -> None:
        """Set the deadlines of all schedulers, once everything else has been recovered."""
        if self.scheduler is not None:
            for entry in self.scheduler.entries():
                self._plan_schedule(entry)

    def upsert_schedule(self, request: Mapping[str, Any], now: int) -> Entry:
        """Create or change a scheduler; an unchanged definition changes nothing."""
        upserted = self._schedules().upsert(request, now)
        entry = upserted.entry
        if upserted.changed:
            if upserted.displaced is not None:
                self._displace(entry.definition.queue, upserted.displaced)
            self._store_schedule(entry)
            self._plan_schedule(entry)
            if self.noticing:
                self.notice("cron:created" if upserted.created else "cron:updated", **entry.event())
        return entry

    def _displace(self, queue_name: str, key: str) -> None:
        """Remove the job that waits under a key whose scheduler has a new definition."""
        queue = self.queues.get(queue_name)
        owner = queue.unique.get(key) if queue is not None else None
        job = self.jobs.get(owner.job_id) if owner is not None else None
        if job is not None and job.location in (Location.READY, Location.GATED):
            self.remove_queued(job)

    def remove_schedule(self, name: str) -> None:
        """Forget a scheduler. Raises NotFound."""
        self._schedules().remove(name)
        self.agenda.clear(f"schedule:{name}")
        self.marks.table_removed(CRON_TABLE, name)

    def schedule(self, name: str) -> Entry:
        """The scheduler of that name. Raises NotFound."""
        return self._schedules().get(name)

    def schedules(self) -> list[Entry]:
        return self._schedules().entries()

    def _store_schedule(self, entry: Entry) -> None:
        if self.marks.enabled:
            self.marks.table(CRON_TABLE, self._schedules().reader.to_row(entry))

    def _plan_schedule(self, entry: Entry) -> None:
        name = entry.definition.name
        self.agenda.set(f"schedule:{name}", entry.next_run, lambda now: self._run_schedule(name, now))

    def _run_schedule(self, name: str, now: int) -> None:
        scheduler = self._schedules()
        entry = scheduler.get(name)
        decision = scheduler.run(name, now, self.has_worker)
        if decision is not None and decision.job is not None:
            told: dict[str, Any] = {"name": name, "queue": decision.queue}
            try:
                self.push(decision.queue, [decision.job], now)
            except CommandError as error:
                self.totals.missed_runs += 1
                if self.noticing:
                    self.notice("cron:missed", **told, error=str(error))
            else:
                if self.noticing:
                    self.notice("cron:fired", **told)
        elif decision is not None and decision.action == "skip" and self.noticing:
            self.notice("cron:skipped", name=name, queue=decision.queue, reason=decision.reason)
        if decision is not None and decision.removes:
            self.marks.table_removed(CRON_TABLE, name)
            return
        if decision is not None:
            self._store_schedule(entry)
        self._plan_schedule(entry)
