"""Responses for people. Scripts that read them exist: layouts stay as they are, ``--json`` has the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

#: Turns a response into what is printed.
View = Callable[[Mapping[str, Any]], str]

_TABLE: Final = (("ID", 20), ("Queue", 15), ("State", 12), ("Priority", 10), ("Attempts", 0))
_RULE: Final = "-" * 75

_NO_RESULT: Final = "No result available (job not completed or result was removed)"


def merged(response: Mapping[str, Any]) -> dict[str, Any]:
    """The response with the members of its ``data`` beside the others."""
    data = response.get("data")
    return {**response, **data} if isinstance(data, Mapping) else dict(response)


def ok(response: Mapping[str, Any]) -> str:
    """Nothing more to say."""
    return "OK"


def field(name: str, text: str) -> View:
    """``text`` with the member ``name`` in the place of ``{}``."""
    return lambda response: text.format(merged(response).get(name))


def pushed(response: Mapping[str, Any]) -> str:
    """The id of a job that was added."""
    return f"Job created: {response.get('id')}"


def job(response: Mapping[str, Any]) -> str:
    """A job, line by line."""
    found = response.get("job")
    if not isinstance(found, Mapping):
        return "No job available"
    rows: list[tuple[str, Any]] = [
        ("Queue:", found.get("queue")),
        ("State:", state_of(found)),
        ("Priority:", found.get("priority", 0)),
        ("Attempts:", f"{found.get('attempts', 0)}/{found.get('maxAttempts', 0)}"),
        ("Data:", compact(found.get("data"))),
    ]
    if found.get("progress"):
        rows.append(("Progress:", f"{found['progress']}%"))
    rows.append(("Created:", iso(found.get("createdAt"))))
    if found.get("startedAt"):
        rows.append(("Started:", iso(found["startedAt"])))
    if found.get("failedReason"):
        rows.append(("Error:", found["failedReason"]))
    return "\n".join([f"Job: {found.get('id')}", *(f"  {label:<12}{value}" for label, value in rows)])


def jobs(response: Mapping[str, Any]) -> str:
    """Jobs as a table."""
    found = response.get("jobs")
    if not found:
        return "No jobs found"
    lines = [" ".join(title.ljust(width) for title, width in _TABLE), _RULE]
    for each in found:
        cells = (
            each.get("id"),
            each.get("queue"),
            state_of(each),
            each.get("priority", 0),
            f"{each.get('attempts', 0)}/{each.get('maxAttempts', 0)}",
        )
        lines.append(" ".join(str(cell).ljust(width) for cell, (_, width) in zip(cells, _TABLE, strict=True)).rstrip())
    return "\n".join(lines)


def state_of(found: Mapping[str, Any]) -> str:
    """The state of a job's record, worked out where the record does not say."""
    if found.get("state"):
        return str(found["state"])
    if found.get("completedAt"):
        return "completed"
    if found.get("startedAt"):
        return "unknown" if found.get("attempts", 0) >= found.get("maxAttempts", 1) else "active"
    if not found.get("createdAt"):
        return "unknown"
    return "delayed" if found.get("runAt", 0) > datetime.now(UTC).timestamp() * 1000 else "waiting"


def result(response: Mapping[str, Any]) -> str:
    """A job's result."""
    if "result" not in response:
        return _NO_RESULT
    return f"Result: {json.dumps(response['result'], indent=2, ensure_ascii=False, default=str)}"


def waited(response: Mapping[str, Any]) -> str:
    """What a job came to that was waited for."""
    return result(response) if "result" in response else "OK"


def logs(response: Mapping[str, Any]) -> str:
    """A job's log."""
    lines = merged(response).get("logs") or ()
    return (
        "\n".join(f"  [{iso(line['timestamp'])}] {line['level'].upper()}: {line['message']}" for line in lines)
        or "No logs found"
    )


def queues(response: Mapping[str, Any]) -> str:
    """Names of queues."""
    return "\n".join(f"  - {name}" for name in response.get("queues") or ()) or "No queues found"


def cleaned(response: Mapping[str, Any]) -> str:
    """How many jobs were removed, and which."""
    ids = response.get("ids") or []
    count = len(ids) if ids else response.get("count", 0)
    return f"Cleaned {count} jobs" + (f": {', '.join(ids)}" if ids else "")


def paused(response: Mapping[str, Any]) -> str:
    """Whether a queue is paused."""
    return "Queue is paused" if merged(response).get("paused") else "Queue is active"


