"""Encrypted connections."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_servers import ScriptedServer, self_signed

from bunqueue_core.client._acompat import asettled
from bunqueue_core.client.connection_async import Connection
from bunqueue_core.model.errors import ConnectionClosedError

Scripted = Callable[..., ScriptedServer]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate file with its key beside it."""
    return self_signed(tmp_path)[0]


@pytest.fixture
def encrypted(scripted: Scripted, certificate: Path) -> ScriptedServer:
    """A server that sends back what it gets, over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return scripted(lambda command, connection: {"ok": True, "data": command.get("data")}, context)


async def test_with_a_certificate_authority(encrypted: ScriptedServer, certificate: Path) -> None:
    for tls in (
        {"ca_file": str(certificate)},
        {"caFile": str(certificate)},
        ssl.create_default_context(cafile=certificate),
    ):
        async with Connection("localhost", encrypted.port, tls=tls) as connection:
            assert (await connection.call({"cmd": "Echo", "data": 1}))["data"] == 1


async def test_without_verification(encrypted: ScriptedServer) -> None:
    for tls in ({"verify": False}, {"rejectUnauthorized": False}):
        async with Connection("127.0.0.1", encrypted.port, tls=tls) as connection:
            assert await connection.ping()


async def test_a_certificate_that_nobody_vouches_for(encrypted: ScriptedServer) -> None:
    events: list[dict[str, Any]] = []
    connection = Connection("127.0.0.1", encrypted.port, tls=True, on_telemetry=events.append)
    with pytest.raises(ConnectionClosedError, match="TLS handshake failed: "):
        await connection.call({"cmd": "Echo"})
    await connection.close()
    assert [event["operation"] for event in events if event["type"] == "error"] == ["tls", "connect"]
    assert encrypted.commands == []


async def test_much_goes_both_ways_at_once(encrypted: ScriptedServer) -> None:
    async with Connection("127.0.0.1", encrypted.port, tls={"verify": False}, token="secret") as connection:
        payloads = [bytes([n]) * (400_000 + n) for n in range(8)]
        answers = [connection.verbs.command("Echo", {"data": payload}) for payload in payloads]
        assert [(await asettled(answer))["data"] for answer in answers] == payloads
    assert encrypted.commands[0]["cmd"] == "Auth"
