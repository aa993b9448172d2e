"""Finding, loading and holding plugins: one :class:`PluginManager` per application object, never a global one.

Entry points are loaded one at a time, so that an error names distribution, version and entry point. What is broken stops the
start: nothing is skipped in silence, and all problems are reported together.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeVar, get_args, get_origin

import pluggy

from bunqueue_core.model.errors import ConfigurationError, PluginError
from bunqueue_core.plugins import builtin, hookspecs
from bunqueue_core.plugins.drivers import (
    BackoffStrategy,
    BackupTarget,
    BrokerDriver,
    EventSink,
    JournalDriver,
    JournalSettings,
    ScheduleKind,
    SettingsModel,
    StorageDriver,
    StorageSettings,
)
from bunqueue_core.plugins.hookspecs import ENTRY_POINT_GROUP, PROJECT

if TYPE_CHECKING:
    from bunqueue_core.config.settings import Settings

T = TypeVar("T")

#: Narrows the plugins that are loaded: names of entry points, separated by commas.
NARROWING_VARIABLE: Final = "BUNQUEUE_PLUGINS"

#: ``1`` prints each call of a hook with its result to stderr.
TRACE_VARIABLE: Final = "BUNQUEUE_TRACE_PLUGINS"

#: The distributions of this project that bring a storage driver or a backup target, for messages that say how to mend.
OFFICIAL_DISTRIBUTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"sqlite": "bunqueue-sqlite", "postgres": "bunqueue-postgres", "s3": "bunqueue-s3"}
)

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_HOOKS: Final = tuple(name for name in vars(hookspecs) if name.startswith("bunqueue_"))


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin that is in use.

    Attributes:
        name: its entry point's name; ``core`` for what is built in.
        distribution: name of the distribution that brought it; empty for one that was handed in.
        version: that distribution's version; empty for one that was handed in.
        hooks: hooks that it implements.
        provides: what it registered, such as ``storage driver sqlite``.
    """

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...]
    provides: tuple[str, ...]

    @property
    def label(self) -> str:
        """Name for people: the distribution with its version where there is one."""
        return f"{self.distribution} {self.version}" if self.distribution else f"plugin '{self.name}'"


@dataclass(slots=True)
class _Source:
    """Where a plugin comes from, and what it has provided so far."""

    name: str
    distribution: str = ""
    version: str = ""
    entry_point: str = ""
    hooks: tuple[str, ...] = ()
    provides: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.distribution:
            return f"Plugin '{self.name}'"
        where = f" (entry point {self.entry_point})" if self.entry_point else ""
        return f"Plugin '{self.name}' of {self.distribution} {self.version}{where}"

    def mend(self) -> str:
        if not self.distribution:
            return "Mend the plugin, or do not hand it in."
        return f"Upgrade or uninstall {self.distribution}, or name the plugins to load in {NARROWING_VARIABLE} (comma-separated)."


