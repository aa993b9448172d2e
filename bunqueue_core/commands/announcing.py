"""What commands tell those who watch the server, once they have succeeded.

Only what follows from the command itself stands here; what the broker does by itself it tells by itself
(:meth:`~bunqueue_core.broker.protocol.Broker.subscribe_dashboard`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from bunqueue_core.answer import Answer
from bunqueue_core.commands.replies import lenient_number
from bunqueue_core.commands.session import Services, Session
from bunqueue_core.commands.table import Command, Members, Reply

Announcement = tuple[str, Mapping[str, Any]]

#: What there is to tell of a command: ``(request, reply)``. The request has passed the command's checks.
Telling = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterable[Announcement]]


def _queue(name: str) -> Telling:
    return lambda request, reply: ((name, {"queue": request["queue"]}),)


def _counted(name: str) -> Telling:
    def tell(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterable[Announcement]:
        if reply["count"]:
            yield name, {"queue": request["queue"], "count": reply["count"]}

    return tell


def _job(name: str, **fields: str) -> Telling:
    """Of a job; ``fields`` names members of the request by the fields that show them."""

    def tell(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterable[Announcement]:
        yield name, {"jobId": request["id"], **{shown: request[given] for shown, given in fields.items()}}

    return tell


def _config(name: str) -> Telling:
    return lambda request, reply: ((name, {"queue": request["queue"], "config": request.get("config") or {}}),)


def _obliterated(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterable[Announcement]:
    yield "queue:obliterated", {"queue": request["queue"]}
    yield "queue:removed", {"queue": request["queue"]}


def _cleaned(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterable[Announcement]:
    if reply["count"]:
        state = request.get("state") or "waiting"
        yield "queue:cleaned", {"queue": request["queue"], "state": state, "count": reply["count"]}


def _retried(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterable[Announcement]:
    fields = {"queue": request["queue"], "count": reply["count"]}
    if not reply["count"]:
        return
    if request.get("jobId"):
        yield "dlq:retried", {**fields, "jobId": request["jobId"]}
    else:
        yield "dlq:retry-all", fields


def _rate_limited(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterable[Announcement]:
    fields = {"queue": request["queue"], "max": lenient_number(request["limit"])}
    for name in ("duration", "ttl"):
        value = lenient_number(request.get(name))
        if value is not None:
            fields[name] = value
    yield "ratelimit:set", fields


def _limited(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterable[Announcement]:
    yield "concurrency:set", {"queue": request["queue"], "concurrency": lenient_number(request["limit"])}


def _pulled(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterable[Announcement]:
    count = len(reply["jobs"])
    if count > 1:
        yield "batch:pulled", {"queue": request["queue"], "count": count}


def _flow(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterable[Announcement]:
    jobs = reply["data"]["jobs"]
    yield "flow:pushed", {"jobs": len(jobs), "queues": len({job.queue for job in jobs})}


def _compacted(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Iterable[Announcement]:
    yield "memory:compacted", {}


#: By the name of the command.
TELLINGS: Final[Mapping[str, Telling]] = MappingProxyType(
    {
        "Pause": _queue("queue:paused"),
        "Resume": _queue("queue:resumed"),
        "Drain": _counted("queue:drained"),
        "Clean": _cleaned,
        "Obliterate": _obliterated,
        "PULLB": _pulled,
        "PUSHF": _flow,
        "Promote": _job("job:promoted"),
        "Discard": _job("job:discarded"),
        "Update": _job("job:data-updated"),
        "ChangePriority": _job("job:priority-changed", newPriority="priority"),
        "ChangeDelay": _job("job:delay-changed", newDelay="delay"),
        "MoveToDelayed": _job("job:moved-to-delayed", delay="delay"),
        "RetryDlq": _retried,
        "PurgeDlq": _counted("dlq:purged"),
        "RateLimit": _rate_limited,
        "RateLimitClear": _queue("ratelimit:cleared"),
        "SetConcurrency": _limited,
        "ClearConcurrency": _queue("concurrency:cleared"),
        "SetStallConfig": _config("config:stall-changed"),
        "SetDlqConfig": _config("config:dlq-changed"),
        "CronDelete": lambda request, reply: (("cron:deleted", {"name": request["name"]}),),
        "CompactMemory": _compacted,
    }
)


def announcing(commands: Mapping[str, Command]) -> Mapping[str, Command]:
    """The same commands, those of :data:`TELLINGS` announcing what they did."""
    return MappingProxyType(
        {
            name: dataclasses.replace(command, run=_announcing(command.run, TELLINGS[name]))
            if name in TELLINGS
            else command
            for name, command in commands.items()
        }
    )


def _announcing(run: Callable[[Session, Mapping[str, Any]], Reply], telling: Telling) -> Callable[..., Reply]:
    def observed(session: Session, request: Mapping[str, Any]) -> Reply:
        reply = run(session, request)
        services = session.services
        if services.announce is not None:
            if isinstance(reply, Answer):
                reply.add_callback(lambda answer: _tell(services, telling, request, answer))
            else:
                _announce(services, telling, request, reply)
        return reply

    return observed


def _tell(services: Services, telling: Telling, request: Mapping[str, Any], answer: Answer[Members]) -> None:
    if answer.error is None:
        _announce(services, telling, request, answer.value)


def _announce(services: Services, telling: Telling, request: Mapping[str, Any], reply: Members) -> None:
    announce = services.announce
    if announce is None:
        return
    try:
        for name, fields in telling(request, reply or {}):
            announce(name, fields)
    except Exception as error:  # the command has been done, and is answered whatever happens here
        services.log.warn("Announcement failed", error=f"{type(error).__name__}: {error}")
