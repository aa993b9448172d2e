"""Rules that every driver shares: back-off, stack traces, names. Pure functions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from bunqueue_core.model.errors import ValidationError

if TYPE_CHECKING:
    from bunqueue_core.model.job import JobOptions
    from bunqueue_core.model.requests import Failure

#: (base delay in ms, attempts so far counting this failure, random float source in [0, 1)) → delay in ms before the next run.
BackoffStrategy = Callable[[int, int, Callable[[], float]], float]

#: No retry waits longer than this, ms; applied after the jitter.
MAX_BACKOFF_MS: Final = 3_600_000

#: Stack lines taken from one failure before the job's own limit applies.
MAX_STACK_LINES: Final = 100

_QUEUE_NAME = re.compile(r"[a-zA-Z0-9_\-.:]+")


def fixed_backoff(delay_ms: int, attempts: int, random: Callable[[], float]) -> float:
    """``delay × U(0.8, 1.2)``."""
    return delay_ms * (0.8 + 0.4 * random())


def exponential_backoff(delay_ms: int, attempts: int, random: Callable[[], float]) -> float:
    """``delay × 2^attempts × U(0.5, 1.5)``; ``attempts`` counts the failure at hand."""
    return delay_ms * 2.0 ** min(attempts, 64) * (0.5 + random())


#: Strategies of the core by the name that a job's ``backoff.type`` gives.
BACKOFF_STRATEGIES: Final[Mapping[str, BackoffStrategy]] = {
    "fixed": fixed_backoff,
    "exponential": exponential_backoff,
}


def backoff_delay(
    options: JobOptions, attempts: int, random: Callable[[], float], strategies: Mapping[str, BackoffStrategy]
) -> int:
    """Delay in ms before the next run after failure number ``attempts``.

    A plain number is the base of the exponential strategy. The cap is ``backoff.maxDelay`` where given, never more than an hour.
    A strategy that is not installed any more, raises, or gives no number counts as exponential: the failure at hand has happened,
    and has to be recorded whatever a plugin does.
    """
    config = options.backoff
    if config is None:
        delay = exponential_backoff(options.backoff_ms, attempts, random)
        cap = MAX_BACKOFF_MS
    else:
        strategy = strategies.get(config["type"], exponential_backoff)
        try:
            delay = float(strategy(config["delay"], attempts, random))
        except Exception:
            delay = math.nan
        if not math.isfinite(delay):
            delay = exponential_backoff(config["delay"], attempts, random)
        cap = min(MAX_BACKOFF_MS, config.get("maxDelay", MAX_BACKOFF_MS))
    return max(0, min(int(delay), cap))


def stack_lines(stack: object, limit: int) -> list[str] | None:
    """Lines of a stack trace to keep: strings only, trimmed, blanks dropped, the first ``limit``; None if none is left."""
    if not isinstance(stack, list):
        return None
    lines = [line.strip() for line in stack[:MAX_STACK_LINES] if isinstance(line, str)]
    kept = [line for line in lines if line][: max(0, limit)]
    return kept or None


def check_text(value: object, field: str) -> None:
    """Refuse text with lone surrogates: it is in no encoding, so that nothing could store it or send it. Others pass.

    Raises:
        ValidationError: ``<field> must be well-formed Unicode``.
    """
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValidationError(f"{field} must be well-formed Unicode") from None


def check_queue_name(name: Any) -> str:
    """Return ``name`` if it is a queue name: 1..256 of letters, digits, ``_ - . :``.

    Raises:
        ValidationError: with the text that the wire protocol prescribes.
    """
    if name is None or name == "":
        raise ValidationError("Queue name is required")
    if not isinstance(name, str):
        raise ValidationError("Queue name must be a string")
    if len(name) > 256:
        raise ValidationError("Queue name too long (max 256 characters)")
    if _QUEUE_NAME.fullmatch(name) is None:
        raise ValidationError("Queue name contains invalid characters")
    return name


def check_job_name(name: Any) -> str:
    """Return ``name`` if it is a job name: a string of 1..256 characters."""
    if not isinstance(name, str) or not 1 <= len(name) <= 256:
        raise ValidationError("Job name must be a non-empty string of at most 256 characters")
    return name


def check_failures(failures: Iterable[Failure]) -> None:
    """Refuse a batch of failures if a text in it is not well-formed. Raises ValidationError."""
    for failure in failures:
        if failure.error is not None:
            check_text(failure.error, "error")
        for line in failure.stack or ():
            if isinstance(line, str):
                check_text(line, "stack")
