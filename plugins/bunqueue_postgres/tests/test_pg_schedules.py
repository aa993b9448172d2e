"""Schedulers of brokers that were away: who settles what was missed, and how."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.records import pack, unpack
from pg_waiting import until

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.storage.changes import CRON_TABLE

HOUR = 3_600_000


async def miss(broker: PostgresBroker, name: str, **changes: Any) -> None:
    """Let a scheduler's next run lie ten minutes back, as if no broker had been there since."""
    column = CRON_TABLE.column_names.index
    with psycopg.connect(broker.settings.url.get_secret_value(), autocommit=True) as admin:
        row = admin.execute(
            "SELECT definition, next_run FROM bunqueue.schedules WHERE ns = %s AND name = %s", (broker.ns, name)
        ).fetchone()
        assert row is not None
        definition = unpack(row[0])
        missed = row[1] - HOUR - 600_000
        for field, value in {"next_run": missed, **changes}.items():
            definition[column(field)] = value
        admin.execute(
            "UPDATE bunqueue.schedules SET definition = %s, next_run = %s WHERE ns = %s AND name = %s",
            (pack(definition), missed, broker.ns, name),
        )


async def scheduled(open_broker: Any, **fields: Any) -> PostgresBroker:
    """A closed broker that has left a scheduler ``s`` with a missed run."""
    broker: PostgresBroker = open_broker()
    await broker.start()
    await broker.upsert_schedule({"name": "s", "queue": "q", "repeatEvery": HOUR, **fields})
    await broker.close()
    await miss(broker, "s")
    return broker


async def test_a_missed_run_is_made_up_for_once(open_broker: Any) -> None:
    await scheduled(open_broker, skipMissedOnRestart=False)
    brokers = [open_broker() for _ in range(3)]
    for broker in brokers:
        await broker.start()

    async def made() -> bool:
        return bool((await brokers[0].counts("q")).waiting)

    await until(made)
    entry = await brokers[1].schedule("s")
    assert entry.executions == 1
    for broker in brokers:
        await broker.close()


async def test_a_missed_run_is_skipped_where_the_definition_says_so(open_broker: Any) -> None:
    await scheduled(open_broker)  # as definitions do that say nothing
    broker = open_broker()
    await broker.start()
    entry = await broker.schedule("s")
    rows = await broker.run(broker.queries.clock, ())
    assert rows[0][0] < entry.next_run <= rows[0][0] + HOUR
    assert (await broker.counts("q")).waiting == 0
    await broker.close()


async def test_a_broker_that_joins_others_skips_nothing(open_broker: Any) -> None:
    first = open_broker()
    await first.start()
    await first.upsert_schedule({"name": "s", "queue": "q", "repeatEvery": HOUR})
    second = open_broker()
    await second.start()
    await miss(first, "s")
    await second.reconcile_schedules()
    rows = await first.run(first.queries.next_schedule, (first.ns,))
    made = (await first.counts("q")).waiting
    assert made == 1 or rows[0][0] <= 0  # still due, or run by the first broker meanwhile
    for broker in (first, second):
        await broker.close()


async def test_a_stored_scheduler_that_cannot_be_used_stops_the_start(open_broker: Any) -> None:
    broker = await scheduled(open_broker)
    await miss(broker, "s", schedule="99 99 * * *", repeat_every=None)
    other = open_broker()
    with pytest.raises(ConfigurationError, match='"s" uses unsupported schedule'):
        await other.start()
    await other.close()
    with psycopg.connect(broker.settings.url.get_secret_value()) as look:
        rows = look.execute("SELECT count(*) FROM bunqueue.brokers WHERE ns = %s", (broker.ns,)).fetchall()
    assert rows == [(0,)]
