"""Backups of a server: checked at its start, made beside its work, ended by its stop."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bunqueue_sqlite import plugin as sqlite_plugin
from fixtures.backups import Bench, MemoryStore, jobs_in
from fixtures.scripted_broker import Sink
from fixtures.server import clean_environment, running_server

from bunqueue_core.backup.errors import StoreError
from bunqueue_core.backup.hosting import ServerBackups
from bunqueue_core.broker.protocol import Broker
from bunqueue_core.config.settings import Settings
from bunqueue_core.logging import Logger
from bunqueue_core.model.errors import ConfigurationError, JournalError
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.ports import Ports
from bunqueue_core.plugins import BackupTarget, SettingsModel, hookimpl
from bunqueue_core.plugins.manager import PluginManager
from bunqueue_core.server.lifecycle import Server
from bunqueue_core.storage.opening import open_broker


class Tape:
    """A plugin with a target in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    @hookimpl
    def bunqueue_backup_targets(self) -> list[BackupTarget]:
        return [BackupTarget(name="tape", settings=SettingsModel, open=lambda settings, context: self.store)]


@pytest.fixture
def tape() -> Tape:
    return Tape()


@pytest.fixture
def plugins(tape: Tape) -> PluginManager:
    return PluginManager({"sqlite": sqlite_plugin, "tape": tape}, entry_points=[])


def settings(plugins: PluginManager, path: Path, **backup: Any) -> Settings:
    storage = plugins.driver("sqlite").settings(data_path=path)  # type: ignore[call-arg]
    given = {"enabled": True, "target": "tape", "store": SettingsModel(), **backup}
    server = {"host": "127.0.0.1", "tcp_port": 0, "http_port": 0}
    return Settings(storage=storage, backup=given, server=server)  # type: ignore[arg-type]


def logger(sink: Sink) -> Logger:
    return Logger(out=sink, err=sink)  # type: ignore[arg-type]


class Hosted:
    """A broker in this loop, and its backups."""

    def __init__(self, broker: Broker, backups: ServerBackups, sink: Sink) -> None:
        self.broker = broker
        self.hosting = backups
        self.sink = sink
        self.told: list[tuple[str, int]] = []

    async def run(self) -> Any:
        assert self.hosting.backups is not None
        return await asyncio.to_thread(self.hosting.backups.run)

    async def add(self, count: int) -> None:
        await self.broker.push("mail", [JobSpec("send") for _ in range(count)])


@pytest.fixture
async def hosted(bench: Bench, plugins: PluginManager) -> AsyncIterator[Hosted]:
    async with hosting(settings(plugins, bench.path), plugins) as made:
        yield made


@asynccontextmanager
async def hosting(configured: Settings, plugins: PluginManager) -> AsyncIterator[Hosted]:
    sink = Sink()
    ports = Ports()
    broker = open_broker(configured.storage, plugins, ports=ports, role="server", log=logger(sink))
    backups = ServerBackups(
        configured,
        plugins,
        ports,
        logger(sink),
        announce=lambda event, fields: made.told.append((event, threading.get_ident())),
    )
    made = Hosted(broker, backups, sink)
    await backups.open()
    await broker.start()
    backups.start(broker)
    try:
        yield made
    finally:
        await backups.stop(5)
        await broker.close()


