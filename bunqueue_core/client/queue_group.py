# Written by tools/async_to_sync.py from queue_group_async.py: edit that file and run the tool, not this one.
"""Queues that belong together by the beginning of their names."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from bunqueue_core.client.queue import Queue
from bunqueue_core.client.worker import Worker


class QueueGroup:
    """Queues under one namespace: each has ``namespace:`` before its name.

    Args:
        namespace: the common beginning; a colon is added where it does not end with one.
        **options: of the queues and workers, where their own calls give none (see :class:`Queue`, :class:`Worker`).

    Raises:
        ValueError: the namespace is empty.
    """

    def __init__(self, namespace: str, **options: Any) -> None:
        if not namespace or namespace == ":":
            raise ValueError("namespace must not be empty")
        #: What goes before the names.
        self.prefix = namespace if namespace.endswith(":") else f"{namespace}:"
        self._options = options
        self._queues: dict[str, Queue] = {}

    def get_queue(self, name: str, **options: Any) -> Queue:
        """The queue ``name`` of the group; the same object each time. ``options`` count the first time."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = Queue(name, prefix_key=self.prefix, **{**self._options, **options})
        return queue

    def get_worker(self, name: str, processor: Callable[..., Any], **options: Any) -> Worker:
        """A worker for the queue ``name`` of the group; whoever asks for it closes it."""
        return Worker(name, processor, prefix_key=self.prefix, **{**self._options, **options})

    def list_queues(self) -> list[str]:
        """Names of the group's queues, without the namespace, sorted: those obtained here, and those that the broker knows.

        An embedded database that no client has opened yet is not opened for this.
        """
        names = set(self._queues)
        opened = next((queue for queue in self._queues.values() if queue.opened), None)
        if opened is not None:
            known = opened.list_queues()
            names.update(key.removeprefix(self.prefix) for key in known if key.startswith(self.prefix))
        return sorted(names)

    def pause_all(self) -> None:
        """Pause the queues obtained through the group."""
        for queue in self._queues.values():
            queue.pause()

    def resume_all(self) -> None:
        """Resume the queues obtained through the group."""
        for queue in self._queues.values():
            queue.resume()

    def drain_all(self) -> int:
        """Drain the queues obtained through the group. Returns the number of jobs removed."""
        removed = 0
        for queue in self._queues.values():
            removed += queue.drain()
        return removed

    def obliterate_all(self) -> None:
        """Obliterate the queues obtained through the group."""
        for queue in self._queues.values():
            queue.obliterate()

    def close(self) -> None:
        """Close the queues obtained through the group. Idempotent."""
        for queue in self._queues.values():
            queue.close()

    def __enter__(self) -> QueueGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
