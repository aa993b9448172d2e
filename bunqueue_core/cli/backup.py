"""``bunqueue backup``: make, list, verify and restore backups. It works on the storage itself, not through a server.

Configuration comes from the same file and environment as a server's; backups need not be enabled. Output and exit codes are what
scripts already know: a message, then the data; 0 after a success, 1 after anything else.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from pydantic import BaseModel

from bunqueue_core import __version__
from bunqueue_core.cli.options import Globals
from bunqueue_core.cli.output import print_json, use_colour, warn
from bunqueue_core.config.files import ConfigFile, load_config_file
from bunqueue_core.config.resolution import resolve
from bunqueue_core.logging import Logger
from bunqueue_core.model.errors import BunqueueError, ConfigurationError
from bunqueue_core.plugins.manager import PluginManager

if TYPE_CHECKING:
    from bunqueue_core.backup.attempts import Log
    from bunqueue_core.backup.reports import Outcome, Progress
    from bunqueue_core.backup.service import Backups
    from bunqueue_core.config.settings import Settings

_SUBCOMMANDS: Final = ("now", "create", "list", "restore", "status", "verify")

_NO_PATH: Final = "BUNQUEUE_DATA_PATH not set. Backup requires persistent storage."
_NO_SNAPSHOTS: Final = "Backup requires persistent SQLite storage; other databases have backups of their own."
_UNCONFIRMED: Final = (
    "Restore will OVERWRITE the current database. Use --force (-f) to confirm.\n"
    "WARNING: Stop the server before restoring!"
)

#: Least time between two updates of a bar, seconds.
_REDRAW_S: Final = 0.05

#: What people read while a step runs.
_STEPS: Final[Mapping[str, str]] = {
    "snapshot": "Taking a snapshot",
    "check": "Checking the snapshot",
    "compress": "Compressing",
    "upload metadata": "Publishing the metadata",
    "upload": "Publishing",
    "clean up": "Deleting old backups",
    "download": "Downloading",
    "download metadata": "Loading the metadata",
    "decompress": "Decompressing",
    "install": "Replacing the database",
}

#: Those of them that count bytes.
_COUNTED: Final = frozenset(_STEPS[step] for step in ("compress", "upload", "download", "decompress"))


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a subcommand works with."""

    settings: Settings
    enabled: bool
    backups: Backups
    described: Mapping[str, str]


class _Refused(Exception):
    """Ends the command with a message on stdout, as a failed one does."""


