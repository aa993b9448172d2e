"""Operations that would load a whole queue: as much at once as the settings allow, or an error that names the setting.

Nothing is cut off in silence. Whoever asks for a page gets it, as long as the page itself stays within the bounds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from psycopg.types.numeric import Int4

from bunqueue_core.model.errors import CommandError
from bunqueue_postgres import arrays
from bunqueue_postgres.verbs.base import BrokerBase

#: Jobs whose payloads are loaded without having been weighed first.
UNWEIGHED: Final = 20


class Snapshotting(BrokerBase):
    """Reading many whole jobs."""

    def ids_to_ask_for(self, wanted: int | None) -> int:
        """How many ids to ask for when ``wanted`` (None: all) are: one more than the bound shows that it is exceeded."""
        most = self.settings.max_snapshot_jobs + 1
        return most if wanted is None else min(max(0, wanted), most)

    async def check_size(self, queue: str, keys: list[str]) -> None:
        """Refuse to load the jobs of these keys at once if they are too many or too heavy.

        Raises:
            CommandError: they are; the text names the setting.
        """
        settings = self.settings
        if len(keys) > settings.max_snapshot_jobs:
            raise _too_large(queue, "jobs", "maxSnapshotJobs", settings.max_snapshot_jobs)
        if len(keys) > UNWEIGHED:
            rows = await self.run(self.queries.weigh, (Int4(self.ns), arrays.texts(keys)))
            if rows[0][0] > settings.max_snapshot_payload_bytes:
                raise _too_large(queue, "payload bytes", "maxSnapshotPayloadBytes", settings.max_snapshot_payload_bytes)

    async def in_portions(
        self,
        wanted: int | None,
        find: Callable[[int], Awaitable[list[str]]],
        work: Callable[[list[str]], Awaitable[int]],
    ) -> int:
        """Work on ``wanted`` jobs (None: all there are), of which only so many keys are held at once; gives how many it changed.

        Args:
            wanted: how many.
            find: gives the keys of the next jobs, at most so many; those that were worked on are not among them any more.
            work: works on them; gives how many it changed.
        """
        done = 0
        while wanted is None or done < wanted:
            most = self.settings.max_snapshot_jobs
            portion = most if wanted is None else min(most, wanted - done)
            keys = await find(portion)
            changed = await work(keys) if keys else 0
            done += changed
            if not changed or len(keys) < portion:
                break
        return done


def _too_large(queue: str, what: str, setting: str, bound: int) -> CommandError:
    return CommandError(
        f'Queue "{queue}" has more {what} to load at once than {setting}={bound}; '
        f"ask for a smaller part, or raise storage.{setting}"
    )
