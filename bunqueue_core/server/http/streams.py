"""What happens on the server, for those who watch: job events and announcements, told to every client that wants them.

A *client* is an open event stream (SSE) or a WebSocket. While there is none, nothing is watched and nobody pays. What is told is
rendered once for all clients. A client that does not keep up holds a bounded backlog, made of what it shares with the others: an
event stream is then ended (its client comes back and resumes), a WebSocket, which also carries commands, misses events.

An event stream resumes by ``Last-Event-ID``: the latest job events are kept for that, for a while even after the last client has
left. Ids count everything that is told, from 1 at the server's start.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol

from starlette.types import Message, Receive, Scope, Send

from bunqueue_core.commands.dashboards import collections, memory_mib, ready_waiting, uptime_ms
from bunqueue_core.commands.monitoring import storage_health
from bunqueue_core.commands.registry import workforce
from bunqueue_core.commands.session import Services, Session
from bunqueue_core.config.settings import MonitoringSettings
from bunqueue_core.events.encoding import event_document, to_json
from bunqueue_core.model.errors import BunqueueError, CapabilityError
from bunqueue_core.model.requests import Event, QueueSummary
from bunqueue_core.server.http.catalogue import public_name
from bunqueue_core.server.http.monitor import Monitor
from bunqueue_core.server.limits import UNREAD_EVENTS

Transport = Literal["sse", "ws"]

#: Members of a job event that streams show besides queue and job.
_SHOWN: Final = ("error", "progress", "prev", "delay")

_HEARTBEAT: Final = b":heartbeat\n\n"

#: Key of the request's scope under which the listener puts a function that closes the connection at once.
ABORT: Final = "bunqueue.abort"

#: Number after which nothing is told.
_NEVER: Final = 2**63


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Bounds and intervals.

    Attributes:
        clients: open at once, each of event streams and WebSockets.
        backlog_bytes: what one client may leave unread.
        replayed_events: job events kept for clients that resume.
        replayed_bytes: their size.
        resume_s: how long they are kept, and gathered, after the last client has left.
        tick_s: time between two statistics; health comes every second tick, storage and heartbeat every sixth.
        counts_s: time from a job event to the counts of its queue.
        snapshot_queues: queues in the statistics.
        write_bytes: written to a client at once.
    """

    clients: int = 1000
    backlog_bytes: int = 16 * 1024 * 1024
    replayed_events: int = 1000
    replayed_bytes: int = 8 * 1024 * 1024
    resume_s: float = 60.0
    tick_s: float = 5.0
    counts_s: float = 0.010
    snapshot_queues: int = 100
    write_bytes: int = 256 * 1024


