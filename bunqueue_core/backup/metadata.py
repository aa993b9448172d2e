"""The metadata of a backup: a JSON object beside the payload, which authenticates it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from bunqueue_core.backup.errors import BackupError

_CHECKSUM = re.compile(r"[0-9a-fA-F]{64}")

_NOT_AN_OBJECT: Final = "Backup metadata is invalid"
_DOES_NOT_MATCH: Final = "Backup metadata is invalid or does not match the payload"

#: Metadata is a few hundred bytes; what is larger is none.
MAX_METADATA_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class BackupMetadata:
    """What the metadata says.

    Attributes:
        timestamp: when the backup was made, ISO 8601.
        version: version of the software that made it.
        size: bytes of the snapshot.
        compressed_size: bytes of the payload.
        checksum: SHA-256 of the snapshot, hexadecimal.
        counts: rows by table, as far as they were counted; the original's metadata has none.
    """

    timestamp: str
    version: str
    size: int
    compressed_size: int
    checksum: str
    counts: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The object's bytes: JSON, indented by two blanks."""
        document: dict[str, Any] = {
            "timestamp": self.timestamp,
            "version": self.version,
            "size": self.size,
            "compressedSize": self.compressed_size,
            "checksum": self.checksum,
            "compressed": True,
        }
        if self.counts:
            document["counts"] = dict(self.counts)
        return json.dumps(document, indent=2).encode()


def decode(data: bytes, payload_size: int) -> BackupMetadata:
    """Read metadata, and check that it may belong to a payload.

    Args:
        data: the object's bytes.
        payload_size: bytes of the payload.

    Raises:
        BackupError: it is no JSON object, a field is missing or of another type, or its payload has another size.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BackupError(f"Backup metadata is invalid: {error}") from None
    if not isinstance(document, dict):
        raise BackupError(_NOT_AN_OBJECT)
    timestamp, version, checksum = (document.get(name) for name in ("timestamp", "version", "checksum"))
    size, compressed_size = document.get("size"), document.get("compressedSize")
    if not (
        isinstance(timestamp, str)
        and isinstance(version, str)
        and isinstance(checksum, str)
        and _CHECKSUM.fullmatch(checksum)
        and _is_count(size)
        and _is_count(compressed_size)
        and int(compressed_size) == payload_size
        and document.get("compressed") is True
    ):
        raise BackupError(_DOES_NOT_MATCH)
    counts = document.get("counts")
    if not isinstance(counts, dict) or not all(_is_count(count) for count in counts.values()):
        counts = {}
    return BackupMetadata(timestamp, version, int(size), int(compressed_size), checksum, counts)


def _is_count(value: Any) -> TypeGuard[int]:
    """A whole number as JSON has it; ``1e3`` is one too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)


__all__ = ["MAX_METADATA_BYTES", "BackupMetadata", "decode"]
