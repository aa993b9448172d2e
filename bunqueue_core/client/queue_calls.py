# Written by tools/async_to_sync.py from queue_calls_async.py: edit that file and run the tool, not this one.
"""What the parts of a queue share: its key, and the way to its broker."""

from __future__ import annotations

from typing import Any

from bunqueue_core.client._acompat import settled
from bunqueue_core.client._session import DEFAULT_TIMEOUT, Default
from bunqueue_core.client._verbs import Verbs
from bunqueue_core.client.endpoint import Endpoint


class QueueCalls:
    """Calls commands for one queue."""

    #: The name by which the broker knows the queue, prefix included.
    queue_key: str
    _endpoint: Endpoint

    def _verbs(self) -> Verbs:
        return self._endpoint.verbs or self._endpoint.open()

    def _call(
        self,
        name: str,
        /,
        timeout: float | Default | None = DEFAULT_TIMEOUT,
        **fields: Any,
    ) -> dict[str, Any]:
        """The response of command ``name``; fields that are None are left out."""
        verbs = self._endpoint.verbs or self._endpoint.open()
        return settled(verbs.command(name, fields, timeout=timeout))

    def _of_queue(self, name: str, /, **fields: Any) -> dict[str, Any]:
        """The response of command ``name`` about this queue."""
        return self._call(name, queue=self.queue_key, **fields)
