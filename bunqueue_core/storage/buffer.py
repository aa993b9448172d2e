"""The write buffer: group commit, retries and their limits, the same for every journal driver.

Whatever was marked since the last swap is one *generation*. Whoever must answer after the commit puts a waiter on the generation's
ticket; one commit settles them all. The rows are built at the swap, under the engine's lock, whole.

A commit that fails keeps its change set in front and is tried again with growing pauses; marks go on gathering behind it,
coalesced. After :data:`CRITICAL_TRIES` the critical callback is told once which jobs are affected, adds are refused, and one try
every 30 s goes on until it succeeds. Nothing is dropped while the process lives.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bunqueue_core.model.errors import JournalError, StorageUnavailable
from bunqueue_core.model.requests import Event, Notice
from bunqueue_core.storage.changes import ChangeSet
from bunqueue_core.storage.journal import Journal

#: Unwritten jobs at which a commit starts without waiting for the interval.
FLUSH_JOBS: Final = 100

#: A commit starts at most this long after the first unwritten buffered add, ms.
FLUSH_INTERVAL_MS: Final = 10

#: How long a producer that would write what it has produced waits for another thread's commit, s. Longer means that the disk is
#: slow; then it goes on, until too much is unwritten.
PRODUCER_PATIENCE_S: Final = 0.05

#: Pause before the first retry of a failed commit, doubled each time, ms.
FIRST_RETRY_MS: Final = 100

#: Longest pause between two tries, ms.
MAX_RETRY_MS: Final = 30_000

#: Failed tries in a row after which the storage counts as unavailable.
CRITICAL_TRIES: Final = 10

#: Unwritten rows above which a buffered add answers after its commit, too: a bound on memory and on what a crash can lose.
MAX_UNWRITTEN_ROWS: Final = 50_000

#: Unwritten payload bytes with the same meaning.
MAX_UNWRITTEN_BYTES: Final = 64 * 1024 * 1024

#: While commits fail, adds are refused once this many times those bounds are unwritten: memory stays bounded however long it takes.
MAX_UNWRITTEN_TIMES: Final = 2

#: An answer that has waited this long for its commit gets an error; its change stays queued. ms
COMMAND_DEADLINE_MS: Final = 30_000


class Waiter(Protocol):
    """Somebody who waits for a commit."""

    def settle_commit(self, error: BaseException | None) -> None:
        """The commit that was waited for succeeded, or is given up for."""


@dataclass(slots=True)
class CriticalFailure:
    """What the critical callback is told: the jobs whose changes are not written, how often it was tried, and why it failed."""

    job_ids: list[str]
    attempts: int
    disk_full: bool
    problem: str


class Generation:
    """Everything marked since the last swap: who waits for it and which events leave with it."""

    __slots__ = ("events", "opened_at", "waiters")

    def __init__(self) -> None:
        self.waiters: list[Waiter] = []
        self.events: list[Event | Notice] = []
        self.opened_at = 0  #: when the first waiter came (epoch ms)


class Source(Protocol):
    """What the buffer needs of the engine; called under the engine's lock."""

    @property
    def pending(self) -> bool: ...

    @property
    def rows(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def job_ids(self) -> Iterable[str]: ...

    def drain(self) -> ChangeSet: ...

    def committed(self) -> None: ...


class WriteBuffer:
    """See the module's head.

    Args:
        journal: where commits go.
        source: gives the marks.
        lock: the engine's lock.
        clock: epoch ms.
        on_settled: called, in commit order and outside all locks, with each generation that was committed.
        on_critical: the critical callback.
        log: told when commits fail and when they succeed again: level, message, fields.
    """

    def __init__(
        self,
        journal: Journal,
        source: Source,
        lock: threading.RLock,
        clock: Callable[[], int],
        on_settled: Callable[[Sequence[Event | Notice], Sequence[Waiter]], None],
        on_critical: Callable[[CriticalFailure], None],
        log: Callable[..., None],
    ) -> None:
        self._journal = journal
        self._source = source
        self._lock = lock
        self._clock = clock
        self._on_settled = on_settled
        self._on_critical = on_critical
        self._log = log
        self._commit_mutex = threading.Lock()
        self._settling = threading.Lock()
        self._settled: deque[Generation] = deque()
        self._stuck: tuple[ChangeSet, Generation] | None = None
        self._stuck_rows = 0
        self._stuck_bytes = 0
        self._retry_at = 0
        self._failed_first_at = 0
        self._put_off: int | None = None
        self._beginning: deque[threading.Lock] = deque()  #: held for producers until the next commit begins
        self.flush_at: int | None = None  #: when what is unwritten and unwaited for has to be on its way, epoch ms
        self.generation = Generation()
        self.failures = 0  #: failed tries in a row
        self.total_failures = 0
        self.commits = 0
        self.rows_written = 0
        self.disk_full = False
        self.problem: str | None = None
        self.failing_since: int | None = None

    # -- under the engine's lock --------------------------------------------------------------------------------------

    def add_waiter(self, waiter: Waiter, now: int) -> None:
        """Settle ``waiter`` with the commit that holds everything marked so far."""
        generation = self.generation
        if not generation.waiters:
            generation.opened_at = now
        generation.waiters.append(waiter)

    def check_available(self) -> None:
        """Refuse an add while the storage is given up for unavailable, or fails and too much is unwritten.

        Raises:
            StorageUnavailable: the last :data:`CRITICAL_TRIES` commits failed, or memory would not be bounded.
        """
        if self.failures and (
            self.failures >= CRITICAL_TRIES
            or self.unwritten_rows > MAX_UNWRITTEN_TIMES * MAX_UNWRITTEN_ROWS
            or self._stuck_bytes + self._source.bytes > MAX_UNWRITTEN_TIMES * MAX_UNWRITTEN_BYTES
        ):
            raise StorageUnavailable(self.problem or "writes fail")

    @property
    def unwritten_rows(self) -> int:
        """About how many rows are not written yet, those of a commit that is stuck included."""
        return self._stuck_rows + self._source.rows

    # -- committing ---------------------------------------------------------------------------------------------------

    @property
    def work_to_do(self) -> bool:
        """True if a commit would write or settle something."""
        return self._stuck is not None or self._source.pending or bool(self.generation.waiters)

    @property
    def anything_to_do(self) -> bool:
        """True if a commit would write, settle or tell something. Under the engine's lock."""
        return self.work_to_do or bool(self.generation.events)

    def next_try(self, now: int) -> int | None:
        """When a failed commit is tried again, or a waiting answer has to be given up for (epoch ms); None if all is well."""
        if self._stuck is None:
            return None
        waiting = [g.opened_at for g in (self._stuck[1], self.generation) if g.waiters]
        return min([self._retry_at, now + MAX_RETRY_MS, *(at + COMMAND_DEADLINE_MS for at in waiting)])

    def put_off(self, now: int) -> int | None:
        """When a thread that commits only what nobody else does has to (epoch ms); None if that is now. Under the engine's lock.

        Whoever waits for a commit makes it, and so does a producer once enough is unwritten. A second thread that came between
        would only take the interpreter from them, and would have to win it back for every statement. It is put off once: should
        the clock stand still or go back, the thread has waited long enough all the same.
        """
        if self._stuck is not None:
            return None
        when = self.flush_at
        if self.generation.waiters:
            opened_at = self.generation.opened_at
            if opened_at > now:
                return None  # the clock went back
            waited = opened_at + FLUSH_INTERVAL_MS
            when = waited if when is None else min(when, waited)
        if when is None or when <= now or when > now + FLUSH_INTERVAL_MS or when == self._put_off:
            return None
        self._put_off = when
        return when

    def flush(self, *, force: bool = False, patience_s: float = -1) -> bool:
        """Commit the present generation (or the one that is stuck, first). True unless the storage failed.

        Blocks while another thread commits: what it finds afterwards it commits itself, for all who wait.

        Args:
            force: try a stuck commit even before its time.
            patience_s: seconds to wait for another thread's commit, after which all is left to that thread and the result is
                False; -1 waits without limit.
        """
        if not self._commit_mutex.acquire(timeout=patience_s):
            return False
        try:
            done = self._flush(force)
        finally:
            self._commit_mutex.release()
            self.release_producers()
        if self._settled:
            self._settle()
        return done

    def flush_beside(self, soon: Callable[[], None]) -> None:
        """Have another thread commit what is unwritten, and come back as soon as it writes.

        The caller goes on producing beside the storage's work, but no further than one commit ahead: it first waits for the one
        that is under way. It waits for the beginning, too, because the other thread needs the interpreter until then, and would
        have to win it from the caller. Should one take long, the caller goes on; what is unwritten is bounded by others.

        Args:
            soon: has another thread call :meth:`flush` as soon as possible.
        """
        if self._stuck is not None:
            self.flush(patience_s=PRODUCER_PATIENCE_S)
            return
        if not self._commit_mutex.acquire(timeout=PRODUCER_PATIENCE_S):
            return
        self._commit_mutex.release()
        with self._lock:
            self.flush_at = 0
        begun = threading.Lock()
        begun.acquire()
        self._beginning.append(begun)
        soon()
        begun.acquire(timeout=PRODUCER_PATIENCE_S)

    def release_producers(self) -> None:
        """A commit begins, or there is nothing to commit: those of :meth:`flush_beside` go on."""
        while self._beginning:
            try:
                self._beginning.popleft().release()
            except IndexError:
                return

    def _flush(self, force: bool) -> bool:
        while True:
            if self._stuck is not None:
                now = self._clock()
                self._give_up_on_old(now)
                # A clock that was set back must not put the next try off.
                if not force and now < self._retry_at <= now + MAX_RETRY_MS:
                    return False
                changes, generation = self._stuck
            else:
                with self._lock:
                    if not self.anything_to_do:
                        return True
                    generation = self.generation
                    self.generation = Generation()
                    self.flush_at = None
                    try:
                        changes = self._source.drain()
                    except Exception as error:
                        self._unstorable(generation, error)
                        return False
            try:
                self.release_producers()
                if not changes.empty:
                    self._journal.commit(changes)
                    self.commits += 1
                    self.rows_written += changes.rows
            except JournalError as error:
                self._failed(changes, generation, error)
                return False
            except Exception as error:
                # A driver should not raise it; but nobody may wait for ever, and nothing may be lost, because one does.
                unexpected = JournalError(f"unexpected {type(error).__name__}")
                unexpected.__cause__ = error
                self._failed(changes, generation, unexpected)
                return False
            with self._lock:
                self._source.committed()
            was_stuck = self._stuck is not None
            if self.failures:
                self._recovered()
            self._settled.append(generation)
            if not was_stuck:
                return True

    def _unstorable(self, generation: Generation, error: Exception) -> None:
        """No rows could be made of the marks, which stay: a fault of ours. Whoever waits is told; adds are refused before long."""
        self.failures += 1
        self.total_failures += 1
        self.problem = "a change cannot be stored"
        if self.failures == 1:
            self._failed_first_at = self._clock()
        self.failing_since = self._failed_first_at
        self._log("error", "Rows could not be built", error=f"{type(error).__name__}: {error}", attempts=self.failures)
        for waiter in generation.waiters:
            waiter.settle_commit(StorageUnavailable(self.problem))

    def _recovered(self) -> None:
        self._log(
            "info",
            "Storage works again: everything is written",
            attempts=self.failures,
            durationMs=max(0, self._clock() - self._failed_first_at),
        )
        self._stuck = None
        self._stuck_rows = self._stuck_bytes = 0
        self.failures = 0
        self.disk_full = False
        self.problem = None

    def _failed(self, changes: ChangeSet, generation: Generation, error: JournalError) -> None:
        now = self._clock()
        if self._stuck is None:
            self._stuck_rows = changes.rows
            self._stuck_bytes = changes.bytes
            self._failed_first_at = now
        self._stuck = (changes, generation)
        self.failures += 1
        self.total_failures += 1
        self.disk_full = error.disk_full
        self.problem = "disk full" if error.disk_full else "database busy" if error.busy else "writes fail"
        self.failing_since = self._failed_first_at
        critical = self.failures >= CRITICAL_TRIES
        pause = MAX_RETRY_MS if critical else min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** (self.failures - 1))
        self._retry_at = now + pause
        self._log(
            "warn",
            "Commit failed, its changes are kept and tried again",
            error=str(error),
            attempt=self.failures,
            rows=self._stuck_rows,
            diskFull=self.disk_full,
            retryInMs=pause,
        )
        self._give_up_on_old(now)
        if self.failures == CRITICAL_TRIES:
            with self._lock:
                behind = list(self._source.job_ids)
            affected = dict.fromkeys([row.id for row in changes.put] + [row.id for row in changes.moved] + behind)
            self._on_critical(CriticalFailure(list(affected), self.failures, self.disk_full, self.problem))

    def _give_up_on_old(self, now: int) -> None:
        """Answer those who have waited too long; what they asked for stays queued."""
        for generation in (self._stuck[1] if self._stuck is not None else None, self.generation):
            if generation is None or not generation.waiters:
                continue
            if generation.opened_at > now:
                generation.opened_at = now  # the clock went back
            if generation.opened_at + COMMAND_DEADLINE_MS > now:
                continue
            with self._lock:
                waiters, generation.waiters = generation.waiters, []
            error = StorageUnavailable(self.problem or "writes fail")
            for waiter in waiters:
                waiter.settle_commit(error)

    def _settle(self) -> None:
        """Settle committed generations in order. One thread does it at a time; the others leave theirs to it."""
        while self._settled:
            if not self._settling.acquire(blocking=False):
                return
            try:
                while self._settled:
                    generation = self._settled.popleft()
                    self._on_settled(generation.events, generation.waiters)
            finally:
                self._settling.release()

    def fail_waiters(self, error: BaseException) -> None:
        """Answer everybody who still waits: the broker closes."""
        with self._lock:
            waiters = list(self.generation.waiters)
            self.generation.waiters = []
            if self._stuck is not None:
                waiters += self._stuck[1].waiters
                self._stuck[1].waiters = []
        for waiter in waiters:
            waiter.settle_commit(error)

    def statistics(self) -> dict[str, Any]:
        stuck = self._stuck
        return {
            "commits": self.commits,
            "commitFailures": self.total_failures,
            "rowsWritten": self.rows_written,
            "unwrittenRows": self.unwritten_rows,
            "retryingRows": stuck[0].rows if stuck is not None else 0,
        }
