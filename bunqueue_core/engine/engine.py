"""``Engine``: all verbs of the in-process queue in one object. See :mod:`bunqueue_core.engine.base` for what holds for all."""

from __future__ import annotations

from bunqueue_core.engine.control import Controlling
from bunqueue_core.engine.metrics import Measuring
from bunqueue_core.engine.recover import Recovering
from bunqueue_core.engine.repeat import Repeating
from bunqueue_core.engine.schedules import Scheduling
from bunqueue_core.engine.webhooks import Registering


class Engine(Measuring, Repeating, Scheduling, Registering, Controlling, Recovering):
    """The in-process queue."""
