"""What the pages say is true: their code runs, their commands exist, their tables are fresh, their links lead somewhere."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT, blocks, pages, run_page

from bunqueue_core.plugins import hookspecs


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_works_as_written(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language, f"{page.name}, line {block.line}: name the language of the block"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_tables_of_settings_are_fresh() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "settings_reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr


def test_every_hook_has_a_section_with_its_exact_signature() -> None:
    page = (ROOT / "docs" / "plugins" / "hooks.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## `(.*)`$", page, re.MULTILINE)
    hooks = {
        f"{name}({', '.join(inspect.signature(function).parameters)})"
        for name, function in vars(hookspecs).items()
        if name.startswith("bunqueue_")
    }

    assert set(headings) == hooks
