"""What a started server says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

from bunqueue_core import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from bunqueue_core.config.settings import Listening, Settings
    from bunqueue_core.plugins.manager import PluginManager

_ON, _OFF, _NOTE = "●", "○", "•"


def address(bound: tuple[str, int] | Path) -> str:
    """``host:port``, with brackets around an IPv6 address, or a socket's path."""
    if not isinstance(bound, tuple):
        return str(bound)
    host, port = bound
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def rows(settings: Settings, plugins: PluginManager, listening: Listening) -> list[tuple[str, str, str]]:
    """(marker, label, value) of each line."""
    switches = [
        ("S3 Backup" if settings.backup.target == "s3" else "Backup", settings.backup.enabled),
        ("TLS", settings.server.tls_cert_file is not None),
        ("Auth", bool(settings.auth.tokens)),
    ]
    loaded = ", ".join(f"{plugin.name} {plugin.version}".strip() for plugin in plugins.plugins)
    return [
        (_ON, "TCP", address(listening.tcp)),
        (_ON, "HTTP", address(listening.http)),
        (_ON, "Storage", listening.storage),
        *((_ON if on else _OFF, label, "enabled" if on else "disabled") for label, on in switches),
        (_NOTE, "Plugins", loaded),
    ]


def print_banner(
    settings: Settings, plugins: PluginManager, listening: Listening, *, out: TextIO, colour: bool
) -> None:
    """Print it, whole, whatever the log's level is."""
    console = Console(
        file=out, force_terminal=colour, no_color=not colour, highlight=False, markup=False, soft_wrap=True
    )
    console.print()
    console.print(Text.assemble("  ", (f"bunqueue v{__version__}", "bold")))
    console.print(Text.assemble("  ", ("One queue. Any language.", "dim")))
    console.print()
    for marker, label, value in rows(settings, plugins, listening):
        style = {"●": "green", "○": "dim"}.get(marker, "cyan")
        console.print(Text.assemble("  ", (marker, style), f" {label:<12}", value))
    console.print()
    out.flush()
