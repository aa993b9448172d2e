"""The target against a server: whole objects or none, and errors that say what to mend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bunqueue_webdav import WebdavBackup
from bunqueue_webdav.store import PART, WebdavStore
from dav import DavServer, serving

from bunqueue_core.backup.errors import ObjectMissing, StoreError
from bunqueue_core.config import load_settings
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.plugins import PluginManager


@pytest.fixture
def server() -> Iterator[DavServer]:
    with serving() as server:
        yield server


@pytest.fixture
def store(server: DavServer) -> WebdavStore:
    return WebdavStore(WebdavBackup(url=server.url, user="ada", password="secret"))


def test_the_plugin_is_installed_and_configured_by_the_environment() -> None:
    plugins = PluginManager()
    environ = {
        "BUNQUEUE_DATA_PATH": "jobs.db",
        "S3_BACKUP_ENABLED": "1",
        "BUNQUEUE_BACKUP_TARGET": "webdav",
        "BUNQUEUE_BACKUP_WEBDAV_URL": "https://dav.example.com/backups/",
        "BUNQUEUE_BACKUP_WEBDAV_USER": "ada",
        "BUNQUEUE_BACKUP_WEBDAV_PASSWORD": "secret",
    }
    settings = load_settings(plugins, environ=environ)

    assert settings.backup.store == WebdavBackup(url="https://dav.example.com/backups/", user="ada", password="secret")
    assert "secret" not in repr(settings)
    assert plugins.target("webdav").describe(settings.backup.store) == {"url": "https://dav.example.com/backups/"}


def test_what_was_put_comes_back(store: WebdavStore) -> None:
    store.check()
    store.put("monday & tuesday.db", [b"all ", b"", b"jobs"], size=8)
    store.put("monday & tuesday.db.meta.json", iter([b"{}"]), content_type="application/json")

    assert b"".join(store.get("monday & tuesday.db")) == b"all jobs"
    assert store.list() == [
        ("monday & tuesday.db", 8, 1_700_000_000_000),
        ("monday & tuesday.db.meta.json", 2, 1_700_000_000_000),
    ]
    store.put("monday & tuesday.db", [b"new"])
    assert b"".join(store.get("monday & tuesday.db")) == b"new"
    store.delete("monday & tuesday.db")
    store.delete("monday & tuesday.db")
    with pytest.raises(ObjectMissing):
        list(store.get("monday & tuesday.db"))
    store.close()
    store.close()


def ending(chunk: bytes) -> Iterator[bytes]:
    yield chunk
    raise RuntimeError("the disk is gone")


def test_an_upload_that_ends_early_leaves_nothing(server: DavServer, store: WebdavStore) -> None:
    with pytest.raises(RuntimeError, match="the disk is gone"):
        store.put("a.db", ending(b"half"))
    with pytest.raises(StoreError):
        store.put("a.db", [b"short"], size=100)
    with pytest.raises(StoreError):
        store.put("a.db", [b"long"] * 100, size=4)

    assert [name for name in server.files if not name.startswith(PART)] == []


def test_a_refused_move_leaves_nothing(server: DavServer, store: WebdavStore) -> None:
    server.faults = [0, 502]
    with pytest.raises(StoreError, match="502") as caught:
        store.put("a.db", [b"x"])

    assert caught.value.retryable
    assert server.files == {}


def test_what_interrupted_uploads_left_is_tidied(server: DavServer, store: WebdavStore) -> None:
    server.files = {f"{PART}old": (b"x", 1_000.0), f"{PART}new": (b"x", 3_000.0), "kept.db": (b"x", 1_000.0)}

    assert [key for key, _, _ in store.list()] == ["kept.db"]
    assert store.tidy(before=2_000_000) == 1
    assert sorted(server.files) == [f"{PART}new", "kept.db"]


def test_an_answer_that_ends_early_is_an_error(server: DavServer, store: WebdavStore) -> None:
    store.put("a.db", [b"x" * 1000])
    server.faults = [0]
    with pytest.raises(StoreError) as caught:
        list(store.get("a.db"))

    assert caught.value.retryable


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (503, True), (429, True), (507, False), (403, False)])
def test_refusals_say_whether_to_try_again(server: DavServer, store: WebdavStore, status: int, retryable: bool) -> None:
    server.faults = [status]
    with pytest.raises(StoreError, match=str(status)) as caught:
        store.list()

    assert caught.value.retryable is retryable


def test_a_server_that_is_away_is_worth_another_try() -> None:
    with serving() as server:
        store = WebdavStore(WebdavBackup(url=server.url))
    with pytest.raises(StoreError) as caught:
        store.check()

    assert caught.value.retryable


@pytest.mark.parametrize(
    ("settings", "setting"), [({"user": "ada", "password": "wrong"}, "backup.user"), ({"user": None}, "backup.user")]
)
def test_a_wrong_login_names_the_setting(server: DavServer, settings: dict[str, str], setting: str) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        WebdavStore(WebdavBackup(url=server.url, **settings)).check()


def test_a_missing_collection_names_the_setting(server: DavServer) -> None:
    url = server.url.replace("backups", "elsewhere")
    with pytest.raises(ConfigurationError, match=r"backup\.url"):
        WebdavStore(WebdavBackup(url=url, user="ada", password="secret")).check()


@pytest.mark.parametrize("url", ["", "ftp://host/x/", "https://host/backups", "https:///"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        WebdavBackup(url=url)
