"""Configuration: typed settings, their sources and precedence, and the errors that name what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bunqueue_core.config.define import ConfigDescription, define_config
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
from bunqueue_core.model.errors import ConfigurationError as ConfigError

if TYPE_CHECKING:
    from bunqueue_core.config.files import load_config_file as load_config_file
    from bunqueue_core.config.resolution import Resolution as Resolution
    from bunqueue_core.config.resolution import load_settings as load_settings
    from bunqueue_core.config.resolution import resolve as resolve

#: Names that come on demand: they load the plugin manager, which a process that is only configured has no use for.
_ON_DEMAND = {
    "Resolution": "bunqueue_core.config.resolution",
    "load_config_file": "bunqueue_core.config.files",
    "load_settings": "bunqueue_core.config.resolution",
    "resolve": "bunqueue_core.config.resolution",
}


def __getattr__(name: str) -> Any:
    module = _ON_DEMAND.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)


__all__ = [
    "AuthSettings",
    "BackupSettings",
    "ConfigDescription",
    "ConfigError",
    "CorsSettings",
    "EventsSettings",
    "LimitSettings",
    "Listening",
    "LoggingSettings",
    "MonitoringSettings",
    "Resolution",
    "ServerSettings",
    "Settings",
    "TelemetrySettings",
    "TimeoutSettings",
    "WebhookSettings",
    "define_config",
    "load_config_file",
    "load_settings",
    "resolve",
]
