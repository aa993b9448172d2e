"""Group commit in front of the database: while one statement of a kind runs, the calls that arrive gather for the next.

A lone call is sent at once. Under load, statements, round trips and commits follow time instead of the number of calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

import psycopg

from bunqueue_core.answer import Answer
from bunqueue_core.model.errors import BackendBusy
from bunqueue_postgres.errors import is_disconnect, translate

T = TypeVar("T")

#: Rows that wait before a second statement of the kind starts beside the first, so that the database has work while the next
#: arrays are packed. Fewer rows gather instead: one commit for all is cheaper than two.
SECOND_LANE_ROWS: Final = 256

#: Statements of one kind at once.
LANES: Final = 2

#: Rows that one statement gathers at most; a single call may exceed it, and then goes alone.
GATHERED_ROWS: Final = 2_000

#: Rows that may wait to be gathered, over all calls; beyond, calls fail as busy. A bound of memory: connections bound
#: their commands in flight themselves.
WAITING_ROWS: Final = 200_000


class Call(Generic[T]):
    """One call that waits for its share of a statement."""

    __slots__ = ("answer", "input", "rows")

    def __init__(self, input: T, rows: int, answer: Answer[Any]) -> None:
        self.input = input
        self.rows = rows
        self.answer = answer


class Gatherer(Generic[T]):
    """Calls of one kind. Belongs to one event loop.

    Args:
        flush: runs the calls' statement and settles their answers, or sees to it that they are; an error it raises fails those
            not settled.
        spawn: starts a task that the broker awaits before it closes.
        separable: gives what two calls must not share within a statement (job ids); None if any may go together.
    """

    def __init__(
        self,
        flush: Callable[[list[Call[T]]], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        separable: Callable[[T], list[str]] | None = None,
    ) -> None:
        self._flush = flush
        self._spawn = spawn
        self._separable = separable
        self._waiting: deque[Call[T]] = deque()
        self._waiting_rows = 0
        self._running = 0

    @property
    def waiting_rows(self) -> int:
        """Rows that wait for a statement."""
        return self._waiting_rows

    def add(self, input: T, rows: int) -> Answer[Any]:
        """Send ``input`` with the next statement; the answer is settled by ``flush``."""
        if self._waiting_rows >= WAITING_ROWS:
            return Answer.failed(BackendBusy(f"{self._waiting_rows} rows wait for the database"))
        answer: Answer[Any] = Answer()
        self._waiting.append(Call(input, rows, answer))
        self._waiting_rows += rows
        if self._running == 0 or (self._running < LANES and self._waiting_rows >= SECOND_LANE_ROWS):
            self._running += 1
            # The task begins when the loop's present turn is over: what this turn brings goes together.
            self._spawn(self._run())
        return answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                calls = self._take()
                await self._send(calls)
                if self._running > 1 and self._waiting_rows < SECOND_LANE_ROWS:
                    return
        finally:
            self._running -= 1

    def _take(self) -> list[Call[T]]:
        waiting = self._waiting
        calls: list[Call[T]] = []
        rows = 0
        taken: set[str] = set()
        while waiting:
            call = waiting[0]
            if calls and rows + call.rows > GATHERED_ROWS:
                break
            if self._separable is not None:
                ids = self._separable(call.input)
                if calls and not taken.isdisjoint(ids):
                    break
                taken.update(ids)
            waiting.popleft()
            calls.append(call)
            rows += call.rows
        self._waiting_rows -= rows
        return calls

    async def _send(self, calls: list[Call[T]]) -> None:
        try:
            await self._flush(calls)
        except Exception as error:
            if len(calls) > 1 and isinstance(
                error, psycopg.DataError | psycopg.IntegrityError | psycopg.ProgrammingError
            ):
                # One call's value did it; nothing of the statement was applied. Each alone, so that only that one fails.
                for call in calls:
                    await self._send([call])
                return
            failure = translate(error) if isinstance(error, psycopg.Error) or is_disconnect(error) else error
            for call in calls:
                call.answer.fail(failure)
