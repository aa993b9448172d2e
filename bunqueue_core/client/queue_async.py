"""The queue: adds jobs, asks about them, controls them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from bunqueue_core.client._acompat import asettled
from bunqueue_core.client._session import TelemetryHandler, TlsOption
from bunqueue_core.client._target import StorageOption, find_target, queue_key
from bunqueue_core.client.add_batcher_async import AddBatcher
from bunqueue_core.client.connection_async import Connection
from bunqueue_core.client.connection_pool_async import ConnectionPool
from bunqueue_core.client.endpoint_async import Endpoint
from bunqueue_core.client.job_async import Job
from bunqueue_core.client.job_options import AnyJobOptions
from bunqueue_core.client.queue_admin_async import QueueAdmin
from bunqueue_core.client.queue_control_async import QueueControl
from bunqueue_core.client.queue_query_async import QueueQueries
from bunqueue_core.client.queue_schedules_async import QueueSchedules
from bunqueue_core.client.remote import RemoteVerbs
from bunqueue_core.model.errors import BunqueueError
from bunqueue_core.model.rules import check_queue_name

if TYPE_CHECKING:
    from bunqueue_core.client.forward_async import Forwarder


class Queue(QueueQueries, QueueControl, QueueAdmin, QueueSchedules):
    """A queue of jobs, on a server or in this process.

    Making one does no I/O: the connection, or the embedded database, is opened by the first call.

    Args:
        name: its name: letters, digits, ``_ - . :``.
        host: name or address of the server.
        port: its TCP port.
        token: sent with ``Auth``; by default taken from ``BQ_TOKEN`` or ``BUNQUEUE_TOKEN``.
        tls: True (the system's authorities), ``{"ca_file": path}``, ``{"verify": False}`` (encrypt only) or an ``SSLContext``.
        connection: a connection to share, which stays open when the queue is closed; or a mapping of a connection's arguments.
        command_timeout: seconds that a command may take; None waits without limit.
        prefix_key: goes before the name: programs with different prefixes do not see each other's queues.
        on_telemetry: called with events of the connection.
        embedded: True keeps the jobs in this process, in the file ``data_path``; by default False, or True where the environment
            has ``BUNQUEUE_EMBEDDED=1``.
        data_path: the database file of an embedded queue; by default the environment's (``BUNQUEUE_DATA_PATH``,
            ``BQ_DATA_PATH``, ``DATA_PATH``, ``SQLITE_PATH``), else the database that is open already, else memory.
        storage: the storage of an embedded queue in place of a path: what the section ``storage`` of a configuration holds, be it
            ``{"driver": "...", ...}`` or a driver's settings. Any installed driver that can be embedded will do; clients that name
            the same storage share it.
        default_job_options: options of every job, unless the call gives its own.
        auto_batch: ``{"max_size": 50, "max_delay_ms": 5}``, or True for just that: single adds that come while others are under way
            leave together. Worth it where many threads or tasks add to a server one by one; ``durable`` adds always leave alone. An
            embedded queue has no use for it.
        pool_size: number of connections to the server; see :class:`ConnectionPool`.

    Raises:
        ValueError: an argument is out of its bounds, or the arguments contradict each other.
    """

    def __init__(
        self,
        name: str,
        host: str = "localhost",
        port: int = 6789,
        token: str | None = None,
        tls: TlsOption = None,
        connection: Connection | ConnectionPool | Mapping[str, Any] | None = None,
        command_timeout: float | None = 10.0,
        prefix_key: str = "",
        on_telemetry: TelemetryHandler | None = None,
        *,
        embedded: bool | None = None,
        data_path: str | os.PathLike[str] | None = None,
        storage: StorageOption = None,
        default_job_options: AnyJobOptions | Mapping[str, Any] | None = None,
        auto_batch: Mapping[str, Any] | bool | None = None,
        pool_size: int = 1,
    ) -> None:
        self.queue_key = check_queue_name(queue_key(prefix_key, name))
        #: The same as :attr:`queue_key`.
        self.name = self.queue_key
        #: The name without the prefix.
        self.logical_name = name
        self._prefix_key = prefix_key
        self._defaults = dict(default_job_options) if default_job_options else None
        self._endpoint = Endpoint(
            find_target(
                host=host,
                port=port,
                token=token,
                tls=tls,
                connection=connection,
                command_timeout=command_timeout,
                on_telemetry=on_telemetry,
                embedded=embedded,
                data_path=data_path,
                storage=storage,
                pool_size=pool_size,
            )
        )
        self._batcher: AddBatcher | None = None
        if auto_batch and not self._endpoint.embedded:
            batcher = AddBatcher(self.queue_key, {} if auto_batch is True else auto_batch)
            self._batcher = batcher if batcher.enabled else None

    @property
    def embedded(self) -> bool:
        """Whether the jobs are in this process."""
        return self._endpoint.embedded

    @property
    def opened(self) -> bool:
        """Whether the embedded database is open; a queue on a server has nothing to open."""
        return self._endpoint.verbs is not None

    # -- produce ------------------------------------------------------------------------------------------------------

    async def add(self, name: str, data: Any = None, **options: Unpack[AnyJobOptions]) -> Job:
        """Add a job.

        Args:
            name: name of the job, 1..256 characters.
            data: payload: anything that MessagePack can hold.
            **options: ``priority`` (higher first), ``delay``, ``attempts`` (3), ``backoff`` (ms, or ``{"type": "fixed" or
                "exponential", "delay", "max_delay"}``), ``ttl``, ``timeout``, ``stall_timeout``, ``job_id``, ``unique_key``,
                ``deduplication`` (``{"id", "ttl", "extend", "replace"}``), ``debounce``, ``depends_on``, ``children_ids``,
                ``tags``, ``parent`` (``{"id", "queue"}``), ``parent_id``, ``group`` (``{"id", "priority", "max_size"}``),
                ``group_id``, ``lifo``, ``durable`` (answer after the job is on disk), ``remove_on_complete``,
                ``remove_on_fail``, ``repeat``, ``stack_trace_limit`` (10), ``keep_logs``, ``size_limit``, ``timestamp``, and
                the policies ``fail_parent_on_failure``, ``remove_dependency_on_failure``, ``continue_parent_on_failure`` and
                ``ignore_dependency_on_failure`` of children.
                Durations in ms, or a ``timedelta``. :class:`~bunqueue_core.client.job_options.JobOptions` has their types.

        Returns:
            The job, with its id. Where a job of the same ``job_id`` or unique key exists already, its id.

        Raises:
            CommandError: the broker refuses the job.
            SerializationError: the payload cannot be encoded.
            TypeError: an option is not known.
        """
        endpoint = self._endpoint
        verbs = endpoint.verbs or await endpoint.open()
        defaults = self._defaults
        merged = options or None if defaults is None else {**defaults, **options}
        batcher = self._batcher
        if batcher is None or (merged is not None and merged.get("durable")) or not isinstance(verbs, RemoteVerbs):
            answer = verbs.add(self.queue_key, name, data, merged)
        else:
            answer = batcher.add(verbs, name, data, merged)
        pushed = answer.value if answer.ready else await asettled(answer)
        job: Job = Job._added(pushed.ids[0], self.queue_key, name, data, merged, verbs)
        return job

    async def add_bulk(self, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Add jobs, all or none.

        Args:
            jobs: ``{"name", "data", **options}`` each; see :meth:`add`.

        Returns:
            Their ids, in order.

        Raises:
            CommandError: the broker refuses one of them; the text begins with its position.
        """
        if not jobs:
            return []
        endpoint = self._endpoint
        verbs = endpoint.verbs or await endpoint.open()
        answer = verbs.add_bulk(self.queue_key, jobs, self._defaults)
        return (answer.value if answer.ready else await asettled(answer)).ids

    # -- elsewhere ----------------------------------------------------------------------------------------------------

    def forward(
        self,
        to: Connection | Mapping[str, Any],
        *,
        queue: str | None = None,
        concurrency: int = 4,
        durable: bool = False,
    ) -> Forwarder:
        """Send the jobs of this queue on to a server, for as long as the forwarder runs.

        An embedded queue in a file becomes a spool: jobs stay here while the server is out of reach, and leave when it is back.

        Args:
            to: the server: a connection, or a mapping of its arguments (``{"host", "port", "token", "tls"}``).
            queue: the queue's name there; by default the name here, without the prefix.
            concurrency: jobs on their way at once; 1 keeps their order as far as none has to be tried again.
            durable: let the server answer only after a job is on its disk.

        Returns:
            The forwarder, which has begun. Asynchronous ones begin where an event loop runs, else by ``start()``.

        Raises:
            ValueError: an argument is out of its bounds.
        """
        from bunqueue_core.client.forward_async import Forwarder

        return Forwarder(self, to, queue=queue, concurrency=concurrency, durable=durable)

    # -- life cycle ---------------------------------------------------------------------------------------------------

    async def ping(self) -> bool:
        """Whether the broker answers."""
        try:
            await self._call("Ping")
        except BunqueueError:
            return False
        return True

    async def wait_until_ready(self) -> None:
        """Connect, or open the embedded database.

        Raises:
            BunqueueError: that is not possible; the message says why.
        """
        await self._endpoint.connect()

    async def close(self) -> None:
        """Close the queue: what was added is written, the connection is closed unless it is shared. Idempotent.

        Adds of other tasks or threads that wait for a batch fail; :meth:`disconnect` sends them first.
        """
        if self._batcher is not None:
            self._batcher.stop()
        await self._endpoint.close()

    async def disconnect(self) -> None:
        """:meth:`close`, after adds that wait for a batch have been answered."""
        verbs = self._endpoint.verbs
        if self._batcher is not None and isinstance(verbs, RemoteVerbs):
            await self._batcher.flush(verbs)
        await self.close()

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Queue({self.queue_key!r})"
