"""Listening sockets and TLS files."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
from fixtures.tls_files import TlsFiles

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.server.sockets import bind_tcp, bind_unix, remove_unix, tls_context


def test_every_address_of_a_host_gets_the_same_port() -> None:
    sockets = bind_tcp("localhost", 0)
    try:
        assert len({listener.getsockname()[1] for listener in sockets}) == 1
    finally:
        for listener in sockets:
            listener.close()


def test_connections_send_small_writes_at_once_on_every_event_loop() -> None:
    (listener,) = bind_tcp("127.0.0.1", 0)
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP  # asyncio looks at nothing else


def test_a_port_in_use_is_an_error() -> None:
    (first,) = bind_tcp("127.0.0.1", 0)
    with first, pytest.raises(OSError, match="Address already in use"):
        bind_tcp("127.0.0.1", first.getsockname()[1])


def test_a_unix_socket_that_a_dead_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    bind_unix(path).close()
    assert path.exists()
    with bind_unix(path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert listener.accept()[0].close() is None
    remove_unix(path)
    assert not path.exists()


def test_one_that_answers_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with bind_unix(path), pytest.raises(OSError, match="in use by another server"):
        bind_unix(path)


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(OSError, match="Address already in use"):
        bind_unix(path)
    remove_unix(path)
    assert path.read_text() == "precious"


def test_tls_needs_both_files(tmp_path: Path) -> None:
    assert tls_context(None, None) is None
    with pytest.raises(ConfigurationError, match=r"tlsCertFile is set but tlsKeyFile \(TLS_KEY_FILE\) is missing"):
        tls_context("a", None)
    with pytest.raises(ConfigurationError, match=r"tlsKeyFile is set but tlsCertFile \(TLS_CERT_FILE\) is missing"):
        tls_context(None, "a")


def test_tls_files_must_exist_and_fit(tls_files: TlsFiles, tmp_path: Path) -> None:
    cert, key = tls_files
    assert isinstance(tls_context(str(cert), str(key)), ssl.SSLContext)
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigurationError, match=r"TLS cert file not found: .*missing.pem"):
        tls_context(missing, str(key))
    with pytest.raises(ConfigurationError, match=r"TLS key file not found: .*missing.pem"):
        tls_context(str(cert), missing)
    with pytest.raises(ConfigurationError, match=r"TLS files cannot be used: .* give a PEM certificate chain"):
        tls_context(str(cert), str(cert))
