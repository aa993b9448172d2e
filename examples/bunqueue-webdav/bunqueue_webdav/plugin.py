"""Registers the target (entry point ``webdav`` of the group ``bunqueue.plugins``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bunqueue_core.plugins import BackupTarget, OpenContext, hookimpl
from bunqueue_webdav.settings import WebdavBackup

if TYPE_CHECKING:
    from bunqueue_webdav.store import WebdavStore


def _open(settings: WebdavBackup, context: OpenContext) -> WebdavStore:
    from bunqueue_webdav.store import WebdavStore

    return WebdavStore(settings)


@hookimpl
def bunqueue_backup_targets() -> Iterable[BackupTarget]:
    """The target ``webdav``."""
    return [
        BackupTarget(
            name="webdav",
            settings=WebdavBackup,
            open=_open,
            describe=lambda settings: {"url": settings.url},
            label="WebDAV",
        )
    ]
