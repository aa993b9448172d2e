"""Which storage driver is used, and which combinations are refused.

The names ``sqlite`` and ``postgres`` stand here because the documented configuration gives them meaning of their own: a data
path alone chooses SQLite, a URL alone PostgreSQL, and both together are refused. Everything else about a driver is its plugin's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bunqueue_core.config.schema import SHARED_VARIABLES

DRIVER_VARIABLE: Final = "BUNQUEUE_STORAGE_DRIVER"
URL_VARIABLE: Final = "BUNQUEUE_POSTGRES_URL"

COMBINED: Final = "PostgreSQL storage cannot be combined with SQLite dataPath configuration."

#: What a driver cannot do without: its field and the text when it is missing.
REQUIRED: Final[Mapping[str, tuple[str, str]]] = {
    "sqlite": ("data_path", "SQLite storage requires storage.dataPath or BUNQUEUE_DATA_PATH."),
    "postgres": ("url", "PostgreSQL storage requires storage.url or BUNQUEUE_POSTGRES_URL."),
}

_LABELS: Final[Mapping[str, str]] = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def label(driver: str) -> str:
    """A driver's name for people."""
    return _LABELS.get(driver, f'storage driver "{driver}"')


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen driver.

    Attributes:
        driver: its name; it need not be installed.
        origin: the setting that chose it, for errors; empty when nothing did.
        conflict: why the combination is refused, or None.
    """

    driver: str
    origin: str
    conflict: str | None = None


def select_driver(
    stated: Mapping[str, Any], environ: Mapping[str, str], named: Mapping[str, str] | None = None
) -> Selection:
    """Choose the storage driver.

    A driver in the file decides; else a URL or a data path in the file or a flag; else ``BUNQUEUE_STORAGE_DRIVER``; else
    ``BUNQUEUE_POSTGRES_URL``; else a data path in the environment; else memory.

    Args:
        stated: ``driver``, ``url`` and ``data_path`` of file and flags as far as they are present, snake_case keys.
        environ: the environment.
        named: how a stated key was given, for errors (``--data-path``); others are named ``storage.<key>``.

    Returns:
        The selection, with a conflict if PostgreSQL is asked for beside a data path.
    """
    names = {"driver": "storage.driver", "url": "storage.url", "data_path": "storage.dataPath", **(named or {})}
    path_variable, path = first_set(environ, SHARED_VARIABLES["data_path"])
    if "data_path" in stated:
        path_variable, path = names["data_path"], str(stated["data_path"])
    asked = environ.get(DRIVER_VARIABLE, "").strip()
    url = environ.get(URL_VARIABLE, "").strip()

    if "driver" in stated:
        driver, origin = str(stated["driver"]), names["driver"]
    elif stated.get("url"):
        driver, origin = "postgres", names["url"]
    elif stated.get("data_path"):
        driver, origin = "sqlite", names["data_path"]
    elif asked:
        driver, origin = asked, DRIVER_VARIABLE
    elif url:
        driver, origin = "postgres", URL_VARIABLE
    elif path.strip():
        driver, origin = "sqlite", path_variable
    else:
        driver, origin = "memory", ""

    rival: str | None = None
    if path.strip():
        if driver == "postgres":
            rival = origin
        elif driver == "sqlite" and stated.get("url"):
            rival = names["url"]
        elif driver == "sqlite" and "driver" not in stated and stated.get("data_path"):
            # The path outranks the environment, but nobody sets both on purpose.
            rival = DRIVER_VARIABLE if asked == "postgres" else URL_VARIABLE if url and not asked else None
    conflict = f"{COMBINED} Remove {path_variable} or {rival}." if rival else None
    return Selection(driver, origin, conflict)


def first_set(environ: Mapping[str, str], variables: tuple[str, ...]) -> tuple[str, str]:
    """(name, text) of the first variable that is set, also to nothing; the first name and '' if none is."""
    for name in variables:
        if name in environ:
            return name, environ[name]
    return (variables[0] if variables else ""), ""
