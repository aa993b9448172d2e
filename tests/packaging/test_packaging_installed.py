"""All four distributions built, installed into an empty environment outside the checkout, and used there.

It builds sdists, builds each wheel from its sdist, and installs the wheels with their dependencies by the ordinary installer.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = {
    "bunqueue_core": ROOT,
    "bunqueue_sqlite": ROOT / "plugins" / "bunqueue_sqlite",
    "bunqueue_postgres": ROOT / "plugins" / "bunqueue_postgres",
    "bunqueue_s3": ROOT / "plugins" / "bunqueue_s3",
}

#: Longest wait for one command, seconds. The installation asks the registry, or the installer's cache.
PATIENCE_S = 300.0

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Built:
    """The archives of a distribution."""

    sdist: Path
    wheel: Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment that knows nothing of the checkout."""

    directory: Path
    work: Path

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of the environment in an empty directory; gives its stdout."""
        result = subprocess.run(
            [str(self.directory / "bin" / program), *arguments],
            cwd=self.work,
            env=variables(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


def variables() -> dict[str, str]:
    kept = ("HOME", "PATH", "LANG", "TMPDIR", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "SSL_CERT_FILE", "XDG_CACHE_HOME")
    return {name: os.environ[name] for name in kept if name in os.environ}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    archives: dict[str, Built] = {}
    for package, project in PROJECTS.items():
        out = tmp_path_factory.mktemp(package)
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(project)],
            cwd=out,
            check=True,
            capture_output=True,
            timeout=PATIENCE_S,
        )
        (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
        archives[package] = Built(sdist, wheel)
    return archives


@pytest.fixture(scope="module")
def environment(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    directory, work = tmp_path_factory.mktemp("environment") / "venv", tmp_path_factory.mktemp("work")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=PATIENCE_S)
    wheels = [str(archives.wheel) for archives in built.values()]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python"), "install"),
            *("--quiet", "--disable-pip-version-check", "--no-compile"),
            *("--constraint", str(ROOT / "constraints.txt")),
            f"bunqueue-core[server] @ {built['bunqueue_core'].wheel.as_uri()}",
            *wheels[1:],
        ],
        cwd=work,
        env=variables(),
        check=True,
        timeout=PATIENCE_S,
    )
    return Environment(directory, work)


@pytest.mark.parametrize("package", list(PROJECTS))
def test_archives_hold_the_package_and_nothing_of_the_checkout(built: dict[str, Built], package: str) -> None:
    with zipfile.ZipFile(built[package].wheel) as archive:
        names = archive.namelist()
    with tarfile.open(built[package].sdist) as archive_:
        sources = [name.split("/", 1)[1] for name in archive_.getnames() if "/" in name]

    tops = {name.split("/", 1)[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {package}
    assert f"{package}/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {"pyproject.toml", "README.md", "LICENSE", f"{package}/py.typed"} <= set(sources)
    on_disk = {
        str(path.relative_to(PROJECTS[package]))
        for path in (PROJECTS[package] / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert on_disk <= set(names)
    assert on_disk <= set(sources)


def test_installed_plugins_are_found_by_their_entry_points(environment: Environment) -> None:
    document = json.loads(environment.run("bunqueue", "plugins", "--json"))

    provided = {plugin["distribution"]: plugin["provides"] for plugin in document["plugins"]}
    assert list(provided) == ["bunqueue-core", "bunqueue-postgres", "bunqueue-s3", "bunqueue-sqlite"]
    assert "storage driver memory" in provided["bunqueue-core"]
    assert provided["bunqueue-sqlite"] == ["storage driver sqlite"]
    assert provided["bunqueue-postgres"] == ["storage driver postgres"]
    assert provided["bunqueue-s3"] == ["backup target s3"]


def test_nothing_is_imported_from_the_checkout(environment: Environment) -> None:
    code = "import bunqueue_core, bunqueue_sqlite, bunqueue_postgres, bunqueue_s3 as s; print(bunqueue_core.__file__, s.__file__)"

    for path in environment.run("python", "-c", code).split():
        assert Path(path).is_relative_to(environment.directory)


def test_an_installed_server_starts_and_stops(environment: Environment) -> None:
    command = [
        *(str(environment.directory / "bin" / "bunqueue"), "start", "--json", "--data-path", "jobs.db"),
        *("--host", "127.0.0.1", "--tcp-port", "0", "--http-port", "0"),
    ]
    with subprocess.Popen(
        command, cwd=environment.work, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            lines = iter(process.stdout)
            document = json.loads(next((line for line in lines if line.startswith("{")), "{}"))
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0, errors
    assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", document["tcp"])
    assert document["storage"] == "SQLite · jobs.db"
    assert (environment.work / "jobs.db").stat().st_size > 0
