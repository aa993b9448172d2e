"""The loop of a worker: pull, hand to the crew, report the outcomes, until it is closed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bunqueue_core.answer import Answer
from bunqueue_core.client._acompat import AEvent, asettled, aspawn
from bunqueue_core.client._crew_asyncio import AsyncioCrew
from bunqueue_core.client._stand_in import AStandIn
from bunqueue_core.client._target import Target
from bunqueue_core.client._verbs import Verbs
from bunqueue_core.client._worker_base import EMPTY_POLL_PAUSE_S, PULL_BACKOFF_S, Outcome, Postponed
from bunqueue_core.client._worker_limits import Gatherer
from bunqueue_core.client._worker_options import WorkerOptions
from bunqueue_core.client.endpoint_async import Endpoint
from bunqueue_core.client.job_async import Job
from bunqueue_core.client.queue_events_async import QueueEvents
from bunqueue_core.client.worker_timer_async import NOWHERE, WorkerTimer
from bunqueue_core.model.errors import AuthenticationError, BunqueueError, CommandError, ConnectionClosedError
from bunqueue_core.model.requests import Ack, Acknowledged, Failure

#: Outcomes under way: the answer that confirms them, and the outcomes in its order.
Settlement = tuple[Answer[Any], list[Outcome]]


class WorkerLoop(WorkerTimer):
    """A worker without its public face.

    One task or thread has the loop. It pulls as many jobs as there are free slots and reports, in the same trip, the outcomes
    that have gathered. While its pull waits for jobs (``_parked``), whoever ends a job reports the outcome itself; while the loop
    waits for a slot (``_sleeping``), whoever ends a job wakes it. Both flags are set before the loop looks a last time at what
    could keep it from waiting, and read after that has changed, so that nothing is missed.
    """

    _job_class = Job

    def __init__(
        self,
        target: Target,
        queue_key: str,
        processor: Callable[..., Any],
        concurrency: int,
        options: WorkerOptions,
        limiter: Mapping[str, Any] | None,
        batch: Mapping[str, Any] | None,
        name: str | None,
    ) -> None:
        super().__init__(queue_key, processor, concurrency, options, limiter, batch, name)
        self._endpoint = Endpoint(target)
        process = self._process if batch is None else self._process_batch
        self._crew = AsyncioCrew(f"bunqueue-{queue_key}", processor, process, self._work, lambda: self._concurrency)
        self._crew.on_watch(lambda: self._tick.set())
        self._stand_in = AStandIn(
            f"bunqueue-{queue_key}-leases",
            lambda: self._endpoint.verbs,
            lambda: self._renewals()[1],
            options.renewal_s,
            self._clock,
        )
        #: Told to stop when the worker closes, after the last outcome.
        self._companions: list[QueueEvents] = []
        self._started = self._paused = self._closing = self._forced = False
        self._failure: BaseException | None = None
        self._parked: Answer[Any] | None = None  #: the pull that may wait
        self._ended_pull: Answer[Any] | None = None  #: the pull that was cancelled, whose jobs were given back
        self._sleeping = self._flushing = self._flush_due = False
        self._registered = NOWHERE  #: generation of the connection on which it is registered
        self._failed_pulls = 0
        self._ready = AEvent()
        self._wake = AEvent()
        self._tick = AEvent()
        self._idle = AEvent()
        self._closed = AEvent()
        self._timer: Any = None

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def _work(self) -> bool:
        """The worker's loop, from the first pull to the end. False if it goes on elsewhere."""
        try:
            if not await self._loop():
                return False
        except Exception as error:
            self._failure = error
            self._closing = True
            self._report(error, "stopped")
            self._ready.set()
        await self._shut()
        return True

    async def _loop(self) -> bool:
        verbs = await self._open()
        while not self._closing:
            if verbs.generation != self._registered and not await self._register(verbs):
                continue
            if self._gatherer is not None and not await self._start_batches(self._gatherer):
                return False
            free = 0 if self._paused else self._free_slots()
            if free <= 0:
                if self._outcomes and not self._flushing:
                    await self._flush()
                else:
                    await self._wait_for_slot()
                continue
            try:
                jobs = await self._fetch(verbs, free)
            except CommandError as error:
                lasting = not self._is_transient(error) and not isinstance(error, AuthenticationError)
                if lasting and not self.listens("error"):
                    raise
                await self._pull_failed(error)
                continue
            except BunqueueError as error:
                await self._pull_failed(error)
                continue
            self._failed_pulls = 0
            if jobs:
                self._busy = True
                if not await self._start_jobs(jobs):
                    return False
            elif not self._closing:
                await self._found_nothing()
        return True

    async def _open(self) -> Verbs:
        verbs = await self._endpoint.open()
        if self._timer is None:
            self._timer = aspawn(f"bunqueue-{self.queue_key}-timer", self._keep_time)
        return verbs

    async def _register(self, verbs: Verbs) -> bool:
        """Tell the broker that this worker exists; it forgets workers whose connection was lost. False if it is out of reach."""
        fields = {
            "name": self.name,
            "queues": [self.queue_key],
            "concurrency": self._concurrency,
            "workerId": self.id,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "startedAt": float(self._started_at),
        }
        try:
            await asettled(verbs.command("RegisterWorker", fields))
        except AuthenticationError as error:
            # A token that was wrong from the start stays wrong. One that was right may have been changed on the server's side.
            if not self._ready.is_set() and not self.listens("error"):
                raise
            await self._pull_failed(error, "authentication")
            return False
        except CommandError as error:
            self._report(error, "register")
        except BunqueueError as error:
            await self._pull_failed(error, "register")
            return False
        self._registered = verbs.generation
        if not self._ready.is_set():
            self._ready.set()
            self.emit("ready")
        return True

    async def _fetch(self, verbs: Verbs, count: int) -> list[Job]:
        """Report the outcomes that are there and pull up to ``count`` jobs, in one trip and one commit."""
        settlements = self._send(verbs, self._take_outcomes(), flush=False)
        # After the last job the first look does not wait, so that listeners hear at once that the queue is drained.
        wait_ms = 0 if self._busy and not self._running else self._options.poll_timeout_ms
        if self._gatherer is not None:
            wait_ms = self._gatherer.wait_ms(self._options.poll_timeout_ms)
        late = self._stand_in.times
        pull = verbs.pull(self._request(count, wait_ms))
        with self._mutex:
            self._parked = pull
            flush = bool(self._outcomes) and not self._flushing
        try:
            if self._closing or self._paused:
                self._end_pull()  # whoever closes or pauses may not have seen it
            await self._settle(settlements)
            if flush:
                # Handed in after the outcomes were taken and before whoever did could see that this pull may wait.
                await self._flush()
            claims = pull.value if pull.ready else await asettled(pull)
        finally:
            with self._mutex:
                self._parked = None
                ended = self._ended_pull is pull
        if ended:
            return []
        jobs, sooner = self._lease(claims, verbs)
        if sooner:
            self._tick.set()
        if jobs and late != self._stand_in.times and self._options.use_locks:
            # They may have lain here while the event loop was blocked, and run elsewhere by now.
            jobs = await self._still_held(verbs, jobs)
        return jobs

    async def count_claimable(self) -> int:
        """Number of the queue's jobs that could be pulled now; 0 while it is paused."""
        verbs = await self._open()
        answer = await asettled(verbs.command("GetJobCounts", {"queue": self.queue_key}))
        counts = answer.get("counts") or {}
        return int(counts.get("waiting", 0)) + int(counts.get("prioritized", 0))

    def _end_pull(self) -> None:
        """End the wait of the pull that is under way; what it has claimed meanwhile is given back."""
        with self._mutex:
            pull = self._parked
            if pull is None or self._ended_pull is pull:
                return
            self._ended_pull = pull
        pull.cancel()

    async def _start_jobs(self, jobs: list[Job]) -> bool:
        limiter, gate = self._limiter, self._gate
        if self._gatherer is not None:
            self._gatherer.add(jobs)
            return True
        if limiter is not None:
            for _ in jobs:
                limiter.started()
        if gate is not None:
            jobs = [job for job in jobs if gate.enter(job)]
        return await self._crew.start(jobs)

    async def _start_batches(self, gatherer: Gatherer) -> bool:
        """Start the batches that are ready and have a slot. False if the loop goes on elsewhere."""
        leaders: list[Job] = []
        while self._batches + len(leaders) < self._concurrency:
            leader = gatherer.take()
            if leader is None:
                break
            leaders.append(leader)
            if self._limiter is not None:
                for _ in leader.get_batch():
                    self._limiter.started()
        with self._mutex:
            self._batches += len(leaders)
        return not leaders or await self._crew.start(leaders)

    async def _found_nothing(self) -> None:
        if self._gatherer:
            self._gatherer.add([])
            if not self._options.poll_timeout_ms:
                await self._rest(EMPTY_POLL_PAUSE_S)
            return
        if self._busy and not self._leases:
            self._busy = False
            self.emit("drained")
        elif not self._paused:
            await self._rest(EMPTY_POLL_PAUSE_S if self._options.poll_timeout_ms else self._options.drain_delay_s)

    async def _pull_failed(self, error: BunqueueError, context: str = "pull") -> None:
        pause = PULL_BACKOFF_S[min(self._failed_pulls, len(PULL_BACKOFF_S) - 1)]
        self._failed_pulls += 1
        if isinstance(error, ConnectionClosedError):
            self._registered = NOWHERE
        if not self._closing:
            self._report(error, context)
        await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        """Pause, unless outcomes are handed in or the worker closes."""
        self._sleeping = True
        if not self._closing and not self._outcomes:
            await self._wake.wait(seconds)
        self._sleeping = False
        self._wake.clear()

    async def _wait_for_slot(self) -> None:
        """Wait until a job can be pulled, outcomes are handed in or the worker closes."""
        self._sleeping = True
        # Looked at again after ``_sleeping`` is set: whoever changes it from now on wakes this.
        full = self._paused or self._free_slots() <= 0
        if full and not self._closing and not (self._outcomes and not self._flushing):
            await self._wake.wait(self._slot_wait_s())
        self._sleeping = False
        self._wake.clear()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def _process(self, job: Job) -> None:
        """Run the processor on ``job`` and hand in the outcome."""
        with self._mutex:
            self._waiting_jobs -= 1
            self._running += 1
        if "active" in self._listeners:
            self.emit("active", job)
        outcome: Outcome | None
        try:
            result = await self._crew.call(self._arguments(job) if self._wants_context else (job,))
        except BaseException as error:
            outcome = None if self._crew.cancelled(error) else self._raised(job, error)
        else:
            outcome = self._succeeded(job, result)
        if outcome is None or self._forced:
            outcome = None
            self._drop_lease(job)
        follower = self._gate.leave(job) if self._gate is not None else None
        with self._mutex:
            self._running -= 1
            if outcome is not None:
                self._outcomes.append(outcome)
            flush = self._parked is not None and outcome is not None and not self._flushing and self._flush_now()
        if follower is not None:
            await self._crew.hand_over([follower])
        if flush:
            await self._flush()
        elif self._sleeping:
            self._wake.set()
        if self._closing:
            self._idle.set()

    async def _process_batch(self, leader: Job) -> None:
        """Run the processor on the batch of ``leader`` and hand in the outcomes."""
        members: list[Job] = leader._batch or [leader]
        with self._mutex:
            self._waiting_jobs -= len(members)
            self._running += len(members)
        self._share_signal(members)
        for member in members:
            self.emit("active", member)
        result, error = None, None
        try:
            result = await self._crew.call(self._arguments(leader))
        except BaseException as raised:
            error = raised
        if error is not None and self._crew.cancelled(error):
            outcomes: list[Outcome] = []
            for member in members:
                self._drop_lease(member)
        else:
            outcomes = self._batch_outcomes(members, result, error)
        with self._mutex:
            self._running -= len(members)
            self._batches -= 1
            self._outcomes.extend(outcomes)
            flush = self._parked is not None and bool(outcomes) and not self._flushing and self._flush_now()
        if flush:
            await self._flush()
        elif self._sleeping:
            self._wake.set()
        if self._closing:
            self._idle.set()

    def _flush_now(self) -> bool:
        """Whether outcomes are to be reported now although the loop waits for jobs; else the timer is told."""
        size = self._options.ack_size
        if size is None or len(self._outcomes) >= size or not self._running:
            return True
        if not self._flush_due:
            self._flush_due = True
            self._tick.set()
        return False

    def _take_outcomes(self) -> list[Outcome]:
        with self._mutex:
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    async def _flush(self) -> None:
        """Report outcomes until there are none. Those that are handed in meanwhile leave together."""
        with self._mutex:
            if self._flushing:
                return
            self._flushing = True
        try:
            verbs = await self._endpoint.open()
            while True:
                with self._mutex:
                    outcomes, self._outcomes = self._outcomes, []
                    self._flush_due = False
                    if not outcomes:
                        self._flushing = False
                        return
                await self._settle(self._send(verbs, outcomes))
        finally:
            self._flushing = False

    def _send(self, verbs: Verbs, outcomes: list[Outcome], flush: bool = True) -> list[Settlement]:
        """Report ``outcomes``; what they come to must be awaited by :meth:`_settle`."""
        if not outcomes:
            return []
        settlements: list[Settlement] = []
        acks: list[Outcome] = []
        for outcome in outcomes:
            verb = outcome.verb
            if type(verb) is Ack:
                acks.append(outcome)
            elif type(verb) is Failure:
                settlements.append((verbs.fail(verb, flush=flush), [outcome]))
            elif type(verb) is Postponed:
                fields = {"id": outcome.job.id, "delay": verb.delay_ms, "token": outcome.job.token}
                settlements.append((verbs.command("MoveToDelayed", fields, flush=flush), [outcome]))
        size = self._options.ack_size or len(acks)
        for start in range(0, len(acks), size or 1):
            part = acks[start : start + size]
            settlements.append((verbs.ack([outcome.verb for outcome in part], flush=flush), part))  # type: ignore[misc]
        return settlements

    async def _settle(self, settlements: list[Settlement]) -> None:
        """Wait until outcomes are confirmed, and tell the listeners; or find out why they are not."""
        for answer, outcomes in settlements:
            try:
                result = answer.value if answer.ready else await asettled(answer)
            except BunqueueError as error:
                await self._not_taken(outcomes, error)
                continue
            if type(result) is not Acknowledged:
                self._drop_lease(outcomes[0].job)
                continue
            errors = result.errors
            for position, outcome in enumerate(outcomes):
                if errors and position in errors:
                    refusal = errors[position]
                    await self._not_taken(
                        [outcome], refusal if isinstance(refusal, BunqueueError) else CommandError(str(refusal))
                    )
                elif result.outcomes[position] == "applied":
                    self._confirmed(outcome)
                else:
                    self._drop_lease(outcome.job)

    async def _not_taken(self, outcomes: Sequence[Outcome], error: BunqueueError) -> None:
        if len(outcomes) > 1 and isinstance(error, CommandError) and not error.retryable:
            # One of them spoiled it for all: each by itself.
            verbs = await self._endpoint.open()
            for outcome in outcomes:
                await self._settle(self._send(verbs, [outcome]))
            return
        for outcome in outcomes:
            if self._refused(outcome, error):
                job, verbs = outcome.job, await self._endpoint.open()
                try:
                    await asettled(verbs.fail(Failure(job.id, str(error), job.token)))
                except BunqueueError as refusal:
                    self._report(refusal, "fail")

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _shut(self) -> None:
        """Everything after the loop: give back, wait, report, take leave."""
        verbs = self._endpoint.verbs
        if verbs is not None:
            await self._give_back(verbs, self._unstarted())
            while not self._forced:
                self._idle.clear()
                await self._flush()
                if not self._running and not self._outcomes and not self._flushing:
                    break
                if not self._forced:
                    # Whoever ends a job says so; a flush that another has begun is looked after from time to time.
                    await self._idle.wait(0.01 if self._flushing else None)
            if self._registered != NOWHERE:
                try:
                    await asettled(verbs.command("UnregisterWorker", {"workerId": self.id}, timeout=1.0))
                except BunqueueError as error:
                    if not self._forced and not isinstance(error, CommandError):
                        self._report(error, "unregister")
        self._crew.close(self._forced)
        for companion in self._companions:
            await companion.close()
        await self._endpoint.close()
        self._stand_in.close()
        self._closed.set()
        self._tick.set()
        self.emit("closed")

    def _unstarted(self) -> list[Job]:
        """Take out the jobs that were delivered and not started."""
        jobs: list[Job] = []
        for job in self._crew.take_unstarted():
            if job._batch is not None:
                with self._mutex:
                    self._batches -= 1
            jobs.extend(job._batch or [job])
        if self._gate is not None:
            jobs.extend(self._gate.clear())
        if self._gatherer is not None:
            jobs.extend(self._gatherer.clear())
        with self._mutex:
            jobs.extend(self._by_hand.values())
            self._by_hand.clear()
        return jobs

    async def _give_back(self, verbs: Verbs, jobs: Sequence[Job]) -> None:
        """Return jobs that were not started. What cannot be returned is run, since it is leased to us."""
        answers = [verbs.command("MoveToWait", {"id": job.id, "token": job.token}, flush=False) for job in jobs]
        for job, answer in zip(jobs, answers, strict=True):
            try:
                await asettled(answer)
            except BunqueueError:
                if not self._forced:
                    await self._run_here(job)
                    continue
            self._drop_lease(job)
            with self._mutex:
                self._waiting_jobs -= 1

    async def _run_here(self, job: Job) -> None:
        if self._gatherer is None:
            await self._process(job)
            return
        job._batch = [job]
        with self._mutex:
            self._batches += 1
        await self._process_batch(job)
