"""SIGKILL in the middle of commits: what was acknowledged is there, change sets are whole, the file is sound."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

#: Commits change sets without end and prints the number of each when its commit has returned.
WRITER = """
import sys
from bunqueue_sqlite import SqliteStorage
from bunqueue_sqlite.journal import SqliteJournal
from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import OpenContext
from bunqueue_core.storage.changes import ChangeSet, DlqRow, JobRow, MoveRow, ResultRow

context = OpenContext(ports=Ports(), version="0", role="server", log=lambda *_, **__: None)
journal = SqliteJournal(SqliteStorage(data_path=sys.argv[1]), context)
journal.open()
first, size = int(sys.argv[2]), int(sys.argv[3])
n = first
while True:
    ids = [f"{n}-{at}" for at in range(size)]
    before = [f"{n - 1}-{at}" for at in range(size)]
    journal.commit(ChangeSet(
        put=[JobRow(id, "q", "n", bytes(300), 0, n, n, "waiting") for id in ids],
        moved=[MoveRow(id, "completed", n, n, bytes(100)) for id in before if n > first],
        results=[ResultRow(id, b"r", n) for id in before if n > first],
        dlq_put=[DlqRow(n, "x", "q", b"e", n)],
    ))
    sys.stdout.write(f"{n}\\n")
    sys.stdout.flush()
    n += 1
"""


def kill_a_writer(db: Path, first: int, size: int, commits: int) -> int:
    """Run the writer until it has acknowledged ``commits``, kill it, and give the number of the last acknowledged commit."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(db), str(first), str(size)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert writer.stdout is not None
    seen = b""
    try:
        while seen.count(b"\n") < commits:
            chunk = os.read(writer.stdout.fileno(), 65_536)
            if not chunk:
                _, problem = writer.communicate()
                pytest.fail(problem.decode())
            seen += chunk
        writer.send_signal(signal.SIGKILL)
    finally:
        writer.kill()
        writer.wait()
    while select.select([writer.stdout], [], [], 0)[0] and (chunk := os.read(writer.stdout.fileno(), 65_536)):
        seen += chunk
    writer.stdout.close()
    assert writer.stderr is not None
    writer.stderr.close()
    return int(seen[: seen.rindex(b"\n")].split(b"\n")[-1])


@pytest.mark.parametrize("size", [1, 8, 300], ids=lambda size: f"{size} rows")
def test_what_was_acknowledged_survives_a_kill_and_commits_are_whole(make_journal: Any, db: Path, size: int) -> None:
    chance = random.Random(size)
    first = 0
    for _ in range(3):
        acknowledged = kill_a_writer(db, first, size, chance.randint(1, 40 if size > 100 else 400))
        journal = make_journal(db)
        journal.open()
        letters = [entry.id for batch in journal.load_dlq(10_000) for entry in batch]
        last = max(letters)
        assert letters == list(range(last + 1))
        # at most the one commit that was under way is there without having been acknowledged
        assert last in (acknowledged, acknowledged + 1)
        for n in range(first, last + 1):
            jobs = journal.read_jobs([f"{n}-{at}" for at in range(size)])
            assert len(jobs) == size
            assert {job.state for job in jobs.values()} == {"waiting" if n == last else "completed"}
            assert len(journal.read_results(list(jobs))) == (0 if n == last else size)
        journal.close()
        connection = apsw.Connection(str(db))
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
        first = last + 1
