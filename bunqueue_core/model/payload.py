"""Payloads: job data and results as MessagePack, encoded once and carried as bytes.

What a client sends is packed when it is admitted; the same bytes are stored, journaled and sent to the
worker, so that no layer between encodes them again. The encoding is the one that every published client understands:
integers that need more than 32 bits go out as float64 as long as that is exact
(up to 2**53), as 64-bit integers beyond. :func:`decode` gives back the integers.
"""

from __future__ import annotations

from typing import Any

import msgpack

from bunqueue_core.model.errors import SerializationError, ValidationError

#: The encoded null: a stored ``None`` result is not the same as no result.
NULL = b"\xc0"


class Packed(bytes):
    """An encoded payload where a plain value could stand too (an event's ``data``): encoders splice it in as it is."""

    __slots__ = ()


#: MessagePack extension type by which the JavaScript codec writes ``undefined``.
UNDEFINED_EXT = 0

#: Longest chain of containers in one payload; deeper input is refused before it can exhaust a stack.
MAX_DEPTH = 500

#: JSON text of job data may have this many characters (10 MB), as in the reference.
MAX_DATA_CHARACTERS = 10 * 1024 * 1024

_EXACT_FLOAT = 2**53
_WIDE_FLOAT = b"\xcb"

_packer_options: dict[str, Any] = {"use_bin_type": True, "datetime": False}


class Packer:
    """Packs values for the wire and for storage. One instance belongs to one thread at a time.

    ``pack`` raises :class:`SerializationError` that says what cannot be packed.
    """

    __slots__ = ("_packer",)

    def __init__(self) -> None:
        self._packer = msgpack.Packer(autoreset=True, **_packer_options)

    def pack(self, value: Any) -> bytes:
        """Encode ``value``; integers outside 32 bits become float64 where that is exact."""
        try:
            blob: bytes = self._packer.pack(value)
        except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError) as error:
            self._packer = msgpack.Packer(autoreset=True, **_packer_options)
            raise SerializationError(_explain(value, error)) from None
        if b"\xcf" in blob or b"\xd3" in blob:
            # The two markers also occur inside strings: look at the values only then.
            return self._packer.pack(_narrow(value))  # type: ignore[no-any-return]
        return blob


def _narrow(root: Any) -> Any:
    """A copy of ``root`` with its wide integers as float64. Not recursive: payloads nest deeper than the stack allows."""
    holder: list[Any] = [root]
    pending: list[Any] = [holder]
    while pending:
        container = pending.pop()
        for place, item in container.items() if type(container) is dict else enumerate(container):
            if isinstance(item, dict):
                copy: Any = {_narrow_integer(key): value for key, value in item.items()}
            elif isinstance(item, list | tuple) and not isinstance(item, msgpack.ExtType):
                copy = list(item)
            else:
                container[place] = _narrow_integer(item)
                continue
            container[place] = copy
            pending.append(copy)
    return holder[0]


def _narrow_integer(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if -(2**31) <= value < 2**32:
            return value
        if -_EXACT_FLOAT <= value <= _EXACT_FLOAT:
            return float(value)
    return value


def _explain(value: Any, error: BaseException, path: str = "$", seen: tuple[int, ...] = ()) -> str:
    """Find the part of ``value`` that cannot be packed and say which and where."""
    if len(seen) > MAX_DEPTH:
        return f"nesting at {path[:80]} exceeds {MAX_DEPTH} levels"
    if isinstance(value, dict | list | tuple):
        if id(value) in seen:
            return f"cyclic container at {path}"
        seen = (*seen, id(value))
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            where = f"{path}.{key}" if isinstance(value, dict) else f"{path}[{key}]"
            found = _explain(item, error, where, seen)
            if found:
                return found
        if path != "$":
            return ""
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        return f"integer at {path} exceeds 64 bits"
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"string at {path} is not well-formed Unicode"
    elif value is not None and not isinstance(value, bool | int | float | bytes | bytearray | msgpack.ExtType):
        return f"value at {path} of type {type(value).__name__} cannot be encoded"
    return f"value cannot be encoded: {error}" if path == "$" else ""


def _ext_hook(code: int, data: bytes) -> Any:
    if code == UNDEFINED_EXT:
        return None
    return msgpack.ExtType(code, data)


def decode(blob: bytes) -> Any:
    """Decode a payload for a Python program.

    Integral float64 values beyond 32 bits come back as the integers that they were (see the module's head), the JavaScript
    codec's ``undefined`` as ``None``, maps with keys of any hashable type.
    """
    value = msgpack.unpackb(blob, strict_map_key=False, ext_hook=_ext_hook)
    return widen(value) if _WIDE_FLOAT in blob else value


def widen(value: Any) -> Any:
    """Give a decoded value its integers back: integral float64 values beyond 32 bits become the integers that they were.

    Lists and maps are changed in place. Not recursive: payloads nest deeper than the stack allows.
    """
    holder: list[Any] = [value]
    pending: list[Any] = [holder]
    while pending:
        container = pending.pop()
        for place, item in container.items() if type(container) is dict else enumerate(container):
            kind = type(item)
            if kind is float:
                if (item >= 2**31 or item < -(2**31)) and abs(item) <= _EXACT_FLOAT and item.is_integer():
                    container[place] = int(item)
            elif kind is dict or kind is list:
                pending.append(item)
    return holder[0]


def is_shallow(value: Any, levels: int) -> bool:
    """Whether ``value`` can be sent back as it came.

    That is every plain value but an integer beyond 64 bits; a list or map if nothing in it is nested deeper than ``levels``, and
    every text in it is well-formed.
    """
    layer = [value]
    for level in range(levels + 1):
        inner: list[Any] = []
        for part in layer:
            if isinstance(part, dict):
                inner += part
                inner += part.values()
            elif isinstance(part, list):
                inner += part
            elif isinstance(part, int):
                if not -(2**63) <= part < 2**64:
                    return False
            elif level and isinstance(part, str) and not part.isascii():
                try:
                    part.encode()
                except UnicodeEncodeError:
                    return False
        if not inner:
            return True
        layer = inner
    return False


def check_size(blob: bytes) -> None:
    """Refuse job data whose JSON text exceeds 10 MB.

    Raises:
        ValidationError: ``Job data too large (max 10MB)``.
    """
    # A JSON text is at least as long as half its MessagePack and, for float64 values, up to 3 times as long; strings
    # may grow sixfold by escapes. Only near the bound is the text really written.
    if len(blob) * 6 > MAX_DATA_CHARACTERS and len(_json(blob)) > MAX_DATA_CHARACTERS:
        raise ValidationError("Job data too large (max 10MB)")


def check_size_limit(blob: bytes, limit: int | None) -> None:
    """Refuse job data whose JSON text has more bytes than the job's own ``sizeLimit``.

    Args:
        blob: the encoded data.
        limit: bytes of UTF-8; None for no limit.

    Raises:
        ValidationError: ``Job data exceeds its sizeLimit of <limit> bytes``.
    """
    if limit is not None and len(_json(blob).encode(errors="surrogatepass")) > limit:
        raise ValidationError(f"Job data exceeds its sizeLimit of {limit} bytes")


def _json(blob: bytes) -> str:
    import json

    try:
        return json.dumps(decode(blob), separators=(",", ":"), ensure_ascii=False, default=lambda _: None)
    except (TypeError, ValueError, RecursionError):
        raise ValidationError("Job data must be JSON serializable") from None
