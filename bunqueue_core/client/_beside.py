"""Calls that block, from an event loop and from a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


async def abeside(executor: Executor, function: Callable[..., T], *arguments: Any) -> T:
    """Call ``function(*arguments)`` in a thread of ``executor``."""
    return await asyncio.get_running_loop().run_in_executor(executor, lambda: function(*arguments))


def beside(executor: Executor, function: Callable[..., T], *arguments: Any) -> T:
    """Call ``function(*arguments)`` here: this is a thread already."""
    return function(*arguments)
