"""What tests hand to brokers that they make themselves."""

from __future__ import annotations

from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import OpenContext


def open_context() -> OpenContext:
    """What the core hands over, with real ids and a log that is dropped."""
    return OpenContext(Ports(), "0.0.0", "server", lambda *_, **__: None)
