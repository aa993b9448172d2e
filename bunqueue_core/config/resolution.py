"""From flags, file and environment to one :class:`~bunqueue_core.config.settings.Settings`.

Precedence, highest first: flags, configuration file, environment, default. A source that says nothing (a key that is absent or
null, a variable that is unset or empty) leaves the decision to the next. Everything that is wrong is collected and reported at
once; nothing falls back to a default in silence.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Union

from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from bunqueue_core.config.define import ConfigDescription
from bunqueue_core.config.files import ConfigFile, load_config_file
from bunqueue_core.config.grammar import UNSET, Misread, expectation, got, read_text, read_value
from bunqueue_core.config.schema import (
    SHARED_VARIABLES,
    Setting,
    core_settings,
    driver_settings,
    target_settings,
)
from bunqueue_core.config.selection import (
    DRIVER_VARIABLE,
    REQUIRED,
    URL_VARIABLE,
    Selection,
    first_set,
    label,
    select_driver,
)
from bunqueue_core.config.settings import LoggingSettings, Settings
from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.plugins.manager import PluginManager

#: Flags of ``bunqueue start`` and the setting that each one sets.
FLAGS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "--tcp-port": ("server", "tcp_port"),
        "--port": ("server", "tcp_port"),
        "-p": ("server", "tcp_port"),
        "--http-port": ("server", "http_port"),
        "--host": ("server", "host"),
        "-H": ("server", "host"),
        "--data-path": ("storage", "data_path"),
        "--max-completed-jobs": ("storage", "max_completed_jobs"),
        "--completed-retention-ms": ("storage", "completed_retention_ms"),
        "--auth-tokens": ("auth", "tokens"),
        "--tls-cert": ("server", "tls_cert_file"),
        "--tls-key": ("server", "tls_key_file"),
    }
)

#: Keys that existing configuration files may hold although they never did anything, and what does it instead.
_DEAD_KEYS: Final[Mapping[tuple[str, str], str]] = {
    ("timeouts", "worker"): "WORKER_TIMEOUT_MS",
    ("timeouts", "lock"): "LOCK_TIMEOUT_MS",
    ("webhooks", "max_retries"): "WEBHOOK_MAX_RETRIES",
    ("webhooks", "retry_delay"): "WEBHOOK_RETRY_DELAY_MS",
}

#: Sections of the original's files that have no counterpart here; they are accepted and have no effect.
_FOREIGN_SECTIONS: Final = frozenset({"cloud"})

_BACKUP_NEEDS_SNAPSHOTS: Final = (
    "S3 backup requires persistent SQLite storage. "
    "Set BUNQUEUE_DATA_PATH or storage.dataPath before enabling S3_BACKUP_ENABLED."
)

SourceName = Literal["flag", "file", "environment", "default"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: the source, and the flag, file or variable in it that decided."""

    source: SourceName
    name: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.name}" if self.name else self.source


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the sources together say.

    Attributes:
        settings: the configuration; None if there is any problem or conflict.
        problems: values and keys that cannot be used.
        conflicts: values that are fine by themselves and refused together.
        warnings: what is ignored or worth knowing.
        known: every setting that applies, by key.
        origins: where each one's value came from, by key.
        values: each one's value, by key.
        logging: how to log, as far as it could be read.
        path: the file that was read, if any.
    """

    settings: Settings | None
    problems: tuple[str, ...]
    conflicts: tuple[str, ...]
    warnings: tuple[str, ...]
    known: Mapping[str, Setting]
    origins: Mapping[str, Origin]
    values: Mapping[str, Any]
    logging: LoggingSettings
    path: Path | None = None

    def require(self) -> Settings:
        """The settings.

        Raises:
            ConfigurationError: with every problem and conflict.
        """
        if self.settings is None:
            raise ConfigurationError([*self.problems, *self.conflicts])
        return self.settings


def load_settings(
    plugins: PluginManager,
    *,
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Settings:
    """Read and check the whole configuration of a server.

    Args:
        plugins: the installed plugins; they define what ``storage`` and ``backup`` may hold.
        path: the configuration file; None looks for one in the working directory.
        environ: the environment; None takes the process's.
        flags: flags of the command line as typed, with their text.

    Raises:
        ConfigurationError: with everything that is wrong.
    """
    variables = os.environ if environ is None else environ
    return resolve(plugins, file=load_config_file(path), environ=variables, flags=flags or {}).require()


def resolve(
    plugins: PluginManager,
    *,
    file: ConfigFile | ConfigDescription | Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Resolution:
    """Bring the sources together without raising: problems are part of the result.

    Args:
        plugins: the installed plugins.
        file: what a configuration file says.
        environ: the environment; None: an empty one.
        flags: flags as typed, with their text.
    """
    sections = file if isinstance(file, Mapping) else file.sections if file is not None else {}
    path = file.path if isinstance(file, ConfigFile) else None
    return _Resolver(plugins, environ or {}, flags or {}, path).run(sections)


def settings_model(plugins: PluginManager) -> type[Settings]:
    """:class:`Settings` with ``storage`` as a discriminated section over the installed drivers."""
    models = tuple(driver.settings for driver in plugins.drivers.values())
    storage: Any = models[0] if len(models) == 1 else Annotated[Union[models], Field(discriminator="driver")]  # noqa: UP007
    return create_model("Settings", __base__=Settings, storage=(storage, ...))


class _Values(PydanticBaseSettingsSource):
    """One source, read and checked: sections of values."""

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return {section: dict(values) for section, values in self._values.items()}


@dataclass(slots=True)
class _Resolver:
    plugins: PluginManager
    environ: Mapping[str, str]
    flags: Mapping[str, str]
    path: Path | None
    problems: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    known: dict[str, Setting] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    stated: dict[str, dict[str, Any]] = field(default_factory=dict)
    flagged: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    bad: set[tuple[str, str]] = field(default_factory=set)
    #: What follows from the sources together: the storage driver, and the backup target's own settings.
    derived: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Values by source, highest first, then section and field.
    values: dict[SourceName, dict[str, dict[str, Any]]] = field(
        default_factory=lambda: {"flag": {}, "file": {}, "environment": {}}
    )

    def run(self, sections: Mapping[str, Any]) -> Resolution:
        core = core_settings()
        self._take_flags(core)
        self._take_sections(sections, core)
        for section, fields in core.items():
            if section != "backup":
                self._refuse_unknown(section, fields, core)
                self._read_all(fields.values())
        self._resolve_storage(core)
        self._resolve_backup(core)
        self._check_together()
        settings = self._build()
        if self.problems or self.conflicts:
            settings = None
        return Resolution(
            settings=settings,
            problems=tuple(self.problems),
            conflicts=tuple(self.conflicts),
            warnings=tuple(self.warnings),
            known=self.known,
            origins={key: self.origins.get(key, Origin("default")) for key in self.known},
            values={key: self._value(setting) for key, setting in self.known.items()},
            logging=LoggingSettings(**self._merged("logging")),
            path=self.path,
        )

    # -- what was said ------------------------------------------------------------------------------------------------

    def _take_flags(self, core: Mapping[str, Mapping[str, Setting]]) -> None:
        shared = driver_settings("memory", JournalSettings)
        for flag, text in self.flags.items():
            section, name = FLAGS[flag]
            if text.strip():
                self.flagged[section, name] = (flag, text)
            else:
                setting = core.get(section, shared).get(name)
                self.problems.append(f"Invalid {flag}: missing value (expected {_expected(setting)})")

    def _take_sections(self, sections: Mapping[str, Any], core: Mapping[str, Mapping[str, Setting]]) -> None:
        names = {name: name for name in Settings.model_fields}
        for given, content in sections.items():
            name = names.get(given)
            if content is None or given in _FOREIGN_SECTIONS:
                continue
            if name is None:
                self._unknown(
                    str(given), list(names), [setting.key for fields in core.values() for setting in fields.values()]
                )
            elif isinstance(content, BaseModel):
                self.stated[name] = _given_fields(content)
            elif isinstance(content, Mapping):
                self.stated[name] = self._snake_keys(name, content)
            else:
                self.problems.append(f"{name} must be an object (got {got(None, content)})")

    def _snake_keys(self, section: str, content: Mapping[Any, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for key, value in content.items():
            if value is None:
                continue
            name = _snake(str(key))
            if name in spelled:
                self.problems.append(f"{section}.{key} is given twice (also as {spelled[name]})")
                continue
            spelled[name] = str(key)
            fields[name] = value
        return fields

    def _refuse_unknown(
        self, section: str, settings: Mapping[str, Setting], core: Mapping[str, Mapping[str, Setting]]
    ) -> None:
        for name in list(self.stated.get(section, ())):
            if name in settings:
                continue
            replacement = _DEAD_KEYS.get((section, name))
            if replacement is not None:
                self.warnings.append(
                    f'Config key "{section}.{to_camel(name)}" is ignored (it never took effect); set {replacement} instead'
                )
            else:
                self._unknown(
                    f"{section}.{to_camel(name)}",
                    [setting.key for setting in settings.values()],
                    [setting.key for fields in core.values() for setting in fields.values()],
                )
            del self.stated[section][name]

    def _unknown(self, key: str, *candidates: list[str]) -> None:
        """Report an unknown key with the nearest of the first list that has one; else what the first list holds."""
        for names in candidates:
            nearest = _nearest(key, names)
            if nearest is not None:
                self.problems.append(f'Unknown config key "{key}"; did you mean "{nearest}"?')
                return
        self.problems.append(f'Unknown config key "{key}" (known: {", ".join(candidates[0])})')

    # -- reading values -----------------------------------------------------------------------------------------------

    def _read_all(self, settings: Iterable[Setting], ignored: str | None = None) -> None:
        for setting in settings:
            self._read(setting, ignored)

    def _read(self, setting: Setting, ignored: str | None = None) -> None:
        """Read a setting from the first source that has it.

        Args:
            setting: what to read.
            ignored: why a misread value only deserves a warning (its feature is off); None: it is a problem.
        """
        self.known[setting.key] = setting
        place = (setting.section, setting.name)
        try:
            if place in self.flagged:
                flag, text = self.flagged[place]
                self._put("flag", setting, read_text(setting, text, flag), flag)
            elif setting.name in self.stated.get(setting.section, ()):
                value = read_value(setting, self.stated[setting.section][setting.name], self.warnings)
                self._put("file", setting, value, self.path.name if self.path else "")
            else:
                variable, text = first_set(self.environ, setting.variables)
                if variable in self.environ:
                    value = read_text(setting, text, variable)
                    if value is not UNSET:
                        self._put("environment", setting, value, variable)
        except Misread as error:
            if ignored is None:
                self.problems.append(str(error))
                self.bad.add(place)
            else:
                self.warnings.append(f"{error}; ignored: {ignored}")

    def _put(self, source: SourceName, setting: Setting, value: Any, name: str) -> None:
        self.values[source].setdefault(setting.section, {})[setting.name] = value
        self.origins[setting.key] = Origin(source, name)

    def _merged(self, section: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for source in reversed(self.values):
            merged.update(self.values[source].get(section, {}))
        merged.update(self.derived.get(section, {}))
        return merged

    def _value(self, setting: Setting) -> Any:
        return self._merged(setting.section).get(setting.name, setting.default)

    # -- storage ------------------------------------------------------------------------------------------------------

    def _resolve_storage(self, core: Mapping[str, Mapping[str, Setting]]) -> None:
        stated = self.stated.setdefault("storage", {})
        present: dict[str, Any] = {name: stated[name] for name in ("driver", "url", "data_path") if name in stated}
        named: dict[str, str] = {}
        if ("storage", "data_path") in self.flagged:
            flag, text = self.flagged["storage", "data_path"]
            present["data_path"] = text
            named["data_path"] = flag
        given = present.get("driver")
        if given is not None and not isinstance(given, str):
            names = ", ".join(f'"{name}"' for name in self.plugins.drivers)
            self.problems.append(f"storage.driver must be one of {names} (got {got(None, given)})")
            self.bad.add(("storage", "driver"))
            return
        selection = select_driver(present, self.environ, named)
        if selection.conflict is not None:
            self.conflicts.append(selection.conflict)
        driver = self.plugins.drivers.get(selection.driver)
        if driver is None:
            where = f"{selection.origin}; " if selection.origin else ""
            text = self.plugins.unsupported("storage driver", selection.driver, self.plugins.drivers)
            self.problems.append(text.replace("(installed:", f"({where}installed:", 1))
            self.bad.add(("storage", "driver"))
            return
        self._note_driver(selection)
        settings = driver_settings(driver.name, driver.settings)
        self._refuse_foreign_storage(selection, settings, core)
        self._read_all(settings.values())
        self._require(driver.name, settings)
        self._check_unused_drivers(driver.name, settings)

    def _note_driver(self, selection: Selection) -> None:
        """Put the driver's name among the values, with the setting that chose it as its origin."""
        choice = Setting(
            section="storage",
            name="driver",
            variables=(DRIVER_VARIABLE,),
            kind="choice",
            optional=False,
            unit=None,
            minimum=None,
            maximum=None,
            choices=tuple(self.plugins.drivers),
            secret=False,
            numeric_text=False,
            required=False,
            default="memory",
            description="The storage driver.",
        )
        self.known[choice.key] = choice
        self.derived["storage"] = {"driver": selection.driver}
        if selection.origin.startswith("storage."):
            self.origins[choice.key] = Origin("file", self.path.name if self.path else "")
        elif selection.origin.startswith("-"):
            self.origins[choice.key] = Origin("flag", selection.origin)
        elif selection.origin:
            self.origins[choice.key] = Origin("environment", selection.origin)

    def _refuse_foreign_storage(
        self, selection: Selection, settings: Mapping[str, Setting], core: Mapping[str, Mapping[str, Setting]]
    ) -> None:
        """Tell keys of other drivers, which are ignored, from keys that nobody knows."""
        others: dict[str, str] = {"data_path": "sqlite", "url": "postgres"}
        for other in self.plugins.drivers.values():
            for name in driver_settings(other.name, other.settings):
                others.setdefault(name, other.name)
        stated = self.stated["storage"]
        stated.pop("driver", None)
        for name in [name for name in stated if name not in settings and name in others]:
            self.warnings.append(f"storage.{to_camel(name)} is ignored: the server does not use {label(others[name])}")
            del stated[name]
        self._refuse_unknown("storage", settings, {"storage": settings, **core})
        for (section, name), (flag, _) in self.flagged.items():
            if section == "storage" and name not in settings:
                user = label(others[name]) if name in others else "a driver with that setting"
                self.warnings.append(f"{flag} is ignored: the server does not use {user}")
        if selection.driver == "memory":
            variable, path = first_set(self.environ, SHARED_VARIABLES["data_path"])
            if path.strip():
                self.warnings.append(f"{variable} is ignored: the server does not use {label('sqlite')}")
        if selection.conflict is None:
            self._warn_of_rivals(selection)

    def _warn_of_rivals(self, selection: Selection) -> None:
        """Say which variables ask for another driver than the one that a more specific source chose."""
        if selection.driver != "postgres" and self.environ.get(URL_VARIABLE, "").strip():
            self.warnings.append(
                f"{URL_VARIABLE} is ignored: {selection.origin} chooses {label(selection.driver)}; "
                "remove it, or choose postgres there"
            )
        asked = self.environ.get(DRIVER_VARIABLE, "").strip()
        if asked and asked != selection.driver:
            self.warnings.append(
                f"{DRIVER_VARIABLE}={asked} is ignored: {selection.origin} chooses {label(selection.driver)}"
            )

    def _require(self, driver: str, settings: Mapping[str, Setting]) -> None:
        needed, text = REQUIRED.get(driver, ("", ""))
        merged = self._merged("storage")
        for name, setting in settings.items():
            if ("storage", name) in self.bad:
                continue
            if name == needed and not merged.get(name):
                self.conflicts.append(text)
                self.bad.add(("storage", name))
            elif setting.required and name not in merged:
                self.problems.append(_missing(setting))
                self.bad.add(("storage", name))

    def _check_unused_drivers(self, used: str, settings: Mapping[str, Setting]) -> None:
        """Warn of variables that could not be read if their driver were in use."""
        read = {variable for setting in settings.values() for variable in setting.variables}
        for driver in self.plugins.drivers.values():
            if driver.name == used:
                continue
            for setting in driver_settings(driver.name, driver.settings).values():
                variable, text = first_set(self.environ, setting.variables)
                if variable not in self.environ or variable in read:
                    continue
                read.add(variable)
                try:
                    read_text(setting, text, variable)
                except Misread as error:
                    self.warnings.append(f"{error}; ignored: the server does not use {label(driver.name)}")

    # -- backups ------------------------------------------------------------------------------------------------------

    def _resolve_backup(self, core: Mapping[str, Mapping[str, Setting]]) -> None:
        """Read the section with its target's keys beside the core's; check the target's own settings if backups are on."""
        own = core["backup"]
        stated = self.stated.setdefault("backup", {})
        self._flatten_store(stated)
        self._read(own["enabled"])
        self._read(own["target"])
        enabled = bool(self._merged("backup").get("enabled", False))
        name = str(self._merged("backup").get("target", own["target"].default))
        target = self.plugins.targets.get(name)
        if target is None and enabled:
            self.problems.append(self.plugins.unsupported("backup target", name, self.plugins.targets))
        settings = {**own, **(target_settings(name, target.settings) if target else {})}
        if target is not None or enabled:
            self._refuse_unknown("backup", settings, {"backup": settings, **core})
        off = None if enabled else "backups are off"
        for setting in settings.values():
            if setting.name not in ("enabled", "target"):
                self._read(setting, off)
        if target is None or not enabled:
            return
        merged = self._merged("backup")
        of_target = [setting for setting in settings.values() if setting.name not in own]
        for setting in of_target:
            if setting.required and setting.name not in merged and ("backup", setting.name) not in self.bad:
                self.problems.append(_missing(setting))
                self.bad.add(("backup", setting.name))
        if any(("backup", setting.name) in self.bad for setting in of_target):
            return
        chosen = {setting.name: merged[setting.name] for setting in of_target if setting.name in merged}
        try:
            self.derived["backup"] = {"store": target.settings.model_validate(chosen)}
        except ValidationError as error:
            self._take_errors(error, ("backup",))

    def _flatten_store(self, stated: dict[str, Any]) -> None:
        store = stated.pop("store", None)
        if isinstance(store, BaseModel):
            for name, target in self.plugins.targets.items():
                if type(store) is target.settings:
                    stated.setdefault("target", name)
            stated.update(_given_fields(store))
        elif isinstance(store, Mapping):
            stated.update(self._snake_keys("backup", store))
        elif store is not None:
            self.problems.append(f"backup.store must be an object (got {got(None, store)})")

    # -- the whole ----------------------------------------------------------------------------------------------------

    def _build(self) -> Settings | None:
        """Validate everything together: bounds and types again, and whatever a driver's model checks besides."""
        model = settings_model(self.plugins)
        sources = [
            {
                section: {
                    # The keys of a backup target stand beside the core's, but belong to its own model.
                    name: value
                    for name, value in fields.items()
                    if section == "storage" or name in _fields(model, section)
                }
                for section, fields in values.items()
            }
            for values in (self.derived, *self.values.values())
        ]

        class Resolved(model):  # type: ignore[valid-type, misc]
            """The settings with this resolution's sources."""

            @classmethod
            def settings_customise_sources(
                cls, settings_cls: type[BaseSettings], **_: PydanticBaseSettingsSource
            ) -> tuple[PydanticBaseSettingsSource, ...]:
                return tuple(_Values(settings_cls, values) for values in sources)

        try:
            settings: Settings = Resolved()
        except ValidationError as error:
            self._take_errors(error, ())
            return None
        return settings

    def _take_errors(self, error: ValidationError, prefix: tuple[str, ...]) -> None:
        for details in error.errors(include_url=False):
            location = [*prefix, *(str(part) for part in details["loc"])]
            if location[:1] == ["storage"] and len(location) > 1 and location[1] in self.plugins.drivers:
                del location[1]  # the tag of the discriminated section
            section = location[0] if location else ""
            name = _snake(location[1]) if len(location) > 1 else ""
            if (section, name) in self.bad or (section == "storage" and ("storage", "driver") in self.bad):
                continue
            setting = self.known.get(f"{section}.{to_camel(name)}") if name else None
            self.problems.append(self._problem(details, setting, ".".join(location)))

    def _problem(self, details: ErrorDetails, setting: Setting | None, key: str) -> str:
        if setting is not None and details["type"] == "missing":
            return _missing(setting)
        message = details["msg"]
        for wrapper in ("Value error, ", "Assertion failed, "):
            message = message.removeprefix(wrapper)
        if details["type"] not in ("value_error", "assertion_error"):
            message = message[:1].lower() + message[1:]
            shown = got(setting, details["input"]) if setting is not None else None
            return f"{setting.key if setting else key}: {message}" + (f" (got {shown})" if shown else "")
        if setting is None:
            return message
        origin = self.origins.get(setting.key)
        named = [setting.key, *setting.variables]
        if any(name in message for name in named):
            return message
        return f"{message} ({setting.key}{f', from {origin.name}' if origin and origin.name else ''})"

    def _check_together(self) -> None:
        """Refuse what is fine by itself and not together. It looks at values, so that it also speaks beside other problems."""
        backup, server, auth = self._merged("backup"), self._merged("server"), self._merged("auth")
        driver = self.plugins.drivers.get(self._merged("storage").get("driver", ""))
        if backup.get("enabled") and driver is not None and not driver.capabilities.snapshots:
            self.conflicts.append(_BACKUP_NEEDS_SNAPSHOTS)
        if server.get("tls_cert_file") and not server.get("tls_key_file"):
            self.conflicts.append("TLS misconfigured: tlsCertFile is set but tlsKeyFile (TLS_KEY_FILE) is missing")
        if server.get("tls_key_file") and not server.get("tls_cert_file"):
            self.conflicts.append("TLS misconfigured: tlsKeyFile is set but tlsCertFile (TLS_CERT_FILE) is missing")
        if auth.get("require_auth_for_metrics") and not auth.get("tokens"):
            self.warnings.append(
                "auth.requireAuthForMetrics is on but no tokens are configured: GET /prometheus will answer 503"
            )


