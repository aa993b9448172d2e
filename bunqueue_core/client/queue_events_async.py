"""What happens to the jobs of a queue, as it happens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from bunqueue_core.client._acompat import AEvent, AInbox, acan_spawn, asettled, aspawn
from bunqueue_core.client._events import Emitter
from bunqueue_core.client._session import ConnectionOptions, TelemetryHandler, TlsOption
from bunqueue_core.client._target import StorageOption, Target, find_target, queue_key
from bunqueue_core.client._transport_asyncio import AsyncioTransport
from bunqueue_core.client._verbs import Verbs
from bunqueue_core.client.connection_async import Connection
from bunqueue_core.client.connection_pool_async import ConnectionPool
from bunqueue_core.client.remote import RemoteVerbs
from bunqueue_core.embedded import EmbeddedBroker, aopen_broker
from bunqueue_core.model.errors import (
    AuthenticationError,
    BunqueueError,
    CommandError,
    CommandTimeoutError,
    ConnectionClosedError,
)
from bunqueue_core.model.payload import widen
from bunqueue_core.model.rules import check_queue_name

#: Pauses before a lost subscription is made again, seconds; the last one repeats.
RESUBSCRIBE_S = (0.1, 0.5, 1.0, 2.0, 5.0)

#: The broker's name of an event → ours, where they differ.
_NAMES = {"pushed": "waiting", "pulled": "active"}

#: Events without a job.
_OF_QUEUE = frozenset(("paused", "resumed"))


class QueueEvents(Emitter):
    """Listens to the events of a queue.

    Events (:meth:`on`), each with a dict: ``waiting``, ``active``, ``stalled``, ``duplicated``, ``waiting-children``
    (``{"jobId"}``); ``completed`` (``{"jobId", "returnvalue"}``); ``failed`` (``{"jobId", "failedReason", "data", "terminal"}``;
    ``terminal`` False when the job is tried again); ``progress`` (``{"jobId", "data"}``); ``removed``, ``retried``
    (``{"jobId", "prev"}``); ``delayed`` (``{"jobId", "delay"}``); ``drained`` (``{"id"}``); ``paused``, ``resumed`` (``{}``). And
    ``error(error)`` for a failed job or a lost connection.

    It has a connection of its own and subscribes again when that is lost; what happens in between is not told.

    Args:
        name: name of the queue.
        host: name or address of the server.
        port: its TCP port.
        token: sent with ``Auth``; by default taken from ``BQ_TOKEN`` or ``BUNQUEUE_TOKEN``.
        tls: see :class:`Connection`.
        connection: a connection (or a mapping of its arguments) whose address and options are used.
        prefix_key: goes before the name.
        on_telemetry: called with events of the connection.
        embedded: True for a queue of this process; see :class:`Queue`.
        data_path: the database file of an embedded queue.
        storage: its storage in place of a path; see :class:`Queue`.
        autorun: listen at once. Without a running event loop an asynchronous one begins with :meth:`wait_until_ready`.
    """

    def __init__(
        self,
        name: str,
        host: str = "localhost",
        port: int = 6789,
        token: str | None = None,
        tls: TlsOption = None,
        connection: Connection | ConnectionPool | Mapping[str, Any] | None = None,
        prefix_key: str = "",
        on_telemetry: TelemetryHandler | None = None,
        *,
        embedded: bool | None = None,
        data_path: str | os.PathLike[str] | None = None,
        storage: StorageOption = None,
        autorun: bool = True,
    ) -> None:
        target = find_target(
            host=host,
            port=port,
            token=token,
            tls=tls,
            connection=connection,
            command_timeout=10.0,
            on_telemetry=on_telemetry,
            embedded=embedded,
            data_path=data_path,
            storage=storage,
        )
        self._prepare(target, check_queue_name(queue_key(prefix_key, name)), name)
        if autorun and acan_spawn():
            self.start()

    @classmethod
    def of_target(cls, target: Target, key: str) -> QueueEvents:
        """Events of the queue ``key`` where ``target`` leads, not started; for clients that listen on a user's behalf."""
        events = cls.__new__(cls)
        events._prepare(target, key, key)
        return events

    def _prepare(self, target: Target, key: str, name: str) -> None:
        super().__init__()
        self.queue_key = key
        #: The name without the prefix.
        self.name = name
        self._target = target
        self._transport: AsyncioTransport | None = None
        if not target.embedded:
            shared = target.connection
            options = shared.options if shared is not None else ConnectionOptions.checked(**target.arguments)
            self._transport = AsyncioTransport(options)
            self._transport.listen(self._told)
        self._broker: EmbeddedBroker | None = None
        self._inbox: AInbox[dict[str, Any] | None] | None = None
        self._started = False
        self._task: Any = None
        self._failure: BunqueueError | None = None
        self._ready = AEvent()
        self._closed = AEvent()
        self._ended = AEvent()

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen in the background. Does nothing when it has begun."""
        if not self._started and not self._closed.is_set():
            self._started = True
            self._task = aspawn(f"bunqueue-{self.queue_key}-events", self._listen)

    async def wait_until_ready(self, timeout: float | None = 10.0) -> None:  # noqa: ASYNC109
        """Wait until events are told.

        Args:
            timeout: seconds.

        Raises:
            AuthenticationError: the server refuses the token.
            ConnectionClosedError: it is closed.
            TimeoutError: that took longer.
        """
        if self._closed.is_set():
            raise ConnectionClosedError("QueueEvents is closed")
        self.start()
        if not await self._ready.wait(timeout):
            raise TimeoutError("queue events did not become ready in time")
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Listen no more. Idempotent."""
        self._closed.set()
        if self._transport is not None:
            self._transport.close()
        if self._inbox is not None:
            self._inbox.put(None)
        if self._started:
            await self._ended.wait(5.0)
        if self._transport is not None:
            await self._transport.wait_closed()

    async def disconnect(self) -> None:
        """The same as :meth:`close`."""
        await self.close()

    async def __aenter__(self) -> QueueEvents:
        await self.wait_until_ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- listening ----------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            if self._transport is not None:
                await self._listen_remotely(self._transport)
            else:
                await self._listen_here()
        except BunqueueError as error:
            self._failure = error
            self._ready.set()
            self._trouble(error)
        finally:
            self._ended.set()

    async def _listen_remotely(self, transport: AsyncioTransport) -> None:
        verbs = RemoteVerbs(transport)
        failures = 0
        while not self._closed.is_set():
            try:
                await asettled(transport.open())
                loss = transport.loss()
                await asettled(verbs.command("SubscribeEvents", {"queue": self.queue_key}))
                failures = 0
                self._ready.set()
                await asettled(loss)
                error: BunqueueError = ConnectionClosedError("connection lost")
            except BunqueueError as trouble:
                error = trouble
            if self._closed.is_set():
                return
            if isinstance(error, AuthenticationError) and not self._ready.is_set():
                raise error  # a token that was wrong from the start stays wrong
            self._trouble(error)
            await self._closed.wait(RESUBSCRIBE_S[min(failures, len(RESUBSCRIBE_S) - 1)])
            failures += 1

    async def _listen_here(self) -> None:
        self._broker = await aopen_broker(self._target.data_path, self._target.storage)
        inbox: AInbox[dict[str, Any] | None] = AInbox()
        self._inbox = inbox
        unsubscribe = self._broker.verbs.subscribe(self.queue_key, inbox.put)
        self._ready.set()
        try:
            while not self._closed.is_set():
                event = await inbox.get()
                if event is not None:
                    self._told(event)
        finally:
            unsubscribe()
            await self._broker.aclose()

    def _trouble(self, error: BunqueueError) -> None:
        self.emit("error", error)

    def _told(self, event: dict[str, Any]) -> None:
        """The broker told of an event: tell the listeners."""
        kind = str(event.get("eventType"))
        name = _NAMES.get(kind, kind)
        job_id = event.get("jobId")
        if name in _OF_QUEUE:
            payload: dict[str, Any] = {}
        elif name == "drained":
            payload = {"id": job_id}
        else:
            payload = {"jobId": job_id}
        if name == "completed":
            payload["returnvalue"] = widen(event.get("data"))
        elif name == "failed":
            payload["failedReason"] = event.get("error")
            payload["data"] = widen(event.get("data"))
            # One that does not say is the last.
            payload["terminal"] = event.get("terminal") is not False
        elif name == "progress":
            payload["data"] = widen(event.get("data"))
        elif name == "removed":
            payload["prev"] = event.get("prev", "unknown")
        elif name == "retried":
            payload["prev"] = event.get("prev", "failed")
        elif name == "delayed":
            payload["delay"] = widen(event.get("delay"))
        self.emit(name, payload)
        if name == "failed":
            self.emit("error", CommandError(str(event.get("error"))))

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def wait_for(self, verbs: Verbs, job_id: str, ttl_ms: float | None) -> Any:
        """Wait for the end of a job and return its result; ``Job.wait_until_finished`` calls this.

        Args:
            verbs: whom to ask how the job stands.
            job_id: the job.
            ttl_ms: ms; None waits without limit.

        Raises:
            CommandError: the job failed; the text is the reason.
            CommandTimeoutError: it did not end in time.
        """
        ended = AEvent()
        outcome: list[dict[str, Any]] = []

        def heard(payload: dict[str, Any]) -> None:
            if payload["jobId"] == job_id and payload.get("terminal", True):
                outcome.append(payload)
                ended.set()

        await self.wait_until_ready()
        self.on("completed", heard)
        self.on("failed", heard)
        try:
            state = (await asettled(verbs.command("GetState", {"id": job_id}))).get("state")
            if state == "completed":
                return widen((await asettled(verbs.command("GetResult", {"id": job_id}))).get("result"))
            if state in ("failed", "dlq"):
                raise CommandError("Job already failed")
            if not await ended.wait(None if ttl_ms is None else ttl_ms / 1000):
                raise CommandTimeoutError(f"Job {job_id} timed out after {ttl_ms}ms")
        finally:
            self.off("completed", heard)
            self.off("failed", heard)
        if "failedReason" in outcome[0]:
            raise CommandError(str(outcome[0]["failedReason"]))
        return outcome[0]["returnvalue"]
