"""What can be set: a flat description of every field of the settings models, drawn from the models themselves."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, SecretStr
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from bunqueue_core.config.settings import Settings
from bunqueue_core.plugins.drivers import Env, Secret, Unit

Kind = Literal["integer", "number", "boolean", "string", "strings", "choice", "sinks", "other"]

#: Sections whose model depends on a plugin; the rest are described by :class:`Settings` alone.
PLUGGABLE_SECTIONS: Final = ("storage", "backup")

#: Environment variables of fields that storage drivers share by name. Others are ``BUNQUEUE_<DRIVER>_<FIELD>``.
SHARED_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "data_path": ("BUNQUEUE_DATA_PATH", "BQ_DATA_PATH", "DATA_PATH", "SQLITE_PATH"),
    "broker_id": ("BUNQUEUE_BROKER_ID",),
}

#: Settings whose number may stand as text in a file, because existing files have them so.
_NUMERIC_TEXT: Final = frozenset(
    {
        "server.tcp_port",
        "server.http_port",
        "timeouts.shutdown",
        "timeouts.stats",
        "backup.interval",
        "backup.retention",
    }
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One field that can be set.

    Attributes:
        section: name of its section.
        name: name of the field, in snake case.
        variables: environment variables, the first that is set decides.
        kind: what it holds.
        optional: None is a value of its own ("off").
        unit: unit of a number, or None.
        minimum: least number that is allowed, or None.
        maximum: greatest number that is allowed, or None.
        choices: words that are allowed, for kind ``choice``.
        secret: its value is never shown.
        numeric_text: a file may give the number as text.
        required: it has no default.
        default: what holds when nobody sets it.
        description: one line for people.
    """

    section: str
    name: str
    variables: tuple[str, ...]
    kind: Kind
    optional: bool
    unit: str | None
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    secret: bool
    numeric_text: bool
    required: bool
    default: Any
    description: str

    @property
    def key(self) -> str:
        """How a file names it: ``section.camelCase``."""
        return f"{self.section}.{to_camel(self.name)}"


def describe_model(
    section: str, model: type[BaseModel], variables: Callable[[str], tuple[str, ...]]
) -> dict[str, Setting]:
    """The settings of ``model`` by field name.

    Args:
        section: section that the fields belong to.
        model: the settings model.
        variables: environment variables of a field that names none itself.
    """
    return {
        name: _describe(section, name, info, variables(name))
        for name, info in model.model_fields.items()
        if (section, name) != ("backup", "store")
    }


def core_settings() -> dict[str, dict[str, Setting]]:
    """The settings of every section that the core defines, by section and field; ``storage`` is its driver's."""
    return {
        section: describe_model(section, model, lambda _: ()) for section, model in _sections() if section != "storage"
    }


def driver_settings(driver: str, model: type[BaseModel]) -> dict[str, Setting]:
    """The settings of a storage driver by field, without ``driver`` itself, which chooses it."""

    def variables(name: str) -> tuple[str, ...]:
        return SHARED_VARIABLES.get(name) or (f"BUNQUEUE_{driver}_{name}".upper().replace("-", "_"),)

    settings = describe_model("storage", model, variables)
    del settings["driver"]
    return settings


def target_settings(target: str, model: type[BaseModel]) -> dict[str, Setting]:
    """The settings of a backup target by field."""
    return describe_model("backup", model, lambda name: (f"BUNQUEUE_BACKUP_{target}_{name}".upper().replace("-", "_"),))


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, info in Settings.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield name, info.annotation


def _describe(section: str, name: str, info: FieldInfo, variables: tuple[str, ...]) -> Setting:
    marks = info.metadata
    named = [mark.names for mark in marks if isinstance(mark, Env)]
    kind, optional, choices = _kind(section, name, info.annotation)
    return Setting(
        section=section,
        name=name,
        variables=named[0] if named else variables if kind != "sinks" else (),
        kind=kind,
        optional=optional,
        unit=_unit(name, marks),
        minimum=_bound(marks, annotated_types.Ge, "ge"),
        maximum=_bound(marks, annotated_types.Le, "le"),
        choices=choices,
        secret=any(isinstance(mark, Secret) for mark in marks) or SecretStr in _members(info.annotation),
        numeric_text=f"{section}.{name}" in _NUMERIC_TEXT,
        required=info.is_required(),
        default=None if info.is_required() else info.get_default(call_default_factory=True, validated_data={}),
        description=info.description or "",
    )


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _kind(section: str, name: str, annotation: Any) -> tuple[Kind, bool, tuple[str, ...]]:
    members = _members(annotation)
    optional = type(None) in members
    inner = [member for member in members if member is not type(None)]
    if (section, name) == ("events", "sinks"):
        return "sinks", optional, ()
    if inner and all(_is_text(member) for member in inner):
        return "string", optional, ()
    if len(inner) != 1:
        return "other", optional, ()
    type_ = inner[0]
    if type_ is bool:
        return "boolean", optional, ()
    if type_ is int:
        return "integer", optional, ()
    if type_ is float:
        return "number", optional, ()
    if get_origin(type_) in (tuple, list) and get_args(type_)[:1] == (str,):
        return "strings", optional, ()
    if get_origin(type_) is Literal and all(isinstance(word, str) for word in get_args(type_)):
        return "choice", optional, get_args(type_)
    return "other", optional, ()


def _is_text(type_: Any) -> bool:
    """Text, or a path, which is written as text."""
    return type_ is str or type_ is SecretStr or (isinstance(type_, type) and issubclass(type_, PurePath))


def _unit(name: str, marks: list[Any]) -> str | None:
    for mark in marks:
        if isinstance(mark, Unit):
            return mark.name
    last = name.rsplit("_", 1)[-1]
    return last if last in ("ms", "bytes", "mb") else None


def _bound(marks: list[Any], type_: type[Any], attribute: str) -> float | None:
    for mark in marks:
        if isinstance(mark, type_):
            value: float = getattr(mark, attribute)
            return value
    return None
