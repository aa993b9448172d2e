"""Small means that handlers share to build replies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from bunqueue_core.answer import Answer
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import Members, Reply
from bunqueue_core.model.errors import CommandError
from bunqueue_core.model.options import SAFE_INTEGER

T = TypeVar("T")
U = TypeVar("U")


class Refusal(CommandError):
    """A refusal whose answer carries ``members`` beside its text."""

    def __init__(self, text: str, members: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.members = members

    def __reduce__(self) -> tuple[type[Refusal], tuple[str, Mapping[str, Any]]]:
        return type(self), (str(self), self.members)


#: What a client is told of an error that is none of its business.
INTERNAL_ERROR: Final = "Internal server error"


def error_text(error: BaseException) -> str:
    """The text that a client may see: a command's own refusal as it is, everything else as an internal error."""
    return str(error) if isinstance(error, CommandError) else INTERNAL_ERROR


def done(answer: Answer[None]) -> Reply:
    """The bare success of a verb without a value."""
    if answer.ready:
        answer.value  # noqa: B018  raises the verb's error
        return None
    return answer.map(_none)


def _none(value: None) -> Members:
    return None


def then(answer: Answer[T], function: Callable[[T], Members]) -> Reply:
    """The reply that ``function`` makes of the value, now if it is there."""
    if answer.ready:
        return function(answer.value)
    return answer.map(function)


def chain(first: Answer[T], following: Callable[[T], Answer[U]]) -> Answer[U]:
    """The answer of ``following(value)`` once ``first`` has its value."""
    if first.ready:
        return following(first.value)
    outcome: Answer[U] = Answer()

    def settle(answer: Answer[U]) -> None:
        if answer.error is not None:
            outcome.fail(answer.error)
        else:
            outcome.settle(answer.value)

    def go_on(answer: Answer[T]) -> None:
        if answer.error is not None:
            outcome.fail(answer.error)
            return
        try:
            following(answer.value).add_callback(settle)
        except Exception as error:
            outcome.fail(error)

    first.add_callback(go_on)
    return outcome


def whole_or_none(value: Any) -> int | None:
    """A finite number floored, None for everything else: for arguments that are ignored when they make no sense.

    One beyond what every client and storage can hold exactly counts as the largest that they can.
    """
    if type(value) is bool or not isinstance(value, int | float) or value != value or value in (math.inf, -math.inf):
        return None
    floored: int = math.floor(max(-SAFE_INTEGER, min(value, SAFE_INTEGER)))
    return floored


def lenient_number(value: Any) -> Any:
    """A text that JavaScript reads as a number, or a boolean, as that number; other values as they are."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        try:
            return float(value) if value.strip() else 0
        except ValueError:
            return None
    return value


def timed(session: Session, series: str, answer: Answer[T], started: float) -> Answer[T]:
    """Count the time since ``started`` (``time.perf_counter()``) in a latency series when the answer is there."""
    histogram = session.services.meters.latencies[series]
    if answer.ready:
        histogram.observe(time.perf_counter() - started)
    else:
        answer.add_callback(lambda _: histogram.observe(time.perf_counter() - started))
    return answer
