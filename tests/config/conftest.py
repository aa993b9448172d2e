"""Fixtures of the configuration tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from config_standins import Resolve, StandIns

from bunqueue_core.config import Resolution, resolve
from bunqueue_core.plugins import PluginManager


@pytest.fixture(scope="session")
def plugins() -> PluginManager:
    """The core's own plugin and the stand-ins."""
    return PluginManager({"stand-ins": StandIns()}, entry_points=[])


@pytest.fixture
def resolved(plugins: PluginManager) -> Resolve:
    def run(
        file: Any = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
    ) -> Resolution:
        return resolve(plugins, file=file, environ=environ, flags=flags)

    return run
