"""Listening sockets, bound before anything is announced."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import stat
from pathlib import Path
from typing import Final

from bunqueue_core.model.errors import ConfigurationError

#: Connections that the system queues before they are accepted.
BACKLOG: Final = 1024

#: Who may connect to a Unix socket of ours: its owner and group.
_UNIX_MODE: Final = 0o660


def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Bind every address of ``host`` at ``port``; with port 0 the system chooses one, the same for all.

    Raises:
        OSError: an address is in use, not ours, or the name is unknown.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            listener = socket.create_server(
                (str(address[0]), port), family=family, backlog=BACKLOG, dualstack_ipv6=False
            )
            # Connections take the protocol over, and asyncio sends small writes at once only where it is named.
            sockets.append(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, listener.detach()))
            port = sockets[-1].getsockname()[1]
    except BaseException:
        for listener in sockets:
            listener.close()
        raise
    return sockets


def bind_unix(path: Path) -> socket.socket:
    """Bind a Unix socket. One that a dead server left behind is replaced; one that answers is not.

    Raises:
        OSError: it is in use, or the folder cannot be written.
    """
    if _is_socket(path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            else:
                raise OSError(f"{path} is in use by another server")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, _UNIX_MODE)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def remove_unix(path: Path) -> None:
    """Remove the file of a Unix socket that was ours."""
    if _is_socket(path):
        with contextlib.suppress(OSError):
            path.unlink()


def tls_context(cert_file: str | None, key_file: str | None) -> ssl.SSLContext | None:
    """A context for both listeners; None when neither file is given.

    Raises:
        ConfigurationError: only one of the two is given, a file is missing, or they do not fit.
    """
    if cert_file is None and key_file is None:
        return None
    if key_file is None or cert_file is None:
        given, missing, variable = (
            ("tlsCertFile", "tlsKeyFile", "TLS_KEY_FILE")
            if key_file is None
            else ("tlsKeyFile", "tlsCertFile", "TLS_CERT_FILE")
        )
        raise ConfigurationError(f"TLS misconfigured: {given} is set but {missing} ({variable}) is missing")
    for what, path in (("cert", cert_file), ("key", key_file)):
        if not Path(path).is_file():
            raise ConfigurationError(f"TLS {what} file not found: {path}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert_file, key_file)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"TLS files cannot be used: {cert_file} and {key_file} ({getattr(error, 'reason', None) or error}); "
            "give a PEM certificate chain and its PEM private key"
        ) from error
    return context


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
