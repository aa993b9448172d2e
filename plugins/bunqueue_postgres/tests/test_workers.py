"""The registry of workers that brokers share."""

from __future__ import annotations

import asyncio
import json
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.testing import PostgresServer
from fixtures.server import running_server

from bunqueue_core.broker.workers import WorkerRecord
from bunqueue_core.model.errors import StorageUnavailable

if TYPE_CHECKING:
    from conftest import OpenBroker


@pytest.fixture
async def pair(open_broker: OpenBroker) -> AsyncIterator[tuple[PostgresBroker, PostgresBroker]]:
    """Two brokers of one namespace."""
    one, other = open_broker(broker_id="one"), open_broker(broker_id="other")
    await one.start()
    await other.start()
    yield one, other
    await one.close()
    await other.close()


def worker(id: str, **fields: Any) -> WorkerRecord:
    known: dict[str, Any] = {
        "name": "w",
        "queues": ["q", "nul\x00"],
        "concurrency": 2,
        "hostname": "h",
        "pid": 7,
        "registered_at": 1,
    }
    return WorkerRecord(id=id, **{**known, "last_seen": 2, **fields})


async def ids(broker: PostgresBroker) -> list[str]:
    return [each.id for each in await broker.foreign_workers()]


async def until(condition: Callable[[], Any], patience_s: float = 20.0) -> None:
    async with asyncio.timeout(patience_s):
        while not await condition():  # noqa: ASYNC110 - the database's doing
            await asyncio.sleep(0.02)


async def test_others_see_what_a_broker_shares(pair: tuple[PostgresBroker, PostgresBroker]) -> None:
    one, other = pair
    shared = worker("a\x00b", processed_jobs=3, current_job="j", session="connection")
    await one.share_workers([shared, worker("c")])
    assert await ids(one) == []
    seen = await other.foreign_workers()
    assert [each.id for each in seen] == ["a\x00b", "c"]
    assert (seen[0].queues, seen[0].processed_jobs, seen[0].current_job, seen[0].session) == (
        ["q", "nul\x00"],
        3,
        "j",
        None,
    )
    assert abs(seen[0].last_seen - other.ports.now()) < 60_000
    await one.share_workers([worker("c", failed_jobs=1)], ["a\x00b"])
    (left,) = await other.foreign_workers()
    assert (left.id, left.failed_jobs) == ("c", 1)


async def test_only_its_broker_removes_a_worker(pair: tuple[PostgresBroker, PostgresBroker]) -> None:
    one, other = pair
    await one.share_workers([worker("a")])
    await other.share_workers([], ["a"])
    assert await ids(other) == ["a"]
    # It came to the other broker: the first has no say any more.
    await other.share_workers([worker("a")])
    await one.share_workers([], ["a"])
    assert await ids(one) == ["a"]


async def test_workers_go_with_their_broker(pair: tuple[PostgresBroker, PostgresBroker]) -> None:
    one, other = pair
    await one.share_workers([worker("a")])
    await one.close()
    assert await ids(other) == []


async def test_silent_workers_are_forgotten(
    pair: tuple[PostgresBroker, PostgresBroker], postgres: PostgresServer
) -> None:
    one, other = pair
    await one.share_workers([worker("old"), worker("new")])
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute("UPDATE bunqueue.workers SET seen_at = seen_at - 90001 WHERE id = 'old' AND ns = %s", (one.ns,))
        assert await ids(other) == ["new"]
        await other.forget_silent_workers()
        rows = admin.execute("SELECT id FROM bunqueue.workers WHERE ns = %s", (one.ns,)).fetchall()
    assert rows == [("new",)]


async def test_a_broker_that_was_taken_over_registers_nobody(
    pair: tuple[PostgresBroker, PostgresBroker], postgres: PostgresServer
) -> None:
    one, other = pair
    await one.share_workers([worker("a")])
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(
            "UPDATE bunqueue.brokers SET session = gen_random_uuid() WHERE ns = %s AND broker_id = 'one'", (one.ns,)
        )
        with pytest.raises(StorageUnavailable, match="taken over"):
            await one.share_workers([worker("b")])
        assert not one.health().ready
        # Its successor is gone: it begins anew, and its workers are its own again.
        admin.execute("DELETE FROM bunqueue.brokers WHERE ns = %s AND broker_id = 'one'", (one.ns,))

    async def works() -> bool:
        return one.health().ready

    await until(works)
    await one.share_workers([], ["a"])
    assert await ids(other) == []


async def test_a_schedule_counts_the_workers_of_all_brokers(pair: tuple[PostgresBroker, PostgresBroker]) -> None:
    one, other = pair
    await other.share_workers([worker("a", queues=["staffed"])])
    for queue in ("staffed", "idle"):
        await one.upsert_schedule({"name": queue, "queue": queue, "repeatEvery": 50, "skipIfNoWorker": True})

    async def ran() -> bool:
        return bool((await one.counts("staffed")).waiting)

    await until(ran)
    assert (await one.counts("idle")).waiting == 0


def _json(port: int, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=data, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


def test_servers_list_the_workers_of_all(postgres: PostgresServer) -> None:
    environment = {"BUNQUEUE_POSTGRES_URL": postgres.dsn, "BUNQUEUE_POSTGRES_NAMESPACE": str(uuid.uuid4())}
    with (
        running_server(environment=environment | {"BUNQUEUE_BROKER_ID": "a"}) as a,
        running_server(environment=environment | {"BUNQUEUE_BROKER_ID": "b"}) as b,
    ):
        _json(a.http_port, "/workers", {"name": "one", "queues": ["q"], "workerId": "wa", "concurrency": 3})
        _json(b.http_port, "/workers", {"name": "two", "queues": ["q"], "workerId": "wb"})
        for server in (a, b):
            listed = _json(server.http_port, "/workers")["data"]
            assert {each["id"]: each["status"] for each in listed["workers"]} == {"wa": "active", "wb": "active"}
            assert listed["stats"]["concurrencySlots"] == 4
            assert len(_json(server.http_port, "/queues/q/workers")["workers"]) == 2
            assert _json(server.http_port, "/dashboard")["workers"]["total"] == 2
        assert _json(b.http_port, "/workers/wa/heartbeat", {})["error"] == "Worker not found"
        assert a.stop() == 0
        assert [each["id"] for each in _json(b.http_port, "/workers")["data"]["workers"]] == ["wb"]
