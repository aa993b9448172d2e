"""Waiting for what the broker or the database does by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], patience_s: float = 20.0) -> None:
    """Wait until ``condition()`` (awaited) is true."""
    async with asyncio.timeout(patience_s):
        while not await condition():  # noqa: ASYNC110 - what it waits for is another process's or the database's doing
            await asyncio.sleep(0.02)
