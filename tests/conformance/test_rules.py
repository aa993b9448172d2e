"""The numbered rules and the cases that cite them agree."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from bunqueue_core.testing.conformance import BrokerConformance, JournalConformance
from bunqueue_core.testing.conformance.rules import rules_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "semantics.md"


def _written() -> list[str]:
    return re.findall(r"^\| ([SJ]-\d{3}) \|", PAGE.read_text(), re.MULTILINE)


def _cited() -> set[str]:
    kits = (BrokerConformance, JournalConformance)
    return {number for kit in kits for name in dir(kit) for number in rules_of(getattr(kit, name))}


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    assert set(_written()) == _cited()


def test_a_number_stands_once_and_in_order() -> None:
    for letter in "SJ":
        numbers = [number for number in _written() if number.startswith(letter)]
        assert numbers == sorted(numbers)
        assert [number for number, times in Counter(numbers).items() if times > 1] == []


def test_every_case_cites_a_rule() -> None:
    for kit in (BrokerConformance, JournalConformance):
        uncited = [name for name in dir(kit) if name.startswith("test_") and not rules_of(getattr(kit, name))]
        assert uncited == []
