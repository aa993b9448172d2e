"""Asking about the jobs of a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bunqueue_core.client import _job_reads
from bunqueue_core.client._acompat import asettled
from bunqueue_core.client._job_base import LEGACY_STATES
from bunqueue_core.client.job_async import Job
from bunqueue_core.client.queue_calls_async import QueueCalls
from bunqueue_core.client.waiting_async import wait_for_result
from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.payload import widen

if TYPE_CHECKING:
    from bunqueue_core.client.queue_events_async import QueueEvents

#: Jobs that are asked for at once when all are wanted.
PAGE = 1000


class QueueQueries(QueueCalls):
    """Reads jobs, states, counts, results and logs."""

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def get_job(self, job_id: str) -> Job | None:
        """The job of that id, None if there is none."""
        return await self._find("GetJob", id=job_id)

    async def get_job_by_custom_id(self, custom_id: str) -> Job | None:
        """The job that was added with that ``job_id``, None if there is none."""
        return await self._find("GetJobByCustomId", customId=custom_id, queue=self.queue_key)

    async def _find(self, command: str, /, **fields: Any) -> Job | None:
        try:
            response = await self._call(command, **fields)
        except CommandError as error:
            if _job_reads.is_missing(error):
                return None
            raise
        record = response.get("job")
        return None if record is None else Job(record, await self._verbs())

    async def get_jobs(
        self, state: str | Sequence[str] | None = None, start: int = 0, end: int = 1000, asc: bool | None = None
    ) -> list[Job]:
        """Jobs by creation time.

        Args:
            state: a state, or several; None for all.
            start: position of the first job.
            end: position after the last one; -1 for all.
            asc: oldest first (the default) or newest first.
        """
        states = state if state is None or isinstance(state, str) else list(state)
        verbs = await self._verbs()
        if end >= 0:
            if end <= start:
                return []
            response = await self._of_queue("GetJobs", state=states, offset=start, limit=end - start, asc=asc)
            return [Job(record, verbs) for record in response.get("jobs") or ()]
        jobs: list[Job] = []
        seen: set[Any] = set()
        offset = start
        while True:
            response = await self._of_queue("GetJobs", state=states, offset=offset, limit=PAGE, asc=asc)
            page = response.get("jobs") or []
            jobs.extend(Job(record, verbs) for record in _job_reads.unique(page, seen))
            if len(page) < PAGE:
                return jobs
            offset += PAGE

    async def get_waiting(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs that wait for a worker; see :meth:`get_jobs`."""
        return await self.get_jobs("waiting", start, end)

    async def get_delayed(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs whose time has not come; see :meth:`get_jobs`."""
        return await self.get_jobs("delayed", start, end)

    async def get_active(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs that workers have; see :meth:`get_jobs`."""
        return await self.get_jobs("active", start, end)

    async def get_completed(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs that were processed; see :meth:`get_jobs`."""
        return await self.get_jobs("completed", start, end)

    async def get_failed(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Dead letters; see :meth:`get_jobs`."""
        return await self.get_jobs("failed", start, end)

    async def get_prioritized(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs that wait with a priority; see :meth:`get_jobs`."""
        return await self.get_jobs("prioritized", start, end)

    async def get_waiting_children(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs that wait for other jobs, oldest first; see :meth:`get_jobs`."""
        return await self.get_jobs("waiting-children", start, end, True)

    # -- one job ------------------------------------------------------------------------------------------------------

    async def get_state(self, job_id: str) -> str:
        """Its state: waiting, prioritized, delayed, active, waiting-children, completed, failed or unknown."""
        state = (await self._call("GetState", id=job_id)).get("state") or "unknown"
        return LEGACY_STATES.get(state, state)

    async def get_result(self, job_id: str) -> Any:
        """What its processor returned; None if there is nothing."""
        return widen((await self._call("GetResult", id=job_id)).get("result"))

    async def get_progress(self, job_id: str) -> dict[str, Any]:
        """``{"progress", "message"}`` of an active job.

        Raises:
            CommandError: the job is not known or not active.
        """
        response = await self._call("GetProgress", id=job_id)
        return {"progress": _job_reads.whole(response.get("progress")), "message": response.get("message")}

    async def wait_for_job(self, job_id: str, timeout_ms: float | None = 30000) -> Any:
        """Wait for the end of a job and return its result.

        Args:
            job_id: the job.
            timeout_ms: ms, held within 0..600,000.

        Raises:
            CommandError: the job failed, or is not known.
            CommandTimeoutError: it did not end in time.
        """
        return await wait_for_result(await self._verbs(), job_id, timeout_ms)

    async def wait_job_until_finished(
        self, job_id: str, queue_events: QueueEvents | None = None, ttl_ms: float | None = None
    ) -> Any:
        """Wait for the end of a job and return its result.

        Args:
            job_id: the job.
            queue_events: listens for the end instead of asking the broker to wait; then there is no limit by default.
            ttl_ms: give up after so many ms; 30,000 by default.

        Raises:
            CommandError: the job failed, or is not known.
            CommandTimeoutError: it did not end in time.
        """
        if queue_events is not None:
            return await queue_events.wait_for(await self._verbs(), job_id, ttl_ms)
        return await wait_for_result(await self._verbs(), job_id, ttl_ms)

    async def get_children_values(self, job_id: str) -> dict[str, Any]:
        """Results of its completed children, by ``queue:id``."""
        return _job_reads.values(await self._call("GetChildrenValues", id=job_id))

    async def get_failed_children_values(self, job_id: str) -> dict[str, str]:
        """Errors of the children that failed without keeping it from running, by ``queue:id``."""
        return _job_reads.values(await self._call("GetFailedChildrenValues", id=job_id))

    async def get_ignored_children_failures(self, job_id: str) -> dict[str, str]:
        """Errors of the children whose failure is ignored, by ``queue:id``."""
        return _job_reads.values(await self._call("GetIgnoredChildrenFailures", id=job_id))

    async def get_job_dependencies(
        self, job_id: str, processed: Mapping[str, int] | None = None, unprocessed: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The children of a job, completed or not, in the order of their keys ``queue:id``.

        Args:
            job_id: the parent.
            processed: window of the completed ones, ``{"cursor": position, "count": number}``; all by default.
            unprocessed: window of the others.

        Returns:
            ``{"processed": {key: result}, "unprocessed": [key], "next_processed_cursor", "next_unprocessed_cursor"}``; a next
            cursor of 0 means that there are no more.
        """
        results, waiting = await self._children(job_id)
        done, next_done = _window(sorted(results), processed)
        undone, next_undone = _window(sorted(waiting), unprocessed)
        return {
            "processed": {key: results[key] for key in done},
            "unprocessed": undone,
            "next_processed_cursor": next_done,
            "next_unprocessed_cursor": next_undone,
        }

    async def get_job_dependencies_count(self, job_id: str) -> dict[str, int]:
        """How many children of a job are completed and how many are not: ``{"processed", "unprocessed"}``."""
        results, waiting = await self._children(job_id)
        return {"processed": len(results), "unprocessed": len(waiting)}

    async def get_dependencies(self, parent_id: str, type: str, start: int = 0, end: int = -1) -> dict[str, Any]:
        """The children of a job of one kind.

        Args:
            parent_id: the parent.
            type: ``processed`` or ``pending``.
            start: position of the first one.
            end: position of the last one; -1 for all.

        Returns:
            ``{"items": [{"id": key, "data": result}], "jobs": [...], "total": number}``; ``data`` only of processed ones.
        """
        if type not in ("processed", "pending"):
            raise ValueError(f"type must be 'processed' or 'pending', got {type!r}")
        results, waiting = await self._children(parent_id)
        keys = sorted(results) if type == "processed" else sorted(waiting)
        chosen = keys[start:] if end == -1 else keys[start : end + 1]
        items = [{"id": key, "data": results[key]} if key in results else {"id": key} for key in chosen]
        return {"items": items, "total": len(keys)}

    async def _children(self, job_id: str) -> tuple[dict[str, Any], list[str]]:
        """Results of the completed children by key, and the keys of the others."""
        parent = await self.get_job(job_id)
        if parent is None:
            return {}, []
        verbs = await self._verbs()
        answers = [verbs.command("GetJob", {"id": child_id}) for child_id in parent.children_ids]
        results: dict[str, Any] = {}
        waiting: list[str] = []
        for answer in answers:
            try:
                child = Job((await asettled(answer))["job"])
            except CommandError as error:
                if not _job_reads.is_missing(error):
                    raise
                continue
            key = f"{child.queue}:{child.id}"
            if child.state == "completed":
                results[key] = child.returnvalue
            else:
                waiting.append(key)
        return results, waiting

    # -- counts -------------------------------------------------------------------------------------------------------

    async def get_job_counts(self) -> dict[str, int]:
        """Number of jobs by state. While the queue is paused, jobs that could run count as ``paused`` only."""
        counts = (await self._of_queue("GetJobCounts")).get("counts") or {}
        return {state: int(number) for state, number in counts.items()}

    async def _count_of(self, state: str) -> int:
        return (await self.get_job_counts()).get(state, 0)

    async def get_waiting_count(self) -> int:
        """Number of waiting jobs."""
        return await self._count_of("waiting")

    async def get_active_count(self) -> int:
        """Number of active jobs."""
        return await self._count_of("active")

    async def get_completed_count(self) -> int:
        """Number of completed jobs."""
        return await self._count_of("completed")

    async def get_failed_count(self) -> int:
        """Number of dead letters."""
        return await self._count_of("failed")

    async def get_delayed_count(self) -> int:
        """Number of delayed jobs."""
        return await self._count_of("delayed")

    async def get_prioritized_count(self) -> int:
        """Number of waiting jobs with a priority."""
        return await self._count_of("prioritized")

    async def get_waiting_children_count(self) -> int:
        """Number of jobs that wait for other jobs."""
        return await self._count_of("waiting-children")

    async def count(self) -> int:
        """Number of queued jobs, delayed ones included."""
        return int((await self._of_queue("Count"))["count"])

    async def get_counts_per_priority(self) -> dict[str, int]:
        """Number of queued jobs by priority (written as a string)."""
        counts = (await self._of_queue("GetCountsPerPriority")).get("counts") or {}
        return {str(priority): int(number) for priority, number in counts.items()}

    # -- logs ---------------------------------------------------------------------------------------------------------

    async def add_job_log(self, job_id: str, message: str, level: str | None = None) -> None:
        """Add a line to a job's log. ``level`` is a word of your own, ``info`` by default."""
        await self._call("AddLog", id=job_id, message=message, level=level)

    async def get_job_logs(self, job_id: str, start: int | None = None, end: int | None = None) -> list[Any]:
        """Lines of a job's log, ``{"timestamp", "level", "message"}`` each, from position ``start`` to ``end`` inclusive."""
        data = _job_reads.data_of(await self._call("GetLogs", id=job_id, start=start, end=end))
        return [_job_reads.whole_numbers(line) for line in data.get("logs") or ()]

    async def clear_job_logs(self, job_id: str, keep_logs: int | None = None) -> None:
        """Remove a job's log, or all but the newest ``keep_logs`` lines."""
        await self._call("ClearLogs", id=job_id, keepLogs=keep_logs)


def _window(keys: list[str], window: Mapping[str, int] | None) -> tuple[list[str], int]:
    """The keys that a window shows, and the cursor of the next one (0 at the end)."""
    if window is None:
        return keys, 0
    cursor, count = window.get("cursor", 0), window.get("count", 20)
    end = cursor + count
    return keys[cursor:end], end if end < len(keys) else 0
