"""Every guarantee names what is not guaranteed, and rules and tests that exist."""

from __future__ import annotations

import re

import pytest
from doc_pages import ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
RULES = set(
    re.findall(r"^\| (S-\d{3}) \|", (ROOT / "docs/reference/semantics.md").read_text(encoding="utf-8"), re.MULTILINE)
)

SECTIONS = {part.split("\n", 1)[0]: part for part in PAGE.split("\n## ")[1:] if not part.startswith("States\n")}


@pytest.mark.parametrize("title", SECTIONS)
def test_a_guarantee_names_its_limits_and_who_holds_it(title: str) -> None:
    text = SECTIONS[title]

    assert re.search(r"^\*\*Not guaranteed\*\*: \S", text, re.MULTILINE)
    held = re.search(r"^\*\*Held by\*\*: (.*)", text, re.MULTILINE | re.DOTALL)
    assert held is not None
    assert re.search(r"S-\d{3}|::test_", held[1])


@pytest.mark.parametrize("title", SECTIONS)
def test_the_rules_and_tests_exist(title: str) -> None:
    text = SECTIONS[title]

    assert set(re.findall(r"S-\d{3}", text)) <= RULES
    for path, name in re.findall(r"`((?:tests|plugins)/[\w/.]+\.py)(?:::(\w+))?`", text):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"def {name}\(", source), f"there is no {path}::{name}"
