"""The features of the simple mode that need no waiting: configuration, back-off, breaker, expiry, deduplication, triggers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

#: Features and their defaults; a feature is off unless it is configured. camelCase is understood too.
FEATURES: Final[Mapping[str, Mapping[str, Any]]] = {
    "retry": {"max_attempts": 3, "delay": 1000, "strategy": "exponential", "custom_backoff": None, "retry_if": None},
    "circuit_breaker": {
        "threshold": 5,
        "reset_timeout": 30_000,
        "on_open": None,
        "on_close": None,
        "on_half_open": None,
    },
    "batch": {"size": None, "timeout": 5000, "processor": None},
    "ttl": {"default_ttl": 0, "per_name": {}},
    "priority_aging": {"interval": 60_000, "min_age": 60_000, "boost": 1, "max_priority": 100, "max_scan": 100},
    "deduplication": {"ttl": 3_600_000, "extend": False, "replace": False},
    "debounce": {"ttl": None},
}

#: Options that are the queue's and the worker's.
CONNECTION: Final = (
    "host",
    "port",
    "token",
    "tls",
    "connection",
    "embedded",
    "data_path",
    "storage",
    "prefix_key",
    "pool_size",
)
QUEUE: Final = ("default_job_options", "auto_batch")
WORKER: Final = (
    "concurrency",
    "batch_size",
    "poll_timeout_ms",
    "heartbeat_interval_s",
    "autorun",
    "remove_on_complete",
    "remove_on_fail",
)
OTHER: Final = ("processor", "routes", "dlq", "limiter", "rate_limit")

_STRATEGIES: Final = ("fixed", "exponential", "jitter", "fibonacci", "custom")


def snake(name: str) -> str:
    """``resetTimeout`` → ``reset_timeout``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options under Python's names, features completed with their defaults; what is None counts as not given.

    Raises:
        TypeError: an option, or a key of a feature, is not known.
        ValueError: not exactly one of ``processor``, ``routes`` and ``batch`` is given.
    """
    known = {*CONNECTION, *QUEUE, *WORKER, *OTHER, *FEATURES}
    options: dict[str, Any] = {}
    for key, value in given.items():
        name = snake(key)
        if name not in known:
            raise TypeError(f"Bunqueue has no option {key!r}")
        if value is not None:
            options[name] = value
    modes = [name for name in ("processor", "routes", "batch") if options.get(name)]
    if not modes:
        raise ValueError('Bunqueue requires "processor", "routes", or "batch"')
    if len(modes) > 1:
        raise ValueError('Bunqueue: use only one of "processor", "routes", or "batch"')
    for name, defaults in FEATURES.items():
        if name in options:
            options[name] = _feature(name, options[name], defaults)
    retry = options.get("retry")
    if retry and retry["strategy"] not in _STRATEGIES:
        raise ValueError(f"retry.strategy must be one of {', '.join(_STRATEGIES)}")
    if retry and retry["strategy"] == "custom" and retry["custom_backoff"] is None:
        raise ValueError("retry.strategy 'custom' needs custom_backoff")
    if "batch" in options and not (isinstance(options["batch"]["size"], int) and options["batch"]["size"] > 0):
        raise ValueError("batch.size must be a positive integer")
    return options


def _feature(name: str, given: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    if given is True:
        return dict(defaults)
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping, got {type(given).__name__}")
    config = dict(defaults)
    for key, value in given.items():
        if snake(key) not in defaults:
            raise TypeError(f"{name} has no option {key!r} (known: {', '.join(defaults)})")
        config[snake(key)] = value
    return config


def retry_delay_ms(config: Mapping[str, Any], attempt: int, error: BaseException, random: Callable[[], float]) -> float:
    """Pause after failure number ``attempt`` (1 is the first), ms."""
    base: float = config["delay"]
    strategy = config["strategy"]
    if config["custom_backoff"] is not None:
        return float(config["custom_backoff"](attempt, error))
    if strategy == "fixed":
        return base
    if strategy == "fibonacci":
        before, current = 1, 1
        for _ in range(attempt - 1):
            before, current = current, before + current
        return base * current
    exponential = base * 2.0 ** (attempt - 1)
    return math.floor(exponential * (0.5 + random())) if strategy == "jitter" else exponential


class Breaker:
    """Counts consecutive failures; ``closed`` → ``open`` → ``half-open`` → ``closed``."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self.failures = 0
        self.state = "closed"
        #: Changes whenever it opens or is reset, so that an old timer knows that it is old.
        self.period = 0

    def succeeded(self) -> bool:
        """A job succeeded. True if that closed it."""
        self.failures = 0
        closed = self.state == "half-open"
        if closed:
            self.state = "closed"
        return closed

    def failed(self) -> bool:
        """A job failed. True if that opened it."""
        self.failures += 1
        if self.state == "half-open" or (self.state == "closed" and self.failures >= self._threshold):
            self.state = "open"
            self.period += 1
            return True
        return False

    def half_open(self, period: int) -> bool:
        """Its time is over. False if that was another period's time."""
        if self.state != "open" or period != self.period:
            return False
        self.state = "half-open"
        return True

    def reset(self) -> bool:
        """Close it by hand. True if it was not closed."""
        was_open = self.state != "closed"
        self.state = "closed"
        self.failures = 0
        self.period += 1
        return was_open


def expired_ms(config: Mapping[str, Any], name: str, created_at: int | None, now: int) -> int | None:
    """Age of a job that is too old to run, ms; None if it is not."""
    limit = config["per_name"].get(name, config["default_ttl"])
    if limit <= 0 or created_at is None:
        return None
    age = now - created_at
    return age if age > limit else None


def merged_options(
    name: str,
    data: Any,
    options: Mapping[str, Any],
    deduplication: Mapping[str, Any] | None,
    debounce: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Options of an add with the deduplication and debounce that are configured, unless the call has its own."""
    merged = dict(options)
    if deduplication is not None and not {"deduplication", "unique_key"} & merged.keys():
        text = json.dumps(data, separators=(",", ":"), default=str, ensure_ascii=False)
        merged["deduplication"] = {"id": f"{name}:{text}", **deduplication}
    if debounce is not None and "debounce" not in merged:
        merged["debounce"] = {"id": name, **debounce}
    return merged


def trigger_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """A trigger's rule, checked.

    Raises:
        TypeError: a key is missing or not known.
        ValueError: the event is not ``completed`` or ``failed``.
    """
    known = {"on", "event", "create", "data", "condition", "opts"}
    for key in rule:
        if key not in known:
            raise TypeError(f"trigger has no option {key!r}")
    for key in ("on", "create"):
        if not rule.get(key):
            raise TypeError(f"trigger needs {key!r}")
    if rule.get("event", "completed") not in ("completed", "failed"):
        raise ValueError("trigger event must be 'completed' or 'failed'")
    return dict(rule)
