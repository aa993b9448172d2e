"""The sinks that ship with the core: newline-delimited JSON in a file (``ndjson``) or on standard output (``stdout``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from pydantic import Field, ValidationError

from bunqueue_core.events.encoding import event_document, to_json
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.model.requests import Event
from bunqueue_core.plugins.drivers import EventSink, SettingsModel


class NdjsonSettings(SettingsModel):
    """Keys of the sink ``ndjson``."""

    type: Literal["ndjson"] = "ndjson"
    path: str = Field(min_length=1, description="File that events are appended to; its folder must exist.")


class StdoutSettings(SettingsModel):
    """Keys of the sink ``stdout``: none besides its name."""

    type: Literal["stdout"] = "stdout"


_LINE_END: Final = 0x0A

_MODELS: Final[Mapping[str, type[SettingsModel]]] = {"ndjson": NdjsonSettings, "stdout": StdoutSettings}


class NdjsonFile:
    """Appends events to a file, one object a line.

    Each batch is written with as few system calls as the system allows, and is the system's once :meth:`write` returns; nothing
    is synchronised to the disk. A file that was moved away or removed (log rotation) is opened anew before the next batch. A line
    that an earlier end of the process or a full disk left torn is closed first, so that it costs no other line.

    Args:
        path: the file; it is created if it is not there.

    Raises:
        OSError: it cannot be opened.
    """

    name = "ndjson"

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._torn = False
        self._fd: int | None = self._open()

    def write(self, events: Sequence[Event]) -> None:
        """Append ``events``. A failed call may have written some of them; tried again, those stand there twice."""
        text = lines(events)
        fd = self._current()
        if self._torn:
            text = b"\n" + text
        rest = memoryview(text)
        while rest:
            written = os.write(fd, rest)
            if written:
                self._torn = rest[written - 1] != _LINE_END
                rest = rest[written:]

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _current(self) -> int:
        """The open file, opened anew if its path leads elsewhere by now."""
        if self._fd is not None:
            ours = os.fstat(self._fd)
            try:
                there = os.stat(self._path)
            except FileNotFoundError:
                there = None
            if there is not None and (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
                return self._fd
            self.close()
        self._fd = self._open()
        return self._fd

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        fd = os.open(self._path, flags, 0o666)
        try:
            size = os.fstat(fd).st_size
            self._torn = False
            if size:
                os.lseek(fd, size - 1, os.SEEK_SET)
                self._torn = os.read(fd, 1)[0] != _LINE_END
        except (OSError, IndexError):
            # A pipe or a device: there is nothing to read back.
            self._torn = False
        return fd


class NdjsonStream:
    """Writes events to a stream, one object a line, a batch at a time.

    Args:
        stream: a binary stream; it is flushed after each batch and never closed.
    """

    name = "stdout"

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, events: Sequence[Event]) -> None:
        """Write ``events`` in one call, so that lines of the log do not stand within one."""
        self._stream.write(lines(events))
        self._stream.flush()

    def close(self) -> None:
        """Leave the stream as it is."""


def lines(events: Sequence[Event]) -> bytes:
    """Events as subscribers get them, one JSON object a line."""
    return b"".join([to_json(event_document(event)) + b"\n" for event in events])


def configured_sinks(wanted: Sequence[Mapping[str, Any]]) -> list[EventSink]:
    """Make those of the sinks in ``events.sinks`` that ship with the core.

    Args:
        wanted: the tables of ``events.sinks``, with those of other plugins.

    Raises:
        ConfigurationError: a table has wrong keys, or its file cannot be opened. No file stays open then.
    """
    sinks: list[EventSink] = []
    problems: list[str] = []
    for position, table in enumerate(wanted):
        model = _MODELS.get(str(table.get("type")))
        if model is None:
            continue
        key = f"events.sinks[{position}]"
        try:
            settings = model.model_validate(dict(table))
            sinks.append(_make(settings))
        except ValidationError as error:
            known = ", ".join(name for name in model.model_fields if name != "type") or "none"
            problems.extend(_problem(key, details, known) for details in error.errors(include_url=False))
        except OSError as error:
            problems.append(f'{key}.path: cannot append to "{table["path"]}": {error.strerror or error}')
    if problems:
        for sink in sinks:
            sink.close()
        raise ConfigurationError(problems)
    return sinks


def _make(settings: SettingsModel) -> EventSink:
    if isinstance(settings, NdjsonSettings):
        return NdjsonFile(settings.path)
    return NdjsonStream(sys.stdout.buffer)


def _problem(key: str, details: Any, known: str) -> str:
    name = ".".join(str(part) for part in details["loc"])
    if details["type"] == "extra_forbidden":
        return f'Unknown config key "{key}.{name}" (known: {known})'
    if details["type"] == "missing":
        return f"{key}.{name} is required"
    return f"{key}.{name}: {details['msg'][:1].lower()}{details['msg'][1:]}"


__all__ = ["NdjsonFile", "NdjsonSettings", "NdjsonStream", "StdoutSettings", "configured_sinks", "lines"]
