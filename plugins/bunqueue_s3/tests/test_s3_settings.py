"""The settings of the target ``s3``: where they come from and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bunqueue_s3 import S3Backup, plugin
from bunqueue_s3.settings import S3Backup as Settings
from pydantic import ValidationError

from bunqueue_core.plugins import PluginManager

SECRET = "correct-horse"


def test_the_plugin_registers_the_target() -> None:
    plugins = PluginManager({"s3": plugin}, entry_points=[])

    assert plugins.target("s3").settings is S3Backup


def test_defaults() -> None:
    assert Settings(bucket="b").model_dump() == {
        "bucket": "b",
        "access_key_id": None,
        "secret_access_key": None,
        "session_token": None,
        "endpoint": None,
        "region": "us-east-1",
        "virtual_hosted_style": None,
        "prefix": "backups/",
    }


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"bucket": " "}, "S3_BUCKET is required (set backup.bucket, S3_BUCKET or AWS_BUCKET)"),
        ({"bucket": "b", "access_key_id": "k"}, "S3_SECRET_ACCESS_KEY is required"),
        ({"bucket": "b", "secret_access_key": SECRET}, "S3_ACCESS_KEY_ID is required"),
        ({"bucket": "b", "session_token": SECRET}, "S3_ACCESS_KEY_ID is required"),
        ({"bucket": "b", "endpoint": "s3.example.net"}, "backup.endpoint must be an http or https URL"),
        ({"bucket": "b", "endpoint": f"https://u:{SECRET}@h"}, "backup.endpoint must not contain credentials"),
    ],
)
def test_what_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(given)

    assert text in str(caught.value)
    assert SECRET not in str(caught.value)


def test_without_keys_the_usual_chain_is_used() -> None:
    settings = Settings(bucket="b", access_key_id="", secret_access_key="")

    assert settings.access_key_id is None
    assert settings.secret_access_key is None


def test_secrets_are_not_part_of_the_representation() -> None:
    settings = Settings(bucket="b", access_key_id="k", secret_access_key=SECRET, session_token=SECRET)

    assert SECRET not in repr(settings)


def test_the_target_is_opened_without_contacting_it() -> None:
    target = PluginManager({"s3": plugin}, entry_points=[]).target("s3")

    store = target.open(Settings(bucket="b", prefix="mine/"), None)  # type: ignore[arg-type]

    assert store.prefix == "mine/"
    store.close()


@pytest.mark.parametrize(
    ("endpoint", "shown"), [(None, "AWS S3"), ("https://s3.example.net", "https://s3.example.net")]
)
def test_people_are_told_where_backups_go(endpoint: str | None, shown: str) -> None:
    target = PluginManager({"s3": plugin}, entry_points=[]).target("s3")

    assert target.label == "S3"
    assert target.describe(Settings(bucket="b", endpoint=endpoint)) == {"bucket": "b", "endpoint": shown}


def test_registering_it_does_not_load_what_it_stands_on() -> None:
    code = "from bunqueue_s3 import plugin; plugin.bunqueue_backup_targets(); import sys; print('s3fs' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout == "False\n"
