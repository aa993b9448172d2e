"""Store and forward: from an embedded queue to a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_servers import Reply, ScriptedConnection, ScriptedServer, obliging

from bunqueue_core.client._acompat import AEvent
from bunqueue_core.client.forward_async import Forwarder
from bunqueue_core.client.queue_async import Queue

#: Nothing here takes longer, seconds.
PATIENCE = 20.0


class Heard:
    """Collects the payloads of one event and waits for them."""

    def __init__(self, forwarder: Forwarder, event: str) -> None:
        self.payloads: list[Any] = []
        self._changed = AEvent()
        forwarder.on(event, self._hear)

    def _hear(self, payload: Any) -> None:
        self.payloads.append(payload)
        self._changed.set()

    async def until(self, count: int) -> list[Any]:
        """Wait until there are ``count``."""
        while len(self.payloads) < count:
            self._changed.clear()
            if len(self.payloads) < count:
                assert await self._changed.wait(PATIENCE), self.payloads
        return self.payloads


async def test_jobs_arrive_under_ids_of_their_own(remote: dict[str, Any], name: str, tmp_path: Path) -> None:
    async with (
        Queue(name, data_path=tmp_path / "spool.db", prefix_key="edge:") as local,
        Queue(name, **remote) as there,
    ):
        await local.add("first", {"n": 1}, job_id="L1", priority=7, attempts=9)
        async with local.forward(remote, concurrency=1, durable=True) as forwarder:
            forwarded = Heard(forwarder, "forwarded")
            job = await local.add("second", [1, 2])
            payloads = await forwarded.until(2)
            assert payloads[0] == {"id": "L1", "remote_id": f"fwd:edge:{name}:L1", "name": "first"}
            result = await job.wait_until_finished(ttl_ms=PATIENCE * 1000)
            assert result == {"id": job.id, "remote_id": f"fwd:edge:{name}:{job.id}", "name": "second"}
            stats = forwarder.stats()
        assert (stats["forwarded"], stats["failed"], stats["last_error"]) == (2, 0, None)
        assert stats["last_forwarded_at"] > 0
        first = await there.get_job(f"fwd:edge:{name}:L1")
        assert first is not None
        assert (first.name, first.data, first.priority, first.max_attempts) == ("first", {"n": 1}, 7, 3)
        assert await there.count() == 2
        assert await local.get_completed_count() == 2


async def test_a_job_that_is_sent_twice_is_one_job_there(remote: dict[str, Any], name: str) -> None:
    async with Queue(name, embedded=True) as local, Queue(f"{name}-there", **remote) as there:
        for _ in range(2):
            async with local.forward(remote, queue=f"{name}-there") as forwarder:
                forwarded = Heard(forwarder, "forwarded")
                await local.add("job", {}, job_id="same", remove_on_complete=True)
                await forwarded.until(1)
        assert await there.count() == 1


async def test_an_outage_uses_up_the_attempts_of_the_local_job(scripted: Callable[..., ScriptedServer]) -> None:
    def refusing(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if command["cmd"] == "PUSH":
            return {"ok": False, "error": "Queue name contains invalid characters"}
        return obliging(command, connection)

    server = scripted(refusing)
    async with Queue("out", embedded=True) as local, local.forward(server.address) as forwarder:
        errors = Heard(forwarder, "error")
        job = await local.add("job", {}, attempts=2, backoff=1)
        await errors.until(2)
        with pytest.raises(Exception, match="failed before completion"):
            await job.wait_until_finished(ttl_ms=PATIENCE * 1000)
        letters = await local.get_dlq_entries()
        assert [letter["error"] for letter in letters] == ["Queue name contains invalid characters"]
        assert letters[0]["reason"] == "max_attempts_exceeded"
        stats = forwarder.stats()
        assert (stats["forwarded"], stats["failed"], stats["last_error"]) == (
            0,
            2,
            "Queue name contains invalid characters",
        )


async def test_pausing_and_closing(remote: dict[str, Any], name: str) -> None:
    async with Queue(name, embedded=True) as local, Queue(name, **remote) as there:
        forwarder = local.forward(remote)
        await forwarder.wait_until_ready()
        forwarder.pause()
        assert forwarder.is_paused()
        await local.add("job")
        forwarded = Heard(forwarder, "forwarded")
        forwarder.resume()
        await forwarded.until(1)
        await forwarder.close()
        await forwarder.close()
        assert forwarder.is_closed()
        await local.add("job")
        assert (await local.count(), await there.count()) == (1, 1)


async def test_a_listener_that_fails_fails_no_job(remote: dict[str, Any], name: str) -> None:
    def failing(payload: Any) -> None:
        raise RuntimeError("mine")

    async with Queue(name, embedded=True) as local, local.forward(remote) as forwarder:
        forwarder.on("forwarded", failing)
        job = await local.add("job")
        assert (await job.wait_until_finished(ttl_ms=PATIENCE * 1000))["id"] == job.id


async def test_where_it_cannot_go_is_refused() -> None:
    async with Queue("q", embedded=True) as local:
        with pytest.raises(TypeError, match="to must be a connection or a mapping of its arguments, got str"):
            local.forward("server")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="connection has no option 'embedded'"):
            local.forward({"embedded": True})
        with pytest.raises(ValueError, match="concurrency must be >= 1"):
            local.forward({"host": "localhost"}, concurrency=0)
