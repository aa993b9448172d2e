"""Loading plugins: what they register, and how a broken one is named."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import pytest

from bunqueue_core import __version__
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.config import Settings
from bunqueue_core.model.errors import ConfigurationError, PluginError
from bunqueue_core.plugins import (
    BackupTarget,
    JournalDriver,
    JournalSettings,
    PluginManager,
    ScheduleKind,
    SettingsModel,
    StorageSettings,
    hookimpl,
)


class ThingStorage(JournalSettings):
    driver: Literal["thing"] = "thing"
    path: str = ""


def driver(name: str = "thing", settings: Any = ThingStorage) -> JournalDriver:
    def open_nothing(settings: Any, context: Any) -> None:
        return None

    return JournalDriver(
        name=name,
        settings=settings,
        capabilities=Capabilities(driver=name),
        open=open_nothing,
        describe=lambda settings: "a thing",
    )


class ModuleLike:
    """Has the attributes that it is given, as a plugin's module has."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        vars(self).update(attributes)


def plugin(**hooks: Callable[..., Any]) -> Any:
    """A plugin with these hook implementations."""
    return ModuleLike({name: hookimpl(function) for name, function in hooks.items()})


def manager(**plugins: Any) -> PluginManager:
    return PluginManager(plugins, entry_points=[])


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[metadata.EntryPoint]]:
    """Makes distributions, each with one plugin module, and gives their entry points."""

    def make(**sources: str) -> list[metadata.EntryPoint]:
        monkeypatch.syspath_prepend(tmp_path)
        for name, source in sources.items():
            (tmp_path / f"{name}_of_a_test.py").write_text(source)
            information = tmp_path / f"acme_{name}-1.2.dist-info"
            information.mkdir()
            (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-{name}\nVersion: 1.2\n")
            (information / "entry_points.txt").write_text(f"[bunqueue.plugins]\n{name} = {name}_of_a_test\n")
        return [
            entry_point
            for distribution in metadata.distributions(path=[str(tmp_path)])
            for entry_point in distribution.entry_points
        ]

    return make


def test_the_cores_own_parts_are_a_plugin_like_any_other() -> None:
    plugins = manager()

    assert set(plugins.drivers) == {"memory"}
    assert set(plugins.strategies) >= {"fixed", "exponential"}
    (core,) = plugins.plugins
    assert (core.name, core.distribution, core.version) == ("core", "bunqueue-core", __version__)
    assert "storage driver memory" in core.provides


def test_plugins_that_are_handed_in_are_used() -> None:
    class Every:
        def parse(self, value: Any, zone: str | None) -> Any:
            return None

    kind = ScheduleKind(name="moon", field="moon", parse=Every().parse)
    plugins = manager(
        acme=plugin(
            bunqueue_storage_drivers=lambda: [driver()],
            bunqueue_backup_targets=lambda: [
                BackupTarget(name="tape", settings=SettingsModel, open=lambda settings, context: None)  # type: ignore[arg-type, return-value]
            ],
            bunqueue_schedule_kinds=lambda: [kind],
            bunqueue_backoff_strategies=lambda: {"patient": lambda delay, attempts, random: 1.0},
        )
    )

    assert plugins.driver("thing").settings is ThingStorage
    assert plugins.target("tape").name == "tape"
    assert plugins.kinds["moon"] is kind
    assert plugins.strategies["patient"](1, 1, lambda: 0.5) == 1.0
    assert plugins.plugins[-1].provides == (
        "storage driver thing",
        "backup target tape",
        "schedule kind moon",
        "backoff strategy patient",
    )
    assert plugins.plugins[-1].hooks == (
        "bunqueue_backoff_strategies",
        "bunqueue_backup_targets",
        "bunqueue_schedule_kinds",
        "bunqueue_storage_drivers",
    )


def test_installed_plugins_are_found_by_their_entry_points(
    installed: Callable[..., list[metadata.EntryPoint]],
) -> None:
    source = (
        "from bunqueue_core.plugins import hookimpl\n"
        "@hookimpl\n"
        "def bunqueue_backoff_strategies():\n"
        "    return {'patient': lambda delay, attempts, random: 5.0}\n"
    )

    plugins = PluginManager(entry_points=installed(patience=source))

    assert plugins.strategies["patient"](1, 1, lambda: 0.0) == 5.0
    assert plugins.plugins[-1].label == "acme-patience 1.2"


def test_two_managers_share_nothing() -> None:
    first, second = manager(acme=plugin(bunqueue_storage_drivers=lambda: [driver()])), manager()

    assert "thing" in first.drivers
    assert "thing" not in second.drivers


def test_what_is_registered_cannot_be_changed() -> None:
    registry: Any = manager().drivers

    with pytest.raises(TypeError):
        registry["memory"] = None


def test_an_environment_variable_narrows_the_plugins(installed: Callable[..., list[metadata.EntryPoint]]) -> None:
    entry_points = installed(one="", two="raise RuntimeError('not to be loaded')")

    plugins = PluginManager(entry_points=entry_points, environ={"BUNQUEUE_PLUGINS": " one , "})

    assert [each.name for each in plugins.plugins] == ["core", "one"]


def test_narrowing_to_a_plugin_that_is_not_installed_is_refused(
    installed: Callable[..., list[metadata.EntryPoint]],
) -> None:
    with pytest.raises(PluginError) as caught:
        PluginManager(entry_points=installed(one=""), environ={"BUNQUEUE_PLUGINS": "one,tow"})

    assert caught.value.problems == ('Invalid BUNQUEUE_PLUGINS: "tow" is not an installed plugin (installed: one)',)


def test_every_broken_plugin_is_named_with_distribution_entry_point_cause_and_mend(
    installed: Callable[..., list[metadata.EntryPoint]],
) -> None:
    entry_points = installed(
        absent="import a_module_that_does_not_exist",
        wrong="from bunqueue_core.plugins import hookimpl\n@hookimpl\ndef bunqueue_storage_driver(): return []\n",
    )

    with pytest.raises(PluginError) as caught:
        PluginManager(entry_points=sorted(entry_points, key=lambda each: each.name))

    first, second = caught.value.problems
    assert first == (
        "Plugin 'absent' of acme-absent 1.2 (entry point bunqueue.plugins: absent = absent_of_a_test) cannot be loaded: "
        "ModuleNotFoundError: No module named 'a_module_that_does_not_exist'. Upgrade or uninstall acme-absent, or name the "
        "plugins to load in BUNQUEUE_PLUGINS (comma-separated)."
    )
    assert second.startswith("Plugin 'wrong' of acme-wrong 1.2")
    assert "unknown hook 'bunqueue_storage_driver'" in second
    assert "The hooks are bunqueue_storage_drivers, bunqueue_backup_targets" in second


@pytest.mark.parametrize(
    ("hooks", "text"),
    [
        ({"bunqueue_storage_drivers": lambda: 1 / 0}, "failed in bunqueue_storage_drivers: ZeroDivisionError"),
        ({"bunqueue_backoff_strategies": lambda: 1 / 0}, "failed in bunqueue_backoff_strategies: ZeroDivisionError"),
        (
            {"bunqueue_storage_drivers": lambda: ["memory"]},
            "returns a str from bunqueue_storage_drivers (expected JournalDriver or BrokerDriver)",
        ),
        (
            {"bunqueue_backoff_strategies": lambda: {"slow": 5}},
            "returns a int for 'slow' from bunqueue_backoff_strategies (expected a function)",
        ),
        ({"bunqueue_storage_drivers": lambda: [driver("A thing")]}, 'is not Literal["A thing"] with that default'),
        (
            {"bunqueue_storage_drivers": lambda: [driver(settings=StorageSettings)]},
            "registers storage driver 'thing' with a settings model that is no JournalSettings",
        ),
        (
            {"bunqueue_storage_drivers": lambda: [driver("other")]},
            "whose field 'driver' is not Literal[\"other\"] with that default",
        ),
        (
            {"bunqueue_backoff_strategies": lambda: {"Big One": lambda delay, attempts, random: 1.0}},
            "registers a backoff strategy named 'Big One' (expected lower-case letters, digits, '-' and '_')",
        ),
        ({"bunqueue_storage_drivers": lambda unknown: []}, "cannot be registered"),
    ],
)
def test_what_a_plugin_registers_is_checked(hooks: Mapping[str, Callable[..., Any]], text: str) -> None:
    with pytest.raises(PluginError) as caught:
        manager(acme=plugin(**hooks))

    (problem,) = caught.value.problems
    assert problem.startswith("Plugin 'acme' ")
    assert text in problem


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(PluginError) as caught:
        manager(
            one=plugin(bunqueue_storage_drivers=lambda: [driver()]),
            two=plugin(bunqueue_storage_drivers=lambda: [driver()]),
        )

    (problem,) = caught.value.problems
    assert problem.startswith("Duplicate storage adapter: thing. Plugin 'two' registers it, and so does Plugin 'one'.")


def test_a_strategy_of_the_core_cannot_be_replaced() -> None:
    with pytest.raises(PluginError, match="Duplicate backoff strategy: fixed"):
        manager(acme=plugin(bunqueue_backoff_strategies=lambda: {"fixed": lambda delay, attempts, random: 0.0}))


def test_an_unknown_driver_is_refused_with_those_there_are() -> None:
    plugins = manager()

    with pytest.raises(ConfigurationError) as unknown:
        plugins.driver("granite")
    with pytest.raises(ConfigurationError) as missing:
        plugins.driver("sqlite")

    assert str(unknown.value) == "Unsupported storage driver: granite (installed: memory)"
    assert str(missing.value) == (
        "Unsupported storage driver: sqlite (installed: memory; install it with: pip install bunqueue-sqlite)"
    )


def test_every_plugin_may_check_the_configuration() -> None:
    def object_(settings: Settings) -> None:
        raise ConfigurationError(f"acme.port must not be {settings.server.tcp_port}")

    def fail(settings: Settings) -> None:
        raise RuntimeError("out of paper")

    plugins = manager(one=plugin(bunqueue_configure=object_), two=plugin(bunqueue_configure=fail))

    with pytest.raises(ConfigurationError) as caught:
        plugins.configure(Settings())

    assert caught.value.problems == (
        "acme.port must not be 6789",
        "Plugin 'two' failed to check the configuration: RuntimeError: out of paper. Mend the plugin, or do not hand it in.",
    )


class Sink:
    """A sink that only remembers whether it was closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False

    def write(self, events: Any) -> None:
        """Take events."""

    def close(self) -> None:
        self.closed = True


def test_sinks_are_made_from_the_configuration() -> None:
    plugins = manager(acme=plugin(bunqueue_event_sinks=lambda settings: [Sink(settings.events.sinks[0]["type"])]))

    sinks = plugins.sinks(Settings.model_validate({"events": {"sinks": [{"type": "paper"}]}}))

    assert [sink.name for sink in sinks] == ["paper"]


def test_a_sink_that_nobody_offers_is_refused_and_the_others_are_closed() -> None:
    sink = Sink("paper")
    plugins = manager(acme=plugin(bunqueue_event_sinks=lambda settings: [sink]))

    with pytest.raises(ConfigurationError, match=r"Unsupported event sink: stone \(installed: paper\)"):
        plugins.sinks(Settings.model_validate({"events": {"sinks": [{"type": "paper"}, {"type": "stone"}]}}))

    assert sink.closed


def test_hook_calls_can_be_traced() -> None:
    trace = io.StringIO()

    PluginManager(
        {"acme": plugin(bunqueue_schedule_kinds=lambda: ())},
        entry_points=[],
        environ={"BUNQUEUE_TRACE_PLUGINS": "1"},
        trace=trace,
    )

    assert "bunqueue_schedule_kinds: acme\nbunqueue_schedule_kinds: -> [()]\n" in trace.getvalue()
