"""Registers the backup target ``s3``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NoReturn

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.plugins import BackupTarget, OpenContext, hookimpl
from bunqueue_s3.settings import S3Backup

_CANNOT_STORE: Final = (
    'backup.target "s3": this version of bunqueue-s3 checks its settings but cannot store backups yet; '
    "set backup.enabled (S3_BACKUP_ENABLED) to false"
)


def _open(settings: S3Backup, context: OpenContext) -> NoReturn:
    raise ConfigurationError(_CANNOT_STORE)


@hookimpl
def bunqueue_backup_targets() -> Iterable[BackupTarget]:
    """``s3``: a bucket of Amazon S3 or of a compatible store."""
    return [BackupTarget(name="s3", settings=S3Backup, open=_open)]


@hookimpl
def bunqueue_configure(settings: Any) -> None:
    """Refuse to start a server that would seem to be backed up and is not."""
    if settings.backup.enabled and settings.backup.target == "s3":
        raise ConfigurationError(_CANNOT_STORE)
