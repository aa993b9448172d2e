"""Keys that LMDB sorts as a journal must read: bytes in the order of numbers, then of ids."""

from __future__ import annotations

import hashlib

from bunqueue_core.storage.changes import REST_COLUMNS, StoredJobLike

#: Indexes of jobs: those that wait, run and are done, and the done ones by queue.
PENDING, ACTIVE, DONE, HISTORY = "pending", "active", "done", "history"

#: Places of the columns that a move changes, among those after the plain ones.
STARTED_AT, COMPLETED_AT, TIMELINE = (
    [name for name, _ in REST_COLUMNS].index(column) for column in ("started_at", "completed_at", "timeline")
)


def digest(text: str, size: int = 32) -> bytes:
    """A name of fixed length: LMDB takes keys of at most 511 bytes, and ids may be longer."""
    # Any text may be asked for, also one that no encoding holds and nothing was ever stored under.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


def number(value: int | None) -> bytes:
    """A 64-bit integer as bytes that sort as it does; None as 0."""
    return ((value or 0) + 2**63).to_bytes(8, "big")


def places(job: StoredJobLike) -> list[tuple[str, bytes]]:
    """The entries of a job in the indexes: (index, key)."""
    # Ids sort by their first 400 bytes; the digest keeps longer ones apart.
    id = job.id.encode()[:400] + b"\0" + digest(job.id, 16)
    rest = job.rest or {STARTED_AT: None, COMPLETED_AT: None}
    if job.state == "active":
        return [(ACTIVE, number(rest[STARTED_AT]) + id)]
    if job.state == "completed":
        done = (DONE, number(rest[COMPLETED_AT]) + id)
        return [done, (HISTORY, digest(job.queue, 16) + number(job.created_at) + id)]
    return [(PENDING, number(-job.priority) + number(job.run_at) + id)]
