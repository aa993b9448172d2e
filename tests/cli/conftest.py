"""Runs the command line in this process, in an empty directory and an empty environment."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_call import Call, Outcome

from bunqueue_core.cli.app import run


@pytest.fixture(autouse=True)
def empty_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("BUNQUEUE_PLUGINS", "")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bunqueue(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: str) -> Outcome:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def collector_as_before() -> Iterator[None]:
    """Undo what a started server does to the collector of its process."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    sys.stdout.flush()
