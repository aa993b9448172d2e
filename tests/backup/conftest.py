"""A bench for each test: a database with jobs, and a target in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.backups import Bench, make_database


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with 20 jobs, to be copied."""
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    make_database(path, 20)
    return path


@pytest.fixture
def bench(tmp_path: Path, template: Path) -> Bench:
    return Bench(tmp_path, template)
