"""Finding and reading the configuration file. Only the working directory is searched, never its parents or a home.

A ``.py`` file is executed with the rights of the process that loads it, as the format implies.
"""

from __future__ import annotations

import json
import runpy
import sys
import tomllib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bunqueue_core.config.define import ConfigDescription
from bunqueue_core.model.errors import ConfigurationError

#: Names that are looked for, in this order.
DISCOVERED_NAMES: Final = ("bunqueue.config.py", "bunqueue.config.toml", "bunqueue.config.json")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file that was read.

    Attributes:
        path: its absolute path.
        sections: what it says, unchecked.
    """

    path: Path
    sections: Mapping[str, Any]


def load_config_file(path: str | Path | None = None, *, directory: Path | None = None) -> ConfigFile | None:
    """Read the configuration file.

    Args:
        path: the file to read; None looks for one of :data:`DISCOVERED_NAMES`.
        directory: where to look, and what a relative ``path`` is relative to; None: the working directory.

    Returns:
        The file, or None if none was named and none was found.

    Raises:
        ConfigurationError: the named file does not exist, or the file cannot be read.
    """
    base = directory or Path.cwd()
    if path is None:
        found = next((base / name for name in DISCOVERED_NAMES if (base / name).is_file()), None)
        if found is None:
            return None
    else:
        found = (base / path).absolute()
        if not found.is_file():
            raise ConfigurationError(f"Config file not found: {found}")
    return ConfigFile(found, _read(found))


def _read(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".py":
        return _execute(path)
    if path.suffix not in (".toml", ".json"):
        raise ConfigurationError(f"Config file {path.name} must end in .py, .toml or .json")
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigurationError(f"Config file {path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"Config file {path.name} is not valid {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"Config file {path.name} must hold an object with sections")
    return content


def _execute(path: Path) -> Mapping[str, Any]:
    # The file's own directory goes first in the search path meanwhile, so that it may import what lies beside it.
    sys.path.insert(0, str(path.parent))
    try:
        names = runpy.run_path(str(path), run_name="bunqueue_config")
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = f"{path.name}, line {line}" if line else path.name
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigurationError(f"{where}: {type(error).__name__}: {reason}".rstrip(": ")) from error
    finally:
        sys.path.remove(str(path.parent))
    config = names.get("config")
    if isinstance(config, ConfigDescription):
        return config.sections
    if isinstance(config, Mapping):
        return config
    if config is None:
        raise ConfigurationError(
            f"{path.name} does not define 'config' (expected: config = define_config(...), from bunqueue_core)"
        )
    raise ConfigurationError(
        f"{path.name}: 'config' is a {type(config).__name__} (expected what define_config(...) returns)"
    )
