"""The engine over SQLite as it is used: worked by an event loop, and by a thread of its own.

The plugin's own tests run the whole kit on a settable clock; here are the cases that depend on time and on commits, on a real one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from brokers import local_broker
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_sqlite.plugin import SQLITE_DRIVER

from bunqueue_core.broker.protocol import Broker
from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.testing.conformance import (
    BrokerSetup,
    ClaimCases,
    CrashCases,
    FailureCases,
    LeaseCases,
    RestartCases,
)


class SqliteFiles:
    """The database of one test, and the copies that its crashes leave."""

    def __init__(self, folder: Path, ports: Ports) -> None:
        self._folder = folder
        self._ports = ports
        self._crashes = 0
        self.path = folder / "queue.db"

    def broker(self, role: str) -> Broker:
        """A broker on the present file, not started."""
        settings = SqliteStorage(data_path=self.path)
        journal = SqliteJournal(settings, OpenContext(self._ports, "0.0.0", "server", lambda *_, **__: None))
        return local_broker(journal, SQLITE_DRIVER.capabilities, settings, self._ports, role)  # type: ignore[arg-type]

    def crash(self) -> None:
        """Go on with a copy: what another process finds when this one dies between two commits."""
        self._crashes += 1
        folder = self._folder / f"crash-{self._crashes}"
        folder.mkdir()
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{self.path}{suffix}", folder / f"queue.db{suffix}")
        self.path = folder / "queue.db"


def setup(files: SqliteFiles, role: str) -> Callable[[Broker], Broker]:
    def crash(_: Broker) -> Broker:
        files.crash()
        return files.broker(role)

    return crash


class TestSqliteInServer(ClaimCases, LeaseCases, FailureCases, RestartCases, CrashCases):
    """What depends on time or on commits, on the real clock, worked by the event loop."""

    @pytest.fixture
    def broker_setup(self, tmp_path: Path) -> BrokerSetup:
        files = SqliteFiles(tmp_path, Ports())
        return BrokerSetup(open=lambda: files.broker("server"), crash=setup(files, "server"), unit_ms=150)


class TestSqliteEmbedded(TestSqliteInServer):
    """The same, worked by the broker's own thread and waited for in the calling one."""

    world = "thread"

    @pytest.fixture
    def broker_setup(self, tmp_path: Path) -> BrokerSetup:
        files = SqliteFiles(tmp_path, Ports())
        return BrokerSetup(open=lambda: files.broker("embedded"), crash=setup(files, "embedded"), unit_ms=150)
