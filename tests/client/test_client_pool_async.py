"""Several connections used in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from client_servers import ScriptedServer, obliging

from bunqueue_core.client._acompat import AEvent
from bunqueue_core.client.connection_pool_async import ConnectionPool
from bunqueue_core.client.job_async import Job
from bunqueue_core.client.queue_async import Queue
from bunqueue_core.client.worker_async import Worker
from bunqueue_core.model.errors import CommandError, ConnectionClosedError

#: Nothing here takes longer, seconds.
PATIENCE = 20.0


async def test_commands_take_the_connections_in_turn(remote: dict[str, Any]) -> None:
    async with ConnectionPool(3, **remote) as pool:
        assert (pool.get_pool_size(), pool.get_connected_count(), pool.is_connected()) == (3, 0, False)
        await pool.connect()
        assert (pool.get_connected_count(), pool.is_connected()) == (3, True)
        responses = await pool.send_parallel([{"cmd": "Ping"}] * 6)
        assert [response["ok"] for response in responses] == [True] * 6
        assert (await pool.send({"cmd": "Hello"}))["server"] == "bunqueue"
        health = pool.get_health()
        assert (health["healthy"], health["connected_count"], health["total_count"]) == (True, 3, 3)
        assert health["clients"] == [{"connected": True, "generation": 1}] * 3
        assert (health["total_commands"], health["total_errors"]) == (7, 0)
        assert health["avg_latency_ms"] > 0
        with pytest.raises(CommandError):
            await pool.send({"cmd": "GetJob", "id": "nobody"})
        assert pool.get_health()["total_errors"] == 1
    assert pool.is_closed()
    with pytest.raises(ConnectionClosedError, match="connection closed by client"):
        await pool.send({"cmd": "Ping"})
    with pytest.raises(ConnectionClosedError, match="Connection pool is closed"):
        Queue("q", connection=pool)


async def test_each_connection_is_used(scripted: Callable[..., ScriptedServer]) -> None:
    server = scripted(obliging)
    async with ConnectionPool(2, **server.address) as pool:
        for _ in range(4):
            await pool.send({"cmd": "Ping"})
        assert len(server.connections) == 2
        assert len(server.named("Ping")) == 4


async def test_one_that_cannot_be_made_is_left_out(scripted: Callable[..., ScriptedServer]) -> None:
    server = scripted(obliging)
    again = AEvent()
    async with ConnectionPool(2, **server.address) as pool:
        pool.on_reconnect(again.set)
        for _ in range(2):
            await pool.send({"cmd": "Ping"})
        server.connections[0].drop()
        outcomes = []
        for _ in range(6):
            try:
                outcomes.append((await pool.send({"cmd": "Ping"}))["ok"])
            except ConnectionClosedError:
                outcomes.append(False)
        assert outcomes.count(True) >= 5
        assert again.is_set()


async def test_a_queue_and_a_worker_with_pools(remote: dict[str, Any], name: str) -> None:
    async def double(job: Job) -> int:
        return int(job.data) * 2

    async with (
        Queue(name, **remote, pool_size=3, auto_batch=True) as queue,
        Worker(name, double, **remote, pool_size=2, concurrency=8) as worker,
    ):
        await worker.wait_until_ready(PATIENCE)
        await queue.add_bulk([{"name": "job", "data": n} for n in range(50)])
        jobs = [await queue.add("job", n) for n in range(50)]
        assert [await job.wait_until_finished(ttl_ms=PATIENCE * 1000) for job in jobs] == [n * 2 for n in range(50)]


async def test_a_pool_is_shared_like_a_connection(remote: dict[str, Any], name: str) -> None:
    async with ConnectionPool(2, **remote) as pool:
        async with Queue(name, connection=pool) as queue:
            await queue.add("job")
        assert pool.is_connected()
        async with Queue(name, connection=pool) as queue:
            assert await queue.count() == 1


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
async def test_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(ValueError, match="pool_size must be an integer of at least 1"):
        ConnectionPool(size)
    with pytest.raises(ValueError, match="pool_size must be an integer of at least 1"):
        Queue("q", pool_size=size)
