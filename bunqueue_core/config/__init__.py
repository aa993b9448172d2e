"""Configuration: typed settings, their sources and precedence, and the errors that name what is wrong with them."""

from __future__ import annotations

from bunqueue_core.config.settings import (
    AuthSettings,
    BackupSettings,
    CorsSettings,
    EventsSettings,
    LimitSettings,
    Listening,
    LoggingSettings,
    MonitoringSettings,
    ServerSettings,
    Settings,
    TelemetrySettings,
    TimeoutSettings,
    WebhookSettings,
)

__all__ = [
    "AuthSettings",
    "BackupSettings",
    "CorsSettings",
    "EventsSettings",
    "LimitSettings",
    "Listening",
    "LoggingSettings",
    "MonitoringSettings",
    "ServerSettings",
    "Settings",
    "TelemetrySettings",
    "TimeoutSettings",
    "WebhookSettings",
]
