"""How a value is read: text from the environment and from flags, typed values from a file.

A value that cannot be read raises :class:`Misread`, whose text names the setting, the value and what is allowed. Secrets are
never part of it. Nothing falls back in silence: neither a prefix of a misread number nor a default.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from pydantic import SecretStr

from bunqueue_core.config.schema import Setting
from bunqueue_core.config.settings import MAX_MS

_UNIT_WORDS: Final = {"ms": "milliseconds", "bytes": "bytes", "mb": "megabytes"}
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})
_NUMBER: Final = re.compile(r"(?P<number>[+-]?\d+)(?:\.\d*)?\s*(?P<unit>[A-Za-z]+)?\s*(?:#.*)?", re.ASCII)
_DECIMAL: Final = re.compile(r"(?P<number>[+-]?\d+(?:\.\d*)?)\s*(?P<unit>[A-Za-z]+)?\s*(?:#.*)?", re.ASCII)

#: Other words for a choice, where existing configurations use them.
_SYNONYMS: Final[Mapping[str, Mapping[str, str]]] = {
    "logging.level": {
        "warning": "warn",
        "trace": "debug",
        "verbose": "debug",
        "fatal": "error",
        "critical": "error",
    }
}


class Misread(Exception):
    """A value that is not allowed. ``str()`` is the problem: setting, value and what is allowed."""


class _Unset:
    """The value says that nothing is set; the next source decides."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()


def read_text(setting: Setting, text: str, name: str) -> Any:
    """Read a value from the environment or from a flag.

    Args:
        setting: what is set.
        text: the text as given.
        name: the variable's or flag's name, for the error.

    Returns:
        The value, or :data:`UNSET` where the text is empty.

    Raises:
        Misread: the text is not in the grammar of the setting, or out of its range.
    """
    stripped = text.strip()
    if setting.kind in ("integer", "number"):
        if not stripped:
            return UNSET
        number = _number(setting, stripped)
        if number is None or not _in_range(setting, number):
            raise Misread(f"Invalid {name}: {quoted(setting, text)} (expected {_expected_text(setting, number)})")
        return number
    if not stripped:
        # Set but empty: it hides its aliases and a flag, and stands for "not configured".
        return UNSET
    if setting.kind == "boolean":
        word = stripped.lower()
        if word not in _TRUE and word not in _FALSE:
            raise Misread(
                f"Invalid {name}: {quoted(setting, text)} (expected one of 1, 0, true, false, yes, no, on, off)"
            )
        return word in _TRUE
    if setting.kind == "strings":
        items = tuple(item.strip() for item in text.split(",") if item.strip())
        if not items and setting.secret:
            # There is nothing but commas and blanks in it, so that it may be shown.
            raise Misread(
                f"Invalid {name}: {json.dumps(text)} (expected a comma-separated list of non-empty {setting.name})"
            )
        return items
    if setting.kind == "choice":
        choice = _choice(setting, stripped)
        if choice is None:
            raise Misread(f"Invalid {name}: {quoted(setting, text)} (expected one of {', '.join(setting.choices)})")
        return choice
    return stripped


def read_value(setting: Setting, value: Any, warnings: list[str]) -> Any:
    """Read a value from a configuration file.

    Args:
        setting: what is set.
        value: the value as the file gives it; None does not arrive here.
        warnings: takes what is tolerated but worth saying.

    Returns:
        The value in the setting's type.

    Raises:
        Misread: the value has another type, or is out of range.
    """
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if setting.kind in ("integer", "number"):
        return _file_number(setting, value)
    if setting.kind == "boolean":
        if not isinstance(value, bool):
            raise Misread(f"{setting.key} must be true or false (got {got(setting, value)})")
        return value
    if setting.kind == "string":
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str):
            raise Misread(f"{setting.key} must be a string (got {got(setting, value)})")
        return None if value == "" and setting.optional else value
    if setting.kind == "strings":
        return _file_strings(setting, value, warnings)
    if setting.kind == "choice":
        word = _choice(setting, value) if isinstance(value, str) else None
        if word is None:
            allowed = ", ".join(json.dumps(choice) for choice in setting.choices)
            raise Misread(f"{setting.key} must be one of {allowed} (got {got(setting, value)})")
        return word
    if setting.kind == "sinks":
        return _file_sinks(setting, value)
    return value


def expectation(setting: Setting, noun: str) -> str:
    """What is allowed, in words: ``a whole number of milliseconds between 1 and 2147483647``."""
    unit = f" of {_UNIT_WORDS[setting.unit]}" if setting.unit else ""
    low, high = _shown(setting.minimum), _shown(setting.maximum)
    if low is not None and high is not None and setting.maximum != MAX_MS:
        span = f" between {low} and {high}"
    elif low is not None:
        span = f" >= {low}"
    elif high is not None:
        span = f" <= {high}"
    else:
        span = ""
    return f"{noun}{unit}{span}"


