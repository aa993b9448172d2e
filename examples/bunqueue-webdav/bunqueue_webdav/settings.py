"""Settings of the target: keys of the section ``backup`` when its ``target`` is ``webdav``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bunqueue_core.plugins import Secret, SettingsModel


class WebdavBackup(SettingsModel):
    """Backups in a collection of a WebDAV server."""

    url: str = Field(
        pattern=r"^https?://[^/]+/(.*/)?$", description="URL of the collection, with a slash at its end. It must exist."
    )
    user: str | None = Field(default=None, description="User of the server; none signs in as nobody.")
    password: Annotated[str, Secret()] = Field(default="", repr=False, description="The user's password.")
    timeout_ms: int = Field(default=60_000, ge=1, description="Longest silence of the server in ms.")
