"""The target ``folder``."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from fixtures.backups import Bench, jobs_in
from pydantic import ValidationError

from bunqueue_core.backup.errors import StoreError
from bunqueue_core.backup.folder import FOLDER_TARGET, FolderBackup, FolderStore
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.plugins import PluginManager
from bunqueue_core.testing.conformance.backup_target import BackupTargetConformance


class TestTarget(BackupTargetConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderStore:
        return FolderStore(tmp_path)


def test_it_ships_with_the_core(tmp_path: Path) -> None:
    target = PluginManager(entry_points=[]).target("folder")
    assert target is FOLDER_TARGET
    settings = FolderBackup(folder=tmp_path)
    assert target.open(settings, None).prefix == ""  # type: ignore[arg-type]
    assert target.describe(settings) == {"folder": str(tmp_path)}


@pytest.mark.parametrize("folder", ["", "  ", "a\0b"])
def test_a_name_that_is_none_is_refused(folder: str) -> None:
    with pytest.raises(ValidationError, match=r"backup\.folder"):
        FolderBackup(folder=folder)


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not an existing folder; create it, or mount what it stands for"):
        FolderStore(tmp_path / "unmounted").check()
    assert not (tmp_path / "unmounted").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="cannot write to"):
        FolderStore(tmp_path).check()


@pytest.mark.parametrize("key", ["", ".", "..", "../x.db", "/etc/passwd", "a/b.db", ".hidden", "a\0b"])
def test_keys_stay_within_the_folder(tmp_path: Path, key: str) -> None:
    store = FolderStore(tmp_path)
    for call in (
        lambda: store.put(key, [b"x"]),
        lambda: list(store.get(key)),
        lambda: store.delete(key),
    ):
        with pytest.raises(StoreError, match="is not the name of a file"):
            call()


def test_folders_and_unfinished_files_are_not_listed_and_old_ones_tidied(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    (tmp_path / "folder.db").mkdir()
    for name, at in ((".bunqueue-old.part", 1_000), (".bunqueue-young.part", 9_000)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (at, at))
    assert store.list() == []
    assert store.tidy(5_000_000) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".bunqueue-young.part", "folder.db"]


@pytest.mark.parametrize(
    ("number", "text", "retryable"),
    [
        (errno.ENOSPC, "cannot write a file in backup.folder: its disk is full", False),
        (errno.EIO, "cannot write a file in backup.folder: Input/output error", True),
        (errno.EACCES, "cannot write a file in backup.folder: Permission denied", False),
    ],
)
def test_errors_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, text: str, retryable: bool
) -> None:
    def replace(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("bunqueue_core.backup.folder.os.replace", replace)
    with pytest.raises(StoreError) as caught:
        FolderStore(tmp_path).put("a.db", [b"x"])
    assert (str(caught.value), caught.value.retryable) == (text, retryable)
    assert list(tmp_path.iterdir()) == []


def test_there_and_back(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    backups = bench.backups(FolderStore(folder), retention=2)
    for _ in range(3):
        key = str(backups.run().key)
        bench.now += 10
    assert sorted(path.name for path in folder.iterdir() if path.name.endswith(".meta.json"))[-1] == key + ".meta.json"
    assert len(list(folder.iterdir())) == 4
    bench.path.unlink()
    assert backups.verify().success
    assert backups.restore(key).success
    assert jobs_in(bench.path) == 20
