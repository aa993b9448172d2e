"""The verbs of a broker behind several connections: each command takes the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bunqueue_core.answer import Answer
from bunqueue_core.client._session import DEFAULT_TIMEOUT, Default
from bunqueue_core.client._verbs import Claim
from bunqueue_core.client.remote import RemoteVerbs
from bunqueue_core.model.requests import Ack, Acknowledged, Failure, PullRequest, Pushed, Renewal


class PooledVerbs(RemoteVerbs):
    """Spreads commands over connections. Commands that are not waited for may be processed in another order.

    Args:
        members: the verbs of each connection, one at least.
    """

    def __init__(self, members: Sequence[RemoteVerbs]) -> None:
        super().__init__(members[0].transport)
        self._members = members
        self._next = 0

    def pick(self) -> RemoteVerbs:
        """The verbs of the next connection. One that cannot be made just now is left out while there are others."""
        members, first = self._members, self._next
        self._next = (first + 1) % len(members)  # two threads may take the same: no harm
        for offset in range(len(members)):
            member = members[(first + offset) % len(members)]
            if member.transport.connected or not member.transport.backing_off:
                return member
        return members[first]

    @property
    def generation(self) -> int:
        """Changes with every connection that is made."""
        return sum(member.transport.generation for member in self._members)

    def add(self, queue: str, name: str, data: Any, options: Mapping[str, Any] | None) -> Answer[Pushed]:
        """See :class:`RemoteVerbs`, as for all the others."""
        return self.pick().add(queue, name, data, options)

    def add_entries(self, queue: str, entries: Sequence[Mapping[str, Any]]) -> Answer[Pushed]:
        """See :class:`RemoteVerbs`."""
        return self.pick().add_entries(queue, entries)

    def pull(self, request: PullRequest) -> Answer[Sequence[Claim]]:
        """See :class:`RemoteVerbs`."""
        return self.pick().pull(request)

    def ack(self, acks: Sequence[Ack], *, flush: bool = True) -> Answer[Acknowledged]:
        """See :class:`RemoteVerbs`. The next command takes another connection, so that waiting for it gains nothing."""
        return self.pick().ack(acks)

    def fail(self, failure: Failure, *, flush: bool = True) -> Answer[Acknowledged]:
        """See :class:`RemoteVerbs`."""
        return self.pick().fail(failure)

    def heartbeat(self, renewals: Sequence[Renewal]) -> Answer[list[bool]]:
        """See :class:`RemoteVerbs`."""
        return self.pick().heartbeat(renewals)

    def command(
        self,
        name: str,
        fields: Mapping[str, Any],
        *,
        timeout: float | Default | None = DEFAULT_TIMEOUT,
        flush: bool = True,
    ) -> Answer[dict[str, Any]]:
        """See :class:`RemoteVerbs`."""
        return self.pick().command(name, fields, timeout=timeout)
