"""``Broker``: every verb of the queue, in one place. Server, CLI, dashboard and clients know only this.

Verbs come in bulk form first; a single operation is a bulk of one. Arguments are validated values from ``model``; results are
:class:`~bunqueue_core.answer.Answer` objects, ready at once where nothing has to be waited for. A verb either applies all it says,
or fails and applies nothing, unless it is said otherwise; its error is a
:class:`~bunqueue_core.model.errors.CommandError` whose text may go to a client as it is.

A storage driver's broker derives from :class:`Broker` and overrides what it offers. What it does not offer answers
:class:`~bunqueue_core.model.errors.CapabilityError`; ``capabilities`` says the same in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import CapabilityError

if TYPE_CHECKING:
    from bunqueue_core.model.job import JobSpec, JobState
    from bunqueue_core.model.requests import (
        Ack,
        Acknowledged,
        Counts,
        Delivery,
        DlqConfig,
        DlqEntry,
        DlqFilter,
        Event,
        Failure,
        Health,
        JobView,
        Page,
        Progress,
        PullRequest,
        Pushed,
        Renewal,
        StallConfig,
    )
    from bunqueue_core.storage.journal import SnapshotSource


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a broker offers. The conformance kit tests what is announced, and that the rest is refused.

    Attributes:
        driver: name of the storage driver.
        embedded: may be opened inside a client's process.
        multi_broker: several processes may serve one queue.
        persistent: jobs survive the end of the process.
        snapshots: offers a snapshot source for backups.
        control: pause, resume and the per-job management verbs.
        dead_letters: the dead-letter verbs.
        events: ``subscribe``.
    """

    driver: str
    embedded: bool = True
    multi_broker: bool = False
    persistent: bool = True
    snapshots: bool = False
    control: bool = True
    dead_letters: bool = True
    events: bool = True


