"""Sinks, each on a thread of its own behind a bounded queue: the broker feels neither their failures nor their slowness.

Events are gathered for a moment and handed over in batches, in order. When a sink cannot keep up, the oldest events that wait are
dropped; when a batch keeps failing, it is given up. Both are counted, and told to the sink itself: the next batch begins with an
event of type :data:`DROPPED` whose ``count`` says how many events are missing there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bunqueue_core.events.encoding import event_size
from bunqueue_core.model.requests import Event
from bunqueue_core.plugins.drivers import EventSink

#: Type of the event that stands for events that did not reach a sink; ``count`` says how many.
DROPPED: Final = "dropped"


@dataclass(frozen=True, slots=True)
class SinkBounds:
    """Bounds of one sink.

    Attributes:
        events: events that may wait; beyond, the oldest are dropped.
        bytes: payload bytes of those, about, with the same effect; one event may always wait.
        batch: events handed over at once, at most.
        linger_s: how long a batch gathers after its first event, seconds; it bounds how often the thread wakes.
        retry_pauses_s: pauses before a failed batch is tried again, seconds; after the last retry it is given up.
    """

    events: int = 10_000
    bytes: int = 64 * 1024 * 1024
    batch: int = 1_000
    linger_s: float = 0.02
    retry_pauses_s: tuple[float, ...] = (0.1, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class SinkStatistics:
    """Counters of one sink since its start.

    Attributes:
        name: the sink's name; a second one of that name has ``#2`` after it.
        received: events that the broker told.
        written: events that the sink took.
        dropped: events that were dropped because too many waited.
        lost: events that were given up: their batch kept failing, or the stop's deadline passed.
        failures: calls of the sink that failed.
        waiting: events that wait now.
    """

    name: str
    received: int
    written: int
    dropped: int
    lost: int
    failures: int
    waiting: int


class SinkRunner:
    """Runs one sink. Give :meth:`offer` to the broker as a listener.

    Args:
        sink: the sink; :meth:`stop` closes it.
        name: its name in log and counters.
        log: writes one record: level, message, fields.
        now: epoch ms, for the events that tell of missing ones.
        bounds: its bounds.
    """

    def __init__(
        self,
        sink: EventSink,
        *,
        name: str,
        log: Callable[..., None],
        now: Callable[[], int],
        bounds: SinkBounds | None = None,
    ) -> None:
        self.name = name
        self._sink = sink
        self._log = log
        self._now = now
        self._bounds = bounds or SinkBounds()
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Event, int]] = deque()
        self._bytes = 0
        self._awake = threading.Event()
        self._signalled = False
        self._open = True
        self._stopping = threading.Event()
        self._abandoned = False
        self._thread: threading.Thread | None = None
        self._received = 0
        self._written = 0
        self._dropped = 0
        self._lost = 0
        self._failures = 0
        self._untold = 0  # events that are missing since the last batch that got through
        self._failing = False

    # -- the broker's side --------------------------------------------------------------------------------------------

    def offer(self, event: Event) -> None:
        """Take an event; never blocks. What comes after :meth:`stop` is ignored."""
        size = event_size(event)
        bounds = self._bounds
        waiting = self._waiting
        with self._lock:
            if not self._open:
                return
            self._received += 1
            waiting.append((event, size))
            self._bytes += size
            if len(waiting) > bounds.events or self._bytes > bounds.bytes:
                self._drop_oldest()
            if self._signalled:
                return
            self._signalled = True
        self._awake.set()

    def _drop_oldest(self) -> None:
        bounds, waiting = self._bounds, self._waiting
        while len(waiting) > bounds.events or (self._bytes > bounds.bytes and len(waiting) > 1):
            self._bytes -= waiting.popleft()[1]
            self._dropped += 1
            self._untold += 1

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread is None and not self._stopping.is_set():
            # A daemon: a sink that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name=f"bunqueue-sink-{self.name}", daemon=True)
            self._thread.start()

    def ask_to_stop(self) -> None:
        """Begin what :meth:`stop` waits for: take no more events, hand over what waits, close the sink. Idempotent."""
        with self._lock:
            self._open = False
            self._stopping.set()
            self._awake.set()

    def stop(self, deadline_s: float) -> bool:
        """Hand over what waits, then close the sink; blocks. Idempotent.

        Args:
            deadline_s: seconds after which a sink that has not finished is left alone.

        Returns:
            False if it was left alone; what it did not take counts as lost.
        """
        self.ask_to_stop()
        thread = self._thread
        if thread is None:
            self._close()
            return True
        thread.join(max(0.0, deadline_s))
        if not thread.is_alive():
            return True
        with self._lock:
            known, self._abandoned = self._abandoned, True
            unwritten = len(self._waiting)
            self._lost += unwritten
            self._waiting.clear()
        if not known:
            self._log("error", "Event sink did not finish in time", sink=self.name, lostEvents=unwritten)
        return False

    def statistics(self) -> SinkStatistics:
        """Its counters now."""
        with self._lock:
            return SinkStatistics(
                name=self.name,
                received=self._received,
                written=self._written,
                dropped=self._dropped,
                lost=self._lost,
                failures=self._failures,
                waiting=len(self._waiting),
            )

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        bounds = self._bounds
        while True:
            self._awake.wait()
            if len(self._waiting) < bounds.batch:
                self._stopping.wait(bounds.linger_s)
            batch = self._take()
            if batch:
                self._hand_over(batch)
            elif self._stopping.is_set():
                break
            if self._abandoned:
                break
        self._close()

    def _take(self) -> list[Event]:
        with self._lock:
            count = min(len(self._waiting), self._bounds.batch)
            batch: list[Event] = []
            for _ in range(count):
                event, size = self._waiting.popleft()
                self._bytes -= size
                batch.append(event)
            if not self._waiting:
                self._signalled = False
                if not self._stopping.is_set():
                    self._awake.clear()
            return batch

    def _hand_over(self, batch: list[Event]) -> None:
        """Give a batch to the sink, again if it fails, and give it up after the last retry."""
        for pause in (*self._bounds.retry_pauses_s, None):
            with self._lock:
                untold = self._untold
            events = [Event(DROPPED, "", "", self._now(), {"count": untold}), *batch] if untold else batch
            error = self._write(events)
            if error is None:
                with self._lock:
                    self._written += len(batch)
                    self._untold -= untold
                if self._failing:
                    self._failing = False
                    self._log("info", "Event sink works again", sink=self.name)
                return
            self._failed(error)
            if pause is None or self._abandoned:
                break
            self._stopping.wait(pause)  # once it stops, the sink gets its other chances at once
        with self._lock:
            self._lost += len(batch)
            self._untold += len(batch)

    def _write(self, events: list[Event]) -> BaseException | None:
        try:
            self._sink.write(events)
        except BaseException as error:  # whatever it raises, its thread goes on
            return error
        return None

    def _failed(self, error: BaseException) -> None:
        with self._lock:
            self._failures += 1
        if not self._failing:  # said once until it works again: a sink may fail for hours
            self._failing = True
            self._log("warn", "Event sink failed", sink=self.name, error=type(error).__name__, detail=str(error))

    def _close(self) -> None:
        sink, self._sink = self._sink, _CLOSED
        if sink is _CLOSED:
            return
        try:
            sink.close()
        except BaseException as error:
            self._log("warn", "Event sink could not be closed", sink=self.name, error=type(error).__name__)


class _Closed:
    """Stands for a sink that was closed."""

    name = "closed"

    def write(self, events: object) -> None:
        """Take nothing."""

    def close(self) -> None:
        """Do nothing."""


_CLOSED: Final = _Closed()


class SinkRunners:
    """All sinks of a server.

    Args:
        sinks: the sinks that the configuration asks for.
        log: writes one record: level, message, fields.
        now: epoch ms.
        bounds: bounds of each.
    """

    def __init__(
        self,
        sinks: list[EventSink],
        *,
        log: Callable[..., None],
        now: Callable[[], int],
        bounds: SinkBounds | None = None,
    ) -> None:
        self.runners: list[SinkRunner] = []
        seen: dict[str, int] = {}
        for sink in sinks:
            number = seen[sink.name] = seen.get(sink.name, 0) + 1
            name = sink.name if number == 1 else f"{sink.name}#{number}"
            self.runners.append(SinkRunner(sink, name=name, log=log, now=now, bounds=bounds))

    def start(self) -> None:
        """Start every sink's thread. Idempotent."""
        for runner in self.runners:
            runner.start()

    def stop(self, deadline_s: float) -> bool:
        """Stop all at once, within ``deadline_s`` seconds altogether; blocks. False if any was left alone. Idempotent."""
        give_up_at = time.monotonic() + deadline_s
        for runner in self.runners:
            runner.ask_to_stop()
        finished = [runner.stop(give_up_at - time.monotonic()) for runner in self.runners]
        return all(finished)

    def statistics(self) -> list[SinkStatistics]:
        """Counters of every sink, in the order of the configuration."""
        return [runner.statistics() for runner in self.runners]


__all__ = ["DROPPED", "SinkBounds", "SinkRunner", "SinkRunners", "SinkStatistics"]
