"""The typed configuration: one model a section, each field with its unit, bound, environment variables and meaning of 0.

A section's field names are the keys of a configuration file (``tcp_port`` or ``tcpPort``). What a server is started with is one
:class:`Settings`, fixed once it is built; sources and precedence are :mod:`bunqueue_core.config.resolution`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny
from pydantic.alias_generators import to_camel
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from bunqueue_core.plugins.drivers import Env, Secret, SettingsModel, StorageSettings, Unit
from bunqueue_core.storage.memory import MemoryStorage

#: Longest duration that every published client can express: the largest integer that a float64 holds exactly.
MAX_MS = 2**53 - 1

LogLevel = Literal["debug", "info", "warn", "error"]
LogFormat = Literal["text", "json"]


class ServerSettings(SettingsModel):
    """Where the server listens."""

    tcp_port: Annotated[int, Env("TCP_PORT")] = Field(
        default=6789, ge=0, le=65535, description="Port of the TCP protocol; 0 lets the system choose."
    )
    http_port: Annotated[int, Env("HTTP_PORT")] = Field(
        default=6790, ge=0, le=65535, description="Port of HTTP, SSE and WebSocket; 0 lets the system choose."
    )
    host: Annotated[str, Env("HOST")] = Field(
        default="0.0.0.0", min_length=1, description="Address that both listeners bind."
    )
    tcp_socket_path: Annotated[str | None, Env("TCP_SOCKET_PATH")] = Field(
        default=None, description="Unix socket that the TCP protocol binds instead of host and port."
    )
    http_socket_path: Annotated[str | None, Env("HTTP_SOCKET_PATH")] = Field(
        default=None, description="Unix socket that HTTP binds instead of host and port."
    )
    tls_cert_file: Annotated[str | None, Env("TLS_CERT_FILE")] = Field(
        default=None, description="PEM certificate chain for both listeners; needs tls_key_file."
    )
    tls_key_file: Annotated[str | None, Env("TLS_KEY_FILE")] = Field(
        default=None, description="PEM private key of tls_cert_file."
    )


class AuthSettings(SettingsModel):
    """Who may use the server."""

    tokens: Annotated[tuple[str, ...], Env("AUTH_TOKENS"), Secret()] = Field(
        default=(), repr=False, description="Accepted tokens, each valid for everything; empty leaves the server open."
    )
    require_auth_for_metrics: Annotated[bool, Env("METRICS_AUTH")] = Field(
        default=False, description="Ask for a token at GET /prometheus too."
    )


class CorsSettings(SettingsModel):
    """Which web pages may call the HTTP side."""

    origins: Annotated[tuple[str, ...], Env("CORS_ALLOW_ORIGIN")] = Field(
        default=(), description="Allowed origins; '*' allows all, empty allows none."
    )


class TelemetrySettings(SettingsModel):
    """What the metrics show."""

    max_prometheus_queues: Annotated[int, Env("METRICS_MAX_QUEUES")] = Field(
        default=100, ge=0, description="Queues that get series of their own in the metrics; 0 exports none."
    )


class BackupSettings(SettingsModel):
    """Scheduled backups of the storage.

    In a file the keys of the chosen target stand beside these (``backup.bucket``); in Python ``store`` takes the target's own
    model. The resolved settings always hold that model in ``store`` when backups are enabled.
    """

    enabled: Annotated[bool, Env("S3_BACKUP_ENABLED")] = Field(default=False, description="Back up on a schedule.")
    target: Annotated[str, Env("BUNQUEUE_BACKUP_TARGET")] = Field(
        default="s3", description="Name of the installed backup target."
    )
    interval: Annotated[int, Env("S3_BACKUP_INTERVAL"), Unit("ms")] = Field(
        default=21_600_000, ge=60_000, le=MAX_MS, description="Milliseconds from one backup to the next."
    )
    retention: Annotated[int, Env("S3_BACKUP_RETENTION")] = Field(
        default=7, ge=1, description="Backups kept; older ones are deleted after each successful backup."
    )
    verify_interval: Annotated[int | None, Env("BUNQUEUE_BACKUP_VERIFY_INTERVAL"), Unit("ms")] = Field(
        default=None,
        ge=60_000,
        le=MAX_MS,
        description="Milliseconds from one verification of the newest backup to the next; None verifies on demand only.",
    )
    store: SerializeAsAny[SettingsModel] | None = Field(default=None, description="The target's own settings.")


class TimeoutSettings(SettingsModel):
    """How long the server waits for what. All in milliseconds."""

    shutdown: Annotated[int, Env("SHUTDOWN_TIMEOUT_MS"), Unit("ms")] = Field(
        default=30_000, ge=0, le=MAX_MS, description="Longest wait for active jobs at shutdown; 0 does not wait."
    )
    stats: Annotated[int, Env("STATS_INTERVAL_MS"), Unit("ms")] = Field(
        default=300_000, ge=1, le=MAX_MS, description="Time between two log lines with statistics."
    )
    worker_timeout_ms: Annotated[int, Env("WORKER_TIMEOUT_MS")] = Field(
        default=30_000, ge=1, le=MAX_MS, description="A worker that is silent this long counts as stale."
    )
    worker_cleanup_interval_ms: Annotated[int, Env("WORKER_CLEANUP_INTERVAL_MS")] = Field(
        default=60_000, ge=1, le=MAX_MS, description="Time between two removals of stale workers."
    )
    lock_timeout_ms: Annotated[int, Env("LOCK_TIMEOUT_MS")] = Field(
        default=5_000, ge=1, le=MAX_MS, description="Longest wait for an internal lock; not the lease of a job."
    )


class LoggingSettings(SettingsModel):
    """What the log shows, and how."""

    level: Annotated[LogLevel, Env("LOG_LEVEL")] = Field(
        default="info", description="Least severe level that is written: debug, info, warn or error."
    )
    format: Annotated[LogFormat, Env("LOG_FORMAT")] = Field(
        default="text", description="text: one line a record, errors to stderr; json: one object a line, all to stdout."
    )


class EventsSettings(SettingsModel):
    """Where events go besides subscribers."""

    sinks: tuple[Mapping[str, Any], ...] = Field(
        default=(), description="Event sinks: each a table with the sink's name in 'type' and the sink's own keys."
    )


class WebhookSettings(SettingsModel):
    """How webhooks are delivered."""

    max_attempts: Annotated[int, Env("WEBHOOK_MAX_RETRIES")] = Field(
        default=3, ge=1, description="Deliveries tried in all, the first one counted."
    )
    retry_delay_ms: Annotated[int, Env("WEBHOOK_RETRY_DELAY_MS")] = Field(
        default=1_000, ge=0, le=MAX_MS, description="Wait before attempt n + 1 is this value × n."
    )
    allow_private_networks: Annotated[bool, Env("WEBHOOK_ALLOW_PRIVATE_NETWORKS")] = Field(
        default=False,
        description="Let webhooks point to this machine and to private, link-local and reserved addresses too.",
    )


class LimitSettings(SettingsModel):
    """What one client may ask of the server. No request limit applies unless rate_limit_max_requests is set."""

    rate_limit_max_requests: Annotated[int | None, Env("RATE_LIMIT_MAX_REQUESTS")] = Field(
        default=None, ge=1, description="Requests a client may send within the window; None sets no limit."
    )
    rate_limit_window_ms: Annotated[int, Env("RATE_LIMIT_WINDOW_MS")] = Field(
        default=60_000, ge=0, le=MAX_MS, description="Sliding window of the request limit; 0 switches it off."
    )
    rate_limit_cleanup_ms: Annotated[int, Env("RATE_LIMIT_CLEANUP_MS")] = Field(
        default=60_000, ge=1, le=MAX_MS, description="Time between two removals of idle clients from the limiter."
    )
    tcp_idle_timeout_ms: Annotated[int, Env("TCP_IDLE_TIMEOUT_MS")] = Field(
        default=60_000,
        ge=0,
        le=MAX_MS,
        description="A connection whose frame stays incomplete this long is closed; 0 never.",
    )
    tcp_max_write_queue_bytes: Annotated[int, Env("TCP_MAX_WRITE_QUEUE_BYTES")] = Field(
        default=67_108_864, ge=0, description="A connection with more unsent bytes than this is closed; 0 never."
    )

    @property
    def rate_limit(self) -> tuple[int, int] | None:
        """(requests, window in ms) of the request limit, or None when there is none."""
        if self.rate_limit_max_requests is None or self.rate_limit_window_ms == 0:
            return None
        return self.rate_limit_max_requests, self.rate_limit_window_ms


class MonitoringSettings(SettingsModel):
    """When the server raises warning events. 0 switches a warning off."""

    queue_idle_threshold_ms: Annotated[int, Env("QUEUE_IDLE_THRESHOLD_MS")] = Field(
        default=30_000, ge=0, le=MAX_MS, description="Raise queue:idle for a queue without activity this long."
    )
    worker_overload_threshold_ms: Annotated[int, Env("WORKER_OVERLOAD_THRESHOLD_MS")] = Field(
        default=30_000, ge=0, le=MAX_MS, description="Raise worker:overloaded for a worker that is full this long."
    )
    queue_size_threshold: Annotated[int, Env("QUEUE_SIZE_THRESHOLD")] = Field(
        default=0, ge=0, description="Raise queue:threshold for a queue with more waiting jobs."
    )
    memory_warning_mb: Annotated[int, Env("MEMORY_WARNING_MB"), Unit("mb")] = Field(
        default=0, ge=0, description="Raise server:memory-warning above this resident memory."
    )
    storage_warning_mb: Annotated[int, Env("STORAGE_WARNING_MB"), Unit("mb")] = Field(
        default=0, ge=0, description="Raise storage:size-warning above this size of the storage."
    )


class Settings(BaseSettings):
    """Everything a server is started with, resolved and checked. Built directly it reads no environment and no file."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )

    server: ServerSettings = Field(default_factory=ServerSettings, description=ServerSettings.__doc__)
    auth: AuthSettings = Field(default_factory=AuthSettings, description=AuthSettings.__doc__)
    cors: CorsSettings = Field(default_factory=CorsSettings, description=CorsSettings.__doc__)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings, description=TelemetrySettings.__doc__)
    storage: SerializeAsAny[StorageSettings] = Field(
        default_factory=MemoryStorage, description="Where jobs are kept: the settings of the chosen storage driver."
    )
    backup: BackupSettings = Field(default_factory=BackupSettings, description=BackupSettings.__doc__)
    timeouts: TimeoutSettings = Field(default_factory=TimeoutSettings, description=TimeoutSettings.__doc__)
    logging: LoggingSettings = Field(default_factory=LoggingSettings, description=LoggingSettings.__doc__)
    events: EventsSettings = Field(default_factory=EventsSettings, description=EventsSettings.__doc__)
    webhooks: WebhookSettings = Field(default_factory=WebhookSettings, description=WebhookSettings.__doc__)
    limits: LimitSettings = Field(default_factory=LimitSettings, description=LimitSettings.__doc__)
    monitoring: MonitoringSettings = Field(default_factory=MonitoringSettings, description=MonitoringSettings.__doc__)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is handed in counts; :mod:`bunqueue_core.config.resolution` adds flags, file and environment."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a started server listens, said once all listeners are bound.

    Attributes:
        tcp: (address, port) that the TCP protocol is bound to, or the path of its Unix socket.
        http: the same for HTTP.
        storage: one line that names the storage, without secrets.
    """

    tcp: tuple[str, int] | Path
    http: tuple[str, int] | Path
    storage: str