def got(setting: Setting | None, value: Any) -> str:
    """A value for an error: text in quotes, collections by their kind, secrets not at all."""
    if setting is not None and setting.secret and not isinstance(value, bool | int | float):
        value = type(value)() if isinstance(value, str | list | tuple | dict) else value
        return "a string" if isinstance(value, str) else got(None, value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**30 else "an integer of many digits"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, Sequence | set | frozenset):
        return "an array"
    return f"a value of type {type(value).__name__}"


def quoted(setting: Setting, text: str) -> str:
    """Text from the environment for an error, in quotes; not the text of a secret."""
    return "a value that is not shown" if setting.secret else json.dumps(text, ensure_ascii=False)


def _number(setting: Setting, text: str) -> int | float | None:
    match = (_NUMBER if setting.kind == "integer" else _DECIMAL).fullmatch(text)
    if match is None:
        return None
    unit = match["unit"]
    if unit is not None and (setting.unit not in ("ms", "mb") or unit.lower() != setting.unit):
        return None
    # A number of thousands of digits is out of every range; Python refuses to convert it.
    if len(match["number"]) > 400:
        return math.inf
    return int(match["number"]) if setting.kind == "integer" else float(match["number"])


def _in_range(setting: Setting, number: float) -> bool:
    if setting.minimum is not None and number < setting.minimum:
        return False
    return not (setting.maximum is not None and number > setting.maximum) and math.isfinite(number)


def _expected_text(setting: Setting, number: float | None) -> str:
    if number is not None and setting.maximum == MAX_MS and number > MAX_MS:
        unit = f" of {_UNIT_WORDS[setting.unit]}" if setting.unit else ""
        return f"a whole number{unit} between {_shown(setting.minimum) or 0} and {MAX_MS}"
    return expectation(setting, "a whole number" if setting.kind == "integer" else "a number")


def _file_number(setting: Setting, value: Any) -> int | float:
    number: int | float | None = None
    if isinstance(value, timedelta) and setting.unit == "ms":
        number = value // timedelta(milliseconds=1)
    elif isinstance(value, bool):
        number = None
    elif isinstance(value, int):
        number = value
    elif isinstance(value, float) and math.isfinite(value):
        number = math.floor(value) if setting.kind == "integer" else value
    elif isinstance(value, str) and setting.numeric_text:
        number = _number(setting, value.strip())
    if number is None or not _in_range(setting, number):
        if number is not None and setting.maximum == MAX_MS and number > MAX_MS:
            raise Misread(f"{setting.key} must be at most {MAX_MS} (got {got(setting, value)})")
        raise Misread(f"{setting.key} must be {expectation(setting, 'a finite number')} (got {got(setting, value)})")
    return number


def _file_strings(setting: Setting, value: Any, warnings: list[str]) -> tuple[str, ...]:
    if isinstance(value, str) and not setting.secret:
        return tuple(item.strip() for item in value.split(",") if item.strip())
    if not isinstance(value, list | tuple):
        raise Misread(f"{setting.key} must be an array of strings (got {got(setting, value)})")
    items: list[str] = []
    for index, item in enumerate(value):
        if isinstance(item, SecretStr):
            item = item.get_secret_value()
        blank = item is None or (isinstance(item, str) and not item.strip())
        if blank and not setting.secret:
            warnings.append(f"{setting.key}[{index}] is empty and is ignored")
        elif not isinstance(item, str):
            raise Misread(f"{setting.key}[{index}] must be a non-empty string (got {got(setting, item)})")
        elif blank:
            raise Misread(f"{setting.key}[{index}] must not be empty or whitespace-only (got {json.dumps(item)})")
        else:
            items.append(item.strip())
    return tuple(items)


def _file_sinks(setting: Setting, value: Any) -> tuple[Mapping[str, Any], ...]:
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise Misread(f"{setting.key} must be an array of tables (got {got(setting, value)})")
    sinks: list[Mapping[str, Any]] = []
    for index, item in enumerate(value):
        table = {"type": item} if isinstance(item, str) else item
        if not isinstance(table, Mapping):
            raise Misread(f"{setting.key}[{index}] must be a table, or a sink's name (got {got(setting, item)})")
        if not isinstance(table.get("type"), str) or not table["type"]:
            raise Misread(f"{setting.key}[{index}].type must be a sink's name (got {got(setting, table.get('type'))})")
        sinks.append(dict(table))
    return tuple(sinks)


def _choice(setting: Setting, text: str) -> str | None:
    word = text.strip().strip("\"'").lower()
    word = _SYNONYMS.get(setting.key, {}).get(word, word)
    return word if word in setting.choices else None


def _shown(bound: float | None) -> str | None:
    if bound is None:
        return None
    return str(int(bound)) if float(bound).is_integer() else str(bound)
