"""Where client tests find their brokers: in memory, in a file, and behind a server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from client_servers import ScriptedServer
from fixtures.server import running_server

from bunqueue_core.embedded import PATH_VARIABLES, shutdown_manager

_names = itertools.count(1)


#: ``port`` of a server that runs already and takes the place of ours: to check the clients against another implementation.
OTHER_SERVER = "BUNQUEUE_TEST_SERVER_PORT"


@pytest.fixture(scope="session")
def server_port() -> Iterator[int]:
    """The port of one server for all tests; each uses queues of its own."""
    other = os.environ.get(OTHER_SERVER)
    if other is not None:
        yield int(other)
        return
    with running_server() as process:
        yield process.port


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
    return f"client-{os.getpid()}-{next(_names)}"


@pytest.fixture(params=["memory", "sqlite", "server"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Arguments that lead a client to a broker, each way in turn."""
    if request.param == "memory":
        return {"embedded": True}
    if request.param == "sqlite":
        return {"data_path": tmp_path / "jobs.db"}
    return {"host": "127.0.0.1", "port": request.getfixturevalue("server_port")}


@pytest.fixture
def remote(server_port: int) -> dict[str, Any]:
    """Arguments that lead a client to the server."""
    return {"host": "127.0.0.1", "port": server_port}


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
