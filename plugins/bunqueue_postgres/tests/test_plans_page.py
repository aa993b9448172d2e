"""The page on what statements cost can be written, and says that they cost the same on a larger backlog."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import plans_postgres


def test_the_cost_does_not_grow_with_the_backlog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    plans_postgres.main(["--jobs", "20000", "--dead", "4000", "--rounds", "1", "--page", str(page)])
    text = page.read_text("utf-8")
    assert capsys.readouterr().out == text[: text.index("## Plans")]
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", text, re.MULTILINE)
    blocks = {
        label: [int(cell.replace(",", "")) for cell in re.findall(r"ms, ([\d,]+)", cells)]
        for label, cells in rows
        if " ms, " in cells
    }
    assert len(blocks) == len(re.findall(r"^### ", text, re.MULTILINE)) >= 16
    for label, (small, large, dead, _) in blocks.items():
        # Another level of an index costs a block a look-up.
        assert large <= 2 * small + 150, label
        assert dead <= 2 * small + 150, label
    assert "Seq Scan on jobs" not in text
