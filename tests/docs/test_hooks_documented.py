"""Every hook has a section with its exact signature that says all there is to say; so have the values that plugins hand over."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from doc_pages import ROOT

from bunqueue_core.plugins import drivers, hookspecs

PAGE = (ROOT / "docs" / "plugins" / "hooks.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples"

HOOKS: dict[str, Callable[..., Any]] = {
    name: function for name, function in vars(hookspecs).items() if name.startswith("bunqueue_")
}

#: What a section says, in this order.
PARTS = ("Arguments", "Called", "Returns", "Raises", "Used by")

#: Values that plugins hand over, and the hook whose section describes them.
VALUES = {
    drivers.JournalDriver: "bunqueue_storage_drivers",
    drivers.BrokerDriver: "bunqueue_storage_drivers",
    drivers.BackupTarget: "bunqueue_backup_targets",
    drivers.BackupStore: "bunqueue_backup_targets",
    drivers.ScheduleKind: "bunqueue_schedule_kinds",
    drivers.Schedule: "bunqueue_schedule_kinds",
    drivers.EventSink: "bunqueue_event_sinks",
}


def signature(name: str) -> str:
    return f"{name}({', '.join(inspect.signature(HOOKS[name]).parameters)})"


def section(name: str) -> str:
    heading = f"\n## `{signature(name)}`\n"
    assert heading in PAGE, f"docs/plugins/hooks.md has no section `{signature(name)}`"
    return PAGE.split(heading)[1].split("\n## ")[0]


def members(value: type) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    named = {**vars(value), **getattr(value, "__annotations__", {})}
    return [name for name in named if not name.startswith("_")]


def test_the_page_has_no_hook_that_does_not_exist() -> None:
    documented = re.findall(r"^## `(.*)`$", PAGE, re.MULTILINE)

    assert documented == [signature(name) for name in HOOKS]


@pytest.mark.parametrize("name", HOOKS)
def test_a_section_says_everything(name: str) -> None:
    found = re.findall(r"^\*\*(.*?)\*\*", section(name), re.MULTILINE)

    assert found == list(PARTS)


@pytest.mark.parametrize("name", HOOKS)
def test_every_argument_is_described(name: str) -> None:
    arguments = re.search(r"^\*\*Arguments\*\*(.*?)^\*\*Called", section(name), re.MULTILINE | re.DOTALL)
    assert arguments is not None
    described = re.findall(r"^- `(\w+)`: \S", arguments[1], re.MULTILINE)

    assert described == list(inspect.signature(HOOKS[name]).parameters)
    assert described or arguments[1].strip() == ": none."


@pytest.mark.parametrize("name", HOOKS)
def test_a_section_has_a_complete_example_with_what_it_prints(name: str) -> None:
    code = re.findall(r"^```python\n(.*?)^```\n\n```text\n", section(name), re.MULTILINE | re.DOTALL)

    assert len(code) == 1
    assert f"def {name}(self" in code[0]
    assert "@hookimpl" in code[0]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.__name__)
def test_the_members_of_a_value_are_described(value: type) -> None:
    text = section(VALUES[value])
    described = set(re.findall(r"^\| `(\w+)", text, re.MULTILINE))

    assert value.__name__ in text
    assert set(members(value)) <= described


@pytest.mark.parametrize("name", HOOKS)
def test_an_example_implements_the_hook(name: str) -> None:
    implemented = {
        function.name
        for path in EXAMPLES.glob("*/*/plugin.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
    }

    assert name in implemented
