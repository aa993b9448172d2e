"""Promises about names, sessions, long durations and races that no other file holds to."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.testing import PostgresServer

from bunqueue_core.model.errors import ConfigurationError, Conflict, NotFound
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import Ack, Delivery, PullRequest

LONGEST = 2**53 - 1


async def push(broker: PostgresBroker, queue: str = "q", **settings: Any) -> str:
    return (await broker.push(queue, [JobSpec("n", None, **settings)])).ids[0]


async def pull(broker: PostgresBroker, **settings: Any) -> list[Delivery]:
    return await broker.pull(PullRequest("q", 1, "w", **settings))


def silent_for(broker: PostgresBroker, ms: int) -> None:
    """Let the broker's last heartbeat lie that far back."""
    with psycopg.connect(broker.settings.url.get_secret_value(), autocommit=True) as admin:
        admin.execute(
            "UPDATE bunqueue.brokers SET heartbeat_at = bunqueue.now_ms() - %s WHERE ns = %s AND broker_id = %s",
            (ms, broker.ns, broker.broker_id),
        )


# -- names and sessions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [600_000, 300_001])
async def test_a_name_is_taken_over_when_its_window_is_over(start: Any, lease: int) -> None:
    old = await start(broker_id="a", lease_duration_ms=lease)
    silent_for(old, lease - 100_000)  # long enough for the slowest start
    with pytest.raises(ConfigurationError, match='brokerId "a" is already active'):
        await start(broker_id="a", lease_duration_ms=lease)
    silent_for(old, lease)
    assert (await start(broker_id="a", lease_duration_ms=lease)).health().ready


async def test_another_name_starts_at_once(start: Any) -> None:
    old = await start(broker_id="a", lease_duration_ms=600_000)
    silent_for(old, 500_000)
    assert (await start(broker_id="b", lease_duration_ms=600_000)).health().ready


async def test_a_stale_process_releases_nothing_of_its_successor(start: Any) -> None:
    old = await start(broker_id="a", lease_duration_ms=600_000)
    silent_for(old, 600_000)
    new = await start(broker_id="a", lease_duration_ms=600_000)
    id = await push(new)
    (delivery,) = await pull(new)
    await old.close()
    assert await new.states([id]) == ["active"]
    with pytest.raises(ConfigurationError):  # its name is still the successor's
        await start(broker_id="a", lease_duration_ms=600_000)
    assert (await new.ack([Ack(id, delivery.token)])).errors == {}


# -- durations ------------------------------------------------------------------------------------------------------------


async def test_the_longest_durations_are_honoured(start: Any) -> None:
    broker = await start(lease_duration_ms=LONGEST, poll_interval_ms=LONGEST)
    waiting = asyncio.ensure_future(pull(broker, wait_ms=LONGEST, lock_ttl_ms=LONGEST))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    id = await push(broker)
    async with asyncio.timeout(10):
        (delivery,) = await waiting
    assert delivery.job.id == id
    assert delivery.job.lease is not None
    assert delivery.job.lease.ttl_ms == LONGEST
    await push(broker, delay=LONGEST)
    assert (await broker.counts("q")).delayed == 1
    before = broker.statistics()["databaseStatements"]
    await asyncio.sleep(0.3)
    # Nothing turns over in a loop because a timer could not count that far.
    assert broker.statistics()["databaseStatements"] - before <= 20


async def test_every_connection_has_the_settings_of_its_session(start: Any, postgres: PostgresServer) -> None:
    broker = await start(
        broker_id="x" * 80, statement_timeout_ms=12_345, lock_timeout_ms=2_345, idle_transaction_timeout_ms=34_567
    )
    rows = await asyncio.gather(
        *(
            broker.run(
                b"SELECT pg_backend_pid(), current_setting('statement_timeout'), current_setting('lock_timeout'), "
                b"current_setting('idle_in_transaction_session_timeout'), current_setting('transaction_isolation'), pg_sleep(0.05)",
                (),
            )
            for _ in range(8)
        )
    )
    assert {row[0][1:5] for row in rows} == {("12345ms", "2345ms", "34567ms", "read committed")}
    with psycopg.connect(postgres.dsn) as look:
        found = look.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (f"bunqueue:{'x' * 80}"[:63],)
        ).fetchone()
    assert found is not None
    assert 2 <= found[0] <= broker.settings.pool_size + 1  # one more listens


# -- races ----------------------------------------------------------------------------------------------------------------


async def test_a_job_may_depend_on_what_another_broker_has_just_admitted(start: Any) -> None:
    one, other = await start(), await start()
    for _ in range(20):
        needed = await push(one)
        await push(other, "p", depends_on=(needed,))
    assert (await one.counts("p")).waiting_children == 20


@pytest.mark.parametrize("way", ["cancel", "drain", "clean", "obliterate"])
async def test_no_job_is_stranded_by_a_removal_at_the_same_time(start: Any, way: str) -> None:
    one, other = await start(), await start()

    async def remove(id: str) -> None:
        with contextlib.suppress(NotFound, Conflict):  # somebody needs it
            if way == "cancel":
                await one.cancel(id)
            elif way == "drain":
                await one.drain_queue("q")
            elif way == "clean":
                await one.clean("q", 0, "waiting", 10)
            else:
                await one.obliterate("q")

    async def depend(id: str) -> str | None:
        try:
            return await push(other, "p", depends_on=(id,))
        except NotFound:
            return None  # it had gone

    for _ in range(25):
        id = await push(one)
        _, waiter = await asyncio.gather(remove(id), depend(id))
        (state,) = await one.states([id])
        # Either it is there and somebody waits for it, or it is gone and nobody does.
        assert (state == "unknown") == (waiter is None)
        if waiter is not None:
            view = await one.job(waiter)
            assert view is not None
            assert view.blocked_by == ()
            await one.cancel(waiter)
            await one.cancel(id)
