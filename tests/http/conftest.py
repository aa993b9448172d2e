"""Servers in the test's own event loop, on free ports, over the memory driver, with clients of their HTTP side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fixtures.http_site import Open, Site

from bunqueue_core.server.http.streams import StreamLimits


@pytest.fixture
async def open_site() -> AsyncIterator[Open]:
    """Start servers with sections of settings; they and their clients are closed after the test."""
    sites: list[Site] = []

    async def start(stream_limits: StreamLimits | None = None, **sections: Any) -> Site:
        site = Site(stream_limits, sections)
        sites.append(site)
        await site.start()
        return site

    yield start
    for site in sites:
        await site.stop()


@pytest.fixture
async def site(open_site: Open) -> Site:
    """A server without tokens."""
    return await open_site()
