"""Servers in the test's own event loop, on free ports, over the memory driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fixtures.inprocess_server import Running, Serve
from fixtures.scripted_broker import Sink
from fixtures.tls_files import TlsFiles, make_tls_files

from bunqueue_core.config.settings import Settings
from bunqueue_core.logging import Logger
from bunqueue_core.plugins.manager import PluginManager
from bunqueue_core.server.lifecycle import Server


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
