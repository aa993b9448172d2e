"""The means to declare a command: once, as a function whose signature says what the command takes.

    @command("Pause")
    def pause(session: Session, queue: QueueName) -> Reply:
        '''Stop deliveries of a queue. Idempotent.'''
        return session.broker.pause(queue)

A parameter is a field of the request: its name in camelCase is the wire's (``remove_on_fail`` → ``removeOnFail``), its annotation
holds the check (type, bounds, error texts), its default makes it optional. An optional field that is absent or null has its
default; a required one goes through its check, which words the refusal. Fields are checked in their order; the first violation
is the answer. All of this is compiled into one plain function when the module is imported; nothing is reflected upon per request.

What a handler returns is a *reply*: the members of the answer besides ``ok`` and ``reqId`` (None for a bare success), at once or as
an :class:`Answer`. It raises a :class:`CommandError` to refuse. From the same declarations come the HTTP routes, the CLI and the
reference of the protocol; ``returns`` describes the reply for them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Annotated, Any, Final, Protocol, get_args, get_type_hints

from bunqueue_core.answer import Answer
from bunqueue_core.commands.session import Session
from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.options import SAFE_INTEGER, number, text
from bunqueue_core.model.rules import check_queue_name

#: Stands for a member that the request does not have, where null means something else.
ABSENT: Final[Any] = object()

#: Members of an answer besides ``ok`` and ``reqId``; None: a bare success.
Members = Mapping[str, Any] | None
Reply = Members | Answer[Members]


class Check(Protocol):
    """What a field accepts."""

    @property
    def kind(self) -> str:
        """Type and bounds in words, for the reference."""

    def check(self, value: Any, field: str) -> Any:
        """Return the value that the handler gets, or raise :class:`ValidationError`. None means that there is none."""


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """A queue name by the rules of names (1..256 letters, digits, ``_ - . :``)."""

    kind: str = "queue name"

    def check(self, value: Any, field: str) -> str:
        """See :class:`Check`."""
        return check_queue_name(value)


@dataclass(frozen=True, slots=True)
class AnyQueueCheck:
    """The name of a queue that need not exist: any string, because a name that breaks the rules is merely unknown."""

    kind: str = "queue name"

    def check(self, value: Any, field: str) -> str:
        """See :class:`Check`."""
        if value is None or value == "":
            raise ValidationError("Queue name is required")
        return text(value, "Queue name")


@dataclass(frozen=True, slots=True)
class TextCheck:
    """A string. ``lossy`` replaces what no UTF-8 can hold instead of refusing it (an error report must get through)."""

    missing: str = ""
    lossy: bool = False
    kind: str = "string"

    def check(self, value: Any, field: str) -> str:
        """See :class:`Check`."""
        if value is None:
            raise ValidationError(self.missing or f"{field} is required")
        if self.lossy and isinstance(value, str):
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        return text(value, field)


@dataclass(frozen=True, slots=True)
class NumberCheck:
    """A finite number within the bounds. ``whole``: how a fraction is taken (``floor``, ``ceil``, ``keep`` or ``refuse``)."""

    minimum: int = -SAFE_INTEGER
    maximum: int = SAFE_INTEGER
    whole: str = "floor"

    @property
    def kind(self) -> str:
        """See :class:`Check`."""
        if (self.minimum, self.maximum) == (-SAFE_INTEGER, SAFE_INTEGER):
            return "number"
        return f"number {self.minimum}..{self.maximum}"

    def check(self, value: Any, field: str) -> int | float:
        """See :class:`Check`."""
        floored = number(value, field, self.minimum, self.maximum, integer=self.whole == "refuse")
        if self.whole == "ceil":
            ceiled: int = math.ceil(value)
            return ceiled
        if self.whole == "keep":
            kept: int | float = value
            return kept
        return floored


@dataclass(frozen=True, slots=True)
class FlagCheck:
    """A boolean; also 0 and 1. ``strict``: everything but a literal ``true`` counts as false."""

    strict: bool = False
    kind: str = "boolean"

    def check(self, value: Any, field: str) -> bool:
        """See :class:`Check`."""
        if self.strict:
            return value is True
        if isinstance(value, bool | int | float):
            return bool(value)
        raise ValidationError(f"{field} must be a boolean")


@dataclass(frozen=True, slots=True)
class ListCheck:
    """A list; with ``items`` each member is checked. ``missing`` words the refusal of none."""

    items: Check | None = None
    nullable: bool = False

    @property
    def kind(self) -> str:
        """See :class:`Check`."""
        return "list" if self.items is None else f"list of {self.items.kind}s"

    def check(self, value: Any, field: str) -> list[Any]:
        """See :class:`Check`."""
        if value is None:
            raise ValidationError(f"{field} is required")
        if not isinstance(value, list):
            raise ValidationError(f"{field} must be an array")
        items = self.items
        if items is None:
            return value
        if self.nullable:
            return [None if item is None else items.check(item, f"{field}[{i}]") for i, item in enumerate(value)]
        return [items.check(item, f"{field}[{i}]") for i, item in enumerate(value)]


@dataclass(frozen=True, slots=True)
class MapCheck:
    """A map."""

    kind: str = "map"

    def check(self, value: Any, field: str) -> dict[str, Any]:
        """See :class:`Check`."""
        if value is None:
            raise ValidationError(f"{field} is required")
        if not isinstance(value, dict):
            raise ValidationError(f"{field} must be an object")
        return value


@dataclass(frozen=True, slots=True)
class AnyCheck:
    """Any value, null included: the handler tells null from absent by :data:`ABSENT`."""

    kind: str = "any"

    def check(self, value: Any, field: str) -> Any:
        """See :class:`Check`."""
        return value


@dataclass(frozen=True, slots=True)
class WholeRequest:
    """The request itself: for commands whose members are a job's options. ``members`` names them for the reference."""

    members: tuple[str, ...] = ()


