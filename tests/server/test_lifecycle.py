"""A server's start and its orderly stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures.inprocess_server import Serve, Wire, until
from fixtures.scripted_broker import ScriptedBroker, Sink
from fixtures.server import ServerProcess
from fixtures.tls_files import TlsFiles

from bunqueue_core.answer import Answer
from bunqueue_core.config.settings import Listening, Settings
from bunqueue_core.logging import Logger
from bunqueue_core.model.errors import ConfigurationError, JournalError
from bunqueue_core.plugins.manager import PluginManager
from bunqueue_core.server import lifecycle
from bunqueue_core.server.lifecycle import Server, run_server


def settings(**sections: Any) -> Settings:
    server = {"host": "127.0.0.1", "tcp_port": 0, "http_port": 0, **sections.pop("server", {})}
    return Settings(server=server, **sections)


def a_server(sink: Sink | None = None, **sections: Any) -> Server:
    log = Logger(out=sink or Sink(), err=sink or Sink())  # type: ignore[arg-type]
    return Server(settings(**sections), PluginManager(entry_points=()), log)


async def work_for(wire: Wire) -> tuple[str, str]:
    """Push a job and pull it: (id, token)."""
    id = (await wire.cmd(cmd="PUSH", queue="q", data=1))["id"]
    return id, (await wire.cmd(cmd="PULL", queue="q", owner="w"))["token"]


class TestStart:
    async def test_it_says_where_it_listens(self, serve: Serve) -> None:
        listening = (await serve()).listening
        assert isinstance(listening.tcp, tuple)
        assert isinstance(listening.http, tuple)
        assert listening.tcp[1] != listening.http[1]
        assert listening.storage == "in-memory · ephemeral"

    async def test_a_port_in_use_stops_the_start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            sink = Sink()
            for section in ("tcp_port", "http_port"):
                server = a_server(sink, server={section: port})
                assert await server.run(lambda listening: pytest.fail("announced")) == 1
            text = f"127.0.0.1:{port}: Address already in use; choose another server."
            assert f"[Server] Failed to start server: TCP cannot listen at {text}tcpPort or server.host" in sink.text
            assert f"HTTP cannot listen at {text}httpPort or server.host" in sink.text

    async def test_bad_tls_files_stop_the_start_before_the_storage_opens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lifecycle, "open_broker", lambda *_, **__: pytest.fail("opened"))
        with pytest.raises(ConfigurationError, match="TLS cert file not found"):
            await a_server(server={"tls_cert_file": "/nope/cert.pem", "tls_key_file": "/nope/key.pem"}).start()

    async def test_a_storage_that_does_not_open_stops_the_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broker = ScriptedBroker()
        broker.start = lambda: Answer.failed(JournalError("cannot open"))  # type: ignore[method-assign]
        monkeypatch.setattr(lifecycle, "open_broker", lambda *_, **__: broker)
        sink = Sink()
        assert await a_server(sink).run(lambda listening: pytest.fail("announced")) == 1
        assert '[Server] Failed to initialize storage {"error":"cannot open"}' in sink.text

    async def test_one_certificate_serves_both_sides(self, serve: Serve, tls_files: TlsFiles) -> None:
        cert, key = tls_files
        server = await serve(server={"tls_cert_file": str(cert), "tls_key_file": str(key)})
        context = ssl.create_default_context(cafile=str(cert))
        wire = await server.connect(context)
        assert (await wire.cmd(cmd="Ping"))["ok"]
        async with httpx.AsyncClient(base_url=server.url.replace("http:", "https:"), verify=context) as client:
            assert (await client.get("/live")).text == "OK"

    async def test_http_on_a_unix_socket(self, serve: Serve, tmp_path: Path) -> None:
        path = tmp_path / "http.sock"
        server = await serve(server={"http_socket_path": str(path)})
        assert server.listening.http == path
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            assert (await client.get("/live")).text == "OK"
        await server.server.stop()
        assert not path.exists()


class TestStop:
    async def test_workers_finish_what_they_hold(self, serve: Serve) -> None:
        server = await serve(timeouts={"shutdown": 60_000})
        worker, parked = await server.connect(), await server.connect()
        id, token = await work_for(worker)
        parked.send(cmd="PULL", queue="q", timeout=60_000, owner="w2")
        await parked.cmd(cmd="Ping")
        stopping = asyncio.create_task(server.server.stop())
        await asyncio.sleep(0)
        assert "shutting down" in (await worker.cmd(cmd="PUSH", queue="q", data=1))["error"]
        refused = await worker.cmd(cmd="PUSHB", queue="q", jobs=[{"data": 1}])
        assert "shutting down" in refused["error"]
        assert await worker.cmd(cmd="PULL", queue="q") == {"ok": True, "job": None}
        late = await server.connect()
        async with httpx.AsyncClient(base_url=server.url) as client:
            assert (await client.get("/ready")).status_code == 503
            assert (await client.get("/live")).status_code == 200
        assert (await late.cmd(cmd="JobHeartbeat", id=id, token=token))["ok"]
        assert not stopping.done()
        assert await worker.cmd(cmd="ACK", id=id, token=token) == {"ok": True}
        assert await stopping
        assert await worker.ended()
        assert await parked.ended()
        assert "Waiting for 1 active jobs..." in server.log.text

    async def test_it_does_not_wait_for_ever(self, serve: Serve) -> None:
        server = await serve(timeouts={"shutdown": 1})
        worker = await server.connect()
        await work_for(worker)
        assert await server.server.stop()
        assert await worker.ended()

    async def test_asked_again_it_no_longer_waits(self, serve: Serve) -> None:
        server = await serve(timeouts={"shutdown": 3_600_000})
        worker = await server.connect()
        await work_for(worker)
        stopping = asyncio.create_task(server.server.stop())
        server.server.request_stop()
        server.server.request_stop()
        assert await stopping

    async def test_it_can_be_repeated(self, serve: Serve) -> None:
        server = await serve()
        assert await server.server.stop()
        assert await server.server.stop()

    async def test_a_storage_that_does_not_close_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broker = ScriptedBroker()
        broker.close = lambda deadline_s=1.0: Answer.failed(JournalError("stuck"))  # type: ignore[method-assign]
        monkeypatch.setattr(lifecycle, "open_broker", lambda *_, **__: broker)
        sink = Sink()
        server = a_server(sink)
        await server.start()
        assert not await server.stop()
        assert broker.draining
        assert 'Storage could not be closed {"error":"stuck"}' in sink.text

    async def test_a_signal_ends_a_run_with_status_0(self) -> None:
        sink = Sink()
        log = Logger(out=sink, err=sink)  # type: ignore[arg-type]
        announced: list[Listening] = []

        def announce(listening: Listening) -> None:
            announced.append(listening)
            signal.raise_signal(signal.SIGTERM)

        status = await run_server(settings(), PluginManager(entry_points=()), log, announce=announce)
        assert (status, len(announced)) == (0, 1)
        assert "Received SIGTERM, shutting down..." in sink.text
        assert "Shutdown complete" in sink.text


class TestProcess:
    """The server as a process of its own, under real signals."""

    async def start(self) -> tuple[ServerProcess, Wire]:
        server = await asyncio.to_thread(ServerProcess, environment={"SHUTDOWN_TIMEOUT_MS": "3600000"})
        return server, Wire(*await asyncio.open_connection("127.0.0.1", server.port))

    async def test_sigterm_waits_for_the_acknowledgement(self) -> None:
        server, wire = await self.start()
        try:
            id, token = await work_for(wire)
            server.process.send_signal(signal.SIGTERM)

            async def draining() -> bool:
                return not (await wire.cmd(cmd="PUSH", queue="q", data=1))["ok"]

            await until(draining)
            assert await wire.cmd(cmd="ACK", id=id, token=token) == {"ok": True}
            assert await asyncio.to_thread(server.process.wait, 60) == 0
        finally:
            server.kill()
            await wire.close()

    async def test_a_second_signal_does_not_wait(self) -> None:
        server, wire = await self.start()
        try:
            await work_for(wire)
            server.process.send_signal(signal.SIGINT)

            async def draining() -> bool:
                return not (await wire.cmd(cmd="PUSH", queue="q", data=1))["ok"]

            await until(draining)
            server.process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(server.process.wait, 60) == 0
            assert "not waiting any longer" in server.output
        finally:
            server.kill()
            await wire.close()
