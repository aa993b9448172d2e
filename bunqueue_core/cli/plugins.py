"""``bunqueue plugins``: what is installed, and what it provides."""

from __future__ import annotations

import os

import click

from bunqueue_core.cli.options import Globals
from bunqueue_core.cli.output import print_json
from bunqueue_core.plugins.manager import PluginManager


@click.command("plugins", context_settings={"help_option_names": []})
@click.pass_obj
def plugins(options: Globals) -> int:
    """List the plugins in use with their versions and what each of them provides."""
    loaded = PluginManager(environ=os.environ).plugins
    if options.json:
        print_json(
            {
                "ok": True,
                "plugins": [
                    {
                        "name": plugin.name,
                        "distribution": plugin.distribution,
                        "version": plugin.version,
                        "hooks": list(plugin.hooks),
                        "provides": list(plugin.provides),
                    }
                    for plugin in loaded
                ],
            }
        )
        return 0
    width = max(len(plugin.name) for plugin in loaded)
    for plugin in loaded:
        click.echo(f"{plugin.name:<{width}}  {plugin.label}")
        for provided in plugin.provides:
            click.echo(f"{'':<{width}}    {provided}")
    return 0
