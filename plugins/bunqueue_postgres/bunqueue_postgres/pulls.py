"""Pulls of one queue: gathered into claims, parked while there is nothing, woken in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from bunqueue_core.answer import Answer
from bunqueue_core.model.requests import Delivery, PullRequest

#: Jobs that one claim takes at most, over all gathered pulls; a single pull may ask for more, and then goes alone.
CLAIMED_ROWS: Final = 500

#: Longest timer that is set at once, ms; a longer wait is armed again (an event loop counts in 32-bit milliseconds).
LONGEST_TIMER_MS: Final = 86_400_000


class Waiter:
    """One pull that has not been answered."""

    __slots__ = ("answer", "cancelled", "fresh", "last", "request", "timer", "turn")

    def __init__(self, request: PullRequest, turn: int) -> None:
        self.request = request
        self.turn = turn  #: order of arrival
        self.answer: Answer[list[Delivery]] = Answer()
        self.cancelled = False
        self.fresh = True  #: it has not looked yet
        self.last = request.wait_ms <= 0  #: the next look is the last: its time is up
        self.timer: asyncio.TimerHandle | None = None


Claim = Callable[["PullDesk", list[Waiter]], Awaitable[list[list[Delivery]]]]


class PullDesk:
    """The pulls of one queue at this broker. Belongs to the broker's event loop.

    Args:
        queue: its name.
        claim: claims for a list of pulls and gives each what it gets; must not raise for a queue that is not known.
        give_back: takes back deliveries that nobody took.
        spawn: starts a task that the broker awaits before it closes.
        idle: called when it holds nothing any more.
    """

    def __init__(
        self,
        queue: str,
        claim: Claim,
        give_back: Callable[[list[Delivery]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        idle: Callable[[PullDesk], None],
    ) -> None:
        self.queue = queue
        self._claim = claim
        self._give_back = give_back
        self._spawn = spawn
        self._idle = idle
        self._pending: deque[Waiter] = deque()
        self.parked: dict[Waiter, None] = {}  #: in order of arrival
        self._turns = 0
        self._draining = False
        self.limited = False  #: the queue had a limit when it was last claimed from
        self.watchful = False  #: it had a limit or groups then: the end of a job may let another start
        self._running = False
        self._claiming: list[Waiter] = []  #: those that the claim under way is for
        self._woken = 0  #: jobs announced while a claim was under way, which it may have missed
        self._due: asyncio.TimerHandle | None = None

    def pull(self, request: PullRequest) -> Answer[list[Delivery]]:
        """See ``Broker.pull``."""
        self._turns += 1
        waiter = Waiter(request, self._turns)
        waiter.answer = Answer(on_cancel=lambda _: self._cancel(waiter))
        if request.wait_ms > 0:
            self._arm(waiter, asyncio.get_running_loop().time() + request.wait_ms / 1000)
        self._pending.append(waiter)
        self._kick()
        return waiter.answer

    def wake(self, jobs: int) -> None:
        """``jobs`` jobs became claimable: let as many parked pulls as they can serve look again, the longest waiting first."""
        if self._running:
            self._woken += jobs
        if self.parked and not self._draining:
            self._unpark(jobs)
            self._kick()

    def wake_in(self, delay_ms: int) -> None:
        """A job becomes claimable in ``delay_ms``."""
        if not self.parked and not self._running:
            return  # whoever comes later looks for itself, and then at every poll
        loop = asyncio.get_running_loop()
        when = loop.time() + min(delay_ms, LONGEST_TIMER_MS) / 1000 + 0.001
        if self._due is None or self._due.when() > when:
            if self._due is not None:
                self._due.cancel()
            self._due = loop.call_at(when, self._fall_due)

    def _fall_due(self) -> None:
        self._due = None
        self.wake(1)

    def release(self, session: str) -> None:
        """Answer the session's pulls empty; what a claim under way finds for them is given back."""
        for waiter in self._unanswered():
            if waiter.request.session == session:
                self._drop(waiter)
                waiter.answer.settle([])
        self._rest()

    def drain(self) -> None:
        """Claim nothing any more; pulls wait out their time."""
        self._draining = True

    def close(self) -> None:
        """Answer every pull empty; what a claim under way finds is given back."""
        for waiter in self._unanswered():
            self._drop(waiter)
            waiter.answer.settle([])
        if self._due is not None:
            self._due.cancel()
            self._due = None

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _arm(self, waiter: Waiter, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        step = min(deadline, loop.time() + LONGEST_TIMER_MS / 1000)
        waiter.timer = loop.call_at(step, self._time_up, waiter, deadline)

    def _time_up(self, waiter: Waiter, deadline: float) -> None:
        if asyncio.get_running_loop().time() < deadline - 0.001:
            self._arm(waiter, deadline)
            return
        waiter.timer = None
        waiter.last = True
        if waiter in self.parked:
            del self.parked[waiter]
            self._pending.append(waiter)
            self._kick()

    def _unpark(self, jobs: int) -> None:
        woken: list[Waiter] = []
        for waiter in self.parked:
            if jobs <= 0:
                break
            woken.append(waiter)
            jobs -= waiter.request.count
        for waiter in woken:
            del self.parked[waiter]
        self._pending.extendleft(reversed(woken))

    def _unanswered(self) -> list[Waiter]:
        return [waiter for waiter in (*self.parked, *self._pending, *self._claiming) if not waiter.answer.ready]

    def _drop(self, waiter: Waiter) -> None:
        waiter.cancelled = True
        self.parked.pop(waiter, None)
        if waiter.timer is not None:
            waiter.timer.cancel()
            waiter.timer = None

    def _cancel(self, waiter: Waiter) -> None:
        """Nobody will take this pull's jobs."""
        if waiter.answer.ready:
            if waiter.answer.error is None and waiter.answer.value:
                self._give_back(waiter.answer.value)
            return
        self._drop(waiter)
        waiter.answer.settle([])
        self._rest()

    def _rest(self) -> None:
        if not (self._running or self._pending or self.parked):
            self._idle(self)

    # -- claiming -----------------------------------------------------------------------------------------------------

    def _kick(self) -> None:
        if not self._running and self._pending:
            self._running = True
            # The task begins when the loop's present turn is over: pulls of this turn share a claim.
            self._spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._pending:
                waiters = self._take()
                if waiters:
                    await self._serve(waiters)
        finally:
            self._running = False
            self._rest()

    def _take(self) -> list[Waiter]:
        if self.parked:
            # Whoever waits already has the first of what newcomers may find.
            asked = sum(waiter.request.count for waiter in self._pending if waiter.fresh)
            if asked:
                self._unpark(asked)
                self._pending = deque(sorted(self._pending, key=_turn))
        pending = self._pending
        for waiter in pending:
            waiter.fresh = False
        waiters: list[Waiter] = []
        rows = 0
        while pending:
            waiter = pending[0]
            if waiter.cancelled:
                pending.popleft()
                continue
            if waiters and rows + waiter.request.count > CLAIMED_ROWS:
                break
            pending.popleft()
            waiters.append(waiter)
            rows += waiter.request.count
        return waiters

    async def _serve(self, waiters: list[Waiter]) -> None:
        self._woken = 0
        self._claiming = waiters
        try:
            claimed = [[] for _ in waiters] if self._draining else await self._claim(self, waiters)
        except Exception as error:
            for waiter in waiters:
                if not waiter.cancelled:
                    self._drop(waiter)
                    waiter.answer.fail(error)
            return
        finally:
            self._claiming = []
        empty: list[Waiter] = []
        deliveries: list[Delivery]
        for waiter, deliveries in zip(waiters, claimed, strict=True):
            if waiter.cancelled:
                if deliveries:
                    self._give_back(deliveries)
            elif deliveries or waiter.last:
                if waiter.timer is not None:
                    waiter.timer.cancel()
                    waiter.timer = None
                waiter.answer.settle(deliveries)
            else:
                empty.append(waiter)
        if empty:
            if self.parked:
                empty = sorted([*self.parked, *empty], key=_turn)
            self.parked = dict.fromkeys(empty)
            if self._woken:
                self._unpark(self._woken)


def _turn(waiter: Waiter) -> int:
    return waiter.turn
