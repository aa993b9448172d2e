"""Which storage driver is chosen, and which combinations are refused."""

from __future__ import annotations

from typing import Any

import pytest
from config_standins import DatabaseStorage, FileStorage, Resolve

from bunqueue_core.config import resolve
from bunqueue_core.plugins import PluginManager

URL = "postgres://db/jobs"


@pytest.mark.parametrize(
    ("storage", "environ", "flags", "driver"),
    [
        ({}, {}, {}, "memory"),
        ({"driver": "memory"}, {"BUNQUEUE_STORAGE_DRIVER": "sqlite", "DATA_PATH": "x"}, {}, "memory"),
        ({"driver": "sqlite", "dataPath": "x"}, {"BUNQUEUE_STORAGE_DRIVER": "postgres"}, {}, "sqlite"),
        ({"driver": "sqlite"}, {"DATA_PATH": "x"}, {}, "sqlite"),
        ({"url": URL}, {}, {}, "postgres"),
        ({"dataPath": "x"}, {}, {}, "sqlite"),
        ({}, {}, {"--data-path": "x"}, "sqlite"),
        ({"dataPath": "x"}, {"BUNQUEUE_STORAGE_DRIVER": "memory"}, {}, "sqlite"),
        ({}, {"BUNQUEUE_STORAGE_DRIVER": "memory", "BUNQUEUE_POSTGRES_URL": URL}, {}, "memory"),
        ({}, {"BUNQUEUE_STORAGE_DRIVER": "sqlite", "BUNQUEUE_POSTGRES_URL": URL, "DATA_PATH": "x"}, {}, "sqlite"),
        ({}, {"BUNQUEUE_POSTGRES_URL": URL}, {}, "postgres"),
        ({}, {"DATA_PATH": "x"}, {}, "sqlite"),
        ({}, {"BUNQUEUE_STORAGE_DRIVER": "", "DATA_PATH": "x"}, {}, "sqlite"),
        ({"dataPath": ""}, {"DATA_PATH": "x"}, {}, "memory"),
    ],
)
def test_the_driver_is_chosen_by_the_documented_order(
    resolved: Resolve, storage: dict[str, Any], environ: dict[str, str], flags: dict[str, str], driver: str
) -> None:
    assert resolved({"storage": storage}, environ, flags).require().storage.driver == driver


@pytest.mark.parametrize(
    ("storage", "environ", "flags"),
    [
        ({"driver": "postgres", "url": URL}, {"DATA_PATH": "x"}, {}),
        ({"driver": "postgres", "url": URL, "dataPath": "x"}, {}, {}),
        ({"driver": "sqlite", "url": URL, "dataPath": "x"}, {}, {}),
        ({"url": URL, "dataPath": "x"}, {}, {}),
        ({"url": URL}, {}, {"--data-path": "x"}),
        ({}, {"BUNQUEUE_POSTGRES_URL": URL, "DATA_PATH": "x"}, {}),
        ({}, {"BUNQUEUE_STORAGE_DRIVER": "postgres", "BUNQUEUE_POSTGRES_URL": URL, "DATA_PATH": "x"}, {}),
        ({}, {"BUNQUEUE_STORAGE_DRIVER": "postgres", "BUNQUEUE_POSTGRES_URL": URL}, {"--data-path": "x"}),
        ({"dataPath": "x"}, {"BUNQUEUE_POSTGRES_URL": URL}, {}),
    ],
)
def test_postgresql_beside_a_data_path_is_refused(
    resolved: Resolve, storage: dict[str, Any], environ: dict[str, str], flags: dict[str, str]
) -> None:
    conflicts = resolved({"storage": storage}, environ, flags).conflicts

    assert len(conflicts) == 1
    assert conflicts[0].startswith("PostgreSQL storage cannot be combined with SQLite dataPath configuration.")


def test_the_refusal_says_what_to_remove(resolved: Resolve) -> None:
    conflicts = resolved(environ={"BUNQUEUE_POSTGRES_URL": URL}, flags={"--data-path": "x"}).conflicts

    assert conflicts[0].endswith("Remove --data-path or BUNQUEUE_POSTGRES_URL.")


@pytest.mark.parametrize(
    ("storage", "environ", "warning"),
    [
        (
            {"driver": "sqlite", "dataPath": "x"},
            {"BUNQUEUE_POSTGRES_URL": URL},
            "BUNQUEUE_POSTGRES_URL is ignored: storage.driver chooses SQLite; remove it, or choose postgres there",
        ),
        (
            {},
            {"BUNQUEUE_STORAGE_DRIVER": "sqlite", "BUNQUEUE_POSTGRES_URL": URL, "DATA_PATH": "x"},
            "BUNQUEUE_POSTGRES_URL is ignored: BUNQUEUE_STORAGE_DRIVER chooses SQLite; remove it, or choose postgres there",
        ),
        (
            {"driver": "sqlite", "dataPath": "x"},
            {"BUNQUEUE_STORAGE_DRIVER": "postgres"},
            "BUNQUEUE_STORAGE_DRIVER=postgres is ignored: storage.driver chooses SQLite",
        ),
    ],
)
def test_a_variable_that_asks_for_another_driver_is_not_passed_over_in_silence(
    resolved: Resolve, storage: dict[str, Any], environ: dict[str, str], warning: str
) -> None:
    assert warning in resolved({"storage": storage}, environ).warnings


