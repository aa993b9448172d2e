"""Clients of bunqueue: queue, worker, job. This package has the synchronous ones; ``bunqueue_core.asyncio`` the others."""
