"""SIGKILL, I/O errors and full disks during backups, restores and vacuums: at every file operation; in the campaign at any time."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from bunqueue_sqlite.settings import SqliteStorage
from bunqueue_sqlite.snapshots import SqliteFiles
from fixtures.backups import Records, jobs_in, make_database
from fixtures.server import clean_environment
from kill_points import FAILURE, FINISHED

from bunqueue_core import Queue
from bunqueue_core.backup.folder import FolderStore
from bunqueue_core.backup.service import Backups

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")

PROGRAM = Path(__file__).with_name("kill_points.py")


def backups(database: Path, store: Path) -> Backups:
    return Backups(
        FolderStore(store), SqliteFiles(SqliteStorage(data_path=database)), version="1", log=Records(), retention=100
    )


@pytest.fixture
def folder(tmp_path: Path, template: Path) -> Path:
    """A database with 20 jobs, and its backup."""
    (tmp_path / "kept").mkdir()
    shutil.copyfile(template, tmp_path / "template.db")
    assert backups(tmp_path / "template.db", tmp_path / "kept").run().success
    return tmp_path


def interfered(how: str, what: str, folder: Path) -> list[dict[str, Any]]:
    """What the program found after each interference; the last line is of a run that was left alone."""
    result = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAM), how, what, str(folder)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["finished"] for line in lines] == [False] * (len(lines) - 1) + [True]
    return lines


def add_to_the_log(folder: Path) -> None:
    """Have the database hold 7 jobs more than the backup, in its log only."""
    with Queue("mail", embedded=True, data_path=folder / "template.db") as queue:
        queue.add_bulk([{"name": "later", "durable": True}] * 7)
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{folder}/template.db{suffix}", f"{folder}/open.db{suffix}")
    for suffix in ("", "-wal"):
        os.replace(f"{folder}/open.db{suffix}", f"{folder}/template.db{suffix}")
    connection = apsw.Connection(
        f"file:{folder}/template.db?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    assert connection.execute("SELECT count(*) FROM jobs").fetchall() == [(20,)]
    connection.close()


def test_a_restore_killed_at_any_file_operation_has_happened_or_not(folder: Path) -> None:
    add_to_the_log(folder)
    lines = interfered("kill", "restore", folder)
    assert len(lines) > 15
    assert {line["error"] for line in lines} == {""}
    assert {tuple(line["names"]) for line in lines} == {("jobs.db",)}
    jobs = [line["jobs"] for line in lines]
    replaced = jobs.index(20)
    assert jobs == [27] * replaced + [20] * (len(jobs) - replaced)


def test_a_backup_killed_at_any_file_operation_is_published_or_not(folder: Path) -> None:
    lines = interfered("kill", "backup", folder)
    assert len(lines) > 15
    assert {line["jobs"] for line in lines} == {20}
    assert [line["broken"] for line in lines if line["broken"]] == []
    assert all(line["next"] for line in lines)
    assert {tuple(line["names"]) for line in lines} == {("jobs.db",)}
    listed = [line["listed"] for line in lines]
    assert set(listed) <= {1, 2}
    assert listed[0] == 1


@pytest.mark.parametrize("how", ["fail", "full"])
def test_a_restore_that_meets_an_error_anywhere_has_happened_if_it_says_so(folder: Path, how: str) -> None:
    add_to_the_log(folder)
    lines = interfered(how, "restore", folder)
    assert len(lines) > 15
    assert {line["error"] for line in lines} == {""}
    assert {tuple(line["names"]) for line in lines} == {("jobs.db",)}
    for line in lines:
        assert line["jobs"] == (27 if line["code"] == FAILURE else 20), line
    assert {line["code"] for line in lines} >= {FAILURE, FINISHED}


@pytest.mark.parametrize("how", ["fail", "full"])
def test_a_backup_that_meets_an_error_anywhere_is_published_if_it_says_so(folder: Path, how: str) -> None:
    lines = interfered(how, "backup", folder)
    assert len(lines) > 15
    for line in lines:
        assert (line["jobs"], line["broken"], line["next"], line["names"]) == (20, [], True, ["jobs.db"]), line
        # The older one is deleted once there is a newer one, or stays until the next time.
        assert line["listed"] == 1 or line["code"] != FAILURE, line
    assert {line["code"] for line in lines} >= {FAILURE, FINISHED}


@pytest.mark.parametrize("how", ["kill", "fail", "full"])
def test_a_vacuum_that_is_killed_or_meets_an_error_anywhere_loses_nothing(folder: Path, how: str) -> None:
    add_to_the_log(folder)
    lines = interfered(how, "vacuum", folder)
    assert len(lines) > 10
    assert {(line["error"], line["jobs"], tuple(line["names"])) for line in lines} == {("", 27, ("jobs.db",))}


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_campaign_of_kills_at_any_time(tmp_path: Path) -> None:
    """``BUNQUEUE_KILLS`` processes (200) are killed: backups, and restores over a database with newer jobs."""
    seed = int(os.environ.get("BUNQUEUE_SEED", str(random.randrange(2**32))))
    print(f"BUNQUEUE_SEED={seed}")
    chance = random.Random(seed)
    store = tmp_path / "kept"
    store.mkdir()
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    for path, jobs in ((old, 30_000), (new, 40_000)):
        make_database(path, jobs)
    first = backups(old, store).run()
    assert first.success
    work = tmp_path / "work"
    environment = {
        **clean_environment(),
        "BUNQUEUE_DATA_PATH": str(work / "jobs.db"),
        "BUNQUEUE_BACKUP_TARGET": "folder",
        "BUNQUEUE_BACKUP_FOLDER": str(store),
    }
    longest = {"now": 3.0, "restore": 3.0}
    outcomes = {"killed": 0, "ended": 0}
    for number in range(int(os.environ.get("BUNQUEUE_KILLS", "200"))):
        what = ("now", "restore")[number % 2]
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        shutil.copyfile(new, work / "jobs.db")
        arguments = ["now"] if what == "now" else ["restore", str(first.key), "-f"]
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-c", "from bunqueue_core.cli import main; main()", "backup", *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(chance.uniform(0.3, longest[what]))
            outcomes["ended"] += 1
            longest[what] = min(longest[what], time.monotonic() - begun)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            outcomes["killed"] += 1
        with SqliteFiles(SqliteStorage(data_path=work / "jobs.db")).own():
            pass
        jobs = jobs_in(work / "jobs.db")
        assert jobs in ((40_000,) if what == "now" else (30_000, 40_000)), f"kill {number}"
        keeper = backups(work / "jobs.db", store)
        for backup in keeper.list():
            if backup.key != first.key:
                assert keeper.verify(backup.key).success, f"kill {number}: {backup.key}"
                (store / backup.key).unlink()
        assert keeper.run().success
        assert [path.name for path in work.iterdir() if path.suffix == ".tmp"] == []
        for backup in keeper.list():
            if backup.key != first.key:
                (store / backup.key).unlink()
    print(outcomes)
    assert outcomes["killed"] > outcomes["ended"] / 2
