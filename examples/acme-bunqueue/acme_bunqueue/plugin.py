"""Registers everything (entry point ``acme`` of the group ``bunqueue.plugins``)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from acme_bunqueue.tally import TallySink
from acme_bunqueue.workdays import WORKDAYS
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.plugins import BackoffStrategy, EventSink, ScheduleKind, hookimpl

if TYPE_CHECKING:
    from bunqueue_core.config import Settings


@hookimpl
def bunqueue_schedule_kinds() -> Iterable[ScheduleKind]:
    """``workdays``."""
    return [WORKDAYS]


def fibonacci(delay_ms: int, attempts: int, random: Callable[[], float]) -> float:
    """``delay`` × 1, 1, 2, 3, 5, 8 … × U(0.9, 1.1): so that jobs that failed together do not come back together."""
    last, this = 0, 1
    for _ in range(attempts - 1):
        last, this = this, last + this
    return delay_ms * this * (0.9 + 0.2 * random())


@hookimpl
def bunqueue_backoff_strategies() -> Mapping[str, BackoffStrategy]:
    """``fibonacci``."""
    return {"fibonacci": fibonacci}


@hookimpl
def bunqueue_event_sinks(settings: Settings) -> Iterable[EventSink]:
    """``tally``."""
    return [TallySink.configured(table) for table in settings.events.sinks if table["type"] == "tally"]


@hookimpl
def bunqueue_configure(settings: Settings) -> None:
    """No server that others can reach without tokens."""
    if settings.auth.tokens or _is_loopback(settings.server.host):
        return
    raise ConfigurationError(
        f"auth.tokens is empty while server.host is '{settings.server.host}', which others can reach;"
        " set auth.tokens (AUTH_TOKENS), or server.host to 127.0.0.1"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
