"""The page's table of imports is what the source says: no package imports what its row does not name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from doc_pages import ROOT

CORE = ROOT / "bunqueue_core"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROWS = {
    name: set(filter(None, imports.strip().split(", ")))
    for name, imports in re.findall(r"^\| `(\w+)` \| [^|]* \|([^|]*)\|$", PAGE, re.MULTILINE)
}


def statements(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run, those inside functions included; what stands under ``TYPE_CHECKING`` does not."""
    for node in nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body)


def imported(path: Path) -> Iterator[str]:
    """Packages of the core that a file imports."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        modules: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
            if node.module == CORE.name:
                modules = [f"{CORE.name}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        for module in modules:
            first, _, rest = module.partition(".")
            if first == CORE.name and rest and not rest.startswith("_"):
                yield rest.split(".")[0]


def graph() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in CORE.rglob("*.py"):
        package = path.relative_to(CORE).parts[0].removesuffix(".py")
        if package != "__init__":
            found[package] |= set(imported(path)) - {package}
    return found


def test_every_package_has_a_row() -> None:
    assert set(ROWS) == set(graph())


def test_no_package_imports_what_its_row_does_not_name() -> None:
    surplus = {package: sorted(used - ROWS[package]) for package, used in graph().items() if used - ROWS[package]}

    assert surplus == {}, "change the design, or the picture of it in docs/architecture.md"


def test_rows_name_packages() -> None:
    assert set().union(*ROWS.values()) <= set(ROWS)
