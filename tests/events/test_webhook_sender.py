"""One attempt to call a webhook: over real sockets, and never where it must not go."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from event_standins import Hang, HookServer, answering

from bunqueue_core.events import sender as sender_module
from bunqueue_core.events.sender import MAX_ANSWER_BYTES, MAX_REDIRECTS, Lookup, Sender, SendError, look_up

HEADERS = {"Content-Type": "application/json", "X-Webhook-Event": "job.failed"}
BODY = b'{"event":"job.failed"}'


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    """A sender that may go to this machine."""
    sender = Sender(allow_private=True)
    yield sender
    await sender.close()


def resolving(*addresses: str) -> Lookup:
    async def lookup(host: str, port: int) -> list[str]:
        return list(addresses)

    return lookup


async def post(sender: Sender, url: str) -> int:
    return await sender.post(url, HEADERS, BODY)


async def refusal(sender: Sender, url: str) -> str:
    with pytest.raises(SendError) as caught:
        await post(sender, url)
    return str(caught.value)


async def test_the_body_and_headers_arrive_as_given(sender: Sender, server: HookServer) -> None:
    assert await post(sender, server.url("/in?a=1&b=%20x")) == 204
    [request] = server.requests
    assert (request.method, request.path, request.body) == ("POST", "/in?a=1&b=%20x", BODY)
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["X-Webhook-Event"] == "job.failed"
    assert request.headers["User-Agent"].startswith("bunqueue/")


@pytest.mark.parametrize("status", [200, 299, 400, 404, 500, 503])
async def test_the_status_is_told(sender: Sender, server: HookServer, status: int) -> None:
    server.on("/in", answering(status))
    assert await post(sender, server.url("/in")) == status


async def test_credentials_in_the_url_are_sent(sender: Sender, server: HookServer) -> None:
    await post(sender, f"http://user:pw@127.0.0.1:{server.port}/")
    assert server.requests[0].headers["Authorization"] == "Basic dXNlcjpwdw=="


async def test_connections_are_used_again(sender: Sender, server: HookServer) -> None:
    server.on("/in", answering(200))
    for _ in range(5):
        await post(sender, server.url("/in"))
    assert len(server.connections) == 1


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_is_followed_with_get(sender: Sender, server: HookServer, status: int) -> None:
    server.on("/in", answering(status, Location="/there?x"))
    server.on("/there", answering(201))
    assert await post(sender, server.url("/in")) == 201
    request = server.requests[1]
    assert (request.method, request.path, request.body) == ("GET", "/there?x", b"")
    assert "Content-Type" not in request.headers
    assert request.headers["X-Webhook-Event"] == "job.failed"


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_that_keeps_the_method_keeps_the_body(sender: Sender, server: HookServer, status: int) -> None:
    server.on("/in", answering(status, Location="/there"))
    assert await post(sender, server.url("/in")) == 204
    assert (server.requests[1].method, server.requests[1].body) == ("POST", BODY)


async def test_a_redirect_without_a_place_is_a_status(sender: Sender, server: HookServer) -> None:
    server.on("/in", answering(302))
    assert await post(sender, server.url("/in")) == 302


async def test_redirects_have_an_end(sender: Sender, server: HookServer) -> None:
    server.on("/in", answering(302, Location="/in"))
    assert await refusal(sender, server.url("/in")) == f"more than {MAX_REDIRECTS} redirects"
    assert len(server.requests) == MAX_REDIRECTS + 1


async def test_a_redirect_to_another_scheme_is_refused(sender: Sender, server: HookServer) -> None:
    server.on("/in", answering(302, Location="file:///etc/passwd"))
    assert await refusal(sender, server.url("/in")) == "Webhook URL must use http or https protocol"


async def test_nobody_answers_in_time(server: HookServer) -> None:
    hang = Hang()
    server.on("/in", hang)
    sender = Sender(allow_private=True, timeout_s=0.05)
    assert await refusal(sender, server.url("/in")) == "no answer within 0.05 s"
    hang.go.set()
    await sender.close()


async def test_an_answer_without_end_is_not_waited_for(sender: Sender, server: HookServer) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=202)
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * MAX_ANSWER_BYTES)
        except (ConnectionError, asyncio.CancelledError):
            return response

    server.on("/in", stream)
    assert await post(sender, server.url("/in")) == 202


async def test_nobody_listens(sender: Sender) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert await refusal(sender, f"http://127.0.0.1:{port}/") == "cannot connect: Connection refused"


async def test_the_connection_ends_without_an_answer(sender: Sender, server: HookServer) -> None:
    async def drop(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    server.on("/in", drop)
    problem = await refusal(sender, server.url("/in"))
    assert problem in ("connection closed without an answer", "connection lost: Connection reset by peer")


async def test_what_answers_is_no_http(sender: Sender) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    assert (await refusal(sender, f"http://127.0.0.1:{port}/")).startswith("answer not understood: ")
    listener.close()
    await listener.wait_closed()


async def test_a_name_that_is_not_known(server: HookServer) -> None:
    async def lookup(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    sender = Sender(allow_private=True, lookup=lookup)
    assert await refusal(sender, server.url(host="hooks.test")) == "host name cannot be resolved"
    await sender.close()


async def test_a_name_is_looked_up(server: HookServer) -> None:
    asked: list[tuple[str, int]] = []

    async def lookup(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.1"]

    sender = Sender(allow_private=True, lookup=lookup)
    assert await post(sender, server.url(host="hooks.test")) == 204
    assert server.requests[0].headers["Host"] == f"hooks.test:{server.port}"
    assert asked == [("hooks.test", server.port)]
    await sender.close()


async def test_the_system_looks_names_up() -> None:
    assert set(await look_up("localhost", 80)) & {"127.0.0.1", "::1"}
    with pytest.raises(OSError):
        await look_up("a." + "x" * 70 + ".invalid", 80)


# -- where it must not go ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1", "Webhook URL cannot point to localhost"),
        ("[::ffff:127.0.0.1]", "Webhook URL cannot point to loopback IP"),
        ("2130706433", "Webhook URL cannot point to localhost"),
        ("localhost.", "Webhook URL cannot point to localhost"),
    ],
)
async def test_a_url_is_checked_again_with_each_attempt(server: HookServer, host: str, text: str) -> None:
    sender = Sender(allow_private=False)
    assert await refusal(sender, server.url(host=host)) == text
    assert server.requests == []
    await sender.close()


@pytest.mark.parametrize(
    ("addresses", "text"),
    [
        (["127.0.0.1"], "Webhook URL cannot point to loopback IP"),
        (["10.0.0.1"], "Webhook URL cannot point to private IP"),
        (["::1", "169.254.169.254"], "Webhook URL cannot point to link-local IP"),
        (["::ffff:127.0.0.1"], "Webhook URL cannot point to loopback IP"),
        (["fe80::1%lo"], "Webhook URL cannot point to link-local IP"),
    ],
)
async def test_a_name_that_resolves_to_a_private_address_is_refused(
    server: HookServer, addresses: list[str], text: str
) -> None:
    sender = Sender(allow_private=False, lookup=resolving(*addresses))
    assert await refusal(sender, server.url(host="rebound.example.com")) == text
    assert server.requests == []
    await sender.close()


async def test_only_the_public_addresses_of_a_name_are_tried(
    server: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For this test 127.0.0.1 is public, and 127.0.0.2 is what it is.
    real = sender_module.forbidden_address
    monkeypatch.setattr(sender_module, "forbidden_address", lambda ip: None if ip == "127.0.0.1" else real(ip))
    sender = Sender(allow_private=False, lookup=resolving("127.0.0.2", "127.0.0.1"))
    assert await post(sender, server.url(host="mixed.example.com")) == 204
    await sender.close()


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("http://127.0.0.1:1/", "Webhook URL cannot point to localhost"),
        ("//169.254.169.254/latest/meta-data", "Webhook URL cannot point to link-local IP"),
        ("http://0x7f.1/", "Webhook URL cannot point to localhost"),
        ("http://metadata.google.internal/", "Webhook URL cannot point to cloud metadata endpoints"),
        ("http://[::]/", "Webhook URL cannot point to unspecified IP"),
    ],
)
async def test_a_redirect_is_checked_as_a_url_is(
    server: HookServer, monkeypatch: pytest.MonkeyPatch, location: str, text: str
) -> None:
    monkeypatch.setattr(sender_module, "forbidden_address", lambda ip: None)
    sender = Sender(allow_private=False, lookup=resolving("127.0.0.1"))
    server.on("/in", answering(307, Location=location))
    assert await refusal(sender, server.url("/in", host="hooks.example.com")) == text
    assert len(server.requests) == 1
    await sender.close()


async def test_the_socket_itself_is_checked_last(server: HookServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if a URL slipped through what looks at its text.
    monkeypatch.setattr(
        sender_module,
        "check_webhook_url",
        lambda url, **_: sender_module.Target(url, "http", "127.0.0.1"),
    )
    sender = Sender(allow_private=False)
    assert await refusal(sender, server.url("/in")) == "Webhook URL cannot point to loopback IP"
    assert server.requests == []
    await sender.close()


async def test_a_certificate_that_nobody_vouches_for_is_refused(sender: Sender, tmp_path: Path) -> None:
    server = HookServer()
    await server.start(self_signed(tmp_path))
    assert await refusal(sender, server.url(scheme="https")) == "certificate not accepted"
    assert server.requests == []
    await server.stop()


def self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "server.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
