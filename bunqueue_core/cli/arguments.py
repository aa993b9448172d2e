"""How the commands to a server read their arguments: leniently, as scripts that exist rely on.

``--name value``, ``--name=value`` and ``-x value`` are options wherever they stand; what is not known is ignored, and so are more
positional arguments than a command has. A negative number is an argument, not an option. Values are checked before anything is
contacted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from bunqueue_core.cli.output import Failure

#: Largest whole number that every client can represent.
SAFE: Final = 2**53 - 1

_NUMBER = re.compile(r"-?\d+", re.ASCII)
_NEGATIVE = re.compile(r"-\.?\d", re.ASCII)


def refuse(text: str) -> NoReturn:
    """End the command with exit code 2: an argument is wrong, nothing was contacted."""
    raise Failure(text, exit_code=2)


def whole(text: str, name: str) -> int:
    """A whole number that every client can represent."""
    if not _NUMBER.fullmatch(text) or abs(int(text)) > SAFE:
        refuse(f"Invalid number for {name}: {text}")
    return int(text)


def strict_json(text: str, name: str) -> Any:
    """A JSON text; Python's own extensions (NaN, Infinity) are no JSON."""

    def no_constant(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        refuse(f"Invalid JSON for {name}: {text}")


def plain(text: str, name: str) -> str:
    """The text as it is."""
    return text


def identifier(text: str, name: str) -> str:
    """An id: opaque, but not blank."""
    if not text.strip():
        refuse(f"Invalid ID for {name}: {text}")
    return text


def listed(text: str, name: str) -> list[str]:
    """Texts between commas; empty ones do not count."""
    return [part.strip() for part in text.split(",") if part.strip()]


#: Turns the text of an argument into its value; gets the argument's name for the refusal.
Reader = Callable[[str, str], Any]


@dataclass(frozen=True, slots=True)
class Argument:
    """A positional argument.

    Attributes:
        name: its name, for refusals and help.
        field: the field of the command that it becomes; empty: see :attr:`Verb.finish`.
        read: makes its value.
    """

    name: str
    field: str
    read: Reader = plain


@dataclass(frozen=True, slots=True)
class Option:
    """An option.

    Attributes:
        name: its long name without dashes, also for refusals.
        field: the field of the command that it becomes.
        help: what it is, for people.
        read: makes its value; None for a switch, which has none.
        short: its short name with the dash; empty if it has none.
        metavar: stands for its value in the help.
        minimum: its least value, None if it has none.
        refusal: the refusal of a smaller one.
    """

    name: str
    field: str
    help: str
    read: Reader | None = plain
    short: str = ""
    metavar: str = "TEXT"
    minimum: int | None = None
    refusal: str = ""

    def value(self, text: str) -> Any:
        """The value of ``text``, checked."""
        assert self.read is not None
        value = self.read(text, self.name)
        if self.minimum is not None and value < self.minimum:
            refuse(self.refusal)
        return value


def split(tokens: Sequence[str], options: Sequence[Option]) -> tuple[list[str], dict[str, str | None]]:
    """Part positional arguments from options, which come by their long names; a switch has no text."""
    known: Mapping[str, Option] = {
        spelling: option for option in options for spelling in (f"--{option.name}", option.short) if spelling
    }
    positional: list[str] = []
    given: dict[str, str | None] = {}
    rest = iter(tokens)
    for token in rest:
        if not token.startswith("-") or token == "-" or _NEGATIVE.match(token):
            positional.append(token)
            continue
        spelling, equals, text = token.partition("=") if token.startswith("--") else (token, "", "")
        option = known.get(spelling)
        if option is None:
            continue
        if option.read is None:
            given[option.name] = None
            continue
        if not equals:
            following = next(rest, None)
            if following is None:
                refuse(f"--{option.name} requires a value")
            text = following
        given[option.name] = text
    return positional, given


def read_arguments(arguments: Sequence[Argument], texts: Sequence[str]) -> dict[str, Any]:
    """The values of the positional arguments, by their names. All of them are required."""
    values: dict[str, Any] = {}
    for position, argument in enumerate(arguments):
        text = texts[position] if position < len(texts) else ""
        if not text:
            refuse(f"Missing required argument: {argument.name}")
        values[argument.name] = argument.read(text, argument.name)
    return values