class _Backup(click.Group):
    """The family. What is missing or unknown is said as it always was, after the configuration was looked at."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        self.no_args_is_help = False
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the error that scripts know."""
        if self.get_command(ctx, args[0]) is None:
            _fail(ctx.obj, f"Unknown backup subcommand: {args[0]}. Use: {', '.join(_SUBCOMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does; every failure's exit code is 1, wrong arguments included."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _fail(ctx.obj, error.format_message())

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of their use."""
        return list(_SUBCOMMANDS)


@click.group("backup", cls=_Backup, invoke_without_command=True, context_settings={"help_option_names": []})
@click.pass_context
def backup(context: click.Context) -> None:
    """Make, list, verify and restore backups of the SQLite database.

    They go to the target of the configuration (backup.target): a bucket of S3 or of a compatible store, or a folder. The server
    may run meanwhile, except for restore.
    """
    if context.invoked_subcommand is None:
        _fail(context.obj, f"Missing backup subcommand. Use: {', '.join(_SUBCOMMANDS)}")


_file = click.option("-c", "--config", "path", metavar="FILE", help="Configuration file (.py, .toml or .json).")
_bare: Final[dict[str, Any]] = {"help_option_names": []}


@backup.command("now", context_settings=_bare)
@_file
@click.pass_obj
def now(options: Globals, path: str | None) -> int:
    """Make a backup of what is committed to the database."""
    return _command(options, path, _create)


@backup.command("create", context_settings=_bare)
@_file
@click.pass_obj
def create(options: Globals, path: str | None) -> int:
    """The same as now."""
    return _command(options, path, _create)


@backup.command("list", context_settings=_bare)
@_file
@click.pass_obj
def list_(options: Globals, path: str | None) -> int:
    """List the backups, newest first."""
    return _command(options, path, _list)


@backup.command("restore", context_settings=_bare)
@click.argument("key", required=False)
@click.option("-f", "--force", is_flag=True, help="Replace the database.")
@_file
@click.pass_obj
def restore(options: Globals, path: str | None, key: str | None, force: bool) -> int:
    """Replace the database by backup KEY, once that has proved whole. Stop the server first."""

    def run(options: Globals, opened: _Opened) -> int:
        if not key:
            _fail(options, "Missing required argument: backup-key")
        if not force:
            raise _Refused(_UNCONFIRMED)
        with _progress(options) as progress:
            outcome = opened.backups.restore(key, progress)
        return _report(options, outcome, "Restore completed successfully", "Restore failed")

    return _command(options, path, run)


@backup.command("status", context_settings=_bare)
@_file
@click.pass_obj
def status(options: Globals, path: str | None) -> int:
    """Show where backups go and when."""
    return _command(options, path, _status)


@backup.command("verify", context_settings=_bare)
@click.argument("key", required=False)
@_file
@click.pass_obj
def verify(options: Globals, path: str | None, key: str | None) -> int:
    """Restore the newest backup, or backup KEY, to a file beside the database, check that, and remove it."""

    def run(options: Globals, opened: _Opened) -> int:
        with _progress(options) as progress:
            outcome = opened.backups.verify(key, progress)
        return _report(options, outcome, "Backup verified", "Verification failed", rows=_filled(outcome.counts))

    return _command(options, path, run)


# -- subcommands ------------------------------------------------------------------------------------------------------


def _create(options: Globals, opened: _Opened) -> int:
    with _progress(options) as progress:
        outcome = opened.backups.run(progress)
    return _report(options, outcome, "Backup created successfully", "Backup failed")


def _list(options: Globals, opened: _Opened) -> int:
    from bunqueue_core.backup.names import iso

    found = opened.backups.list()
    data = [{"key": each.key, "size": _readable(each.size), "date": iso(each.modified_at)} for each in found]
    _print(options, True, f"Found {len(data)} backup(s)" if data else "No backups found", data)
    return 0


def _status(options: Globals, opened: _Opened) -> int:
    settings = opened.settings.backup
    data = {
        "enabled": opened.enabled,
        **({"target": settings.target} if settings.target != "s3" else {}),
        **opened.described,
        "interval": f"{_minutes(settings.interval)} minutes",
        "retention": f"{settings.retention} backups",
    }
    if settings.verify_interval is not None:
        data["verification"] = f"{_minutes(settings.verify_interval)} minutes"
    _print(options, True, "Backup configuration", data)
    return 0


def _report(options: Globals, outcome: Outcome, done: str, failed: str, **more: Any) -> int:
    if not outcome.success:
        raise _Refused(f"{failed}: {outcome.error}")
    data = {
        "key": outcome.key,
        "size": _readable(outcome.size or 0),
        **more,
        "duration": f"{outcome.duration_ms}ms",
    }
    _print(options, True, done, data)
    return 0


# -- the frame of a subcommand ----------------------------------------------------------------------------------------


def _command(options: Globals, path: str | None, run: Callable[[Globals, _Opened], int]) -> int:
    try:
        with _open(options, path) as opened:
            return run(options, opened)
    except _Refused as error:
        _print(options, False, str(error))
        return 1
    except BunqueueError as error:
        _fail(options, str(error))


@contextmanager
def _open(options: Globals, path: str | None) -> Iterator[_Opened]:
    """The configured target and storage, whether or not backups are enabled.

    Raises:
        _Refused: there is no storage that can be backed up, or the configuration is wrong.
    """
    from bunqueue_core.backup.hosting import open_store
    from bunqueue_core.backup.service import Backups
    from bunqueue_core.model.ports import Ports
    from bunqueue_core.plugins.drivers import OpenContext

    plugins = PluginManager(environ=os.environ)
    file = load_config_file(path)
    plain = resolve(plugins, file=file, environ=os.environ)
    driver = plugins.drivers.get(str(plain.values.get("storage.driver", "")))
    if driver is not None and not driver.capabilities.snapshots:
        raise _Refused(_NO_SNAPSHOTS if driver.capabilities.persistent else _NO_PATH)
    resolution = resolve(plugins, file=_with_backups(file), environ=os.environ)
    target_name = str(resolution.values.get("backup.target", ""))
    if resolution.settings is None:
        what = "S3" if target_name == "s3" else "Backup"
        problems = "\n".join(f"  - {problem}" for problem in [*resolution.problems, *resolution.conflicts])
        raise _Refused(f"{what} configuration invalid:\n{problems}")
    settings = resolution.settings
    plugins.configure(settings)
    if not options.json:
        for text in resolution.warnings:
            warn(text)
    # With --json there is one document and nothing else.
    log: Log = _unheard if options.json else Logger("Backup", level="warn", out=sys.stderr, err=sys.stderr)
    ports = Ports()
    try:
        target, store, files = open_store(
            settings, plugins, OpenContext(ports=ports, version=__version__, role="server", log=log)
        )
    except ConfigurationError as error:
        raise _Refused(str(error)) from error
    described = target.describe(settings.backup.store)
    backups = Backups(
        store,
        files,
        retention=settings.backup.retention,
        version=__version__,
        label=target.label or target.name,
        place=next(iter(described.values()), target.name),
        log=log,
        now=ports.now,
    )
    with closing(store):
        yield _Opened(settings, bool(plain.values.get("backup.enabled")), backups, described)


def _unheard(level: str, message: str, fields: Mapping[str, Any] | None = None, /, **more: Any) -> None:
    """A log that nobody reads."""


def _with_backups(file: ConfigFile | None) -> ConfigFile | Mapping[str, Any]:
    """The configuration file with backups enabled, so that their settings are read and checked."""
    sections = dict(file.sections) if file is not None else {}
    section = sections.get("backup")
    if isinstance(section, BaseModel):
        sections["backup"] = section.model_copy(update={"enabled": True})
    elif section is None or isinstance(section, Mapping):
        sections["backup"] = {**(section or {}), "enabled": True}
    return dataclasses.replace(file, sections=sections) if file is not None else sections


def _print(options: Globals, success: bool, message: str, data: Any = None) -> None:
    if options.json:
        print_json({"success": success, "message": message, **({"data": data} if data is not None else {})})
        return
    click.echo(message)
    if data is not None:
        print_json(data)


def _fail(options: Globals, message: str) -> NoReturn:
    """End the command with an error on stderr and exit code 1."""
    if options.json:
        print_json({"success": False, "message": message}, error=True)
    else:
        click.echo(f"Error: {message}", err=True)
    raise click.exceptions.Exit(1)


def _filled(counts: Mapping[str, int]) -> dict[str, int]:
    """The tables that have rows."""
    return {table: count for table, count in counts.items() if count}


def _readable(size: int) -> str:
    """A size in the largest unit of which there is one: MB, as always, unless it is small."""
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.1f} KB" if size < 1024**2 else f"{size / 1024**2:.2f} MB"


def _minutes(duration_ms: int) -> int:
    return round(duration_ms / 60_000)


@contextmanager
def _progress(options: Globals) -> Iterator[Progress]:
    """Shows people how far it is, on stderr, where that is a terminal; scripts get nothing but the result."""
    from bunqueue_core.backup.reports import silent

    if options.json or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Task, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Bytes(DownloadColumn):
        def render(self, task: Task) -> Text:
            return super().render(task) if task.description in _COUNTED else Text()

    bars = Bars(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        Bytes(),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr, no_color=not use_colour(sys.stderr, os.environ)),
    )
    current = ""
    task = bars.add_task("", visible=False)
    shown_at = 0.0

    def finish() -> None:
        done = max(1, bars.tasks[task].completed)
        bars.update(task, total=done, completed=done)

    def show(step: str, done: int, total: int | None) -> None:
        nonlocal current, task, shown_at
        if step != current:
            finish()
            current = step
            task = bars.add_task(_STEPS.get(step, step), total=total, completed=done)
            return
        moment = time.monotonic()
        if moment - shown_at > _REDRAW_S or done == total:
            bars.update(task, completed=done, total=total)
            shown_at = moment

    with bars:
        yield show
        finish()


__all__ = ["backup"]
