"""The long comparison runs only when it is asked for: ``pytest tests/scheduling -m campaign``."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "campaign" in (config.option.markexpr or ""):
        return
    for item in items:
        if (
            item.get_closest_marker("campaign") is not None
            and item.path.parent == config.rootpath / "tests" / "scheduling"
        ):
            item.add_marker(pytest.mark.skip(reason="long run; its command is in docs/schedules.md"))
