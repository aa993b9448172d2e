"""Schedulers: jobs that come by a calendar or an interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from bunqueue_core.commands.replies import done, then
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import Members, Reply, Text, WholeRequest, command
from bunqueue_core.scheduling.definition import Entry

#: What a scheduler is shown as.
CRON: Final = (
    "{name, jobName, queue, schedule: text or null, repeatEvery: ms or null, nextRun: epoch ms, executions, "
    "maxLimit: number or null, timezone: name or null, priority}"
)

Definition = Annotated[
    Mapping[str, Any],
    WholeRequest(
        (
            "name",
            "queue",
            "jobName",
            "data",
            "schedule",
            "repeatEvery",
            "timezone",
            "priority",
            "maxLimit",
            "uniqueKey",
            "dedup",
            "skipMissedOnRestart",
            "immediately",
            "skipIfNoWorker",
            "preventOverlap",
            "jobOptions",
        )
    ),
]


@command("Cron", returns={"cron": CRON})
def cron(session: Session, request: Definition) -> Reply:
    """Create or replace a scheduler; an unchanged definition changes nothing."""
    return then(session.broker.upsert_schedule(request), _shown)


@command("CronGet", returns={"cron": CRON})
def cron_get(session: Session, name: Text = "") -> Reply:
    """One scheduler."""
    return then(session.broker.schedule(name), _shown)


@command("CronDelete")
def cron_delete(session: Session, name: Text = "") -> Reply:
    """Forget a scheduler; jobs that it made stay."""
    return done(session.broker.remove_schedule(name))


@command("CronList", returns={"crons": f"list of {CRON}"})
def cron_list(session: Session) -> Reply:
    """All schedulers."""
    return then(session.broker.schedules(), lambda entries: {"crons": [entry.view() for entry in entries]})


def _shown(entry: Entry) -> Members:
    return {"cron": entry.view()}
