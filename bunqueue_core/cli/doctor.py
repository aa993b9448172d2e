"""``bunqueue doctor``: what may be wrong between this client and the server."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from bunqueue_core import __version__
from bunqueue_core.cli.health import Health, ask_health, http_port, version_over_tcp
from bunqueue_core.cli.options import Globals
from bunqueue_core.cli.output import print_json, use_colour

#: Longest wait for the server's answer, seconds.
_TIMEOUT_S: Final = 5.0

#: Resident memory above which it is pointed out, MB.
_MUCH_MEMORY_MB: Final = 512

_MARKS: Final[Mapping[str, str]] = {"✓": "green", "✗": "red", "!": "yellow"}


@click.command("doctor", context_settings={"help_option_names": []})
@http_port
@click.pass_obj
def doctor(options: Globals, http_port: str | None) -> int:
    """Look for trouble: versions that differ, a server that is not healthy, dead letters, much memory.

    The server is asked over HTTP, on the port after its TCP port unless another is named. The exit code is 0 if all is well.
    """
    health = ask_health(options, http_port, _TIMEOUT_S)
    reachable = bool(health.body)
    issues = _issues(health.body) if reachable else 1
    if options.json:
        document: dict[str, Any] = {
            "ok": issues == 0,
            "clientVersion": __version__,
            "endpoint": health.endpoint,
            "reachable": reachable,
        }
        document.update({"health": health.body} if reachable else {"error": _why(health)})
        print_json({**document, "issues": issues, "fatal": not reachable, "exitCode": min(issues, 1)})
        return min(issues, 1)
    page = _Page(use_colour(sys.stdout, os.environ))
    page.head("bunqueue doctor")
    page.section("Client")
    page.line("✓", f"Version: {__version__}")
    page.section("Server")
    if reachable:
        _show(page, health, issues)
    else:
        _show_absence(page, health, version_over_tcp(options), options)
    return min(issues, 1)


def _issues(body: Mapping[str, Any]) -> int:
    return sum(
        (
            body.get("version") != __version__,
            body.get("status") != "healthy",
            _number(body, "queues", "dlq") > 0,
            _number(body, "memory", "rss") > _MUCH_MEMORY_MB,
        )
    )


def _show(page: _Page, health: Health, issues: int) -> None:
    body = health.body
    page.line("✓", f"Reachable at {health.endpoint}")
    page.line("✓", f"Version: {body.get('version')}")
    if body.get("version") != __version__:
        page.line("!", f"Version mismatch! Client={__version__}, Server={body.get('version')}")
        page.text("  Update both client and server to the same version")
    page.line("✓" if body.get("status") == "healthy" else "✗", f"Status: {body.get('status')}")
    page.line("✓", f"Uptime: {_duration(int(body.get('uptime') or 0))}")
    tcp, ws, sse = (_number(body, "connections", kind) for kind in ("tcp", "ws", "sse"))
    page.line("✓", f"Connections: TCP={tcp}, WS={ws}, SSE={sse}")
    page.section("Queues")
    for name in ("Waiting", "Active", "Delayed", "Completed"):
        page.line("✓", f"{name}: {_number(body, 'queues', name.lower())}")
    letters = _number(body, "queues", "dlq")
    page.line("!" if letters else "✓", f"DLQ: {letters}" + (" (dead-letter jobs need attention)" if letters else ""))
    page.section("Memory")
    rss = _number(body, "memory", "rss")
    page.line("✓", f"Heap: {_number(body, 'memory', 'heapUsed')}MB")
    page.line("✓", f"RSS: {rss}MB")
    if rss > _MUCH_MEMORY_MB:
        page.line("!", f"High memory usage ({rss}MB RSS)")
    page.text("")
    page.text("All checks passed." if not issues else f"{issues} issue{'s' if issues > 1 else ''} found.")
    page.text("")


def _show_absence(page: _Page, health: Health, tcp_version: str | None, options: Globals) -> None:
    if health.status:
        page.line("✗", f"HTTP {health.status} from {health.endpoint}")
    else:
        page.line("✗", f"Not reachable at {health.endpoint}")
        page.text(f"  {health.error}")
    page.text("")
    if tcp_version is not None:
        port = options.endpoint(os.environ)[1]
        page.text(f"A server of version {tcp_version} answers on TCP port {port}.")
        page.text("Use --http-port to specify its HTTP port.")
    else:
        page.text("Cannot continue without server connection.")
        page.text("Start the server or use --port to specify the TCP port.")
    page.text("")


def _why(health: Health) -> str:
    return f"HTTP {health.status}" if health.status else health.error


def _number(body: Mapping[str, Any], group: str, name: str) -> int:
    members = body.get(group)
    value = members.get(name) if isinstance(members, Mapping) else None
    return int(value) if isinstance(value, int | float) else 0


def _duration(seconds: int) -> str:
    hours, minutes = seconds // 3600, seconds // 60 % 60
    parts = [f"{hours}h"] * bool(hours) + [f"{minutes}m"] * bool(minutes) + [f"{seconds % 60}s"]
    return " ".join(parts)


class _Page:
    """Prints lines, with colours or without."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def _style(self, text: str, **style: Any) -> str:
        return click.style(text, **style) if self._colour else text

    def text(self, text: str) -> None:
        """A line as it is."""
        click.echo(text, color=self._colour)

    def head(self, text: str) -> None:
        """The title."""
        self.text("\n" + self._style(text, bold=True))

    def section(self, text: str) -> None:
        """The title of a part."""
        self.text("\n" + self._style(text, bold=True))

    def line(self, mark: str, text: str) -> None:
        """A finding."""
        self.text(f"  {self._style(mark, fg=_MARKS[mark])} {text}")
