"""Stand-ins for the drivers that the documented configuration names, so that these tests are about configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, SecretStr, field_validator

from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.config import Resolution
from bunqueue_core.plugins import (
    BackupTarget,
    BrokerDriver,
    Env,
    JournalDriver,
    JournalSettings,
    Secret,
    SettingsModel,
    StorageSettings,
    hookimpl,
)


class FileStorage(JournalSettings):
    """Stands for the SQLite driver."""

    driver: Literal["sqlite"] = "sqlite"
    data_path: str
    synchronous: Literal["normal", "full"] = "normal"


class DatabaseStorage(StorageSettings):
    """Stands for the PostgreSQL driver."""

    driver: Literal["postgres"] = "postgres"
    url: SecretStr
    namespace: str = "default"
    broker_id: str | None = None
    pool_size: int = Field(default=4, ge=1)
    lease_duration_ms: int = Field(default=30_000, ge=1, le=2**53 - 1)
    statement_timeout_ms: int = Field(default=30_000, ge=1, le=2**31 - 1)
    max_queued_operations: int = Field(default=128, ge=0)
    max_snapshot_payload_bytes: int = Field(default=268_435_456, ge=1)

    @field_validator("url")
    @classmethod
    def _scheme(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith("postgres"):
            raise ValueError("PostgreSQL storage requires a postgres:// or postgresql:// URL")
        return value


class BucketBackup(SettingsModel):
    """Stands for the S3 target."""

    bucket: Annotated[str, Env("S3_BUCKET", "AWS_BUCKET")]
    secret_access_key: Annotated[str | None, Env("S3_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"), Secret()] = None
    endpoint: Annotated[str | None, Env("S3_ENDPOINT", "AWS_ENDPOINT")] = None
    prefix: Annotated[str, Env("S3_BACKUP_PREFIX")] = "backups/"


class _Nothing:
    """What an opened driver would be; nothing is opened here."""


class StandIns:
    """Registers the stand-ins as a plugin would."""

    @hookimpl
    def bunqueue_storage_drivers(self) -> list[Any]:
        def open_nothing(settings: Any, context: Any) -> Any:
            return _Nothing()

        return [
            JournalDriver(
                name="sqlite",
                settings=FileStorage,
                capabilities=Capabilities(driver="sqlite", snapshots=True),
                open=open_nothing,
                describe=lambda settings: f"SQLite · {settings.data_path}",
            ),
            BrokerDriver(
                name="postgres",
                settings=DatabaseStorage,
                capabilities=Capabilities(driver="postgres", embedded=False),
                open=open_nothing,
                describe=lambda settings: f"PostgreSQL · namespace {settings.namespace}",
            ),
        ]

    @hookimpl
    def bunqueue_backup_targets(self) -> list[Any]:
        return [BackupTarget(name="s3", settings=BucketBackup, open=lambda settings, context: _Nothing())]  # type: ignore[arg-type, return-value]


class Resolve(Protocol):
    """Resolves what a file, the environment and flags say."""

    def __call__(
        self,
        file: Any = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, str] | None = None,
    ) -> Resolution: ...
