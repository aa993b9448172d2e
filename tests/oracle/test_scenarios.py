"""Wire scenarios against our server give the transcripts that were recorded from the reference, or a deliberate difference.

``disabled.json`` names what the server cannot do yet, with its reason: files (``streams``) or scenarios (``push.defaults``).
``overrides/`` holds deliberate differences, ``overrides/memory/`` those of that storage alone; make one with
``replay.py check … --overrides overrides -k NAME --accept "why"``.
"""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import replay
from fixtures.server import ServerProcess, running_server

HERE = Path(__file__).parent
SCENARIOS = replay.load(sorted((HERE / "scenarios").glob("*.py")))
DISABLED: dict[str, str] = json.loads((HERE / "disabled.json").read_text())
OVERRIDES = HERE / "overrides"

#: Scenarios that run at once: each has queues of its own, and most of their time they wait.
AT_ONCE = 6

#: Scenarios that are played before they are asked for. Not all: of several test processes each is asked for a part of them only.
AHEAD = 40

#: For servers that play scenarios: some leave jobs active, for whose ends an orderly stop waits.
ENVIRONMENT = {"SHUTDOWN_TIMEOUT_MS": "500"}

#: Times that a scenario is played again before a difference counts. Scenarios wait for time to pass (a window, a time to live);
#: on a busy machine more of it passes than they meant.
REPEATS = 4


def disabled(name: str) -> str | None:
    """Why a scenario is not enabled yet; None if it is."""
    return DISABLED.get(name) or DISABLED.get(name.split(".")[0])


ENABLED = [name for name in SCENARIOS if disabled(name) is None]


class Transcripts:
    """Transcripts of scenarios, in about this order, played against one server a few at a time."""

    def __init__(self, server: ServerProcess, storage: str, names: list[str]) -> None:
        self.storage = storage
        self._server = server
        self._pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
        self._places = {name: place for place, name in enumerate(names)}
        self._names = names
        self._futures: dict[str, concurrent.futures.Future[list[str]]] = {}

    def play(self, name: str) -> list[str]:
        """Play a scenario now; lines of its transcript."""
        return replay.dump(replay.run_one(SCENARIOS[name], "127.0.0.1", self._server.port, self._server.http_port))

    def again(self, name: str) -> list[str]:
        """Play a scenario by itself."""
        concurrent.futures.wait(self._futures.values())
        return self.play(name)

    def of(self, name: str) -> list[str]:
        """Lines of the transcript of a scenario."""
        place = self._places[name]
        for next_one in self._names[place : place + AHEAD]:
            if next_one not in self._futures:
                self._futures[next_one] = self._pool.submit(self.play, next_one)
        return self._futures[name].result()

    def close(self) -> None:
        """End the threads; what has not begun is not played."""
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def transcripts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transcripts]:
    data_path = tmp_path_factory.mktemp("oracle") / "queue.db" if request.param == "sqlite" else None
    selected: dict[str, None] = {}
    for item in request.session.items:
        callspec: Any = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("transcripts") == request.param:
            selected[callspec.params["name"]] = None
    with running_server(data_path, environment=ENVIRONMENT) as server:
        played = Transcripts(server, request.param, list(selected))
        yield played
        played.close()


@pytest.mark.parametrize("name", ENABLED)
def test_the_transcript_is_the_recorded_one(transcripts: Transcripts, name: str) -> None:
    folder = OVERRIDES / transcripts.storage
    if not (folder / f"{name}.json").exists():
        folder = OVERRIDES
    want, _, _ = replay.expected(name, HERE / "golden", folder)
    difference = replay.difference(want, transcripts.of(name))
    for _ in range(REPEATS):
        if not difference:
            break
        difference = replay.difference(want, transcripts.again(name))
    assert not difference, "\n".join(difference)


def test_every_scenario_has_a_recording() -> None:
    assert {path.stem for path in (HERE / "golden").glob("*.json")} == set(SCENARIOS)


def test_what_is_disabled_exists_and_has_a_reason() -> None:
    known = set(SCENARIOS) | {name.split(".")[0] for name in SCENARIOS}
    assert set(DISABLED) - known == set()
    assert all(DISABLED.values())


def test_deliberate_differences_have_reasons_and_differ() -> None:
    page = (HERE.parents[1] / "docs" / "compatibility.md").read_text()
    for path in OVERRIDES.glob("*.json"):
        assert path.stem in SCENARIOS
        assert f"`{path.stem}`" in page, "docs/compatibility.md lists every deliberate difference"
        assert json.loads(path.read_text())["reason"]
        _, _, stale = replay.expected(path.stem, HERE / "golden", OVERRIDES)
        assert not stale, f"{path.name} equals the recording"