class TestBesideTheWork:
    async def test_what_is_buffered_is_written_first(self, hosted: Hosted, tape: Tape) -> None:
        await hosted.add(3)
        outcome = await hosted.run()
        assert outcome.success
        metadata = json.loads(tape.store.objects[f"{outcome.key}.meta.json"])
        assert metadata["counts"]["jobs"] == 23

    async def test_while_the_storage_takes_no_writes_there_is_no_backup(
        self, hosted: Hosted, tape: Tape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def commit(self: Any, changes: Any) -> None:
            raise JournalError("cannot commit: the disk is full", disk_full=True)

        monkeypatch.setattr("bunqueue_sqlite.journal.SqliteJournal.commit", commit)
        await hosted.add(3)
        outcome = await hosted.run()
        assert outcome.error is not None
        assert outcome.error.startswith("Cannot create a consistent backup while ")
        assert outcome.error.endswith(" writes remain buffered")
        assert tape.store.calls == [("check", "")]
        monkeypatch.undo()
        assert (await hosted.run()).success

    async def test_it_is_told_in_the_event_loop(self, hosted: Hosted) -> None:
        await hosted.run()
        await asyncio.sleep(0)
        assert hosted.told == [
            ("storage:backup-started", threading.get_ident()),
            ("storage:backup-completed", threading.get_ident()),
        ]

    async def test_numbers(self, hosted: Hosted) -> None:
        await hosted.run()
        numbers = hosted.hosting.statistics()
        assert (numbers.enabled, numbers.scheduler_running) == (True, True)
        assert (numbers.interval_ms, numbers.retention, numbers.successes) == (21_600_000, 7, 1)

    async def test_jobs_are_served_meanwhile(self, hosted: Hosted, tape: Tape) -> None:
        entered, go_on = threading.Event(), threading.Event()

        def fault(operation: str, key: str) -> None:
            if operation == "put":
                entered.set()
                assert go_on.wait(30)

        tape.store.fault = fault
        running = asyncio.create_task(hosted.run())
        await asyncio.to_thread(entered.wait)
        assert hosted.hosting.statistics().in_progress
        await hosted.add(5)
        assert (await hosted.broker.counts("mail")).waiting == 25
        go_on.set()
        assert (await running).success


class TestStop:
    async def test_a_backup_that_is_being_made_is_withdrawn(
        self, bench: Bench, plugins: PluginManager, tape: Tape
    ) -> None:
        entered, go_on = threading.Event(), threading.Event()

        def fault(operation: str, key: str) -> None:
            if operation == "put" and key.endswith(".db"):
                entered.set()
                assert go_on.wait(30)

        tape.store.fault = fault
        before = bench.beside()
        async with hosting(settings(plugins, bench.path), plugins) as made:
            running = asyncio.create_task(made.run())
            await asyncio.to_thread(entered.wait)
            stopping = asyncio.create_task(made.hosting.stop(5))
            await asyncio.sleep(0)
            go_on.set()
            await stopping
            assert (await running).error == "cancelled: the process is stopping"
        assert tape.store.objects == {}
        assert list(bench.beside()) == list(before)

    async def test_stopping_closes_the_target_and_may_be_repeated(self, hosted: Hosted, tape: Tape) -> None:
        await hosted.hosting.stop(5)
        await hosted.hosting.stop(5)
        assert tape.store.closed
        assert not hosted.hosting.statistics().scheduler_running


class TestStart:
    async def start(self, configured: Settings, plugins: PluginManager) -> tuple[int, str]:
        sink = Sink()
        code = await Server(configured, plugins, logger(sink)).run(lambda listening: pytest.fail("announced"))
        return code, sink.text

    async def test_a_target_that_refuses_stops_it_before_the_storage_is_opened(
        self, tmp_path: Path, plugins: PluginManager, tape: Tape
    ) -> None:
        def fault(operation: str, key: str) -> None:
            raise ConfigurationError("Backups to tape: no tape; mend backup.tape")

        tape.store.fault = fault
        code, text = await self.start(settings(plugins, tmp_path / "jobs.db"), plugins)
        assert code == 1
        assert "[Server] Failed to start server: Backups to tape: no tape; mend backup.tape" in text
        assert os.listdir(tmp_path) == []

    async def test_a_target_that_cannot_be_reached_does_not_stop_it(
        self, bench: Bench, plugins: PluginManager, tape: Tape
    ) -> None:
        def fault(operation: str, key: str) -> None:
            raise StoreError("the store cannot be reached", retryable=True)

        tape.store.fault = fault
        async with hosting(settings(plugins, bench.path), plugins) as made:
            assert "[Backup] The backup target cannot be reached; backups are tried all the same" in made.sink.text
            assert made.hosting.statistics().scheduler_running

    async def test_a_storage_without_snapshots(self, plugins: PluginManager) -> None:
        configured = Settings(backup={"enabled": True, "target": "tape", "store": SettingsModel()})  # type: ignore[arg-type]
        code, text = await self.start(configured, plugins)
        assert code == 1
        assert 'backup.enabled: storage driver "memory" offers no snapshots' in text

    async def test_where_backups_are_off_nothing_is_opened(
        self, bench: Bench, plugins: PluginManager, tape: Tape
    ) -> None:
        async with hosting(settings(plugins, bench.path, enabled=False), plugins) as made:
            assert made.hosting.backups is None
            numbers = made.hosting.statistics()
            assert (numbers.enabled, numbers.interval_ms, numbers.retention) == (False, 21_600_000, 7)
        assert tape.store.calls == []

    @pytest.mark.parametrize(
        ("environment", "text"),
        [
            ({"S3_BACKUP_ENABLED": "true"}, "S3_BUCKET is required"),
            (
                {
                    "S3_BACKUP_ENABLED": "1",
                    "BUNQUEUE_BACKUP_TARGET": "folder",
                    "BUNQUEUE_BACKUP_FOLDER": "/nowhere/kept",
                },
                "backup.folder: '/nowhere/kept' is not an existing folder",
            ),
        ],
    )
    def test_a_process_with_a_wrong_configuration_ends(
        self, tmp_path: Path, environment: dict[str, str], text: str
    ) -> None:
        result = subprocess.run(
            [
                sys.executable,
                "-c",
                "from bunqueue_core.cli import main; main()",
                "start",
                "--tcp-port",
                "0",
                "--http-port",
                "0",
            ],
            cwd=tmp_path,
            env={**clean_environment(), "BUNQUEUE_DATA_PATH": "jobs.db", **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 1
        assert text in result.stderr
        assert list(tmp_path.iterdir()) == []


def metrics(port: int) -> dict[str, float]:
    """The series of backups at a server's HTTP port."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/prometheus", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.split(" ") for line in lines if line.startswith("bunqueue_backup_"))
    return {name: float(value) for name, value in pairs}


def test_a_server_process_with_backups(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    environment = {
        "S3_BACKUP_ENABLED": "1",
        "S3_BACKUP_RETENTION": "3",
        "BUNQUEUE_BACKUP_TARGET": "folder",
        "BUNQUEUE_BACKUP_FOLDER": str(tmp_path / "kept"),
    }
    with running_server(tmp_path / "jobs.db", environment=environment) as server:
        series = metrics(server.http_port)
        assert series["bunqueue_backup_enabled"] == 1
        assert series["bunqueue_backup_scheduler_running"] == 1
        assert series["bunqueue_backup_interval_seconds"] == 21_600
        assert series["bunqueue_backup_retention"] == 3
        assert series["bunqueue_backup_attempts_total"] == 0
        # The command line may back it up, and not replace it, meanwhile.
        command = [sys.executable, "-c", "from bunqueue_core.cli import main; main()", "--json", "backup"]
        variables = {**clean_environment(), **environment, "BUNQUEUE_DATA_PATH": str(tmp_path / "jobs.db")}
        made = subprocess.run([*command, "now"], env=variables, capture_output=True, text=True, timeout=60, check=False)
        assert made.returncode == 0, made.stdout
        key = json.loads(made.stdout)["data"]["key"]
        refused = subprocess.run(
            [*command, "restore", key, "-f"], env=variables, capture_output=True, text=True, timeout=60, check=False
        )
        assert refused.returncode == 1
        assert f"the database is in use by process {server.process.pid}" in refused.stdout
        assert server.stop() == 0
    assert jobs_in(tmp_path / "jobs.db") == 0
