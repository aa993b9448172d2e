"""The frame of the local broker: life cycle, recovery, commits and answers, parked pulls, work between calls.

One lock guards the engine; verbs may be called from any thread and from event loops. What must be durable before it is answered
waits for its generation's commit (see :mod:`bunqueue_core.storage.buffer`). A lone synchronous caller commits itself; under a
running event loop the commit happens between two rounds of the loop, for all commands of the round.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from bunqueue_core.answer import Answer
from bunqueue_core.broker.hosts import Host, LoopHost, ManualHost, ThreadHost
from bunqueue_core.broker.protocol import Broker, Capabilities
from bunqueue_core.broker.readthrough import ReadThrough
from bunqueue_core.broker.recovery import Recovery
from bunqueue_core.engine.base import EngineSettings
from bunqueue_core.engine.engine import Engine
from bunqueue_core.model.errors import BrokerClosed, CommandError, StorageUnavailable
from bunqueue_core.model.job import Location
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.requests import (
    Delivery,
    Event,
    GroupDefaults,
    Health,
    Notice,
    PullRequest,
)
from bunqueue_core.model.webhook import Webhook
from bunqueue_core.scheduling.definition import DefinitionReader
from bunqueue_core.scheduling.kinds import KINDS
from bunqueue_core.scheduling.repeat import Repeats
from bunqueue_core.scheduling.service import Scheduler
from bunqueue_core.storage.buffer import (
    FLUSH_INTERVAL_MS,
    FLUSH_JOBS,
    CriticalFailure,
    Waiter,
    WriteBuffer,
)
from bunqueue_core.storage.journal import Journal, KeepsLog, SnapshotSource

if TYPE_CHECKING:
    from bunqueue_core.model.rules import BackoffStrategy
    from bunqueue_core.model.schedule import ScheduleKind
    from bunqueue_core.plugins.drivers import JournalSettings

T = TypeVar("T")

#: Deadlines fired in one go before others get a turn.
DUE_AT_ONCE: Final = 1_000

#: Dead entries that the heap of wake-ups may hold beside as many live ones.
STALE_WAKES: Final = 1_000

#: A clock that differs by more than this from what was to be expected was set, or the process stood still; ms.
CLOCK_TOLERANCE_MS: Final = 1_000

#: Completed jobs that one retention tick deletes at most, and the time between two ticks, ms.
RETENTION_BATCH: Final = 1_000
RETENTION_INTERVAL_MS: Final = 10_000

#: Events that wait for their commit at most; more only come together while the storage is away for long, and are dropped then.
MAX_HELD_EVENTS: Final = 100_000

#: A journal's log is carried over once nothing has been committed for this long (at most twice as long), ms.
IDLE_MS: Final = 5_000


class _Committed(Answer[T]):
    """An answer whose value is known already and is given with the commit."""

    __slots__ = ("_outcome",)

    def __init__(self, frame: LocalFrame, outcome: T) -> None:
        super().__init__(frame)
        self._outcome = outcome

    def settle_commit(self, error: BaseException | None) -> None:
        if error is None:
            self.settle(self._outcome)
        else:
            self.fail(error)


class _Outcome:
    """A value that becomes an answer, which has been waited for already, with the commit."""

    __slots__ = ("_answer", "_value")

    def __init__(self, answer: Answer[Any], value: Any) -> None:
        self._answer = answer
        self._value = value

    def settle_commit(self, error: BaseException | None) -> None:
        if error is None:
            self._answer.settle(self._value)
        else:
            self._answer.fail(error)


class Claim:
    """Jobs that a pull has claimed: handed over with the commit, given back if nobody takes them or the commit does not come."""

    __slots__ = ("_answer", "_deliveries", "_frame")

    def __init__(self, frame: LocalFrame, answer: Answer[list[Delivery]], deliveries: list[Delivery]) -> None:
        self._frame = frame
        self._answer = answer
        self._deliveries = deliveries
        answer.on_cancel(self._cancelled)

    def settle_commit(self, error: BaseException | None) -> None:
        # A broker that is closed has handed its deliveries back already.
        taken = self._deliveries if self._frame.is_open else []
        if error is not None:
            self._answer.fail(error)
            self._frame.give_back(self._deliveries)
        elif not self._answer.settle(taken):
            self._frame.give_back(self._deliveries)

    def _cancelled(self, answer: Answer[list[Delivery]]) -> None:
        if answer.error is None:
            answer.settle([])
            self._frame.give_back(self._deliveries)


class ParkedPull:
    """A pull that waits for something to claim."""

    __slots__ = ("answer", "deadline", "request")

    def __init__(self, request: PullRequest, answer: Answer[list[Delivery]], deadline: int) -> None:
        self.request = request
        self.answer = answer
        self.deadline = deadline  #: epoch ms


class Wait:
    """Somebody who waits for the end of a job."""

    __slots__ = ("answer", "deadline", "id")

    def __init__(self, id: str, answer: Answer[tuple[bool, bytes | None]], deadline: int) -> None:
        self.id = id
        self.answer = answer
        self.deadline = deadline


class LocalFrame(Broker):
    """Everything of a local broker but its verbs. See the module's head.

    Args:
        journal: where the jobs are kept; None keeps them in memory only.
        ports: clock, ids, randomness.
        capabilities: what the storage driver announces.
        settings: bounds of the engine.
        strategies: back-off strategies by name.
        log: writes one record: level, message, fields.
        kinds: kinds of schedule.
        role: who works between calls: the running event loop (``server``), a thread (``embedded``), or the caller (``manual``).
    """

    def __init__(
        self,
        journal: Journal | None,
        *,
        ports: Ports,
        capabilities: Capabilities,
        settings: JournalSettings,
        strategies: Mapping[str, BackoffStrategy],
        log: Callable[..., None],
        role: Literal["server", "embedded", "manual"] = "embedded",
        kinds: Sequence[ScheduleKind] = KINDS,
    ) -> None:
        self.capabilities = capabilities
        self._journal = journal
        self._log_keeper = journal if isinstance(journal, KeepsLog) else None
        self._watching_log = False
        self._commits_seen = 0
        self._events_dropped = 0
        self._ports = ports
        self._now = ports.now
        self._settings = settings
        self._log = log
        self._lock = threading.RLock()
        self._engine = Engine(
            ports,
            EngineSettings(
                max_completed_jobs=settings.max_completed_jobs,
                persistent=journal is not None,
                strategies=strategies,
                repeat_successor=Repeats().successor,
            ),
            journaled=journal is not None,
        )
        self._scheduler = Scheduler(DefinitionReader(JobReader(strategies, Repeats().check_pattern), kinds))
        self._engine.scheduler = self._scheduler
        self._engine.has_worker = lambda queue: self.has_worker(queue)
        self._buffer: WriteBuffer | None = None
        self._stored: ReadThrough | None = None
        if journal is not None:
            self._stored = ReadThrough(journal, self._engine)
            self._buffer = WriteBuffer(
                journal, self._engine.marks, self._lock, ports.now, self._settled, self._critical, log
            )
        self._in_loop = role == "server"
        # Callers commit what they wait for, and producers what they have produced; the thread does the rest.
        self._others_commit = role == "embedded"
        self._host: Host = {"server": LoopHost, "embedded": ThreadHost, "manual": ManualHost}[role]()
        self._state: Literal["new", "open", "draining", "closed"] = "new"
        self._closing = threading.Lock()
        self._parked: dict[str, dict[ParkedPull, None]] = {}
        self._waits: dict[str, list[Wait]] = {}
        self._wakes: list[
            tuple[int, int, ParkedPull | Wait | str]
        ] = []  #: a name stands for the parked pulls of a queue
        self._stale_wakes = 0
        self._queue_wakes: dict[str, int] = {}  #: when something may become claimable by itself, epoch ms
        self._sequence = 0
        self._listeners: dict[int, tuple[str | None, Callable[[Event], None]]] = {}
        self._told: tuple[tuple[str | None, Callable[[Event], None]], ...] = ()  #: the same, replaced when it changes
        self._watchers: dict[int, Callable[[str, Mapping[str, Any]], None]] = {}
        self._webhook_watchers: dict[int, Callable[[Sequence[Webhook]], None]] = {}
        self._driving: dict[int, threading.Event] = {}
        self._loops_driving: set[int] = set()
        self._started_at = 0
        self._steady = ports.steady
        self._seen = (0, 0.0)  #: epoch ms and steady seconds of the last look at both clocks
        self._armed_for: int | None = None  #: when the host was asked to have work done, epoch ms
        self.on_critical: Callable[[CriticalFailure], None] | None = None

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> Answer[None]:
        if self._state != "new":
            raise RuntimeError("a broker is started once")
        journal = self._journal
        if journal is not None:
            journal.open()
            try:
                Recovery(self._engine, journal, self._settings.max_completed_jobs, self._log).run(self._now())
            except BaseException:
                journal.close()
                raise
        self._started_at = self._now()
        if self._steady is not None:
            self._seen = (self._started_at, self._steady())
        self._state = "open"
        self._engine.start_schedules()
        if self._settings.completed_retention_ms is not None:
            self._engine.agenda.set("retention", self._now(), self._retain)
        self._host.start(self._work, self._now, self._waiting_answers)
        with self._lock:
            self._arm()
        if hasattr(os, "register_at_fork"):
            forked = weakref.WeakMethod(self._abandon)

            def leave() -> None:
                method = forked()
                if method is not None:
                    method()

            os.register_at_fork(after_in_child=leave)
        return Answer.of(None)

    def _abandon(self) -> None:
        """The process was forked: in the child nobody works for this broker, and its storage is the parent's."""
        if self._state != "new":
            self._state = "closed"
        self._lock = threading.RLock()  # another thread of the parent may have held the old one
        self._closing = threading.Lock()
        self._parked.clear()
        self._waits.clear()

    @property
    def is_open(self) -> bool:
        """Whether it still works; one that drains does."""
        return self._state in ("open", "draining")

    def drain(self) -> None:
        """Begin an orderly stop: hand nothing out any more and refuse adds, but take outcomes."""
        with self._lock:
            if self._state == "open":
                self._state = "draining"

    @property
    def active_jobs(self) -> int:
        """Jobs that workers hold now."""
        with self._lock:
            return sum(len(queue.active) for queue in self._engine.queues.values())

    def close(self, deadline_s: float = 30.0) -> Answer[None]:
        with self._closing:  # whoever comes second waits until everything is written
            return self._close(deadline_s)

    def _close(self, deadline_s: float) -> Answer[None]:
        with self._lock:
            if self._state in ("closed", "new"):
                self._state = "closed"
                return Answer.of(None)
            self._state = "closed"
            parked = [parked for waiting in self._parked.values() for parked in waiting]
            waits = [wait for waiting in self._waits.values() for wait in waiting]
            for waiting in parked:
                self._unpark(waiting)
            self._waits.clear()
            if self.capabilities.persistent:
                self._engine.hand_back_all(self._now())
                self._engine.store_metrics(self._now())
        for waiting in parked:
            waiting.answer.settle([])
        for wait in waits:
            wait.answer.settle((False, None))
        self._host.stop()
        if self._buffer is not None and self._journal is not None:
            give_up_at = time.monotonic() + deadline_s
            while not self._buffer.flush(force=True) and time.monotonic() < give_up_at:
                threading.Event().wait(0.1)
            self._buffer.fail_waiters(BrokerClosed("Broker is closed"))
            unwritten = self._buffer.work_to_do
            self._journal.close()
            if unwritten:
                return Answer.failed(StorageUnavailable("changes could not be written before the deadline"))
        return Answer.of(None)

    def health(self) -> Health:
        buffer = self._buffer
        if self._state != "open":
            return Health(ready=False, problem="draining" if self._state == "draining" else "not open")
        if buffer is None or buffer.problem is None:
            return Health(ready=True)
        return Health(
            ready=False, degraded=True, problem=buffer.problem, disk_full=buffer.disk_full, since=buffer.failing_since
        )

    def statistics(self) -> dict[str, int | float]:
        with self._lock:
            engine = self._engine
            now = self._now()
            numbers = engine.tally(now)
            numbers.update(
                totalPushed=engine.totals.pushed,
                totalPulled=engine.totals.pulled,
                totalCompleted=engine.totals.completed,
                totalFailed=engine.totals.failed,
                queues=len(engine.queues),
                jobs=len(engine.jobs),
                blockedJobs=len(engine.blocked),
                sessions=len(engine.sessions),
                webhooks=len(engine.webhooks),
                webhooksEnabled=sum(webhook.enabled for webhook in engine.webhooks.values()),
                schedules=len(self._scheduler),
                schedulesPending=self._scheduler.pending,
                results=len(engine.results),
                logs=len(engine.logs),
                parkedPulls=sum(len(waiting) for waiting in self._parked.values()),
                uptimeMs=now - self._started_at,
                unwrittenRows=0,
                eventsDropped=self._events_dropped,
            )
            if self._buffer is not None and self._journal is not None:
                numbers.update(self._buffer.statistics())
                numbers["storageBytes"] = self._journal.size_bytes()
                numbers["storageLogBytes"] = self._log_keeper.log_bytes() if self._log_keeper is not None else 0
            return numbers

    def snapshot_source(self) -> SnapshotSource | None:
        return self._journal if self.capabilities.snapshots else None

    def flush(self) -> bool:
        """Write everything that was accepted so far. False if the storage failed; it is tried again by itself then."""
        return self._buffer.flush(force=True) if self._buffer is not None else True

    # -- the frame of a verb ------------------------------------------------------------------------------------------

    def _answer(self, value: T, now: int, *, durable: bool) -> Answer[T]:
        """End of a verb, under the lock: an answer with ``value``, after the commit if ``durable`` and there is a journal."""
        buffer = self._buffer
        engine = self._engine
        if durable and buffer is not None:
            answer = _Committed(self, value)
            self._wait_for_commit(answer, now)
            return answer
        if engine.woken or engine.chores or engine.finished_waits:
            self._follow_up(now)
        if buffer is None:
            if engine.events:
                self._deliver_now()
            self._arm()
            return Answer.of(value)
        if engine.events:
            self._pass_on_events(buffer)
        if buffer.flush_at is None and engine.marks.pending:
            buffer.flush_at = now + FLUSH_INTERVAL_MS
            self._host.at(buffer.flush_at)
        if self._in_loop and engine.marks.fresh >= FLUSH_JOBS and buffer.flush_at:
            buffer.flush_at = 0
            self._host.soon()
        if self._wakes:
            self._arm()
        return Answer.of(value)

    def _follow_up(self, now: int) -> None:
        """Do what a verb has left to be done: wake whoever waits, and note what follows from what is gone."""
        engine = self._engine
        if engine.woken:
            self._serve(now)
        if engine.chores:
            engine.do_chores(now)
        if engine.finished_waits:
            self._end_waits(now)

    def _wait_for_commit(self, waiter: Waiter, now: int) -> None:
        """End of a verb, under the lock, whose ``waiter`` is settled by the commit that holds what it changed."""
        buffer, engine = self._buffer, self._engine
        assert buffer is not None
        if engine.woken or engine.chores or engine.finished_waits:
            self._follow_up(now)
        buffer.add_waiter(waiter, now)
        if engine.events:
            self._hold_events()
        if self._in_loop:
            self._host.soon()
        else:
            # Whoever waits for it commits; the thread sees to answers that nobody waits for.
            self._host.at(now + FLUSH_INTERVAL_MS)
        if self._wakes or engine.timers.next() is not None:
            self._arm()

    def _pass_on_events(self, buffer: WriteBuffer | None) -> None:
        """Events of what need not be committed first leave at once, unless others that came before still wait."""
        if buffer is not None and (buffer.generation.waiters or buffer.generation.events):
            self._hold_events()
        else:
            self._deliver_now()

    def _hold_events(self) -> None:
        """Events of uncommitted changes leave with the commit."""
        assert self._buffer is not None
        held = self._buffer.generation.events
        if len(held) < MAX_HELD_EVENTS:
            held.extend(self._engine.events)
        else:
            self._events_dropped += len(self._engine.events)
        self._engine.events.clear()

    def _deliver_now(self) -> None:
        events = self._engine.events[:]
        self._engine.events.clear()
        self._deliver(events)

    def _deliver(self, events: Sequence[Event | Notice]) -> None:
        for event in events:
            if isinstance(event, Notice):
                self._tell_watchers(event)
                continue
            for queue, listener in self._told:
                if queue is None or queue == event.queue:
                    try:
                        listener(event)
                    except Exception as error:
                        self._log("warn", "Event listener failed", error=type(error).__name__, event=event.type)

    def _tell_watchers(self, notice: Notice) -> None:
        for watcher in list(self._watchers.values()):
            try:
                watcher(notice.name, notice.fields)
            except Exception as error:
                self._log("warn", "Watcher failed", error=type(error).__name__, event=notice.name)

    def _settled(self, events: Sequence[Event | Notice], waiters: Sequence[Waiter]) -> None:
        """A generation is on disk."""
        if not self._watching_log and self._log_keeper is not None:
            self._watch_log()
        if events:
            self._deliver(events)
        for waiter in waiters:
            try:
                waiter.settle_commit(None)
            except Exception as error:
                # Whatever one caller's callback does, the others are answered.
                self._log("error", "An answer's callback failed", error=type(error).__name__)

    def _critical(self, failure: CriticalFailure) -> None:
        self._log(
            "error",
            "CRITICAL: storage unavailable, adds are refused until it recovers",
            affectedJobs=len(failure.job_ids),
            attempts=failure.attempts,
            diskFull=failure.disk_full,
            problem=failure.problem,
        )
        if self.on_critical is not None:
            try:
                self.on_critical(failure)
            except Exception as error:
                self._log("error", "Critical callback failed", error=type(error).__name__)

    def _check_usable(self) -> None:
        """Refuse what would change a broker that is not there (any more); a draining one still takes outcomes."""
        if self._state in ("new", "closed"):
            self._check_open()

    def _check_open(self) -> None:
        if self._state != "open":
            raise BrokerClosed(
                "Server is shutting down; no new jobs are accepted"
                if self._state == "draining"
                else "Broker is closed"
                if self._state == "closed"
                else "Broker is not started"
            )

    def _waiting_answers(self) -> int:
        return len(self._buffer.generation.waiters) if self._buffer is not None else 0

    # -- work between calls -------------------------------------------------------------------------------------------

    def run_due(self) -> int:
        """Do everything that is due now: deadlines, parked pulls, flushes. Gives the number of deadlines fired."""
        fired = 0
        with self._lock:
            if self._state in ("new", "closed"):
                return 0
            engine = self._engine
            now = self._now()
            self._look_at_clocks(now)
            self._armed_for = None
            waiting = self._waiting_answers()
            deadline = engine.next_deadline()
            if deadline is not None and deadline <= now:
                try:
                    fired = engine.due(now, DUE_AT_ONCE)
                except Exception as error:
                    # What else is to be done must not wait for it.
                    self._log("error", "Work that was due failed", error=type(error).__name__, detail=str(error))
            if engine.overdue or engine.crowded:
                self._retain_stored(now)
            self._wake_waiters(now)
            self._follow_up(now)
            if engine.events:
                if self._buffer is None:
                    self._deliver_now()
                else:
                    self._hold_events()
            buffer = self._buffer
            if buffer is not None and not buffer.anything_to_do:
                # Whoever commits now would wait for this thread, which has nothing to commit.
                buffer.flush_at = None
                buffer.release_producers()
                buffer = None
            if buffer is not None:
                if self._others_commit and not fired and self._waiting_answers() == waiting:
                    later = buffer.put_off(now)
                    if later is not None:
                        self._host.at(later)
                        return fired
                buffer.flush_at = None
        if buffer is not None:
            buffer.flush()
        return fired

    def _work(self) -> None:
        try:
            self.run_due()
        except Exception as error:
            self._log("error", "Background work failed", error=type(error).__name__, detail=str(error))
        with self._lock:
            if self._state not in ("new", "closed"):
                self._arm()

    def _arm(self) -> None:
        """Tell the host when there is something to do next. Under the lock."""
        when = self._engine.next_deadline()
        if self._wakes and (when is None or self._wakes[0][0] < when):
            when = self._wakes[0][0]
        now = self._now()
        buffer = self._buffer
        if buffer is not None:
            again = buffer.next_try(now)
            if again is not None:
                when = again if when is None else min(when, again)
            elif buffer.generation.waiters and self._in_loop:
                when = 0
        if when is not None:
            if self._armed_for is None or when < self._armed_for:
                self._armed_for = max(when, now)
            self._host.at(when)

    def _look_at_clocks(self, now: int) -> None:
        """Notice that the clock was set, or that the process stood still: nobody loses a delivery for that.

        Leases and silences are measured on the clock that ``now`` comes from. When it jumps they move with it, and so does whoever
        waits. When the process stood still past a deadline, nobody could renew: leases get the time that was lost.
        """
        steady = self._steady
        if steady is None:
            return
        seen, seen_steadily = self._seen
        seconds = steady()
        self._seen = (now, seconds)
        jump = now - seen - round((seconds - seen_steadily) * 1000)
        if abs(jump) > CLOCK_TOLERANCE_MS:
            self._log("warn", "The clock was set, or the machine slept", jumpMs=jump)
            self._engine.clock_set(jump)
            for _, _, waiting in self._wakes:
                if not isinstance(waiting, str):
                    waiting.deadline += jump
            self._rebuild_wakes()
            if self._armed_for is not None:
                self._armed_for += jump
            seen += jump
        late = now - max(seen, self._armed_for if self._armed_for is not None else now)
        if late > CLOCK_TOLERANCE_MS:
            self._engine.grant(late + CLOCK_TOLERANCE_MS)  # renewals that arrived meanwhile have yet to be read

    def drive(self, answer: Answer[Any], timeout: float | None) -> None:
        """Wait in the calling thread; commit for all who wait rather than wait for another thread to do it."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        buffer = self._buffer
        event: threading.Event | None = None
        while not answer.ready:
            if buffer is not None and buffer.generation.waiters and buffer.flush():
                continue
            if event is None:
                event = threading.Event()
                self._driving[id(answer)] = event
                answer.add_callback(lambda _, event=event: event.set())  # type: ignore[misc]
                continue
            remaining = None if give_up_at is None else give_up_at - time.monotonic()
            if remaining is not None and remaining <= 0:
                break
            event.wait(remaining)
            event.clear()
        if event is not None:
            self._driving.pop(id(answer), None)

    def drive_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit on ``loop`` once it has run what is ready, for all its tasks that wait."""
        key = id(loop)
        if key in self._loops_driving or self._buffer is None or isinstance(self._host, LoopHost):
            return
        if not self._buffer.generation.waiters:
            return
        self._loops_driving.add(key)
        loop.call_soon(self._drive_loop, key)

    def _drive_loop(self, key: int) -> None:
        self._loops_driving.discard(key)
        if self._buffer is not None:
            self._buffer.flush()

    # -- parked pulls and waits ---------------------------------------------------------------------------------------

    def _schedule(self, waiting: ParkedPull | Wait | str, when: int) -> None:
        self._sequence += 1
        heapq.heappush(self._wakes, (when, self._sequence, waiting))

    def _counts(self, when: int, waiting: ParkedPull | Wait | str) -> bool:
        """Whether an entry of the heap of wake-ups still means something."""
        if isinstance(waiting, str):
            return self._queue_wakes.get(waiting) == when
        if isinstance(waiting, Wait):
            return waiting in self._waits.get(waiting.id, ())
        return waiting in self._parked.get(waiting.request.queue, ())

    def _stale_wake(self) -> None:
        """An entry of the heap of wake-ups means nothing any more; sweep them once they prevail."""
        self._stale_wakes += 1
        if self._stale_wakes > STALE_WAKES and self._stale_wakes * 2 > len(self._wakes):
            self._rebuild_wakes()

    def _rebuild_wakes(self) -> None:
        self._wakes = [
            (when if isinstance(waiting, str) else waiting.deadline, sequence, waiting)
            for when, sequence, waiting in self._wakes
            if self._counts(when, waiting)
        ]
        heapq.heapify(self._wakes)
        self._stale_wakes = 0

    def _retry_at(self, name: str, when: int | None) -> None:
        """Something in a queue may become claimable by itself at ``when`` (epoch ms): then its parked pulls try again."""
        if when is None:
            return
        known = self._queue_wakes.get(name)
        if known is None or when < known:
            if known is not None:
                self._stale_wake()
            self._queue_wakes[name] = when
            self._schedule(name, when)

    def _serve(self, now: int) -> None:
        """Something became claimable in queues with parked pulls: try those again, first come first served."""
        woken = self._engine.woken
        while woken:
            name = next(iter(woken))
            del woken[name]
            if self._state == "open":
                self._serve_queue(name, now)

    def _serve_queue(self, name: str, now: int) -> None:
        engine = self._engine
        refused: list[GroupDefaults] = []
        while True:
            # Looked up anew each time: whoever gets an answer may call verbs that serve the rest.
            waiting = self._parked.get(name)
            if not waiting:
                return
            parked: ParkedPull | None
            if refused:
                parked = next((each for each in waiting if each.request.group not in refused), None)
            else:
                parked = next(iter(waiting))
            if parked is None:
                return
            deliveries, retry_at = engine.pull(parked.request, now)
            if deliveries:
                self._claimed(parked, deliveries, now)
                continue
            self._retry_at(name, retry_at)
            queue = engine.queues.get(name)
            if parked.request.group is None or queue is None or not queue.claimable:
                return  # what a plain pull does not find nobody finds
            refused.append(parked.request.group)

    def _claimed(self, parked: ParkedPull, deliveries: list[Delivery], now: int) -> None:
        self._unpark(parked)
        claim = Claim(self, parked.answer, deliveries)
        if self._buffer is None:
            claim.settle_commit(None)
            return
        self._buffer.add_waiter(claim, now)
        driver = self._driving.get(id(parked.answer))
        if driver is not None:
            driver.set()  # the thread that waits for it commits
        self._host.soon()

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Put jobs back that nobody took: nothing is charged, and whoever waits for jobs gets them."""
        with self._lock:
            if self._state in ("new", "closed"):
                return
            now = self._now()
            for job, token in deliveries:
                current = self._engine.jobs.get(job.id)
                if current is not None:
                    self._engine.give_back(current, token, now)
            self._answer(None, now, durable=True)

    def _park(self, parked: ParkedPull, retry_at: int | None, now: int) -> None:
        """Let a pull wait."""
        name = parked.request.queue
        waiting = self._parked.setdefault(name, {})
        waiting[parked] = None
        self._count_waiting(name, waiting)
        self._schedule(parked, parked.deadline)
        self._retry_at(name, retry_at)
        self._follow_up(now)
        self._arm()

    def _unpark(self, parked: ParkedPull) -> None:
        name = parked.request.queue
        waiting = self._parked.get(name)
        if waiting is not None and parked in waiting:
            del waiting[parked]
            self._stale_wake()
            if not waiting:
                del self._parked[name]
                if self._queue_wakes.pop(name, None) is not None:
                    self._stale_wake()
            self._count_waiting(name, waiting)

    def _count_waiting(self, name: str, waiting: Mapping[ParkedPull, None]) -> None:
        engine = self._engine
        queue = engine.queues.get(name)
        if queue is not None:
            queue.waiters = len(waiting)
            if not waiting and name in engine.kept_for_waiters:
                engine.may_be_empty(name)
        elif waiting:
            engine.awaited[name] = len(waiting)
        else:
            engine.awaited.pop(name, None)

    def _wake_waiters(self, now: int) -> None:
        """Parked pulls and waits whose time has come."""
        while self._wakes and self._wakes[0][0] <= now:
            when, _, waiting = heapq.heappop(self._wakes)
            if not self._counts(when, waiting):
                self._stale_wakes = max(0, self._stale_wakes - 1)
            elif isinstance(waiting, str):
                del self._queue_wakes[waiting]
                self._engine.woken[waiting] = None
            elif isinstance(waiting, Wait):
                self._end_wait(waiting, (False, None))
            else:
                deliveries: list[Delivery] = []
                if self._state == "open":
                    deliveries, _ = self._engine.pull(waiting.request, now)
                if deliveries:
                    self._claimed(waiting, deliveries, now)
                else:
                    self._unpark(waiting)
                    waiting.answer.settle([])

    def _end_waits(self, now: int) -> None:
        """Jobs that somebody waits for have ended."""
        engine = self._engine
        ended = engine.finished_waits
        engine.finished_waits = {}
        for id in ended:
            for wait in self._waits.pop(id, []):
                self._stale_wake()
                job = engine.jobs.get(id)
                completed = ended[id] or (job is not None and job.location == Location.COMPLETED)
                value = (completed, engine.results.get(id) if job is not None else None)
                if self._buffer is None:
                    wait.answer.settle(value)
                else:
                    self._buffer.add_waiter(_Outcome(wait.answer, value), now)
                    self._host.soon()
            engine.watched.pop(id, None)

    def _end_wait(self, wait: Wait, value: tuple[bool, bytes | None]) -> None:
        waits = self._waits.get(wait.id, [])
        if wait in waits:
            waits.remove(wait)
            self._stale_wake()
        if not waits:
            self._waits.pop(wait.id, None)
            self._engine.watched.pop(wait.id, None)
        wait.answer.settle(value)

    def _change(self, function: Callable[[int], T]) -> Answer[T]:
        """A verb that changes something and is answered after its commit."""
        with self._lock:
            try:
                self._check_usable()
                now = self._now()
                value = function(now)
            except CommandError as error:
                return Answer.failed(error)
            return self._answer(value, now, durable=True)

    def _query(self, function: Callable[[int], T]) -> Answer[T]:
        with self._lock:
            try:
                return Answer.of(function(self._now()))
            except CommandError as error:
                return Answer.failed(error)

    # -- retention ----------------------------------------------------------------------------------------------------

    def _retain(self, now: int) -> None:
        """Delete completed jobs that are older than ``completed_retention_ms``, a bounded number at a time."""
        retention = self._settings.completed_retention_ms
        if retention is None:
            return
        engine = self._engine
        engine.agenda.set("retention", now + RETENTION_INTERVAL_MS, self._retain)
        before = now - retention
        try:
            if self._stored is not None:
                ids = self._stored.adopt_oldest(None, before, RETENTION_BATCH)
            else:
                ids = self._in_memory_before(before)
        except StorageUnavailable as error:
            self._log("warn", "Completed jobs could not be read; tried again later", error=str(error))
            return
        for id in ids:
            job = engine.jobs.get(id)
            if job is not None and job.location == Location.COMPLETED:
                engine.forget_completed(engine.queue(job.queue), job)
        if ids and engine.noticing:
            engine.notice("cleanup:completed-removed", count=len(ids))

    def _in_memory_before(self, before: int) -> list[str]:
        engine = self._engine
        old = takewhile(lambda job: (job.completed_at or 0) <= before, engine.completed_order.values())
        free = (job.id for job in old if job.location == Location.COMPLETED and not engine.dependents.get(job.id))
        return list(islice(free, RETENTION_BATCH))

    def _retain_stored(self, now: int) -> None:
        """Apply the retention of completed jobs that only the journal holds: they have to be read first."""
        engine, stored = self._engine, self._stored
        overdue, crowded = engine.overdue, engine.crowded
        engine.overdue, engine.crowded = {}, {}
        if stored is None:
            return
        try:
            stored.adopt(overdue)
            for name, count in crowded.items():
                queue = engine.queues.get(name)
                excess = queue.completed_count - count if queue is not None else 0
                if excess > 0:
                    oldest = stored.completed_before(name, now, min(excess, RETENTION_BATCH))
                    stored.adopt(oldest)
                    if engine.keep_newest(name, count, oldest):
                        engine.crowded[name] = count
        except StorageUnavailable as error:
            self._log("warn", "Completed jobs could not be read; tried again later", error=str(error))
            engine.overdue.update(overdue)
            engine.crowded.update(crowded)
            engine.agenda.set_earlier("stored-retention", now + RETENTION_INTERVAL_MS, lambda _: None)
            return
        engine.expire_stored(overdue, now)
        if engine.crowded:
            engine.agenda.set_earlier("stored-retention", now + 1, lambda _: None)

    # -- the journal's log --------------------------------------------------------------------------------------------

    def _watch_log(self) -> None:
        """Begin to look whether commits go on."""
        with self._lock:
            if self._state != "closed" and self._buffer is not None:
                self._watching_log = True
                self._commits_seen = self._buffer.commits
                self._engine.agenda.set("idle-log", self._now() + IDLE_MS, self._look_at_log)
                self._arm()

    def _look_at_log(self, now: int) -> None:
        """Have the log carried over if nothing has been committed since the last look; else look again later."""
        assert self._buffer is not None
        assert self._log_keeper is not None
        if self._buffer.commits == self._commits_seen:
            self._watching_log = False
            self._log_keeper.checkpoint_when_idle()
        else:
            self._commits_seen = self._buffer.commits
            self._engine.agenda.set("idle-log", now + IDLE_MS, self._look_at_log)

    # -- events -------------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[Event], None], queue: str | None = None) -> Callable[[], None]:
        with self._lock:
            self._sequence += 1
            key = self._sequence
            self._listeners[key] = (queue, listener)
            self._told = tuple(self._listeners.values())
            self._engine.listening = True

        def unsubscribe() -> None:
            with self._lock:
                self._listeners.pop(key, None)
                self._told = tuple(self._listeners.values())
                self._engine.listening = bool(self._listeners)

        return unsubscribe

    def subscribe_dashboard(self, listener: Callable[[str, Mapping[str, Any]], None]) -> Callable[[], None]:
        with self._lock:
            self._sequence += 1
            key = self._sequence
            self._watchers[key] = listener
            self._engine.noticing = True

        def unsubscribe() -> None:
            with self._lock:
                self._watchers.pop(key, None)
                self._engine.noticing = bool(self._watchers)

        return unsubscribe
