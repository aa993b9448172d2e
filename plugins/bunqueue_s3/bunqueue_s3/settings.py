"""Settings of the backup target ``s3``."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from bunqueue_core.plugins import Env, Secret, SettingsModel


def _variables(name: str) -> Env:
    return Env(f"S3_{name}", f"AWS_{name}")


class S3Backup(SettingsModel):
    """Where backups go: a bucket of Amazon S3, or of a store with the same protocol.

    Without keys the usual AWS chain finds the credentials (profile, container or instance role).
    """

    bucket: Annotated[str, _variables("BUCKET")] = Field(description="Name of the bucket.")
    access_key_id: Annotated[str | None, _variables("ACCESS_KEY_ID"), Secret()] = Field(
        default=None, repr=False, description="Access key; needs secret_access_key. None uses the AWS credential chain."
    )
    secret_access_key: Annotated[str | None, _variables("SECRET_ACCESS_KEY"), Secret()] = Field(
        default=None, repr=False, description="Secret key of access_key_id."
    )
    session_token: Annotated[str | None, _variables("SESSION_TOKEN"), Secret()] = Field(
        default=None, repr=False, description="Session token of temporary credentials."
    )
    endpoint: Annotated[str | None, _variables("ENDPOINT")] = Field(
        default=None, description="URL of an S3-compatible store; None is Amazon S3."
    )
    region: Annotated[str, _variables("REGION")] = Field(
        default="us-east-1", description="Region that requests are signed for."
    )
    virtual_hosted_style: Annotated[bool | None, Env("S3_VIRTUAL_HOSTED_STYLE")] = Field(
        default=None,
        description="Address the bucket by host, which the endpoint may contain already; None addresses by path.",
    )
    prefix: Annotated[str, Env("S3_BACKUP_PREFIX")] = Field(
        default="backups/", description="What every key begins with, taken as it is: no separator is added."
    )

    @field_validator("bucket")
    @classmethod
    def _bucket_is_given(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("S3_BUCKET is required (set backup.bucket, S3_BUCKET or AWS_BUCKET)")
        return value

    @field_validator("access_key_id", "secret_access_key", "session_token", "endpoint")
    @classmethod
    def _empty_is_none(cls, value: str | None) -> str | None:
        return value or None

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_a_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("backup.endpoint must be an http or https URL, such as https://s3.example.net")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "backup.endpoint must not contain credentials; use backup.accessKeyId and backup.secretAccessKey"
            )
        return value

    @model_validator(mode="after")
    def _keys_come_in_pairs(self) -> Self:
        if self.access_key_id is None and (self.secret_access_key is not None or self.session_token is not None):
            raise ValueError(
                "S3_ACCESS_KEY_ID is required (set backup.accessKeyId, S3_ACCESS_KEY_ID or AWS_ACCESS_KEY_ID)"
            )
        if self.secret_access_key is None and self.access_key_id is not None:
            raise ValueError(
                "S3_SECRET_ACCESS_KEY is required (set backup.secretAccessKey, S3_SECRET_ACCESS_KEY or AWS_SECRET_ACCESS_KEY)"
            )
        return self
