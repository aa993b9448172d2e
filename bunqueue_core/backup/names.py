"""Names of backups: the key of a payload, and of the metadata beside it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

#: What the key of a payload ends with. It is kept although the payload is compressed, as it always has been.
PAYLOAD_SUFFIX: Final = ".db"

#: What the key of a payload's metadata ends with, after the payload's own key.
METADATA_SUFFIX: Final = ".meta.json"

#: Media types of the two objects.
PAYLOAD_TYPE: Final = "application/gzip"
METADATA_TYPE: Final = "application/json"

#: Names that this program gives and gave: only what is called so is ever deleted. Early ones have no random part.
_OURS = re.compile(r"bunqueue-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3}Z(-[0-9a-f-]{36})?\.db")


def payload_key(prefix: str, now: int, unique: str) -> str:
    """The key of a new backup.

    Args:
        prefix: what it begins with, as it is.
        now: epoch ms.
        unique: a random part, so that two processes never give the same name.
    """
    stamp = iso(now).replace(":", "-").replace(".", "-")
    return f"{prefix}bunqueue-{stamp}-{unique}{PAYLOAD_SUFFIX}"


def metadata_key(key: str) -> str:
    """The key of the metadata of the payload ``key``."""
    return key + METADATA_SUFFIX


def is_payload(key: str) -> bool:
    """Whether a listing shows it."""
    return key.endswith(PAYLOAD_SUFFIX)


def is_ours(key: str, prefix: str) -> bool:
    """Whether this program has named the payload ``key`` under ``prefix``; keys deeper down belong to others."""
    return key.startswith(prefix) and _OURS.fullmatch(key, len(prefix)) is not None


def iso(epoch_ms: int) -> str:
    """Time in UTC with milliseconds, as in ``2026-11-30T15:51:26.791Z``."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


__all__ = [
    "METADATA_SUFFIX",
    "METADATA_TYPE",
    "PAYLOAD_SUFFIX",
    "PAYLOAD_TYPE",
    "is_ours",
    "is_payload",
    "iso",
    "metadata_key",
    "payload_key",
]
