"""Settings, the plugin, and where a database may lie."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from bunqueue_sqlite import SqliteStorage, files, plugin
from bunqueue_sqlite.journal import SqliteJournal, check_library
from pydantic import ValidationError

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins.drivers import OpenContext


def test_defaults() -> None:
    settings = SqliteStorage(data_path=Path("x.db"))
    assert settings.driver == "sqlite"
    assert settings.synchronous == "normal"
    assert settings.allow_network_filesystem is False
    assert settings.max_completed_jobs == 50_000


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (":memory:", "storage.driver = 'memory'"),
        ("file::memory:?cache=shared", "storage.driver = 'memory'"),
        ("", "is empty"),
        ("  ", "is empty"),
        ("a\0b", "NUL"),
    ],
)
def test_a_path_that_is_no_file_is_refused(value: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        SqliteStorage(data_path=value)  # type: ignore[arg-type]


def test_synchronous_takes_two_words() -> None:
    with pytest.raises(ValidationError):
        SqliteStorage(data_path=Path("x.db"), synchronous="off")  # type: ignore[arg-type]


def test_the_plugin_gives_the_driver(tmp_path: Path) -> None:
    (driver,) = plugin.bunqueue_storage_drivers()
    assert driver.name == "sqlite"
    assert driver.settings is SqliteStorage
    assert driver.capabilities.snapshots
    assert driver.capabilities.persistent
    context = OpenContext(ports=Ports(), version="0", role="server", log=lambda *_, **__: None)
    assert isinstance(driver.open(SqliteStorage(data_path=tmp_path / "x.db"), context), SqliteJournal)
    assert not (tmp_path / "x.db").exists()


def test_two_spellings_of_a_path_are_the_same_storage(tmp_path: Path) -> None:
    driver = plugin.SQLITE_DRIVER
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    plain = driver.identity(SqliteStorage(data_path=tmp_path / "real" / "x.db"))
    assert plain == str(tmp_path / "real" / "x.db")
    for other in ("link/x.db", "real/../link/./x.db"):
        assert driver.identity(SqliteStorage(data_path=tmp_path / other)) == plain


def test_the_folder_must_exist(make_journal: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"storage.dataPath: the folder '.*missing' .* does not exist; create it first"
    ):
        make_journal(tmp_path / "missing" / "jobs.db").open()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_database(make_journal: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a file"):
        make_journal(tmp_path).open()


@pytest.mark.parametrize("version", ["3.51.2", "3.40.1", "3.9.0"])
def test_an_old_library_is_refused(version: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"needs SQLite 3.51.3 or newer.*{version}.*pip install"):
        check_library(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.54.1", "4.0.0"])
def test_a_new_library_is_taken(version: str) -> None:
    check_library(version)


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /mnt/share rw shared:2 - nfs4 server:/export rw,vers=4.2
31 30 0:31 / /mnt/share/local rw - ext4 /dev/vdb rw
32 22 0:32 / /mnt/with\\040blank rw,noatime shared:3 master:1 - cifs //server/x rw
33 22 0:33 / /mnt/plain rw - 9p host rw
34 33 0:34 / /mnt/plain rw - xfs /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/jobs.db", "ext4"),
        ("/mnt/share/jobs.db", "nfs4"),
        ("/mnt/share/local/jobs.db", "ext4"),
        ("/mnt/shared/jobs.db", "ext4"),
        ("/mnt/with blank/a/jobs.db", "cifs"),
        ("/mnt/plain/jobs.db", "xfs"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert files.file_system(Path(path), MOUNTS) == kind


def test_a_mount_table_that_says_nothing() -> None:
    assert files.file_system(Path("/x"), "no mount table\n\n") is None


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p"])
def test_a_network_file_system_is_refused_unless_allowed(
    make_journal: Any, db: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = db.with_name("mounts")
    table.write_text(f"1 1 0:1 / / rw - ext4 x rw\n2 1 0:2 / {os.path.realpath(db.parent)} rw - {kind} x rw\n")
    monkeypatch.setattr(files, "_MOUNT_TABLE", table)
    with pytest.raises(ConfigurationError, match=rf"network file system \({kind}\).*storage.allowNetworkFilesystem"):
        make_journal(db).open()
    assert not db.exists()
    journal = make_journal(db, allow_network_filesystem=True)
    journal.open()
    assert db.exists()
