# Written by tools/async_to_sync.py from queue_admin_async.py: edit that file and run the tool, not this one.
"""Dead letters, stall policy, limits and groups of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bunqueue_core.client import _job_reads
from bunqueue_core.client._options import group_id
from bunqueue_core.client.queue_calls import QueueCalls


class QueueAdmin(QueueCalls):
    """Manages what happens to jobs that fail, and how many run."""

    # -- dead letters -------------------------------------------------------------------------------------------------

    def get_dlq(self, count: int | None = None) -> list[dict[str, Any]]:
        """Records of the dead jobs, oldest first, at most ``count``."""
        response = self._of_queue("Dlq", count=count)
        return [_job_reads.job_record(record) for record in response.get("jobs") or ()]

    def get_dlq_entries(self, filter: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Dead letters, oldest first.

        Args:
            filter: ``reason``, ``older_than``, ``newer_than`` (epoch ms), ``retriable``, ``expired``, ``limit``, ``offset``.

        Returns:
            ``{"job", "entered_at", "reason", "error", "attempts", "retry_count", "last_retry_at", "next_retry_at", "expires_at"}``
            each; times in epoch ms.
        """
        response = self._of_queue("Dlq", filter=_job_reads.dlq_filter(filter) if filter else None)
        return [_job_reads.dead_letter(entry) for entry in response.get("entries") or ()]

    def get_dlq_stats(self) -> dict[str, Any]:
        """``{"total", "by_reason", "by_queue", "pending_retry", "expired", "oldest_entry", "newest_entry"}``."""
        return _job_reads.dlq_stats(_job_reads.data_of(self._of_queue("GetDlqStats")).get("stats") or {})

    def retry_dlq(self, job_id: str | None = None, count: int | None = None) -> int:
        """Send dead jobs back with fresh attempts: one, the first ``count``, or all. Returns their number."""
        return int((self._of_queue("RetryDlq", jobId=job_id, count=count)).get("count") or 0)

    def retry_dlq_by_filter(self, filter: Mapping[str, Any]) -> int:
        """Send the dead jobs that match ``filter`` (see :meth:`get_dlq_entries`) back. Returns their number."""
        return int((self._of_queue("RetryDlq", filter=_job_reads.dlq_filter(filter))).get("count") or 0)

    def purge_dlq(self) -> int:
        """Remove all dead letters. Returns their number."""
        return int((self._of_queue("PurgeDlq")).get("count") or 0)

    def remove_dlq_job(self, job_id: str) -> bool:
        """Remove one dead letter. Returns whether there was one."""
        return bool(_job_reads.data_of(self._of_queue("RemoveDlqJob", jobId=job_id)).get("removed"))

    def set_dlq_config(self, config: Mapping[str, Any]) -> None:
        """Change the dead-letter policy: ``autoRetry``, ``autoRetryInterval``, ``maxAutoRetries``, ``maxAge``, ``maxEntries``.

        Times in ms. What is not named stays as it is; snake_case is understood too.
        """
        self._of_queue("SetDlqConfig", config=_camel_case(config))

    def get_dlq_config(self) -> dict[str, Any]:
        """The dead-letter policy; see :meth:`set_dlq_config`."""
        return dict(_job_reads.whole_numbers((self._of_queue("GetDlqConfig")).get("config") or {}))

    def set_stall_config(self, config: Mapping[str, Any]) -> None:
        """Change the stall policy: ``enabled``, ``stallInterval``, ``maxStalls``, ``gracePeriod``.

        Times in ms. What is not named stays as it is; snake_case is understood too.
        """
        self._of_queue("SetStallConfig", config=_camel_case(config))

    def get_stall_config(self) -> dict[str, Any]:
        """The stall policy; see :meth:`set_stall_config`."""
        return dict(_job_reads.whole_numbers((self._of_queue("GetStallConfig")).get("config") or {}))

    # -- limits -------------------------------------------------------------------------------------------------------

    def set_global_rate_limit(self, max_jobs: int, duration_ms: int | None = None) -> None:
        """Let all workers together start at most ``max_jobs`` per ``duration_ms`` (1,000 by default)."""
        self._of_queue("RateLimit", limit=max_jobs, duration=duration_ms)

    def remove_global_rate_limit(self) -> None:
        """Undo :meth:`set_global_rate_limit`."""
        self._of_queue("RateLimitClear")

    def get_global_rate_limit(self) -> dict[str, int] | None:
        """``{"max", "duration"}``, None if there is no limit."""
        limit = (self._limits()).get("rateLimit")
        return None if limit is None else dict(_job_reads.whole_numbers(limit))

    def set_global_concurrency(self, concurrency: int) -> None:
        """Let all workers together run at most ``concurrency`` jobs at once."""
        self._of_queue("SetConcurrency", limit=concurrency)

    def remove_global_concurrency(self) -> None:
        """Undo :meth:`set_global_concurrency`."""
        self._of_queue("ClearConcurrency")

    def get_global_concurrency(self) -> int | None:
        """The limit, None if there is none."""
        limit = (self._limits()).get("concurrencyLimit")
        return None if limit is None else int(limit)

    def rate_limit(self, expire_ms: float) -> None:
        """Stop deliveries for ``expire_ms`` ms.

        Raises:
            ValueError: it is not a positive finite number.
        """
        if isinstance(expire_ms, bool) or not isinstance(expire_ms, int | float) or not 0 < expire_ms < float("inf"):
            raise ValueError(f"rateLimit: expireTimeMs must be a positive finite number, got {expire_ms}")
        self._of_queue("RateLimit", limit=1, ttl=expire_ms)

    def get_rate_limit_ttl(self, max_jobs: int | None = None) -> int:
        """Ms until another job may start, -2 if there is no limit, 0 if fewer than ``max_jobs`` were started."""
        return int((self._limits(max_jobs)).get("rateLimitTtl", -2))

    def is_maxed(self) -> bool:
        """Whether the concurrency limit is reached."""
        return bool((self._limits()).get("maxed"))

    def _limits(self, max_jobs: int | None = None) -> dict[str, Any]:
        response = self._of_queue("GetQueueLimits", maxJobs=max_jobs)
        return _job_reads.data_of(response).get("limits") or {}

    # -- groups -------------------------------------------------------------------------------------------------------

    def _of_group(self, name: str, id: str | int, /, **fields: Any) -> dict[str, Any]:
        return _job_reads.data_of(self._of_queue(name, groupId=group_id(id), **fields))

    def get_group_jobs_count(self, id: str | int) -> int:
        """Number of queued jobs of a group."""
        return int((self._of_group("GetGroupJobsCount", id)).get("count") or 0)

    def get_groups_jobs_count(self, max_count: int = 100) -> int:
        """Number of queued jobs that belong to groups."""
        response = self._of_queue("GetGroupsJobsCount", maxCount=max_count)
        return int(_job_reads.data_of(response).get("count") or 0)

    def get_group_active_count(self, id: str | int) -> int:
        """Number of active jobs of a group."""
        return int((self._of_group("GetGroupActiveCount", id)).get("count") or 0)

    def set_group_rate_limit(self, id: str | int, max_jobs: int, duration_ms: int) -> None:
        """Let workers with group limits start at most ``max_jobs`` of a group per ``duration_ms``."""
        self._of_group("SetGroupRateLimit", id, max=max_jobs, duration=duration_ms)

    def get_group_rate_limit(self, id: str | int) -> dict[str, int] | None:
        """``{"max", "duration"}`` of a group, None if it has no limit of its own."""
        limit = (self._of_group("GetGroupRateLimit", id)).get("limit")
        return None if limit is None else dict(_job_reads.whole_numbers(limit))

    def remove_group_rate_limit(self, id: str | int) -> int:
        """Undo :meth:`set_group_rate_limit`. Returns 1 if there was a limit, else 0."""
        return int((self._of_group("RemoveGroupRateLimit", id)).get("removed") or 0)

    def get_group_rate_limit_ttl(self, id: str | int, max_jobs: int | None = None) -> int:
        """Ms until another job of the group may start, -2 if there is no limit."""
        return int((self._of_group("GetGroupRateLimitTtl", id, maxJobs=max_jobs)).get("ttl", -2))

    def set_group_concurrency(self, id: str | int, concurrency: int) -> None:
        """Let workers with group limits run at most ``concurrency`` jobs of a group at once."""
        self._of_group("SetGroupConcurrency", id, concurrency=concurrency)

    def get_group_concurrency(self, id: str | int) -> int | None:
        """The limit of a group, None if it has none of its own."""
        limit = (self._of_group("GetGroupConcurrency", id)).get("concurrency")
        return None if limit is None else int(limit)

    def remove_group_concurrency(self, id: str | int) -> int:
        """Undo :meth:`set_group_concurrency`. Returns 1 if there was a limit, else 0."""
        return int((self._of_group("RemoveGroupConcurrency", id)).get("removed") or 0)

    def pause_group(self, id: str | int) -> bool:
        """Stop deliveries of a group. Returns whether that changed anything."""
        return bool((self._of_group("PauseGroup", id)).get("changed"))

    def resume_group(self, id: str | int) -> bool:
        """Undo :meth:`pause_group`. Returns whether that changed anything."""
        return bool((self._of_group("ResumeGroup", id)).get("changed"))

    def is_group_paused(self, id: str | int) -> bool:
        """Whether deliveries of a group are stopped."""
        return bool((self._of_group("IsGroupPaused", id)).get("paused"))


def _camel_case(config: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {}
    for key, value in config.items():
        first, *rest = key.split("_")
        renamed[first + "".join(word.capitalize() for word in rest)] = value
    return renamed
