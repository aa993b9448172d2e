"""The commands to a running server: what each takes, which command of the protocol it becomes, and how its answer reads.

One table: help, arguments and requests are drawn from it, and a test holds it to the protocol's own table of commands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

import click

from bunqueue_core.cli import views
from bunqueue_core.cli.arguments import (
    Argument,
    Option,
    identifier,
    listed,
    plain,
    read_arguments,
    refuse,
    split,
    strict_json,
    whole,
)
from bunqueue_core.cli.family import Family
from bunqueue_core.cli.options import Globals
from bunqueue_core.cli.output import Failure, print_json, warn
from bunqueue_core.cli.wire import Server

#: States by which jobs can be listed and cleaned.
STATES: Final = ("waiting", "delayed", "active", "completed", "failed")

LOG_LEVELS: Final = ("info", "warn", "error")

WEBHOOK_EVENTS: Final = ("job.pushed", "job.started", "job.completed", "job.failed", "job.progress")

_TRANSIENT_WORKER: Final = (
    "worker registration is transient and expires when this command exits. "
    "A program that uses the class Worker registers itself for as long as it runs."
)


@dataclass(frozen=True, slots=True)
class Verb:
    """A command to a server.

    Attributes:
        name: its words, as typed (``job get``).
        wire: the command of the protocol.
        help: one line.
        view: what people see of a successful response.
        arguments: positional arguments, all required.
        options: options.
        fixed: fields that it always has.
        check: looks at the values of options (by name) before anything else; returns further fields, or refuses.
        judge: looks at a successful response: the text of an error, or None.
        wait: name of the option that says how long the command itself waits, ms.
        warning: printed to stderr after a success, for people only.
    """

    name: str
    wire: str
    help: str
    view: views.View = views.ok
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    fixed: Mapping[str, Any] | None = None
    check: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    judge: Callable[[Mapping[str, Any]], str | None] | None = None
    wait: str = ""
    warning: str = ""

    def request(self, tokens: list[str]) -> tuple[dict[str, Any], int]:
        """The command that ``tokens`` ask for, and how long it may wait, ms.

        Raises:
            Failure: an argument is missing or wrong; the exit code is 2.
        """
        texts, given = split(tokens, self.options)
        values = read_arguments(self.arguments, texts)
        fields: dict[str, Any] = {"cmd": self.wire, **(self.fixed or {})}
        fields.update((argument.field, values[argument.name]) for argument in self.arguments if argument.field)
        chosen: dict[str, Any] = {}
        for option in self.options:
            if option.name in given:
                text = given[option.name]
                chosen[option.name] = True if text is None else option.value(text)
        fields.update((option.field, chosen[option.name]) for option in self.options if option.name in chosen)
        if self.check is not None:
            fields.update(self.check({**values, **chosen}))
        wait = chosen.get(self.wait, 0) if self.wait else 0
        return {name: value for name, value in fields.items() if value is not None}, wait


# -- checks -----------------------------------------------------------------------------------------------------------


def _state(text: str, name: str) -> str:
    if text not in STATES:
        refuse(f"Invalid state: {text}. Must be one of: {', '.join(STATES)}")
    return text


def _log_level(text: str, name: str) -> str:
    if text not in LOG_LEVELS:
        refuse(f"Invalid log level: {text}. Must be info, warn, or error")
    return text


def _bounded(read: Callable[[str, str], int], refusal: str, least: int, most: int | None = None) -> Any:
    def bounded(text: str, name: str) -> int:
        value = read(text, name)
        if value < least or (most is not None and value > most):
            refuse(refusal)
        return value

    return bounded


def _wait_time(text: str, name: str) -> int:
    value = whole(text, name)
    if value < 0:
        refuse(f"Invalid timeout: {value}. Must be >= 0 ms")
    return value


def _every(text: str, name: str) -> int:
    value = whole(text, name)
    if value < 1:
        refuse(f"Invalid every: {value}. Must be a positive interval in ms")
    return value


def _max_limit(text: str, name: str) -> int | None:
    value = whole(text, name)
    if value < 0:
        refuse(f"Invalid max-limit: {value}. Must be >= 0 (0 = unlimited)")
    return value or None


def _url(text: str, name: str) -> str:
    try:
        parts = urlsplit(text)
        scheme, host = parts.scheme, parts.hostname
    except ValueError:
        scheme, host = "", None
    if not scheme or (not host and scheme in ("http", "https")):
        refuse(f"Invalid URL: {text}")
    if scheme not in ("http", "https"):
        refuse(f"Webhook URL must use http or https protocol: {text}")
    return text


def _check_clean(values: Mapping[str, Any]) -> Mapping[str, Any]:
    if "grace" not in values:
        refuse("--grace is required for clean command (time in milliseconds)")
    return {}


def _check_cron(values: Mapping[str, Any]) -> Mapping[str, Any]:
    if not values.get("queue"):
        refuse("--queue (-q) is required")
    if "data" not in values:
        refuse("--data (-d) is required (JSON string)")
    if not values.get("schedule") and "every" not in values:
        refuse("Either --schedule (-s) or --every (-e) is required")
    return {}


def _check_worker(values: Mapping[str, Any]) -> Mapping[str, Any]:
    if "queues" not in values:
        refuse("--queues (-q) is required (comma-separated queue names)")
    if not values["queues"]:
        refuse("At least one queue must be specified")
    return {}


def _check_webhook(values: Mapping[str, Any]) -> Mapping[str, Any]:
    known = ", ".join(WEBHOOK_EVENTS)
    if "events" not in values:
        refuse(f"--events (-e) is required (comma-separated). Valid events: {known}")
    if not values["events"]:
        refuse("At least one event must be specified")
    for event in values["events"]:
        if event not in WEBHOOK_EVENTS:
            refuse(f"Invalid event: {event}. Valid events: {known}")
    return {}


def _unless_known(response: Mapping[str, Any]) -> str | None:
    return "Job not found" if response.get("state") == "unknown" else None


def _unless_completed(response: Mapping[str, Any]) -> str | None:
    return None if views.merged(response).get("completed") else "Job not completed within timeout"


# -- the table --------------------------------------------------------------------------------------------------------

_ID: Final = Argument("id", "id", identifier)
_QUEUE: Final = Argument("queue", "queue")


def _number(name: str, field: str, help_: str, short: str = "", **bounds: Any) -> Option:
    return Option(name, field, help_, whole, short, "N", **bounds)


VERBS: Final = (
    Verb(
        "push",
        "PUSH",
        "Add a job named 'default' to QUEUE. DATA is JSON.",
        views.pushed,
        (_QUEUE, Argument("data", "data", strict_json)),
        (
            _number("priority", "priority", "Higher ones first (0).", "-P"),
            _number(
                "delay", "delay", "Run no sooner than in so many ms.", "-d", minimum=0, refusal="delay must be >= 0"
            ),
            _number(
                "max-attempts", "maxAttempts", "Attempts in all (3).", minimum=1, refusal="max-attempts must be >= 1"
            ),
            _number("backoff", "backoff", "Pause before the next attempt, ms (1000)."),
            _number("ttl", "ttl", "Drop the job if it has not begun after so many ms."),
            _number(
                "timeout", "timeout", "Fail an attempt after so many ms.", minimum=1, refusal="timeout must be > 0"
            ),
            Option("unique-key", "uniqueKey", "Add nothing while a job with this key waits.", short="-u"),
            Option("job-id", "jobId", "Id of your own; a second job of that id is the first.", metavar="ID"),
            Option("depends-on", "dependsOn", "Ids of jobs that must have completed.", listed, metavar="ID,ID"),
            Option("tags", "tags", "Tags.", listed, metavar="TAG,TAG"),
            Option("group-id", "groupId", "Group of the job.", short="-g", metavar="ID"),
            Option("lifo", "lifo", "Before the jobs that wait already.", None),
            Option("remove-on-complete", "removeOnComplete", "Keep nothing of it when it has completed.", None),
            Option("remove-on-fail", "removeOnFail", "Keep no dead letter of it.", None),
        ),
        fixed={"name": "default"},
    ),
    Verb(
        "pull",
        "PULL",
        "Take the next job of QUEUE. It stays taken after this command: end it with ack or fail.",
        views.job,
        (_QUEUE,),
        (_number("timeout", "timeout", "Wait for a job so many ms, at most 60000.", "-t"),),
        fixed={"detach": True},
        wait="timeout",
    ),
    Verb(
        "ack",
        "ACK",
        "Complete a job that was taken.",
        arguments=(_ID,),
        options=(Option("result", "result", "Its result.", strict_json, "-r", "JSON"),),
    ),
    Verb(
        "fail",
        "FAIL",
        "Fail a job that was taken: it is tried again, or becomes a dead letter.",
        arguments=(_ID,),
        options=(Option("error", "error", "What went wrong.", short="-e"),),
    ),
    Verb("job get", "GetJob", "Show a job.", views.job, (_ID,)),
    Verb(
        "job state", "GetState", "Show a job's state.", views.field("state", "State: {}"), (_ID,), judge=_unless_known
    ),
    Verb("job result", "GetResult", "Show a job's result.", views.result, (_ID,)),
    Verb("job cancel", "Cancel", "Remove a job that has not begun.", arguments=(_ID,)),
    Verb(
        "job progress",
        "Progress",
        "Set the progress of a job that runs, 0 to 100.",
        arguments=(
            _ID,
            Argument("progress", "progress", _bounded(whole, "Progress must be a number between 0 and 100", 0, 100)),
        ),
        options=(Option("message", "message", "Said with it.", short="-m"),),
    ),
    Verb("job update", "Update", "Replace a job's data.", arguments=(_ID, Argument("data", "data", strict_json))),
    Verb(
        "job priority",
        "ChangePriority",
        "Change the priority of a job that waits.",
        arguments=(_ID, Argument("priority", "priority", whole)),
    ),
    Verb("job promote", "Promote", "Let a delayed job run now.", arguments=(_ID,)),
    Verb(
        "job delay",
        "MoveToDelayed",
        "Let a job run in so many ms.",
        arguments=(
            _ID,
            Argument("delay", "delay", _bounded(whole, "Delay must be a positive number in milliseconds", 0)),
        ),
    ),
    Verb("job discard", "Discard", "Make a dead letter of a job.", arguments=(_ID,)),
    Verb("job logs", "GetLogs", "Show a job's log.", views.logs, (_ID,)),
    Verb(
        "job log",
        "AddLog",
        "Write a line to a job's log.",
        arguments=(_ID, Argument("message", "message")),
        options=(Option("level", "level", "info (the default), warn or error.", _log_level, "-l", "LEVEL"),),
    ),
    Verb(
        "job wait",
        "WaitJob",
        "Wait until a job has completed, and show its result.",
        views.waited,
        (_ID,),
        (Option("timeout", "timeout", "Wait at most so many ms.", _wait_time, "-t", "N"),),
        judge=_unless_completed,
        wait="timeout",
    ),
    Verb("queue list", "ListQueues", "List the queues.", views.queues),
    Verb("queue pause", "Pause", "Hand out no more jobs of a queue.", arguments=(_QUEUE,)),
    Verb("queue resume", "Resume", "Hand out jobs of a queue again.", arguments=(_QUEUE,)),
    Verb("queue drain", "Drain", "Remove the jobs that wait.", views.field("count", "Count: {}"), (_QUEUE,)),
    Verb("queue obliterate", "Obliterate", "Remove everything of a queue. It does not ask.", arguments=(_QUEUE,)),
    Verb(
        "queue clean",
        "Clean",
        "Remove old jobs.",
        views.cleaned,
        (_QUEUE,),
        (
            _number(
                "grace", "grace", "Older than so many ms; required.", "-g", minimum=0, refusal="grace must be >= 0"
            ),
            Option("state", "state", f"Only of this state: {', '.join(STATES)}.", _state, "-s", "STATE"),
            _number("limit", "limit", "At most so many.", "-l"),
        ),
        check=_check_clean,
    ),
    Verb("queue count", "Count", "Count the jobs that wait.", views.field("count", "Count: {}"), (_QUEUE,)),
    Verb(
        "queue jobs",
        "GetJobs",
        "List jobs of a queue.",
        views.jobs,
        (_QUEUE,),
        (
            Option("state", "state", f"Only of this state: {', '.join(STATES)}.", _state, "-s", "STATE"),
            _number("limit", "limit", "At most so many.", "-l", minimum=1, refusal="limit must be > 0"),
            _number("offset", "offset", "Leave out so many.", "-o", minimum=0, refusal="offset must be >= 0"),
        ),
    ),
    Verb("queue paused", "IsPaused", "Say whether a queue is paused.", views.paused, (_QUEUE,)),
    Verb(
        "rate-limit set",
        "RateLimit",
        "Hand out at most so many jobs a second.",
        arguments=(
            _QUEUE,
            Argument("limit", "limit", _bounded(whole, "Limit must be a positive number (jobs per second)", 1)),
        ),
    ),
    Verb("rate-limit clear", "RateLimitClear", "Undo rate-limit set.", arguments=(_QUEUE,)),
    Verb(
        "concurrency set",
        "SetConcurrency",
        "Let at most so many jobs run at once.",
        arguments=(
            _QUEUE,
            Argument("limit", "limit", _bounded(whole, "Limit must be a positive number (max concurrent jobs)", 1)),
        ),
    ),
    Verb("concurrency clear", "ClearConcurrency", "Undo concurrency set.", arguments=(_QUEUE,)),
    Verb(
        "dlq list",
        "Dlq",
        "List dead letters.",
        views.dead_letters,
        (_QUEUE,),
        (_number("count", "count", "At most so many.", "-c"),),
    ),
    Verb(
        "dlq retry",
        "RetryDlq",
        "Send dead letters back to the queue.",
        views.field("count", "Count: {}"),
        (_QUEUE,),
        (Option("id", "jobId", "Only this one.", identifier, metavar="ID"),),
    ),
    Verb("dlq purge", "PurgeDlq", "Drop all dead letters.", views.field("count", "Count: {}"), (_QUEUE,)),
    Verb("cron list", "CronList", "List the schedules.", views.crons),
    Verb(
        "cron add",
        "Cron",
        "Save a schedule.",
        views.scheduled,
        (Argument("name", "name"),),
        (
            Option("queue", "queue", "Where its jobs go; required.", short="-q", metavar="QUEUE"),
            Option("data", "data", "Data of its jobs; required.", strict_json, "-d", "JSON"),
            Option("schedule", "schedule", "A cron expression of 5 or 6 fields.", short="-s", metavar="EXPR"),
            Option("every", "repeatEvery", "An interval in ms, in its place.", _every, "-e", "MS"),
            _number("priority", "priority", "Priority of its jobs.", "-P"),
            Option("max-limit", "maxLimit", "End after so many runs; 0: never.", _max_limit, metavar="N"),
            Option("timezone", "timezone", "IANA name of the time zone.", short="-z", metavar="ZONE"),
        ),
        check=_check_cron,
    ),
    Verb("cron delete", "CronDelete", "Remove a schedule.", arguments=(Argument("name", "name"),)),
    Verb("worker list", "ListWorkers", "List the workers.", views.workers),
    Verb(
        "worker register",
        "RegisterWorker",
        "Register a worker for as long as this command runs, which is not long.",
        views.field("workerId", "Worker registered: {}"),
        (Argument("name", "name"),),
        (Option("queues", "queues", "Its queues; required.", listed, "-q", "QUEUE,QUEUE"),),
        check=_check_worker,
        warning=_TRANSIENT_WORKER,
    ),
    Verb(
        "worker unregister", "UnregisterWorker", "Remove a worker.", arguments=(Argument("id", "workerId", identifier),)
    ),
    Verb("webhook list", "ListWebhooks", "List the webhooks.", views.webhooks),
    Verb(
        "webhook add",
        "AddWebhook",
        "Call a URL when something happens.",
        views.field("webhookId", "Webhook added: {}"),
        (Argument("url", "url"),),
        (
            Option(
                "events", "events", f"Which events, of: {', '.join(WEBHOOK_EVENTS)}; required.", listed, "-e", "E,E"
            ),
            Option("queue", "queue", "Only of this queue.", short="-q", metavar="QUEUE"),
            Option("secret", "secret", "Signs the calls.", short="-s"),
        ),
        check=lambda values: (_check_webhook(values), {"url": _url(values["url"], "url")})[1],
    ),
    Verb("webhook remove", "RemoveWebhook", "Remove a webhook.", arguments=(Argument("id", "webhookId", identifier),)),
    Verb("stats", "Stats", "Show what the server has and has done.", views.stats),
    Verb("metrics", "Prometheus", "Print the metrics in the format of Prometheus.", views.metrics),
    Verb("health", "Stats", "The same as stats.", views.stats),
    Verb("ping", "Ping", "Say OK if the server answers."),
)


# -- running ----------------------------------------------------------------------------------------------------------


def run_verb(verb: Verb, options: Globals, tokens: list[str]) -> int:
    """Run a command to a server and print its answer. Gives the exit code.

    Raises:
        Failure: an argument is wrong, or there is no answer.
    """
    request, wait_ms = verb.request(tokens)
    host, port = options.endpoint(os.environ)
    server = Server(host, port, options.token(os.environ), options.tls_option())
    response = views.like_javascript(server.ask(request, wait_ms))
    if response.get("ok") is not True:
        raise Failure(str(response.get("error", "unknown error")), document=response)
    trouble = verb.judge(response) if verb.judge is not None else None
    if trouble is not None:
        raise Failure(trouble)
    if options.json:
        print_json(response)
        return 0
    click.echo(verb.view(response))
    if verb.warning:
        warn(verb.warning)
    return 0


class _VerbCommand(click.Command):
    """A verb as click shows it; its arguments are read by :mod:`bunqueue_core.cli.arguments`."""

    def __init__(self, verb: Verb) -> None:
        shown: list[click.Parameter] = [
            click.Argument([argument.name.replace("-", "_")], metavar=argument.name.upper())
            for argument in verb.arguments
        ]
        for option in verb.options:
            spellings = [f"--{option.name}", *([option.short] if option.short else [])]
            value: dict[str, Any] = {"is_flag": True} if option.read is None else {"metavar": option.metavar}
            shown.append(click.Option(spellings, help=option.help, **value))
        super().__init__(
            verb.name.rpartition(" ")[2], params=shown, help=verb.help, context_settings={"help_option_names": []}
        )
        self.verb = verb

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return ctx.args

    def invoke(self, ctx: click.Context) -> int:
        return run_verb(self.verb, cast(Globals, ctx.obj), ctx.args)


class _VerbFamily(Family):
    """A family whose subcommands stand in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


