"""The way of one client to its broker: opened at the first use, closed with the client."""

from __future__ import annotations

from bunqueue_core.client._acompat import ALock, asettled
from bunqueue_core.client._target import Target
from bunqueue_core.client._verbs import Verbs
from bunqueue_core.client.connection_async import Connection
from bunqueue_core.client.connection_pool_async import ConnectionPool, shared_connection
from bunqueue_core.embedded import EmbeddedBroker, aopen_broker
from bunqueue_core.model.errors import ConnectionClosedError


class Endpoint:
    """Gives a client its verbs. Making one does no I/O.

    Args:
        target: where the jobs are.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = ALock()
        self._broker: EmbeddedBroker | None = None
        self._own: Connection | ConnectionPool | None = None
        self._closed = False
        #: The verbs; None until an embedded broker is open.
        self.verbs: Verbs | None = None
        if not target.embedded:
            connection: Connection | ConnectionPool
            if target.connection is not None:
                connection = shared_connection(target.connection)
            elif target.pool_size > 1:
                connection = self._own = ConnectionPool(target.pool_size, **target.arguments)
            else:
                connection = self._own = Connection(**target.arguments)
            self.verbs = connection.verbs

    @property
    def target(self) -> Target:
        """Where the jobs are."""
        return self._target

    @property
    def embedded(self) -> bool:
        """Whether the broker is in this process."""
        return self._target.embedded

    @property
    def owns_connection(self) -> bool:
        """Whether closing this client closes the connection: then a server takes back what was delivered on it."""
        return self._own is not None

    async def open(self) -> Verbs:
        """The verbs, after opening the embedded broker where it is not open yet.

        Raises:
            ConfigurationError: the storage driver is missing, or its settings are wrong.
            ConnectionClosedError: the client was closed.
        """
        verbs = self.verbs
        if verbs is not None:
            return verbs
        async with self._lock:
            if self._closed:
                raise ConnectionClosedError("connection closed by client")
            if self._broker is None:
                self._broker = await aopen_broker(self._target.data_path, self._target.storage)
                self.verbs = self._broker.verbs
            return self._broker.verbs

    async def connect(self) -> None:
        """Open the broker, or connect."""
        verbs = await self.open()
        if verbs.remote:
            await asettled(verbs.command("Ping", {}))

    async def close(self) -> None:
        """Release the broker, or close the connection unless it is shared. Idempotent."""
        self._closed = True
        if self._own is not None:
            await self._own.close()
        async with self._lock:
            broker, self._broker = self._broker, None
            self.verbs = None if self.embedded else self.verbs
        if broker is not None:
            await broker.aclose()