class Told:
    """One thing that is told: a job event, or an announcement. Each rendering is made once, when it is first wanted.

    Args:
        id: its number.
        name: its public name.
        at: epoch ms.
        data: what announcements show, on WebSockets and, without another, on event streams.
        event: the job event; None for an announcement.
        sse_data: what event streams show where that differs.
    """

    __slots__ = ("_frame", "_named", "_raw", "at", "data", "event", "id", "name", "sse_data")

    def __init__(
        self,
        id: int,
        name: str,
        at: int,
        data: Mapping[str, Any],
        event: Event | None = None,
        sse_data: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.at = at
        self.data = data
        self.event = event
        self.sse_data = sse_data
        self._frame: bytes | None = None
        self._named: str | None = None
        self._raw: str | None = None

    @property
    def queue(self) -> str | None:
        """The queue by which clients filter; None for announcements, which reach all."""
        return self.event.queue if self.event is not None else None

    @property
    def frame(self) -> bytes:
        """As an event stream shows it."""
        if self._frame is None:
            data = to_json(self.data if self.sse_data is None else self.sse_data)
            self._frame = b"id: %d\nevent: %s\ndata: %s\n\n" % (self.id, self.name.encode(), data)
        return self._frame

    @property
    def named(self) -> str:
        """As a WebSocket with subscriptions shows it."""
        if self._named is None:
            self._named = to_json({"event": self.name, "ts": self.at, "data": self.data}).decode()
        return self._named

    @property
    def raw(self) -> str:
        """As a WebSocket without subscriptions shows a job event."""
        if self._raw is None:
            self._raw = to_json(event_document(self.event)).decode() if self.event is not None else ""
        return self._raw


class Client(Protocol):
    """Somebody who watches."""

    transport: Transport

    def tell(self, told: Told) -> None:
        """Take something that happened, or not."""

    def wants(self, name: str) -> bool:
        """Whether an announcement of that name would be taken."""

    def heartbeat(self) -> None:
        """Show that the server is still there."""

    def end(self) -> None:
        """The server stops."""


class Streams:
    """See the module's head. Belongs to one event loop; events may come from any thread.

    Args:
        services: what is watched.
        limits: see :class:`StreamLimits`.
        monitoring: thresholds of warnings.
    """

    def __init__(
        self, services: Services, limits: StreamLimits | None = None, monitoring: MonitoringSettings | None = None
    ) -> None:
        self.services = services
        self.limits = limits or StreamLimits()
        self._monitoring = monitoring or MonitoringSettings()
        self._session = Session(services, None, authenticated=True)
        self._clients: dict[Transport, dict[Client, None]] = {"sse": {}, "ws": {}}
        self._last_id = 0
        self._kept: deque[tuple[int, str, bytes]] = deque()  # (id, queue, frame) of job events
        self._kept_bytes = 0
        self._stops: list[Callable[[], None]] = []  # end what was begun to watch
        self._timers: set[asyncio.Task[None]] = set()
        self._touched: dict[str, None] = {}  # queues with job events whose counts are due
        self._counting = False
        self._leaving: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closed = False

    # -- clients ------------------------------------------------------------------------------------------------------

    def connections(self) -> dict[str, int]:
        """Open clients by transport."""
        return {name: len(clients) for name, clients in self._clients.items()}

    @property
    def closed(self) -> bool:
        """Whether the server stops: then there are no event streams any more."""
        return self._closed

    def full(self, transport: Transport) -> bool:
        """Whether no further client of that kind is taken."""
        return len(self._clients[transport]) >= self.limits.clients

    def join(self, client: Client) -> None:
        """Tell ``client`` what happens from now on."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if not self._stops:
            self._watch()
        self._clients[client.transport][client] = None

    def leave(self, client: Client) -> None:
        """Tell ``client`` nothing any more."""
        self._clients[client.transport].pop(client, None)
        if not any(self._clients.values()) and self._stops and self._leaving is None:
            if self._closed or self._loop is None:
                self._unwatch()
            else:
                self._leaving = self._loop.call_later(self.limits.resume_s, self._unwatch)

    def close(self) -> None:
        """End all event streams. WebSockets go on, so that workers can finish, until their connections end."""
        self._closed = True
        for client in list(self._clients["sse"]):
            client.end()
        if self._leaving is not None:
            self._unwatch()

    def missed(self, after: int, queue: str | None) -> list[bytes]:
        """Frames of the job events (of ``queue``, or all) that were told after number ``after`` and are still kept.

        Number 0 and less names no event: nothing was missed.
        """
        return [frame for id, name, frame in self._kept if id > after > 0 and (queue is None or name == queue)]

    # -- watching -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        broker = self.services.broker
        try:
            self._stops.append(broker.subscribe(self._happened))
        except CapabilityError:
            self._stops.append(lambda: None)  # the driver tells no events: announcements are left
        self._stops.append(broker.subscribe_dashboard(self.announce))
        self.services.announce = self.services.workers.tell = self.announce
        self._begin(self._tick())

    def _unwatch(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        self.services.announce = self.services.workers.tell = None
        for stop in self._stops:
            stop()
        self._stops.clear()
        for timer in list(self._timers):
            timer.cancel()
        self._kept.clear()
        self._kept_bytes = 0
        self._touched.clear()
        self._counting = False

    def _begin(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._timers.add(task)
        task.add_done_callback(self._timers.discard)

    def _here(self, function: Callable[..., None], *arguments: Any) -> bool:
        """Whether this is the event loop's thread; otherwise ``function`` is called there."""
        if threading.get_ident() == self._thread:
            return True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(partial(function, *arguments))
        return False

    # -- telling ------------------------------------------------------------------------------------------------------

    def announce(self, name: str, fields: Mapping[str, Any]) -> None:
        """Tell that something happened, whatever a client's filter by queue."""
        if self._stops and self._here(self.announce, name, fields):
            self._announce(name, fields)

    def _announce(self, name: str, data: Mapping[str, Any], sse_data: Mapping[str, Any] | None = None) -> None:
        self._last_id += 1
        self._tell(Told(self._last_id, name, self.services.ports.now(), data, None, sse_data))

    def _tell(self, told: Told) -> None:
        for clients in self._clients.values():
            for client in clients:
                client.tell(told)

    def _happened(self, event: Event) -> None:
        """A job event; called by the broker, in whatever thread."""
        if not self._stops or not self._here(self._happened, event):
            return
        extra = event.extra or {}
        if event.type == "stalled" and isinstance(extra.get("data"), dict):
            self._announce("job:stalled", {"jobId": event.job_id, "queue": event.queue, **extra["data"]})
        self._last_id += 1
        data: dict[str, Any] = {"queue": event.queue, "jobId": event.job_id}
        data.update((name, extra[name]) for name in _SHOWN if name in extra)
        sse_data = {"queue": event.queue, "jobId": event.job_id, "timestamp": event.timestamp, **data}
        told = Told(self._last_id, public_name(event.type), event.timestamp, data, event, sse_data)
        self._keep(told)
        self._tell(told)
        if event.type == "duplicated":
            self._announce("job:deduplicated", {"queue": event.queue, "jobId": event.job_id, "strategy": "default"})
        self._touched[event.queue] = None
        if not self._counting:
            self._counting = True
            self._begin(self._count())

    def _keep(self, told: Told) -> None:
        frame, limits = told.frame, self.limits
        self._kept.append((told.id, told.queue or "", frame))
        self._kept_bytes += len(frame)
        while len(self._kept) > limits.replayed_events or self._kept_bytes > limits.replayed_bytes:
            self._kept_bytes -= len(self._kept.popleft()[2])

    def _wanted(self, name: str) -> bool:
        return any(client.wants(name) for clients in self._clients.values() for client in clients)

    # -- counts and snapshots -----------------------------------------------------------------------------------------

    async def _count(self) -> None:
        """Tell the counts of queues shortly after their job events; counting takes a tenth of the time at most."""
        loop, pause = asyncio.get_running_loop(), self.limits.counts_s
        try:
            while self._touched:
                await asyncio.sleep(pause)
                queues = list(self._touched)
                self._touched.clear()
                if not self._wanted("queue:counts"):
                    continue
                begun = loop.time()
                try:
                    found = await self.services.broker.summaries(queues)
                except BunqueueError:
                    continue  # a storage that is away says so itself; the next event asks again
                for summary in found:
                    self._announce("queue:counts", _queue_counts(summary))
                pause = max(self.limits.counts_s, 10 * (loop.time() - begun))
        finally:
            self._counting = False

    async def _tick(self) -> None:
        tick = 0
        monitor = Monitor(self.services, self._monitoring, self._announce)
        while True:
            await asyncio.sleep(self.limits.tick_s)
            tick += 1
            try:
                if tick % 2 == 0:
                    self._tell_health()
                if tick % 6 == 0:
                    self._tell_storage()
                if self._wanted("stats:snapshot"):
                    await self._tell_statistics()
                if tick % 2 == 0:
                    await monitor.check()
            except BunqueueError:
                pass  # a storage that is away says so itself
            except Exception as error:
                self.services.log.error("Figures could not be told", error=f"{type(error).__name__}: {error}")
            if tick % 6 == 0:
                for clients in self._clients.values():
                    for client in list(clients):
                        client.heartbeat()

    async def _tell_statistics(self) -> None:
        services = self.services
        numbers = services.broker.statistics()
        meters, workers = services.meters, (await workforce(services)).totals()
        names = (await services.broker.queues())[: self.limits.snapshot_queues]
        queues = await services.broker.summaries(names)
        data = {
            "waiting": ready_waiting(numbers),
            **{name: numbers.get(name, 0) for name in ("active", "delayed", "completed", "dlq")},
            **{name: numbers.get(name, 0) for name in ("totalPushed", "totalCompleted", "totalFailed")},
            "pushPerSec": meters.pushed.read(int(numbers.get("totalPushed", 0))),
            "pullPerSec": meters.pulled.read(int(numbers.get("totalPulled", 0))),
            "uptime": uptime_ms(self._session),
            "queues": {each.name: _queue_state(each) for each in queues},
            "workers": {"total": workers.total, "active": workers.active},
            "cronJobs": numbers.get("schedules", 0),
        }
        self._announce("stats:snapshot", data)

    def _tell_health(self) -> None:
        health, memory = self.services.broker.health(), memory_mib()
        data = {
            "ok": not health.degraded,
            "uptime": uptime_ms(self._session) // 1000,
            "memory": {"rss": memory["rss"], "heapUsed": memory["heapUsed"]},
        }
        open_now = self.connections()
        self._announce(
            "health:status",
            {**data, "connections": {"ws": open_now["ws"]}},
            {**data, "connections": {"sse": open_now["sse"]}},
        )

    def _tell_storage(self) -> None:
        broker = self.services.broker
        disk_full = storage_health(broker.health())["diskFull"]
        self._announce("storage:status", {"collections": collections(broker.statistics()), "diskFull": disk_full})


class EventStream:
    """One open event stream.

    Args:
        limits: of the streams.
        queue: shows job events of that queue only; None shows those of all.
        abort: closes the connection at once.
    """

    transport: Transport = "sse"

    def __init__(self, limits: StreamLimits, queue: str | None, abort: Callable[[], None] = lambda: None) -> None:
        self._limits = limits
        self._queue = queue
        self._abort = abort
        self._backlog: deque[bytes] = deque()
        self._size = 0
        self._more = asyncio.Event()
        self._ended = False
        self.cut_off = False  #: ended because it was not read

    def tell(self, told: Told) -> None:
        """See :class:`Client`."""
        if self._queue is None or told.queue is None or told.queue == self._queue:
            self.put(told.frame)

    def put(self, frame: bytes) -> None:
        """Have ``frame`` written; beyond the bound of what may wait, the stream ends instead."""
        if self._ended:
            return
        self._backlog.append(frame)
        self._size += len(frame)
        self._more.set()
        if self._size > self._limits.backlog_bytes:
            self.cut_off = True
            self.drop()
            self._abort()

    def wants(self, name: str) -> bool:
        """See :class:`Client`."""
        return True

    def heartbeat(self) -> None:
        """See :class:`Client`."""
        self.put(_HEARTBEAT)

    def end(self) -> None:
        """See :class:`Client`."""
        self._ended = True
        self._more.set()

    def drop(self) -> None:
        """Nobody reads any more."""
        self._backlog.clear()
        self.end()

    async def next(self) -> bytes:
        """What is to be written next, as soon as there is something; nothing at the end."""
        while not self._backlog:
            if self._ended:
                return b""
            self._more.clear()
            await self._more.wait()
        taken: list[bytes] = []
        size = 0
        while self._backlog and size < self._limits.write_bytes:
            frame = self._backlog.popleft()
            taken.append(frame)
            size += len(frame)
        self._size -= size
        return b"".join(taken)


async def serve_stream(
    streams: Streams, path: str, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str]
) -> None:
    """Answer a request for an event stream, until the client goes or the server stops.

    Args:
        streams: which it watches.
        path: ``/events`` or anything below; ``/events/queues/<queue>`` filters by queue, whose name is taken as it stands there.
        scope: of the request.
        receive: tells when the client goes.
        send: takes the answer.
        headers: further headers of the answer.
    """
    queue = queue_of(path, "/events/queues/")
    services = streams.services
    stream = EventStream(streams.limits, queue, scope.get(ABORT, lambda: None))
    stream.put(b'retry: 3000\ndata: {"connected":true,"clientId":"%s"}\n\n' % services.ports.new_token().encode())
    for frame in streams.missed(_last_event_id(scope), queue):
        stream.put(frame)
    streams.join(stream)
    leaving = asyncio.ensure_future(_until_gone(receive))
    leaving.add_done_callback(lambda _: stream.drop())
    start = {
        "content-type": "text/event-stream",
        "cache-control": "no-cache",
        "connection": "keep-alive",
        **headers,
    }
    try:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in start.items()],
            }
        )
        while chunk := await stream.next():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        streams.leave(stream)
        leaving.cancel()
        if stream.cut_off:
            services.meters.cut_offs[UNREAD_EVENTS] += 1
            services.log.warn("Event stream cut off", reason=UNREAD_EVENTS)


def queue_of(path: str, prefix: str) -> str | None:
    """The queue by which a path filters; None if it does not."""
    return (path[len(prefix) :] or None) if path.startswith(prefix) else None


async def _until_gone(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


def _last_event_id(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"last-event-id":
            return int(value) if value.isdigit() and len(value) < 16 else _NEVER
    return _NEVER


def _queue_counts(summary: QueueSummary) -> dict[str, Any]:
    counts = summary.counts
    return {
        "queue": summary.name,
        "waiting": counts.ready_waiting,
        "prioritized": counts.ready_prioritized,
        "active": counts.active,
        "completed": counts.completed,
        "failed": counts.failed,
        "delayed": counts.delayed,
    }


def _queue_state(summary: QueueSummary) -> dict[str, Any]:
    counts = summary.counts
    return {
        "waiting": counts.ready_waiting,
        "active": counts.active,
        "delayed": counts.delayed,
        "dlq": counts.failed,
        "paused": summary.paused,
    }
