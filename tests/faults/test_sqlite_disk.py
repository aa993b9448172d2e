"""A disk that fails under a broker on SQLite: nothing that was answered is lost, and the broker goes on by itself.

Faults are placed in a file layer below SQLite; see :mod:`fixtures.faulty_disk`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from bunqueue_sqlite import journal as sqlite_journal
from fixtures.faulty_disk import FaultyDisk, PowerlessDisk
from fixtures.sqlite_bench import DURABLE, Bench, check_integrity, open_broker, payload

from bunqueue_core.broker import local
from bunqueue_core.model.errors import JournalError, StorageUnavailable
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import PullRequest
from bunqueue_core.storage import buffer
from bunqueue_core.storage.buffer import (
    COMMAND_DEADLINE_MS,
    CRITICAL_TRIES,
    MAX_RETRY_MS,
    MAX_UNWRITTEN_TIMES,
    CriticalFailure,
)


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    yield disk
    disk.heal()
    disk.unregister()


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: faults are placed above the disk, and a sync that takes time shows nothing more."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


# -- one fault at every place -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "error", "synchronous"),
    [
        (("write",), apsw.IOError, "normal"),
        (("write",), apsw.FullError, "normal"),
        (("sync",), apsw.IOError, "full"),
        (("write", "sync", "truncate"), apsw.IOError, "full"),
    ],
    ids=["write-error", "write-full", "sync-error", "any-error"],
)
def test_a_fault_at_any_place_of_a_load_loses_nothing(
    db: Path, disk: FaultyDisk, tmp_path: Path, kinds: tuple[str, ...], error: Any, synchronous: str
) -> None:
    bench = Bench(db, vfs=disk.name, synchronous=synchronous)
    places = 0
    for place in range(1_000):
        disk.fail(error, *kinds, after=place)
        bench.load(f"q{place}")
        bench.journal.checkpoint_when_idle()
        assert bench.journal.wait_for_checkpoint(30)
        missed = disk.failed == 0
        disk.heal()
        bench.run(MAX_RETRY_MS)
        bench.run()
        assert bench.broker.health().ready
        if place % 7 == 0 or missed:
            bench.check(bench.crash_image(tmp_path / "image"))
        if missed:
            break
        places += 1
    else:
        pytest.fail("the fault was met at every place; there is no end to the load")
    assert places >= (10 if "write" in kinds else 5)
    bench.broker.close().result()
    bench.check(db)


@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
def test_a_fault_at_any_place_of_a_start_is_told_and_the_next_start_works(
    db: Path, disk: FaultyDisk, tmp_path: Path, error: Any
) -> None:
    bench = Bench(db)
    bench.load("q")
    bench.take("q", 10)  # to be recovered by a start
    image = bench.crash_image(tmp_path / "image")
    for place in range(1_000):
        path = tmp_path / f"start-{place}" / "jobs.db"
        path.parent.mkdir()
        for file in image.parent.iterdir():
            (path.parent / file.name).write_bytes(file.read_bytes())
        disk.fail(error, "open", "write", "sync", "truncate", "delete", after=place)
        problem: JournalError | None = None
        try:
            broker, _ = open_broker(path, vfs=disk.name)
        except JournalError as caught:
            problem = caught
        disk.heal()
        if problem is None:
            broker.close().result()
        else:
            assert str(path) not in str(problem)
        bench.check(path)
        again, _ = open_broker(path)
        assert again.counts("q").value.completed == 2
        assert again.counts("q").value.active == 0
        again.close().result()
        check_integrity(path)
        if disk.failed == 0:
            break
    else:
        pytest.fail("the fault was met at every place; there is no end to a start")
    assert place > 10
    bench.broker.close().result()


def test_a_fault_at_any_place_of_a_stop_leaves_everything_for_the_next_start(
    db: Path, disk: FaultyDisk, tmp_path: Path
) -> None:
    for place in range(0, 1_000, 3):
        path = tmp_path / f"stop-{place}" / "jobs.db"
        path.parent.mkdir()
        bench = Bench(path, vfs=disk.name)
        bench.load("q")
        bench.added.update(bench.add_buffered("q", 10))
        disk.fail(apsw.IOError, "write", "sync", "truncate", "delete", after=place)
        bench.broker.close().result()
        missed = disk.failed == 0
        disk.heal()
        bench.check(path)
        if missed:
            break
    else:
        pytest.fail("the fault was met at every place; there is no end to a stop")
    assert place > 2


# -- a disk that is away for long -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "problem"), [(apsw.FullError, "disk full"), (apsw.IOError, "writes fail")], ids=["full", "broken"]
)
def test_a_disk_that_is_away_refuses_adds_and_comes_back_by_itself(
    db: Path, disk: FaultyDisk, error: Any, problem: str
) -> None:
    bench = Bench(db, vfs=disk.name)
    critical: list[CriticalFailure] = []
    bench.broker.on_critical = critical.append
    bench.load("q")
    disk.fail(error, "write", lasting=True)
    buffered = bench.add_buffered("q", 3)
    waiting = bench.broker.push("q", [JobSpec("n", b"\x01", DURABLE)])
    for _ in range(CRITICAL_TRIES - 1):
        bench.run(MAX_RETRY_MS)
        assert bench.broker.push("q", [JobSpec("n", b"\x01")]).error is None or critical
    assert not critical
    health = bench.broker.health()
    assert (health.ready, health.degraded, health.problem) == (False, True, problem)
    assert health.disk_full == (error is apsw.FullError)
    bench.run(MAX_RETRY_MS)
    (failure,) = critical
    assert set(buffered) <= set(failure.job_ids)
    assert (failure.attempts, failure.problem) == (CRITICAL_TRIES, problem)
    for size in (1, 100):
        with pytest.raises(StorageUnavailable, match=f"Storage unavailable: {problem}"):
            bench.broker.push("q", [JobSpec("n", b"\x01")] * size).result(0)
    assert isinstance(waiting.error, StorageUnavailable)  # it has waited for longer than a command may
    for _ in range(5):
        bench.run(MAX_RETRY_MS)
    assert len(critical) == 1
    assert bench.log.messages.count("CRITICAL: storage unavailable, adds are refused until it recovers") == 1
    disk.heal()
    bench.run(MAX_RETRY_MS)
    assert bench.broker.health().ready
    assert "Storage works again: everything is written" in bench.log.messages
    bench.add("q", 2)
    bench.added.update(buffered)
    bench.broker.close().result()
    bench.check(db)


def test_a_stop_while_the_disk_is_away_says_what_it_could_not_do(db: Path, disk: FaultyDisk) -> None:
    bench = Bench(db, vfs=disk.name)
    bench.load("q")
    disk.fail(apsw.FullError, "write", lasting=True)
    bench.add_buffered("q", 3)
    waiting = bench.broker.push("q", [JobSpec("n", b"\x01", DURABLE)])
    closed = bench.broker.close(0)
    assert isinstance(closed.error, StorageUnavailable)
    assert "changes could not be written before the deadline" in str(closed.error)
    assert waiting.error is not None, "who waits for a commit is not told that it came"
    disk.heal()
    bench.check(db)  # whatever was answered before is there


def test_a_full_disk_with_commits_of_every_size(db: Path, disk: FaultyDisk) -> None:
    bench = Bench(db, vfs=disk.name)
    chance = random.Random(1)
    for round in range(20):
        disk.capacity = bench.journal.log_bytes() + chance.randrange(200_000)
        answers = [
            bench.broker.push("q", [JobSpec("n", payload(chance.randrange(5_000)), DURABLE)] * chance.randrange(1, 60))
            for _ in range(10)
        ]
        for _ in range(3):
            bench.run(chance.choice((0, 100, 1_000)))
        met = disk.failed
        disk.failed = 0
        disk.heal()
        for answer in answers:
            bench.added.update(bench.finish(answer).ids)
        assert met or round, "the first round has to meet the bound"
    bench.broker.close().result()
    bench.check(db)


def test_memory_is_bounded_while_the_disk_is_away(db: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (buffer, local):
        monkeypatch.setattr(module, "MAX_UNWRITTEN_ROWS", 2_000)
    bench = Bench(db, vfs=disk.name)
    disk.fail(apsw.FullError, "write", lasting=True)
    accepted = refused = 0
    for _ in range(100):
        answer = bench.broker.push("q", [JobSpec("n", b"\x01")] * 100)
        if answer.error is not None:
            refused += 1
        else:
            accepted += 100
        bench.run(1)
    assert refused
    bound = MAX_UNWRITTEN_TIMES * 2_000
    assert accepted == bound + 100  # the add that passed the bound is the last
    assert bench.broker.statistics()["unwrittenRows"] == accepted
    disk.heal()
    bench.run(MAX_RETRY_MS)
    bench.run()
    assert bench.broker.statistics()["unwrittenRows"] == 0
    assert bench.broker.counts("q").value.waiting == accepted
    bench.broker.close().result()


def test_a_delivery_that_cannot_be_stored_is_taken_back_uncharged(db: Path, disk: FaultyDisk) -> None:
    bench = Bench(db, vfs=disk.name)
    (id,) = bench.add("q", 1)
    disk.fail(apsw.IOError, "write", lasting=True)
    pulled = bench.broker.pull(PullRequest("q", owner="w"))
    while not pulled.ready:
        bench.run(1_000)
    assert isinstance(pulled.error, StorageUnavailable)
    assert bench.clock.now_ms - bench.broker._started_at >= COMMAND_DEADLINE_MS
    disk.heal()
    bench.run(MAX_RETRY_MS)
    ((job, _),) = bench.take("q", 5)
    assert (job.id, job.attempts, job.stall_count) == (id, 0, 0)
    bench.broker.close().result()


def test_a_database_that_another_process_has_locked(
    db: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_journal, "BUSY_TIMEOUT_MS", 20)
    bench = Bench(db)
    rival = apsw.Connection(str(db))
    rival.execute("BEGIN IMMEDIATE")
    answer = bench.broker.push("q", [JobSpec("n", b"\x01", DURABLE)])
    bench.run()
    bench.run(MAX_RETRY_MS // 10)
    assert not answer.ready
    health = bench.broker.health()
    assert (health.degraded, health.problem, health.disk_full) == (True, "database busy", False)
    _, message, fields = bench.log[-1]
    assert message.startswith("Commit failed")
    assert fields["error"] == "cannot commit: another process has locked the database"
    rival.execute("ROLLBACK")
    rival.close()
    bench.added.update(bench.finish(answer).ids)
    bench.broker.close().result()
    bench.check(db)


# -- what an answer promises ------------------------------------------------------------------------------------------


def test_with_synchronous_full_every_commit_is_synced_once(db: Path, disk: FaultyDisk) -> None:
    bench = Bench(db, vfs=disk.name, synchronous="full")
    bench.add("q", 1)  # the first one makes the log
    for group in (1, 1, 100):
        before = disk.done["sync"]
        commits = bench.broker.statistics()["commits"]
        answers = [bench.broker.push("q", [JobSpec("n", b"\x01", DURABLE)]) for _ in range(group)]
        bench.run()
        assert all(answer.ready for answer in answers)
        assert bench.broker.statistics()["commits"] == commits + 1
        assert disk.done["sync"] == before + 1, "one sync for all who wait for a commit"
    bench.broker.close().result()


def test_with_synchronous_normal_no_commit_is_synced(db: Path, disk: FaultyDisk) -> None:
    bench = Bench(db, vfs=disk.name)
    bench.add("q", 1)
    before = disk.done["sync"]
    for _ in range(50):
        bench.add("q", 1)
    assert disk.done["sync"] == before
    bench.broker.close().result()


@pytest.mark.parametrize("synchronous", ["full", "normal"])
def test_after_a_loss_of_power(db: Path, tmp_path: Path, synchronous: str) -> None:
    chance = random.Random(5)
    disk = PowerlessDisk()
    bench = Bench(db, vfs=disk.name, synchronous=synchronous)
    disk.adopt(db)
    try:
        for round in range(12):
            for _ in range(chance.randrange(1, 4)):
                bench.load(f"q{round}")
            if chance.random() < 0.4:
                bench.journal.checkpoint_when_idle()
                assert bench.journal.wait_for_checkpoint(30)
            folder = tmp_path / f"loss-{round}"
            folder.mkdir()
            disk.after_loss(folder, chance)
            if synchronous == "full":
                bench.check(folder / "jobs.db")
            else:  # the latest may be gone, but the file is sound and can be opened
                broker, _ = open_broker(folder / "jobs.db")
                broker.close().result()
                check_integrity(folder / "jobs.db")
        bench.broker.close().result()
    finally:
        disk.unregister()
    bench.check(db)


# -- a log that is damaged --------------------------------------------------------------------------------------------


def test_of_a_log_that_was_cut_or_damaged_the_commits_before_that_remain(db: Path, tmp_path: Path) -> None:
    chance = random.Random(3)
    bench = Bench(db)
    ids = [bench.add("q", 1)[0] for _ in range(100)]
    image = bench.crash_image(tmp_path / "image")
    bench.broker.close().result()
    log = image.with_name("jobs.db-wal").read_bytes()
    lengths = set()
    for n in range(60):
        damaged = bytearray(log)
        place = chance.randrange(len(log))
        if n % 2:
            del damaged[place:]
        else:
            damaged[place] ^= 0xFF
        path = tmp_path / str(n) / "jobs.db"
        path.parent.mkdir()
        path.write_bytes(image.read_bytes())
        path.with_name("jobs.db-wal").write_bytes(damaged)
        broker, journal = open_broker(path)
        remaining = sorted(journal.read_jobs(ids))
        assert remaining == ids[: len(remaining)], "what remains are the first commits, each whole"
        assert broker.count("q").value == len(remaining)
        broker.close().result()
        check_integrity(path)
        lengths.add(len(remaining))
    assert len(lengths) > 20
