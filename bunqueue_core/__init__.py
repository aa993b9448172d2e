"""bunqueue: a job queue that needs nothing but a file, and grows to many brokers on one PostgreSQL.

The public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bunqueue_core.client import Job as Job
    from bunqueue_core.client import Queue as Queue
    from bunqueue_core.client import Worker as Worker
    from bunqueue_core.config.define import define_config as define_config
    from bunqueue_core.model.errors import BunqueueError as BunqueueError
    from bunqueue_core.model.errors import ConfigurationError as ConfigurationError
    from bunqueue_core.model.errors import DelayedError as DelayedError
    from bunqueue_core.model.errors import RateLimitError as RateLimitError
    from bunqueue_core.model.errors import UnrecoverableError as UnrecoverableError

__version__ = "0.1.0"

#: Where each public name is defined.
_EXPORTS = {
    "BunqueueError": "bunqueue_core.model.errors",
    "ConfigurationError": "bunqueue_core.model.errors",
    "DelayedError": "bunqueue_core.model.errors",
    "Job": "bunqueue_core.client",
    "Queue": "bunqueue_core.client",
    "RateLimitError": "bunqueue_core.model.errors",
    "UnrecoverableError": "bunqueue_core.model.errors",
    "Worker": "bunqueue_core.client",
    "define_config": "bunqueue_core.config.define",
}

__all__ = [
    "BunqueueError",
    "ConfigurationError",
    "DelayedError",
    "Job",
    "Queue",
    "RateLimitError",
    "UnrecoverableError",
    "Worker",
    "__version__",
    "define_config",
]


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
