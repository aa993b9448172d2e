# Written by tools/async_to_sync.py from sandbox_async.py: edit that file and run the tool, not this one.
"""A worker whose processor runs in processes of its own: what it does to its process does not reach the worker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from bunqueue_core.client._acompat import Event, spawn
from bunqueue_core.client._beside import beside
from bunqueue_core.client._cancel_signal import ProcessorContext
from bunqueue_core.client._sandbox import Crashed, JobFailed, Slot, Slots
from bunqueue_core.client.job import Job
from bunqueue_core.client.worker import Worker
from bunqueue_core.model.errors import BunqueueError


class SandboxedWorker:
    """Processes the jobs of a queue in child processes, ``concurrency`` of them.

    A processor that crashes its process (a fault in a C extension, memory that runs out) or never ends costs a failed attempt and
    a new process, not the worker. Processes are separate for their faults and for their CPU time; they are no protection against
    code that means harm.

    The processor is a function ``processor(job)``, plain or asynchronous, in a file of its own. Its job has ``id``, ``name``,
    ``data``, ``queue``, ``attempts`` and ``parent_id``, ``progress(n)``, ``log(text)`` and ``fail(error)``. What it returns is the
    result, what it raises the failure; of an error only the text counts, so that every one is tried again.

    Events are those of :class:`Worker`, ``error`` also for a process that crashed.

    Args:
        queue_name: name of the queue.
        processor: path of the processor's file.
        concurrency: jobs that may run at once, each in a process of its own.
        timeout_ms: an attempt that takes longer is failed and its process ended; 0 for no limit.
        auto_restart: False gives a crashed process no successor.
        max_restarts: crashes of one process and its successors that are made up for; after them there is one process less.
        idle_recycle_ms: processes that have had nothing to do for so long are ended, all but one; 0 keeps them.
        max_memory_mb: bound of a process's memory, as far as the system holds it; None for none.
        idle_timeout_ms: without a job for so long it stops, as by :meth:`stop`; 0 never does.
        auto_start: True lets it rest instead: it ends its processes and takes no jobs, until some wait for it again.
        auto_start_poll_ms: how often it looks for them then.
        **options: where the queue is and what else a :class:`Worker` takes: ``host``, ``port``, ``embedded``, ``data_path``,
            ``heartbeat_interval_s`` and so on.

    Raises:
        ConfigurationError: the system has no processes of this kind.
        TypeError: an option is not known.
        ValueError: an argument is out of its bounds.
    """

    def __init__(
        self,
        queue_name: str,
        *,
        processor: str | os.PathLike[str],
        concurrency: int = 1,
        timeout_ms: int = 30_000,
        auto_restart: bool = True,
        max_restarts: int = 10,
        idle_recycle_ms: int = 30_000,
        max_memory_mb: int | None = None,
        idle_timeout_ms: int = 0,
        auto_start: bool = False,
        auto_start_poll_ms: int = 5_000,
        **options: Any,
    ) -> None:
        if idle_timeout_ms < 0:
            raise ValueError(f"idle_timeout_ms is {idle_timeout_ms}, and must be at least 0")
        if auto_start_poll_ms < 1:
            raise ValueError(f"auto_start_poll_ms is {auto_start_poll_ms}, and must be at least 1")
        self._path = os.path.abspath(processor)
        self._timeout_s = timeout_ms / 1000
        self._max_restarts = max_restarts if auto_restart else 0
        self._recycle_s = idle_recycle_ms / 1000
        self._worker = Worker(queue_name, self._process, concurrency=concurrency, **{**options, "autorun": False})
        self._slots = Slots(self._path, concurrency, max_memory_mb)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix=f"bunqueue-{queue_name}-sandbox")
        self._stopped = Event()
        self._timer: Any = None
        self._idle_s = idle_timeout_ms / 1000
        self._auto_start = auto_start
        self._poll_s = auto_start_poll_ms / 1000
        self._resting = False
        self._last_job = time.monotonic()  #: when the last one ended
        self._idle_timer: Any = None

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work in the background.

        Raises:
            FileNotFoundError: the processor's file is not there.
        """
        if not os.path.isfile(self._path):
            raise FileNotFoundError(f"Processor file not visible after polling: {self._path}")
        if self._timer is None and self._recycle_s > 0:
            self._timer = spawn("bunqueue-sandbox-timer", self._keep_time)
        if self._idle_timer is None and self._idle_s > 0:
            self._last_job = time.monotonic()
            self._idle_timer = spawn("bunqueue-sandbox-idle-timer", self._watch_idleness)
        self._worker.start()

    def run(self, *, handle_signals: bool = True) -> None:
        """Work until it is stopped, or the program is told to end; see :meth:`Worker.run`."""
        self.start()
        try:
            self._worker.run(handle_signals=handle_signals)
        finally:
            self.stop(force=True)

    def wait_until_ready(self, timeout: float | None = 10.0) -> None:
        """Wait until it is registered with the broker.

        Raises:
            TimeoutError: that took longer than ``timeout`` seconds.
        """
        self._worker.wait_until_ready(timeout)

    def stop(self, force: bool = False) -> None:
        """Stop: take no more jobs, wait for those that run (not with ``force``), end the processes. Idempotent."""
        self._worker.close(force=force)
        self._stopped.set()
        self._slots.end()
        self._threads.shutdown(wait=False)

    def is_running(self) -> bool:
        """Whether it has begun and was not stopped."""
        return self._worker.is_running()

    def get_stats(self) -> dict[str, int]:
        """``total``, ``busy`` and ``idle`` places for processes, ``recycled`` processes and ``restarts`` after crashes."""
        return self._slots.stats()

    def on(self, event: str, listener: Callable[..., Any]) -> SandboxedWorker:
        """Call ``listener`` each time ``event`` happens. Returns this object."""
        self._worker.on(event, listener)
        return self

    def once(self, event: str, listener: Callable[..., Any]) -> SandboxedWorker:
        """Call ``listener`` the next time ``event`` happens. Returns this object."""
        self._worker.once(event, listener)
        return self

    def off(self, event: str, listener: Callable[..., Any]) -> SandboxedWorker:
        """Stop calling ``listener`` for ``event``. Returns this object."""
        self._worker.off(event, listener)
        return self

    def __enter__(self) -> SandboxedWorker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _process(self, job: Job, context: ProcessorContext) -> Any:
        slot = self._slots.take()
        usable = answered = False
        try:
            result = self._run(slot, job, context)
            usable = answered = True
            return result
        except JobFailed:
            usable = answered = True
            raise
        except Crashed as error:
            slot.restarts += 1
            usable = slot.restarts <= self._max_restarts
            answered = True
            self._worker.emit("error", error)
            raise
        except BunqueueError:
            usable = answered = True
            raise
        finally:
            if not answered:
                slot.end()  # given up from outside
                usable = True
            self._last_job = time.monotonic()
            self._left(self._slots.give_back(slot, usable))

    def _left(self, slots: int) -> None:
        """Take no more jobs at once than there are slots."""
        if slots == 0:
            self._worker.pause()
            self._worker.emit("error", Crashed("every process has crashed too often; no more jobs are taken"))
        elif slots < self._worker.concurrency:
            self._worker.concurrency = slots

    def _run(self, slot: Slot, job: Job, context: ProcessorContext) -> Any:
        view = {
            "id": job.id,
            "name": job.name,
            "data": job.data,
            "queue": job.queue,
            "attempts": job.attempts,
            "parentId": job.parent_id,
        }
        beside(self._threads, slot.begin, view, context.signal)
        deadline = time.monotonic() + self._timeout_s if self._timeout_s > 0 else None
        while True:
            message = beside(self._threads, slot.receive, deadline, context.signal)
            if message is None:
                slot.end()
                raise JobFailed(f"Job timed out after {round(self._timeout_s * 1000)}ms")
            kind = message[0]
            if kind == "result":
                return message[1]
            if kind == "failed":
                raise JobFailed(message[1])
            try:
                if kind == "progress":
                    job.update_progress(message[1], message[2])
                else:
                    job.log(message[1], message[2])
            except BunqueueError as error:
                self._worker.emit("error", error)

    def _keep_time(self) -> None:
        """Recycle idle processes until it is stopped."""
        while not self._stopped.wait(self._recycle_s / 2):
            beside(self._threads, self._slots.recycle, self._recycle_s)

    def _watch_idleness(self) -> None:
        """Stop, or rest, when there has been nothing to do for long, and work again when there is."""
        left = self._idle_s
        while not self._stopped.wait(self._poll_s if self._resting else left):
            slots = self._slots.stats()
            if self._resting:
                if slots["total"] > 0 and self._jobs_wait():
                    self._resting = False
                    self._last_job, left = time.monotonic(), self._idle_s
                    self._worker.resume()
                continue
            left = self._idle_s if slots["busy"] else self._last_job + self._idle_s - time.monotonic()
            if left > 0:
                continue
            if not self._auto_start:
                self.stop()
                return
            self._resting = True
            self._worker.pause()
            beside(self._threads, self._slots.recycle, 0.0, 0)

    def _jobs_wait(self) -> bool:
        try:
            return self._worker.count_claimable() > 0
        except BunqueueError:
            return False  # the next look will tell
