"""Backups of bunqueue to S3 and to object stores that speak its protocol."""

from bunqueue_s3.settings import S3Backup

__version__ = "0.1.0"

__all__ = ["S3Backup", "__version__"]
