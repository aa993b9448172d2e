"""What backups and backup targets raise."""

from __future__ import annotations

from bunqueue_core.model.errors import BunqueueError


class BackupError(BunqueueError):
    """A backup, a restore or a verification failed. Its text is what people are told."""

    code = "BQ-BACKUP"


class BackupCancelled(BackupError):
    """It was asked to end before it was done."""

    code = "BQ-BACKUP-CANCELLED"


class StoreError(BackupError):
    """A backup target refused, or could not be reached.

    Args:
        message: what was tried and what the target said, without secrets.
        retryable: the same call may succeed shortly.
    """

    code = "BQ-BACKUP-STORE"

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class StoreTimeout(StoreError):
    """No answer in time; what was asked for may still happen.

    Args:
        after_ms: how long was waited.
        step: what was tried, for the message.
    """

    def __init__(self, after_ms: int, step: str = "the request") -> None:
        super().__init__(f"{step} timed out after {after_ms}ms", retryable=True)
        self.after_ms = after_ms
        self.step = step

    def __reduce__(self) -> tuple[type[StoreTimeout], tuple[int, str]]:
        return type(self), (self.after_ms, self.step)


class ObjectMissing(StoreError):
    """There is no object of that key.

    Args:
        key: its key.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key}")
        self.key = key

    def __reduce__(self) -> tuple[type[ObjectMissing], tuple[str]]:
        return type(self), (self.key,)


__all__ = ["BackupCancelled", "BackupError", "ObjectMissing", "StoreError", "StoreTimeout"]
