"""What all tests share: campaigns run only when they are asked for, and a table of conformance rules ends a run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bunqueue_core.testing.report import pytest_runtest_makereport, pytest_terminal_summary

__all__ = ["pytest_collection_modifyitems", "pytest_runtest_makereport", "pytest_terminal_summary"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out campaigns (``pytest -m campaign`` runs them), unless the caller selects by markers or names one."""
    if config.option.markexpr or config.option.keyword or any("::" in argument for argument in config.args):
        return
    campaigns = [item for item in items if item.get_closest_marker("campaign") is not None]
    if campaigns:
        config.hook.pytest_deselected(items=campaigns)
        items[:] = [item for item in items if item not in campaigns]


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """A variable that one test sets is not there for the next, which may start a server of its own."""
    before = dict(os.environ)
    yield
    if before != dict(os.environ):
        os.environ.clear()
        os.environ.update(before)
