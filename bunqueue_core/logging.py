"""The log of a server: structured records, written as text or JSON lines. An object that is handed in, not a global one.

Text: ``[Component] message {json data}``; ``debug`` and ``info`` to stdout, ``warn`` and ``error`` to stderr.
JSON: one object a line, all to stdout: ``{"timestamp", "level", "component", "message", "data"}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from bunqueue_core.model.ports import wall_clock_ms

Level = Literal["debug", "info", "warn", "error"]
Format = Literal["text", "json"]

_SEVERITY: Final[Mapping[str, int]] = {"debug": 0, "info": 1, "warn": 2, "error": 3}


class Logger:
    """Writes records of one component. :meth:`component` gives a logger of another one with the same target.

    Args:
        component: name in the record (``Server``, ``TCP``, ``Storage``…).
        level: least severe level that is written.
        format: ``text`` or ``json``.
        out: where ``debug`` and ``info`` go, and every level in JSON; None: the process's stdout at the time of writing.
        err: where ``warn`` and ``error`` go in text; None: the process's stderr.
        now: epoch ms, for the timestamps of JSON records.
    """

    __slots__ = ("_component", "_err", "_format", "_least", "_now", "_out", "level")

    def __init__(
        self,
        component: str = "Server",
        *,
        level: Level = "info",
        format: Format = "text",
        out: TextIO | None = None,
        err: TextIO | None = None,
        now: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._component = component
        self.level: Level = level
        self._least = _SEVERITY[level]
        self._format = format
        self._out = out
        self._err = err
        self._now = now

    def component(self, name: str) -> Logger:
        """A logger that writes to the same target as component ``name``."""
        return Logger(name, level=self.level, format=self._format, out=self._out, err=self._err, now=self._now)

    def enabled(self, level: Level) -> bool:
        """Whether a record of ``level`` would be written, to spare the making of costly fields."""
        return _SEVERITY[level] >= self._least

    def debug(self, message: str, **fields: Any) -> None:
        """Write a record of level ``debug``. ``fields`` become its ``data``."""
        self.write("debug", message, fields)

    def info(self, message: str, **fields: Any) -> None:
        """Write a record of level ``info``."""
        self.write("info", message, fields)

    def warn(self, message: str, **fields: Any) -> None:
        """Write a record of level ``warn``."""
        self.write("warn", message, fields)

    def error(self, message: str, **fields: Any) -> None:
        """Write a record of level ``error``."""
        self.write("error", message, fields)

    def __call__(self, level: Level, message: str, fields: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Write a record: the form in which a driver gets its log (:class:`~bunqueue_core.plugins.drivers.OpenContext`)."""
        self.write(level, message, {**(fields or {}), **more})

    def write(self, level: Level, message: str, fields: Mapping[str, Any] | None = None) -> None:
        """Write one record, whole, in one call to the stream. A stream that is gone is no error: the log never stops work."""
        severity = _SEVERITY[level]
        if severity < self._least:
            return
        if self._format == "json":
            record: dict[str, Any] = {
                "timestamp": _iso(self._now()),
                "level": level,
                "component": self._component,
                "message": message,
            }
            if fields:
                record["data"] = fields
            line = _dumps(record)
            stream = self._out or sys.stdout
        else:
            line = f"[{self._component}] {message}"
            if fields:
                line = f"{line} {_dumps(fields)}"
            # One record is one line, whatever a message holds (an error text of a client may hold line breaks).
            line = line.replace("\r", "\\r").replace("\n", "\\n")
            stream = (self._err or sys.stderr) if severity >= _SEVERITY["warn"] else (self._out or sys.stdout)
        try:
            try:
                stream.write(line + "\n")
            except UnicodeEncodeError:  # a lone surrogate, or a terminal without UTF-8
                stream.write(line.encode("ascii", "backslashreplace").decode("ascii") + "\n")
            stream.flush()
        except (OSError, ValueError):
            return


def _iso(epoch_ms: int) -> str:
    text = datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _dumps(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
