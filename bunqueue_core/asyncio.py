"""The clients for asyncio: the same names and arguments as in ``bunqueue_core``, with ``await``."""

from __future__ import annotations

from bunqueue_core.client._cancel_signal import CancelSignal, ProcessorContext
from bunqueue_core.client.connection_async import Connection
from bunqueue_core.client.connection_pool_async import ConnectionPool
from bunqueue_core.client.flow_async import FlowNode, FlowProducer
from bunqueue_core.client.forward_async import Forwarder
from bunqueue_core.client.job_async import Job
from bunqueue_core.client.queue_async import Queue
from bunqueue_core.client.queue_events_async import QueueEvents
from bunqueue_core.client.queue_group_async import QueueGroup
from bunqueue_core.client.sandbox_async import SandboxedWorker
from bunqueue_core.client.simple_async import Bunqueue
from bunqueue_core.client.worker_async import Worker
from bunqueue_core.embedded import shutdown_manager
from bunqueue_core.model.errors import AuthenticationError

#: The name of the official SDK for the same error.
AuthError = AuthenticationError

#: Names by which programs that come from BullMQ Pro know the same classes.
QueuePro, WorkerPro, QueueEventsPro, JobPro = Queue, Worker, QueueEvents, Job

__all__ = [
    "AuthError",
    "Bunqueue",
    "CancelSignal",
    "Connection",
    "ConnectionPool",
    "FlowNode",
    "FlowProducer",
    "Forwarder",
    "Job",
    "JobPro",
    "ProcessorContext",
    "Queue",
    "QueueEvents",
    "QueueEventsPro",
    "QueueGroup",
    "QueuePro",
    "SandboxedWorker",
    "Worker",
    "WorkerPro",
    "shutdown_manager",
]
