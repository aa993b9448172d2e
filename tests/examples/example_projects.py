"""The projects in ``examples/`` as their users have them: built, and installed into a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DOCS_TESTS = ROOT / "tests" / "docs"

#: Longest wait for one command, seconds.
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Project:
    """A built and installed example.

    Attributes:
        source: what was in its source archive, unpacked.
        installed: the folder that its wheel was installed into.
    """

    source: Path
    installed: Path

    def run(
        self, *arguments: str, directory: Path, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with the installed wheel in its path, as if nothing else of the repository's tests were there."""
        kept = {name: value for name, value in os.environ.items() if name in ("HOME", "PATH", "LANG", "TMPDIR")}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=directory,
            env={**kept, **(environ or {}), "PYTHONPATH": str(self.installed), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


def build(name: str, folder: Path) -> Project:
    """Build ``examples/<name>``: the source archive, the wheel from it; then install the wheel."""
    archives, source, installed = folder / "archives", folder / "source", folder / "installed"
    _call("build", "--no-isolation", "--outdir", str(archives), str(EXAMPLES / name))
    (sdist,), (wheel,) = archives.glob("*.tar.gz"), archives.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    _call("pip", "install", *options, "--target", str(installed), str(wheel))
    (top,) = source.iterdir()
    return Project(top, installed)


def shown_and_there(page: Path, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """The files of the example that ``page`` builds: as the page shows them, and as they are."""
    if str(DOCS_TESTS) not in sys.path:
        sys.path.insert(0, str(DOCS_TESTS))
    from doc_pages import files_of

    folder = EXAMPLES / name
    there = {
        f"{name}/{path.relative_to(folder)}": path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.suffix in (".py", ".toml")
    }
    return files_of(page), there


def _call(module: str, *arguments: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
