"""The two worlds are one: every twin is what its source gives, and both show the same names, arguments and words."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bunqueue_core.asyncio
import bunqueue_core.client

ROOT = Path(__file__).parents[2]


def test_twins_are_fresh() -> None:
    check = subprocess.run(
        [sys.executable, "tools/async_to_sync.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


def test_both_packages_export_the_same_names() -> None:
    assert sorted(bunqueue_core.asyncio.__all__) == sorted(bunqueue_core.client.__all__)


def public_members(kind: type) -> dict[str, Any]:
    """Public attributes of a class, with the special methods of context managers under one name."""
    members = {name: value for name, value in inspect.getmembers_static(kind) if not name.startswith("_")}
    members["with"] = getattr(kind, "__enter__", None) or getattr(kind, "__aenter__", None)
    return members


@pytest.mark.parametrize("name", sorted(bunqueue_core.client.__all__))
def test_both_worlds_offer_the_same(name: str) -> None:
    ours, theirs = getattr(bunqueue_core.client, name), getattr(bunqueue_core.asyncio, name)
    assert inspect.getdoc(ours) == inspect.getdoc(theirs)
    if ours is theirs or not inspect.isclass(ours):
        return
    sync, aio = public_members(ours), public_members(theirs)
    assert sync.keys() == aio.keys()
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    for member, value in sync.items():
        other = aio[member]
        assert type(value) is type(other) or (callable(value) and callable(other)), member
        assert inspect.getdoc(value) == inspect.getdoc(other), member
        if inspect.isfunction(value):
            assert str(inspect.signature(value)) == str(inspect.signature(other)), member
            assert not inspect.iscoroutinefunction(value), member
