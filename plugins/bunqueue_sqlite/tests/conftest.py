"""Journals on files of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite.journal import SqliteJournal

from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import OpenContext

#: Makes a journal (not opened): path, further settings, and ``vfs``. It is closed at the end of the test.
MakeJournal = Callable[..., SqliteJournal]


class Log(list[tuple[str, str, dict[str, Any]]]):
    """Collects log records: level, message, fields."""

    def __call__(self, level: str, message: str, fields: dict[str, Any] | None = None, **more: Any) -> None:
        self.append((level, message, {**(fields or {}), **more}))

    @property
    def messages(self) -> list[str]:
        return [message for _, message, _ in self]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def make_journal(log: Log) -> Iterator[MakeJournal]:
    made: list[SqliteJournal] = []

    def make(path: Path, *, vfs: str = "", **settings: Any) -> SqliteJournal:
        context = OpenContext(ports=Ports(now=lambda: 1_700_000_000_000), version="0", role="server", log=log)
        journal = SqliteJournal(SqliteStorage(data_path=path, **settings), context, vfs=vfs)
        made.append(journal)
        return journal

    yield make
    for journal in made:
        journal.close()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """The path of a database that does not exist yet."""
    return tmp_path / "jobs.db"


@pytest.fixture
def journal(make_journal: MakeJournal, db: Path) -> SqliteJournal:
    """An open journal on a new file."""
    journal = make_journal(db)
    journal.open()
    return journal
