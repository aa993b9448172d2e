"""What queues, workers and jobs ask of a broker, near or far.

The frequent operations are methods of their own, typed and in bulk form. Everything else is a command of the protocol, by name
and fields, with the response as the protocol shapes it: so each command is implemented once a side, and a client shows the same
values embedded and remote.

Every method returns an :class:`~bunqueue_core.answer.Answer` and raises nothing itself, except for arguments that no broker can
take (``TypeError``, ``SerializationError``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from bunqueue_core.answer import Answer
from bunqueue_core.client._session import DEFAULT_TIMEOUT, Default

if TYPE_CHECKING:
    from bunqueue_core.model.job import Job as JobRecord
    from bunqueue_core.model.requests import Ack, Acknowledged, Failure, PullRequest, Pushed, Renewal

#: A job's record: the broker's own where it is embedded, a response's mapping where it is remote.
JobSource: TypeAlias = "JobRecord | Mapping[str, Any]"

#: A claimed job with its lock token.
Claim: TypeAlias = "tuple[JobSource, str | None]"


class Verbs(ABC):
    """The operations of one broker. See the module's head."""

    #: Whether the broker is another process: there are round trips to save, connections to lose, and long polls that end.
    remote: bool

    @property
    @abstractmethod
    def generation(self) -> int:
        """Changes when the broker has forgotten who is connected (a worker then registers again)."""

    @abstractmethod
    def add(self, queue: str, name: str, data: Any, options: Mapping[str, Any] | None) -> Answer[Pushed]:
        """Add a job. ``options`` are those of ``Queue.add``; None when there are none."""

    @abstractmethod
    def add_bulk(
        self, queue: str, jobs: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any] | None
    ) -> Answer[Pushed]:
        """Add jobs, all or none; ``defaults`` are options that each may override."""

    @abstractmethod
    def pull(self, request: PullRequest) -> Answer[Sequence[Claim]]:
        """Claim jobs. ``Answer.cancel()`` ends the wait and gives back what was claimed."""

    @abstractmethod
    def ack(self, acks: Sequence[Ack], *, flush: bool = True) -> Answer[Acknowledged]:
        """Complete jobs. ``flush`` False: another verb follows at once, and the two may share a trip."""

    @abstractmethod
    def fail(self, failure: Failure, *, flush: bool = True) -> Answer[Acknowledged]:
        """Record a failed attempt."""

    @abstractmethod
    def heartbeat(self, renewals: Sequence[Renewal]) -> Answer[list[bool]]:
        """Renew leases; False for each one that is lost."""

    @abstractmethod
    def command(
        self,
        name: str,
        fields: Mapping[str, Any],
        *,
        timeout: float | Default | None = DEFAULT_TIMEOUT,
        flush: bool = True,
    ) -> Answer[dict[str, Any]]:
        """Any command of the protocol. Fields that are None are left out.

        Args:
            name: the command.
            fields: its fields.
            timeout: seconds; the default is the connection's own, None no limit.
            flush: see :meth:`ack`.
        """
