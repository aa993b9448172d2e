# Written by tools/async_to_sync.py from job_async.py: edit that file and run the tool, not this one.
"""A job, and what can be asked of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bunqueue_core.client import _job_reads
from bunqueue_core.client._acompat import settled
from bunqueue_core.client._job_base import (
    LEGACY_STATES,
    JobBase,
    error_text,
    progress_fields,
    stack_of,
)
from bunqueue_core.client._session import DEFAULT_TIMEOUT, Default
from bunqueue_core.client.waiting import wait_for_result
from bunqueue_core.model.errors import UnrecoverableError

if TYPE_CHECKING:
    from bunqueue_core.client.queue_events import QueueEvents


class Job(JobBase):
    """A job as a client sees it: a snapshot, made when it was added, fetched or delivered.

    Its attributes show the record as it was then; its methods ask the broker. Inside a processor the job is bound to its
    delivery: after :meth:`move_to_completed`, :meth:`move_to_failed`, :meth:`retry`, :meth:`change_delay`, :meth:`move_to_wait`,
    :meth:`move_to_delayed`, :meth:`move_to_waiting_children` or :meth:`discard` has succeeded, the worker reports no outcome.

    Every method raises ``CommandError`` (its text is the broker's) when the broker refuses, and ``RuntimeError`` when the job is
    not bound to a broker.
    """

    __slots__ = ()

    def _call(
        self,
        name: str,
        /,
        timeout: float | Default | None = DEFAULT_TIMEOUT,
        **fields: Any,
    ) -> dict[str, Any]:
        return settled(self._bound().command(name, fields, timeout=timeout))

    # -- while it runs ------------------------------------------------------------------------------------------------

    def update_progress(self, progress: Any, message: str | None = None) -> None:
        """Tell how far the job is.

        Args:
            progress: 0..100; anything that is no number is sent as the message, as JSON.
            message: a text for people.
        """
        self._call("Progress", id=self.id, **progress_fields(progress, message))
        if self._hooks is not None:
            self._hooks.job_progressed(self, progress)

    def log(self, message: str, level: str | None = None) -> None:
        """Add a line to the job's log. ``level`` is a word of your own, ``info`` by default."""
        self._call("AddLog", id=self.id, message=message, level=level)
        if self._hooks is not None:
            self._hooks.job_logged(self, message)

    def clear_logs(self, keep_logs: int | None = None) -> None:
        """Remove the job's log, or all but the newest ``keep_logs`` lines."""
        self._call("ClearLogs", id=self.id, keepLogs=keep_logs)

    def heartbeat(self) -> None:
        """Renew the delivery's lease by its own length."""
        self._call("JobHeartbeat", id=self.id, token=self.token)

    def extend_lock(self, duration_ms: int, token: str | None = None) -> int:
        """Let the delivery's lease end ``duration_ms`` from now. Returns that duration.

        Args:
            duration_ms: ms.
            token: the lock token, by default the delivery's own.
        """
        self._call("ExtendLock", id=self.id, token=token or self.token, duration=duration_ms)
        return duration_ms

    # -- ending its delivery ------------------------------------------------------------------------------------------

    def move_to_completed(self, result: Any = None, token: str | None = None) -> None:
        """Complete the job with ``result``."""
        self._call("ACK", id=self.id, token=token or self.token, result=result)
        self._took_over()

    def move_to_failed(self, error: BaseException | str, token: str | None = None) -> None:
        """Record a failed attempt: the job is tried again, or is dead.

        Args:
            error: its message and traceback are kept; an ``UnrecoverableError`` means no more attempts.
            token: the lock token, by default the delivery's own.
        """
        self._call(
            "FAIL",
            id=self.id,
            token=token or self.token,
            error=error_text(error),
            stack=stack_of(error, self._stack_limit()),
            unrecoverable=True if isinstance(error, UnrecoverableError) else None,
        )
        self._took_over()

    def move_to_wait(self, token: str | None = None) -> bool:
        """Give the job back to its queue, uncharged. Returns True."""
        self._call("MoveToWait", id=self.id, token=token or self.token)
        self._took_over()
        return True

    def retry(self) -> None:
        """Send the job back to its queue: a failed one with fresh attempts, an active one uncharged."""
        self._call("MoveToWait", id=self.id, token=self.token)
        self._took_over()

    def move_to_delayed(self, delay_ms: int, token: str | None = None) -> None:
        """Let the job wait ``delay_ms`` ms from now."""
        self._call("MoveToDelayed", id=self.id, delay=delay_ms, token=token or self.token)
        self._took_over()

    def move_to_waiting_children(self, token: str | None = None) -> bool:
        """Let the job wait until its children are completed. Returns whether it moved."""
        response = self._call("MoveToWaitingChildren", id=self.id, token=token or self.token)
        moved = bool((response.get("data") or {}).get("moved"))
        if moved:
            self._took_over()
        return moved

    def change_delay(self, delay_ms: int) -> None:
        """Let the job wait ``delay_ms`` ms from now, whether it is queued or active."""
        self._call("ChangeDelay", id=self.id, delay=delay_ms, token=self.token)
        self._took_over()

    def discard(self) -> None:
        """Move the job to the dead letters."""
        self._call("Discard", id=self.id, token=self.token)
        self._took_over()

    # -- changing it --------------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove the job; it must be waiting."""
        self._call("Cancel", id=self.id)

    def promote(self) -> None:
        """Let the job, which is delayed, run now."""
        self._call("Promote", id=self.id)

    def update_data(self, data: Any) -> None:
        """Replace the payload."""
        self._call("Update", id=self.id, data=data)
        self._data = data

    def change_priority(self, priority: int, lifo: bool | None = None) -> None:
        """Change the priority of the job, which must be waiting."""
        self._call("ChangePriority", id=self.id, priority=priority, lifo=lifo)

    def remove_child_dependency(self) -> bool:
        """Let the parent no longer wait for this job. Returns whether it did wait."""
        return bool((self._call("RemoveChildDependency", id=self.id)).get("removed"))

    def remove_unprocessed_children(self) -> None:
        """Remove the children that still wait."""
        self._call("RemoveUnprocessedChildren", id=self.id)

    def remove_deduplication_key(self) -> bool:
        """Free the unique key, if this job still holds it. Returns whether it did."""
        response = self._call("RemoveJobDeduplicationKey", id=self.id)
        return bool((response.get("data") or {}).get("removed"))

    # -- asking about it ----------------------------------------------------------------------------------------------

    def get_state(self) -> str:
        """The state now: waiting, prioritized, delayed, active, waiting-children, completed, failed or unknown."""
        state = (self._call("GetState", id=self.id)).get("state") or "unknown"
        return LEGACY_STATES.get(state, state)

    def is_waiting(self) -> bool:
        """Whether it waits for a worker."""
        return self.get_state() in ("waiting", "prioritized")

    def is_active(self) -> bool:
        """Whether a worker has it."""
        return self.get_state() == "active"

    def is_delayed(self) -> bool:
        """Whether its time has not come yet."""
        return self.get_state() == "delayed"

    def is_completed(self) -> bool:
        """Whether it was processed."""
        return self.get_state() == "completed"

    def is_failed(self) -> bool:
        """Whether it is among the dead letters."""
        return self.get_state() == "failed"

    def is_waiting_children(self) -> bool:
        """Whether it waits for other jobs."""
        return self.get_state() == "waiting-children"

    def get_children_values(self) -> dict[str, Any]:
        """Results of the completed children, by ``queue:id``."""
        return _job_reads.values(self._call("GetChildrenValues", id=self.id))

    def get_failed_children_values(self) -> dict[str, str]:
        """Errors of the children that failed without keeping this job from running, by ``queue:id``."""
        return _job_reads.values(self._call("GetFailedChildrenValues", id=self.id))

    def get_ignored_children_failures(self) -> dict[str, str]:
        """Errors of the children whose failure is ignored, by ``queue:id``."""
        return _job_reads.values(self._call("GetIgnoredChildrenFailures", id=self.id))

    def wait_until_finished(self, queue_events: QueueEvents | None = None, ttl_ms: float | None = None) -> Any:
        """Wait for the end of the job and return its result.

        Args:
            queue_events: listens for the end instead of asking the broker to wait; then there is no limit by default.
            ttl_ms: give up after so many ms; 30,000 by default.

        Raises:
            CommandError: the job failed, or is not known.
            CommandTimeoutError: it did not end in time.
        """
        if queue_events is not None:
            return queue_events.wait_for(self._bound(), self.id, ttl_ms)
        return wait_for_result(self._bound(), self.id, ttl_ms)
