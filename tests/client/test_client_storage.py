"""Embedded clients on any storage that a plugin brings, chosen as in a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from bunqueue_sqlite import SqliteStorage

from bunqueue_core import Bunqueue, ConfigurationError, FlowProducer, Queue, QueueEvents, Worker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.embedded import BrokerRegistry
from bunqueue_core.plugins import BrokerDriver, JournalDriver, JournalSettings, PluginManager, StorageSettings, hookimpl
from bunqueue_core.testing import DictJournal


class ShelfStorage(JournalSettings):
    """Settings of a third party's driver."""

    driver: Literal["shelf"] = "shelf"
    place: str
    colour: str = "grey"


class FarStorage(StorageSettings):
    """Settings of a driver that cannot be embedded."""

    driver: Literal["far"] = "far"


class Shelves:
    """A plugin whose journals outlive their brokers. ``identified``: it can tell whether two settings name one storage."""

    def __init__(self, identified: bool = True) -> None:
        self.journals: dict[str, DictJournal] = {}
        self._identity = (lambda settings: settings.place) if identified else (lambda settings: None)

    @hookimpl
    def bunqueue_storage_drivers(self) -> list[Any]:
        return [
            JournalDriver(
                name="shelf",
                settings=ShelfStorage,
                capabilities=Capabilities(driver="shelf"),
                open=lambda settings, context: self.journals.setdefault(settings.place, DictJournal()),
                describe=lambda settings: f"shelf {settings.place}",
                identity=self._identity,
            ),
            BrokerDriver(
                name="far",
                settings=FarStorage,
                capabilities=Capabilities(driver="far", embedded=False),
                open=lambda settings, context: pytest.fail("opened"),
                describe=lambda settings: "far",
            ),
        ]


def make(shelves: Shelves) -> BrokerRegistry:
    return BrokerRegistry(lambda: PluginManager({"shelves": shelves}, entry_points=[]), {})


@pytest.mark.parametrize("identified", [True, False])
def test_clients_of_one_storage_share_a_broker_that_ends_with_the_last(identified: bool) -> None:
    shelves = Shelves(identified)
    registry = make(shelves)
    first = registry.acquire(None, {"driver": "shelf", "place": "a"})
    second = registry.acquire(None, ShelfStorage(place="a"))
    other = registry.acquire(None, {"driver": "shelf", "place": "b"})
    assert first.verbs is second.verbs
    assert first.verbs is not other.verbs
    first.verbs.add("q", "job", None, None).result()
    for held in (first, second, other):
        held.close()
    again = registry.acquire(None, {"driver": "shelf", "place": "a"})
    assert again.verbs.command("Count", {"queue": "q"}).result()["count"] == 1
    again.close()


def test_the_same_storage_with_other_settings_is_refused() -> None:
    registry = make(Shelves())
    held = registry.acquire(None, {"driver": "shelf", "place": "a"})
    with pytest.raises(ConfigurationError, match=r"storage: the same storage \(driver \"shelf\"\) is open"):
        registry.acquire(None, {"driver": "shelf", "place": "a", "colour": "red"})
    held.close()


@pytest.mark.parametrize(
    ("storage", "text"),
    [
        ({"driver": "shelv"}, "shelv"),
        ({"driver": "shelf"}, "storage.place"),
        ({"driver": "shelf", "plaze": "a"}, "storage.place"),
        ({"driver": "shelf", "place": 5}, "storage.place"),
        ({"driver": "far"}, 'Storage driver "far" cannot be used embedded'),
    ],
)
def test_settings_are_checked_as_those_of_a_server(storage: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text.replace("(", r"\(")):
        make(Shelves()).acquire(None, storage)


def test_every_client_takes_a_storage(tmp_path: Path) -> None:
    settings = SqliteStorage(data_path=tmp_path / "jobs.db", synchronous="full")
    same = {"driver": "sqlite", "dataPath": str(tmp_path / "jobs.db"), "synchronous": "full"}
    with (
        Queue("q", storage=settings) as queue,
        QueueEvents("q", storage=same) as events,
        Worker("q", lambda job: job.data, storage=same),
        FlowProducer(storage=settings) as flows,
        Bunqueue("simple", storage=settings, processor=lambda job: "simple") as simple,
        Queue("q", data_path=tmp_path / "jobs.db") as by_path,
    ):
        assert queue.embedded
        assert queue.add("job", 7).wait_until_finished(events, ttl_ms=20_000) == 7
        assert flows.add({"name": "flow", "queue_name": "q", "data": {"n": 1}}).job.wait_until_finished(
            ttl_ms=20_000
        ) == {"n": 1}
        assert simple.add("job").wait_until_finished(ttl_ms=20_000) == "simple"
        assert by_path.get_completed_count() == 2


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="either data_path or storage"):
        Queue("q", data_path="a.db", storage={"driver": "memory"})
    with pytest.raises(ValueError, match="storage is for embedded clients only"):
        Queue("q", embedded=False, storage={"driver": "memory"})
    with pytest.raises(ValueError, match="either embedded or has a server"):
        Queue("q", port=7000, storage={"driver": "memory"})
