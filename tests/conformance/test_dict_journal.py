"""The journal that tests stand on keeps the rules of a journal itself."""

from __future__ import annotations

import pytest
from brokers import local_broker, run_due

from bunqueue_core.broker.protocol import Broker, Capabilities
from bunqueue_core.model.errors import JournalError
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.storage.changes import ChangeSet
from bunqueue_core.testing import DictJournal, SettableClock, deterministic_ports
from bunqueue_core.testing.conformance import BrokerConformance, BrokerSetup, JournalConformance, JournalSetup
from bunqueue_core.testing.conformance.journal import job_row


class TestBrokerOnDictJournal(BrokerConformance):
    """The engine over a journal without a disk: recovery and crashes on a settable clock."""

    @pytest.fixture
    def broker_setup(self) -> BrokerSetup:
        clock = SettableClock()
        ports = deterministic_ports(clock)
        journals = [DictJournal()]
        capabilities = Capabilities(driver="dict", snapshots=False)

        def open_broker() -> Broker:
            return local_broker(journals[-1], capabilities, JournalSettings(driver="dict"), ports, "manual")

        def crash(_: Broker) -> Broker:
            journals.append(journals[-1].image())
            return open_broker()

        return BrokerSetup(open=open_broker, clock=clock, run_due=run_due, crash=crash)


class TestBrokerOnDictJournalFromThreads(TestBrokerOnDictJournal):
    world = "thread"


class TestDictJournal(JournalConformance):
    @pytest.fixture
    def journal_setup(self) -> JournalSetup:
        journal = DictJournal()
        return JournalSetup(open=lambda: journal, image=lambda _: journal.image(), exclusive=False)


def test_a_placed_fault_refuses_a_commit_whole() -> None:
    journal = DictJournal()
    journal.open()
    journal.fail_commits = 1
    journal.disk_full = True
    with pytest.raises(JournalError) as caught:
        journal.commit(ChangeSet(put=[job_row("a")]))
    assert caught.value.disk_full
    assert journal.read_jobs(["a"]) == {}
    journal.commit(ChangeSet(put=[job_row("a")]))
    assert list(journal.read_jobs(["a"])) == ["a"]
    assert journal.commits == 1


def test_an_image_is_a_copy_of_its_own() -> None:
    journal = DictJournal()
    journal.open()
    journal.commit(ChangeSet(put=[job_row("a")]))
    image = journal.image()
    journal.commit(ChangeSet(put=[job_row("b")]))
    assert list(image.read_jobs(["a", "b"])) == ["a"]
