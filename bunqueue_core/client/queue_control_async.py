"""Controlling a queue and changing its jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bunqueue_core.client import _job_reads
from bunqueue_core.client._job_base import error_text, progress_fields, stack_of
from bunqueue_core.client._options import epoch_ms
from bunqueue_core.client.queue_calls_async import QueueCalls
from bunqueue_core.model.errors import UnrecoverableError


class QueueControl(QueueCalls):
    """Pauses, empties and cleans; moves, changes and removes jobs.

    Methods about one job raise ``CommandError`` when the broker refuses; the text says why (``Job not found``…).
    """

    # -- the queue ----------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stop deliveries. Adds and active jobs go on. Idempotent; it outlives a restart."""
        await self._of_queue("Pause")

    async def resume(self) -> None:
        """Undo :meth:`pause`."""
        await self._of_queue("Resume")

    async def is_paused(self) -> bool:
        """Whether deliveries are stopped."""
        return bool((await self._of_queue("IsPaused")).get("paused"))

    async def drain(self) -> int:
        """Remove the queued jobs (waiting, prioritized, delayed). Returns their number."""
        return int((await self._of_queue("Drain")).get("count") or 0)

    async def obliterate(self) -> None:
        """Remove everything of the queue: jobs in every state, results, logs, dead letters, limits."""
        await self._of_queue("Obliterate")

    async def clean(self, grace_ms: int, limit: int | None = None, state: str | None = None) -> int:
        """Remove old jobs. Returns their number.

        Args:
            grace_ms: only jobs that are older than this, ms.
            limit: at most so many; 1,000 by default.
            state: ``completed``, ``failed``, or a state of queued jobs (the default).
        """
        response = await self._of_queue("Clean", grace=grace_ms, limit=limit, state=state)
        return int(response.get("count") or 0)

    # -- one job ------------------------------------------------------------------------------------------------------

    async def remove(self, job_id: str) -> None:
        """Remove a job that waits (for a worker, its time or other jobs)."""
        await self._call("Cancel", id=job_id)

    async def cancel(self, job_id: str) -> None:
        """The same as :meth:`remove`."""
        await self.remove(job_id)

    async def discard(self, job_id: str) -> None:
        """Move a job to the dead letters."""
        await self._call("Discard", id=job_id)

    async def promote_job(self, job_id: str) -> None:
        """Let a delayed job run now."""
        await self._call("Promote", id=job_id)

    async def promote_jobs(self, count: int | None = None) -> int:
        """Let the oldest ``count`` delayed jobs run now, by default all. Returns their number."""
        return int((await self._of_queue("PromoteJobs", count=count)).get("count") or 0)

    async def retry_job(self, job_id: str) -> None:
        """Send a job back to its queue: a failed one with fresh attempts, an active one uncharged."""
        await self._call("MoveToWait", id=job_id)

    async def retry_jobs(self, state: str = "failed", count: int | None = None, timestamp: Any = None) -> int:
        """Send jobs back to their queue. Returns their number.

        Args:
            state: ``failed`` or ``completed``.
            count: at most so many; by default all.
            timestamp: only jobs that ended at or before this (epoch ms or a ``datetime``).

        Raises:
            ValueError: another state.
        """
        until = epoch_ms(timestamp)
        if state == "completed":
            response = await self._of_queue("RetryCompleted", count=count, timestamp=until)
        elif state == "failed":
            # A filter takes the place of the count.
            filter_ = None if until is None else _job_reads.dlq_filter({"older_than": until, "limit": count})
            response = await self._of_queue("RetryDlq", count=None if filter_ else count, filter=filter_)
        else:
            raise ValueError("state must be 'failed' or 'completed'")
        return int(response.get("count") or 0)

    async def retry_completed(self, job_id: str | None = None) -> int:
        """Run a completed job again, or all of them. Returns their number."""
        return int((await self._of_queue("RetryCompleted", id=job_id)).get("count") or 0)

    async def update_job_progress(self, job_id: str, progress: Any, message: str | None = None) -> None:
        """Tell how far an active job is: 0..100; anything that is no number is sent as the message, as JSON."""
        await self._call("Progress", id=job_id, **progress_fields(progress, message))

    async def update_job_data(self, job_id: str, data: Any) -> None:
        """Replace a job's payload."""
        await self._call("Update", id=job_id, data=data)

    async def change_job_priority(self, job_id: str, priority: int, lifo: bool | None = None) -> None:
        """Change the priority of a waiting job."""
        await self._call("ChangePriority", id=job_id, priority=priority, lifo=lifo)

    async def change_job_delay(self, job_id: str, delay_ms: int) -> None:
        """Let a job wait ``delay_ms`` ms from now."""
        await self._call("ChangeDelay", id=job_id, delay=delay_ms)

    async def extend_job_lock(self, job_id: str, token: str, duration_ms: int) -> None:
        """Let a delivery's lease end ``duration_ms`` from now."""
        await self._call("ExtendLock", id=job_id, token=token, duration=duration_ms)

    async def move_job_to_wait(self, job_id: str, token: str | None = None) -> None:
        """Send a job back to its queue; an active one needs its lock token."""
        await self._call("MoveToWait", id=job_id, token=token)

    async def move_job_to_delayed(
        self, job_id: str, delay_ms: int | None = None, token: str | None = None, *, timestamp_ms: Any = None
    ) -> None:
        """Let a job wait.

        Args:
            job_id: the job.
            delay_ms: ms from now.
            token: the lock token of an active job.
            timestamp_ms: instead of ``delay_ms``, until when (epoch ms or a ``datetime``).

        Raises:
            ValueError: neither or both of the times are given.
        """
        if (delay_ms is None) == (timestamp_ms is None):
            raise ValueError("give either delay_ms or timestamp_ms")
        if delay_ms is None:
            delay_ms = max(0, epoch_ms(timestamp_ms) - time.time_ns() // 1_000_000)
        await self._call("MoveToDelayed", id=job_id, delay=delay_ms, token=token)

    async def move_job_to_completed(self, job_id: str, result: Any = None, token: str | None = None) -> None:
        """Complete an active job with ``result``."""
        await self._call("ACK", id=job_id, result=result, token=token)

    async def move_job_to_failed(self, job_id: str, error: BaseException | str, token: str | None = None) -> None:
        """Record a failed attempt of an active job; an ``UnrecoverableError`` means no more attempts."""
        await self._call(
            "FAIL",
            id=job_id,
            token=token,
            error=error_text(error),
            stack=stack_of(error),
            unrecoverable=True if isinstance(error, UnrecoverableError) else None,
        )

    async def move_job_to_waiting_children(self, job_id: str, token: str | None = None) -> bool:
        """Let an active job wait until its children are completed. Returns whether it moved."""
        return bool(_job_reads.data_of(await self._call("MoveToWaitingChildren", id=job_id, token=token)).get("moved"))

    async def extend_job_locks(self, job_ids: Sequence[str], tokens: Sequence[str | None], duration_ms: int) -> int:
        """Let several leases end ``duration_ms`` from now. Returns how many were renewed.

        Raises:
            ValueError: the lists differ in length.
        """
        if len(job_ids) != len(tokens):
            raise ValueError("jobIds and tokens arrays must have the same length")
        if not job_ids:
            return 0
        response = await self._call(
            "ExtendLocks", ids=list(job_ids), tokens=list(tokens), durations=[duration_ms] * len(job_ids)
        )
        return int(response.get("count") or 0)

    # -- relations ----------------------------------------------------------------------------------------------------

    async def remove_child_dependency(self, job_id: str) -> bool:
        """Let the parent of a job no longer wait for it. Returns whether it did wait."""
        return bool((await self._call("RemoveChildDependency", id=job_id)).get("removed"))

    async def remove_unprocessed_children(self, job_id: str) -> None:
        """Remove the children of a job that still wait."""
        await self._call("RemoveUnprocessedChildren", id=job_id)

    async def get_deduplication_job_id(self, deduplication_id: str) -> str | None:
        """The job that holds a unique key, None if none does."""
        response = await self._of_queue("GetDeduplicationJobId", deduplicationId=deduplication_id)
        return _job_reads.data_of(response).get("jobId")

    async def remove_deduplication_key(self, deduplication_id: str) -> int:
        """Free a unique key. Returns 1 if it was held, else 0."""
        response = await self._of_queue("RemoveDeduplicationKey", deduplicationId=deduplication_id)
        return int(_job_reads.data_of(response).get("count") or 0)
