"""bunqueue: a job queue that needs nothing but a file, and grows to many brokers on one PostgreSQL.

The public names are loaded when they are first used, so that importing the package costs nothing. ``bunqueue_core.asyncio`` has the
clients for asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bunqueue_core.client import AuthError as AuthError
    from bunqueue_core.client import Bunqueue as Bunqueue
    from bunqueue_core.client import CancelSignal as CancelSignal
    from bunqueue_core.client import Connection as Connection
    from bunqueue_core.client import ConnectionPool as ConnectionPool
    from bunqueue_core.client import FlowNode as FlowNode
    from bunqueue_core.client import FlowProducer as FlowProducer
    from bunqueue_core.client import Forwarder as Forwarder
    from bunqueue_core.client import Job as Job
    from bunqueue_core.client import JobPro as JobPro
    from bunqueue_core.client import ProcessorContext as ProcessorContext
    from bunqueue_core.client import Queue as Queue
    from bunqueue_core.client import QueueEvents as QueueEvents
    from bunqueue_core.client import QueueEventsPro as QueueEventsPro
    from bunqueue_core.client import QueueGroup as QueueGroup
    from bunqueue_core.client import QueuePro as QueuePro
    from bunqueue_core.client import SandboxedWorker as SandboxedWorker
    from bunqueue_core.client import Worker as Worker
    from bunqueue_core.client import WorkerPro as WorkerPro
    from bunqueue_core.client import shutdown_manager as shutdown_manager
    from bunqueue_core.config.define import define_config as define_config
    from bunqueue_core.model.errors import AuthenticationError as AuthenticationError
    from bunqueue_core.model.errors import BackendBusy as BackendBusy
    from bunqueue_core.model.errors import BrokerClosed as BrokerClosed
    from bunqueue_core.model.errors import BunqueueError as BunqueueError
    from bunqueue_core.model.errors import CapabilityError as CapabilityError
    from bunqueue_core.model.errors import CommandError as CommandError
    from bunqueue_core.model.errors import CommandTimeoutError as CommandTimeoutError
    from bunqueue_core.model.errors import ConfigurationError as ConfigurationError
    from bunqueue_core.model.errors import Conflict as Conflict
    from bunqueue_core.model.errors import ConnectionClosedError as ConnectionClosedError
    from bunqueue_core.model.errors import DelayedError as DelayedError
    from bunqueue_core.model.errors import LeaseLost as LeaseLost
    from bunqueue_core.model.errors import NotFound as NotFound
    from bunqueue_core.model.errors import RateLimitError as RateLimitError
    from bunqueue_core.model.errors import SerializationError as SerializationError
    from bunqueue_core.model.errors import StorageUnavailable as StorageUnavailable
    from bunqueue_core.model.errors import UnrecoverableError as UnrecoverableError
    from bunqueue_core.model.errors import ValidationError as ValidationError

__version__ = "0.1.0"

#: Where each public name is defined.
_EXPORTS = {
    "AuthError": "bunqueue_core.client",
    "AuthenticationError": "bunqueue_core.model.errors",
    "BackendBusy": "bunqueue_core.model.errors",
    "BrokerClosed": "bunqueue_core.model.errors",
    "Bunqueue": "bunqueue_core.client",
    "BunqueueError": "bunqueue_core.model.errors",
    "CancelSignal": "bunqueue_core.client",
    "CapabilityError": "bunqueue_core.model.errors",
    "CommandError": "bunqueue_core.model.errors",
    "CommandTimeoutError": "bunqueue_core.model.errors",
    "ConfigurationError": "bunqueue_core.model.errors",
    "Conflict": "bunqueue_core.model.errors",
    "Connection": "bunqueue_core.client",
    "ConnectionClosedError": "bunqueue_core.model.errors",
    "ConnectionPool": "bunqueue_core.client",
    "DelayedError": "bunqueue_core.model.errors",
    "FlowNode": "bunqueue_core.client",
    "FlowProducer": "bunqueue_core.client",
    "Forwarder": "bunqueue_core.client",
    "Job": "bunqueue_core.client",
    "JobPro": "bunqueue_core.client",
    "LeaseLost": "bunqueue_core.model.errors",
    "NotFound": "bunqueue_core.model.errors",
    "ProcessorContext": "bunqueue_core.client",
    "Queue": "bunqueue_core.client",
    "QueueEvents": "bunqueue_core.client",
    "QueueEventsPro": "bunqueue_core.client",
    "QueueGroup": "bunqueue_core.client",
    "QueuePro": "bunqueue_core.client",
    "RateLimitError": "bunqueue_core.model.errors",
    "SandboxedWorker": "bunqueue_core.client",
    "SerializationError": "bunqueue_core.model.errors",
    "StorageUnavailable": "bunqueue_core.model.errors",
    "UnrecoverableError": "bunqueue_core.model.errors",
    "ValidationError": "bunqueue_core.model.errors",
    "Worker": "bunqueue_core.client",
    "WorkerPro": "bunqueue_core.client",
    "define_config": "bunqueue_core.config.define",
    "shutdown_manager": "bunqueue_core.client",
}

__all__ = [
    "AuthError",
    "AuthenticationError",
    "BackendBusy",
    "BrokerClosed",
    "Bunqueue",
    "BunqueueError",
    "CancelSignal",
    "CapabilityError",
    "CommandError",
    "CommandTimeoutError",
    "ConfigurationError",
    "Conflict",
    "Connection",
    "ConnectionClosedError",
    "ConnectionPool",
    "DelayedError",
    "FlowNode",
    "FlowProducer",
    "Forwarder",
    "Job",
    "JobPro",
    "LeaseLost",
    "NotFound",
    "ProcessorContext",
    "Queue",
    "QueueEvents",
    "QueueEventsPro",
    "QueueGroup",
    "QueuePro",
    "RateLimitError",
    "SandboxedWorker",
    "SerializationError",
    "StorageUnavailable",
    "UnrecoverableError",
    "ValidationError",
    "Worker",
    "WorkerPro",
    "__version__",
    "define_config",
    "shutdown_manager",
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
