"""Frames out of a byte stream. Pure: bytes in, frames or an error out; it knows neither sockets nor MessagePack.

A frame is a length (unsigned 32-bit big-endian, counting the body only) and a body of so many bytes. Bytes may arrive in any
pieces. What is kept of an unfinished frame is what has arrived, never what a length announces.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

#: Longest body, in both directions.
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024

_PREFIX: Final = 4
_length_at = struct.Struct(">I").unpack_from

#: Packs the length of a body.
pack_length = struct.Struct(">I").pack


class FrameTooLarge(Exception):
    """A prefix announces a body beyond the limit; ``length`` says how long. The stream cannot be read any further."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"Frame too large: {length} bytes exceeds maximum {limit}")
        self.length = length
        self.limit = limit

    def __reduce__(self) -> tuple[type[FrameTooLarge], tuple[int, int]]:
        return type(self), (self.length, self.limit)


class Framer:
    """Cuts a stream into frame bodies.

    Args:
        limit: longest body, bytes.
    """

    __slots__ = ("_buffer", "_limit", "_needed")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._needed = _PREFIX  #: bytes that the buffer must hold before there is anything new to do

    @property
    def buffered(self) -> int:
        """Bytes of an unfinished frame that are kept."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Take the next bytes of the stream and return the bodies that they complete, in order.

        Raises:
            FrameTooLarge: bodies completed by the same bytes are lost with it.
        """
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._needed:
                return ()
            data = bytes(buffer)
            buffer.clear()
        position, end = 0, len(data)
        bodies: list[bytes] = []
        needed = _PREFIX
        while end - position >= _PREFIX:
            (length,) = _length_at(data, position)
            if length > self._limit:
                raise FrameTooLarge(length, self._limit)
            stop = position + _PREFIX + length
            if stop > end:
                needed = _PREFIX + length
                break
            bodies.append(data[position + _PREFIX : stop])
            position = stop
        self._needed = needed
        if position < end:
            buffer += data[position:] if position else data
        return bodies
