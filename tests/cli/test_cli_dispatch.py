"""The command line's frame: global options, help, versions, errors and exit codes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import IO, Any

import pytest
from cli_call import Call

from bunqueue_core import __version__
from bunqueue_core.cli.app import COMMANDS
from bunqueue_core.cli.options import split
from bunqueue_core.cli.output import use_colour


@pytest.mark.parametrize("option", ["--version", "-v"])
def test_version_option(bunqueue: Call, option: str) -> None:
    assert bunqueue(option).out == f"bunqueue v{__version__}\n"
    assert json.loads(bunqueue("--version", "--json").out) == {"ok": True, "version": __version__}


def test_help_lists_every_command(bunqueue: Call) -> None:
    outcome = bunqueue("--help")

    assert outcome.code == 0
    for name in COMMANDS:
        assert f"  {name} " in outcome.out


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_of_its_own(bunqueue: Call, name: str) -> None:
    outcome = bunqueue(name, "--help")

    assert outcome.code == 0
    assert outcome.out.startswith(f"Usage: bunqueue {name}")
    assert json.loads(bunqueue("--json", "--help", name).out)["help"] + "\n" == outcome.out


def test_an_unknown_command_is_refused(bunqueue: Call) -> None:
    assert bunqueue("explode").err == "Error: Unknown command: explode\n"
    assert bunqueue("explode").code == 1
    assert json.loads(bunqueue("explode", "--json").err) == {"ok": False, "error": "Unknown command: explode"}


def test_subcommands_are_named_when_one_is_missing_or_unknown(bunqueue: Call) -> None:
    missing, unknown = bunqueue("config"), bunqueue("config", "explode")

    assert (missing.code, missing.err) == (2, "Error: Missing subcommand. Use: check, show\n")
    assert (unknown.code, unknown.err) == (2, "Error: Unknown config subcommand: explode. Use: check, show\n")


def test_global_options_are_recognised_anywhere() -> None:
    options, rest = split(["push", "-p", "1", "q", "--host=h", "{}", "--json", "-t", "secret"])

    assert rest == ["push", "q", "{}"]
    assert options.given == {"port": ("-p", "1"), "host": ("--host", "h"), "token": ("-t", "secret")}
    assert options.json


def test_nothing_is_recognised_after_two_dashes() -> None:
    options, rest = split(["push", "--", "--json", "-p"])

    assert rest == ["push", "--json", "-p"]
    assert not options.json


@pytest.mark.parametrize("command", [["pull", "q"], ["job", "wait", "1"]])
def test_t_is_the_time_out_of_commands_that_have_one(command: list[str]) -> None:
    options, rest = split([*command, "-t", "5"])

    assert rest == [*command, "-t", "5"]
    assert options.given == {}


def test_an_attached_short_value_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    _, rest = split(["ping", "-p17789"])

    assert rest == ["ping", "-p17789"]
    assert capsys.readouterr().err == (
        'Warning: "-p17789" looks like a short flag with an attached value; '
        'use the separated form ("-p 17789") or the long form.\n'
    )


@pytest.mark.parametrize(
    ("arguments", "environ", "endpoint"),
    [
        ([], {}, ("localhost", 6789)),
        ([], {"BQ_HOST": "c", "BUNQUEUE_HOST": "b", "BQ_TCP_PORT": "3", "BUNQUEUE_TCP_PORT": "2"}, ("b", 2)),
        ([], {"HOST": "a", "BUNQUEUE_HOST": "b", "TCP_PORT": "1"}, ("a", 1)),
        (["-H", "x", "--port=9"], {"HOST": "a", "TCP_PORT": "1"}, ("x", 9)),
        (["--port="], {"TCP_PORT": "1"}, ("localhost", 1)),
    ],
)
def test_the_endpoint_of_client_commands(
    arguments: list[str], environ: Mapping[str, str], endpoint: tuple[str, int]
) -> None:
    options, _ = split(arguments)

    assert options.endpoint(environ) == endpoint


def test_a_bad_port_of_the_environment_only_warns(capsys: pytest.CaptureFixture[str]) -> None:
    options, _ = split([])

    assert options.endpoint({"BUNQUEUE_TCP_PORT": "tcp://10.0.0.1:6789"}) == ("localhost", 6789)
    assert capsys.readouterr().err == (
        'Warning: Invalid env port "tcp://10.0.0.1:6789" (BUNQUEUE_TCP_PORT: expected a whole number between 1 and '
        "65535). Using 6789.\n"
    )


def test_a_bad_port_option_of_a_client_command_is_fatal(bunqueue: Call) -> None:
    outcome = bunqueue("version", "-p", "abc")

    assert outcome.code == 1
    assert outcome.err == 'Fatal error: Invalid -p: "abc" (expected a whole number between 1 and 65535)\n'


def test_version_command_without_a_server(bunqueue: Call) -> None:
    outcome = bunqueue("version", "-p", "1")

    assert outcome.code == 0
    assert outcome.out == f"Client: bunqueue v{__version__}\nServer: not reachable (localhost:2)\n"
    assert json.loads(bunqueue("version", "-p", "1", "--json").out) == {
        "ok": True,
        "client": {"name": "bunqueue", "version": __version__},
        "server": {"endpoint": "localhost:2", "reachable": False},
        "mismatch": False,
    }


class _Stream:
    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "environ", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "0"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True),
        (True, {"FORCE_COLOR": "0"}, False),
    ],
)
def test_colour_policy(terminal: bool, environ: dict[str, str], coloured: bool) -> None:
    stream: IO[str] | Any = _Stream(terminal)

    assert use_colour(stream, environ) is coloured


def test_plugins_are_listed(bunqueue: Call) -> None:
    os.environ["BUNQUEUE_PLUGINS"] = "s3"

    outcome = bunqueue("plugins")
    document = json.loads(bunqueue("plugins", "--json").out)

    assert "core  bunqueue-core" in outcome.out
    assert "storage driver memory" in outcome.out
    assert [plugin["name"] for plugin in document["plugins"]] == ["core", "s3"]
    assert document["plugins"][1]["provides"] == ["backup target s3"]


def test_a_configuration_is_checked(bunqueue: Call) -> None:
    good = bunqueue("config", "check")
    os.environ["TCP_PORT"] = "many"
    bad = bunqueue("config", "check")

    assert (good.code, bad.code) == (0, 1)
    assert good.out.startswith("The configuration is valid")
    assert bad.err == 'Fatal error: Invalid TCP_PORT: "many" (expected a whole number between 0 and 65535)\n'


def test_a_configuration_is_shown_with_sources(bunqueue: Call) -> None:
    os.environ["TCP_PORT"] = "7"
    os.environ["AUTH_TOKENS"] = "correct-horse"

    lines = bunqueue("config", "show", "--sources").out.splitlines()
    document = json.loads(bunqueue("config", "show", "--sources", "--json").out)

    assert any(line.split() == ["server.tcpPort", "7", "environment", "TCP_PORT"] for line in lines)
    assert document["settings"]["auth.tokens"] == {"value": ["***"], "source": "environment AUTH_TOKENS"}
    assert "correct-horse" not in "\n".join(lines)
