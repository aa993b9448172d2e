# Written by tools/async_to_sync.py from queue_query_async.py: edit that file and run the tool, not this one.
"""Asking about the jobs of a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bunqueue_core.client import _job_reads
from bunqueue_core.client._acompat import settled
from bunqueue_core.client._job_base import LEGACY_STATES
from bunqueue_core.client.job import Job
from bunqueue_core.client.queue_calls import QueueCalls
from bunqueue_core.client.waiting import wait_for_result
from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.payload import widen

if TYPE_CHECKING:
    from bunqueue_core.client.queue_events import QueueEvents

#: Jobs that are asked for at once when all are wanted.
PAGE = 1000


class QueueQueries(QueueCalls):
    """Reads jobs, states, counts, results and logs."""

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def get_job(self, job_id: str) -> Job | None:
        """The job of that id, None if there is none."""
        return self._find("GetJob", id=job_id)

    def get_job_by_custom_id(self, custom_id: str) -> Job | None:
        """The job that was added with that ``job_id``, None if there is none."""
        return self._find("GetJobByCustomId", customId=custom_id, queue=self.queue_key)

    def _find(self, command: str, /, **fields: Any) -> Job | None:
        try:
            response = self._call(command, **fields)
        except CommandError as error:
            if _job_reads.is_missing(error):
                return None
            raise
        record = response.get("job")
        return None if record is None else Job(record, self._verbs())

    def get_jobs(
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
        verbs = self._verbs()
        if end >= 0:
            if end <= start:
                return []
            response = self._of_queue("GetJobs", state=states, offset=start, limit=end - start, asc=asc)
            return [Job(record, verbs) for record in response.get("jobs") or ()]
        jobs: list[Job] = []
        seen: set[Any] = set()
        offset = start
        while True:
            response = self._of_queue("GetJobs", state=states, offset=offset, limit=PAGE, asc=asc)
            page = response.get("jobs") or []
            jobs.extend(Job(record, verbs) for record in _job_reads.unique(page, seen))
            if len(page) < PAGE:
                return jobs
            offset += PAGE

    def get_waiting(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs that wait for a worker; see :meth:`get_jobs`."""
        return self.get_jobs("waiting", start, end)

    def get_delayed(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs whose time has not come; see :meth:`get_jobs`."""
        return self.get_jobs("delayed", start, end)

    def get_active(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs that workers have; see :meth:`get_jobs`."""
        return self.get_jobs("active", start, end)

    def get_completed(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs that were processed; see :meth:`get_jobs`."""
        return self.get_jobs("completed", start, end)

    def get_failed(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Dead letters; see :meth:`get_jobs`."""
        return self.get_jobs("failed", start, end)

    def get_prioritized(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs that wait with a priority; see :meth:`get_jobs`."""
        return self.get_jobs("prioritized", start, end)

    def get_waiting_children(self, start: int = 0, end: int = 1000) -> list[Job]:
        """Jobs that wait for other jobs, oldest first; see :meth:`get_jobs`."""
        return self.get_jobs("waiting-children", start, end, True)

    # -- one job ------------------------------------------------------------------------------------------------------

    def get_state(self, job_id: str) -> str:
        """Its state: waiting, prioritized, delayed, active, waiting-children, completed, failed or unknown."""
        state = (self._call("GetState", id=job_id)).get("state") or "unknown"
        return LEGACY_STATES.get(state, state)

    def get_result(self, job_id: str) -> Any:
        """What its processor returned; None if there is nothing."""
        return widen((self._call("GetResult", id=job_id)).get("result"))

    def get_progress(self, job_id: str) -> dict[str, Any]:
        """``{"progress", "message"}`` of an active job.

        Raises:
            CommandError: the job is not known or not active.
        """
        response = self._call("GetProgress", id=job_id)
        return {"progress": _job_reads.whole(response.get("progress")), "message": response.get("message")}

    def wait_for_job(self, job_id: str, timeout_ms: float | None = 30000) -> Any:
        """Wait for the end of a job and return its result.

        Args:
            job_id: the job.
            timeout_ms: ms, held within 0..600,000.

        Raises:
            CommandError: the job failed, or is not known.
            CommandTimeoutError: it did not end in time.
        """
        return wait_for_result(self._verbs(), job_id, timeout_ms)

    def wait_job_until_finished(
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
            return queue_events.wait_for(self._verbs(), job_id, ttl_ms)
        return wait_for_result(self._verbs(), job_id, ttl_ms)

    def get_children_values(self, job_id: str) -> dict[str, Any]:
        """Results of its completed children, by ``queue:id``."""
        return _job_reads.values(self._call("GetChildrenValues", id=job_id))

    def get_failed_children_values(self, job_id: str) -> dict[str, str]:
        """Errors of the children that failed without keeping it from running, by ``queue:id``."""
        return _job_reads.values(self._call("GetFailedChildrenValues", id=job_id))

    def get_ignored_children_failures(self, job_id: str) -> dict[str, str]:
        """Errors of the children whose failure is ignored, by ``queue:id``."""
        return _job_reads.values(self._call("GetIgnoredChildrenFailures", id=job_id))

    def get_job_dependencies(
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
        results, waiting = self._children(job_id)
        done, next_done = _window(sorted(results), processed)
        undone, next_undone = _window(sorted(waiting), unprocessed)
        return {
            "processed": {key: results[key] for key in done},
            "unprocessed": undone,
            "next_processed_cursor": next_done,
            "next_unprocessed_cursor": next_undone,
        }

    def get_job_dependencies_count(self, job_id: str) -> dict[str, int]:
        """How many children of a job are completed and how many are not: ``{"processed", "unprocessed"}``."""
        results, waiting = self._children(job_id)
        return {"processed": len(results), "unprocessed": len(waiting)}

    def get_dependencies(self, parent_id: str, type: str, start: int = 0, end: int = -1) -> dict[str, Any]:
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
        results, waiting = self._children(parent_id)
        keys = sorted(results) if type == "processed" else sorted(waiting)
        chosen = keys[start:] if end == -1 else keys[start : end + 1]
        items = [{"id": key, "data": results[key]} if key in results else {"id": key} for key in chosen]
        return {"items": items, "total": len(keys)}

    def _children(self, job_id: str) -> tuple[dict[str, Any], list[str]]:
        """Results of the completed children by key, and the keys of the others."""
        parent = self.get_job(job_id)
        if parent is None:
            return {}, []
        verbs = self._verbs()
        answers = [verbs.command("GetJob", {"id": child_id}) for child_id in parent.children_ids]
        results: dict[str, Any] = {}
        waiting: list[str] = []
        for answer in answers:
            try:
                child = Job((settled(answer))["job"])
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

    def get_job_counts(self) -> dict[str, int]:
        """Number of jobs by state. While the queue is paused, jobs that could run count as ``paused`` only."""
        counts = (self._of_queue("GetJobCounts")).get("counts") or {}
        return {state: int(number) for state, number in counts.items()}

    def _count_of(self, state: str) -> int:
        return (self.get_job_counts()).get(state, 0)

    def get_waiting_count(self) -> int:
        """Number of waiting jobs."""
        return self._count_of("waiting")

    def get_active_count(self) -> int:
        """Number of active jobs."""
        return self._count_of("active")

    def get_completed_count(self) -> int:
        """Number of completed jobs."""
        return self._count_of("completed")

    def get_failed_count(self) -> int:
        """Number of dead letters."""
        return self._count_of("failed")

    def get_delayed_count(self) -> int:
        """Number of delayed jobs."""
        return self._count_of("delayed")

    def get_prioritized_count(self) -> int:
        """Number of waiting jobs with a priority."""
        return self._count_of("prioritized")

    def get_waiting_children_count(self) -> int:
        """Number of jobs that wait for other jobs."""
        return self._count_of("waiting-children")

    def count(self) -> int:
        """Number of queued jobs, delayed ones included."""
        return int((self._of_queue("Count"))["count"])

    def get_counts_per_priority(self) -> dict[str, int]:
        """Number of queued jobs by priority (written as a string)."""
        counts = (self._of_queue("GetCountsPerPriority")).get("counts") or {}
        return {str(priority): int(number) for priority, number in counts.items()}

    # -- logs ---------------------------------------------------------------------------------------------------------

    def add_job_log(self, job_id: str, message: str, level: str | None = None) -> None:
        """Add a line to a job's log. ``level`` is a word of your own, ``info`` by default."""
        self._call("AddLog", id=job_id, message=message, level=level)

    def get_job_logs(self, job_id: str, start: int | None = None, end: int | None = None) -> list[Any]:
        """Lines of a job's log, ``{"timestamp", "level", "message"}`` each, from position ``start`` to ``end`` inclusive."""
        data = _job_reads.data_of(self._call("GetLogs", id=job_id, start=start, end=end))
        return [_job_reads.whole_numbers(line) for line in data.get("logs") or ()]

    def clear_job_logs(self, job_id: str, keep_logs: int | None = None) -> None:
        """Remove a job's log, or all but the newest ``keep_logs`` lines."""
        self._call("ClearLogs", id=job_id, keepLogs=keep_logs)


def _window(keys: list[str], window: Mapping[str, int] | None) -> tuple[list[str], int]:
    """The keys that a window shows, and the cursor of the next one (0 at the end)."""
    if window is None:
        return keys, 0
    cursor, count = window.get("cursor", 0), window.get("count", 20)
    end = cursor + count
    return keys[cursor:end], end if end < len(keys) else 0
