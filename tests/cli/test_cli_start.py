"""``bunqueue start``: from the command line to a started server, and every way in which it is refused.

The server itself is replaced by one that listens nowhere; what it was handed is what is tested.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cli_call import Call

from bunqueue_core import __version__
from bunqueue_core.cli.start import GC_THRESHOLDS
from bunqueue_core.config.settings import Listening, Settings
from bunqueue_core.logging import Logger
from bunqueue_core.plugins import PluginManager

pytestmark = pytest.mark.usefixtures("collector_as_before")


@dataclass
class Started:
    """What the server was started with."""

    settings: list[Settings] = field(default_factory=list)
    frozen: int = 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    record = Started()

    async def run_server(
        settings: Settings, plugins: PluginManager, log: Logger, *, announce: Callable[[Listening], None]
    ) -> int:
        record.settings.append(settings)
        storage = plugins.driver(settings.storage.driver).describe(settings.storage)
        announce(Listening(tcp=("127.0.0.1", 41), http=Path("/run/http.sock"), storage=storage))
        record.frozen = gc.get_freeze_count()
        return 7

    module: Any = ModuleType("bunqueue_core.server.lifecycle")
    module.run_server = run_server
    monkeypatch.setitem(sys.modules, "bunqueue_core.server.lifecycle", module)
    return record


@pytest.mark.parametrize("arguments", [[], ["start"], ["--tcp-port", "6789"]])
def test_three_spellings_start_the_same_server(bunqueue: Call, started: Started, arguments: list[str]) -> None:
    outcome = bunqueue(*arguments)

    assert outcome.code == 7
    assert started.settings[0].server.tcp_port == 6789


def test_the_banner_says_where_on_what_and_with_which_plugins(bunqueue: Call, started: Started) -> None:
    lines = [line.strip() for line in bunqueue("start", "--auth-tokens", "secret").out.splitlines() if line]

    assert lines == [
        f"bunqueue v{__version__}",
        "One queue. Any language.",
        "● TCP         127.0.0.1:41",
        "● HTTP        /run/http.sock",
        "● Storage     in-memory · ephemeral",
        "○ S3 Backup   disabled",
        "○ TLS         disabled",
        "● Auth        enabled",
        f"• Plugins     core {__version__}",
    ]


def test_the_banner_is_one_document_when_json_is_asked_for(bunqueue: Call, started: Started) -> None:
    assert json.loads(bunqueue("start", "--json").out) == {
        "ok": True,
        "version": __version__,
        "tcp": "127.0.0.1:41",
        "http": "/run/http.sock",
        "storage": "in-memory · ephemeral",
        "plugins": [f"core {__version__}"],
    }


def test_flags_reach_the_settings(bunqueue: Call, started: Started) -> None:
    bunqueue(
        "start",
        "--tcp-port=0",
        *("--http-port", "8080"),
        *("--host", "127.0.0.1"),
        *("--max-completed-jobs", "10"),
        *("--completed-retention-ms", "20"),
        *("--auth-tokens", "a, b"),
        *("--tls-cert", "cert.pem"),
        *("--tls-key", "key.pem"),
    )
    (settings,) = started.settings

    assert settings.server.model_dump() == {
        "tcp_port": 0,
        "http_port": 8080,
        "host": "127.0.0.1",
        "tcp_socket_path": None,
        "http_socket_path": None,
        "tls_cert_file": "cert.pem",
        "tls_key_file": "key.pem",
    }
    assert settings.auth.tokens == ("a", "b")
    assert settings.storage.model_dump() == {
        "driver": "memory",
        "max_completed_jobs": 10,
        "completed_retention_ms": 20,
    }


@pytest.mark.parametrize("option", ["-c", "--config"])
def test_a_configuration_file_is_read(bunqueue: Call, started: Started, tmp_path: Path, option: str) -> None:
    (tmp_path / "mine.toml").write_text("[server]\ntcpPort = 1\nhttpPort = 2\n")

    bunqueue("start", option, "mine.toml", "--tcp-port", "3")

    assert (started.settings[0].server.tcp_port, started.settings[0].server.http_port) == (3, 2)


def test_global_host_and_port_are_the_servers(bunqueue: Call, started: Started) -> None:
    bunqueue("-p", "7000", "-H", "127.0.0.1")

    assert (started.settings[0].server.tcp_port, started.settings[0].server.host) == (7000, "127.0.0.1")


def test_warnings_go_to_the_log(bunqueue: Call, started: Started) -> None:
    os.environ["METRICS_AUTH"] = "on"

    assert bunqueue("start").err == (
        "[Server] auth.requireAuthForMetrics is on but no tokens are configured: GET /prometheus will answer 503\n"
    )


def test_what_exists_at_start_is_taken_out_of_the_collectors_sight(bunqueue: Call, started: Started) -> None:
    bunqueue("start")

    assert gc.get_threshold() == GC_THRESHOLDS
    assert started.frozen > 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--tcp-port", "abc"], 'Invalid --tcp-port: "abc" (expected a whole number between 0 and 65535)'),
        (["--tcp-port", "-5"], 'Invalid --tcp-port: "-5" (expected a whole number between 0 and 65535)'),
        (["--tcp-port", "70000"], 'Invalid --tcp-port: "70000" (expected a whole number between 0 and 65535)'),
        (["-p", "abc"], 'Invalid -p: "abc" (expected a whole number between 0 and 65535)'),
        (["--port"], "Invalid --port: missing value (expected a whole number between 0 and 65535)"),
        (["--data-path"], "Invalid --data-path: missing value (expected a path)"),
        (["--data-path="], "Invalid --data-path: missing value (expected a path)"),
        (["--config"], "Invalid --config: missing value (expected a path)"),
        (["-c", "--tcp-port", "1"], "Invalid --config: missing value (expected a path)"),
        (["--auth-tokens", ","], 'Invalid --auth-tokens: "," (expected a comma-separated list of non-empty tokens)'),
        (
            ["--max-completed-jobs", "0"],
            'Invalid --max-completed-jobs: "0" (expected a whole number >= 1)',
        ),
        (["--tcp-prot", "1"], "Unknown option: --tcp-prot (did you mean --tcp-port?)"),
        (["--zzz"], "Unknown option: --zzz"),
        (["1"], "Unexpected argument '1'. This command does not take positional arguments"),
        (
            ["--data-path", "x"],
            "Unsupported storage driver: sqlite (--data-path; installed: memory; "
            "install it with: pip install bunqueue-sqlite)",
        ),
    ],
)
def test_what_cannot_be_used_is_fatal(bunqueue: Call, started: Started, arguments: list[str], text: str) -> None:
    outcome = bunqueue("start", *arguments)

    assert (outcome.code, outcome.out, outcome.err) == (1, "", f"Fatal error: {text}\n")
    assert started.settings == []


def test_all_problems_of_the_command_line_are_reported_at_once(bunqueue: Call, started: Started) -> None:
    outcome = bunqueue("start", "--tcp-port", "--http-port", "x")

    assert outcome.err.splitlines() == [
        "Fatal error: Invalid server configuration:",
        " - Invalid --tcp-port: missing value (expected a whole number between 0 and 65535)",
        ' - Invalid --http-port: "x" (expected a whole number between 0 and 65535)',
    ]


def test_errors_are_json_when_json_is_asked_for(bunqueue: Call, started: Started) -> None:
    outcome = bunqueue("start", "--json", "--config", "absent.toml")

    assert outcome.code == 1
    assert json.loads(outcome.err) == {"ok": False, "error": f"Config file not found: {Path.cwd() / 'absent.toml'}"}


def test_settings_that_contradict_each_other_are_said_in_the_log(bunqueue: Call, started: Started) -> None:
    outcome = bunqueue("start", "--tls-cert", "cert.pem")

    assert outcome.code == 1
    assert outcome.err == "[Server] TLS misconfigured: tlsCertFile is set but tlsKeyFile (TLS_KEY_FILE) is missing\n"


def test_a_contradiction_is_a_record_of_a_json_log(bunqueue: Call, started: Started) -> None:
    os.environ["LOG_FORMAT"] = "json"

    outcome = bunqueue("start", "--tls-cert", "cert.pem")

    record = json.loads(outcome.out)
    assert (outcome.code, record["level"], record["component"]) == (1, "error", "Server")
    assert record["message"].startswith("TLS misconfigured")


def test_a_broken_plugin_stops_the_start(bunqueue: Call, started: Started) -> None:
    os.environ["BUNQUEUE_PLUGINS"] = "nothing-of-that-name"

    outcome = bunqueue("start")

    assert outcome.code == 1
    assert outcome.err.startswith(
        'Fatal error: Invalid BUNQUEUE_PLUGINS: "nothing-of-that-name" is not an installed plugin (installed: '
    )
    assert started.settings == []
