"""Everything that is wrong is reported, at once, with the mend."""

from __future__ import annotations

import pytest
from config_standins import BucketBackup, Resolve

from bunqueue_core.config import ConfigError, define_config


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ({"server": {"tcpPrt": 1}}, 'Unknown config key "server.tcpPrt"; did you mean "server.tcpPort"?'),
        ({"server": {"tcp_prt": 1}}, 'Unknown config key "server.tcpPrt"; did you mean "server.tcpPort"?'),
        ({"sever": {}}, 'Unknown config key "sever"; did you mean "server"?'),
        ({"tcpPort": 1}, 'Unknown config key "tcpPort"; did you mean "server.tcpPort"?'),
        ({"server": {"tokens": []}}, 'Unknown config key "server.tokens"; did you mean "auth.tokens"?'),
        (
            {"storage": {"driver": "sqlite", "dataPath": "x", "datPath": "y"}},
            'Unknown config key "storage.datPath"; did you mean "storage.dataPath"?',
        ),
        ({"cors": {"zzz": 1}}, 'Unknown config key "cors.zzz" (known: cors.origins)'),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    resolved: Resolve, file: dict[str, object], problem: str
) -> None:
    assert resolved(file).problems == (problem,)


def test_a_section_of_the_wrong_shape_is_refused(resolved: Resolve) -> None:
    assert resolved({"server": 5}).problems == ("server must be an object (got 5)",)
    assert resolved({"server": [1]}).problems == ("server must be an object (got an array)",)


def test_a_key_in_both_spellings_is_refused(resolved: Resolve) -> None:
    assert resolved({"server": {"tcpPort": 1, "tcp_port": 2}}).problems == (
        "server.tcp_port is given twice (also as tcpPort)",
    )


@pytest.mark.parametrize(
    ("section", "key", "variable"),
    [
        ("timeouts", "worker", "WORKER_TIMEOUT_MS"),
        ("timeouts", "lock", "LOCK_TIMEOUT_MS"),
        ("webhooks", "maxRetries", "WEBHOOK_MAX_RETRIES"),
        ("webhooks", "retryDelay", "WEBHOOK_RETRY_DELAY_MS"),
    ],
)
def test_keys_that_never_took_effect_only_warn(resolved: Resolve, section: str, key: str, variable: str) -> None:
    resolution = resolved({section: {key: 5}})

    assert resolution.settings is not None
    assert resolution.warnings == (
        f'Config key "{section}.{key}" is ignored (it never took effect); set {variable} instead',
    )


def test_the_foreign_section_of_existing_files_is_accepted(resolved: Resolve) -> None:
    assert resolved({"cloud": {"url": "x"}}).settings is not None


def test_all_problems_are_reported_at_once(resolved: Resolve) -> None:
    resolution = resolved(
        define_config(
            server={"tcpPrt": 1, "httpPort": 70_000},
            auth={"tokens": ["a", ""]},
            backup={"enabled": True, "interval": 5},
        ),
        {"STATS_INTERVAL_MS": "soon", "TLS_CERT_FILE": "cert.pem"},
        {"--data-path": ""},
    )

    with pytest.raises(ConfigError) as caught:
        resolution.require()

    assert set(caught.value.problems) == {
        'Unknown config key "server.tcpPrt"; did you mean "server.tcpPort"?',
        "server.httpPort must be a finite number between 0 and 65535 (got 70000)",
        'auth.tokens[1] must not be empty or whitespace-only (got "")',
        "backup.interval must be a finite number of milliseconds >= 60000 (got 5)",
        "S3_BUCKET is required (set backup.bucket, S3_BUCKET or AWS_BUCKET)",
        'Invalid STATS_INTERVAL_MS: "soon" (expected a whole number of milliseconds >= 1)',
        "TLS misconfigured: tlsCertFile is set but tlsKeyFile (TLS_KEY_FILE) is missing",
        "S3 backup requires persistent SQLite storage. Set BUNQUEUE_DATA_PATH or storage.dataPath before enabling "
        "S3_BACKUP_ENABLED.",
        "Invalid --data-path: missing value (expected a path)",
    }
    lines = str(caught.value).splitlines()
    assert lines[0] == "Invalid server configuration:"
    assert lines[1:] == [f" - {problem}" for problem in caught.value.problems]


def test_one_problem_stands_alone(resolved: Resolve) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved({"server": {"tcpPort": -1}}).require()

    assert str(caught.value) == "server.tcpPort must be a finite number between 0 and 65535 (got -1)"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tlsCertFile": "c"}, "TLS misconfigured: tlsCertFile is set but tlsKeyFile (TLS_KEY_FILE) is missing"),
        ({"tlsKeyFile": "k"}, "TLS misconfigured: tlsKeyFile is set but tlsCertFile (TLS_CERT_FILE) is missing"),
    ],
)
def test_half_a_tls_pair_is_refused(resolved: Resolve, given: dict[str, str], text: str) -> None:
    assert resolved({"server": given}).conflicts == (text,)


def test_asking_for_a_token_at_the_metrics_without_tokens_warns(resolved: Resolve) -> None:
    resolution = resolved({"auth": {"requireAuthForMetrics": True}})

    assert resolution.warnings == (
        "auth.requireAuthForMetrics is on but no tokens are configured: GET /prometheus will answer 503",
    )


def test_a_backup_needs_a_storage_with_snapshots(resolved: Resolve) -> None:
    expected = (
        "S3 backup requires persistent SQLite storage. Set BUNQUEUE_DATA_PATH or storage.dataPath before enabling "
        "S3_BACKUP_ENABLED."
    )

    assert resolved({"backup": {"enabled": True, "bucket": "b"}}).conflicts == (expected,)
    assert resolved({"backup": {"enabled": True, "bucket": "b"}, "storage": {"url": "postgres://db"}}).conflicts == (
        expected,
    )


def test_a_backup_targets_keys_stand_beside_the_cores(resolved: Resolve) -> None:
    storage = {"dataPath": "x"}
    flat = resolved(
        {"storage": storage, "backup": {"enabled": True, "bucket": "b", "interval": "60000", "prefix": ""}},
        {"AWS_SECRET_ACCESS_KEY": "s", "S3_ENDPOINT": "", "AWS_ENDPOINT": "http://hidden"},
    ).require()
    typed = resolved(
        {
            "storage": storage,
            "backup": {"enabled": True, "interval": 60_000, "store": BucketBackup(bucket="b", prefix="")},
        },
        {"S3_SECRET_ACCESS_KEY": "s"},
    ).require()

    assert flat.backup == typed.backup
    assert flat.backup.store == BucketBackup(bucket="b", secret_access_key="s", prefix="")


def test_settings_of_backups_that_are_off_only_warn(resolved: Resolve) -> None:
    resolution = resolved(environ={"S3_BACKUP_INTERVAL": "5"})

    assert resolution.settings is not None
    assert resolution.warnings == (
        'Invalid S3_BACKUP_INTERVAL: "5" (expected a whole number of milliseconds >= 60000); ignored: backups are off',
    )


def test_an_unknown_backup_target_is_refused(resolved: Resolve) -> None:
    resolution = resolved({"storage": {"dataPath": "x"}, "backup": {"enabled": True, "target": "tape"}})

    assert resolution.problems == ("Unsupported backup target: tape (installed: folder, s3)",)
