# Written by tools/async_to_sync.py from forward_async.py: edit that file and run the tool, not this one.
"""Store and forward: the jobs of one queue are added to a queue of a server, however long that is out of reach."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from bunqueue_core.client._acompat import can_spawn
from bunqueue_core.client._events import LOGGER, Emitter
from bunqueue_core.client.connection import Connection
from bunqueue_core.client.job import Job
from bunqueue_core.client.job_options import JobOptions
from bunqueue_core.client.queue import Queue
from bunqueue_core.client.worker import Worker
from bunqueue_core.model.errors import BunqueueError


class Forwarder(Emitter):
    """Sends jobs on; made by :meth:`Queue.forward`.

    It is an ordinary worker on the source whose processing is to add the job to the server, under the id ``fwd:<queue>:<id>``. A
    job that is sent twice (after a crash, or an answer that was lost) is therefore the same job there, for as long as the server
    knows that id. Name, data and priority are carried; attempts and back-off are those of the local job, and say how long an outage
    may last before it becomes a dead letter here.

    Events (:meth:`on`): ``forwarded({"id", "remote_id", "name"})``, ``error(error)`` (each failed attempt, and trouble with the
    source), ``closed()``.

    Args:
        source: the queue.
        to: see :meth:`Queue.forward`, as the other arguments.
        queue: name of the queue there.
        concurrency: jobs on their way at once.
        durable: answer only after a job is on the server's disk.

    Raises:
        TypeError: ``to`` is neither a connection nor a mapping.
        ValueError: an argument is out of its bounds.
    """

    def __init__(
        self,
        source: Queue,
        to: Connection | Mapping[str, Any],
        *,
        queue: str | None = None,
        concurrency: int = 4,
        durable: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(to, Connection | Mapping):
            raise TypeError(f"to must be a connection or a mapping of its arguments, got {type(to).__name__}")
        self._sink = Queue(queue or source.logical_name, connection=to)
        self._prefix = f"fwd:{source.queue_key}:"
        self._durable = durable
        self._mutex = threading.Lock()
        self._forwarded = 0
        self._failed = 0
        self._last_error: str | None = None
        self._last_forwarded_at: int | None = None
        self._worker = Worker.of_target(
            source._endpoint.target, source.queue_key, self._forward, concurrency, source.logical_name
        )
        self._worker.on("error", self._trouble)
        self._worker.on("closed", lambda: self.emit("closed"))
        self._closed = False
        if can_spawn():
            self._worker.start()

    def _forward(self, job: Job) -> dict[str, Any]:
        options: JobOptions = {"job_id": f"{self._prefix}{job.id}"}
        if job.priority:
            options["priority"] = job.priority
        if self._durable:
            options["durable"] = True
        try:
            remote = self._sink.add(job.name, job.data, **options)
        except BunqueueError as error:
            with self._mutex:
                self._failed += 1
                self._last_error = str(error)
            self.emit("error", error)
            raise
        outcome = {"id": job.id, "remote_id": remote.id, "name": job.name}
        with self._mutex:
            self._forwarded += 1
            self._last_forwarded_at = time.time_ns() // 1_000_000
        self.emit("forwarded", outcome)
        return outcome

    def _trouble(self, error: Exception) -> None:
        if not self.emit("error", error):
            LOGGER.warning("forwarding '%s': %s", self._worker.queue_key, error)

    def start(self) -> None:
        """Begin, where it has not begun by itself."""
        self._worker.start()

    def pause(self) -> None:
        """Send no more jobs on. Those on their way arrive."""
        self._worker.pause()

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._worker.resume()

    def is_paused(self) -> bool:
        """Whether it sends nothing because of :meth:`pause`."""
        return self._worker.is_paused()

    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def stats(self) -> dict[str, Any]:
        """What it did since the start.

        Returns:
            ``forwarded`` jobs, ``failed`` attempts, ``last_error`` (text) and ``last_forwarded_at`` (epoch ms); the last two may be
            None.
        """
        with self._mutex:
            return {
                "forwarded": self._forwarded,
                "failed": self._failed,
                "last_error": self._last_error,
                "last_forwarded_at": self._last_forwarded_at,
            }

    def wait_until_ready(self, timeout: float | None = 10.0) -> None:
        """Wait until it takes jobs from the source; the server need not be there.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: that took longer.
        """
        self._worker.wait_until_ready(timeout)

    def close(self) -> None:
        """Stop: what is on its way arrives, the rest stays in the source. Idempotent."""
        self._closed = True
        self._worker.close()
        self._sink.close()

    def __enter__(self) -> Forwarder:
        self._worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
