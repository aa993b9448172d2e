"""``Broker``: every verb of the queue, in one place. Server, CLI, dashboard and clients know only this.

Verbs come in bulk form first; a single operation is a bulk of one. Arguments are validated values from ``model``; results are
:class:`~bunqueue_core.answer.Answer` objects, ready at once where nothing has to be waited for. A verb either applies all it says,
or fails and applies nothing, unless it is said otherwise; its error is a
:class:`~bunqueue_core.model.errors.CommandError` whose text may go to a client as it is.

A storage driver's broker derives from :class:`Broker` and overrides what it offers. What it does not offer answers
:class:`~bunqueue_core.model.errors.CapabilityError`; ``capabilities`` says the same in advance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bunqueue_core.answer import Answer, combined
from bunqueue_core.model.errors import CapabilityError
from bunqueue_core.model.requests import QueueSummary

if TYPE_CHECKING:
    from bunqueue_core.broker.workers import WorkerRecord
    from bunqueue_core.model.job import Job, JobSpec, JobState
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
        FlowJob,
        Health,
        JobView,
        LogEntry,
        Page,
        Progress,
        PullRequest,
        Pushed,
        QueueLimits,
        QueueMetrics,
        Renewal,
        StallConfig,
    )
    from bunqueue_core.model.webhook import Webhook, WebhookTally
    from bunqueue_core.scheduling.definition import Entry
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

    #: Whether an active worker is registered for a queue; whoever keeps the registry sets it. Asked by schedulers only.
    has_worker: Callable[[str], bool] = staticmethod(lambda queue: False)

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
        ``dlq``; since its start ``totalPushed``, ``totalPulled``, ``totalCompleted`` and ``totalFailed`` (for good), the last two
        since the storage's beginning, and of all brokers, where several share it. Others as it has them.
        """
        raise NotImplementedError

    def snapshot_source(self) -> SnapshotSource | None:
        """Where a backup takes its consistent copy from, None if the driver offers none."""
        return None

    def flush(self) -> bool:
        """Write everything that was accepted so far; False if the storage failed. A broker that buffers nothing has nothing to do.

        May block for one commit. In a server it is called from the server's event loop, like every verb.
        """
        return True

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

    def summaries(self, queues: Sequence[str]) -> Answer[list[QueueSummary]]:
        """Counts of many queues, and whether they are paused, in the order given.

        As it stands here it asks for each by itself; a broker that knows a shorter way overrides it.
        """
        answers: list[Answer[Any]] = [ask(queue) for queue in queues for ask in (self.counts, self.is_paused)]
        return combined(answers).map(
            lambda found: [
                QueueSummary(queue, counts, paused)
                for queue, counts, paused in zip(queues, found[::2], found[1::2], strict=True)
            ]
        )

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

    def count(self, queue: str) -> Answer[int]:
        """Size of the run set: waiting, prioritized and delayed jobs."""
        return self._unoffered("count")

    def drain_queue(self, queue: str) -> Answer[int]:
        """Remove all waiting, prioritized and delayed jobs. Gives their number."""
        return self._unoffered("drain_queue")

    def clean(self, queue: str, grace_ms: int | None, state: str | None, limit: int) -> Answer[list[str]]:
        """Remove jobs that are older than ``grace_ms``, oldest first, at most ``limit``; gives their ids.

        ``state`` None or any of the queued states means the run set, ``completed`` and ``failed`` those; other states remove
        nothing. Without a grace only dead letters match.
        """
        return self._unoffered("clean")

    def obliterate(self, queue: str) -> Answer[None]:
        """Remove a queue with everything in it: all jobs, active ones too, results, logs, limits and policies."""
        return self._unoffered("obliterate")

    def cancel(self, id: str) -> Answer[None]:
        """Remove a job that waits (queued, gated or parked).

        Raises:
            NotFound: ``Job not found or cannot be cancelled``.
        """
        return self._unoffered("cancel")

    def discard(self, id: str, token: str | None = None) -> Answer[None]:
        """Bury a queued or active job, with its lease's token if it has one. Raises NotFound, LeaseLost."""
        return self._unoffered("discard")

    def promote(self, id: str) -> Answer[None]:
        """Make a delayed job ready. Raises NotFound."""
        return self._unoffered("promote")

    def promote_jobs(self, queue: str, count: int | None = None) -> Answer[int]:
        """Make delayed jobs ready, oldest first, at most ``count``. Gives their number."""
        return self._unoffered("promote_jobs")

    def change_delay(self, id: str, delay_ms: int, token: str | None = None) -> Answer[bool]:
        """Let a queued job run ``delay_ms`` from now, or hand an active one back until then; False if it is neither."""
        return self._unoffered("change_delay")

    def move_to_wait(self, id: str, token: str | None = None) -> Answer[None]:
        """Make a job ready now, whether active, delayed or a dead letter. Raises Conflict, NotFound, LeaseLost."""
        return self._unoffered("move_to_wait")

    def move_to_waiting_children(self, id: str, token: str | None = None) -> Answer[None]:
        """Park an active job until it gets children that complete. Raises NotFound, LeaseLost."""
        return self._unoffered("move_to_waiting_children")

    def change_priority(self, id: str, priority: int, lifo: bool | None = None) -> Answer[None]:
        """Move a queued job within the order; ``lifo`` None keeps it as it is. Raises NotFound."""
        return self._unoffered("change_priority")

    def update_data(self, id: str, data: bytes) -> Answer[None]:
        """Replace a live job's payload (encoded); the topology keys of a flow in it are kept. Raises NotFound, ValidationError."""
        return self._unoffered("update_data")

    def retry_completed(
        self, queue: str, id: str | None = None, count: int | None = None, before: int | None = None
    ) -> Answer[int]:
        """Run completed jobs again: job ``id``, or the oldest that completed by ``before`` (epoch ms), up to ``count``."""
        return self._unoffered("retry_completed")

    def key_owner(self, queue: str, key: str) -> Answer[str | None]:
        """Id of the job that owns a deduplication key."""
        return self._unoffered("key_owner")

    def remove_key(self, queue: str, key: str) -> Answer[int]:
        """Free a deduplication key. Gives 1 if there was one."""
        return self._unoffered("remove_key")

    def remove_job_key(self, id: str) -> Answer[bool]:
        """Free the deduplication key that job ``id`` owns."""
        return self._unoffered("remove_job_key")

    # -- logs and metrics ---------------------------------------------------------------------------------------------

    def add_log(self, id: str, message: str, level: str) -> Answer[None]:
        """Append a line to a job's log. Raises NotFound."""
        return self._unoffered("add_log")

    def logs(self, id: str) -> Answer[list[LogEntry]]:
        """A job's log, oldest line first; empty for an unknown job."""
        return self._unoffered("logs")

    def clear_logs(self, id: str, keep: int = 0) -> Answer[None]:
        """Drop all but the newest ``keep`` lines."""
        return self._unoffered("clear_logs")

    def trim_events(self, queue: str, keep: int) -> Answer[int]:
        """Cut a queue's event journal to the newest ``keep`` events. Gives the number that went."""
        return self._unoffered("trim_events")

    def queue_metrics(self, queue: str, type: str, start: int = 0, end: int = -1) -> Answer[QueueMetrics]:
        """Jobs ``completed`` or ``failed`` by minute, newest first, in the inclusive window ``start..end``."""
        return self._unoffered("queue_metrics")

    # -- flows --------------------------------------------------------------------------------------------------------

    def push_flow(self, flow: Sequence[FlowJob]) -> Answer[list[Job]]:
        """Admit a graph whose topology has been validated, all or none; gives the jobs as admitted, in order. Raises Conflict."""
        return self._unoffered("push_flow")

    def update_parent(self, child_id: str, parent_id: str) -> Answer[None]:
        """Give an existing child its parent. Raises NotFound, Conflict."""
        return self._unoffered("update_parent")

    def remove_child_dependency(self, child_id: str) -> Answer[bool]:
        """Detach a child from its parent on both sides. Raises NotFound."""
        return self._unoffered("remove_child_dependency")

    def remove_unprocessed_children(self, parent_id: str) -> Answer[None]:
        """Cancel a parent's children that still wait; ones that others need are only detached."""
        return self._unoffered("remove_unprocessed_children")

    def children_values(self, id: str) -> Answer[dict[str, bytes]]:
        """Encoded results of a job's children by ``queue:id``."""
        return self._unoffered("children_values")

    def children_failures(self, id: str, mode: str) -> Answer[dict[str, str]]:
        """Errors of children that failed under policy ``continue`` or ``ignore``, by ``queue:id``."""
        return self._unoffered("children_failures")

    # -- limits and groups --------------------------------------------------------------------------------------------

    def set_rate_limit(
        self, queue: str, limit: float, duration_ms: int | None = None, ttl_ms: int | None = None
    ) -> Answer[None]:
        """At most ``limit`` deliveries per ``duration_ms`` (default 1000), as a token bucket; gone after ``ttl_ms``."""
        return self._unoffered("set_rate_limit")

    def clear_rate_limit(self, queue: str) -> Answer[None]:
        return self._unoffered("clear_rate_limit")

    def set_concurrency(self, queue: str, limit: float) -> Answer[None]:
        """At most ``limit`` active jobs of ``queue``."""
        return self._unoffered("set_concurrency")

    def clear_concurrency(self, queue: str) -> Answer[None]:
        return self._unoffered("clear_concurrency")

    def queue_limits(self, queue: str, max_jobs: int | None = None) -> Answer[QueueLimits]:
        return self._unoffered("queue_limits")

    def group_jobs_count(self, queue: str, group_id: str | None) -> Answer[int]:
        """Queued jobs of a group, of all groups with None."""
        return self._unoffered("group_jobs_count")

    def group_active_count(self, queue: str, group_id: str) -> Answer[int]:
        return self._unoffered("group_active_count")

    def set_group_rate_limit(self, queue: str, group_id: str, maximum: int, duration_ms: int) -> Answer[None]:
        """Store a group's own rate limit; it holds for pulls whose worker gives a default."""
        return self._unoffered("set_group_rate_limit")

    def group_rate_limit(self, queue: str, group_id: str) -> Answer[tuple[int, int] | None]:
        """A group's own rate limit: (maximum, duration in ms)."""
        return self._unoffered("group_rate_limit")

    def remove_group_rate_limit(self, queue: str, group_id: str) -> Answer[bool]:
        return self._unoffered("remove_group_rate_limit")

    def group_rate_limit_ttl(self, queue: str, group_id: str, max_jobs: int | None = None) -> Answer[int]:
        """ms until a group's manual limit or rate window ends; 0 if fewer than ``max_jobs`` were used; -2 if there is none."""
        return self._unoffered("group_rate_limit_ttl")

    def set_group_concurrency(self, queue: str, group_id: str, concurrency: int) -> Answer[None]:
        """Store a group's own bound of active jobs; it holds for pulls whose worker gives a default."""
        return self._unoffered("set_group_concurrency")

    def group_concurrency(self, queue: str, group_id: str) -> Answer[int | None]:
        return self._unoffered("group_concurrency")

    def remove_group_concurrency(self, queue: str, group_id: str) -> Answer[bool]:
        return self._unoffered("remove_group_concurrency")

    def pause_group(self, queue: str, group_id: str) -> Answer[bool]:
        """Stop deliveries of a group. False if it was paused already."""
        return self._unoffered("pause_group")

    def resume_group(self, queue: str, group_id: str) -> Answer[bool]:
        return self._unoffered("resume_group")

    def is_group_paused(self, queue: str, group_id: str) -> Answer[bool]:
        return self._unoffered("is_group_paused")

    def rate_limit_group(self, queue: str, group_id: str, duration_ms: int) -> Answer[None]:
        """Block a group for ``duration_ms`` from now."""
        return self._unoffered("rate_limit_group")

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

    def dlq_stats(self, queue: str) -> Answer[dict[str, Any]]:
        """Statistics of a queue's dead letters by their wire names."""
        return self._unoffered("dlq_stats")

    def dlq_config(self, queue: str) -> Answer[DlqConfig]:
        return self._unoffered("dlq_config")

    def set_dlq_config(self, queue: str, config: DlqConfig) -> Answer[None]:
        return self._unoffered("set_dlq_config")

    def stall_config(self, queue: str) -> Answer[StallConfig]:
        return self._unoffered("stall_config")

    def set_stall_config(self, queue: str, config: StallConfig) -> Answer[None]:
        return self._unoffered("set_stall_config")

    # -- schedules ----------------------------------------------------------------------------------------------------

    def upsert_schedule(self, request: Mapping[str, Any]) -> Answer[Entry]:
        """Create or change the scheduler that the wire-named ``request`` describes; an unchanged definition changes nothing.

        Raises:
            ValidationError: a field is not allowed, or the schedule has no run.
        """
        return self._unoffered("upsert_schedule")

    def schedule(self, name: str) -> Answer[Entry]:
        """The scheduler of that name. Raises NotFound: ``Cron job not found``."""
        return self._unoffered("schedule")

    def schedules(self) -> Answer[list[Entry]]:
        """All schedulers, oldest first."""
        return self._unoffered("schedules")

    def remove_schedule(self, name: str) -> Answer[None]:
        """Forget a scheduler; jobs that it made stay. Raises NotFound."""
        return self._unoffered("remove_schedule")

    def preview_schedule(self, request: str | Mapping[str, Any], count: int) -> Answer[list[int]]:
        """The next ``count`` runs (epoch ms) of a scheduler, given by name or as a request that is not stored."""
        return self._unoffered("preview_schedule")

    # -- workers ------------------------------------------------------------------------------------------------------

    def share_workers(self, workers: Sequence[WorkerRecord], gone: Sequence[str] = ()) -> Answer[None]:
        """Let all brokers of the storage know workers as they are now, and those of ids ``gone`` no more.

        They are this broker's: they go with it, and after 90 s of silence. A broker alone on its storage tells nobody.
        """
        return Answer.of(None)

    def foreign_workers(self) -> Answer[list[WorkerRecord]]:
        """Workers that other brokers of the storage have shared and heard of within 90 s, by id."""
        return Answer.of([])

    # -- webhooks -----------------------------------------------------------------------------------------------------

    def add_webhook(self, webhook: Webhook) -> Answer[None]:
        """Keep a new webhook, whose URL and events have been checked.

        Raises:
            Conflict: ``Too many webhooks (max 1000)``.
        """
        return self._unoffered("add_webhook")

    def remove_webhook(self, id: str) -> Answer[None]:
        """Forget a webhook. Raises NotFound: ``Webhook not found``."""
        return self._unoffered("remove_webhook")

    def set_webhook_enabled(self, id: str, enabled: bool) -> Answer[None]:
        """Switch a webhook on or off. Idempotent. Raises NotFound: ``Webhook not found``."""
        return self._unoffered("set_webhook_enabled")

    def webhooks(self) -> Answer[list[Webhook]]:
        """All webhooks, oldest first, with their counters."""
        return self._unoffered("webhooks")

    def tally_webhooks(self, tallies: Sequence[WebhookTally]) -> Answer[None]:
        """Add outcomes to the webhooks' counters; those of unknown webhooks are ignored. Need not wait for a commit."""
        return self._unoffered("tally_webhooks")

    def watch_webhooks(self, listener: Callable[[Sequence[Webhook]], None]) -> Callable[[], None]:
        """Call ``listener`` with all webhooks, now or soon, and again when one was added, removed or switched.

        Whichever broker of the storage did it. Calls come one at a time, from any thread, and must return quickly. Counters in
        them may be old. Returns a function that ends it.
        """
        raise CapabilityError("watch_webhooks", self.capabilities.driver)

    # -- events -------------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[Event], None], queue: str | None = None) -> Callable[[], None]:
        """Call ``listener`` with each event (of ``queue``, or of all), after the commit that makes it true.

        It is called with the events of verbs that are called after this, and with none of those that were answered before. Whether
        a verb's events are told before its answer is the driver's choice: see :meth:`heard`.

        Listeners must return quickly; an exception is logged and ignored. Returns a function that ends the subscription.
        """
        raise CapabilityError("subscribe", self.capabilities.driver)

    def heard(self) -> Answer[None]:
        """Wait until listeners were called with the events of every verb that was answered before this call.

        For whoever must not tell of an answer before the events that belong to it. Ready at once where listeners are always called
        before answers are given.
        """
        return Answer.of(None)

    def subscribe_share(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """As :meth:`subscribe` for all queues, but of all brokers on one storage each event reaches the listeners of one only.

        For what must happen once an event, such as the calls of webhooks.
        """
        return self.subscribe(listener)

    def subscribe_dashboard(self, listener: Callable[[str, Mapping[str, Any]], None]) -> Callable[[], None]:
        """Tell ``listener`` what the broker does besides job events that people who watch it want to know.

        It gets a name such as ``job:expired`` and its fields, under the conditions of :meth:`subscribe`. A broker that tells
        nothing but events does nothing here. Returns a function that ends it.
        """
        return lambda: None

    def _unoffered(self, verb: str) -> Answer[Any]:
        return Answer.failed(CapabilityError(verb, self.capabilities.driver))


def single(answers: Answer[list[Any]]) -> Answer[Any]:
    """The only element of a bulk of one."""
    return answers.map(_first)


def _first(values: Iterable[Any]) -> Any:
    return next(iter(values))