def test_what_a_driver_cannot_do_without(resolved: Resolve) -> None:
    assert resolved({"storage": {"driver": "sqlite"}}).conflicts == (
        "SQLite storage requires storage.dataPath or BUNQUEUE_DATA_PATH.",
    )
    assert resolved({"storage": {"driver": "postgres"}}).conflicts == (
        "PostgreSQL storage requires storage.url or BUNQUEUE_POSTGRES_URL.",
    )
    assert resolved(environ={"BUNQUEUE_STORAGE_DRIVER": "sqlite", "BUNQUEUE_DATA_PATH": ""}).conflicts == (
        "SQLite storage requires storage.dataPath or BUNQUEUE_DATA_PATH.",
    )


@pytest.mark.parametrize(
    ("file", "environ", "problem"),
    [
        (
            {"driver": "foo"},
            {},
            "Unsupported storage driver: foo (storage.driver; installed: memory, postgres, sqlite)",
        ),
        (
            {},
            {"BUNQUEUE_STORAGE_DRIVER": "mysql"},
            "Unsupported storage driver: mysql (BUNQUEUE_STORAGE_DRIVER; installed: memory, postgres, sqlite)",
        ),
        ({"driver": 5}, {}, 'storage.driver must be one of "memory", "sqlite", "postgres" (got 5)'),
    ],
)
def test_an_unknown_driver_is_refused_with_those_there_are(
    resolved: Resolve, file: dict[str, Any], environ: dict[str, str], problem: str
) -> None:
    assert resolved({"storage": file}, environ).problems == (problem,)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        (
            {"DATA_PATH": "x"},
            "Unsupported storage driver: sqlite (DATA_PATH; installed: memory; install it with: pip install bunqueue-sqlite)",
        ),
        (
            {"BUNQUEUE_POSTGRES_URL": URL},
            "Unsupported storage driver: postgres (BUNQUEUE_POSTGRES_URL; installed: memory; "
            "install it with: pip install bunqueue-postgres)",
        ),
    ],
)
def test_a_missing_driver_is_never_replaced_by_memory(environ: dict[str, str], problem: str) -> None:
    bare = PluginManager(entry_points=[])

    assert resolve(bare, environ=environ).problems == (problem,)


def test_settings_of_another_driver_only_warn(resolved: Resolve) -> None:
    resolution = resolved(
        {"storage": {"driver": "sqlite", "dataPath": "x", "poolSize": "many"}},
        {"BUNQUEUE_POSTGRES_LEASE_DURATION_MS": "0"},
    )

    assert isinstance(resolution.require().storage, FileStorage)
    assert resolution.warnings == (
        "storage.poolSize is ignored: the server does not use PostgreSQL",
        'Invalid BUNQUEUE_POSTGRES_LEASE_DURATION_MS: "0" (expected a whole number of milliseconds >= 1); '
        "ignored: the server does not use PostgreSQL",
    )


@pytest.mark.parametrize(
    ("storage", "environ", "flags", "ignored"),
    [
        ({"driver": "memory", "dataPath": "x"}, {}, {}, "storage.dataPath"),
        ({"driver": "memory"}, {"DATA_PATH": "x"}, {}, "DATA_PATH"),
        ({"driver": "memory"}, {}, {"--data-path": "x"}, "--data-path"),
    ],
)
def test_memory_ignores_a_data_path_and_says_so(
    resolved: Resolve, storage: dict[str, Any], environ: dict[str, str], flags: dict[str, str], ignored: str
) -> None:
    resolution = resolved({"storage": storage}, environ, flags)

    assert resolution.require().storage.driver == "memory"
    assert resolution.warnings == (f"{ignored} is ignored: the server does not use SQLite",)


def test_a_drivers_own_check_names_setting_and_source(resolved: Resolve) -> None:
    assert resolved(
        environ={"BUNQUEUE_POSTGRES_URL": "mysql://db", "BUNQUEUE_STORAGE_DRIVER": "postgres"}
    ).problems == (
        "PostgreSQL storage requires a postgres:// or postgresql:// URL (storage.url, from BUNQUEUE_POSTGRES_URL)",
    )


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (
            "statementTimeoutMs",
            0,
            "storage.statementTimeoutMs must be a finite number of milliseconds between 1 and 2147483647 (got 0)",
        ),
        ("leaseDurationMs", 0, "storage.leaseDurationMs must be a finite number of milliseconds >= 1 (got 0)"),
        ("leaseDurationMs", 1e20, "storage.leaseDurationMs must be at most 9007199254740991 (got 1e+20)"),
        ("poolSize", 0, "storage.poolSize must be a finite number >= 1 (got 0)"),
        ("maxSnapshotPayloadBytes", 0, "storage.maxSnapshotPayloadBytes must be a finite number of bytes >= 1 (got 0)"),
        ("namespace", 5, "storage.namespace must be a string (got 5)"),
    ],
)
def test_a_drivers_bounds_are_checked_by_the_same_grammar(
    resolved: Resolve, key: str, value: Any, problem: str
) -> None:
    assert resolved({"storage": {"url": URL, key: value}}).problems == (problem,)


def test_a_typed_driver_is_used_as_it_is(resolved: Resolve) -> None:
    storage = DatabaseStorage.model_validate({"url": URL, "pool_size": 9})

    assert resolved({"storage": storage}).require().storage == storage


def test_retention_that_cannot_be_read_never_deletes_at_once(resolved: Resolve) -> None:
    for value in (-1, float("inf"), "soon", True):
        resolution = resolved({"storage": {"dataPath": "x", "completedRetentionMs": value}})
        assert resolution.settings is None
        assert resolution.problems[0].startswith(
            "storage.completedRetentionMs must be a finite number of milliseconds >= 0"
        )
