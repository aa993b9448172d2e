"""What commands print: one colour policy, one form of errors, one JSON document."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import IO, Any, NoReturn

import click


def use_colour(stream: IO[str], environ: Mapping[str, str]) -> bool:
    """Whether to colour what goes to ``stream``.

    A non-empty ``FORCE_COLOR`` decides (``0`` and ``false``: no); else any non-empty ``NO_COLOR`` or ``TERM=dumb`` says no; else
    a terminal is coloured and nothing else is.
    """
    forced = environ.get("FORCE_COLOR", "")
    if forced:
        return forced.lower() not in ("0", "false")
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def print_json(document: Any, *, error: bool = False) -> None:
    """Print one JSON document, indented by two spaces, to stdout or, for an error, to stderr."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str), err=error)


def warn(text: str) -> None:
    """Print a warning to stderr. It does not pass through the log: its level does not hide it."""
    click.echo(f"Warning: {text}", err=True)


class Failure(Exception):
    """Ends the command with an error.

    Attributes:
        exit_code: the process's exit code.
        label: what stands before the text; empty for none.
        document: what ``--json`` prints: a server's response as it came. None: ``ok`` and the text.
    """

    def __init__(
        self, text: str, *, exit_code: int = 1, label: str = "Error", document: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.label = label
        self.document = document

    def show(self, *, as_json: bool) -> None:
        """Print it to stderr. An error of a command's own is one line of JSON, a response and what is fatal are indented."""
        if as_json and self.document is None and self.label == "Error":
            line = json.dumps({"ok": False, "error": str(self)}, ensure_ascii=False, separators=(",", ":"))
            click.echo(line, err=True)
        elif as_json:
            print_json(self.document or {"ok": False, "error": str(self)}, error=True)
        else:
            text = f"{self.label}: {self}" if self.label else str(self)
            click.echo(
                click.style(text, fg="red") if use_colour(sys.stderr, os.environ) else text, err=True, color=True
            )


def fatal(text: str) -> NoReturn:
    """End the command with ``Fatal error: <text>`` and exit code 1."""
    raise Failure(text, label="Fatal error")


def tolerate_narrow_encodings() -> None:
    """Replace what the terminal's encoding lacks instead of failing on it."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
