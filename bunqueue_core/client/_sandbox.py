"""The processes of a sandboxed worker: one for each job that may run at once, started when it is needed."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgpack

from bunqueue_core.client._cancel_signal import CancelSignal
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.model.payload import Packer

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

#: How often a waiting slot looks whether its job was cancelled, seconds.
_LOOK_S: Final = 0.1

#: Longest start of a process, seconds: what its file imports takes its time.
START_S: Final = 60.0

#: How long a process may take to end by itself, seconds.
_END_S: Final = 2.0


class Crashed(Exception):
    """The process of a job has ended without an answer."""


class JobFailed(Exception):
    """The processor raised; the text is its error's."""


class Slot:
    """A place for one process, and the process when there is one. Used by one thread at a time.

    Args:
        path: the processor's file.
        max_memory_mb: bound of the process's memory, None for none.
    """

    def __init__(self, path: str, max_memory_mb: int | None) -> None:
        self._path = path
        self._max_memory_mb = max_memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._guard = threading.Lock()  #: of the process: a worker may stop while a thread of it starts one
        self._over = False
        self.restarts = 0
        self.idle_since = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether it has a process."""
        return self._process is not None

    def begin(self, view: Mapping[str, Any], signal: CancelSignal) -> None:
        """Hand a job to the process, after starting one if there is none.

        Raises:
            Crashed: it ended at once.
            ConfigurationError: the file cannot be used.
            SerializationError: the job cannot be handed over.
        """
        frame = Packer().pack(dict(view))
        if self._process is not None and self._process.poll() is not None:
            self.end()  # it died while nobody needed it
        if self._process is None:
            self._start()
            first = self.receive(time.monotonic() + START_S, signal)
            if first is None or first[0] != "ready":
                self.end()
                raise ConfigurationError(
                    f"processor: {first[1] if first is not None else 'the file takes too long to load'}"
                )
        connection = self._connection
        if connection is None:
            raise Crashed("Worker crashed")
        try:
            connection.send_bytes(frame)
        except OSError:
            self.end()
            raise Crashed("Worker crashed") from None

    def _start(self) -> None:
        # Imported when it is used: every program that imports a client would pay for it.
        from multiprocessing.connection import Connection

        ours, theirs = socket.socketpair()
        with ours, theirs, self._guard:
            if self._over:
                raise Crashed("the worker has stopped")
            descriptor = theirs.fileno()
            command = [sys.executable, "-m", "bunqueue_core.client._sandbox_child", str(descriptor), self._path]
            limit = self._max_memory_mb
            self._process = subprocess.Popen(
                command,
                pass_fds=(descriptor,),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the worker's to hear
                preexec_fn=None if limit is None else _limiting(limit),
            )
            self._connection = Connection(ours.detach())

    def receive(self, deadline: float | None, signal: CancelSignal) -> list[Any] | None:
        """The next message of the process; None when the time is up.

        Args:
            deadline: monotonic seconds, None for no limit.
            signal: ends the wait, and the process.

        Raises:
            Crashed: the process has ended.
            JobFailed: the job was cancelled.
        """
        connection = self._connection
        if connection is None:
            raise Crashed("Worker crashed")
        try:
            while True:
                left = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
                if connection.poll(max(0.0, left)):
                    message: list[Any] = msgpack.unpackb(connection.recv_bytes(), strict_map_key=False)
                    return message
                if signal.aborted:
                    self.end()
                    raise JobFailed(signal.reason or "cancelled")
                if deadline is not None and time.monotonic() >= deadline:
                    return None
        except (EOFError, OSError):
            self.end()
            raise Crashed("Worker crashed") from None

    def end(self) -> None:
        """End the process at once, whatever it does."""
        process = self.leave()
        if process is not None:
            process.kill()
            process.wait()

    def retire(self) -> None:
        """End a process that has nothing to do: it may clean up after itself."""
        _see_off(self.leave())

    def forbid(self) -> None:
        """Start no process any more."""
        with self._guard:
            self._over = True

    def leave(self) -> subprocess.Popen[bytes] | None:
        """Close the connection to the process, which ends one that is idle; gives the process, if there is one."""
        with self._guard:
            process, self._process = self._process, None
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        return process


class Slots:
    """The slots of one worker.

    Args:
        path: the processor's file.
        size: how many jobs may run at once.
        max_memory_mb: bound of each process's memory, None for none.
    """

    def __init__(self, path: str, size: int, max_memory_mb: int | None) -> None:
        if not hasattr(os, "fork"):
            raise ConfigurationError("SandboxedWorker needs a POSIX system")
        self._mutex = threading.Lock()
        self._free = [Slot(path, max_memory_mb) for _ in range(size)]
        self._busy: set[Slot] = set()
        self.recycled = 0

    def take(self) -> Slot:
        """A free slot, one with a process if there is one."""
        with self._mutex:
            position = next((at for at, slot in enumerate(self._free) if slot.alive), 0)
            slot = self._free.pop(position)
            self._busy.add(slot)
            return slot

    def give_back(self, slot: Slot, usable: bool = True) -> int:
        """Return a slot; one that is not usable any more is dropped. Gives how many are left."""
        with self._mutex:
            self._busy.discard(slot)
            if usable:
                slot.idle_since = time.monotonic()
                self._free.append(slot)
            return len(self._free) + len(self._busy)

    def recycle(self, idle_s: float, keep: int = 1) -> None:
        """End processes that have had nothing to do for ``idle_s`` seconds, all but ``keep``."""
        with self._mutex:
            alive = [slot for slot in self._free if slot.alive]
            spare = len(alive) + len(self._busy) - keep
            long_ago = time.monotonic() - idle_s
            idle = [slot for slot in alive if slot.idle_since <= long_ago][: max(0, spare)]
            # They stay free meanwhile: a job that comes now starts another process.
            ending = [slot.leave() for slot in idle]
            self.recycled += len(idle)
        for process in ending:
            _see_off(process)

    def stats(self) -> dict[str, int]:
        """``total``, ``busy`` and ``idle`` slots, ``recycled`` processes and ``restarts`` after crashes."""
        with self._mutex:
            slots = [*self._free, *self._busy]
            return {
                "total": len(slots),
                "busy": len(self._busy),
                "idle": len(self._free),
                "recycled": self.recycled,
                "restarts": sum(slot.restarts for slot in slots),
            }

    def end(self) -> None:
        """End every process: those that are idle in order, those that run at once."""
        with self._mutex:
            free, busy = list(self._free), list(self._busy)
        for slot in (*free, *busy):
            slot.forbid()
        for slot in free:
            slot.retire()
        for slot in busy:
            slot.end()


def _see_off(process: subprocess.Popen[bytes] | None) -> None:
    """Wait for a process that was left, if there was one, to end by itself, and end it if it does not."""
    if process is None:
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    process.kill()
    process.wait()


def _limiting(megabytes: int) -> Callable[[], None]:
    def limit() -> None:
        import resource

        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (megabytes * 2**20, megabytes * 2**20))

    return limit
