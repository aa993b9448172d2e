"""Settings of the driver: the section ``storage`` when its ``driver`` is ``lmdb``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from bunqueue_core.plugins import JournalSettings


class LmdbStorage(JournalSettings):
    """Jobs in one LMDB file, owned by one process."""

    driver: Literal["lmdb"] = "lmdb"
    file: Path = Field(
        default=Path("bunqueue.lmdb"), description="The file that holds the jobs; its folder must exist."
    )
    map_size_mb: int = Field(default=1024, ge=1, le=2**20, description="Size in MB that the file may grow to.")
