"""Which package may import which: the layers of the architecture, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = "bunqueue_core"
PLUGINS = ("bunqueue_sqlite", "bunqueue_postgres", "bunqueue_s3")

#: Packages of the core that a package may import besides itself; packages that are not named may import all but the engine.
ALLOWED: dict[str, set[str]] = {
    "model": set(),
    "answer": {"model"},
    "engine": {"model", "storage", "scheduling"},
    "scheduling": {"model", "storage"},
}

#: Packages of the core that a package may not import.
FORBIDDEN: dict[str, set[str]] = {
    "storage": {"server", "client", "cli", "commands"},
    "broker": {"server", "client", "cli", "commands", "config"},
    "plugins": {"server", "client", "cli", "commands"},
    "commands": {"server", "client", "cli"},
    "client": {"server", "cli"},
    "server": {"client", "cli"},
}

#: The only packages that may import the engine.
ENGINE_USERS = {"engine", "broker"}

#: What a plugin may import of the core.
FOR_PLUGINS = {"model", "storage", "broker", "backup", "plugins", "scheduling", "testing", "answer"}


def _imports(path: Path, package: str) -> Iterator[str]:
    """Modules that a file imports when it runs; imports for type checkers only do not count."""

    def walk(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in nodes:
            if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
                yield from walk(node.orelse)
                continue
            yield node
            for field in ("body", "orelse", "finalbody"):
                yield from walk(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from walk(handler.body)

    for node in walk(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                module = ".".join([*base, node.module] if node.module else base)
            else:
                module = node.module or ""
            yield module
            if module == CORE:
                yield from (f"{CORE}.{alias.name}" for alias in node.names)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def _package_of(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).parts[:-1])


def _core_imports(folder: Path, root: Path) -> Iterator[tuple[Path, str]]:
    """(file, package of the core that it imports) of a folder."""
    for path in _files(folder):
        for module in _imports(path, _package_of(path, root)):
            parts = module.split(".")
            if parts[0] == CORE and len(parts) > 1:
                yield path.relative_to(ROOT), parts[1]


def _core_packages() -> list[str]:
    return sorted({path.relative_to(ROOT / CORE).parts[0].removesuffix(".py") for path in _files(ROOT / CORE)})


def _files_of(package: str) -> Path:
    module = ROOT / CORE / f"{package}.py"
    return module if module.exists() else ROOT / CORE / package


def _used_by(package: str) -> Iterator[tuple[Path, str]]:
    place = _files_of(package)
    if place.is_dir():
        yield from _core_imports(place, ROOT)
        return
    for module in _imports(place, CORE):
        parts = module.split(".")
        if parts[0] == CORE and len(parts) > 1:
            yield place.relative_to(ROOT), parts[1]


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_lower_layer_imports_only_what_lies_below(package: str) -> None:
    strangers = {(str(path), used) for path, used in _used_by(package) if used not in ALLOWED[package] | {package}}
    assert strangers == set()


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_layer_does_not_import_those_above(package: str) -> None:
    above = {(str(path), used) for path, used in _used_by(package) if used in FORBIDDEN[package]}
    assert above == set()


def test_only_the_broker_knows_the_engine() -> None:
    users = {
        str(path)
        for package in _core_packages()
        if package not in ENGINE_USERS
        for path, used in _used_by(package)
        if used == "engine"
    }
    # What recomputes the engine's counters and indexes has to look inside it.
    assert users == {f"{CORE}/testing/invariants.py"}


def test_the_core_imports_no_plugin() -> None:
    found = {
        (str(path.relative_to(ROOT)), module)
        for path in _files(ROOT / CORE)
        for module in _imports(path, _package_of(path, ROOT))
        if module.split(".")[0] in PLUGINS
    }
    assert found == set()


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_imports_what_plugins_may(plugin: str) -> None:
    root = ROOT / "plugins" / plugin
    strangers = {(str(path), used) for path, used in _core_imports(root / plugin, root) if used not in FOR_PLUGINS}
    assert strangers == set()


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_imports_no_private_module(plugin: str) -> None:
    root = ROOT / "plugins" / plugin
    private = {
        (str(path.relative_to(ROOT)), module)
        for path in _files(root / plugin)
        for module in _imports(path, _package_of(path, root))
        if module.startswith(CORE) and any(part.startswith("_") for part in module.split("."))
    }
    assert private == set()


def test_no_two_test_files_have_the_same_name() -> None:
    """pytest imports test files by their base names: two of one name stop the whole run."""
    folders = [ROOT / "tests", *(ROOT / "plugins").glob("*/tests")]
    names = [path.name for folder in folders for path in folder.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
