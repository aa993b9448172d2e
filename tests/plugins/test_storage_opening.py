"""From storage settings to a broker, for both kinds of driver."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from bunqueue_core.broker.protocol import Broker, Capabilities
from bunqueue_core.logging import Logger
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.plugins import BrokerDriver, JournalSettings, OpenContext, PluginManager, StorageSettings, hookimpl
from bunqueue_core.storage.memory import MemoryStorage
from bunqueue_core.storage.opening import open_broker


class RemoteStorage(StorageSettings):
    driver: Literal["remote"] = "remote"


class RemoteBroker(Broker):
    """A broker of its own; nothing is asked of it here."""

    def __init__(self, settings: RemoteStorage, context: OpenContext) -> None:
        self.capabilities = Capabilities(driver="remote", embedded=False)
        self.settings = settings
        self.context = context


class Remote:
    """Registers a driver that is a broker of its own."""

    @hookimpl
    def bunqueue_storage_drivers(self) -> list[Any]:
        return [
            BrokerDriver(
                name="remote",
                settings=RemoteStorage,
                capabilities=Capabilities(driver="remote", embedded=False),
                open=RemoteBroker,
                describe=lambda settings: "remote",
            )
        ]


@pytest.fixture
def plugins() -> PluginManager:
    return PluginManager({"remote": Remote()}, entry_points=[])


def test_a_journal_driver_gives_a_local_broker(plugins: PluginManager) -> None:
    broker = open_broker(MemoryStorage(), plugins, role="embedded", log=Logger())

    assert broker.capabilities is plugins.driver("memory").capabilities
    broker.start().result(5)
    broker.close().result(5)


def test_a_broker_driver_gives_its_own_broker(plugins: PluginManager) -> None:
    settings, log = RemoteStorage(), Logger()

    broker = open_broker(settings, plugins, role="server", log=log)

    assert isinstance(broker, RemoteBroker)
    assert broker.settings is settings
    assert (broker.context.role, broker.context.log) == ("server", log)


def test_a_driver_that_cannot_be_embedded_is_refused(plugins: PluginManager) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_broker(RemoteStorage(), plugins, role="embedded", log=Logger())

    assert str(caught.value) == (
        'Storage driver "remote" cannot be used embedded (use one of memory, or connect to a server)'
    )


def test_a_driver_that_is_not_installed_is_refused(plugins: PluginManager) -> None:
    with pytest.raises(ConfigurationError, match="Unsupported storage driver: granite"):
        open_broker(JournalSettings(driver="granite"), plugins, log=Logger())
