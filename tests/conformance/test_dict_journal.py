"""The journal that tests stand on keeps the rules of a journal itself."""

from __future__ import annotations

import pytest

from bunqueue_core.model.errors import JournalError
from bunqueue_core.storage.changes import ChangeSet
from bunqueue_core.testing import DictJournal
from bunqueue_core.testing.conformance import JournalConformance, JournalSetup
from bunqueue_core.testing.conformance.journal import job_row


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
