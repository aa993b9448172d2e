"""The systems that are measured: ours, and the original in a folder where ``npm install bun bunqueue`` was run."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(__file__).resolve().parent / "reference"

#: Seconds that one workload, or the start of a server, may take.
PATIENCE_S = 600.0


#: The original refuses more than 10,000 commands a minute and connection unless told otherwise, which the sequential adds exceed.
UNLIMITED = {"RATE_LIMIT_MAX_REQUESTS": "1000000000"}


class System(Protocol):
    """Something that can run the workloads."""

    name: str

    def embedded(self, verb: str, jobs: int, file: Path, variant: str) -> float:
        """Jobs a second of an embedded workload on a new file."""

    def server(self, file: Path) -> Any:
        """Context manager: a server on a new file; gives its TCP port."""

    def version(self) -> str:
        """What runs."""


def last_json(text: str) -> dict[str, Any]:
    """The last line of a program's output, which is its result."""
    result: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return result


def run(command: list[str], *, folder: Path | None = None) -> dict[str, Any]:
    """Run a load program to its end and return its result."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environment()
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return last_json(done.stdout)


def clean_environment() -> dict[str, str]:
    """The environment without what configures a server or client of either system."""
    ours = ("BUNQUEUE_", "BQ_")
    names = {"TCP_PORT", "HTTP_PORT", "HOST", "AUTH_TOKENS", "DATA_PATH", "SQLITE_PATH"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours) and name not in names}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return kept


def on_postgres(url: str, name: str) -> dict[str, str]:
    """Environment of a broker called ``name`` on a database, the same for both systems."""
    return {"BUNQUEUE_STORAGE_DRIVER": "postgres", "BUNQUEUE_POSTGRES_URL": url, "BUNQUEUE_BROKER_ID": name}


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_listening(port: int, process: subprocess.Popen[Any]) -> None:
    """Wait until ``process`` accepts connections on ``port``."""
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise RuntimeError("the server ended instead of listening")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the server does not listen")


@contextmanager
def serving(
    command: list[str], port: int, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Run a server until the block ends; gives ``port``."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**clean_environment(), **(environment or {})},
    )
    try:
        wait_until_listening(port, process)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Ours:
    """This checkout, with the interpreter that runs the comparison."""

    name = "bunqueue for Python"

    def embedded(self, verb: str, jobs: int, file: Path, variant: str) -> float:
        command = [sys.executable, "-m", "benchmarks.embedded", verb, str(jobs), str(file)]
        if variant == "asyncio":
            command.append("--asyncio")
        return float(run(command)["rate"])

    @contextmanager
    def server(self, file: Path) -> Iterator[int]:
        port = free_port()
        start = [sys.executable, "-c", "from bunqueue_core.cli import main; main()", "start", "--host", "127.0.0.1"]
        ports = ["--tcp-port", str(port), "--http-port", str(free_port())]
        with serving([*start, *ports, "--data-path", str(file)], port) as listening:
            yield listening

    @contextmanager
    def broker(self, url: str, name: str) -> Iterator[int]:
        """A server on a PostgreSQL database, which it may share with others; gives its TCP port."""
        port = free_port()
        start = [sys.executable, "-c", "from bunqueue_core.cli import main; main()", "start", "--host", "127.0.0.1"]
        ports = ["--tcp-port", str(port), "--http-port", str(free_port())]
        with serving([*start, *ports], port, environment=on_postgres(url, name)) as listening:
            yield listening

    def version(self) -> str:
        from bunqueue_core import __version__

        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return f"{__version__} {described.stdout.strip()}".strip()


class Reference:
    """The original in ``folder``.

    Args:
        folder: where ``npm install bun bunqueue`` was run.
        scratch: folder for the load programs, which find the package through a link.

    Raises:
        ValueError: the folder does not have it.
    """

    name = "original"

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._package = folder / "node_modules" / "bunqueue"
        self._bun = folder / "node_modules" / ".bin" / "bun"
        if not self._package.is_dir() or not self._bun.exists():
            raise ValueError(f"{folder} does not have bun and the bunqueue npm package")
        self._scratch = scratch
        (scratch / "node_modules").symlink_to(folder.resolve() / "node_modules")
        for script in SCRIPTS.glob("*.ts"):
            shutil.copy(script, scratch)

    def embedded(self, verb: str, jobs: int, file: Path, variant: str) -> float:
        script = [str(self._bun), "embedded.ts", verb, str(jobs), str(file)]
        return float(run(script, folder=self._scratch)["rate"])

    @contextmanager
    def server(self, file: Path) -> Iterator[int]:
        port = free_port()
        start = [str(self._bun), str(self._package / "dist" / "cli" / "index.js"), "start"]
        ports = ["--tcp-port", str(port), "--http-port", str(free_port())]
        command = [*start, *ports, "--data-path", str(file)]
        with serving(command, port, self._scratch, UNLIMITED) as listening:
            yield listening

    @contextmanager
    def broker(self, url: str, name: str) -> Iterator[int]:
        """A server on a PostgreSQL database, which it may share with others; gives its TCP port."""
        port = free_port()
        start = [str(self._bun), str(self._package / "dist" / "cli" / "index.js"), "start"]
        command = [*start, "--tcp-port", str(port), "--http-port", str(free_port())]
        with serving(command, port, self._scratch, {**UNLIMITED, **on_postgres(url, name)}) as listening:
            yield listening

    def over_tcp(self, verb: str, jobs: int, *ports: int) -> float:
        """Jobs a second of a workload with the original's client against whatever listens on ``ports``."""
        listening = ",".join(map(str, ports))
        return float(run([str(self._bun), "tcp.ts", verb, str(jobs), listening], folder=self._scratch)["rate"])

    def version(self) -> str:
        package = json.loads((self._package / "package.json").read_text())["version"]
        bun = subprocess.run([str(self._bun), "--version"], capture_output=True, text=True, check=False).stdout.strip()
        return f"{package} on bun {bun}"


def machine() -> dict[str, Any]:
    """Facts of this machine that a figure depends on. No names of machines or folders."""
    import platform

    model = ""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        model = found.group(1) if found else ""
    except OSError:
        pass
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "processor": model or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }
    try:
        import apsw

        facts["sqlite"] = apsw.sqlite_lib_version()
    except ImportError:
        pass
    return facts
