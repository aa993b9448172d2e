"""Dispatch: global options first, then the command. Each family of commands is a module, imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import click

from bunqueue_core import __version__
from bunqueue_core.cli.options import Globals, split
from bunqueue_core.cli.output import Failure, print_json, tolerate_narrow_encodings
from bunqueue_core.model.errors import ConfigurationError

_NETWORK: Final = "bunqueue_core.cli.network"

#: Command name → module and attribute of its click command, with its one-line help.
COMMANDS: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "start": ("bunqueue_core.cli.start", "start", "Start the server (also when no command is given)."),
        "push": (_NETWORK, "push", "Add a job."),
        "pull": (_NETWORK, "pull", "Take a job."),
        "ack": (_NETWORK, "ack", "Complete a job that was taken."),
        "fail": (_NETWORK, "fail", "Fail a job that was taken."),
        "job": (_NETWORK, "job", "Look at one job and change it."),
        "queue": (_NETWORK, "queue", "Look at queues and control them."),
        "dlq": (_NETWORK, "dlq", "Look after dead letters."),
        "rate-limit": (_NETWORK, "rate_limit", "Limit how fast jobs are handed out."),
        "concurrency": (_NETWORK, "concurrency", "Limit how many jobs run at once."),
        "cron": ("bunqueue_core.cli.cron", "cron", "Look after schedules; preview their runs."),
        "worker": (_NETWORK, "worker", "Look at workers."),
        "webhook": (_NETWORK, "webhook", "Look after webhooks."),
        "stats": (_NETWORK, "stats", "Show what the server has and has done."),
        "metrics": (_NETWORK, "metrics", "Print the metrics for Prometheus."),
        "health": (_NETWORK, "health", "The same as stats."),
        "ping": (_NETWORK, "ping", "Say whether the server answers."),
        "doctor": ("bunqueue_core.cli.doctor", "doctor", "Look for trouble with client and server."),
        "healthcheck": (
            "bunqueue_core.cli.healthcheck",
            "healthcheck",
            "Say whether a server is healthy, for containers.",
        ),
        "db": ("bunqueue_core.cli.db", "db", "Show, check or compact the database."),
        "backup": ("bunqueue_core.cli.backup", "backup", "Make, list, verify and restore backups."),
        "config": ("bunqueue_core.cli.config", "config", "Check or show the configuration."),
        "plugins": ("bunqueue_core.cli.plugins", "plugins", "List the plugins in use and what they provide."),
        "version": ("bunqueue_core.cli.version", "version", "Print the versions of this client and of the server."),
    }
)


class _Commands(click.Group):
    """The registry as a click group, so that only the module of the command that runs is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry[0]), entry[1])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_) for name, (_, _, help_) in COMMANDS.items()])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        with formatter.section("Global options, anywhere on the line"):
            formatter.write_dl(
                [
                    ("-H, --host HOST", "Host of the server (HOST, BUNQUEUE_HOST, BQ_HOST; localhost)."),
                    ("-p, --port PORT", "Its TCP port (TCP_PORT, BUNQUEUE_TCP_PORT, BQ_TCP_PORT; 6789)."),
                    ("-t, --token TOKEN", "Token for a server that asks for one (BQ_TOKEN, BUNQUEUE_TOKEN)."),
                    ("--tls", "Connect with TLS."),
                    ("--tls-ca FILE", "Connect with TLS and trust this CA."),
                    ("--tls-no-verify", "Connect with TLS and do not check the certificate."),
                    ("--json", "Print JSON."),
                    ("--help", "Print help, of a command if one is given."),
                    ("--version", "Print the version."),
                ]
            )


root = _Commands("bunqueue", help="bunqueue: a job queue.", invoke_without_command=False)


def run(arguments: list[str]) -> int:
    """Run the command line.

    Args:
        arguments: what follows the program's name.

    Returns:
        The exit code: 0 success, 1 failure, 2 wrong arguments (before anything is contacted).
    """
    tolerate_narrow_encodings()
    options, rest = split(arguments)
    try:
        return _dispatch(options, rest)
    except Failure as failure:
        failure.show(as_json=options.json)
        return failure.exit_code
    except ConfigurationError as error:
        Failure(str(error), label="Fatal error").show(as_json=options.json)
        return 1
    except click.UsageError as error:
        Failure(error.format_message(), exit_code=2).show(as_json=options.json)
        return 2
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort:
        return 130
    except BrokenPipeError:
        return 0


def _dispatch(options: Globals, rest: list[str]) -> int:
    if options.version:
        if options.json:
            print_json({"ok": True, "version": __version__})
        else:
            click.echo(f"bunqueue v{__version__}")
        return 0
    bare = not rest or rest[0].startswith("-")
    if options.help:
        return _help(options, [] if bare else rest)
    arguments = ["start", *rest] if bare else rest
    if arguments[0] not in COMMANDS:
        raise Failure(f"Unknown command: {arguments[0]}")
    result: Any = root.main(arguments, prog_name="bunqueue", standalone_mode=False, obj=options)
    return result if isinstance(result, int) else 0


def _help(options: Globals, rest: list[str]) -> int:
    command: click.Command = root
    context = click.Context(root, info_name="bunqueue", obj=options)
    for name in rest:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(context, name)
        if found is None:
            break
        command = found
        context = click.Context(command, info_name=name, parent=context, obj=options)
    text = command.get_help(context)
    if options.json:
        print_json({"ok": True, "help": text})
    else:
        click.echo(text)
    return 0
