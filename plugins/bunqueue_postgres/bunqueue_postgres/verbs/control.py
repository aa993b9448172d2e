"""Control of queues and single jobs."""

from __future__ import annotations

from psycopg.types.numeric import Int4

from bunqueue_core.answer import Answer
from bunqueue_postgres.verbs.base import BrokerBase


class Controlling(BrokerBase):
    """The verbs that steer."""

    # -- control ------------------------------------------------------------------------------------------------------

    def pause(self, queue: str) -> Answer[None]:
        return self._set_paused(queue, True)

    def resume(self, queue: str) -> Answer[None]:
        return self._set_paused(queue, False)

    def _set_paused(self, queue: str, paused: bool) -> Answer[None]:
        async def work() -> None:
            await self.database.run(self.queries.set_paused, (Int4(self.ns), queue, paused))
            if not paused:
                self.wake(queue, 1_000_000)
            self.coordinator.announce()

        return self.command(work)

    def is_paused(self, queue: str) -> Answer[bool]:
        return self.read_queue(self.queries.queue, queue).map(lambda rows: bool(rows and rows[0][1]))
