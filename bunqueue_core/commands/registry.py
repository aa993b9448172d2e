"""The workers of all brokers that share a storage."""

from __future__ import annotations

from bunqueue_core.answer import Answer
from bunqueue_core.broker.workers import WorkerRecord, WorkerTotals
from bunqueue_core.commands.session import Services


class Workforce:
    """Workers as they are known at one moment.

    Args:
        services: the server's; its registry keeps this broker's own workers.
        foreign: workers of other brokers.
    """

    def __init__(self, services: Services, foreign: list[WorkerRecord]) -> None:
        self._registry = services.workers
        # A worker that has gone to another broker may not have left its old one yet.
        others = [worker for worker in foreign if not _is_newer(self._registry.get(worker.id), worker)]
        left = {worker.id for worker in others}
        self.workers = [worker for worker in self._registry if worker.id not in left] + others
        self._others = [worker for worker in others if self._registry.get(worker.id) is None]

    def totals(self) -> WorkerTotals:
        """Sums over all of them."""
        return self._registry.totals(self._others)


def workforce(services: Services) -> Answer[Workforce]:
    """The workers of this broker, and those that other brokers share."""
    return services.broker.foreign_workers().map(lambda foreign: Workforce(services, foreign))


def _is_newer(own: WorkerRecord | None, foreign: WorkerRecord) -> bool:
    return own is not None and own.last_seen >= foreign.last_seen
