"""Fixtures of the tests of events."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from event_standins import HookServer


@pytest.fixture
async def server() -> AsyncIterator[HookServer]:
    """A running HTTP server for webhooks."""
    server = HookServer()
    await server.start()
    yield server
    await server.stop()
