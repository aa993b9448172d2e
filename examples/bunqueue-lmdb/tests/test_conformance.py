"""The driver under the conformance kit: the journal by itself, and the broker over it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bunqueue_lmdb import LmdbStorage, plugin
from bunqueue_lmdb.journal import LmdbJournal

from bunqueue_core.storage.journal import Journal
from bunqueue_core.testing.conformance import (
    BrokerConformance,
    BrokerSetup,
    JournalConformance,
    JournalSetup,
    local_setup,
)


class TestLmdbJournal(JournalConformance):
    @pytest.fixture
    def journal_setup(self, tmp_path: Path) -> JournalSetup:
        def open_file(path: Path) -> Journal:
            return LmdbJournal(LmdbStorage(file=path))

        def image(_: Journal) -> Journal:
            shutil.copyfile(tmp_path / "jobs", tmp_path / "image")
            return open_file(tmp_path / "image")

        return JournalSetup(open=lambda: open_file(tmp_path / "jobs"), image=image)


class TestBrokerOnLmdb(BrokerConformance):
    @pytest.fixture
    def broker_setup(self, tmp_path: Path) -> BrokerSetup:
        return local_setup(
            plugin,
            settings=lambda number: LmdbStorage(file=tmp_path / str(number)),
            crash=lambda old, new: shutil.copyfile(old.file, new.file),
        )
