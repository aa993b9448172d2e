"""Signs of life that come right after a delivery, which are kept for a moment instead of being written at once.

A worker sends one for all that it has just pulled. The lease is new, so nothing is urgent; but many jobs are acknowledged a moment
later, and a renewal that is under way then would make the acknowledgement wait for its rows, and look at them twice. An
outcome with the lease's own token proves what the sign of life would have: it takes it along.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from bunqueue_core.answer import Answer
from bunqueue_core.model.requests import Renewal

#: Seconds that a sign of life waits for an outcome: nothing beside any lease, and long enough for jobs that take no time.
PATIENCE_S: Final = 0.025


class _Call:
    """One call, and which of its renewals wait: position by job id."""

    __slots__ = ("answer", "beats", "done", "waiting")

    def __init__(self, beats: Sequence[Renewal]) -> None:
        self.beats = beats
        self.done = [False] * len(beats)
        self.waiting = {beat.id: position for position, beat in enumerate(beats)}
        self.answer: Answer[list[bool]] = Answer()


class PatientBeats:
    """Belongs to the broker's event loop.

    Args:
        send: writes signs of life.
        spawn: starts a task that the broker awaits before it closes.
        pause: sleeps so many seconds, less when the broker stops.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Renewal]], Answer[list[bool]]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        pause: Callable[[float], Awaitable[object]],
    ) -> None:
        self._send = send
        self._spawn = spawn
        self._pause = pause
        self._calls: dict[str, _Call] = {}

    def hold(self, beats: Sequence[Renewal]) -> Answer[list[bool]]:
        """Write ``beats`` in a moment, but for those whose jobs are brought to an end until then."""
        call = _Call(beats)
        if len(call.waiting) < len(beats) or not self._calls.keys().isdisjoint(call.waiting):
            return self._send(beats)
        self._calls.update(dict.fromkeys(call.waiting, call))
        self._spawn(self._wait(call))
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

    async def _wait(self, call: _Call) -> None:
        await self._pause(PATIENCE_S)
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