class PluginManager:
    """The plugins of one application, and what they registered.

    Args:
        plugins: plugin modules or objects with hook implementations, by name, besides those that are installed.
        entry_points: installed plugins; None takes those of the group ``bunqueue.plugins``; an empty sequence takes none.
        environ: environment that may narrow (``BUNQUEUE_PLUGINS``) or trace (``BUNQUEUE_TRACE_PLUGINS``); None: neither.
        trace: where traces go; None: stderr.

    Raises:
        PluginError: a plugin cannot be imported, implements a hook that does not exist, or registers something unusable or
            already taken. Every such problem is in it.
    """

    def __init__(
        self,
        plugins: Mapping[str, Any] | None = None,
        *,
        entry_points: Sequence[metadata.EntryPoint] | None = None,
        environ: Mapping[str, str] | None = None,
        trace: TextIO | None = None,
    ) -> None:
        self._pluggy = pluggy.PluginManager(PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._sources: dict[str, _Source] = {}
        self._problems: list[str] = []
        variables = environ or {}
        if variables.get(TRACE_VARIABLE) == "1":
            self._trace(trace or sys.stderr)

        from bunqueue_core import __version__

        self._register(_Source("core", "bunqueue-core", __version__), builtin)
        found = _installed() if entry_points is None else list(entry_points)
        for entry_point in self._narrow(found, variables.get(NARROWING_VARIABLE)):
            self._load(entry_point)
        for name, plugin in (plugins or {}).items():
            self._register(_Source(name), plugin)

        drivers: dict[str, tuple[_Source, StorageDriver]] = {}
        targets: dict[str, tuple[_Source, BackupTarget]] = {}
        kinds: dict[str, tuple[_Source, ScheduleKind]] = {}
        strategies: dict[str, tuple[_Source, BackoffStrategy]] = {}
        for source in self._sources.values():
            for driver in self._collect_drivers(source):
                if self._usable_settings(source, f"storage driver '{driver.name}'", driver):
                    self._add(drivers, source, "storage driver", driver.name, driver)
            for target in self._collect(source, "bunqueue_backup_targets", BackupTarget):
                self._add(targets, source, "backup target", target.name, target)
            for kind in self._collect(source, "bunqueue_schedule_kinds", ScheduleKind):
                self._add(kinds, source, "schedule kind", kind.name, kind)
            for name, strategy in self._collect_named(source, "bunqueue_backoff_strategies").items():
                self._add(strategies, source, "backoff strategy", name, strategy)
        if self._problems:
            raise PluginError(self._problems)

        #: Storage drivers by the value of ``storage.driver`` that selects them.
        self.drivers: Mapping[str, StorageDriver] = _values(drivers)
        #: Backup targets by the value of ``backup.target`` that selects them.
        self.targets: Mapping[str, BackupTarget] = _values(targets)
        #: Schedule kinds by name.
        self.kinds: Mapping[str, ScheduleKind] = _values(kinds)
        #: Back-off strategies by the value of a job's ``backoff.type`` that selects them.
        self.strategies: Mapping[str, BackoffStrategy] = _values(strategies)
        #: The plugins in use, the built-in one first.
        self.plugins: tuple[LoadedPlugin, ...] = tuple(
            LoadedPlugin(source.name, source.distribution, source.version, source.hooks, tuple(source.provides))
            for source in self._sources.values()
        )

    # -- what start needs ---------------------------------------------------------------------------------------------

    def driver(self, name: str) -> StorageDriver:
        """The storage driver of that name.

        Raises:
            ConfigurationError: there is none; the message lists those there are and how to get it.
        """
        try:
            return self.drivers[name]
        except KeyError:
            raise ConfigurationError(self.unsupported("storage driver", name, self.drivers)) from None

    def target(self, name: str) -> BackupTarget:
        """The backup target of that name.

        Raises:
            ConfigurationError: there is none; the message lists those there are and how to get it.
        """
        try:
            return self.targets[name]
        except KeyError:
            raise ConfigurationError(self.unsupported("backup target", name, self.targets)) from None

    def unsupported(self, what: str, name: str, known: Mapping[str, Any]) -> str:
        """The problem that ``name`` is no installed ``what``, with the mend."""
        distribution = OFFICIAL_DISTRIBUTIONS.get(name)
        installed = ", ".join(sorted(known)) or "none"
        mend = f"; install it with: pip install {distribution}" if distribution else ""
        return f"Unsupported {what}: {name} (installed: {installed}{mend})"

    def configure(self, settings: Settings) -> None:
        """Let each plugin check the configuration before anything is opened.

        Raises:
            ConfigurationError: a plugin objects, or its check fails.
        """
        problems: list[str] = []
        for source in self._sources.values():
            try:
                self._call(source, "bunqueue_configure", settings=settings)
            except ConfigurationError as error:
                problems.extend(error.problems)
            except Exception as error:
                problems.append(f"{source} failed to check the configuration: {_reason(error)}. {source.mend()}")
        if problems:
            raise ConfigurationError(problems)

    def sinks(self, settings: Settings) -> list[EventSink]:
        """The event sinks that the configuration asks for.

        Raises:
            ConfigurationError: a sink cannot be made, or ``events.sinks`` names one that no plugin offers.
        """
        sinks: list[EventSink] = []
        problems: list[str] = []
        for source in self._sources.values():
            try:
                for made in self._call(source, "bunqueue_event_sinks", settings=settings):
                    sinks.extend(made)
            except ConfigurationError as error:
                problems.extend(error.problems)
            except Exception as error:
                problems.append(f"{source} failed to make its event sinks: {_reason(error)}. {source.mend()}")
        made_names = {sink.name: sink for sink in sinks}
        if not problems:
            wanted = [str(sink.get("type")) for sink in settings.events.sinks]
            problems = [self.unsupported("event sink", name, made_names) for name in wanted if name not in made_names]
        if problems:
            for sink in sinks:
                sink.close()
            raise ConfigurationError(problems)
        return sinks

    # -- loading ------------------------------------------------------------------------------------------------------

    def _narrow(self, found: list[metadata.EntryPoint], names: str | None) -> list[metadata.EntryPoint]:
        if names is None:
            return found
        wanted = [name.strip() for name in names.split(",") if name.strip()]
        known = {entry_point.name for entry_point in found}
        for name in wanted:
            if name not in known:
                available = ", ".join(sorted(known)) or "none"
                self._problems.append(
                    f'Invalid {NARROWING_VARIABLE}: "{name}" is not an installed plugin (installed: {available})'
                )
        return [entry_point for entry_point in found if entry_point.name in wanted]

    def _load(self, entry_point: metadata.EntryPoint) -> None:
        distribution = entry_point.dist
        source = _Source(
            entry_point.name,
            distribution.name if distribution else "an unknown distribution",
            distribution.version if distribution else "",
            f"{ENTRY_POINT_GROUP}: {entry_point.name} = {entry_point.value}",
        )
        try:
            plugin = entry_point.load()
        except Exception as error:
            self._problems.append(f"{source} cannot be loaded: {_reason(error)}. {source.mend()}")
            return
        self._register(source, plugin)

    def _register(self, source: _Source, plugin: Any) -> None:
        if source.name in self._sources:
            other = self._sources[source.name]
            self._problems.append(f"{source} has the name of another plugin, {other}. Uninstall one of them.")
            return
        try:
            self._pluggy.register(plugin, name=source.name)
            # After each one, so that the error names the plugin that implements a hook which does not exist.
            self._pluggy.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._pluggy.has_plugin(source.name):
                self._pluggy.unregister(name=source.name)
            hooks = ", ".join(_HOOKS)
            self._problems.append(
                f"{source} cannot be registered: {_reason(error)}. The hooks are {hooks}. {source.mend()}"
            )
            return
        callers = self._pluggy.get_hookcallers(plugin) or []
        source.hooks = tuple(sorted(caller.name for caller in callers))
        self._sources[source.name] = source

    def _call(self, source: _Source, hook: str, **arguments: Any) -> list[Any]:
        """What ``source`` alone answers to ``hook``, so that a failure has a name."""
        if hook not in source.hooks:
            return []
        others = [self._pluggy.get_plugin(name) for name in self._sources if name != source.name]
        results: list[Any] = self._pluggy.subset_hook_caller(hook, remove_plugins=others)(**arguments)
        return results

    def _collect(self, source: _Source, hook: str, type_: type[T]) -> list[T]:
        values = self._collect_any(source, hook)
        right = [value for value in values if isinstance(value, type_)]
        self._refuse_others(source, hook, values, right, type_.__name__)
        return right

    def _collect_drivers(self, source: _Source) -> list[StorageDriver]:
        hook = "bunqueue_storage_drivers"
        values = self._collect_any(source, hook)
        right = [value for value in values if isinstance(value, JournalDriver | BrokerDriver)]
        self._refuse_others(source, hook, values, right, "JournalDriver or BrokerDriver")
        return right

    def _collect_any(self, source: _Source, hook: str) -> list[Any]:
        try:
            return [value for result in self._call(source, hook) for value in result]
        except Exception as error:
            self._problems.append(f"{source} failed in {hook}: {_reason(error)}. {source.mend()}")
            return []

    def _refuse_others(
        self, source: _Source, hook: str, values: list[Any], right: Sequence[Any], expected: str
    ) -> None:
        if len(right) < len(values):
            wrong = next(value for value in values if value not in right)
            self._problems.append(
                f"{source} returns a {type(wrong).__name__} from {hook} (expected {expected}). {source.mend()}"
            )

    def _collect_named(self, source: _Source, hook: str) -> dict[str, Callable[..., Any]]:
        try:
            values = {name: value for result in self._call(source, hook) for name, value in result.items()}
        except Exception as error:
            self._problems.append(f"{source} failed in {hook}: {_reason(error)}. {source.mend()}")
            return {}
        for name, value in values.items():
            if not callable(value):
                self._problems.append(
                    f"{source} returns a {type(value).__name__} for '{name}' from {hook} (expected a function). {source.mend()}"
                )
        return {name: value for name, value in values.items() if callable(value)}

    def _add(self, registry: dict[str, tuple[_Source, T]], source: _Source, what: str, name: str, value: T) -> None:
        if not _NAME.fullmatch(name):
            self._problems.append(
                f"{source} registers a {what} named '{name}' (expected lower-case letters, digits, '-' and '_'). {source.mend()}"
            )
        elif name in registry:
            other = registry[name][0]
            label = "storage adapter" if what == "storage driver" else what
            self._problems.append(
                f"Duplicate {label}: {name}. {source} registers it, and so does {other}. "
                f"Uninstall one of them, or name the plugins to load in {NARROWING_VARIABLE}."
            )
        else:
            registry[name] = (source, value)
            source.provides.append(f"{what} {name}")

    def _usable_settings(self, source: _Source, what: str, driver: StorageDriver) -> bool:
        base: type[SettingsModel] = JournalSettings if isinstance(driver, JournalDriver) else StorageSettings
        model = driver.settings
        if not (isinstance(model, type) and issubclass(model, base)):
            problem = f"a settings model that is no {base.__name__}"
        else:
            annotation = model.model_fields["driver"].annotation
            if (
                get_origin(annotation) is Literal
                and get_args(annotation) == (driver.name,)
                and model.model_fields["driver"].default == driver.name
            ):
                return True
            problem = f"a settings model whose field 'driver' is not Literal[\"{driver.name}\"] with that default"
        self._problems.append(f"{source} registers {what} with {problem}. {source.mend()}")
        return False

    def _trace(self, out: TextIO) -> None:
        def before(hook: str, implementations: Sequence[Any], arguments: Mapping[str, Any]) -> None:
            names = ", ".join(implementation.plugin_name for implementation in implementations)
            out.write(f"{hook}: {names or 'nobody'}\n")

        def after(result: Any, hook: str, implementations: Sequence[Any], arguments: Mapping[str, Any]) -> None:
            if result.exception is None:
                out.write(f"{hook}: -> {result.get_result()!r}\n")
            else:
                out.write(f"{hook}: raised {_reason(result.exception)}\n")

        self._pluggy.add_hookcall_monitoring(before, after)


def _installed() -> list[metadata.EntryPoint]:
    """The entry points of the group, in the order of their names, so that start is the same every time."""
    return sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda entry_point: entry_point.name)


def _reason(error: BaseException) -> str:
    text = str(error).strip().rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _values(registry: Mapping[str, tuple[_Source, T]]) -> Mapping[str, T]:
    return MappingProxyType({name: value for name, (_, value) in registry.items()})
