"""``Engine``: all verbs of the in-process queue in one object. See :mod:`bunqueue_core.engine.base` for what holds for all."""

from __future__ import annotations

from bunqueue_core.engine.consume import Consuming
from bunqueue_core.engine.control import Controlling
from bunqueue_core.engine.deadletters import DeadLetters
from bunqueue_core.engine.inspect import Inspecting
from bunqueue_core.engine.recover import Recovering


class Engine(Consuming, Controlling, DeadLetters, Inspecting, Recovering):
    """The in-process queue."""
