"""Registers the backup target ``s3``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bunqueue_core.plugins import BackupTarget, OpenContext, hookimpl
from bunqueue_s3.settings import S3Backup

if TYPE_CHECKING:
    from bunqueue_s3.store import S3Store


def _open(settings: S3Backup, context: OpenContext) -> S3Store:
    # Imported here: a server without backups need not load s3fs because this package is installed.
    from bunqueue_s3.store import S3Store

    return S3Store(settings)


def _describe(settings: S3Backup) -> Mapping[str, str]:
    return {"bucket": settings.bucket, "endpoint": settings.endpoint or "AWS S3"}


@hookimpl
def bunqueue_backup_targets() -> Iterable[BackupTarget]:
    """``s3``: a bucket of Amazon S3 or of a compatible store."""
    return [BackupTarget(name="s3", settings=S3Backup, open=_open, describe=_describe, label="S3")]
