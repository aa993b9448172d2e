"""Registers the backup target ``s3``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.plugins import BackupTarget, OpenContext, hookimpl
from bunqueue_s3.settings import S3Backup


def _open(settings: S3Backup, context: OpenContext) -> NoReturn:
    raise ConfigurationError(
        f'backup.target "s3": this version of bunqueue-s3 checks its settings but cannot store backups yet '
        f"(bucket {settings.bucket}); set backup.enabled to false"
    )


@hookimpl
def bunqueue_backup_targets() -> Iterable[BackupTarget]:
    """``s3``: a bucket of Amazon S3 or of a compatible store."""
    return [BackupTarget(name="s3", settings=S3Backup, open=_open)]