#: A queue name that must follow the rules.
QueueName = Annotated[str, QueueCheck()]
#: The name of a queue in commands that accept unknown ones.
AnyQueue = Annotated[str, AnyQueueCheck()]
#: A job id.
JobId = Annotated[str, TextCheck(missing="Job id is required")]
Text = Annotated[str, TextCheck()]
#: Text of failures, logs and messages.
FreeText = Annotated[str, TextCheck(lossy=True)]
Flag = Annotated[bool, FlagCheck()]
#: True only for a literal ``true``.
LiteralFlag = Annotated[bool, FlagCheck(strict=True)]
Value = Annotated[Any, AnyCheck()]
Map = Annotated[dict[str, Any], MapCheck()]
JobIds = Annotated[list[str], ListCheck(TextCheck())]
Tokens = Annotated[list[str | None], ListCheck(TextCheck(), nullable=True)]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a command, as the reference shows it. ``default`` is :data:`ABSENT` where the field is required."""

    name: str
    kind: str
    default: Any
    check: Check

    @property
    def required(self) -> bool:
        """Whether the command is refused without it."""
        return self.default is ABSENT and not isinstance(self.check, AnyCheck)


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the protocol.

    Attributes:
        name: the wire's name, exact.
        fields: what it takes, in the order in which it is checked.
        returns: what its reply holds: member → type in words.
        summary: the first line of the handler's docstring; ``description`` is the whole.
        run: ``(session, request) -> Reply``, with all checks inside.
        open: allowed before authentication.
        waits: may wait for something that others have to do (a job to come, a job to end). Ended when the client leaves.
        job_input: the request's other members are job options.
    """

    name: str
    fields: tuple[Field, ...]
    returns: Mapping[str, str]
    summary: str
    description: str
    run: Callable[[Session, Mapping[str, Any]], Reply]
    open: bool = False
    waits: bool = False
    job_input: bool = False


def command(
    name: str,
    *,
    returns: Mapping[str, str] = MappingProxyType({}),
    open: bool = False,
    waits: bool = False,
) -> Callable[[Callable[..., Reply]], Command]:
    """Declare the decorated function as the command ``name``; see the module's head and :class:`Command`."""

    def declare(handler: Callable[..., Reply]) -> Command:
        fields, run, whole = _compile(handler)
        description = inspect.cleandoc(handler.__doc__ or "")
        return Command(
            name=name,
            fields=fields,
            returns=MappingProxyType(dict(returns)),
            summary=description.partition("\n")[0],
            description=description,
            run=run,
            open=open,
            waits=waits,
            job_input=whole,
        )

    return declare


def collect(modules: Iterable[ModuleType]) -> Mapping[str, Command]:
    """The commands that ``modules`` declare, by name, in the order of declaration.

    Raises:
        ValueError: two commands have one name.
    """
    table: dict[str, Command] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Command) and table.setdefault(value.name, value) is not value:
                raise ValueError(f"command {value.name} is declared twice")
    return MappingProxyType(table)


def camel(name: str) -> str:
    """``remove_on_fail`` → ``removeOnFail``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _mark_of(hint: Any) -> Any:
    """The check in an annotation, also where it stands in a union (``FreeText | None``)."""
    for mark in getattr(hint, "__metadata__", ()):
        if hasattr(mark, "check") or isinstance(mark, WholeRequest):
            return mark
    for part in get_args(hint):
        found = _mark_of(part) if get_args(part) else None
        if found is not None:
            return found
    return None


def _compile(handler: Callable[..., Reply]) -> tuple[tuple[Field, ...], Callable[..., Reply], bool]:
    """Make the function that checks a request's fields and calls ``handler`` with them."""
    hints = get_type_hints(handler, include_extras=True)
    parameters = list(inspect.signature(handler).parameters.values())[1:]
    names: dict[str, Any] = {"handler": handler}
    lines = ["def run(session, request):", "    get = request.get"]
    fields: list[Field] = []
    arguments: list[str] = []
    whole = False
    for position, parameter in enumerate(parameters):
        check = _mark_of(hints[parameter.name])
        if check is None:
            raise TypeError(f"{handler.__qualname__}: parameter {parameter.name} has no check")
        if isinstance(check, WholeRequest):
            whole = True
            arguments.append("request")
            continue
        field = camel(parameter.name.rstrip("_"))
        value, checked, default = f"v{position}", f"c{position}", f"d{position}"
        given = parameter.default is not inspect.Parameter.empty
        fields.append(Field(field, check.kind, parameter.default if given else ABSENT, check))
        names[checked], names[default] = check.check, parameter.default
        if isinstance(check, AnyCheck):
            lines.append(f"    {value} = get({field!r}, {default})")
        elif given:
            lines.append(f"    {value} = get({field!r})")
            lines.append(f"    {value} = {default} if {value} is None else {checked}({value}, {field!r})")
        else:
            lines.append(f"    {value} = {checked}(get({field!r}), {field!r})")
        arguments.append(value)
    lines.append(f"    return handler(session, {', '.join(arguments)})")
    # The text holds nothing but names of parameters of our own functions.
    exec(compile("\n".join(lines), f"<fields of {handler.__qualname__}>", "exec"), names)
    return tuple(fields), names["run"], whole
