"""Figures of the database in statistics, health and metrics."""

from __future__ import annotations

import asyncio
import json
import urllib.request
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.testing import PostgresServer
from fixtures.server import running_server

from bunqueue_core.model.job import JobOptions, JobSpec
from bunqueue_core.model.requests import Ack, Failure, PullRequest
from bunqueue_core.model.webhook import Webhook

if TYPE_CHECKING:
    from conftest import OpenBroker


async def until(condition: Callable[[], bool], patience_s: float = 20.0) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 - the database's doing
            await asyncio.sleep(0.02)


async def test_what_keeps_dead_rows(open_broker: OpenBroker, postgres: PostgresServer) -> None:
    broker = open_broker(pool_size=3)
    await broker.start()
    try:

        def figure(name: str) -> float:
            return broker.statistics()[name]

        with psycopg.connect(postgres.dsn) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            # Its own age: what others, such as autovacuum, hold for a moment is no lower bound.
            row = reader.execute(
                "SELECT age(backend_xmin) FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            ).fetchone()
            assert row is not None
            before = row[0]
            for _ in range(20):
                await broker.push("q", [JobSpec("n", None)])
            await until(lambda: figure("databaseOldestSnapshotTransactions") >= before + 20)
            assert figure("databaseOldestTransactionSeconds") > 0
        await until(lambda: figure("databaseOldestSnapshotTransactions") < 20)
        assert figure("databaseAgeTransactions") > 0
        assert 1 <= figure("databaseConnections") <= 3
        assert figure("databaseConnectionsWaitedFor") == 0
    finally:
        await broker.close()


async def test_dead_rows_and_vacuum(open_broker: OpenBroker, postgres: PostgresServer) -> None:
    broker = open_broker()
    await broker.start()
    try:
        await broker.push("q", [JobSpec("n", None) for _ in range(100)])
        await broker.drain_queue("q")
        with psycopg.connect(postgres.dsn, autocommit=True) as admin:
            await until(lambda: broker.statistics()["databaseDeadJobRows"] >= 100)
            await until(lambda: broker.statistics()["databaseEventRows"] > 0)
            admin.execute("VACUUM bunqueue.jobs")
            await until(lambda: broker.statistics()["databaseJobsVacuumedAtSeconds"] > 0)
    finally:
        await broker.close()


async def test_schedulers_and_webhooks_are_counted(open_broker: OpenBroker) -> None:
    broker = open_broker()
    await broker.start()
    try:
        await broker.upsert_schedule({"name": "s", "queue": "q", "repeatEvery": 3_600_000})
        await broker.add_webhook(
            Webhook(
                id="w", url="https://example.com/", events=("job.completed",), queue=None, secret=None, created_at=1
            )
        )
        await until(lambda: broker.statistics()["schedules"] == 1)
        numbers = broker.statistics()
        assert (numbers["webhooks"], numbers["webhooksEnabled"]) == (1, 1)
    finally:
        await broker.close()


async def test_outcomes_are_the_same_at_every_broker(open_broker: OpenBroker) -> None:
    one, other = open_broker(broker_id="one"), open_broker(broker_id="other")
    await one.start()
    await other.start()

    def outcomes(broker: PostgresBroker) -> tuple[float, float]:
        numbers = broker.statistics()
        return numbers["totalCompleted"], numbers["totalFailed"]

    try:
        await one.push("q", [JobSpec("n", None, options=JobOptions(max_attempts=1)) for _ in range(5)])
        for broker in (one, one, other):
            (delivery,) = await broker.pull(PullRequest("q", 1, "w"))
            await broker.ack([Ack(delivery.job.id, delivery.token, None)])
        for broker in (one, other):
            (delivery,) = await broker.pull(PullRequest("q", 1, "w"))
            await broker.fail([Failure(delivery.job.id, "boom", delivery.token)])
        assert outcomes(one)[0] >= 2
        await until(lambda: outcomes(one) == outcomes(other) == (3, 2))
        await other.close()
        third = open_broker(broker_id="third")
        await third.start()
        await until(lambda: outcomes(third) == (3, 2))
        await third.close()
    finally:
        await one.close()
        await other.close()


def _get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
        body: bytes = reply.read()
    return body


def test_health_and_metrics_show_them(postgres: PostgresServer) -> None:
    environment = {"BUNQUEUE_POSTGRES_URL": postgres.dsn, "BUNQUEUE_POSTGRES_NAMESPACE": str(uuid.uuid4())}
    with running_server(environment=environment) as server:
        database: dict[str, Any] = json.loads(_get(server.http_port, "/health"))["database"]
        assert {"oldestTransactionSeconds", "oldestSnapshotTransactions", "deadJobRows", "connections"} <= set(database)
        metrics = _get(server.http_port, "/prometheus").decode()
        for name in ("oldest_snapshot_transactions", "job_dead_rows", "jobs_vacuumed_timestamp_seconds", "event_rows"):
            assert f"\nbunqueue_database_{name} " in metrics
        assert str(postgres.port) not in metrics
