"""Which source decides: flags, file, environment, default, and what counts as saying something."""

from __future__ import annotations

import pytest
from config_standins import DatabaseStorage, FileStorage, Resolve

from bunqueue_core.config import AuthSettings, ServerSettings, define_config


@pytest.mark.parametrize(
    ("flags", "file", "environ", "expected", "origin"),
    [
        ({"--tcp-port": "4"}, {"tcpPort": 3}, {"TCP_PORT": "2"}, 4, "flag --tcp-port"),
        ({}, {"tcpPort": 3}, {"TCP_PORT": "2"}, 3, "file"),
        ({}, {"tcp_port": 3}, {"TCP_PORT": "2"}, 3, "file"),
        ({}, {"tcpPort": None}, {"TCP_PORT": "2"}, 2, "environment TCP_PORT"),
        ({}, {}, {"TCP_PORT": "2"}, 2, "environment TCP_PORT"),
        ({}, {}, {"TCP_PORT": ""}, 6789, "default"),
        ({}, {}, {"TCP_PORT": "  "}, 6789, "default"),
        ({}, {}, {}, 6789, "default"),
        ({"-p": "5"}, {"tcpPort": 3}, {}, 5, "flag -p"),
        ({"--tcp-port": "4", "--port": "5"}, {}, {}, 5, "flag --port"),
    ],
)
def test_the_highest_source_that_says_something_decides(
    resolved: Resolve,
    flags: dict[str, str],
    file: dict[str, object],
    environ: dict[str, str],
    expected: int,
    origin: str,
) -> None:
    resolution = resolved({"server": file}, environ, flags)

    assert resolution.require().server.tcp_port == expected
    assert str(resolution.origins["server.tcpPort"]) == origin


def test_zero_false_and_empty_lists_in_a_file_say_something(resolved: Resolve) -> None:
    settings = resolved(
        {
            "server": {"tcpPort": 0},
            "auth": {"tokens": [], "requireAuthForMetrics": False},
            "telemetry": {"maxPrometheusQueues": 0},
        },
        {"TCP_PORT": "7", "AUTH_TOKENS": "a", "METRICS_AUTH": "true", "METRICS_MAX_QUEUES": "9"},
    ).require()

    assert settings.server.tcp_port == 0
    assert settings.auth.tokens == ()
    assert settings.auth.require_auth_for_metrics is False
    assert settings.telemetry.max_prometheus_queues == 0


@pytest.mark.parametrize("empty", [None, {}])
def test_a_section_that_is_absent_null_or_empty_says_nothing(resolved: Resolve, empty: object) -> None:
    assert resolved({"server": empty}, {"TCP_PORT": "7"}).require().server.tcp_port == 7


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"BUNQUEUE_DATA_PATH": "a", "BQ_DATA_PATH": "b", "DATA_PATH": "c", "SQLITE_PATH": "d"}, "a"),
        ({"BQ_DATA_PATH": "b", "DATA_PATH": "c", "SQLITE_PATH": "d"}, "b"),
        ({"DATA_PATH": "c", "SQLITE_PATH": "d"}, "c"),
        ({"SQLITE_PATH": "d"}, "d"),
    ],
)
def test_the_first_alias_that_is_set_decides(resolved: Resolve, environ: dict[str, str], expected: str) -> None:
    storage = resolved(environ=environ).require().storage

    assert isinstance(storage, FileStorage)
    assert storage.data_path == expected


def test_an_empty_variable_hides_its_aliases(resolved: Resolve) -> None:
    settings = resolved(environ={"BUNQUEUE_DATA_PATH": "", "DATA_PATH": "jobs.db"}).require()

    assert settings.storage.driver == "memory"


def test_completed_job_settings_have_aliases_of_their_own(resolved: Resolve) -> None:
    settings = resolved(
        environ={"MAX_COMPLETED_JOBS": "10", "COMPLETED_RETENTION_MS": "20", "DATA_PATH": "jobs.db"}
    ).require()

    assert isinstance(settings.storage, FileStorage)
    assert settings.storage.max_completed_jobs == 10
    assert settings.storage.completed_retention_ms == 20


def test_defaults_of_a_model_instance_do_not_hide_the_environment(resolved: Resolve) -> None:
    config = define_config(
        server=ServerSettings(http_port=8000),
        storage=FileStorage(data_path="jobs.db"),
    )

    settings = resolved(config, {"TCP_PORT": "7", "BUNQUEUE_MAX_COMPLETED_JOBS": "5"}).require()

    assert (settings.server.tcp_port, settings.server.http_port) == (7, 8000)
    assert isinstance(settings.storage, FileStorage)
    assert settings.storage.max_completed_jobs == 5


def test_a_list_in_the_environment_is_separated_by_commas(resolved: Resolve) -> None:
    settings = resolved(environ={"AUTH_TOKENS": " a, b ,,c", "CORS_ALLOW_ORIGIN": "https://x, https://y"}).require()

    assert settings.auth.tokens == ("a", "b", "c")
    assert settings.cors.origins == ("https://x", "https://y")


def test_a_drivers_variables_contain_the_separator_of_their_names(resolved: Resolve) -> None:
    settings = resolved(
        environ={
            "BUNQUEUE_POSTGRES_URL": "postgres://db/jobs",
            "BUNQUEUE_POSTGRES_STATEMENT_TIMEOUT_MS": "1000",
            "BUNQUEUE_POSTGRES_MAX_SNAPSHOT_PAYLOAD_BYTES": "5",
            "BUNQUEUE_BROKER_ID": "broker-a",
        }
    ).require()

    assert isinstance(settings.storage, DatabaseStorage)
    assert settings.storage.statement_timeout_ms == 1000
    assert settings.storage.max_snapshot_payload_bytes == 5
    assert settings.storage.broker_id == "broker-a"


def test_mappings_and_model_instances_say_the_same(resolved: Resolve) -> None:
    typed = define_config(
        server=ServerSettings(tcp_port=7),
        auth=AuthSettings(tokens=("a",)),
        storage=FileStorage(data_path="jobs.db", max_completed_jobs=3),
    )
    snake = define_config(
        server={"tcp_port": 7},
        auth={"tokens": ["a"]},
        storage={"driver": "sqlite", "data_path": "jobs.db", "max_completed_jobs": 3},
    )
    camel = {
        "server": {"tcpPort": 7},
        "auth": {"tokens": ["a"]},
        "storage": {"driver": "sqlite", "dataPath": "jobs.db", "maxCompletedJobs": 3},
    }

    settings = [resolved(config).require().model_dump() for config in (typed, snake, camel)]

    assert settings[0] == settings[1] == settings[2]


def test_defining_a_configuration_checks_nothing(resolved: Resolve) -> None:
    config = define_config(server={"tcp_port": "many"}, storage={"driver": "of stone"})

    assert len(resolved(config).problems) == 2


def test_resolved_settings_cannot_be_changed(resolved: Resolve) -> None:
    settings = resolved().require()

    with pytest.raises(ValueError, match="frozen"):
        settings.server = ServerSettings()
    with pytest.raises(ValueError, match="frozen"):
        settings.server.tcp_port = 1
