"""Repeat jobs: a successful completion pushes the next one."""

from __future__ import annotations

from bunqueue_core.engine.base import _bound
from bunqueue_core.engine.control import MAX_REPEAT_LINKS
from bunqueue_core.engine.produce import Producing
from bunqueue_core.engine.queue import QueueState
from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.job import Job


class Repeating(Producing):
    """Successors of completed repeat jobs; the rule itself is in ``scheduling.repeat`` and handed in through the settings."""

    def repeat(self, queue: QueueState, job: Job, now: int) -> None:
        successor = self.settings.repeat_successor
        if successor is None or job.options.repeat is None:
            return
        try:
            spec = successor(job, now)
            if spec is None:
                return
            pushed = self.push(queue.name, [spec], now)
        except CommandError:
            # The job has completed, whatever becomes of the chain: a rule of deduplication may end it.
            self.totals.missed_runs += 1
            return
        self.repeat_links[job.id] = pushed.ids[0]
        _bound(self.repeat_links, MAX_REPEAT_LINKS)
