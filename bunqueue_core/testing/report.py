"""Hooks of pytest that print, for each class of the kit, which rules passed, which are not offered and which failed.

Import both hooks into a ``conftest.py``::

    from bunqueue_core.testing.report import pytest_runtest_makereport, pytest_terminal_summary
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import pytest

from bunqueue_core.testing.conformance.rules import rules_of

_PROPERTY: Final = "bunqueue-rules"
_RANK: Final = {"passed": 0, "skipped": 1, "failed": 2}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Note the rules of a case on its report, where they outlive the worker processes of a parallel run."""
    report = yield
    numbers = rules_of(getattr(item, "function", None))
    if numbers and isinstance(item, pytest.Function) and item.cls is not None:
        report.user_properties.append((_PROPERTY, (item.cls.__name__, numbers)))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table."""
    classes: dict[str, dict[str, str]] = {}
    for outcome in ("passed", "skipped", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == _PROPERTY and (report.when == "call" or report.outcome != "passed"):
                    kit, numbers = value
                    rules = classes.setdefault(kit, {})
                    for number in numbers:
                        if _RANK[report.outcome] > _RANK.get(rules.get(number, ""), -1):
                            rules[number] = report.outcome
    if not classes:
        return
    terminalreporter.section("conformance: rules")
    for kit, rules in sorted(classes.items()):
        line = f"{kit}: {sum(outcome == 'passed' for outcome in rules.values())} passed"
        for outcome, text in (("skipped", "not offered, wholly or in part"), ("failed", "failed")):
            numbers = sorted(number for number, found in rules.items() if found == outcome)
            if numbers:
                line += f"; {text}: {' '.join(numbers)}"
        terminalreporter.write_line(line)
