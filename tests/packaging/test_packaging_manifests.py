"""The four manifests agree with each other and with the code."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import bunqueue_core

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ("bunqueue_sqlite", "bunqueue_postgres", "bunqueue_s3")


def project(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return content


CORE = project(ROOT)


def test_the_core_says_the_version_of_its_distribution() -> None:
    assert bunqueue_core.__version__ == CORE["version"]


def test_the_distributions_are_released_in_step() -> None:
    assert {project(ROOT / "plugins" / package)["version"] for package in PLUGINS} == {CORE["version"]}


@pytest.mark.parametrize("package", PLUGINS)
def test_a_plugin_is_a_distribution_of_its_own(package: str) -> None:
    directory = ROOT / "plugins" / package
    manifest = project(directory)

    assert manifest["name"] == package.replace("_", "-")
    assert manifest["entry-points"]["bunqueue.plugins"] == {package.removeprefix("bunqueue_"): f"{package}.plugin"}
    for name in ("README.md", "LICENSE", f"{package}/py.typed"):
        assert (directory / name).is_file()


@pytest.mark.parametrize("package", PLUGINS)
def test_a_plugin_works_with_the_present_core(package: str) -> None:
    requirements = {each.name: each for each in map(Requirement, project(ROOT / "plugins" / package)["dependencies"])}

    assert Version(CORE["version"]) in requirements["bunqueue-core"].specifier


@pytest.mark.parametrize("package", PLUGINS)
def test_the_core_has_an_extra_for_each_plugin(package: str) -> None:
    (requirement,) = map(Requirement, CORE["optional-dependencies"][package.removeprefix("bunqueue_")])

    assert requirement.name == package.replace("_", "-")
    assert Version(project(ROOT / "plugins" / package)["version"]) in requirement.specifier


def test_the_extra_all_has_every_other_one() -> None:
    (everything,) = map(Requirement, CORE["optional-dependencies"]["all"])

    assert everything.extras == {"sqlite", "postgres", "s3", "server"}


def test_the_core_needs_no_database() -> None:
    names = {Requirement(each).name for each in CORE["dependencies"]}

    assert not names & {"apsw", "sqlite-utils", "psycopg", "s3fs", "starlette", "uvicorn"}


def test_everything_that_is_required_is_pinned_for_development() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {
        Requirement(line).name.lower().replace("_", "-"): line for line in lines if line and not line.startswith("#")
    }
    own = {"bunqueue-core", *(package.replace("_", "-") for package in PLUGINS)}
    manifests = [CORE, *(project(ROOT / "plugins" / package) for package in PLUGINS)]

    for manifest in manifests:
        extras = manifest.get("optional-dependencies", {}).values()
        for text in [*manifest["dependencies"], *(each for extra in extras for each in extra)]:
            requirement = Requirement(text)
            name = requirement.name.lower().replace("_", "-")
            if name not in own:
                assert name in pins, f"{name} has no pin in constraints.txt"
                assert Version(pins[name].split("==")[1]) in requirement.specifier
