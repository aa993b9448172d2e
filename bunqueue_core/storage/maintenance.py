"""Care of a journal's storage while no broker has it: what a driver offers for ``bunqueue db``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class StorageInfo:
    """What there is to know of a storage.

    Attributes:
        facts: its properties by name, for people and machines: numbers, texts, None; bytes are named so.
        tables: (name, rows, bytes) of each table; bytes are None where the driver does not know.
        jobs: number of jobs by state.
    """

    facts: Mapping[str, Any]
    tables: Sequence[tuple[str, int, int | None]] = ()
    jobs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Sizes of a storage before and after it was compacted, bytes."""

    before: int
    after: int


class Maintenance(Protocol):
    """Offline care of one storage. Nothing of it needs an open journal.

    Every method raises :class:`~bunqueue_core.model.errors.JournalError` when the storage fails or another process has it
    (``busy``; the message names that process), and :class:`~bunqueue_core.model.errors.ConfigurationError` when it is not there or
    not ours.
    """

    def info(self) -> StorageInfo:
        """Describe it. Nothing is changed; another process may have it meanwhile."""

    def check(self) -> Sequence[str]:
        """Look for damage, holding the storage. Gives what was found, in words; nothing if all is well."""

    def vacuum(self, progress: Callable[[int, int], None]) -> Vacuumed:
        """Give back the space that deleted rows left, holding the storage. The storage is replaced whole, or stays as it is.

        Args:
            progress: called now and then with the bytes written so far and in all.
        """


__all__ = ["Maintenance", "StorageInfo", "Vacuumed"]
