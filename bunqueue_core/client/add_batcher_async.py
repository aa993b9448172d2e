"""Adds that come while others are under way leave together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from bunqueue_core.answer import Answer
from bunqueue_core.client._acompat import AEvent, afinished, asettled, aspawn
from bunqueue_core.client._pooled import PooledVerbs
from bunqueue_core.client.remote import RemoteVerbs, bulk_entry
from bunqueue_core.model.errors import BunqueueError, ConnectionClosedError, SerializationError
from bunqueue_core.model.requests import Pushed

#: Largest batch that can be asked for.
MAX_SIZE = 1000

#: A job that waits for its batch, and the answer to whoever added it.
Waiting = tuple[dict[str, Any], Answer[Pushed]]


class AddBatcher:
    """Turns single adds into batches where that saves trips, and delays none where it does not.

    An add leaves at once while no other is under way. Those that come meanwhile wait for each other until that one is answered,
    there are ``max_size`` of them, or the first has waited ``max_delay_ms``; then they leave as one ``PUSHB``. A batch is added
    whole or not at all, so that what is wrong with one job of it fails all of them; a job that cannot be encoded fails alone.

    Args:
        queue_key: the queue.
        options: ``{"enabled": True, "max_size": 50, "max_delay_ms": 5}``, also in camelCase.
        clock: monotonic seconds.

    Raises:
        ValueError: an option is not known or out of its bounds.
    """

    def __init__(self, queue_key: str, options: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        given = dict(options)
        self.enabled = given.pop("enabled", True) is not False
        size = given.pop("max_size", given.pop("maxSize", 50))
        delay = given.pop("max_delay_ms", given.pop("maxDelayMs", given.pop("maxDelay", 5)))
        if given:
            raise ValueError(f"auto_batch has no option {next(iter(given))!r} (known: enabled, max_size, max_delay_ms)")
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_SIZE:
            raise ValueError(f"auto_batch.max_size must be an integer between 1 and {MAX_SIZE}, got {size!r}")
        if isinstance(delay, bool) or not isinstance(delay, int | float) or not delay >= 0:
            raise ValueError(f"auto_batch.max_delay_ms must be a number of at least 0, got {delay!r}")
        self._queue_key = queue_key
        self._size = size
        self._delay_s = delay / 1000
        self._clock = clock
        self._mutex = threading.Lock()
        self._waiting: list[Waiting] = []
        self._under_way = 0
        self._due: float | None = None  #: when the first of those that wait has waited long enough
        self._closed = False
        self._timer: Any = None
        self._idle = False  #: the timer waits for somebody to wait
        self._wake = AEvent()
        self._stopped = AEvent()

    def add(self, verbs: RemoteVerbs, name: str, data: Any, options: Mapping[str, Any] | None) -> Answer[Pushed]:
        """Add a job: now, or with others.

        Raises:
            TypeError: an option is not known.
        """
        if isinstance(verbs, PooledVerbs):
            verbs = verbs.pick()
        with self._mutex:
            if self._closed:
                return Answer.failed(ConnectionClosedError("AddBatcher stopped"))
            at_once = not self._under_way
            if at_once:
                self._under_way = 1
        if at_once:
            try:
                answer = verbs.add(self._queue_key, name, data, options)
            except BaseException:
                self._landed(verbs)
                raise
            answer.add_callback(lambda _: self._landed(verbs))
            return answer
        entry = bulk_entry({"name": name, "data": data, **(options or {})}, None)
        waiter: Answer[Pushed] = Answer(verbs.driver)
        with self._mutex:
            self._waiting.append((entry, waiter))
            batch = self._take() if len(self._waiting) >= self._size or not self._under_way else []
            if not batch and self._due is None:
                self._due = self._clock() + self._delay_s
            wake = self._idle
        if batch:
            self._send(verbs, batch)
        elif self._timer is None or afinished(self._timer):
            # The first one, or the loop of the last one has ended; events belong to a loop.
            self._wake, self._stopped = AEvent(), AEvent()
            self._timer = aspawn(f"bunqueue-{self._queue_key}-adds", self._keep_time, verbs)
        elif wake:
            self._wake.set()
        return waiter

    def _take(self) -> list[Waiting]:
        """What waits, as a batch that is under way from now on. Under the lock."""
        batch, self._waiting = self._waiting, []
        self._due = None
        if batch:
            self._under_way += 1
        return batch

    def _landed(self, verbs: RemoteVerbs) -> None:
        with self._mutex:
            self._under_way -= 1
            batch = self._take() if not self._under_way else []
        if batch:
            self._send(verbs, batch)

    def _send(self, verbs: RemoteVerbs, batch: list[Waiting]) -> None:
        answer = verbs.add_entries(self._queue_key, [entry for entry, _ in batch])
        answer.add_callback(lambda answer: self._answered(verbs, batch, answer))

    def _answered(self, verbs: RemoteVerbs, batch: list[Waiting], answer: Answer[Pushed]) -> None:
        error = answer.error
        if isinstance(error, SerializationError) and len(batch) > 1:
            # Nothing of it was sent.
            with self._mutex:
                self._under_way += len(batch)
            for waiting in batch:
                self._send(verbs, [waiting])
        elif error is not None:
            for _, waiter in batch:
                waiter.fail(error)
        else:
            for (_, waiter), id in zip(batch, answer.value.ids, strict=True):
                waiter.settle(Pushed([id], ["created"]))
        self._landed(verbs)

    async def _keep_time(self, verbs: RemoteVerbs) -> None:
        """Send what has waited long enough, until the batcher is stopped."""
        while not self._stopped.is_set():
            with self._mutex:
                due = self._due
                self._idle = due is None
            if due is None:
                await self._wake.wait(None)
                self._wake.clear()
                continue
            left = due - self._clock()
            if left > 0:
                await self._stopped.wait(left)
            with self._mutex:
                batch = self._take() if self._due is not None and self._due <= self._clock() else []
            if batch:
                self._send(verbs, batch)

    async def flush(self, verbs: RemoteVerbs) -> None:
        """Send what waits, and wait for its answers; whoever added it gets them."""
        with self._mutex:
            answers = [waiter for _, waiter in self._waiting]
            batch = self._take()
        if not batch:
            return
        self._send(verbs, batch)
        for answer in answers:
            try:
                await asettled(answer)
            except BunqueueError:
                continue

    def stop(self) -> None:
        """Add no more; what waits fails with ``AddBatcher stopped``. Idempotent."""
        with self._mutex:
            self._closed = True
            batch, self._waiting = self._waiting, []
            self._due = None
        for _, waiter in batch:
            waiter.fail(ConnectionClosedError("AddBatcher stopped"))
        self._stopped.set()
        self._wake.set()
