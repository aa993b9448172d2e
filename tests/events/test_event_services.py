"""Sinks and webhooks as a server runs them: chosen in the configuration, brought by plugins, started and stopped in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from event_standins import PATIENCE_S, HookServer, broker_of, local_broker
from fixtures.inprocess_server import Wire
from fixtures.scripted_broker import Sink as LogSink

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.config import Settings, resolve
from bunqueue_core.events.services import EventServices
from bunqueue_core.logging import Logger
from bunqueue_core.model.errors import CapabilityError, ConfigurationError
from bunqueue_core.model.job import DEFAULT_OPTIONS, JobSpec
from bunqueue_core.model.ports import Ports
from bunqueue_core.model.requests import Event
from bunqueue_core.plugins import EventSink, PluginManager, hookimpl
from bunqueue_core.server.lifecycle import Server


class Memory:
    """A third party's sink: it keeps events until a test looks at them."""

    name = "memory"

    def __init__(self, label: str) -> None:
        self.label = label
        self.events: list[Event] = []
        self.threads: set[str] = set()
        self.closed = False

    def write(self, events: Sequence[Event]) -> None:
        if self.label == "broken":
            raise RuntimeError("always")
        self.threads.add(threading.current_thread().name)
        self.events.extend(events)

    def close(self) -> None:
        self.closed = True


class MemoryPlugin:
    """A third party's plugin: the sinks of type ``memory`` in the configuration."""

    def __init__(self) -> None:
        self.made: list[Memory] = []

    @hookimpl
    def bunqueue_event_sinks(self, settings: Settings) -> Iterable[EventSink]:
        for sink in settings.events.sinks:
            if sink["type"] == "memory":
                if "label" not in sink:
                    raise ConfigurationError('events.sinks: "memory" needs a label')
                self.made.append(Memory(sink["label"]))
        return list(self.made)


class Rig:
    """Services on a local broker."""

    def __init__(self, config: Mapping[str, Any], broker: LocalBroker | None = None) -> None:
        self.plugin = MemoryPlugin()
        self.plugins = PluginManager({"memory-sinks": self.plugin}, entry_points=[])
        self.settings = resolve(self.plugins, file=dict(config)).require()
        self.broker = broker or local_broker()
        self.log = LogSink()
        self.services = EventServices(
            self.broker, self.settings, self.plugins, Logger(out=self.log, err=self.log), Ports()
        )

    async def __aenter__(self) -> Rig:
        await self.broker.start()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.services.stop(PATIENCE_S)
        await self.broker.close()

    async def push(self, count: int = 1) -> list[str]:
        return (await self.broker.push("q", [JobSpec("n", None, DEFAULT_OPTIONS) for _ in range(count)])).ids


def sinks(*tables: Any) -> Mapping[str, Any]:
    return {"events": {"sinks": list(tables)}}


async def test_a_plugin_s_sink_gets_every_event_on_a_thread_of_its_own() -> None:
    async with Rig(sinks({"type": "memory", "label": "a"}, {"type": "memory", "label": "b"})) as rig:
        await rig.services.start()
        await rig.services.start()
        ids = await rig.push(3)
        await rig.broker.pause("q")
        await rig.services.stop(PATIENCE_S)
        for sink in rig.plugin.made:
            assert [(event.type, event.job_id) for event in sink.events] == [
                *(("pushed", id) for id in ids),
                ("paused", ""),
            ]
            assert sink.closed
        assert [sink.threads for sink in rig.plugin.made] == [{"bunqueue-sink-memory"}, {"bunqueue-sink-memory#2"}]
        await rig.push()
        await rig.services.stop(PATIENCE_S)
        assert len(rig.plugin.made[0].events) == 4


async def test_a_broken_sink_harms_neither_the_broker_nor_other_sinks(tmp_path: Path) -> None:
    path = tmp_path / "events"
    config = sinks({"type": "memory", "label": "broken"}, {"type": "ndjson", "path": str(path)})
    async with Rig(config) as rig:
        await rig.services.start()
        await rig.push(3)
        statistics = rig.services.statistics()
        assert {sink.name for sink in statistics.sinks} == {"memory", "ndjson"}
        await rig.services.stop(PATIENCE_S)
        assert len(path.read_text().splitlines()) == 3
        assert rig.log.text.count("Event sink failed") == 1


async def test_a_sink_that_no_plugin_offers_stops_the_start() -> None:
    async with Rig(sinks("kafka")) as rig:
        with pytest.raises(ConfigurationError, match="kafka"):
            await rig.services.start()


async def test_a_start_that_fails_leaves_nothing_running(tmp_path: Path) -> None:
    async with Rig(sinks({"type": "ndjson", "path": str(tmp_path / "a")}, {"type": "memory"})) as rig:
        with pytest.raises(ConfigurationError, match='"memory" needs a label'):
            await rig.services.start()
        await rig.push()
        assert rig.services.statistics().sinks == ()
        assert (tmp_path / "a").read_bytes() == b""


class NoEvents(LocalBroker):
    """A broker without events and webhooks."""

    def subscribe(self, listener: Callable[[Event], None], queue: str | None = None) -> Callable[[], None]:
        raise CapabilityError("subscribe", "quiet")

    def watch_webhooks(self, listener: Any) -> Callable[[], None]:
        raise CapabilityError("watch_webhooks", "quiet")


async def test_a_driver_without_events_refuses_sinks_and_does_without_webhooks() -> None:
    async with Rig(sinks({"type": "memory", "label": "a"}), broker_of(NoEvents)) as rig:
        with pytest.raises(ConfigurationError, match=r"events\.sinks: storage driver 'quiet' offers no events"):
            await rig.services.start()
        assert rig.plugin.made[0].closed
    async with Rig({}, broker_of(NoEvents)) as rig:
        await rig.services.start()
        assert rig.services.statistics().webhooks.registered == 0


async def test_a_server_calls_webhooks_and_writes_events(server: HookServer, tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    plugins = PluginManager(entry_points=[])
    settings = resolve(
        plugins,
        file={
            "server": {"host": "127.0.0.1", "tcp_port": 0, "http_port": 0},
            "webhooks": {"allow_private_networks": True},
            **sinks({"type": "ndjson", "path": str(path)}),
        },
    ).require()
    log = LogSink()
    queue = Server(settings, plugins, Logger(out=log, err=log))
    listening = await queue.start()
    assert isinstance(listening.tcp, tuple)
    wire = Wire(*await asyncio.open_connection(*listening.tcp))
    added = await wire.cmd(cmd="AddWebhook", url=server.url("/in"), events=["job.pushed"], secret="s")
    assert added["ok"], added
    pushed = await wire.cmd(cmd="PUSH", queue="q", name="n", data={"x": 1})
    [request] = await server.wait_for(1)
    assert request.document["jobId"] == pushed["id"]
    shown = await scrape(listening.http)
    for sample in (
        'bunqueue_webhook_deliveries_total{outcome="dropped"} 0.0',
        "bunqueue_webhook_attempts_total 1.0",
        "bunqueue_webhooks_registered 1.0",
        'bunqueue_sink_events_total{outcome="dropped",sink="ndjson"} 0.0',
        'bunqueue_sink_failures_total{sink="ndjson"} 0.0',
    ):
        assert sample in shown.splitlines()
    await wire.close()
    assert await queue.stop()
    [line] = path.read_text().splitlines()
    assert pushed["id"] in line


async def scrape(address: Any) -> str:
    async with aiohttp.ClientSession() as session, session.get("http://{}:{}/prometheus".format(*address)) as answer:
        return await answer.text()