def _fields(model: type[Settings], section: str) -> Mapping[str, FieldInfo]:
    annotation: Any = model.model_fields[section].annotation
    fields: Mapping[str, FieldInfo] = annotation.model_fields
    return fields


def _given_fields(model: BaseModel) -> dict[str, Any]:
    """What was said explicitly: defaults must not hide the environment. A storage driver's name always counts."""
    return {
        name: getattr(model, name)
        for name in type(model).model_fields
        if (name in model.model_fields_set or name == "driver") and getattr(model, name) is not None
    }


def _snake(key: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


def _nearest(key: str, names: list[str]) -> str | None:
    """The known key whose last part is nearest to that of ``key``: the section may be what is wrong."""
    tails = {_fold(name.rsplit(".", 1)[-1]): name for name in names}
    close = difflib.get_close_matches(_fold(key.rsplit(".", 1)[-1]), list(tails), n=1, cutoff=0.75)
    return tails[close[0]] if close else None


def _fold(key: str) -> str:
    return key.replace("_", "").lower()


def _missing(setting: Setting) -> str:
    ways = [setting.key, *setting.variables]
    listed = ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])} or {ways[-1]}"
    return f"{setting.variables[0] if setting.variables else setting.key} is required (set {listed})"


def _expected(setting: Setting | None) -> str:
    """What a flag expects; ``None`` stands for the data path, which belongs to whatever driver has one."""
    if setting is None or setting.name.endswith("_file"):
        return "a path"
    if setting.kind in ("integer", "number"):
        return expectation(setting, "a whole number" if setting.kind == "integer" else "a number")
    return f"a comma-separated list of non-empty {setting.name}" if setting.kind == "strings" else "text"
