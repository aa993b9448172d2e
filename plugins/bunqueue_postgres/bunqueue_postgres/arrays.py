"""Array parameters in PostgreSQL's binary format, packed by hand.

A bulk statement takes one array a column. psycopg packs arrays element by element through a dumper object each; packing
them here costs a fifth of that, and a column that has one value throughout costs next to nothing.

Format (PostgreSQL's ``array_recv``): int32 dimensions, int32 has-nulls, int32 element type, then per dimension int32 length
and int32 lower bound; then each element as int32 size (-1 for null) and its bytes. All big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_HEADER: Final = struct.Struct(">iiiii")
_EMPTY: Final = struct.Struct(">iii")
_NULL: Final = b"\xff\xff\xff\xff"

#: Size prefixes of short elements, which nearly all are.
_SIZES: Final = tuple(size.to_bytes(4, "big") for size in range(2048))

_TRUE: Final = b"\x00\x00\x00\x01\x01"
_FALSE: Final = b"\x00\x00\x00\x01\x00"


class Array:
    """A packed array; each subclass is one element type."""

    __slots__ = ("buffer",)

    #: Type of an element and of the array, from PostgreSQL's ``pg_type``.
    element_oid: ClassVar[int]
    array_oid: ClassVar[int]

    def __init__(self, elements: bytes, count: int) -> None:
        if count:
            self.buffer = _HEADER.pack(1, 1, self.element_oid, count, 1) + elements
        else:
            self.buffer = _EMPTY.pack(0, 0, self.element_oid)


class TextArray(Array):
    __slots__ = ()
    element_oid = 25
    array_oid = 1009


class ByteaArray(Array):
    __slots__ = ()
    element_oid = 17
    array_oid = 1001


class Int2Array(Array):
    __slots__ = ()
    element_oid = 21
    array_oid = 1005


class Int4Array(Array):
    __slots__ = ()
    element_oid = 23
    array_oid = 1007


class Int8Array(Array):
    __slots__ = ()
    element_oid = 20
    array_oid = 1016


class BoolArray(Array):
    __slots__ = ()
    element_oid = 16
    array_oid = 1000


def _sized(blob: bytes) -> bytes:
    size = len(blob)
    return (_SIZES[size] if size < 2048 else size.to_bytes(4, "big")) + blob


def _uniform(values: Sequence[Any]) -> bool:
    """Whether all values are the same; counting runs in C, so a column that varies loses little by asking."""
    return len(values) > 1 and values[0] == values[-1] and values.count(values[0]) == len(values)


def texts(values: Sequence[str | None]) -> TextArray:
    """``text[]``. The strings hold no U+0000 (see ``keys.py``)."""
    if _uniform(values):
        first = values[0]
        return TextArray((_NULL if first is None else _sized(first.encode())) * len(values), len(values))
    return TextArray(b"".join([_NULL if value is None else _sized(value.encode()) for value in values]), len(values))


def blobs(values: Sequence[bytes | None]) -> ByteaArray:
    """``bytea[]``."""
    if _uniform(values):
        first = values[0]
        return ByteaArray((_NULL if first is None else _sized(first)) * len(values), len(values))
    return ByteaArray(b"".join([_NULL if value is None else _sized(value) for value in values]), len(values))


def _integers(values: Sequence[int | None], width: int) -> bytes:
    size = _SIZES[width]
    if _uniform(values):
        first = values[0]
        return (_NULL if first is None else size + first.to_bytes(width, "big", signed=True)) * len(values)
    return b"".join([_NULL if value is None else size + value.to_bytes(width, "big", signed=True) for value in values])


def int2s(values: Sequence[int | None]) -> Int2Array:
    """``int2[]``."""
    return Int2Array(_integers(values, 2), len(values))


def int4s(values: Sequence[int | None]) -> Int4Array:
    """``int4[]``."""
    return Int4Array(_integers(values, 4), len(values))


def int8s(values: Sequence[int | None]) -> Int8Array:
    """``int8[]``."""
    return Int8Array(_integers(values, 8), len(values))


def bools(values: Sequence[bool]) -> BoolArray:
    """``bool[]``."""
    return BoolArray(b"".join([_TRUE if value else _FALSE for value in values]), len(values))


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj.buffer


def register(adapters: AdaptersMap) -> None:
    """Teach ``adapters`` the array types of this module."""
    for kind in (TextArray, ByteaArray, Int2Array, Int4Array, Int8Array, BoolArray):
        adapters.register_dumper(kind, type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": kind.array_oid}))
