"""What a command handler works with: the server's services, and the state of the connection that it serves."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bunqueue_core.answer import Answer
from bunqueue_core.broker.protocol import Broker
from bunqueue_core.broker.workers import WorkerRegistry
from bunqueue_core.commands.meters import Meters
from bunqueue_core.logging import Logger
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.payload import Packer
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.requests import Event

if TYPE_CHECKING:
    from bunqueue_core.backup.reports import BackupStatistics
    from bunqueue_core.events.services import EventStatistics


@dataclass(slots=True)
class Services:
    """What all sessions of a server share. Used from the server's event loop only.

    Attributes:
        broker: the broker.
        ports: clock and ids.
        log: the server's log.
        workers: the registry of workers.
        reader: reads job input.
        version: version of the server, told by ``Hello``.
        tokens: accepted tokens; empty leaves the server open.
        meters: rates and latencies.
        packer: packs results.
        private_webhooks: webhooks may point into private networks.
        events: counters of webhooks and event sinks; None where neither runs.
        backups: numbers of backups; None where there are none.
        metrics: gives the metrics in the text format of Prometheus; None where nothing serves them.
        announce: takes what happens for those who watch the server, a name such as ``queue:paused`` and its fields; None while
            nobody does.
    """

    broker: Broker
    ports: Ports
    log: Logger
    workers: WorkerRegistry
    reader: JobReader
    version: str
    tokens: tuple[str, ...] = ()
    meters: Meters = field(default_factory=Meters)
    packer: Packer = field(default_factory=Packer)
    private_webhooks: bool = False
    events: Callable[[], EventStatistics] | None = None
    backups: Callable[[], BackupStatistics] | None = None
    metrics: Callable[[], Answer[bytes]] | None = None
    announce: Callable[[str, Mapping[str, Any]], None] | None = None

    def tell(self, event: str, /, **fields: Any) -> None:
        """Announce something, if anybody watches."""
        if self.announce is not None:
            self.announce(event, fields)

    def accepts(self, token: object) -> bool:
        """Whether ``token`` is one of the accepted ones. Takes the same time wherever it differs."""
        if not isinstance(token, str) or not token.strip():
            return False
        given = token.encode("utf-8", "surrogatepass")
        found = False
        for known in self.tokens:
            found |= hmac.compare_digest(given, known.encode())
        return found


class Session:
    """One client's connection, as the commands see it.

    Args:
        services: the server's.
        id: owner of deliveries and workers; None where there is no connection that could end (HTTP).
        emit: sends an event to the client; None where the transport cannot.
    """

    __slots__ = ("_subscription", "authenticated", "broker", "emit", "id", "services")

    def __init__(
        self,
        services: Services,
        id: str | None,
        emit: Callable[[Event], None] | None = None,
        *,
        authenticated: bool = False,
    ) -> None:
        self.services = services
        self.broker = services.broker
        self.id = id
        self.emit = emit
        self.authenticated = authenticated or not services.tokens
        self._subscription: Callable[[], None] | None = None

    @property
    def subscribed(self) -> bool:
        """Whether events are sent."""
        return self._subscription is not None

    def subscribe(self, queue: str) -> None:
        """Send the events of ``queue``, instead of those of an earlier subscription."""
        emit = self.emit
        if emit is None:
            return
        subscription = self.broker.subscribe(emit, queue)
        self.unsubscribe()
        self._subscription = subscription

    def unsubscribe(self) -> None:
        """Send no events any more."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription()

    def close(self) -> None:
        """End the session: no events, its workers unregistered, its waiting pulls ended, its deliveries handed back."""
        self.unsubscribe()
        if self.id is None:
            return
        self.services.workers.remove_session(self.id)
        self.broker.release(self.id).add_callback(self._released)

    def _released(self, answer: Answer[int]) -> None:
        if answer.error is not None:
            self.services.log.warn("Jobs of a closed connection could not be handed back", error=str(answer.error))
