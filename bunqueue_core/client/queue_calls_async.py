"""What the parts of a queue share: its key, and the way to its broker."""

from __future__ import annotations

from typing import Any

from bunqueue_core.client._acompat import asettled
from bunqueue_core.client._session import DEFAULT_TIMEOUT, Default
from bunqueue_core.client._verbs import Verbs
from bunqueue_core.client.endpoint_async import Endpoint


class QueueCalls:
    """Calls commands for one queue."""

    #: The name by which the broker knows the queue, prefix included.
    queue_key: str
    _endpoint: Endpoint

    async def _verbs(self) -> Verbs:
        return self._endpoint.verbs or await self._endpoint.open()

    async def _call(
        self,
        name: str,
        /,
        timeout: float | Default | None = DEFAULT_TIMEOUT,  # noqa: ASYNC109
        **fields: Any,
    ) -> dict[str, Any]:
        """The response of command ``name``; fields that are None are left out."""
        verbs = self._endpoint.verbs or await self._endpoint.open()
        return await asettled(verbs.command(name, fields, timeout=timeout))

    async def _of_queue(self, name: str, /, **fields: Any) -> dict[str, Any]:
        """The response of command ``name`` about this queue."""
        return await self._call(name, queue=self.queue_key, **fields)
