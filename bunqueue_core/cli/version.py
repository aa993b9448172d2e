"""``bunqueue version``: this client's version and, if it can be reached, the server's."""

from __future__ import annotations

import os
from typing import Any, Final

import click

from bunqueue_core import __version__
from bunqueue_core.cli.health import ask_health, http_port, version_over_tcp
from bunqueue_core.cli.options import Globals
from bunqueue_core.cli.output import print_json

#: Longest wait for the server's answer, seconds.
_TIMEOUT_S: Final = 3.0


@click.command("version", context_settings={"help_option_names": []})
@http_port
@click.pass_obj
def version(options: Globals, http_port: str | None) -> int:
    """Print the versions of this client and of the server, and whether they differ.

    The server is asked over HTTP, on the port after its TCP port unless another is named, and then over TCP. It need not be
    reachable.
    """
    health = ask_health(options, http_port, _TIMEOUT_S)
    endpoint, found = health.endpoint, health.version
    if found is None:
        found = version_over_tcp(options)
        if found is not None:
            endpoint = ":".join(map(str, options.endpoint(os.environ)))
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
