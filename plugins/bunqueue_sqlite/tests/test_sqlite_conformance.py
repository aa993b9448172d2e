"""The driver against the conformance kit: the journal alone, and the broker over it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_sqlite.plugin import SQLITE_DRIVER

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Broker
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.storage.journal import Journal
from bunqueue_core.testing import SettableClock, deterministic_ports
from bunqueue_core.testing.conformance import BrokerConformance, BrokerSetup, JournalConformance, JournalSetup


def ignore(*_: Any, **__: Any) -> None:
    return


def copy_as_after_a_crash(source: Path, target: Path) -> None:
    """What a process that dies at this moment leaves: the file and its log."""
    for suffix in ("", "-wal"):
        path = source.with_name(source.name + suffix)
        if path.exists():
            shutil.copyfile(path, target.with_name(target.name + suffix))


class TestSqliteJournal(JournalConformance):
    @pytest.fixture
    def journal_setup(self, make_journal: Any, tmp_path: Path) -> JournalSetup:
        path = tmp_path / "jobs.db"

        def image(journal: Journal) -> Journal:
            assert isinstance(journal, SqliteJournal)
            copy_as_after_a_crash(journal.path, tmp_path / "image.db")
            return make_journal(tmp_path / "image.db")

        return JournalSetup(open=lambda: make_journal(path), image=image, open_snapshot=make_journal)


class TestBrokerOnSqlite(BrokerConformance):
    @pytest.fixture
    def broker_setup(self, tmp_path: Path) -> BrokerSetup:
        clock = SettableClock()
        ports = deterministic_ports(clock)
        paths = [tmp_path / "0.db"]

        def open_broker() -> Broker:
            settings = SqliteStorage(data_path=paths[-1])
            context = OpenContext(ports=ports, version="0", role="server", log=ignore)
            return LocalBroker(
                SQLITE_DRIVER.open(settings, context),
                ports=ports,
                capabilities=SQLITE_DRIVER.capabilities,
                settings=settings,
                strategies=BACKOFF_STRATEGIES,
                log=ignore,
                role="manual",
            )

        def crash(_: Broker) -> Broker:
            copy = tmp_path / f"{len(paths)}.db"
            copy_as_after_a_crash(paths[-1], copy)
            paths.append(copy)
            return open_broker()

        def run_due(broker: Broker) -> None:
            assert isinstance(broker, LocalBroker)
            broker.run_due()

        return BrokerSetup(open=open_broker, clock=clock, run_due=run_due, crash=crash)
