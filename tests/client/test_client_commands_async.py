"""What each method of a queue and a job asks for on the wire, and what it makes of the response."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from client_servers import ScriptedServer, wire_job

from bunqueue_core.client.job_async import Job
from bunqueue_core.client.queue_async import Queue
from bunqueue_core.model.errors import CommandError, UnrecoverableError

Scripted = Callable[..., ScriptedServer]

#: (method, positional and keyword arguments, expected command without reqId, response, expected return value)
Row = tuple[str, tuple[Any, ...], dict[str, Any], dict[str, Any], dict[str, Any], Any]

CRON = {
    "name": "app:s",
    "jobName": "j",
    "queue": "app:q",
    "schedule": None,
    "repeatEvery": 5000,
    "nextRun": 1796053967293.0,
}
SCHEDULE = {"id": "s", "name": "j", "next": 1796053967293, "pattern": None, "every": 5000, "limit": None}

ROWS: list[Row] = [
    ("pause", (), {}, {"cmd": "Pause", "queue": "app:q"}, {}, None),
    ("resume", (), {}, {"cmd": "Resume", "queue": "app:q"}, {}, None),
    ("is_paused", (), {}, {"cmd": "IsPaused", "queue": "app:q"}, {"paused": True}, True),
    ("drain", (), {}, {"cmd": "Drain", "queue": "app:q"}, {"count": 3}, 3),
    ("obliterate", (), {}, {"cmd": "Obliterate", "queue": "app:q"}, {}, None),
    (
        "clean",
        (1000,),
        {"state": "failed", "limit": 5},
        {"cmd": "Clean", "queue": "app:q", "grace": 1000, "limit": 5, "state": "failed"},
        {"count": 2, "ids": ["a", "b"]},
        2,
    ),
    ("count", (), {}, {"cmd": "Count", "queue": "app:q"}, {"count": 4}, 4),
    ("remove", ("1",), {}, {"cmd": "Cancel", "id": "1"}, {}, None),
    ("cancel", ("1",), {}, {"cmd": "Cancel", "id": "1"}, {}, None),
    ("discard", ("1",), {}, {"cmd": "Discard", "id": "1"}, {}, None),
    ("promote_job", ("1",), {}, {"cmd": "Promote", "id": "1"}, {}, None),
    ("promote_jobs", (), {}, {"cmd": "PromoteJobs", "queue": "app:q"}, {"count": 1}, 1),
    ("retry_job", ("1",), {}, {"cmd": "MoveToWait", "id": "1"}, {}, None),
    ("retry_jobs", (), {"count": 2}, {"cmd": "RetryDlq", "queue": "app:q", "count": 2}, {"count": 2}, 2),
    (
        "retry_jobs",
        ("failed", 2, datetime(2030, 1, 1, tzinfo=UTC)),
        {},
        {"cmd": "RetryDlq", "queue": "app:q", "filter": {"olderThan": 1893456000000.0, "limit": 2}},
        {"count": 1},
        1,
    ),
    (
        "retry_jobs",
        ("completed", 2, 5),
        {},
        {"cmd": "RetryCompleted", "queue": "app:q", "count": 2, "timestamp": 5},
        {"count": 1},
        1,
    ),
    ("retry_completed", ("1",), {}, {"cmd": "RetryCompleted", "queue": "app:q", "id": "1"}, {"count": 1}, 1),
    ("update_job_progress", ("1", 5, "m"), {}, {"cmd": "Progress", "id": "1", "progress": 5, "message": "m"}, {}, None),
    ("update_job_progress", ("1", [1]), {}, {"cmd": "Progress", "id": "1", "progress": 0, "message": "[1]"}, {}, None),
    ("update_job_data", ("1", {"n": 1}), {}, {"cmd": "Update", "id": "1", "data": {"n": 1}}, {}, None),
    (
        "change_job_priority",
        ("1", 5, True),
        {},
        {"cmd": "ChangePriority", "id": "1", "priority": 5, "lifo": True},
        {},
        None,
    ),
    ("change_job_delay", ("1", 50), {}, {"cmd": "ChangeDelay", "id": "1", "delay": 50}, {}, None),
    ("extend_job_lock", ("1", "t", 50), {}, {"cmd": "ExtendLock", "id": "1", "token": "t", "duration": 50}, {}, None),
    (
        "extend_job_locks",
        (["1", "2"], ["t", "u"], 50),
        {},
        {"cmd": "ExtendLocks", "ids": ["1", "2"], "tokens": ["t", "u"], "durations": [50, 50]},
        {"count": 2},
        2,
    ),
    ("move_job_to_wait", ("1", "t"), {}, {"cmd": "MoveToWait", "id": "1", "token": "t"}, {}, None),
    ("move_job_to_delayed", ("1", 50), {}, {"cmd": "MoveToDelayed", "id": "1", "delay": 50}, {}, None),
    ("move_job_to_delayed", ("1",), {"timestamp_ms": 5}, {"cmd": "MoveToDelayed", "id": "1", "delay": 0}, {}, None),
    ("move_job_to_completed", ("1", 5, "t"), {}, {"cmd": "ACK", "id": "1", "result": 5, "token": "t"}, {}, None),
    ("move_job_to_failed", ("1", "no"), {}, {"cmd": "FAIL", "id": "1", "error": "no"}, {}, None),
    (
        "move_job_to_failed",
        ("1", UnrecoverableError("no")),
        {},
        {
            "cmd": "FAIL",
            "id": "1",
            "error": "no",
            "stack": ["bunqueue_core.model.errors.UnrecoverableError: no"],
            "unrecoverable": True,
        },
        {},
        None,
    ),
    (
        "move_job_to_waiting_children",
        ("1",),
        {},
        {"cmd": "MoveToWaitingChildren", "id": "1"},
        {"data": {"moved": True}},
        True,
    ),
    ("remove_child_dependency", ("1",), {}, {"cmd": "RemoveChildDependency", "id": "1"}, {"removed": True}, True),
    ("remove_unprocessed_children", ("1",), {}, {"cmd": "RemoveUnprocessedChildren", "id": "1"}, {}, None),
    (
        "get_deduplication_job_id",
        ("d",),
        {},
        {"cmd": "GetDeduplicationJobId", "queue": "app:q", "deduplicationId": "d"},
        {"data": {"jobId": "7"}},
        "7",
    ),
    (
        "remove_deduplication_key",
        ("d",),
        {},
        {"cmd": "RemoveDeduplicationKey", "queue": "app:q", "deduplicationId": "d"},
        {"data": {"count": 1}},
        1,
    ),
    ("get_state", ("1",), {}, {"cmd": "GetState", "id": "1"}, {"state": "processing"}, "active"),
    ("get_state", ("1",), {}, {"cmd": "GetState", "id": "1"}, {"state": "dlq"}, "failed"),
    (
        "get_result",
        ("1",),
        {},
        {"cmd": "GetResult", "id": "1"},
        {"result": {"t": 1796053967293.0}},
        {"t": 1796053967293},
    ),
    (
        "get_progress",
        ("1",),
        {},
        {"cmd": "GetProgress", "id": "1"},
        {"progress": 5.0},
        {"progress": 5, "message": None},
    ),
    (
        "get_children_values",
        ("1",),
        {},
        {"cmd": "GetChildrenValues", "id": "1"},
        {"data": {"values": {"q:2": 5}}},
        {"q:2": 5},
    ),
    (
        "get_failed_children_values",
        ("1",),
        {},
        {"cmd": "GetFailedChildrenValues", "id": "1"},
        {"values": {"q:2": "no"}},
        {"q:2": "no"},
    ),
    (
        "get_ignored_children_failures",
        ("1",),
        {},
        {"cmd": "GetIgnoredChildrenFailures", "id": "1"},
        {"values": {"q:2": "no"}},
        {"q:2": "no"},
    ),
    (
        "get_counts_per_priority",
        (),
        {},
        {"cmd": "GetCountsPerPriority", "queue": "app:q"},
        {"counts": {"3": 1.0}},
        {"3": 1},
    ),
    ("add_job_log", ("1", "m"), {}, {"cmd": "AddLog", "id": "1", "message": "m"}, {"data": {"added": True}}, None),
    (
        "get_job_logs",
        ("1", 0, 5),
        {},
        {"cmd": "GetLogs", "id": "1", "start": 0, "end": 5},
        {"data": {"logs": [{"timestamp": 1796053967293.0, "level": "info", "message": "m"}], "count": 1}},
        [{"timestamp": 1796053967293, "level": "info", "message": "m"}],
    ),
    ("clear_job_logs", ("1", 3), {}, {"cmd": "ClearLogs", "id": "1", "keepLogs": 3}, {}, None),
    ("get_dlq", (2,), {}, {"cmd": "Dlq", "queue": "app:q", "count": 2}, {"jobs": [{"id": "1"}]}, [{"id": "1"}]),
    (
        "get_dlq_entries",
        ({"reason": "stalled", "older_than": 5},),
        {},
        {"cmd": "Dlq", "queue": "app:q", "filter": {"reason": "stalled", "olderThan": 5}},
        {"entries": [{"job": {"id": "1"}, "enteredAt": 1796053967293.0, "retryCount": 1, "nextRetryAt": None}]},
        [{"job": {"id": "1"}, "entered_at": 1796053967293, "retry_count": 1, "next_retry_at": None}],
    ),
    (
        "get_dlq_stats",
        (),
        {},
        {"cmd": "GetDlqStats", "queue": "app:q"},
        {"data": {"stats": {"total": 1, "byReason": {"stalled": 1}, "pendingRetry": 0}}},
        {"total": 1, "by_reason": {"stalled": 1}, "pending_retry": 0},
    ),
    ("retry_dlq", ("1",), {}, {"cmd": "RetryDlq", "queue": "app:q", "jobId": "1"}, {"count": 1}, 1),
    (
        "retry_dlq_by_filter",
        ({"reason": "timeout"},),
        {},
        {"cmd": "RetryDlq", "queue": "app:q", "filter": {"reason": "timeout"}},
        {"count": 3},
        3,
    ),
    ("purge_dlq", (), {}, {"cmd": "PurgeDlq", "queue": "app:q"}, {"count": 3}, 3),
    (
        "remove_dlq_job",
        ("1",),
        {},
        {"cmd": "RemoveDlqJob", "queue": "app:q", "jobId": "1"},
        {"data": {"removed": False}},
        False,
    ),
    (
        "set_dlq_config",
        ({"auto_retry": True},),
        {},
        {"cmd": "SetDlqConfig", "queue": "app:q", "config": {"autoRetry": True}},
        {},
        None,
    ),
    (
        "set_global_rate_limit",
        (5, 100),
        {},
        {"cmd": "RateLimit", "queue": "app:q", "limit": 5, "duration": 100},
        {},
        None,
    ),
    ("remove_global_rate_limit", (), {}, {"cmd": "RateLimitClear", "queue": "app:q"}, {}, None),
    (
        "get_global_rate_limit",
        (),
        {},
        {"cmd": "GetQueueLimits", "queue": "app:q"},
        {"data": {"limits": {"rateLimit": {"max": 5.0, "duration": 100}}}},
        {"max": 5, "duration": 100},
    ),
    ("set_global_concurrency", (5,), {}, {"cmd": "SetConcurrency", "queue": "app:q", "limit": 5}, {}, None),
    ("remove_global_concurrency", (), {}, {"cmd": "ClearConcurrency", "queue": "app:q"}, {}, None),
    (
        "get_global_concurrency",
        (),
        {},
        {"cmd": "GetQueueLimits", "queue": "app:q"},
        {"data": {"limits": {"concurrencyLimit": None}}},
        None,
    ),
    ("rate_limit", (50,), {}, {"cmd": "RateLimit", "queue": "app:q", "limit": 1, "ttl": 50}, {}, None),
    (
        "get_rate_limit_ttl",
        (3,),
        {},
        {"cmd": "GetQueueLimits", "queue": "app:q", "maxJobs": 3},
        {"data": {"limits": {"rateLimitTtl": 7}}},
        7,
    ),
    ("is_maxed", (), {}, {"cmd": "GetQueueLimits", "queue": "app:q"}, {"data": {"limits": {"maxed": True}}}, True),
    (
        "get_group_jobs_count",
        (7,),
        {},
        {"cmd": "GetGroupJobsCount", "queue": "app:q", "groupId": "7"},
        {"data": {"count": 2}},
        2,
    ),
    (
        "get_groups_jobs_count",
        (),
        {},
        {"cmd": "GetGroupsJobsCount", "queue": "app:q", "maxCount": 100},
        {"data": {"count": 2}},
        2,
    ),
    (
        "set_group_rate_limit",
        ("g", 3, 1000),
        {},
        {"cmd": "SetGroupRateLimit", "queue": "app:q", "groupId": "g", "max": 3, "duration": 1000},
        {},
        None,
    ),
    (
        "get_group_rate_limit",
        ("g",),
        {},
        {"cmd": "GetGroupRateLimit", "queue": "app:q", "groupId": "g"},
        {"data": {"limit": {"max": 3, "duration": 1000}}},
        {"max": 3, "duration": 1000},
    ),
    (
        "set_group_concurrency",
        ("g", 3),
        {},
        {"cmd": "SetGroupConcurrency", "queue": "app:q", "groupId": "g", "concurrency": 3},
        {},
        None,
    ),
    (
        "pause_group",
        ("g",),
        {},
        {"cmd": "PauseGroup", "queue": "app:q", "groupId": "g"},
        {"data": {"changed": True}},
        True,
    ),
    (
        "upsert_job_scheduler",
        (
            "s",
            {"every": timedelta(seconds=5), "prevent_overlap": False},
            {"name": "j", "data": 1, "opts": {"attempts": 2}},
        ),
        {},
        {
            "cmd": "Cron",
            "name": "app:s",
            "queue": "app:q",
            "jobName": "j",
            "data": 1,
            "repeatEvery": 5000,
            "preventOverlap": False,
            "jobOptions": {"maxAttempts": 2, "timeout": 77},
        },
        {"cron": CRON},
        SCHEDULE,
    ),
    (
        "add_cron",
        ("nightly", "0 3 * * *"),
        {"tz": "Europe/Rome", "limit": 3},
        {
            "cmd": "Cron",
            "name": "app:nightly",
            "queue": "app:q",
            "jobName": "nightly",
            "schedule": "0 3 * * *",
            "timezone": "Europe/Rome",
            "maxLimit": 3,
            "jobOptions": {"timeout": 77},
        },
        {"cron": CRON},
        None,
    ),
    (
        "every",
        ("tick", 1000, {"n": 1}),
        {},
        {
            "cmd": "Cron",
            "name": "app:tick",
            "queue": "app:q",
            "jobName": "tick",
            "data": {"n": 1},
            "repeatEvery": 1000,
            "jobOptions": {"timeout": 77},
        },
        {"cron": CRON},
        None,
    ),
    ("remove_job_scheduler", ("s",), {}, {"cmd": "CronDelete", "name": "app:s"}, {}, None),
    ("get_job_scheduler", ("s",), {}, {"cmd": "CronGet", "name": "app:s"}, {"cron": CRON}, SCHEDULE),
    (
        "get_job_schedulers",
        (),
        {},
        {"cmd": "CronList"},
        {"crons": [{**CRON, "queue": "other"}, CRON, {**CRON, "name": "app:later", "nextRun": 1796053967294.0}]},
        [{**SCHEDULE, "id": "later", "next": 1796053967294}, SCHEDULE],
    ),
    (
        "add_webhook",
        ("https://example.com", ["job.failed"]),
        {"secret": "s"},
        {"cmd": "AddWebhook", "url": "https://example.com", "events": ["job.failed"], "secret": "s"},
        {"data": {"webhookId": "w"}},
        "w",
    ),
    ("remove_webhook", ("w",), {}, {"cmd": "RemoveWebhook", "webhookId": "w"}, {}, None),
    ("set_webhook_enabled", ("w", False), {}, {"cmd": "SetWebhookEnabled", "id": "w", "enabled": False}, {}, None),
    ("list_webhooks", (), {}, {"cmd": "ListWebhooks"}, {"data": {"webhooks": [{"id": "w"}]}}, [{"id": "w"}]),
    ("get_workers", (), {}, {"cmd": "ListWorkers"}, {"data": {"workers": [{"id": "w"}]}}, [{"id": "w"}]),
    (
        "get_stats",
        (),
        {},
        {"cmd": "Stats"},
        {"stats": {"waiting": 1.0, "pushPerSec": 0.5}},
        {"waiting": 1, "pushPerSec": 0.5},
    ),
    ("get_metrics", (), {}, {"cmd": "Metrics"}, {"metrics": {"totalPushed": 2}}, {"totalPushed": 2}),
    (
        "get_queue_metrics",
        ("failed",),
        {},
        {"cmd": "Metrics", "queue": "app:q", "type": "failed", "start": 0, "end": -1},
        {"data": {"meta": {"count": 1}, "data": [1], "count": 1}},
        {"meta": {"count": 1}, "data": [1], "count": 1},
    ),
    ("trim_events", (5,), {}, {"cmd": "TrimEvents", "queue": "app:q", "maxLength": 5}, {"data": {"removed": 2}}, 2),
    ("list_queues", (), {}, {"cmd": "ListQueues"}, {"queues": ["a"]}, ["a"]),
]


@pytest.mark.parametrize(
    ("method", "arguments", "options", "expected", "response", "value"),
    ROWS,
    ids=[f"{row[0]}-{number}" for number, row in enumerate(ROWS)],
)
async def test_commands_of_a_queue(
    scripted: Scripted,
    method: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    expected: dict[str, Any],
    response: dict[str, Any],
    value: Any,
) -> None:
    server = scripted(lambda command, connection: {"ok": True, **response})
    async with Queue("q", prefix_key="app:", default_job_options={"timeout": 77}, **server.address) as queue:
        assert await getattr(queue, method)(*arguments, **options) == value
    (command,) = server.commands
    assert {key: value for key, value in command.items() if key != "reqId"} == expected


@pytest.mark.parametrize("method", ["get_job", "get_job_by_custom_id", "get_job_scheduler"])
async def test_what_is_not_there_is_none(scripted: Scripted, method: str) -> None:
    answers = ["Thing not found", "something else"]
    server = scripted(lambda command, connection: {"ok": False, "error": answers.pop(0)})
    async with Queue("q", **server.address) as queue:
        assert await getattr(queue, method)("x") is None
        with pytest.raises(CommandError, match="something else"):
            await getattr(queue, method)("x")


#: (method, arguments, expected command, response, expected return value, whether the delivery has ended)
JOB_ROWS: list[tuple[str, tuple[Any, ...], dict[str, Any], dict[str, Any], Any, bool]] = [
    ("update_progress", (5, "m"), {"cmd": "Progress", "id": "1", "progress": 5, "message": "m"}, {}, None, False),
    ("log", ("m", "warn"), {"cmd": "AddLog", "id": "1", "message": "m", "level": "warn"}, {}, None, False),
    ("clear_logs", (), {"cmd": "ClearLogs", "id": "1"}, {}, None, False),
    ("heartbeat", (), {"cmd": "JobHeartbeat", "id": "1", "token": "t"}, {}, None, False),
    ("extend_lock", (50,), {"cmd": "ExtendLock", "id": "1", "token": "t", "duration": 50}, {}, 50, False),
    ("move_to_completed", (7,), {"cmd": "ACK", "id": "1", "token": "t", "result": 7}, {}, None, True),
    ("move_to_failed", ("no",), {"cmd": "FAIL", "id": "1", "token": "t", "error": "no"}, {}, None, True),
    ("move_to_wait", (), {"cmd": "MoveToWait", "id": "1", "token": "t"}, {}, True, True),
    ("retry", (), {"cmd": "MoveToWait", "id": "1", "token": "t"}, {}, None, True),
    ("move_to_delayed", (50,), {"cmd": "MoveToDelayed", "id": "1", "token": "t", "delay": 50}, {}, None, True),
    (
        "move_to_waiting_children",
        (),
        {"cmd": "MoveToWaitingChildren", "id": "1", "token": "t"},
        {"data": {"moved": True}},
        True,
        True,
    ),
    ("change_delay", (50,), {"cmd": "ChangeDelay", "id": "1", "token": "t", "delay": 50}, {}, None, True),
    ("discard", (), {"cmd": "Discard", "id": "1", "token": "t"}, {}, None, True),
    ("remove", (), {"cmd": "Cancel", "id": "1"}, {}, None, False),
    ("promote", (), {"cmd": "Promote", "id": "1"}, {}, None, False),
    ("update_data", ({"n": 9},), {"cmd": "Update", "id": "1", "data": {"n": 9}}, {}, None, False),
    ("change_priority", (3,), {"cmd": "ChangePriority", "id": "1", "priority": 3}, {}, None, False),
    ("remove_child_dependency", (), {"cmd": "RemoveChildDependency", "id": "1"}, {"removed": True}, True, False),
    ("remove_unprocessed_children", (), {"cmd": "RemoveUnprocessedChildren", "id": "1"}, {}, None, False),
    (
        "remove_deduplication_key",
        (),
        {"cmd": "RemoveJobDeduplicationKey", "id": "1"},
        {"data": {"removed": True}},
        True,
        False,
    ),
    ("get_state", (), {"cmd": "GetState", "id": "1"}, {"state": "waiting"}, "waiting", False),
    ("is_waiting", (), {"cmd": "GetState", "id": "1"}, {"state": "prioritized"}, True, False),
    ("is_active", (), {"cmd": "GetState", "id": "1"}, {"state": "active"}, True, False),
    ("is_completed", (), {"cmd": "GetState", "id": "1"}, {"state": "completed"}, True, False),
    ("is_failed", (), {"cmd": "GetState", "id": "1"}, {"state": "completed"}, False, False),
    ("is_waiting_children", (), {"cmd": "GetState", "id": "1"}, {"state": "waiting-children"}, True, False),
]


@pytest.mark.parametrize(
    ("method", "arguments", "expected", "response", "value", "ended"), JOB_ROWS, ids=[row[0] for row in JOB_ROWS]
)
async def test_commands_of_a_job(
    scripted: Scripted,
    method: str,
    arguments: tuple[Any, ...],
    expected: dict[str, Any],
    response: dict[str, Any],
    value: Any,
    ended: bool,
) -> None:
    server = scripted(lambda command, connection: {"ok": True, **response})
    async with Queue("q", **server.address) as queue:
        job = Job(wire_job("1"), await queue._verbs(), "t")
        assert await getattr(job, method)(*arguments) == value
        assert job._released is ended
    (command,) = server.commands
    assert {key: value for key, value in command.items() if key != "reqId"} == expected


async def test_a_refused_method_does_not_end_the_delivery(scripted: Scripted) -> None:
    server = scripted(lambda command, connection: {"ok": False, "error": "Job not found or not active"})
    async with Queue("q", **server.address) as queue:
        job = Job(wire_job("1"), await queue._verbs(), "t")
        with pytest.raises(CommandError):
            await job.move_to_completed()
        assert not job._released


async def test_a_job_without_a_broker(scripted: Scripted) -> None:
    with pytest.raises(RuntimeError, match="Job is not bound to a connection"):
        await Job(wire_job("1")).get_state()


async def test_records_of_older_servers() -> None:
    raw = wire_job("1", data={"name": "inside", "n": 1}, state="processing", createdAt=1796053967293.0, timeline=[])
    del raw["name"]
    job = Job(raw)
    assert (job.name, job.state, job.created_at, job.timestamp) == ("inside", "active", 1796053967293, 1796053967293)
    assert (job.delay, job.tags, job.group_id, job.opts, job.finished_on, job.parent) == (0, [], None, {}, None, None)


async def test_a_parent_is_named_in_the_payload_too(scripted: Scripted) -> None:
    server = scripted(lambda command, connection: {"ok": True, "id": "2"})
    async with Queue("q", **server.address) as queue:
        job = await queue.add("a", {"n": 1}, parent={"id": "1", "queue": "p"})
        assert (job.parent, job.parent_key) == ({"id": "1", "queue": "p"}, "p:1")
        with pytest.raises(TypeError, match="data must be a dict"):
            await queue.add("a", "text", parent={"id": "1", "queue": "p"})
        with pytest.raises(TypeError, match="parent must have 'id' and 'queue'"):
            await queue.add("a", {}, parent={"id": "1"})
    (command,) = server.named("PUSH")
    assert (command["parentId"], command["data"]) == ("1", {"n": 1, "__parentId": "1", "__parentQueue": "p"})


async def test_a_groups_id_is_checked(scripted: Scripted) -> None:
    server = scripted(lambda command, connection: {"ok": True, "data": {}})
    async with Queue("q", **server.address) as queue:
        for id, text in (
            (True, "groupId must be a string or number"),
            ("", "groupId must be a non-empty string"),
            ("x" * 257, "groupId must be at most 256 characters"),
            ("a\0b", "groupId must not contain NUL characters"),
            (2**53, "numeric groupId must be a safe integer"),
        ):
            with pytest.raises(ValueError, match=text):
                await queue.pause_group(id)
        for limit in (0, -1, float("nan"), float("inf"), True):
            with pytest.raises(ValueError, match="rateLimit: expireTimeMs must be a positive finite number"):
                await queue.rate_limit(limit)
    assert server.commands == []


async def test_children_of_a_job(scripted: Scripted) -> None:
    records = {
        "p": wire_job("p", childrenIds=["c", "a", "b", "gone"]),
        "a": wire_job("a", "one", state="completed", returnvalue=1),
        "b": wire_job("b", "two", state="waiting"),
        "c": wire_job("c", "one", state="completed", returnvalue=3),
    }

    server = scripted(
        lambda command, connection: (
            {"ok": True, "job": records[command["id"]]}
            if command["id"] in records
            else {"ok": False, "error": "Job not found"}
        )
    )
    async with Queue("q", **server.address) as queue:
        assert await queue.get_job_dependencies("p") == {
            "processed": {"one:a": 1, "one:c": 3},
            "unprocessed": ["two:b"],
            "next_processed_cursor": 0,
            "next_unprocessed_cursor": 0,
        }
        window = await queue.get_job_dependencies("p", processed={"cursor": 0, "count": 1})
        assert (window["processed"], window["next_processed_cursor"]) == ({"one:a": 1}, 1)
        assert await queue.get_job_dependencies_count("p") == {"processed": 2, "unprocessed": 1}
        assert await queue.get_dependencies("p", "processed", 1) == {"items": [{"id": "one:c", "data": 3}], "total": 2}
        assert await queue.get_dependencies("p", "pending") == {"items": [{"id": "two:b"}], "total": 1}
        assert await queue.get_job_dependencies_count("nobody") == {"processed": 0, "unprocessed": 0}
