"""The examples of configuration files are valid with the installed plugins."""

from __future__ import annotations

from pathlib import Path

from bunqueue_core.config import load_settings
from bunqueue_core.plugins import PluginManager

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "configuration"


def test_the_python_example() -> None:
    settings = load_settings(PluginManager(), path=EXAMPLES / "bunqueue.config.py", environ={})

    assert settings.storage.driver == "sqlite"
    assert settings.limits.rate_limit == (10_000, 60_000)
    assert settings.timeouts.shutdown == 20_000


def test_the_toml_example() -> None:
    settings = load_settings(
        PluginManager(),
        path=EXAMPLES / "bunqueue.config.toml",
        environ={"BUNQUEUE_POSTGRES_URL": "postgres://bunqueue:secret@db/jobs"},
    )

    assert settings.storage.driver == "postgres"
    assert settings.cors.origins == ("https://dashboard.example.com",)
