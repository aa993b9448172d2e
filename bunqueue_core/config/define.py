"""``define_config``: what a ``bunqueue.config.py`` exports. A plain description; it loads and checks nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bunqueue_core.config.settings import (
        AuthSettings,
        BackupSettings,
        CorsSettings,
        EventsSettings,
        LimitSettings,
        LoggingSettings,
        MonitoringSettings,
        ServerSettings,
        TelemetrySettings,
        TimeoutSettings,
        WebhookSettings,
    )
    from bunqueue_core.plugins.drivers import StorageSettings


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """What was written down, section by section, unchecked. It is checked when it is loaded with the installed plugins."""

    sections: Mapping[str, Any]


if TYPE_CHECKING:

    def define_config(
        *,
        server: ServerSettings | Mapping[str, Any] | None = None,
        auth: AuthSettings | Mapping[str, Any] | None = None,
        cors: CorsSettings | Mapping[str, Any] | None = None,
        telemetry: TelemetrySettings | Mapping[str, Any] | None = None,
        storage: StorageSettings | Mapping[str, Any] | None = None,
        backup: BackupSettings | Mapping[str, Any] | None = None,
        timeouts: TimeoutSettings | Mapping[str, Any] | None = None,
        logging: LoggingSettings | Mapping[str, Any] | None = None,
        events: EventsSettings | Mapping[str, Any] | None = None,
        webhooks: WebhookSettings | Mapping[str, Any] | None = None,
        limits: LimitSettings | Mapping[str, Any] | None = None,
        monitoring: MonitoringSettings | Mapping[str, Any] | None = None,
    ) -> ConfigDescription:
        """Describe a configuration. See the function of the same name below."""
else:

    def define_config(**sections: Any) -> ConfigDescription:
        """Describe a configuration, section by section.

        Each section is a settings model, whose fields a type checker knows, or a mapping with camelCase or snake_case keys::

            config = define_config(
                server={"tcp_port": 7000},
                storage=SqliteStorage(data_path="jobs.db"),
            )

        Args:
            **sections: the sections of :class:`~bunqueue_core.config.settings.Settings`; None is the same as leaving it out.

        Returns:
            A description that loads nothing. A section that does not exist is reported when it is loaded, with all other
            problems.
        """
        return ConfigDescription(dict(sections))


__all__ = ["ConfigDescription", "define_config"]
