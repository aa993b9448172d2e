"""A reference model of the queue: as simple as can be, slow, and written from the rules alone.

Tests drive a broker and this model with the same calls and compare what they show. The model decides everything but the length of a
back-off, which is random: it says between which bounds the next run lies and takes over what the broker chose.

It knows neither storage nor commits; :meth:`ModelBroker.crash` is told what had not been committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Place = Literal["ready", "gated", "active", "completed", "dead"]

#: What became of an outcome; ``lease`` and ``absent`` are refusals.
Verdict = Literal["applied", "already-finalized", "absent"]


class Refused(Exception):
    """The call is refused, and nothing of it applied."""


@dataclass(slots=True)
class ModelJob:
    """A job. Times in epoch ms, durations in ms. ``fixed`` chooses the fixed back-off, else it doubles with each attempt."""

    id: str
    queue: str
    priority: int = 0
    lifo: bool = False
    created_at: int = 0
    run_at: int = 0
    max_attempts: int = 3
    backoff_ms: int = 0
    fixed: bool = True
    timeout_ms: int = 0
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    depends_on: frozenset[str] = frozenset()
    custom: bool = False
    place: Place = "ready"
    attempts: int = 0
    stalls: int = 0
    losses: int = 0
    started_at: int | None = None
    heartbeat: int = 0
    token: str | None = None
    ttl_ms: int = 0
    expires_at: int = 0
    renewals: int = 0
    session: str | None = None
    result: bytes | None = None
    entered: int = 0  #: order of arrival in the dead letters
    reason: str | None = None

    def state(self, now: int) -> str:
        """The state that a query shows."""
        if self.place == "ready":
            if self.run_at > now:
                return "delayed"
            return "prioritized" if self.priority > 0 else "waiting"
        return {"gated": "waiting-children", "active": "active", "completed": "completed", "dead": "failed"}[self.place]

    def retry_bounds(self, attempts: int) -> tuple[int, int]:
        """Least and most delay before the run after failure number ``attempts``."""
        if self.fixed:
            return int(self.backoff_ms * 0.8), int(self.backoff_ms * 1.2)
        base = self.backoff_ms * 2**attempts
        return min(3_600_000, int(base * 0.5)), min(3_600_000, int(base * 1.5))


@dataclass(slots=True)
class ModelQueue:
    """Policies of a queue."""

    paused: bool = False
    stall_enabled: bool = True
    stall_interval_ms: int = 30_000
    max_stalls: int = 3
    grace_ms: int = 5_000


@dataclass(slots=True)
class ModelBroker:
    """All queues.

    What the rules leave open, the broker chose: ``undecided`` holds jobs whose next run is random, with its bounds;
    ``unordered`` those that ended in the same instant, whose order among the dead letters is any. Whoever drives the model
    takes the choice over and clears them.
    """

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    queues: dict[str, ModelQueue] = field(default_factory=dict)
    proofs: dict[str, str] = field(default_factory=dict)  #: jobs that completed and were removed, with their queue
    retired: dict[str, str] = field(default_factory=dict)  #: token of a lease that a time-out ended → job
    undecided: dict[str, tuple[int, int]] = field(default_factory=dict)
    unordered: set[str] = field(default_factory=set)
    letters: int = 0

    # -- looking --------------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> ModelQueue:
        """Policies of a queue, made if it is new."""
        return self.queues.setdefault(name, ModelQueue())

    def of(self, queue: str, *places: Place) -> list[ModelJob]:
        """Jobs of a queue in any of ``places``."""
        return [job for job in self.jobs.values() if job.queue == queue and job.place in places]

    def ready(self, queue: str, now: int) -> list[ModelJob]:
        """Jobs that could be delivered now, in the order of delivery."""
        due = [job for job in self.of(queue, "ready") if job.run_at <= now]
        first = sorted((job for job in due if job.lifo), key=lambda job: job.id, reverse=True)
        rest = sorted((job for job in due if not job.lifo), key=lambda job: (job.run_at, job.id))
        return sorted(first + rest, key=lambda job: -job.priority)

    def counts(self, queue: str, now: int) -> dict[str, int]:
        """Jobs by state, without those that are zero."""
        counts: dict[str, int] = {}
        paused = queue in self.queues and self.queues[queue].paused
        for job in self.jobs.values():
            if job.queue == queue:
                state = job.state(now)
                if paused and state in ("waiting", "prioritized"):
                    state = "paused"
                counts[state] = counts.get(state, 0) + 1
        return counts

    def dead_letters(self, queue: str) -> list[str]:
        """Ids of dead letters in order of arrival."""
        return [job.id for job in sorted(self.of(queue, "dead"), key=lambda job: job.entered)]

    def met(self, id: str) -> bool:
        """Whether a dependency on ``id`` is met."""
        job = self.jobs.get(id)
        return id in self.proofs or (job is not None and job.place == "completed")

    # -- admission ------------------------------------------------------------------------------------------------------

    def push(self, wanted: Sequence[ModelJob], ids: Sequence[str], now: int) -> list[str]:
        """Admit jobs under the ids that the broker gave; the outcomes."""
        outcomes = []
        for job, id in zip(wanted, ids, strict=True):
            self.queue(job.queue)
            existing = self.jobs.get(id)
            if existing is not None and existing.place in ("ready", "gated", "active"):
                outcomes.append("found")
                continue
            self.proofs.pop(id, None)
            unmet = [other for other in job.depends_on if not self.met(other)]
            self.jobs.pop(id, None)
            self.jobs[id] = replace(job, id=id, heartbeat=job.created_at, place="gated" if unmet else "ready")
            outcomes.append("created")
        return outcomes

    # -- delivery -------------------------------------------------------------------------------------------------------

    def pull(self, queue: str, count: int, now: int) -> list[str]:
        """Ids that a pull must deliver, in order."""
        if queue in self.queues and self.queues[queue].paused:
            return []
        return [job.id for job in self.ready(queue, now)[:count]]

    def delivered(self, id: str, token: str | None, ttl_ms: int, session: str | None, now: int) -> None:
        """A pull delivered the job."""
        job = self.jobs[id]
        job.place = "active"
        job.started_at = job.heartbeat = now
        job.token = token
        job.ttl_ms = ttl_ms
        job.expires_at = now + ttl_ms
        job.renewals = 0
        job.session = session

    def give_back(self, id: str, token: str | None) -> None:
        """Nobody takes the delivery."""
        job = self.jobs.get(id)
        if job is not None and job.place == "active" and job.token == token:
            self._to_ready(job)

    def _to_ready(self, job: ModelJob, run_at: int | None = None) -> None:
        job.place = "ready"
        job.token = None
        job.session = None
        job.started_at = None
        if run_at is not None:
            job.run_at = run_at

    def _to_retry(self, job: ModelJob, attempts: int, now: int) -> None:
        least, most = job.retry_bounds(attempts)
        self._to_ready(job, now + least)
        if most > 0:
            self.undecided[job.id] = (now + least, now + most)

    # -- outcomes -------------------------------------------------------------------------------------------------------

    def _check_leases(self, outcomes: Iterable[tuple[str, str | None]]) -> None:
        for id, token in outcomes:
            self._check_lease(id, token)

    def _check_lease(self, id: str, token: str | None) -> None:
        job = self.jobs.get(id)
        if job is None or job.place != "active" or job.token is None or self._is_retired(id, token):
            return
        if not token or token != job.token:
            raise Refused(f"lease of {id}")

    def _is_retired(self, id: str, token: str | None) -> bool:
        return token is not None and self.retired.get(token) == id

    def ack(self, acks: Sequence[tuple[str, str | None, bytes | None, bool]], now: int) -> list[Verdict]:
        """Acknowledge (id, token, result, remove)."""
        self._check_leases((id, token) for id, token, _, _ in acks)
        verdicts: list[Verdict] = []
        for id, token, result, remove in acks:
            job = self.jobs.get(id)
            if self._is_retired(id, token):
                verdicts.append("already-finalized")
            elif job is not None and (job.place == "active" or (job.place == "ready" and job.attempts > 0)):
                self._complete(job, result, remove or job.remove_on_complete)
                verdicts.append("applied")
            else:
                verdicts.append("absent")
        return verdicts

    def _complete(self, job: ModelJob, result: bytes | None, remove: bool) -> None:
        self.undecided.pop(job.id, None)
        job.place = "completed"
        job.token = job.session = None
        job.result = result
        job.losses = 0
        if remove:
            del self.jobs[job.id]
            self.proofs[job.id] = job.queue
        for other in self.jobs.values():
            if other.place == "gated" and all(self.met(id) for id in other.depends_on):
                other.place = "ready"

    def fail(self, failures: Sequence[tuple[str, str | None, bool, bool]], now: int) -> list[Verdict]:
        """Record failures (id, token, unrecoverable, remove)."""
        self._check_leases((id, token) for id, token, _, _ in failures)
        verdicts: list[Verdict] = []
        for id, token, unrecoverable, remove in failures:
            job = self.jobs.get(id)
            if self._is_retired(id, token):
                verdicts.append("already-finalized")
            elif job is not None and job.place == "active":
                job.losses = 0
                self._failed(job, unrecoverable, remove, now)
                verdicts.append("applied")
            elif job is not None and job.place == "ready" and job.attempts > 0 and token:
                verdicts.append("already-finalized")
            else:
                verdicts.append("absent")
        return verdicts

    def _failed(
        self, job: ModelJob, unrecoverable: bool, remove: bool, now: int, reason: str = "max_attempts_exceeded"
    ) -> None:
        job.attempts += 1
        if unrecoverable or job.attempts >= job.max_attempts:
            self._end(job, reason, remove or job.remove_on_fail)
        else:
            self._to_retry(job, job.attempts, now)

    def _end(self, job: ModelJob, reason: str, remove: bool) -> None:
        self.undecided.pop(job.id, None)
        job.token = job.session = None
        job.losses = 0
        if remove:
            del self.jobs[job.id]
            return
        self.letters += 1
        job.place = "dead"
        job.entered = self.letters
        job.reason = reason

    # -- leases ---------------------------------------------------------------------------------------------------------

    def extend(self, id: str, token: str | None, duration_ms: int | None, now: int) -> bool:
        """Renew a lease."""
        job = self.jobs.get(id)
        if job is None or job.place != "active" or job.token is None or (token and token != job.token):
            return False
        if job.expires_at <= now:
            job.token = None
            return False
        job.expires_at = now + (job.ttl_ms if duration_ms is None else duration_ms)
        job.renewals += 1
        job.heartbeat = now
        return True

    def beat(self, id: str, token: str | None, now: int) -> bool:
        """Say that a job is worked on."""
        if token:
            return self.extend(id, token, None, now)
        job = self.jobs.get(id)
        if job is None or job.place != "active":
            return False
        job.heartbeat = now
        return True

    def release(self, session: str, now: int) -> int:
        """A connection ended."""
        lost = [
            job
            for job in self.jobs.values()
            if job.place == "active" and job.session == session and not (job.token is not None and job.renewals)
        ]
        for job in self.jobs.values():
            if job.session == session:
                job.session = None
        self.unordered.update(job.id for job in lost)
        for job in lost:
            job.losses += 1
            limit = self.queue(job.queue).max_stalls
            if 0 < limit <= job.losses:
                self._end(job, "stalled", job.remove_on_fail)
            elif job.losses > 1:
                self._to_retry(job, job.losses - 1, now)
            else:
                self._to_ready(job)
        return len(lost)

    def advance(self, now: int) -> None:
        """The clock shows ``now``: time-outs, expired leases and stalls happen."""
        active = [job for job in self.jobs.values() if job.place == "active"]
        self.unordered.update(job.id for job in active)
        for job in active:
            policy = self.queue(job.queue)
            started = job.started_at or 0
            silent_at = max(job.heartbeat + policy.stall_interval_ms + 1, started + policy.grace_ms) + 5_000
            if job.timeout_ms and started + job.timeout_ms <= now:
                if job.token is not None:
                    self.retired[job.token] = job.id
                self._failed(job, False, False, now, "timeout")
            elif job.token is not None and job.expires_at <= now:
                self._charge(job, now, backoff=False)
            elif policy.stall_enabled and silent_at <= now:
                self._charge(job, now, backoff=True)

    def _charge(self, job: ModelJob, now: int, *, backoff: bool, recovered: bool = False) -> None:
        job.attempts += 1
        job.stalls += 1
        limit = self.queue(job.queue).max_stalls
        remove = job.remove_on_fail and not recovered
        if job.attempts >= job.max_attempts:
            self._end(job, "max_attempts_exceeded", remove)
        elif job.stalls >= limit and (limit > 0 or (backoff and not recovered)):
            self._end(job, "stalled", remove)
        elif backoff:
            self._to_retry(job, job.attempts, now)
        else:
            self._to_ready(job)

    # -- control --------------------------------------------------------------------------------------------------------

    def cancel(self, id: str) -> None:
        """Remove a job that waits."""
        job = self.jobs.get(id)
        if job is None or job.place not in ("ready", "gated"):
            raise Refused(id)
        del self.jobs[id]
        self.undecided.pop(id, None)

    def discard(self, id: str, token: str | None) -> None:
        """Bury a queued or active job."""
        job = self.jobs.get(id)
        if job is None or job.place not in ("ready", "active"):
            raise Refused(id)
        self._check_current_lease(job, token)
        self._end(job, "unknown", False)

    def _check_current_lease(self, job: ModelJob, token: str | None) -> None:
        if job.place == "active" and job.token is not None and token != job.token:
            raise Refused(f"lease of {job.id}")

    def promote(self, id: str, now: int) -> None:
        """Make a delayed job ready."""
        job = self.jobs.get(id)
        if job is None or job.place != "ready" or job.run_at <= now:
            raise Refused(id)
        self._to_ready(job, now)
        self.undecided.pop(id, None)

    def change_delay(self, id: str, delay_ms: int, token: str | None, now: int) -> bool:
        """Set when a queued job runs, or hand an active one back until then."""
        job = self.jobs.get(id)
        if job is None or job.place not in ("ready", "active"):
            return False
        self._check_current_lease(job, token)
        self._to_ready(job, now + delay_ms)
        self.undecided.pop(id, None)
        return True

    def move_to_wait(self, id: str, token: str | None, now: int) -> None:
        """Make a job ready now."""
        job = self.jobs.get(id)
        if job is None or job.place in ("completed", "gated"):
            raise Refused(id)
        self._check_current_lease(job, token)
        if job.place == "dead":
            self.revive(id, now)
        elif job.place == "active" or job.run_at > now:
            self._to_ready(job, now)
            self.undecided.pop(id, None)

    def change_priority(self, id: str, priority: int, lifo: bool | None) -> None:
        """Move a queued job within the order."""
        job = self.jobs.get(id)
        if job is None or job.place != "ready":
            raise Refused(id)
        job.priority = priority
        if lifo is not None:
            job.lifo = lifo

    def drain(self, queue: str) -> int:
        """Remove everything that is queued."""
        gone = self.of(queue, "ready")
        for job in gone:
            del self.jobs[job.id]
            self.undecided.pop(job.id, None)
        return len(gone)

    def obliterate(self, queue: str) -> None:
        """Remove the queue with everything in it."""
        for id in [job.id for job in self.jobs.values() if job.queue == queue]:
            del self.jobs[id]
            self.undecided.pop(id, None)
        for id in [id for id, owner in self.proofs.items() if owner == queue]:
            del self.proofs[id]
        self.queues.pop(queue, None)

    def revive(self, id: str, now: int) -> bool:
        """Retry a dead letter."""
        job = self.jobs.get(id)
        if job is None or job.place != "dead":
            return False
        self._to_ready(job, now)
        job.attempts = job.stalls = job.losses = 0
        job.heartbeat = now
        return True

    def remove_dead_letter(self, id: str) -> bool:
        """Remove a dead letter."""
        job = self.jobs.get(id)
        if job is None or job.place != "dead":
            return False
        del self.jobs[id]
        return True

    def retry_completed(self, id: str, now: int) -> bool:
        """Run a completed job again."""
        job = self.jobs.get(id)
        if job is None or job.place != "completed":
            return False
        self._to_ready(job, now)
        job.attempts = job.losses = 0
        job.result = None
        return True

    # -- restarts -------------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """An orderly stop and start: active jobs wait again, uncharged."""
        for job in self.jobs.values():
            if job.place == "active":
                self._to_ready(job)
        self.retired.clear()

    def crash(self, undo: Sequence[tuple[str, ModelJob | None]], now: int) -> None:
        """The process died and another started.

        Args:
            undo: what pushes that were not committed had replaced: (id, earlier job or None), oldest first.
            now: time of the start.
        """
        for id, earlier in reversed(undo):
            self.undecided.pop(id, None)
            if earlier is None:
                self.jobs.pop(id, None)
            else:
                self.jobs[id] = earlier
        active = [job for job in self.jobs.values() if job.place == "active"]
        for job in sorted(active, key=lambda job: (job.started_at or 0, job.id)):
            self._charge(job, now, backoff=True, recovered=True)
        self.retired.clear()
