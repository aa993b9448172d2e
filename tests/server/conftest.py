"""Servers in the test's own event loop, on free ports, over the memory driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from fixtures.inprocess_server import Running, Serve
from fixtures.scripted_broker import Sink
from fixtures.tls_files import TlsFiles, make_tls_files

from bunqueue_core.config.settings import Settings
from bunqueue_core.logging import Logger
from bunqueue_core.plugins.manager import PluginManager
from bunqueue_core.server.lifecycle import Server

try:
    import uvloop
except ImportError:
    uvloop = None


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Whatever goes through real sockets runs on each event loop that a server may have."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if uvloop is not None and item.path.name in ("test_tcp_end_to_end.py", "test_lifecycle.py"):
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start servers with sections of settings; they and their clients are closed after the test."""
    running: list[Running] = []

    async def start(**sections: Any) -> Running:
        server_section = {"host": "127.0.0.1", "tcp_port": 0, "http_port": 0, **sections.pop("server", {})}
        sections.setdefault("timeouts", {"shutdown": 0})
        settings = Settings(server=server_section, **sections)
        log = Sink()
        server = Server(settings, PluginManager(entry_points=()), Logger(out=log, err=log))  # type: ignore[arg-type]
        listening = await server.start()
        running.append(Running(server, listening, log))
        return running[-1]

    yield start
    for each in running:
        for wire in each.wires:
            await wire.close()
        await each.server.stop()


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """(certificate, key) for 127.0.0.1."""
    return make_tls_files(tmp_path_factory.mktemp("tls"))