def dead_letters(response: Mapping[str, Any]) -> str:
    """Dead letters with their reasons."""
    entries = response.get("entries")
    if entries is None:  # a server that only lists the jobs
        entries = [{"job": each, "enteredAt": each.get("createdAt")} for each in response.get("jobs") or ()]
    blocks = [
        _block(
            entry["job"].get("id"),
            ("Queue", entry["job"].get("queue")),
            ("Error", entry.get("error") or entry.get("reason") or "Unknown"),
            ("Failed", iso(entry.get("enteredAt"))),
        )
        for entry in entries
    ]
    return "\n".join(blocks) or "DLQ is empty"


def scheduled(response: Mapping[str, Any]) -> str:
    """A schedule that was saved."""
    cron = response.get("cron") or {}
    return f"Cron scheduled: {cron.get('name')} (next run: {iso(cron.get('nextRun'))})"


def crons(response: Mapping[str, Any]) -> str:
    """Schedules."""
    blocks = []
    for each in response.get("crons") or ():
        rows = [
            ("Queue", each.get("queue")),
            ("Schedule", each.get("schedule") or f"every {each.get('repeatEvery')}ms"),
            ("Executions", each.get("executions", 0)),
            ("Next run", iso(each.get("nextRun"))),
        ]
        rows += [(label, each[key]) for label, key in (("Max", "maxLimit"), ("Timezone", "timezone")) if each.get(key)]
        blocks.append(_block(each.get("name"), *rows))
    return "\n\n".join(blocks) or "No cron jobs found"


def workers(response: Mapping[str, Any]) -> str:
    """Registered workers."""
    lines = []
    for each in merged(response).get("workers") or ():
        served = ", ".join(each.get("queues") or ())
        lines.append(f"  {each.get('id')}: {each.get('name')} [{each.get('status', 'active')}] ({served})")
        lines.append(
            f"    concurrency={each.get('concurrency', 1)} active={each.get('activeJobs', 0)} "
            f"processed={each.get('processedJobs', 0)}/failed={each.get('failedJobs', 0)}"
        )
    return "\n".join(lines) or "No workers registered"


def webhooks(response: Mapping[str, Any]) -> str:
    """Registered webhooks."""
    blocks = []
    for each in merged(response).get("webhooks") or ():
        rows = [("Events", ", ".join(each.get("events") or ()))]
        if each.get("queue"):
            rows.append(("Queue", each["queue"]))
        rows.append(("Delivered", f"{each.get('successCount', 0)} ok / {each.get('failureCount', 0)} failed"))
        off = "" if each.get("enabled", True) else " [disabled]"
        blocks.append(_block(f"{each.get('id')}: {each.get('url')}{off}", *rows))
    return "\n".join(blocks) or "No webhooks registered"


def stats(response: Mapping[str, Any]) -> str:
    """What the server has and has done."""
    found = response.get("stats") or {}
    rows: Sequence[tuple[str, Any]] = [
        *((label, found.get(label.lower(), 0)) for label in ("Waiting", "Active", "Delayed", "Completed", "Failed")),
        ("DLQ", found.get("dlq", 0)),
    ]
    lines = ["Server Statistics:", "", *(f"  {label + ':':<13}{value}" for label, value in rows)]
    if "totalPushed" in found:
        for name in ("Pushed", "Pulled", "Completed", "Failed"):
            label = f"Total {name}:"
            lines.append(f"  {label:<17}{found.get(f'total{name}', 0)}")
    lines += [
        "",
        f"  {'Uptime:':<13}{int(found.get('uptime', 0)) // 1000}s",
        f"  {'Push/sec:':<13}{found.get('pushPerSec', 0)}",
        f"  {'Pull/sec:':<13}{found.get('pullPerSec', 0)}",
    ]
    return "\n".join(lines)


def metrics(response: Mapping[str, Any]) -> str:
    """Metrics in the format of Prometheus."""
    return str(merged(response).get("metrics", "")).rstrip("\n")


def compact(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def iso(instant_ms: Any) -> str:
    """An instant as ISO 8601 in UTC, to the millisecond; ``-`` for none."""
    if not isinstance(instant_ms, int | float) or isinstance(instant_ms, bool):
        return "-"
    moment = datetime.fromtimestamp(instant_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def like_javascript(value: Any) -> Any:
    """Numbers without a fraction as whole numbers: the wire carries large ones as floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: like_javascript(member) for key, member in value.items()}
    if isinstance(value, list):
        return [like_javascript(member) for member in value]
    return value


def _block(head: Any, *rows: tuple[str, Any]) -> str:
    return "\n".join([f"  {head}", *(f"    {label}: {value}" for label, value in rows)])
