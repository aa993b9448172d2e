"""Embedded brokers: which clients share one, and when it is closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bunqueue_core.client import Queue, QueueEvents, Worker
from bunqueue_core.embedded import MEMORY, BrokerRegistry, shutdown_manager
from bunqueue_core.model.errors import BunqueueError, CapabilityError, ConfigurationError
from bunqueue_core.plugins.manager import PluginManager


def test_clients_of_one_file_share_a_broker(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with Queue("q", data_path=tmp_path / "a.db") as one, Queue("q", data_path=tmp_path / "link" / "a.db") as two:
        one.add("a", {})
        assert two.count() == 1
        assert one._endpoint.verbs is two._endpoint.verbs


def test_files_are_separate(tmp_path: Path) -> None:
    with Queue("q", data_path=tmp_path / "a.db") as one, Queue("q", data_path=tmp_path / "b.db") as two:
        one.add("a", {})
        assert two.count() == 0
        with Queue("q", data_path=MEMORY) as three:
            assert three.count() == 0


def test_without_a_path_a_client_joins_the_one_that_is_open(tmp_path: Path) -> None:
    with Queue("q", data_path=tmp_path / "a.db") as one:
        one.add("a", {})
        with Queue("q", embedded=True) as joined:
            assert joined.count() == 1
        with Queue("q", data_path=tmp_path / "b.db") as two:
            two.add("a", {})
            with pytest.raises(ValueError, match="data_path is required"):
                Queue("q", embedded=True).count()


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLITE_PATH", str(tmp_path / "other.db"))
    monkeypatch.setenv("BUNQUEUE_DATA_PATH", str(tmp_path / "env.db"))
    monkeypatch.setenv("BUNQUEUE_EMBEDDED", "1")
    with Queue("q") as queue:
        assert queue.embedded
        queue.add("a", {}, durable=True)
    assert (tmp_path / "env.db").exists()
    assert not (tmp_path / "other.db").exists()


def test_the_last_client_closes_a_file_and_its_jobs_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Queue("q", data_path=path) as one:
        with Queue("q", data_path=path) as two:
            ids = two.add_bulk([{"name": "a", "data": n} for n in range(10)])
        verbs = one._endpoint.verbs
        assert one.count() == 10
    with Queue("q", data_path=path) as again:
        assert [job.id for job in again.get_waiting()] == ids
        assert again._endpoint.verbs is not verbs


def test_memory_lasts_until_it_is_shut_down() -> None:
    with Queue("q", embedded=True) as queue:
        queue.add("a", {})
    with Queue("q", embedded=True) as queue:
        assert queue.count() == 1
    shutdown_manager()
    with Queue("q", embedded=True) as queue:
        assert queue.count() == 0


def test_after_a_shutdown_open_clients_are_told(tmp_path: Path) -> None:
    queue = Queue("q", data_path=tmp_path / "a.db")
    queue.add("a", {})
    shutdown_manager()
    with pytest.raises(BunqueueError):
        queue.add("a", {})
    queue.close()
    with Queue("q", data_path=tmp_path / "a.db") as again:
        assert again.count() == 1


def test_what_a_program_added_before_it_ends_is_kept(tmp_path: Path) -> None:
    program = f"""
from bunqueue_core import Queue
Queue("q", data_path={str(tmp_path / "a.db")!r}).add_bulk([{{"name": "a", "data": n}} for n in range(50)])
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with Queue("q", data_path=tmp_path / "a.db") as queue:
        assert queue.count() == 50


def test_a_missing_driver_is_named() -> None:
    registry = BrokerRegistry(lambda: PluginManager(entry_points=[]), {})
    with pytest.raises(ConfigurationError, match=r"sqlite.*pip install bunqueue-sqlite"):
        registry.acquire("jobs.db")
    held = registry.acquire(None)
    held.close()
    registry.close()


def test_what_a_broker_does_not_offer_is_named() -> None:
    with Queue("q", embedded=True) as queue:
        verbs = queue._verbs()
        with pytest.raises(CapabilityError, match="Nonsense is not offered by storage driver 'memory'"):
            verbs.command("Nonsense", {}).result()


def test_a_worker_that_cannot_open_its_database_says_why(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    worker = Worker("q", lambda job: None, data_path=blocked / "a.db", autorun=False)
    with pytest.raises(BunqueueError):
        worker.run()
    assert worker.is_closed()
    events = QueueEvents("q", data_path=blocked / "a.db")
    with pytest.raises(BunqueueError):
        events.wait_until_ready()
    events.close()
