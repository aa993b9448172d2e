"""Settings of the SQLite driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from bunqueue_core.plugins.drivers import JournalSettings


class SqliteStorage(JournalSettings):
    """Jobs live in one SQLite file, owned by one process.

    What an answer promises depends on ``synchronous``: with ``normal`` an acknowledged write survives the end of the process,
    however it ends; with ``full`` it survives the loss of power, too, at the price of one sync of the disk a commit.
    """

    driver: Literal["sqlite"] = "sqlite"
    data_path: str | Path = Field(
        description="The database file. It is created if it does not exist; its folder must exist."
    )
    synchronous: Literal["normal", "full"] = Field(
        default="normal",
        description="normal: a commit survives the end of the process; full: it survives the loss of power as well.",
    )
    allow_network_filesystem: bool = Field(
        default=False,
        description="Open the file even on NFS, SMB or 9p, whose locks and shared memory SQLite cannot rely on.",
    )

    @field_validator("data_path", mode="before")
    @classmethod
    def _a_file(cls, value: Any) -> Any:
        text = str(value)
        if not text.strip():
            raise ValueError("the path of the database file is empty")
        if text == ":memory:" or text.startswith("file::memory:"):
            raise ValueError("':memory:' is not a file; choose storage.driver = 'memory' for a queue without a disk")
        if "\0" in text:
            raise ValueError("a path cannot contain a NUL character")
        return value
