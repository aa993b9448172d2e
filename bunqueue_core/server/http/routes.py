"""The routes: which method and path stands for which command, and where this side differs from the protocol.

A route of a command runs the very command of the table, with its checks and texts; what is said here is only how a request is
made of path, query and body, and with which status a refusal goes out. Members of a body that are not named are not passed on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from bunqueue_core.commands import COMMANDS
from bunqueue_core.commands.replies import lenient_number, whole_or_none
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import Command, Members, Reply
from bunqueue_core.server.http import views
from bunqueue_core.server.http.routing import Body, Prepare, Query, Route, Status

_INTEGER_PREFIX: Final = re.compile(r"\s*([+-]?\d{1,18})")

#: Members of a job's body that PUSH gets.
_JOB_MEMBERS: Final = (
    "data",
    "priority",
    "delay",
    "backoff",
    "timeout",
    "jobId",
    "removeOnComplete",
    "removeOnFail",
    "durable",
    "ttl",
    "uniqueKey",
    "groupId",
    "dependsOn",
    "tags",
    "lifo",
    "repeat",
)

_CRON_MEMBERS: Final = (
    "name",
    "queue",
    "data",
    "schedule",
    "repeatEvery",
    "priority",
    "maxLimit",
    "timezone",
    "uniqueKey",
    "dedup",
    "skipMissedOnRestart",
    "immediately",
    "skipIfNoWorker",
    "preventOverlap",
    "jobOptions",
)

#: Listing parameters that filter by state.
_STATE_PARAMETERS: Final = ("state", "status", "states")


# -- making requests --------------------------------------------------------------------------------------------------


def integer_prefix(text: str) -> int | float:
    """The integer that ``text`` begins with; NaN if it begins with none."""
    found = _INTEGER_PREFIX.match(text)
    return int(found[1]) if found else math.nan


def _name_and_attempts(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    name = body.get("name")
    request["name"] = name if isinstance(name, str) else "default"
    attempts = body.get("maxAttempts")
    if attempts is None:
        attempts = body.get("attempts")
    if attempts is not None:
        request["maxAttempts"] = attempts


def _data_or_null(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    request.setdefault("data", None)


def _bulk(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    jobs = body.get("jobs")
    if isinstance(jobs, list):
        jobs = [
            {**job, "name": "default"} if isinstance(job, dict) and not isinstance(job.get("name"), str) else job
            for job in jobs
        ]
    request["jobs"] = [] if jobs is None else jobs


def _pull_timeout(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    given = query.get("timeout")
    if given is not None:
        request["timeout"] = integer_prefix(given[0])


def _listing(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    states = [
        state
        for parameter in _STATE_PARAMETERS
        for value in query.get(parameter, ())
        for state in map(str.strip, value.split(","))
        if state
    ]
    if states:
        distinct = list(dict.fromkeys(states))
        request["state"] = distinct[0] if len(distinct) == 1 else distinct
    for name in ("limit", "offset"):
        value = integer_prefix(query[name][0]) if name in query else math.nan
        if value >= 0:
            request[name] = value


def _clean(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    request["grace"] = _number_or_zero(body.get("grace"))


def _promoted_count(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    count = body.get("count")
    if count is not None:
        request["count"] = _number_or_zero(count)


def _number_or_zero(value: Any) -> int:
    return whole_or_none(value) or 0


def _concurrency(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    value = body.get("concurrency")
    request["limit"] = body.get("limit") if value is None else value


def _policy(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    config = body.get("config")
    given = config if isinstance(config, dict) else body
    request["config"] = {
        name: lenient_number(value) if isinstance(value, str) else value for name, value in given.items()
    }


def _job_name_of_schedule(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    name = body.get("jobName")
    request["jobName"] = name if isinstance(name, str) else "default"


def _dead_letter_page(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    for name in ("limit", "offset"):
        if name in query:
            value = whole_or_none(lenient_number(query[name][0]))
            if value is not None:
                request[name] = max(0, value)


def _queue_page(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    for name in ("limit", "offset"):
        if name in query:
            value = integer_prefix(query[name][0])
            if math.isfinite(value):
                request[name] = int(value)


def _include_jobs(request: dict[str, Any], body: Mapping[str, Any], query: Query) -> None:
    request["includeJobs"] = query.get("includeJobs", [""])[0] == "true"


# -- showing replies --------------------------------------------------------------------------------------------------


def _unwrapped(members: Members) -> Members:
    """What stands in ``data`` elsewhere stands beside ``ok`` here."""
    return members["data"] if members is not None else None


# -- the table --------------------------------------------------------------------------------------------------------


def _of(
    method: str,
    path: str,
    name: str,
    *takes: str,
    body: Body = Body.NONE,
    status: Status = Status.BAD_REQUEST,
    prepare: Prepare | None = None,
    shape: Callable[[Members], Members] | None = None,
) -> Route:
    """The route of a command."""
    command: Command = COMMANDS[name]
    return Route(
        method,
        path,
        command.run,
        command=name,
        body=body,
        status=status,
        takes=takes,
        prepare=prepare,
        shape=shape,
        waits=command.waits,
        summary=command.summary,
    )


def _view(
    path: str,
    view: Callable[[Session, Mapping[str, Any]], Reply],
    *,
    prepare: Prepare | None = None,
    bare: str = "",
) -> Route:
    """The route of a view."""
    summary = (view.__doc__ or "").partition("\n")[0]
    return Route("GET", path, view, status=Status.OK, prepare=prepare, bare=bare, summary=summary)


_R, _O = Body.REQUIRED, Body.OPTIONAL
_404, _200 = Status.NOT_FOUND, Status.OK

JOBS: Final = (
    _of("POST", "/jobs/ack-batch", "ACKB", "ids", "results", "tokens", body=_O),
    _of("POST", "/jobs/extend-locks", "ExtendLocks", "ids", "tokens", "durations", body=_O),
    _of("POST", "/jobs/heartbeat-batch", "JobHeartbeatB", "ids", "tokens", body=_O),
    _of("GET", "/jobs/custom/:customId", "GetJobByCustomId", status=_404),
    _of("GET", "/jobs/:id", "GetJob", status=_404),
    _of("DELETE", "/jobs/:id", "Cancel", status=_200),
    _of("POST", "/jobs/:id/ack", "ACK", "result", "token", body=_O),
    _of("POST", "/jobs/:id/fail", "FAIL", "error", "token", "unrecoverable", "stack", body=_O),
    _of("POST", "/jobs/:id/promote", "Promote"),
    _of("PUT", "/jobs/:id/data", "Update", "data", body=_R, prepare=_data_or_null),
    _of("GET", "/jobs/:id/state", "GetState", status=_404),
    _of("GET", "/jobs/:id/result", "GetResult", status=_404),
    _of("GET", "/jobs/:id/progress", "GetProgress", status=_404),
    _of("POST", "/jobs/:id/progress", "Progress", "progress", "message", body=_O),
    _of("PUT", "/jobs/:id/priority", "ChangePriority", "priority", "lifo", body=_O),
    _of("POST", "/jobs/:id/discard", "Discard"),
    _of("POST", "/jobs/:id/move-to-delayed", "MoveToDelayed", "delay", "token", body=_O),
    _of("PUT", "/jobs/:id/delay", "ChangeDelay", "delay", body=_O),
    _of("GET", "/jobs/:id/children", "GetChildrenValues", status=_404),
    _of("GET", "/jobs/:id/logs", "GetLogs", status=_200),
    _of("POST", "/jobs/:id/logs", "AddLog", "message", "level", body=_O),
    _of("DELETE", "/jobs/:id/logs", "ClearLogs", status=_200),
    _of("POST", "/jobs/:id/heartbeat", "JobHeartbeat", "token", "duration", body=_O),
    _of("POST", "/jobs/:id/wait", "WaitJob", "timeout", body=_O, status=_200),
    _of("POST", "/jobs/:id/extend-lock", "ExtendLock", "duration", "token", body=_O),
    _of("POST", "/jobs/:id/move-to-wait", "MoveToWait", "token", body=_O),
)

QUEUES: Final = (
    _of("GET", "/queues", "ListQueues", status=_200),
    _view("/queues/summary", views.queue_summaries, bare="queues"),
    _of("POST", "/queues/:queue/jobs", "PUSH", *_JOB_MEMBERS, body=_R, prepare=_name_and_attempts),
    _of("GET", "/queues/:queue/jobs", "PULL", status=_200, prepare=_pull_timeout),
    _of("POST", "/queues/:queue/jobs/bulk", "PUSHB", body=_R, prepare=_bulk),
    _of(
        "POST",
        "/queues/:queue/jobs/pull-batch",
        "PULLB",
        *("count", "timeout", "owner", "lockTtl"),
        body=_O,
        status=_200,
    ),
    _of("GET", "/queues/:queue/jobs/list", "GetJobs", status=_200, prepare=_listing),
    _view("/queues/:queue/workers", views.queue_workers),
    _of("GET", "/queues/:queue/counts", "GetJobCounts", status=_200),
    _of("GET", "/queues/:queue/count", "Count", status=_200),
    _of("GET", "/queues/:queue/priority-counts", "GetCountsPerPriority", status=_200),
    _of("GET", "/queues/:queue/paused", "IsPaused", status=_200),
    _of("POST", "/queues/:queue/pause", "Pause", status=_200),
    _of("POST", "/queues/:queue/resume", "Resume", status=_200),
    _of("POST", "/queues/:queue/drain", "Drain", status=_200),
    _of("POST", "/queues/:queue/obliterate", "Obliterate", status=_200),
    _of("POST", "/queues/:queue/clean", "Clean", "state", "limit", body=_O, status=_200, prepare=_clean),
    _of("POST", "/queues/:queue/promote-jobs", "PromoteJobs", body=_O, status=_200, prepare=_promoted_count),
    _of("POST", "/queues/:queue/retry-completed", "RetryCompleted", "id", body=_O, status=_200),
)

POLICIES: Final = (
    _view("/queues/:queue/dlq", views.dead_letter_page, prepare=_dead_letter_page),
    _of("GET", "/queues/:queue/dlq/stats", "GetDlqStats", status=_200, shape=_unwrapped),
    _of("POST", "/queues/:queue/dlq/retry", "RetryDlq", "jobId", body=_O, status=_200),
    _of("POST", "/queues/:queue/dlq/purge", "PurgeDlq", status=_200),
    _of("PUT", "/queues/:queue/rate-limit", "RateLimit", "limit", "duration", "ttl", body=_O, status=_200),
    _of("DELETE", "/queues/:queue/rate-limit", "RateLimitClear", status=_200),
    _of("PUT", "/queues/:queue/concurrency", "SetConcurrency", body=_O, status=_200, prepare=_concurrency),
    _of("DELETE", "/queues/:queue/concurrency", "ClearConcurrency", status=_200),
    _of("GET", "/queues/:queue/stall-config", "GetStallConfig", status=_200),
    _of("PUT", "/queues/:queue/stall-config", "SetStallConfig", body=_O, status=_200, prepare=_policy),
    _of("GET", "/queues/:queue/dlq-config", "GetDlqConfig", status=_200),
    _of("PUT", "/queues/:queue/dlq-config", "SetDlqConfig", body=_O, status=_200, prepare=_policy),
)

RESOURCES: Final = (
    _of("GET", "/crons", "CronList", status=_200),
    _of("POST", "/crons", "Cron", *_CRON_MEMBERS, body=_R, prepare=_job_name_of_schedule),
    _of("GET", "/crons/:name", "CronGet", status=_404),
    _of("DELETE", "/crons/:name", "CronDelete", status=_404),
    _of("GET", "/webhooks", "ListWebhooks", status=_200),
    _of("POST", "/webhooks", "AddWebhook", "url", "events", "queue", "secret", body=_R),
    _of("DELETE", "/webhooks/:webhookId", "RemoveWebhook", status=_404),
    _of("PUT", "/webhooks/:id/enabled", "SetWebhookEnabled", "enabled", body=_O),
    _of("GET", "/workers", "ListWorkers", status=_200),
    _of(
        "POST",
        "/workers",
        "RegisterWorker",
        *("name", "queues", "concurrency", "workerId", "hostname", "pid", "startedAt"),
        body=_R,
    ),
    _of("DELETE", "/workers/:workerId", "UnregisterWorker", status=_404),
    _of(
        "POST",
        "/workers/:id/heartbeat",
        "Heartbeat",
        *("activeJobs", "processed", "failed"),
        body=Body.LENIENT,
        status=_200,
    ),
)

FIGURES: Final = (
    _of("GET", "/ping", "Ping", status=_200),
    _of("GET", "/storage", "StorageStatus", status=_200),
    _view("/stats", views.stats),
    _view("/metrics", views.totals),
    _view("/dashboard", views.dashboard),
    _view("/dashboard/queues", views.queue_page, prepare=_queue_page),
    _of("GET", "/dashboard/queues/:queue", "DashboardQueue", prepare=_include_jobs, shape=_unwrapped),
)

#: Every route, in the order of the reference.
ROUTES: Final = (*FIGURES, *JOBS, *QUEUES, *POLICIES, *RESOURCES)
