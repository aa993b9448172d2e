"""Numbered rules: which of ``docs/reference/semantics.md`` a case holds a driver to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest

from bunqueue_core.testing.conformance.harness import WORLDS, BrokerSetup, Harness, WorldName

_Case = TypeVar("_Case", bound=Callable[..., Any])

#: Attribute of a case that holds the numbers of its rules.
RULES_ATTRIBUTE: Final = "bunqueue_rules"


def rule(*numbers: str) -> Callable[[_Case], _Case]:
    """Say which rules a case holds a driver to, such as ``S-014``."""

    def mark(case: _Case) -> _Case:
        setattr(case, RULES_ATTRIBUTE, numbers)
        return case

    return mark


def rules_of(case: Any) -> tuple[str, ...]:
    """Numbers of the rules of a case; empty for a test that is not of the kit."""
    numbers: tuple[str, ...] = getattr(case, RULES_ATTRIBUTE, ())
    return numbers


class Kit:
    """Base of the broker's cases. A driver's author gives ``broker_setup``; nothing else needs to be overridden.

    Attributes:
        world: how the brokers are used, see :data:`~bunqueue_core.testing.conformance.harness.WorldName`. Drivers that can be
            embedded run the kit twice, once in each.
    """

    world: WorldName = "asyncio"

    @pytest.fixture
    def broker_setup(self) -> BrokerSetup:
        """How to make brokers on a storage that belongs to this test alone. To be overridden."""
        raise NotImplementedError("a conformance class must override the fixture broker_setup")

    @pytest.fixture
    def h(self, request: pytest.FixtureRequest, broker_setup: BrokerSetup) -> Any:
        """The harness around a started broker."""
        missing = broker_setup.missing_rules.intersection(rules_of(request.function))
        if missing:
            pytest.skip(f"not offered: {', '.join(sorted(missing))}")
        harness = Harness(broker_setup, WORLDS[self.world]())
        yield harness
        harness.close()
