"""Requests out of frame bodies: MessagePack with the liberties that JavaScript clients take.

``undefined`` (extension type 0) means "not given": such members are dropped, elements of lists become null (in ``results`` they
stay "no result"). Keys that are no strings become strings. Any other extension type but a timestamp spoils the frame.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgpack

from bunqueue_core.commands.table import ABSENT
from bunqueue_core.model.payload import UNDEFINED_EXT

#: A body of this single byte, which MessagePack reserves, is read as a value that is no map.
_RESERVED: Final = b"\xc1"


class RequestDecoder:
    """Decodes bodies. Belongs to one thread at a time."""

    __slots__ = ("_undefined",)

    def __init__(self) -> None:
        self._undefined = False

    def decode(self, body: bytes) -> Any:
        """The value in ``body``.

        Raises:
            ValueError: it is not exactly one MessagePack value of the accepted kinds.
        """
        self._undefined = False
        odd_keys = False
        try:
            # Lone surrogates are let through here, so that the field that holds them can be named.
            value = msgpack.unpackb(body, ext_hook=self._ext, unicode_errors="surrogatepass")
        except ValueError:
            if body == _RESERVED:
                return True
            self._undefined = False
            try:
                value = msgpack.unpackb(body, ext_hook=self._ext, unicode_errors="surrogatepass", strict_map_key=False)
            except TypeError as error:  # a map as the key of a map
                raise ValueError(str(error)) from None
            odd_keys = True
        if not (self._undefined or odd_keys):
            return value
        try:
            return self._cleaned_request(value)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error

    def _ext(self, code: int, data: bytes) -> Any:
        if code == UNDEFINED_EXT:
            self._undefined = True
            return ABSENT
        raise ValueError(f"unknown extension type {code}")

    def _cleaned_request(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return None if value is ABSENT else value
        results = value.get("results")
        cleaned = _cleaned(value)
        if isinstance(results, list):
            cleaned["results"] = [item if item is ABSENT else _cleaned(item) for item in results]
        return cleaned


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else _key(key): _cleaned(item)
            for key, item in value.items()
            if item is not ABSENT
        }
    if isinstance(value, list):
        return [None if item is ABSENT else _cleaned(item) for item in value]
    return value


def _key(key: Any) -> str:
    """A key as JavaScript would write it."""
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, float) and math.isfinite(key) and key == math.floor(key) and abs(key) < 1e21:
        return str(int(key))
    if isinstance(key, bytes):
        return ",".join(str(byte) for byte in key)
    return "undefined" if key is ABSENT else str(key)
