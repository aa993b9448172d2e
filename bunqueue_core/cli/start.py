"""``bunqueue start``: flags, file and environment to settings, then the server until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from bunqueue_core import __version__
from bunqueue_core.cli.options import Globals
from bunqueue_core.cli.output import Failure, fatal, use_colour
from bunqueue_core.config.files import load_config_file
from bunqueue_core.config.resolution import FLAGS, Resolution, resolve
from bunqueue_core.logging import Logger
from bunqueue_core.plugins.manager import PluginManager

if TYPE_CHECKING:
    from bunqueue_core.config.settings import Listening, Settings

#: Objects allocated before a collection of the youngest generation, and the factors of the older ones. A server holds its jobs
#: for long; with the default (700, 10, 10) the collector walks them again and again, for a quarter of the time.
GC_THRESHOLDS: Final = (100_000, 20, 100)

_CONFIG_FLAGS: Final = ("--config", "-c")


class _Start(click.Command):
    """Hands every flag on as text: the configuration's own grammar reads it, and reports it with all other problems."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        valued = {*FLAGS, *_CONFIG_FLAGS}
        whole: list[str] = []
        index = 0
        while index < len(args):
            argument = args[index]
            index += 1
            if argument in valued:
                following = args[index] if index < len(args) else None
                if following is None or following.startswith("--") or following in valued:
                    # Left out: an empty value, which is reported together with all other problems.
                    whole.append(f"{argument}=" if argument.startswith("--") else "--config=")
                else:
                    whole.extend((argument, following))
                    index += 1
            else:
                whole.append(argument)
        try:
            super().parse_args(ctx, whole)
        except click.NoSuchOption as error:
            near = f" (did you mean {error.possibilities[0]}?)" if error.possibilities else ""
            fatal(f"Unknown option: {error.option_name}{near}")
        except click.UsageError as error:
            fatal(error.format_message())
        if ctx.args:
            fatal(f"Unexpected argument '{ctx.args[0]}'. This command does not take positional arguments")
        return ctx.args


@click.command(
    "start",
    cls=_Start,
    context_settings={"allow_extra_args": True, "help_option_names": []},
    short_help="Start the server.",
)
@click.option("-c", "--config", "config", metavar="FILE", help="Configuration file (.py, .toml or .json).")
@click.option("--tcp-port", metavar="PORT", help="Port of the TCP protocol, 0 to 65535 (TCP_PORT; 6789).")
@click.option("--http-port", metavar="PORT", help="Port of HTTP, 0 to 65535 (HTTP_PORT; 6790).")
@click.option("--host", metavar="HOST", help="Address that both bind (HOST; 0.0.0.0).")
@click.option("--data-path", metavar="FILE", help="SQLite database (BUNQUEUE_DATA_PATH; none: in memory).")
@click.option("--max-completed-jobs", metavar="N", help="Completed jobs kept in memory (50000).")
@click.option("--completed-retention-ms", metavar="MS", help="Delete completed jobs after this time (never).")
@click.option("--auth-tokens", metavar="A,B", help="Accepted tokens (AUTH_TOKENS; none: open).")
@click.option("--tls-cert", metavar="FILE", help="PEM certificate for both listeners (TLS_CERT_FILE).")
@click.option("--tls-key", metavar="FILE", help="PEM key (TLS_KEY_FILE).")
@click.pass_obj
def start(options: Globals, /, config: str | None, **given: str | None) -> int:
    """Start the server and run it until SIGINT or SIGTERM.

    Flags win over the configuration file (bunqueue.config.py, .toml or .json in the working directory), which wins over
    the environment.
    """
    flags = {f"--{name.replace('_', '-')}": text for name, text in given.items() if text is not None}
    for name in ("port", "host"):
        if name in options.given:
            flag, text = options.given[name]
            flags[flag] = text or ""
    if config == "":
        fatal("Invalid --config: missing value (expected a path)")
    plugins = PluginManager(environ=os.environ)
    resolution = resolve(plugins, file=load_config_file(config), environ=os.environ, flags=flags)
    log = Logger("Server", level=resolution.logging.level, format=resolution.logging.format)
    settings = _accept(resolution, log, as_json=options.json)
    plugins.configure(settings)

    def announce(listening: Listening) -> None:
        _announce(settings, plugins, listening, as_json=options.json)
        # What exists now stays: taken out of the collector's sight, it is never walked again.
        gc.collect()
        gc.freeze()

    gc.set_threshold(*GC_THRESHOLDS)
    return _serve(settings, plugins, log, announce)


def _accept(resolution: Resolution, log: Logger, *, as_json: bool) -> Settings:
    if resolution.settings is None and not resolution.problems and not as_json:
        # Values that are fine by themselves: said by the server about itself, in its own log.
        for conflict in resolution.conflicts:
            log.error(conflict)
        raise click.exceptions.Exit(1)
    settings = resolution.require()
    for warning in resolution.warnings:
        log.warn(warning)
    return settings


def _serve(settings: Settings, plugins: PluginManager, log: Logger, announce: Callable[[Listening], None]) -> int:
    try:
        from bunqueue_core.server.lifecycle import run_server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "bunqueue_core":
            raise
        raise Failure(
            f'Starting a server needs {error.name}; install it with: pip install "bunqueue-core[server]"',
            label="Fatal error",
        ) from error
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(run_server(settings, plugins, log, announce=announce))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is available: three to four times the rate of small frames."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _announce(settings: Settings, plugins: PluginManager, listening: Listening, *, as_json: bool) -> None:
    from bunqueue_core.cli.banner import address, print_banner

    if not as_json:
        print_banner(settings, plugins, listening, out=sys.stdout, colour=use_colour(sys.stdout, os.environ))
        return
    document: dict[str, Any] = {
        "ok": True,
        "version": __version__,
        "tcp": address(listening.tcp),
        "http": address(listening.http),
        "storage": listening.storage,
        "plugins": [f"{plugin.name} {plugin.version}".strip() for plugin in plugins.plugins],
    }
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    sys.stdout.flush()
