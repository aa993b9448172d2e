"""How values are read, and the texts that refuse them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from config_standins import Resolve


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6789", 6789),
        (" 6789 ", 6789),
        ("+6789", 6789),
        ("6789.0", 6789),
        ("1500.9", 1500),
        ("5000ms", 5000),
        ("5000 MS", 5000),
        ("60000 # one minute", 60000),
        ("60000ms# one minute", 60000),
        ("007", 7),
    ],
)
def test_numbers_of_the_environment(resolved: Resolve, text: str, expected: int) -> None:
    assert resolved(environ={"STATS_INTERVAL_MS": text}).require().timeouts.stats == expected


@pytest.mark.parametrize(
    "text", ["30s", "5m", "1e12", "0x10", "6789abc", "abc", "1_000", "--1", "1,000", "1 2", "٣", "0", "-5"]
)
def test_misread_numbers_are_refused_by_name_value_and_bound(resolved: Resolve, text: str) -> None:
    resolution = resolved(environ={"STATS_INTERVAL_MS": text})

    assert resolution.problems == (
        f'Invalid STATS_INTERVAL_MS: "{text}" (expected a whole number of milliseconds >= 1)',
    )


def test_a_unit_belongs_to_its_own_kind_of_number(resolved: Resolve) -> None:
    assert resolved(environ={"MEMORY_WARNING_MB": "512 MB"}).require().monitoring.memory_warning_mb == 512
    assert resolved(environ={"TCP_PORT": "6789ms"}).problems == (
        'Invalid TCP_PORT: "6789ms" (expected a whole number between 0 and 65535)',
    )


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("TCP_PORT", "70000", "a whole number between 0 and 65535"),
        ("METRICS_MAX_QUEUES", "-1", "a whole number >= 0"),
        ("TCP_MAX_WRITE_QUEUE_BYTES", "x", "a whole number of bytes >= 0"),
        ("RATE_LIMIT_MAX_REQUESTS", "0", "a whole number >= 1"),
        ("SHUTDOWN_TIMEOUT_MS", "-1", "a whole number of milliseconds >= 0"),
        ("SHUTDOWN_TIMEOUT_MS", "9007199254740992", "a whole number of milliseconds between 0 and 9007199254740991"),
        ("SHUTDOWN_TIMEOUT_MS", "9" * 5000, "a whole number of milliseconds between 0 and 9007199254740991"),
        ("WORKER_TIMEOUT_MS", "0", "a whole number of milliseconds >= 1"),
        ("LOCK_TIMEOUT_MS", "0", "a whole number of milliseconds >= 1"),
        ("WEBHOOK_MAX_RETRIES", "0", "a whole number >= 1"),
    ],
)
def test_values_out_of_range_stop_the_start(resolved: Resolve, variable: str, text: str, expected: str) -> None:
    assert resolved(environ={variable: text}).problems == (f'Invalid {variable}: "{text}" (expected {expected})',)


@pytest.mark.parametrize(
    ("section", "key", "value", "problem"),
    [
        ("timeouts", "stats", 0, "timeouts.stats must be a finite number of milliseconds >= 1 (got 0)"),
        ("timeouts", "stats", float("nan"), "timeouts.stats must be a finite number of milliseconds >= 1 (got NaN)"),
        ("timeouts", "stats", True, "timeouts.stats must be a finite number of milliseconds >= 1 (got true)"),
        ("timeouts", "stats", [1], "timeouts.stats must be a finite number of milliseconds >= 1 (got an array)"),
        ("timeouts", "stats", {}, "timeouts.stats must be a finite number of milliseconds >= 1 (got an object)"),
        ("timeouts", "stats", 1e20, "timeouts.stats must be at most 9007199254740991 (got 1e+20)"),
        ("server", "tcpPort", "x", 'server.tcpPort must be a finite number between 0 and 65535 (got "x")'),
        (
            "telemetry",
            "maxPrometheusQueues",
            "9",
            'telemetry.maxPrometheusQueues must be a finite number >= 0 (got "9")',
        ),
        ("server", "host", 5, "server.host must be a string (got 5)"),
        ("server", "host", "", 'server.host: string should have at least 1 character (got "")'),
        ("auth", "requireAuthForMetrics", "yes", 'auth.requireAuthForMetrics must be true or false (got "yes")'),
        ("auth", "tokens", "secret", "auth.tokens must be an array of strings (got a string)"),
        ("auth", "tokens", [""], 'auth.tokens[0] must not be empty or whitespace-only (got "")'),
        ("auth", "tokens", ["a", 5], "auth.tokens[1] must be a non-empty string (got 5)"),
        ("auth", "tokens", [None], "auth.tokens[0] must be a non-empty string (got null)"),
        ("logging", "level", "loud", 'logging.level must be one of "debug", "info", "warn", "error" (got "loud")'),
        ("logging", "format", 1, 'logging.format must be one of "text", "json" (got 1)'),
        ("events", "sinks", "file", 'events.sinks must be an array of tables (got "file")'),
        ("events", "sinks", [5], "events.sinks[0] must be a table, or a sink's name (got 5)"),
        ("events", "sinks", [{"path": "x"}], "events.sinks[0].type must be a sink's name (got null)"),
    ],
)
def test_a_files_values_are_refused_by_key_value_and_bound(
    resolved: Resolve, section: str, key: str, value: Any, problem: str
) -> None:
    assert resolved({section: {key: value}}).problems == (problem,)


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("timeouts", "stats", 1500.9, 1500),
        ("timeouts", "stats", "5000ms", 5000),
        ("timeouts", "stats", timedelta(seconds=2), 2000),
        ("server", "tcpPort", "7000", 7000),
        ("logging", "level", "'WARNING'", "warn"),
        ("logging", "level", "trace", "debug"),
        ("logging", "level", "Critical", "error"),
        ("auth", "tokens", [" a "], ("a",)),
        ("cors", "origins", "https://x, https://y", ("https://x", "https://y")),
        (
            "events",
            "sinks",
            ["ndjson", {"type": "kafka", "topic": "t"}],
            ({"type": "ndjson"}, {"type": "kafka", "topic": "t"}),
        ),
    ],
)
def test_a_files_values_that_are_accepted(resolved: Resolve, section: str, key: str, value: Any, expected: Any) -> None:
    settings = resolved({section: {key: value}}).require()

    by_key = getattr(settings, section).model_dump(by_alias=True)
    assert by_key[key] == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("TRUE", True), (" on ", True), ("No", False), ("0", False)]
)
def test_booleans_of_the_environment(resolved: Resolve, text: str, expected: bool) -> None:
    settings = resolved(environ={"METRICS_AUTH": text, "AUTH_TOKENS": "a"}).require()

    assert settings.auth.require_auth_for_metrics is expected


def test_an_unknown_boolean_is_refused(resolved: Resolve) -> None:
    assert resolved(environ={"METRICS_AUTH": "enabled"}).problems == (
        'Invalid METRICS_AUTH: "enabled" (expected one of 1, 0, true, false, yes, no, on, off)',
    )


def test_an_unknown_level_in_the_environment_is_refused(resolved: Resolve) -> None:
    assert resolved(environ={"LOG_LEVEL": "loud"}).problems == (
        'Invalid LOG_LEVEL: "loud" (expected one of debug, info, warn, error)',
    )


@pytest.mark.parametrize("name", ["AUTH_TOKENS", "--auth-tokens"])
def test_a_list_of_tokens_without_a_token_is_refused(resolved: Resolve, name: str) -> None:
    given = {name: " , "}

    resolution = resolved(flags=given) if name.startswith("-") else resolved(environ=given)

    assert resolution.problems == (f'Invalid {name}: " , " (expected a comma-separated list of non-empty tokens)',)


def test_blank_origins_are_dropped_with_a_warning(resolved: Resolve) -> None:
    resolution = resolved({"cors": {"origins": ["https://x", "", None]}})

    assert resolution.require().cors.origins == ("https://x",)
    assert resolution.warnings == ("cors.origins[1] is empty and is ignored", "cors.origins[2] is empty and is ignored")


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--tcp-port", "a whole number between 0 and 65535"),
        ("--completed-retention-ms", "a whole number of milliseconds >= 0"),
        ("--data-path", "a path"),
        ("--tls-cert", "a path"),
        ("--auth-tokens", "a comma-separated list of non-empty tokens"),
    ],
)
def test_a_flag_without_a_value_is_refused(resolved: Resolve, flag: str, expected: str) -> None:
    resolution = resolved({"storage": {"driver": "sqlite", "dataPath": "x"}}, flags={flag: ""})

    assert f"Invalid {flag}: missing value (expected {expected})" in resolution.problems


def test_the_request_limit_is_off_unless_it_is_configured(resolved: Resolve) -> None:
    assert resolved().require().limits.rate_limit is None
    assert resolved(environ={"RATE_LIMIT_WINDOW_MS": "1000"}).require().limits.rate_limit is None
    both = {"RATE_LIMIT_WINDOW_MS": "1000", "RATE_LIMIT_MAX_REQUESTS": "5"}
    assert resolved(environ=both).require().limits.rate_limit == (5, 1000)
    assert resolved(environ={**both, "RATE_LIMIT_WINDOW_MS": "0"}).require().limits.rate_limit is None


def test_a_secret_is_never_part_of_a_problem(resolved: Resolve) -> None:
    password = "correct-horse"
    resolution = resolved(
        {"auth": {"tokens": [password, 5]}, "storage": {"driver": "postgres", "url": f"mysql://u:{password}@h/db"}}
    )

    assert len(resolution.problems) == 2
    assert password not in "\n".join([*resolution.problems, *resolution.warnings])
