"""``bunqueue db``: look at the database and care for it, without a server."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from bunqueue_core.cli.family import Family
from bunqueue_core.cli.options import Globals
from bunqueue_core.cli.output import Failure, fatal, print_json, use_colour, warn
from bunqueue_core.config.files import load_config_file
from bunqueue_core.config.resolution import resolve
from bunqueue_core.model.errors import BunqueueError
from bunqueue_core.plugins.drivers import JournalDriver
from bunqueue_core.plugins.manager import PluginManager

if TYPE_CHECKING:
    from bunqueue_core.storage.maintenance import Maintenance, StorageInfo

#: Least time between two updates of a bar, seconds.
_REDRAW_S: Final = 0.05

#: How facts are named for people, in their order; others follow under their own names.
_LABELS: Final = {
    "path": "Database",
    "owner": "In use by",
    "bytes": "Size",
    "logBytes": "Log beside it",
    "freeBytes": "Free inside",
    "schemaVersion": "Schema version",
    "schemaAppliedAt": "Since",
    "migrationUnderWay": "Migration",
    "sqliteVersion": "SQLite",
}
_HIDDEN: Final = frozenset({"pageBytes", "pages", "supportedSchemaVersion"})

_file = click.option("-c", "--config", "path", metavar="FILE", help="Configuration file (.py, .toml or .json).")
_data_path = click.option("--data-path", metavar="FILE", help="The database (BUNQUEUE_DATA_PATH).")
_bare: Final[dict[str, Any]] = {"help_option_names": []}


@click.group("db", cls=Family, context_settings=_bare)
def db() -> None:
    """Look at the database of the configuration, check it, or give back the space that deleted jobs left.

    Stop the server before check and vacuum; info works beside one.
    """


@db.command("info", context_settings=_bare)
@_file
@_data_path
@click.pass_obj
def info(options: Globals, path: str | None, data_path: str | None) -> int:
    """Show sizes, schema and contents."""
    with _errors():
        found = _open(options, path, data_path).info()
    if options.json:
        tables = [{"name": name, "rows": rows, "bytes": size} for name, rows, size in found.tables]
        print_json({"ok": True, **found.facts, "jobs": dict(found.jobs), "tables": tables})
    else:
        _show(found)
    return 0


@db.command("check", context_settings=_bare)
@_file
@_data_path
@click.pass_obj
def check(options: Globals, path: str | None, data_path: str | None) -> int:
    """Look for damage. The exit code is 1 if there is any."""
    with _errors():
        maintenance = _open(options, path, data_path)
        begun = time.monotonic()
        with _waiting(options, "Checking"):
            problems = list(maintenance.check())
    if options.json:
        duration_ms = round((time.monotonic() - begun) * 1000)
        print_json({"ok": not problems, "problems": problems, "durationMs": duration_ms})
    elif problems:
        for problem in problems:
            click.echo(problem)
        click.echo(
            "The database is damaged: restore a backup (bunqueue backup list), or save what can be read.", err=True
        )
    else:
        click.echo("The database is sound")
    return 1 if problems else 0


@db.command("vacuum", context_settings=_bare)
@_file
@_data_path
@click.pass_obj
def vacuum(options: Globals, path: str | None, data_path: str | None) -> int:
    """Give the space of deleted jobs back to the disk. Needs as much free space beside the database as its contents take."""
    with _errors():
        maintenance = _open(options, path, data_path)
        begun = time.monotonic()
        with _bar(options, "Compacting") as progress:
            sizes = maintenance.vacuum(progress)
    if options.json:
        duration_ms = round((time.monotonic() - begun) * 1000)
        print_json({"ok": True, "before": sizes.before, "after": sizes.after, "durationMs": duration_ms})
    else:
        click.echo(f"{_size(sizes.before)} before, {_size(sizes.after)} now")
    return 0


# -- the frame of a subcommand ----------------------------------------------------------------------------------------


def _open(options: Globals, path: str | None, data_path: str | None) -> Maintenance:
    """What cares for the configured storage."""
    plugins = PluginManager(environ=os.environ)
    flags = {"--data-path": data_path} if data_path is not None else {}
    resolution = resolve(plugins, file=load_config_file(path), environ=os.environ, flags=flags)
    storage = resolution.require().storage
    if not options.json:
        for text in resolution.warnings:
            warn(text)
    driver = plugins.driver(storage.driver)
    if not isinstance(driver, JournalDriver) or driver.maintenance is None:
        fatal(
            f"The storage driver '{storage.driver}' keeps no database that this command could care for;"
            " name a file with --data-path or BUNQUEUE_DATA_PATH"
        )
    return driver.maintenance(storage)


@contextmanager
def _errors() -> Iterator[None]:
    """Errors of the storage end the command with their own text."""
    try:
        yield
    except BunqueueError as error:
        raise Failure(str(error)) from error


def _show(found: StorageInfo) -> None:
    facts = {name: value for name, value in found.facts.items() if name not in _HIDDEN and value not in (None, False)}
    order = [*_LABELS, *(name for name in facts if name not in _LABELS)]
    lines = [(_LABELS.get(name, name), _fact(name, facts[name])) for name in order if name in facts]
    lines += [("Jobs", ", ".join(f"{count:,} {state}" for state, count in found.jobs.items() if count) or "none")]
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        click.echo(f"{label:<{width}}  {text}")
    click.echo()
    width = max((len(name) for name, _, _ in found.tables), default=0)
    for name, rows, size in found.tables:
        click.echo(f"{name:<{width}}  {rows:>14,} rows  {_size(size) if size is not None else '':>10}")


def _fact(name: str, value: Any) -> str:
    if name.lower().endswith("bytes"):
        return _size(value)
    if name.endswith("At"):
        return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="seconds")
    return "under way" if value is True else str(value)


def _size(size: int) -> str:
    return f"{size / 2**20:,.1f} MB" if size >= 2**20 else f"{size / 2**10:,.1f} KB"


def _shown(options: Globals) -> bool:
    """Whether people watch: progress goes to stderr where that is a terminal."""
    return not options.json and sys.stderr.isatty()


@contextmanager
def _waiting(options: Globals, what: str) -> Iterator[None]:
    """Show that something is going on."""
    if not _shown(options):
        yield
        return
    from rich.console import Console

    with Console(file=sys.stderr, no_color=not use_colour(sys.stderr, os.environ)).status(f"{what} …"):
        yield


@contextmanager
def _bar(options: Globals, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how much of it is done."""
    if not _shown(options):
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr, no_color=not use_colour(sys.stderr, os.environ)),
    )
    task = bar.add_task(what, total=None)
    shown_at = 0.0

    def show(done: int, total: int) -> None:
        nonlocal shown_at
        moment = time.monotonic()
        if done == total or moment - shown_at > _REDRAW_S:
            shown_at = moment
            bar.update(task, completed=done, total=total)

    with bar:
        yield show


__all__ = ["db"]
