"""``bunqueue config``: check the configuration, or show it with its sources, without starting anything."""

from __future__ import annotations

import os

import click

from bunqueue_core.cli.family import Family
from bunqueue_core.cli.options import Globals
from bunqueue_core.cli.output import print_json, warn
from bunqueue_core.config.files import load_config_file
from bunqueue_core.config.resolution import Resolution, resolve
from bunqueue_core.config.show import as_text, rows
from bunqueue_core.plugins.manager import PluginManager

_file = click.option("-c", "--config", "path", metavar="FILE", help="Configuration file (.py, .toml or .json).")


@click.group("config", cls=Family, context_settings={"help_option_names": []})
def config() -> None:
    """Check or show the configuration that a server would be started with."""


@config.command("check", context_settings={"help_option_names": []})
@_file
@click.pass_obj
def check(options: Globals, path: str | None) -> int:
    """Check everything, report all problems at once, and start nothing."""
    resolution, plugins = _read(path)
    settings = resolution.require()
    plugins.configure(settings)
    source = resolution.path.name if resolution.path else "no file, only environment and defaults"
    if options.json:
        print_json({"ok": True, "file": str(resolution.path or ""), "warnings": list(resolution.warnings)})
        return 0
    for text in resolution.warnings:
        warn(text)
    storage = plugins.driver(settings.storage.driver).describe(settings.storage)
    click.echo(f"The configuration is valid ({source}); storage is {storage}")
    return 0


@config.command("show", context_settings={"help_option_names": []})
@_file
@click.option("--sources", is_flag=True, help="Say where each value comes from.")
@click.pass_obj
def show(options: Globals, path: str | None, sources: bool) -> int:
    """Show every setting with its value; secrets are masked."""
    resolution, _ = _read(path)
    resolution.require()
    shown = rows(resolution)
    if options.json:
        print_json(
            {
                "ok": True,
                "settings": {
                    key: {"value": value, "source": origin} if sources else value for key, value, origin in shown
                },
            }
        )
        return 0
    for text in resolution.warnings:
        warn(text)
    width = max(len(key) for key, _, _ in shown)
    values = [as_text(value) for _, value, _ in shown]
    wide = min(40, max(map(len, values)))
    for (key, _, origin), value in zip(shown, values, strict=True):
        click.echo(f"{key:<{width}}  {value:<{wide}}  {origin}" if sources else f"{key:<{width}}  {value}")
    return 0


def _read(path: str | None) -> tuple[Resolution, PluginManager]:
    plugins = PluginManager(environ=os.environ)
    return resolve(plugins, file=load_config_file(path), environ=os.environ), plugins
