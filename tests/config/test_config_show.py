"""Values for people: complete, with their sources, without secrets."""

from __future__ import annotations

import json

from config_standins import Resolve

from bunqueue_core.config.show import MASK, rows

SECRET = "correct-horse"


def test_every_setting_is_shown_with_its_source(resolved: Resolve) -> None:
    resolution = resolved({"timeouts": {"stats": 5}}, {"TCP_PORT": "7"}, {"--data-path": "jobs.db"})

    shown = {key: (value, origin) for key, value, origin in rows(resolution)}

    assert shown["server.tcpPort"] == (7, "environment TCP_PORT")
    assert shown["timeouts.stats"] == (5, "file")
    assert shown["storage.dataPath"] == ("jobs.db", "flag --data-path")
    assert shown["storage.driver"] == ("sqlite", "flag --data-path")
    assert shown["logging.level"] == ("info", "default")


def test_secrets_are_masked(resolved: Resolve) -> None:
    resolution = resolved(
        {
            "auth": {"tokens": [SECRET, "other"]},
            "storage": {"dataPath": "x"},
            "backup": {
                "enabled": True,
                "bucket": "b",
                "secretAccessKey": SECRET,
                "endpoint": f"https://user:{SECRET}/x@host/path?token={SECRET}&a=1",
            },
            "events": {"sinks": [{"type": "kafka", "password": SECRET, "urls": [f"kafka://u:{SECRET}@h"]}]},
        }
    )

    shown = {key: value for key, value, _ in rows(resolution)}

    assert SECRET not in json.dumps(shown, default=str)
    assert shown["auth.tokens"] == [MASK, MASK]
    assert shown["backup.secretAccessKey"] == MASK
    assert shown["backup.endpoint"] == f"https://user:{MASK}@host/path?token={MASK}&a=1"
    assert shown["events.sinks"] == [{"type": "kafka", "password": MASK, "urls": [f"kafka://u:{MASK}@h"]}]


def test_a_secret_does_not_appear_in_the_settings_representation(resolved: Resolve) -> None:
    settings = resolved({"auth": {"tokens": [SECRET]}, "storage": {"url": f"postgres://u:{SECRET}@h/db"}}).require()

    assert SECRET not in repr(settings)
