"""Backups of bunqueue on a WebDAV server."""

from bunqueue_webdav.settings import WebdavBackup

__all__ = ["WebdavBackup"]