class Broker:
    """The verbs. See the module's head for what holds for all of them."""

    capabilities: Capabilities

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> Answer[None]:
        """Open the storage, recover what it holds, and begin to serve."""
        raise NotImplementedError

    def drain(self) -> None:
        """Begin an orderly stop: hand nothing out any more and refuse adds (:class:`BrokerClosed`), but take outcomes.

        Pulls are answered empty, waiting ones not before their wait is over, so that workers do not spin. Idempotent.
        """

    @property
    def active_jobs(self) -> int:
        """Jobs that workers of this broker hold now: what an orderly stop waits for. Never waits."""
        return 0

    def close(self, deadline_s: float = 30.0) -> Answer[None]:
        """Write everything that was accepted, hand unfinished deliveries back uncharged, and release the storage.

        Idempotent. Parked pulls are answered empty. After ``deadline_s`` seconds the storage is released regardless.
        """
        raise NotImplementedError

    def health(self) -> Health:
        """Whether it can work now. Never waits."""
        raise NotImplementedError

    def statistics(self) -> dict[str, int | float]:
        """Numbers for ``Stats`` and metrics: totals, sizes of bounded collections, storage figures. Never waits.

        Every broker gives, over all queues, ``waiting`` (ready, without priority), ``prioritized``, ``paused`` (ready jobs of
        paused queues, which the first two leave out), ``delayed``, ``active``, ``waitingChildren``, ``completed`` (retained) and
        ``dlq``; since its start ``totalPushed``, ``totalPulled``, ``totalCompleted`` and ``totalFailed`` (for good). Others as
        it has them.
        """
        raise NotImplementedError

    def snapshot_source(self) -> SnapshotSource | None:
        """Where a backup takes its consistent copy from, None if the driver offers none."""
        return None

    # -- produce ------------------------------------------------------------------------------------------------------

    def push(self, queue: str, specs: Sequence[JobSpec]) -> Answer[Pushed]:
        """Admit jobs, all or none, in order.

        Answers at once for buffered jobs; after the commit that holds them when any of them is durable.

        Raises:
            NotFound: a job that one of them depends on, or its parent, does not exist.
            Conflict: deduplication, custom-id or group-capacity rules refuse one of them.
            StorageUnavailable: the storage refuses writes.
        """
        return self._unoffered("push")

    # -- consume ------------------------------------------------------------------------------------------------------

    def pull(self, request: PullRequest) -> Answer[list[Delivery]]:
        """Claim up to ``request.count`` jobs for processing.

        Waits up to ``request.wait_ms`` while there is none; then the list is empty. Once it holds jobs, their being active is
        committed. ``Answer.cancel()`` gives back what was claimed, uncharged.
        """
        return self._unoffered("pull")

    def ack(self, acks: Sequence[Ack]) -> Answer[Acknowledged]:
        """Complete jobs. All tokens are checked before anything is applied; then every member that can be is.

        Answers after the commit.

        Raises:
            LeaseLost: a token is missing or wrong; nothing was applied.
        """
        return self._unoffered("ack")

    def fail(self, failures: Sequence[Failure]) -> Answer[Acknowledged]:
        """Record failed attempts: retry with back-off, or end in the dead letters. Checks and answers as :meth:`ack`."""
        return self._unoffered("fail")

    def extend(self, renewals: Sequence[Renewal]) -> Answer[list[bool]]:
        """Renew leases: each now holds for its duration from now. A renewal without token renews whatever lease exists.

        False for a job without lease, a wrong token or a lease that has expired (which is dropped).
        """
        return self._unoffered("extend")

    def heartbeat(self, beats: Sequence[Renewal]) -> Answer[list[bool]]:
        """Say that active jobs are still worked on. With a token this renews the lease too; without, only the stall clock."""
        return self._unoffered("heartbeat")

    def progress(self, id: str, progress: int | float, message: str | None, keep_message: bool) -> Answer[None]:
        """Set an active job's progress (0..100). ``keep_message`` leaves the message as it is.

        Raises:
            NotFound: ``Job not found``, or ``Job is not active (current state: …)``.
        """
        return self._unoffered("progress")

    def release(self, session: str) -> Answer[int]:
        """End a connection: abort its parked pulls, hand back its deliveries that were never renewed. Gives their number."""
        return self._unoffered("release")

    # -- query --------------------------------------------------------------------------------------------------------

    def job(self, id: str) -> Answer[JobView | None]:
        """The job, wherever it is, or None."""
        return self._unoffered("job")

    def job_by_custom_id(self, custom_id: str) -> Answer[JobView | None]:
        """The job of that custom id as long as it is retained."""
        return self._unoffered("job_by_custom_id")

    def jobs(self, queue: str, states: Sequence[JobState], page: Page) -> Answer[list[JobView]]:
        """Jobs of ``queue`` in any of ``states`` (empty: all), by creation time then id."""
        return self._unoffered("jobs")

    def states(self, ids: Sequence[str]) -> Answer[list[JobState]]:
        """The state of each job; ``unknown`` for ids that are not known (any more)."""
        return self._unoffered("states")

    def results(self, ids: Sequence[str]) -> Answer[list[bytes | None]]:
        """The encoded result of each completed job; None where there is none."""
        return self._unoffered("results")

    def progress_of(self, id: str) -> Answer[Progress]:
        """Progress of an active job. Raises as :meth:`progress`."""
        return self._unoffered("progress_of")

    def counts(self, queue: str) -> Answer[Counts]:
        """Jobs of ``queue`` by state; all zero for an unknown queue."""
        return self._unoffered("counts")

    def counts_per_priority(self, queue: str) -> Answer[dict[int, int]]:
        """Queued jobs (waiting, prioritized, delayed) by priority."""
        return self._unoffered("counts_per_priority")

    def queues(self) -> Answer[list[str]]:
        """Names of all queues, in order of first appearance."""
        return self._unoffered("queues")

    def wait(self, id: str, timeout_ms: int) -> Answer[tuple[bool, bytes | None]]:
        """Wait until the job has completed: (True, result).

        (False, None) at once when it failed or vanished, or after ``timeout_ms``.

        Raises:
            NotFound: ``Job not found``.
        """
        return self._unoffered("wait")

    # -- control ------------------------------------------------------------------------------------------------------

    def pause(self, queue: str) -> Answer[None]:
        """Stop deliveries of ``queue``; pushes and active jobs go on. Idempotent, persisted."""
        return self._unoffered("pause")

    def resume(self, queue: str) -> Answer[None]:
        """Undo :meth:`pause` and wake parked pulls."""
        return self._unoffered("resume")

    def is_paused(self, queue: str) -> Answer[bool]:
        return self._unoffered("is_paused")

    # -- dead letters -------------------------------------------------------------------------------------------------

    def dead_letters(self, queue: str, count: int | None, filter: DlqFilter | None) -> Answer[list[DlqEntry]]:
        """Dead letters of ``queue``, oldest first: those that match ``filter``, at most ``count``."""
        return self._unoffered("dead_letters")

    def retry_dead_letters(
        self, queue: str, id: str | None = None, count: int | None = None, filter: DlqFilter | None = None
    ) -> Answer[int]:
        """Requeue dead letters with fresh attempts: those of ``filter``, else job ``id``, else the first ``count``, else all."""
        return self._unoffered("retry_dead_letters")

    def remove_dead_letter(self, queue: str, id: str) -> Answer[bool]:
        return self._unoffered("remove_dead_letter")

    def purge_dead_letters(self, queue: str) -> Answer[int]:
        return self._unoffered("purge_dead_letters")

    def dlq_config(self, queue: str) -> Answer[DlqConfig]:
        return self._unoffered("dlq_config")

    def set_dlq_config(self, queue: str, config: DlqConfig) -> Answer[None]:
        return self._unoffered("set_dlq_config")

    def stall_config(self, queue: str) -> Answer[StallConfig]:
        return self._unoffered("stall_config")

    def set_stall_config(self, queue: str, config: StallConfig) -> Answer[None]:
        return self._unoffered("set_stall_config")

    # -- events -------------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[Event], None], queue: str | None = None) -> Callable[[], None]:
        """Call ``listener`` with each event (of ``queue``, or of all), after the commit that makes it true.

        Listeners must return quickly; an exception is logged and ignored. Returns a function that ends the subscription.
        """
        raise CapabilityError("subscribe", self.capabilities.driver)

    def _unoffered(self, verb: str) -> Answer[Any]:
        return Answer.failed(CapabilityError(verb, self.capabilities.driver))


def single(answers: Answer[list[Any]]) -> Answer[Any]:
    """The only element of a bulk of one."""
    return answers.map(_first)


def _first(values: Iterable[Any]) -> Any:
    return next(iter(values))
