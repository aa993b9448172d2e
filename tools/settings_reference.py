"""Write the tables of settings in ``docs/configuration.md`` from the models, so that they cannot fall behind.

    python tools/settings_reference.py            write the tables
    python tools/settings_reference.py --check    fail if they are stale

The plugins of this repository must be installed: their drivers' and targets' settings are part of the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from bunqueue_core.config.resolution import FLAGS
from bunqueue_core.config.schema import Setting, core_settings, driver_settings, target_settings
from bunqueue_core.config.settings import MAX_MS, Settings
from bunqueue_core.plugins import PluginManager

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
BEGIN = "<!-- settings: written by tools/settings_reference.py -->"
END = "<!-- end of settings -->"

_UNITS = {"ms": "ms", "bytes": "bytes", "mb": "MB"}


def tables(plugins: PluginManager) -> str:
    """The tables of all sections, drivers and targets as Markdown."""
    core = core_settings()
    parts: list[str] = []
    for section, info in Settings.model_fields.items():
        if section == "storage":
            for driver in plugins.drivers.values():
                title = f'`storage`, driver `"{driver.name}"`'
                parts.append(
                    _section(title, driver.settings.__doc__, driver_settings(driver.name, driver.settings).values())
                )
            continue
        parts.append(_section(f"`{section}`", info.description, core[section].values()))
        if section == "backup":
            for target in plugins.targets.values():
                title = f'`backup`, target `"{target.name}"`'
                parts.append(
                    _section(title, target.settings.__doc__, target_settings(target.name, target.settings).values())
                )
    return "\n\n".join(parts)


def _section(title: str, text: str | None, settings: Iterable[Setting]) -> str:
    words = " ".join((text or "").replace("``", "`").split())
    rows = ["| key | environment | default | allowed | meaning |", "| --- | --- | --- | --- | --- |"]
    rows.extend(_row(setting) for setting in settings)
    return "\n".join([f"### {title}", "", words, "", *rows])


def _row(setting: Setting) -> str:
    flags = [flag for flag, place in FLAGS.items() if place == (setting.section, setting.name) and len(flag) > 2]
    variables = [f"`{variable}`" for variable in setting.variables]
    names = f"`{setting.key.split('.', 1)[1]}`" + (f" (`{flags[0]}`)" if flags else "")
    default = "required" if setting.required else _default(setting)
    return f"| {names} | {', '.join(variables) or '–'} | {default} | {_allowed(setting)} | {setting.description} |"


def _default(setting: Setting) -> str:
    if setting.default is None:
        return "–"
    if setting.default == ():
        return "none"
    if isinstance(setting.default, bool):
        return "true" if setting.default else "false"
    return f"`{setting.default}`"


def _allowed(setting: Setting) -> str:
    if setting.kind in ("integer", "number"):
        unit = f" {_UNITS[setting.unit]}" if setting.unit else ""
        if setting.maximum is not None and setting.maximum != MAX_MS:
            return f"{setting.minimum or 0} to {setting.maximum}{unit}"
        return f"≥ {setting.minimum}{unit}" if setting.minimum is not None else f"any number{unit}"
    if setting.kind == "choice":
        return ", ".join(f"`{choice}`" for choice in setting.choices)
    return {
        "boolean": "true, false",
        "strings": "list of text",
        "sinks": "list of tables",
        "string": "text",
    }.get(setting.kind, "see the driver")


def rewritten(page: str, content: str) -> str:
    """``page`` with the part between the marks replaced."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{content}\n\n{END}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="fail if the page is stale instead of writing it")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    fresh = rewritten(page, tables(PluginManager()))
    if fresh == page:
        return 0
    if arguments.check:
        print(f"{PAGE.name} is stale: run python tools/settings_reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
