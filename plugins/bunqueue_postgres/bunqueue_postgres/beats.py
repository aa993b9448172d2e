"""Signs of life that come right after a delivery, which are kept for a moment instead of being written at once.

A worker sends one for all that it has just pulled. The lease is new, so nothing is urgent; but many jobs are acknowledged a moment
later, and a renewal that is under way then would make the acknowledgement wait for its rows, and look at them twice. An
outcome with the lease's own token proves what the sign of life would have: it takes it along.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from bunqueue_core.answer import Answer
from bunqueue_core.model.requests import Renewal
from bunqueue_postgres.events import TIMER_S

#: Seconds that a sign of life waits for an outcome: nothing beside any lease, and long enough for jobs that take no time.
PATIENCE_S: Final = 0.025


class _Call:
    """One call, and which of its renewals wait: position by job id."""

    __slots__ = ("answer", "beats", "done", "due", "waiting")

    def __init__(self, beats: Sequence[Renewal], due: float) -> None:
        self.beats = beats
        self.due = due
        self.done = [False] * len(beats)
        self.waiting = {beat.id: position for position, beat in enumerate(beats)}
        self.answer: Answer[list[bool]] = Answer()


class PatientBeats:
    """Belongs to the broker's event loop.

    Args:
        send: writes signs of life.
    """

    def __init__(self, send: Callable[[Sequence[Renewal]], Answer[list[bool]]]) -> None:
        self._send = send
        self._calls: dict[str, _Call] = {}  #: by job id, of what waits
        #: in order of time; those with nothing left to wait for go when theirs has come
        self._queue: deque[_Call] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, beats: Sequence[Renewal]) -> Answer[list[bool]]:
        """Write ``beats`` in a moment, but for those whose jobs are brought to an end until then."""
        loop = asyncio.get_running_loop()
        call = _Call(beats, loop.time() + PATIENCE_S)
        if len(call.waiting) < len(beats) or not self._calls.keys().isdisjoint(call.waiting):
            return self._send(beats)
        self._calls.update(dict.fromkeys(call.waiting, call))
        self._queue.append(call)
        if self._timer is None:
            self._timer = loop.call_at(call.due, self._fall_due)
        return call.answer

    def ended(self, id: str, token: str | None) -> None:
        """The job ``id`` was brought to an end under ``token``: its lease held until now."""
        call = self._calls.get(id)
        if call is None:
            return
        position = call.waiting[id]
        if call.beats[position].token in (None, "", token):
            del self._calls[id], call.waiting[id]
            call.done[position] = True
            if not call.waiting:
                call.answer.settle(call.done)

    def close(self) -> None:
        """Write what waits at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue:
            self._write(self._queue.popleft())

    def _fall_due(self) -> None:
        loop, queue = asyncio.get_running_loop(), self._queue
        self._timer = None
        until = loop.time() + TIMER_S
        try:
            while queue and queue[0].due <= until:
                self._write(queue.popleft())
        finally:
            if queue:
                self._timer = loop.call_at(queue[0].due, self._fall_due)

    def _write(self, call: _Call) -> None:
        positions = list(call.waiting.values())
        if not positions:
            return
        for id in call.waiting:
            del self._calls[id]

        def sent(answer: Answer[list[bool]]) -> None:
            if answer.error is not None:
                call.answer.fail(answer.error)
                return
            for position, renewed in zip(positions, answer.value, strict=True):
                call.done[position] = renewed
            call.answer.settle(call.done)

        self._send([call.beats[position] for position in positions]).add_callback(sent)
