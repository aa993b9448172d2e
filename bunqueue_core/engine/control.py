"""Control of queues and of single jobs."""

from __future__ import annotations

from bunqueue_core.engine.dependencies import DependencyRules
from bunqueue_core.model.requests import Event, StallConfig


class Controlling(DependencyRules):
    """The control verbs."""

    def pause(self, name: str, now: int) -> None:
        """Stop deliveries. Idempotent."""
        queue = self.queue(name)
        if not queue.paused:
            queue.paused = True
            self.mark_queue(queue)
        self._queue_event("paused", name, now)

    def resume(self, name: str, now: int) -> None:
        """Undo :meth:`pause`."""
        queue = self.queue(name)
        if queue.paused:
            queue.paused = False
            self.mark_queue(queue)
            self.wake(queue)
        self._queue_event("resumed", name, now)

    def _queue_event(self, type: str, name: str, now: int) -> None:
        if self.listening:
            self.events.append(Event(type, name, "", now))

    def set_stall_config(self, name: str, config: StallConfig) -> None:
        """Set a queue's stall policy; it holds for jobs that are active already, too."""
        queue = self.queue(name)
        queue.stall = config
        self.mark_queue(queue)
        self.rearm(queue)
