"""The commands of the protocol: one table, from which every transport and the reference are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bunqueue_core.commands import (
    consuming,
    control,
    core,
    dashboards,
    dead_letters,
    events,
    limits,
    management,
    monitoring,
    producing,
    queries,
    schedules,
    webhooks,
)
from bunqueue_core.commands.announcing import announcing
from bunqueue_core.commands.session import Services, Session
from bunqueue_core.commands.table import Command, Field, Members, Reply, collect

#: The families, in the order of the reference.
FAMILIES: Final = (
    core,
    producing,
    consuming,
    queries,
    management,
    control,
    dead_letters,
    limits,
    schedules,
    webhooks,
    monitoring,
    dashboards,
    events,
)

#: Every command by its exact name on the wire.
COMMANDS: Final[Mapping[str, Command]] = announcing(collect(FAMILIES))

__all__ = ["COMMANDS", "FAMILIES", "Command", "Field", "Members", "Reply", "Services", "Session"]
