"""``bunqueue healthcheck``: the probe of a container."""

from __future__ import annotations

import json
import os
from typing import Final
from urllib.parse import urlsplit

import click

from bunqueue_core.cli.health import fetch
from bunqueue_core.cli.options import Globals, read_port

#: Longest wait for the answer, seconds.
_TIMEOUT_S: Final = 5.0

_PORT: Final = 6790

#: Neither the address nor the answer is told: probes are logged by others.
_FAILED: Final = "Health check failed"


@click.command("healthcheck", context_settings={"help_option_names": []})
@click.argument("urls", metavar="[URL]", nargs=-1)
@click.pass_obj
def healthcheck(options: Globals, urls: tuple[str, ...]) -> int:
    """Print "healthy" and exit with 0 if a server says that it is; anything else exits with 1.

    It asks http://127.0.0.1:6790/health, with the port of HTTP_PORT where that is set, or URL.
    """
    if len(urls) > 1:
        return _fail(_FAILED)
    if urls:
        url = urls[0]
    else:
        port: int = _PORT
        text = os.environ.get("HTTP_PORT", "")
        if text.strip():
            try:
                port = read_port(text, "HTTP_PORT")
            except ValueError as error:
                return _fail(f"{_FAILED}: {error}")
        url = f"http://127.0.0.1:{port}/health"
    return _probe(url)


def _probe(url: str) -> int:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in ("http", "https"):
        return _fail(_FAILED)
    status, text, _ = fetch(url, _TIMEOUT_S)
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not 200 <= status < 300 or not isinstance(body, dict) or body.get("status") != "healthy":
        return _fail(_FAILED)
    click.echo("healthy")
    return 0


def _fail(text: str) -> int:
    click.echo(text, err=True)
    return 1
