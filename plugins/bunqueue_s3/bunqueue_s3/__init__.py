"""Backups of bunqueue to S3 and to object stores that speak its protocol."""

from bunqueue_s3.settings import S3Backup

__all__ = ["S3Backup"]
