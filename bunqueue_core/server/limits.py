"""Bounds of what one client may ask, for every transport."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bunqueue_core.model.payload import is_shallow
from bunqueue_core.server.tcp.framing import MAX_FRAME_BYTES

#: Commands of one connection that run at once; the next ones wait in order.
MAX_CONCURRENT_COMMANDS: Final = 50

#: Frames, and their bytes, that may wait for their turn before the connection is no longer read. It is read again at a half.
MAX_WAITING_FRAMES: Final = 1_024
MAX_WAITING_BYTES: Final = 1024 * 1024

#: After the client closed its side, answers under way may take this long before the connection is closed, seconds.
HALF_CLOSED_GRACE_S: Final = 5.0

#: Levels of lists and maps that a ``reqId`` may have: it is echoed as it came.
MAX_REQ_ID_DEPTH: Final = 32

#: What a request is told whose ``reqId`` cannot be echoed. It is not run, because no answer could name it.
BAD_REQ_ID: Final = (
    "reqId must be well-formed Unicode, without integers beyond 64 bits, "
    f"and not nested deeper than {MAX_REQ_ID_DEPTH} levels"
)

#: Why the server ends a connection, as logs and metrics say it.
INCOMPLETE_FRAME: Final = "incomplete frame"
UNREAD_ANSWERS: Final = "unread answers"
UNREAD_EVENTS: Final = "unread events"
CUT_OFF_REASONS: Final = (INCOMPLETE_FRAME, UNREAD_ANSWERS, UNREAD_EVENTS)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one TCP connection.

    Attributes:
        frame_bytes: longest frame, both ways.
        concurrent_commands: see :data:`MAX_CONCURRENT_COMMANDS`.
        waiting_frames: see :data:`MAX_WAITING_FRAMES`.
        waiting_bytes: see :data:`MAX_WAITING_BYTES`.
        unsent_bytes: a client that leaves more than this unread is cut off; at half of it, its requests are no longer read.
            0 sets no bound.
        stall_ms: a frame that stays unfinished without a byte for so long ends the connection; the same for a client that reads
            nothing while half of ``unsent_bytes`` wait. 0 sets no bound.
    """

    frame_bytes: int = MAX_FRAME_BYTES
    concurrent_commands: int = MAX_CONCURRENT_COMMANDS
    waiting_frames: int = MAX_WAITING_FRAMES
    waiting_bytes: int = MAX_WAITING_BYTES
    unsent_bytes: int = 64 * 1024 * 1024
    stall_ms: int = 60_000


def can_be_echoed(req_id: Any) -> bool:
    """Whether an answer can carry ``req_id``: any plain value, lists and maps within :data:`MAX_REQ_ID_DEPTH`."""
    return is_shallow(req_id, MAX_REQ_ID_DEPTH)


class RateLimiter:
    """At most so many requests of one client within a sliding window.

    Args:
        requests: requests that the window holds.
        window_ms: its length.
        now: epoch ms.
    """

    __slots__ = ("_clients", "_now", "_requests", "_window_ms")

    def __init__(self, requests: int, window_ms: int, now: Callable[[], int]) -> None:
        self._requests = requests
        self._window_ms = window_ms
        self._now = now
        self._clients: dict[str, deque[int]] = {}

    def allow(self, client: str) -> bool:
        """Count a request of ``client``, unless it is one too many: then False, and it is not counted."""
        now = self._now()
        times = self._clients.get(client)
        if times is None:
            times = self._clients[client] = deque()
        horizon = now - self._window_ms
        while times and times[0] <= horizon:
            times.popleft()
        if len(times) >= self._requests:
            return False
        times.append(now)
        return True

    def forget(self, client: str) -> None:
        """Drop what is known of a client that has gone."""
        self._clients.pop(client, None)

    def sweep(self) -> None:
        """Drop clients without a request in the window."""
        horizon = self._now() - self._window_ms
        for client in [client for client, times in self._clients.items() if not times or times[-1] <= horizon]:
            del self._clients[client]
