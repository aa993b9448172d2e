"""What ``bunqueue_core`` offers, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bunqueue_core
import bunqueue_core.asyncio
import bunqueue_core.client


@pytest.mark.parametrize("name", [name for name in bunqueue_core.__all__ if not name.startswith("_")])
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(bunqueue_core, name).__module__.startswith("bunqueue_core.")
    assert name in dir(bunqueue_core)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Queu'"):
        _ = bunqueue_core.Queu  # type: ignore[attr-defined]


def test_the_clients_of_both_worlds_are_public_under_the_same_names() -> None:
    assert set(bunqueue_core.client.__all__) == set(bunqueue_core.asyncio.__all__)
    assert set(bunqueue_core.client.__all__) <= set(bunqueue_core.__all__)


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import bunqueue_core", ["asyncio", "msgpack", "pluggy", "pydantic"]),
        ("from bunqueue_core import Queue", ["pluggy", "starlette", "uvicorn", "apsw", "psycopg", "click", "rich"]),
        ("import bunqueue_core.cli.app", ["pluggy", "pydantic", "starlette", "uvicorn", "apsw", "psycopg", "rich"]),
    ],
)
def test_importing_loads_no_more_than_is_used(statement: str, unwanted: list[str]) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {unwanted!r} if name in sys.modules])"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout == "[]\n"