_FAMILY_HELP: Final = {
    "job": "Look at one job and change it.",
    "queue": "Look at queues and control them.",
    "rate-limit": "Limit how fast jobs of a queue are handed out.",
    "concurrency": "Limit how many jobs of a queue run at once.",
    "dlq": "Look after dead letters.",
    "worker": "Look at workers.",
    "webhook": "Look after webhooks.",
}


def family(name: str, help_: str = "", **more: click.Command) -> click.Group:
    """The verbs whose first word is ``name``, with ``more`` commands after them."""
    found = {verb.name.partition(" ")[2]: _VerbCommand(verb) for verb in VERBS if verb.name.partition(" ")[0] == name}
    return _VerbFamily(
        name,
        commands={**found, **more},
        help=help_ or _FAMILY_HELP[name],
        context_settings={"help_option_names": []},
    )


def single(name: str) -> click.Command:
    """The verb ``name`` of one word."""
    return next(_VerbCommand(verb) for verb in VERBS if verb.name == name)


push, pull, ack, fail = (single(name) for name in ("push", "pull", "ack", "fail"))
stats, metrics, health, ping = (single(name) for name in ("stats", "metrics", "health", "ping"))
job, queue, dlq, worker, webhook = (family(name) for name in ("job", "queue", "dlq", "worker", "webhook"))
rate_limit, concurrency = family("rate-limit"), family("concurrency")

__all__ = ["VERBS", "Verb", "family", "plain", "run_verb", "single"]
