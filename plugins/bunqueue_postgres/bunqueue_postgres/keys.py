"""Job ids and other names as PostgreSQL text.

Two things a name of the queue may be, and an indexed PostgreSQL text may not: it may hold U+0000, and it may be of any length (an
index entry ends at a third of a page). So U+0000 is escaped with U+0001, and of a very long name the beginning and a digest are
stored; the record keeps the name itself (``records.py``). Every other name, practically all, is stored as it is.
"""

from __future__ import annotations

import hashlib
from typing import Final

#: Names up to this many characters are stored whole: at 4 bytes each they fit an index entry (2,704 bytes) beside the others.
LONGEST: Final = 512

#: The key of names that no job can have (ill-formed Unicode): equal to no stored key.
IMPOSSIBLE: Final = "\x01\x05"

_ESCAPE: Final = "\x01"
_DIGEST: Final = "\x01\x04"  # occurs in no escaped name, so no short name is equal to a digested one
_PREFIX: Final = 64


def escape(text: str) -> str:
    """``text`` without U+0000, undone by :func:`unescape`."""
    if "\x00" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, "\x01\x02").replace("\x00", "\x01\x03")
    return text


def unescape(text: str) -> str:
    """Undo :func:`escape`."""
    if _ESCAPE in text:
        return text.replace("\x01\x03", "\x00").replace("\x01\x02", _ESCAPE)
    return text


def to_key(name: str) -> str:
    """The text that stands for ``name`` in the database; the same for the same name only."""
    if name.isascii() and name.isprintable() and len(name) <= LONGEST:
        return name
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return IMPOSSIBLE
    name = escape(name)
    if len(name) > LONGEST:
        return f"{name[:_PREFIX]}{_DIGEST}{hashlib.sha256(encoded).hexdigest()}"
    return name


def is_whole(key: str) -> bool:
    """Whether :func:`unescape` gives the name of ``key``; of a long one the record knows it."""
    return _DIGEST not in key
