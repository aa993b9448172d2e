"""A server that answers as a test says, to play every trick that a real one would not."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgpack
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

#: What a script may return: a response, several in order, or None for none.
Reply = dict[str, Any] | list[dict[str, Any]] | bytes | None


class ScriptedServer:
    """Accepts connections on a free port and answers each command with what ``script(command, connection)`` returns.

    A response without ``reqId`` gets the command's, unless it is an event. Bytes are sent as they are.

    Args:
        script: called in the connection's thread.
        context: makes the connections TLS.
    """

    def __init__(
        self, script: Callable[[dict[str, Any], ScriptedConnection], Reply], context: ssl.SSLContext | None = None
    ) -> None:
        self._context = context
        self.script = script
        self.commands: list[dict[str, Any]] = []
        self.connections: list[ScriptedConnection] = []
        self.changed = threading.Condition()
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def address(self) -> dict[str, Any]:
        """Arguments that lead a client here."""
        return {"host": "127.0.0.1", "port": self.port}

    def _accept(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            if self._closing:
                sock.close()
                return
            if self._context is not None:
                try:
                    sock = self._context.wrap_socket(sock, server_side=True)
                except OSError:  # the client does not like the certificate
                    sock.close()
                    continue
            connection = ScriptedConnection(self, sock)
            with self.changed:
                self.connections.append(connection)
                self.changed.notify_all()
            connection.thread.start()

    def saw(self, name: str, count: int = 1, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        """Wait until ``count`` commands of that name have arrived; they."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.named(name)) >= count, timeout_s):
                raise AssertionError(f"{name} did not arrive; seen: {[command['cmd'] for command in self.commands]}")
            return self.named(name)

    def named(self, name: str) -> list[dict[str, Any]]:
        """The commands of that name so far."""
        return [command for command in self.commands if command["cmd"] == name]

    def close(self) -> None:
        """End it and its connections. Idempotent."""
        if self._closing:
            return
        self._closing = True
        # A blocked accept does not notice that its socket is closed elsewhere; a connection wakes it.
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(5)
        self._listener.close()
        for connection in self.connections:
            connection.drop()
            connection.thread.join(5)


class ScriptedConnection:
    """One connection of a :class:`ScriptedServer`."""

    def __init__(self, server: ScriptedServer, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self._writing = threading.Lock()

    def _serve(self) -> None:
        buffer = b""
        while True:
            try:
                data = self.sock.recv(65536)
            except OSError:
                data = b""
            if not data:
                self.sock.close()
                return
            buffer += data
            while len(buffer) >= 4 and len(buffer) >= 4 + struct.unpack(">I", buffer[:4])[0]:
                length = struct.unpack(">I", buffer[:4])[0]
                command = msgpack.unpackb(buffer[4 : 4 + length], ext_hook=lambda code, data: None)
                buffer = buffer[4 + length :]
                with self.server.changed:
                    self.server.commands.append(command)
                    self.server.changed.notify_all()
                self.answer(command, self.server.script(command, self))

    def answer(self, command: dict[str, Any], reply: Reply) -> None:
        """Send what a script returned for ``command``."""
        if reply is None:
            return
        if isinstance(reply, bytes):
            self.send(reply)
            return
        for response in reply if isinstance(reply, list) else [reply]:
            if response.get("type") != "event":
                response.setdefault("reqId", command.get("reqId"))
            body = msgpack.packb(response)
            self.send(struct.pack(">I", len(body)) + body)

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        with self._writing:
            try:
                self.sock.sendall(data)
            except OSError:
                return

    def drop(self) -> None:
        """Cut the connection."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost and 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "cert.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


def obliging(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
    """Answers what a worker needs to be content, with an empty queue."""
    name = command["cmd"]
    if name == "PULLB":
        return {"ok": True, "jobs": [], "tokens": []}
    if name == "PULL":
        return {"ok": True, "job": None, "token": None}
    return {"ok": True}


def wire_job(id: str, queue: str = "q", **members: Any) -> dict[str, Any]:
    """A job's record as a server sends it."""
    return {
        "id": id,
        "queue": queue,
        "name": "job",
        "data": {"n": 1},
        "attempts": 0,
        "maxAttempts": 3,
        "backoff": 1000,
        **members,
    }
