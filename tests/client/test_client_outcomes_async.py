"""What a worker does when its broker refuses, forgets, disappears or is late: rules that a real server seldom shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from client_servers import Reply, ScriptedConnection, ScriptedServer, obliging, wire_job

from bunqueue_core.client._acompat import AEvent, aspawn
from bunqueue_core.client._cancel_signal import ProcessorContext
from bunqueue_core.client.job_async import Job
from bunqueue_core.client.worker_async import Worker
from bunqueue_core.model.errors import CommandError, LeaseLost, NotFound

Scripted = Callable[..., ScriptedServer]
Script = Callable[[dict[str, Any], ScriptedConnection], Reply]

PATIENCE = 10.0


class Told:
    """What a worker told, and an event that is set when it tells anything of the given kinds."""

    def __init__(self, worker: Worker, *events: str) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.changed = AEvent()
        for event in events:
            worker.on(event, self._listener(event))

    def _listener(self, event: str) -> Callable[..., None]:
        def told(*arguments: Any) -> None:
            self.entries.append((event, *arguments))
            self.changed.set()

        return told

    async def first(self) -> tuple[Any, ...]:
        """Wait for the first entry."""
        assert await self.changed.wait(PATIENCE), "nothing was told"
        return self.entries[0]


def deliver(*deliveries: dict[str, Any], then: Script = obliging) -> Script:
    """Hands out jobs, one a pull, and leaves everything else to ``then``."""
    queue = list(deliveries)

    def script(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if command["cmd"] in ("PULL", "PULLB") and queue:
            job = queue.pop(0)
            return {
                "ok": True,
                "jobs": [job],
                "tokens": [job.get("token", "t1")],
                "job": job,
                "token": job.get("token", "t1"),
            }
        if command["cmd"] in ("PULL", "PULLB") and command["timeout"]:
            return None
        return then(command, connection)

    return script


def refuse(name: str, text: str, then: Script = obliging) -> Script:
    """Refuses command ``name`` and leaves everything else to ``then``."""

    def script(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        return {"ok": False, "error": text} if command["cmd"] == name else then(command, connection)

    return script


async def nothing(job: Job) -> None:
    """A processor."""


async def test_an_acknowledgement_of_a_job_that_is_gone(scripted: Scripted) -> None:
    text = "Job not found or not in processing state: 1"
    server = scripted(deliver(wire_job("1"), then=refuse("ACK", text)))
    worker = Worker("q", nothing, autorun=False, **server.address)
    told = Told(worker, "completed", "failed", "error")
    async with worker:
        event, error = await told.first()
        assert event == "error"
        assert isinstance(error, NotFound)
        assert (str(error), error.context) == (text, "ack-stale")  # type: ignore[attr-defined]
    assert server.named("FAIL") == []
    assert len(told.entries) == 1
    assert (worker.processed, worker.failed) == (0, 0)


async def test_an_acknowledgement_that_is_refused_otherwise(scripted: Scripted) -> None:
    text = "Invalid or expired lock token for job 1"
    server = scripted(deliver(wire_job("1"), then=refuse("ACK", text, refuse("FAIL", text))))
    worker = Worker("q", nothing, autorun=False, **server.address)
    told = Told(worker, "completed", "failed", "error")
    async with worker:
        event, error = await told.first()
        assert event == "error"
        assert isinstance(error, LeaseLost)
        assert error.context == "fail"  # type: ignore[attr-defined]
    (failure,) = server.named("FAIL")
    assert (failure["id"], failure["token"], failure["error"]) == ("1", "t1", text)
    assert len(told.entries) == 1


async def test_an_outcome_that_the_broker_has_decided_itself(scripted: Scripted) -> None:
    def final(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if command["cmd"] == "ACK":
            return {"ok": True, "data": {"applied": False, "reason": "already-finalized"}}
        return obliging(command, connection)

    server = scripted(deliver(wire_job("1"), wire_job("2"), then=final))
    worker = Worker("q", nothing, concurrency=1, autorun=False, **server.address)
    told = Told(worker, "completed", "failed", "error", "drained")
    async with worker:
        assert await told.first() == ("drained",)
    assert [command["id"] for command in server.named("ACK")] == ["1", "2"]
    assert told.entries == [("drained",)]
    assert worker.processed == 0


async def test_an_older_delivery_does_not_disturb_a_newer_one(scripted: Scripted) -> None:
    first, second = AEvent(), AEvent()
    calls: list[str | None] = []

    async def process(job: Job) -> str:
        calls.append(job.token)
        if len(calls) == 1:
            second.clear()
            assert await first.wait(PATIENCE)
            return "stale"
        first.set()
        assert await second.wait(PATIENCE)
        return "fresh"

    def fussy(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if command["cmd"] == "ACK" and command["token"] == "old":
            return {"ok": False, "error": "Invalid or expired lock token for job 1"}
        return obliging(command, connection)

    server = scripted(deliver(wire_job("1", token="old"), wire_job("1", token="new"), then=fussy))
    worker = Worker("q", process, concurrency=2, autorun=False, **server.address)
    told = Told(worker, "completed", "failed", "error")
    async with worker:
        while not server.named("ACK"):
            await AEvent().wait(0.01)
        second.set()
        event, job, result = await told.first()
        assert (event, job.token, result) == ("completed", "new", "fresh")
    assert server.named("FAIL") == []
    assert len(told.entries) == 1


async def test_a_lost_connection_while_a_job_runs(scripted: Scripted) -> None:
    calls: list[str | None] = []

    async def process(job: Job) -> str:
        calls.append(job.token)
        if len(calls) == 1:
            server.connections[0].drop()
        return "done"

    server = scripted(deliver(wire_job("1", token="old"), wire_job("1", token="new")))
    worker = Worker("q", process, concurrency=1, autorun=False, **server.address)
    told = Told(worker, "completed")
    async with worker:
        _, job, _ = await told.first()
        assert job.token == "new"
    assert calls == ["old", "new"]
    registered = server.named("RegisterWorker")
    assert [command["workerId"] for command in registered] == [worker.id, worker.id]


async def test_pulls_that_are_refused_for_good_end_the_worker(scripted: Scripted) -> None:
    server = scripted(refuse("PULLB", "Queue name contains invalid characters"))
    worker = Worker("q", nothing, autorun=False, **server.address)
    with pytest.raises(CommandError, match="Queue name contains invalid characters"):
        await worker.run()
    assert worker.is_closed()
    assert len(server.named("PULLB")) == 1


async def test_somebody_who_listens_to_errors_keeps_the_worker_going(scripted: Scripted) -> None:
    server = scripted(refuse("PULLB", "Queue name contains invalid characters"))
    worker = Worker("q", nothing, autorun=False, **server.address)
    told = Told(worker, "error")
    async with worker:
        _, error = await told.first()
        assert error.context == "pull"
        assert worker.is_running()


async def test_pulls_that_are_refused_for_now_are_tried_again(scripted: Scripted) -> None:
    refusals = ["Rate limit exceeded"]

    def busy(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if command["cmd"] == "PULL" and refusals:
            return {"ok": False, "error": refusals.pop()}
        return deliveries(command, connection)

    deliveries = deliver(wire_job("1"))
    server = scripted(busy)
    worker = Worker("q", nothing, concurrency=1, batch_size=1, autorun=False, **server.address)
    told = Told(worker, "completed", "error")
    async with worker:
        event, error = await told.first()
        assert (event, str(error)) == ("error", "Rate limit exceeded")
        while len(told.entries) < 2:
            told.changed.clear()
            assert await told.changed.wait(PATIENCE)
        assert told.entries[1][0] == "completed"


async def test_an_unreachable_server_is_waited_for(scripted: Scripted) -> None:
    gone = scripted(obliging)
    gone.close()
    worker = Worker("q", nothing, autorun=False, **gone.address)
    told = Told(worker, "error", "ready")
    worker.start()
    event, error = await told.first()
    assert event == "error"
    assert "connect failed" in str(error)
    assert await worker.close(PATIENCE)


async def test_closing_does_not_wait_for_a_long_poll(scripted: Scripted) -> None:
    server = scripted(deliver())
    worker = Worker("q", nothing, poll_timeout_ms=30_000, **server.address)
    await worker.wait_until_ready()
    while not server.named("PULLB"):
        await AEvent().wait(0.01)
    assert await worker.close(PATIENCE) is True
    assert server.named("UnregisterWorker")[0]["workerId"] == worker.id


async def test_jobs_that_were_not_started_are_given_back(scripted: Scripted) -> None:
    release, started = AEvent(), AEvent()

    async def process(job: Job) -> None:
        started.set()
        assert await release.wait(PATIENCE)

    def batch(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if command["cmd"] == "PULLB" and len(server.named("PULLB")) == 1:
            jobs = [wire_job(str(n), data={"g": "same"}) for n in range(3)]
            return {"ok": True, "jobs": jobs, "tokens": ["t0", "t1", "t2"]}
        return deliver()(command, connection)

    server = scripted(batch)
    limiter = {"max": 1, "group_key": "g"}
    worker = Worker("q", process, concurrency=4, limiter=limiter, autorun=False, **server.address)
    told = Told(worker, "completed", "failed", "error")
    worker.start()
    assert await started.wait(PATIENCE)
    closed = AEvent()

    async def close() -> None:
        assert await worker.close(PATIENCE)
        closed.set()

    task = aspawn("closer", close)
    while len(server.named("MoveToWait")) < 2:
        await AEvent().wait(0.01)
    assert not closed.is_set()
    release.set()
    assert await closed.wait(PATIENCE)
    assert task is not None
    given_back = {(command["id"], command["token"]) for command in server.named("MoveToWait")}
    assert given_back == {("1", "t1"), ("2", "t2")}
    assert [command["id"] for command in server.named("ACK")] == ["0"]
    assert [entry[0] for entry in told.entries] == ["completed"]


async def test_a_lost_lease_tells_the_processor_to_stop(scripted: Scripted) -> None:
    reasons: list[str | None] = []

    async def process(job: Job, context: ProcessorContext) -> None:
        stopped = AEvent()
        context.signal.on_abort(lambda reason: stopped.set())
        assert await stopped.wait(PATIENCE)
        reasons.append(context.signal.reason)

    refused = refuse("JobHeartbeat", "Job not found or not active (or invalid token)")
    server = scripted(deliver(wire_job("1"), then=refused))
    worker = Worker("q", process, lock_ttl_ms=60, autorun=False, **server.address)
    told = Told(worker, "completed")
    async with worker:
        await told.first()
    assert reasons == ["lock lost"]


async def test_what_a_worker_sends(scripted: Scripted) -> None:
    async def process(job: Job) -> Any:
        if job.id == "2":
            raise ValueError("no")
        return {"n": 2**40}

    server = scripted(deliver(wire_job("1"), wire_job("2", stackTraceLimit=1)))
    options = {"group": {"concurrency": 2, "limit": {"max": 3, "duration": 1000}}, "lock_ttl_ms": 9000}
    worker = Worker("q", process, concurrency=3, batch_size=2, name="w", **options, autorun=False, **server.address)
    told = Told(worker, "failed")
    async with worker:
        await told.first()
    (registered,) = server.named("RegisterWorker")
    assert (registered["name"], registered["queues"], registered["concurrency"]) == ("w", ["q"], 3)
    pull = server.named("PULLB")[0]
    assert (pull["count"], pull["owner"], pull["lockTtl"]) == (2, worker.id, 9000)
    assert pull["group"] == {"concurrency": 2, "limit": {"max": 3, "duration": 1000}}
    (ack,) = server.named("ACK")
    assert (ack["id"], ack["token"], ack["result"]) == ("1", "t1", {"n": 2**40})
    (failure,) = server.named("FAIL")
    assert (failure["error"], failure["stack"]) == ("no", ["ValueError: no"])
    assert "unrecoverable" not in failure
