"""What a server says of its health over HTTP, and where it says it."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click

from bunqueue_core.cli.options import Globals, read_port
from bunqueue_core.cli.output import Failure, fatal
from bunqueue_core.cli.wire import Server

#: Most bytes read of an answer: whatever listens there need not be a server of ours.
_ANSWER_BYTES_MAX: Final = 1 << 20

#: Statuses whose body is a server's health: a server that is not healthy answers 503 and says its version all the same.
_SPEAKING: Final = (200, 503)

http_port = click.option(
    "--http-port", metavar="PORT", help="HTTP port of the server; the one after its TCP port without it."
)


@dataclass(frozen=True, slots=True)
class Health:
    """An answer, or why there is none.

    Attributes:
        endpoint: ``host:port`` that was asked.
        status: HTTP status; 0 without an answer.
        body: the members of the answer, empty if it is none of a server of ours.
        error: why there is no answer.
    """

    endpoint: str
    status: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def version(self) -> str | None:
        """The server's version, as far as it says one."""
        found = self.body.get("version")
        return found if isinstance(found, str) else None


def ask_health(options: Globals, port: str | None, seconds: float) -> Health:
    """Ask the server that client commands connect to for its health.

    Args:
        options: host and TCP port.
        port: the HTTP port as typed, None for the one after the TCP port.
        seconds: longest wait.

    Raises:
        Failure: a port is none.
    """
    host, tcp_port = options.endpoint(os.environ)
    number = tcp_port + 1
    if port is not None:
        try:
            number = read_port(port, "--http-port")
        except ValueError as error:
            fatal(str(error))
    endpoint = f"{host}:{number}"
    status, text, trouble = fetch(f"http://{endpoint}/health", seconds)
    body: Any = None
    if status in _SPEAKING:
        try:
            body = json.loads(text)
        except ValueError:
            body = None
    return Health(endpoint, status, body if isinstance(body, dict) else {}, trouble)


def fetch(url: str, seconds: float) -> tuple[int, bytes, str]:
    """GET ``url``: status (0 without an answer), the beginning of the body, and why there is no answer. Follows no redirect."""
    # No proxy: the endpoint is the user's own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    deadline = time.monotonic() + seconds
    try:
        with opener.open(url, timeout=seconds) as answer:
            return answer.status, _read(answer, deadline), ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _read(error, deadline), ""
    except urllib.error.URLError as error:
        reason = error.reason
        return 0, b"", reason.strerror or str(reason) if isinstance(reason, OSError) else str(reason)
    except (OSError, ValueError) as error:
        return 0, b"", str(error) or type(error).__name__


def _read(answer: Any, deadline: float) -> bytes:
    """The beginning of a body, as far as it arrives in time."""
    parts: list[bytes] = []
    left = _ANSWER_BYTES_MAX
    while left > 0:
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
        part: bytes = answer.read1(min(left, 1 << 16))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def version_over_tcp(options: Globals) -> str | None:
    """The version that the server says on its TCP port, None if it says none."""
    host, port = options.endpoint(os.environ)
    try:
        answer = Server(host, port, options.token(os.environ), options.tls_option()).ask({"cmd": "Hello"})
    except Failure:
        return None
    found = answer.get("version")
    return found if isinstance(found, str) else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
