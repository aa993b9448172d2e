"""Where client tests find their brokers: in memory, in a file, and behind a server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from client_servers import ScriptedServer
from fixtures.server import ServerProcess, running_server

from bunqueue_core.embedded import PATH_VARIABLES, shutdown_manager

_names = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """One server for all tests; each uses queues of its own."""
    with running_server() as process:
        yield process


@pytest.fixture(autouse=True)
def _no_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the environment nor an embedded broker of another test."""
    for name in (*PATH_VARIABLES, "BUNQUEUE_EMBEDDED", "BQ_TOKEN", "BUNQUEUE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield
    shutdown_manager()


@pytest.fixture
def name() -> str:
    """A queue name that no other test uses."""
    return f"client-{next(_names)}"


@pytest.fixture(params=["memory", "sqlite", "server"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Arguments that lead a client to a broker, each way in turn."""
    if request.param == "memory":
        return {"embedded": True}
    if request.param == "sqlite":
        return {"data_path": tmp_path / "jobs.db"}
    process: ServerProcess = request.getfixturevalue("server")
    return {"host": "127.0.0.1", "port": process.port}


@pytest.fixture
def remote(server: ServerProcess) -> dict[str, Any]:
    """Arguments that lead a client to the server."""
    return {"host": "127.0.0.1", "port": server.port}


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedServer]]:
    """Makes servers that answer as a test says."""
    made: list[ScriptedServer] = []

    def make(*arguments: Any, **options: Any) -> ScriptedServer:
        server = ScriptedServer(*arguments, **options)
        made.append(server)
        return server

    yield make
    for server in made:
        server.close()
