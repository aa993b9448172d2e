"""``bunqueue backup``: what it prints, where, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from bunqueue_sqlite.files import OwnerLock
from fixtures.backups import jobs_in
from fixtures.s3_server import NewBucket, new_bucket

from bunqueue_core import Queue
from bunqueue_core.cli.app import run

__all__ = ["new_bucket"]

KEY = r"bunqueue-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z-[0-9a-f-]{36}\.db"
USE = "Use: now, create, list, restore, status, verify"


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What stands below the message."""
        return json.loads(self.out.partition("\n")[2])


class Call(Protocol):
    def __call__(self, *arguments: str) -> Outcome: ...


@pytest.fixture
def bunqueue(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Runs ``bunqueue backup`` on a database with 20 jobs and a folder as target."""
    for name in list(os.environ):
        if name not in ("PATH", "HOME", "TMPDIR"):
            monkeypatch.delenv(name)
    shutil.copyfile(template, tmp_path / "jobs.db")
    (tmp_path / "kept").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "BUNQUEUE_PLUGINS": "sqlite,s3",
        "BUNQUEUE_DATA_PATH": "jobs.db",
        "BUNQUEUE_BACKUP_TARGET": "folder",
        "BUNQUEUE_BACKUP_FOLDER": "kept",
    }.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> Outcome:
        before = ["--json"] if arguments[:1] == ("--json",) else []
        code = run([*before, "backup", *arguments[len(before) :]])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def made(bunqueue: Call) -> str:
    """The key of a backup."""
    return str(bunqueue("now").data["key"])


@pytest.mark.parametrize("name", ["now", "create"])
def test_a_backup(bunqueue: Call, name: str) -> None:
    outcome = bunqueue(name)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Backup created successfully\n{\n")
    assert list(outcome.data) == ["key", "size", "duration"]
    assert re.fullmatch(KEY, outcome.data["key"])
    assert re.fullmatch(r"[1-9]\d*\.\d KB", outcome.data["size"])
    assert re.fullmatch(r"\d+ms", outcome.data["duration"])
    assert sorted(path.name for path in Path("kept").iterdir()) == [
        outcome.data["key"],
        outcome.data["key"] + ".meta.json",
    ]


def test_the_same_as_json(bunqueue: Call) -> None:
    document = json.loads(bunqueue("--json", "now").out)
    assert list(document) == ["success", "message", "data"]
    assert (document["success"], document["message"]) == (True, "Backup created successfully")
    assert re.fullmatch(KEY, document["data"]["key"])


def test_a_failed_backup(bunqueue: Call) -> None:
    Path("kept").rmdir()
    text = "cannot write a file in backup.folder: No such file or directory"
    outcome = bunqueue("now")
    assert (outcome.code, outcome.out) == (1, f"Backup failed: {text}\n")
    assert outcome.err == f'[Backup] Backup failed {{"error":"{text}"}}\n'
    assert json.loads(bunqueue("--json", "now").out) == {"success": False, "message": f"Backup failed: {text}"}


def test_a_listing(bunqueue: Call) -> None:
    assert bunqueue("list").out == "No backups found\n[]\n"
    assert json.loads(bunqueue("--json", "list").out) == {"success": True, "message": "No backups found", "data": []}
    keys = [bunqueue("now").data["key"] for _ in range(2)]
    outcome = bunqueue("list")
    assert outcome.out.startswith("Found 2 backup(s)\n[\n")
    assert [list(each) for each in outcome.data] == [["key", "size", "date"]] * 2
    assert sorted(each["key"] for each in outcome.data) == sorted(keys)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", outcome.data[0]["date"])


def test_a_listing_that_fails(bunqueue: Call) -> None:
    Path("kept").rmdir()
    text = "Failed to list backups: cannot list the folder in backup.folder: No such file or directory"
    outcome = bunqueue("list")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.endswith(f"Error: {text}\n")
    assert json.loads(bunqueue("--json", "list").err) == {"success": False, "message": text}


def test_a_restore(bunqueue: Call, made: str) -> None:
    Path("jobs.db").unlink()
    outcome = bunqueue("restore", made, "--force")
    assert outcome.code == 0
    assert outcome.out.startswith("Restore completed successfully\n")
    assert list(outcome.data) == ["key", "size", "duration"]
    assert jobs_in(Path("jobs.db")) == 20
    assert bunqueue("restore", "-f", made).code == 0


def test_a_restore_needs_consent(bunqueue: Call, made: str) -> None:
    outcome = bunqueue("restore", made)
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out == (
        "Restore will OVERWRITE the current database. Use --force (-f) to confirm.\n"
        "WARNING: Stop the server before restoring!\n"
    )


def test_a_restore_needs_a_key(bunqueue: Call) -> None:
    outcome = bunqueue("restore", "--force")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "Error: Missing required argument: backup-key\n"
    assert json.loads(bunqueue("--json", "restore").err) == {
        "success": False,
        "message": "Missing required argument: backup-key",
    }


def test_a_restore_of_nothing(bunqueue: Call) -> None:
    outcome = bunqueue("restore", "nope.db", "-f")
    assert (outcome.code, outcome.out) == (1, "Restore failed: Backup not found: nope.db\n")


def test_a_restore_while_somebody_has_the_database(bunqueue: Call, made: str) -> None:
    owner = OwnerLock(Path("jobs.db").absolute())
    owner.acquire()
    outcome = bunqueue("restore", made, "-f")
    owner.release()
    assert outcome.code == 1
    assert f"the database is in use by process {os.getpid()}" in outcome.out


def test_a_verification(bunqueue: Call, made: str) -> None:
    outcome = bunqueue("verify")
    assert outcome.code == 0
    assert outcome.out.startswith("Backup verified\n")
    assert outcome.data.pop("duration").endswith("ms")
    assert (outcome.data["key"], outcome.data["rows"]) == (made, {"jobs": 20})
    Path("kept", made).write_bytes(b"x")
    failed = bunqueue("verify", made)
    assert (failed.code, failed.out) == (
        1,
        "Verification failed: Backup metadata is invalid or does not match the payload\n",
    )


def test_status(bunqueue: Call) -> None:
    outcome = bunqueue("status")
    assert outcome.code == 0
    assert outcome.out.startswith("Backup configuration\n")
    assert outcome.data == {
        "enabled": False,
        "target": "folder",
        "folder": "kept",
        "interval": "360 minutes",
        "retention": "7 backups",
    }


def test_status_of_s3_shows_no_secrets(bunqueue: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "BUNQUEUE_BACKUP_TARGET": "s3",
        "S3_BUCKET": "vault",
        "S3_ACCESS_KEY_ID": "AKIATEST",
        "S3_SECRET_ACCESS_KEY": "correct-horse",
        "S3_BACKUP_ENABLED": "1",
        "BUNQUEUE_BACKUP_VERIFY_INTERVAL": "86400000",
    }.items():
        monkeypatch.setenv(name, value)
    outcome = bunqueue("status")
    assert outcome.data == {
        "enabled": True,
        "bucket": "vault",
        "endpoint": "AWS S3",
        "interval": "360 minutes",
        "retention": "7 backups",
        "verification": "1440 minutes",
    }
    assert "correct-horse" not in outcome.out + outcome.err


def test_arguments(bunqueue: Call) -> None:
    for arguments, text in (
        ((), f"Missing backup subcommand. {USE}"),
        (("bogus",), f"Unknown backup subcommand: bogus. {USE}"),
        (("now", "--bogus"), "No such option '--bogus'."),
    ):
        outcome = bunqueue(*arguments)
        assert (outcome.code, outcome.out, outcome.err) == (1, "", f"Error: {text}\n")
        document = json.loads(bunqueue("--json", *arguments).err)
        assert document == {"success": False, "message": text}


def test_without_a_storage(bunqueue: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUNQUEUE_DATA_PATH")
    text = "BUNQUEUE_DATA_PATH not set. Backup requires persistent storage."
    outcome = bunqueue("status")
    assert (outcome.code, outcome.out, outcome.err) == (1, text + "\n", "")
    assert json.loads(bunqueue("--json", "now").out) == {"success": False, "message": text}


def test_without_a_bucket(bunqueue: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNQUEUE_BACKUP_TARGET", "s3")
    monkeypatch.setenv("S3_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("S3_BACKUP_RETENTION", "-1")
    outcome = bunqueue("status")
    assert outcome.code == 1
    assert outcome.out.startswith("S3 configuration invalid:\n  - ")
    assert "S3_BUCKET is required" in outcome.out
    assert "S3_BACKUP_RETENTION" in outcome.out


def test_a_configuration_file(bunqueue: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUNQUEUE_DATA_PATH", "BUNQUEUE_BACKUP_TARGET", "BUNQUEUE_BACKUP_FOLDER"):
        monkeypatch.delenv(name)
    Path("mine.toml").write_text(
        '[storage]\ndriver = "sqlite"\ndataPath = "jobs.db"\n'
        '[backup]\nenabled = true\ntarget = "folder"\nfolder = "kept"\nretention = 3\n'
    )
    assert bunqueue("status", "-c", "mine.toml").data["enabled"] is True
    assert bunqueue("now", "--config", "mine.toml").code == 0
    Path("bunqueue.config.py").write_text(
        "from bunqueue_core import define_config\n"
        "from bunqueue_core.backup.folder import FolderBackup\n"
        "from bunqueue_core.config import BackupSettings\n"
        "config = define_config(storage={'data_path': 'jobs.db'},\n"
        "    backup=BackupSettings(enabled=False, store=FolderBackup(folder='kept')))\n"
    )
    assert bunqueue("status").data["enabled"] is False
    assert bunqueue("list").out.startswith("Found 1 backup(s)")


def test_beside_a_running_owner(bunqueue: Call) -> None:
    with Queue("mail", embedded=True, data_path="jobs.db") as queue:
        queue.add_bulk([{"name": "more", "durable": True}] * 5)
        assert bunqueue("now").code == 0
    assert bunqueue("verify").data["rows"] == {"jobs": 25}


def test_s3(bunqueue: Call, monkeypatch: pytest.MonkeyPatch, new_bucket: NewBucket) -> None:
    bucket = new_bucket()
    for name, value in {
        "BUNQUEUE_BACKUP_TARGET": "s3",
        "S3_BUCKET": bucket.name,
        "S3_ENDPOINT": f"http://127.0.0.1:{bucket.port}",
        "S3_ACCESS_KEY_ID": "AKIATEST",
        "S3_SECRET_ACCESS_KEY": "correct-horse",
    }.items():
        monkeypatch.setenv(name, value)
    key = bunqueue("now").data["key"]
    assert re.fullmatch(f"backups/{KEY}", key)
    assert bunqueue("list").data[0]["key"] == key
    assert bunqueue("verify").data["rows"] == {"jobs": 20}
    assert bunqueue("restore", key, "-f").code == 0


def test_people_see_how_far_it_is(bunqueue: Call, tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from bunqueue_core.cli import main; main()", "backup", "now"],
        stdout=subprocess.PIPE,
        stderr=child,
        env={**os.environ, "NO_COLOR": "1"},
        text=True,
    )
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):
        while piece := os.read(parent, 4096):
            shown += piece
    os.close(parent)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.startswith("Backup created successfully\n")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    for step in ("Taking a snapshot", "Checking the snapshot", "Compressing", "Publishing", "Deleting old backups"):
        assert step in text
