# Written by tools/async_to_sync.py from worker_timer_async.py: edit that file and run the tool, not this one.
"""What a worker does by the clock: renewing leases, heartbeats, time-outs, looking after its crew."""

from __future__ import annotations

from bunqueue_core.client._acompat import Event, settled
from bunqueue_core.client._crew_threads import ThreadCrew
from bunqueue_core.client._stand_in import StandIn
from bunqueue_core.client._verbs import Verbs
from bunqueue_core.client._worker_base import WorkerBase
from bunqueue_core.client.endpoint import Endpoint
from bunqueue_core.client.job import Job
from bunqueue_core.model.errors import BunqueueError, CommandError
from bunqueue_core.model.requests import Renewal

#: No generation of a connection.
NOWHERE = -1


class WorkerTimer(WorkerBase):
    """Keeps the time of a worker. What it needs beyond :class:`WorkerBase` is made by the worker's loop."""

    _endpoint: Endpoint
    _crew: ThreadCrew
    _stand_in: StandIn
    _closed: Event
    _tick: Event
    _flush_due: bool
    _registered: int

    def _flush(self) -> None:
        raise NotImplementedError

    def _keep_time(self) -> None:
        """Renew leases, send heartbeats, end time-outs, and look after the crew, until the worker is closed."""
        interval, renewal = self._options.heartbeat_interval_s, self._options.renewal_s
        if interval > 0 and self._options.renew_locks:
            self._stand_in.begin()
        renew_at, beat_at = self._clock() + renewal, self._clock() + interval
        while not self._closed.is_set():
            now = self._clock()
            waits: list[float] = []
            due = self._expire_jobs(now)
            if due is not None:
                waits.append(due - now)
            if interval > 0:
                if now >= renew_at:
                    renew_at = now + renewal
                    self._stand_in.kept()
                    self._renew()
                if now >= beat_at:
                    beat_at = now + interval
                    self._beat()
                waits.append(min(renew_at, beat_at) - now)
            if self._flush_due:
                self._closed.wait(self._options.ack_delay_s)
                self._flush()
                continue
            watch = self._crew.watch_s()
            if watch is not None:
                waits.append(watch)
            self._tick.wait(max(0.0, min(waits)) if waits else None)
            self._tick.clear()
            self._crew.watch()

    def _renew(self) -> None:
        """Renew every lease. A job whose lease is lost is told to stop; what it returns is still offered to the broker."""
        verbs = self._endpoint.verbs
        jobs, renewals = self._renewals()
        if verbs is None or not renewals or not self._options.renew_locks:
            return
        try:
            held = settled(verbs.heartbeat(renewals))
        except BunqueueError as error:
            self._report(error, "heartbeat")
            return
        for job, kept in zip(jobs, held, strict=True):
            if not kept and self._holds(job):
                self._signal(job).abort("lock lost")

    def _still_held(self, verbs: Verbs, jobs: list[Job]) -> list[Job]:
        """Those of ``jobs``, delivered while nobody could renew their leases, whose leases have not ended."""
        try:
            held = settled(verbs.heartbeat([Renewal(job.id, job.token) for job in jobs]))
        except BunqueueError as error:
            self._report(error, "heartbeat")
            return jobs
        kept = [job for job, alive in zip(jobs, held, strict=True) if alive]
        for job, alive in zip(jobs, held, strict=True):
            if not alive:
                self._drop_lease(job)
        with self._mutex:
            self._waiting_jobs -= len(jobs) - len(kept)
        return kept

    def _beat(self) -> None:
        """Tell the broker that this worker lives."""
        verbs = self._endpoint.verbs
        if verbs is None:
            return
        fields = {
            "id": self.id,
            "activeJobs": len(self._leases),
            "processed": self.processed,
            "failed": self.failed,
        }
        try:
            settled(verbs.command("Heartbeat", fields))
        except CommandError:
            self._registered = NOWHERE  # forgotten: register again
        except BunqueueError as error:
            self._report(error, "heartbeat")
