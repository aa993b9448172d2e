"""Clients of bunqueue: queue, worker, job. This package has the synchronous ones; ``bunqueue_core.asyncio`` the others."""

from __future__ import annotations

from bunqueue_core.client._cancel_signal import CancelSignal, ProcessorContext
from bunqueue_core.client.connection import Connection
from bunqueue_core.client.connection_pool import ConnectionPool
from bunqueue_core.client.flow import FlowNode, FlowProducer
from bunqueue_core.client.forward import Forwarder
from bunqueue_core.client.job import Job
from bunqueue_core.client.queue import Queue
from bunqueue_core.client.queue_events import QueueEvents
from bunqueue_core.client.queue_group import QueueGroup
from bunqueue_core.client.sandbox import SandboxedWorker
from bunqueue_core.client.simple import Bunqueue
from bunqueue_core.client.worker import Worker
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
