"""What all tests share: campaigns run only when they are asked for, and a table of conformance rules ends a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from bunqueue_core.testing.report import pytest_runtest_makereport, pytest_terminal_summary

__all__ = ["pytest_collection_modifyitems", "pytest_configure", "pytest_runtest_makereport", "pytest_terminal_summary"]


def pytest_configure() -> None:
    """A run in a shell's background ignores Ctrl-C, and so would every program that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
