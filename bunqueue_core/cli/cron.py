"""``bunqueue cron``: the schedules of a server, and a look at any schedule's runs without one."""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

import click

from bunqueue_core.cli.network import family
from bunqueue_core.cli.options import Globals
from bunqueue_core.cli.output import Failure, print_json
from bunqueue_core.model.errors import ValidationError

#: Runs that one preview shows at most.
_RUNS_MAX: Final = 1000


@click.command("preview", context_settings={"ignore_unknown_options": True})
@click.argument("expression", required=False)
@click.option("--every", type=int, metavar="MS", help="An interval in ms, in place of an expression.")
@click.option("--timezone", metavar="ZONE", help="IANA name of the time zone; the machine's own without it.")
@click.option("--count", type=click.IntRange(1, _RUNS_MAX), default=5, show_default=True, help="Number of runs.")
@click.option("--from", "start", metavar="TIME", help="ISO 8601 time to start after; now without it.")
@click.pass_obj
def preview(
    options: Globals, expression: str | None, every: int | None, timezone: str | None, count: int, start: str | None
) -> int:
    """Show when a schedule would run next: a cron EXPRESSION (5 or 6 fields, or @daily and its like) or an interval."""
    if (expression is None) == (every is None):
        raise Failure("Give either a cron expression in quotes or --every MS", exit_code=2)
    after = _instant(start)
    request: dict[str, Any] = {"name": "preview", "queue": "preview", "timezone": timezone}
    request["schedule" if expression is not None else "repeatEvery"] = expression if expression is not None else every
    runs, zone = _runs(request, timezone, after, count)
    times = [datetime.fromtimestamp(run / 1000, zone or UTC) for run in runs]
    shown = [at if zone is not None else at.astimezone() for at in times]
    if options.json:
        print_json(
            {"ok": True, "runs": [{"at": run, "time": at.isoformat()} for run, at in zip(runs, shown, strict=True)]}
        )
        return 0
    for at in shown:
        click.echo(at.strftime("%a %Y-%m-%d %H:%M:%S %z"))
    return 0


def _instant(start: str | None) -> int:
    if start is None:
        return time.time_ns() // 1_000_000
    try:
        return int(datetime.fromisoformat(start).timestamp() * 1000)
    except ValueError:
        raise Failure(f'--from: "{start}" is no ISO 8601 time such as 2026-03-29T01:30:00+01:00', exit_code=2) from None


def _runs(request: dict[str, Any], timezone: str | None, after: int, count: int) -> tuple[list[int], tzinfo | None]:
    # Imported here: reading schedules is dear, and most commands have no use for it.
    from bunqueue_core.model.options import JobReader
    from bunqueue_core.scheduling.definition import DefinitionReader
    from bunqueue_core.scheduling.service import Scheduler
    from bunqueue_core.scheduling.zones import find_zone

    try:
        runs = Scheduler(DefinitionReader(JobReader())).preview_request(request, after, count)
    except ValidationError as error:
        raise Failure(str(error)) from error
    return runs, find_zone(timezone) if timezone else None


cron = family("cron", "Look after schedules.", preview=preview)
