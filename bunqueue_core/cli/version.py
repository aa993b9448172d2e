"""``bunqueue version``: this client's version and, if it can be reached, the server's."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any, Final

import click

from bunqueue_core import __version__
from bunqueue_core.cli.options import Globals
from bunqueue_core.cli.output import print_json

#: Longest wait for the server's answer, seconds.
_TIMEOUT_S: Final = 3.0

#: Most bytes read of an answer: whatever listens there need not be a server of ours.
_ANSWER_BYTES_MAX: Final = 1 << 20


@click.command("version", context_settings={"help_option_names": []})
@click.pass_obj
def version(options: Globals) -> int:
    """Print the versions of this client and of the server, and whether they differ.

    The server is asked over HTTP, on the port after its TCP port. It need not be reachable.
    """
    host, port = options.endpoint(os.environ)
    endpoint = f"{host}:{port + 1}"
    found = _server_version(endpoint)
    mismatch = found is not None and found != __version__
    if options.json:
        server: dict[str, Any] = {"endpoint": endpoint, "reachable": found is not None}
        if found is not None:
            server["version"] = found
        print_json(
            {"ok": True, "client": {"name": "bunqueue", "version": __version__}, "server": server, "mismatch": mismatch}
        )
        return 0
    click.echo(f"Client: bunqueue v{__version__}")
    click.echo(f"Server: bunqueue v{found}" if found is not None else f"Server: not reachable ({endpoint})")
    if mismatch:
        click.echo("\n⚠ Version mismatch! Update server or client to match.")
    return 0


def _server_version(endpoint: str) -> str | None:
    # No proxy: the endpoint is the user's own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{endpoint}/health", timeout=_TIMEOUT_S) as answer:
            body = answer.read(_ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        # A server that is not healthy answers 503 and says its version all the same.
        body = error.read(_ANSWER_BYTES_MAX)
    except (OSError, ValueError):
        return None
    try:
        health = json.loads(body)
    except ValueError:
        return None
    found = health.get("version") if isinstance(health, dict) else None
    return found if isinstance(found, str) else None
