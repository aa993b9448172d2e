"""A transaction that is left open keeps every dead row from vacuum. Claims go on from their low-water mark, and cost what they did.

The suite compares work: the blocks of index and table that a claim touches, on a clock of the database's that only the test moves,
so that 1,000 jobs a second are that on any machine. The campaign runs on the real clock and prints how long claims took::

    BUNQUEUE_TEST_SECONDS=600 python -m pytest plugins/bunqueue_postgres/tests/test_held_snapshot.py -m campaign -s
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.marks import Mark
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.sqlfiles import load_queries
from bunqueue_postgres.testing import PostgresServer
from postgres_contexts import open_context

from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import Ack, PullRequest

#: Jobs a second, and of one add, one claim and one acknowledgement.
RATE: Final = 1_000
BATCH: Final = 50

#: Times the usual cost of a claim that it may cost while a transaction is held open.
MOST: Final = 3

#: Seconds of the database's clock without and with the open transaction, and between two looks at the cost.
NORMAL_S, HELD_S, LOOK_S = 10, 60, 5


@pytest.fixture
def dsn(postgres: PostgresServer) -> Iterator[str]:
    """A database of its own: what is held open in it concerns no other."""
    name = f"held_{uuid.uuid4().hex}"
    with closing(psycopg.connect(postgres.dsn, autocommit=True)) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        yield postgres.dsn.rsplit("/", 1)[0] + f"/{name}"
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def held_open(dsn: str) -> Iterator[None]:
    """A transaction that may still see every row there is."""
    with closing(psycopg.connect(dsn)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM bunqueue.queues")
        yield


class Claims:
    """What the broker's next claim of :data:`BATCH` jobs would cost. Nothing stays of it."""

    def __init__(self, dsn: str, broker: PostgresBroker) -> None:
        self._broker = broker
        self.connection = psycopg.connect(dsn)
        self.close = self.connection.close
        run = self.connection.execute
        run("SET plan_cache_mode = force_generic_plan")
        for refused in ("seqscan", "hashjoin", "mergejoin"):
            run(f"SET enable_{refused} = off")
        run(b"PREPARE claim AS " + load_queries().claim)
        self.connection.commit()

    def blocks(self, marks: Sequence[Mark]) -> int:
        """Blocks that a claim touches which begins at ``marks``."""
        broker = self._broker
        row = self.connection.execute(
            "SELECT id FROM bunqueue.queues WHERE ns = %s AND name = 'q'", (broker.ns,)
        ).fetchone()
        assert row is not None
        priorities = [mark.priority for mark in marks]
        places = [mark.run_at for mark in marks]
        row = self.connection.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE claim({broker.ns}, {row[0]}, '{broker.broker_id}', "
            f"'{broker.coordinator.session}', ARRAY{priorities}::int4[], ARRAY{places}::int8[], "
            f"ARRAY{[mark.key for mark in marks]}::text[], {BATCH}, ARRAY{[f't{n}' for n in range(BATCH)]}, "
            f"array_fill('w'::text, ARRAY[{BATCH}]), array_fill(600000::int8, ARRAY[{BATCH}]), false)"
        ).fetchone()
        self.connection.rollback()
        assert row is not None
        plan: dict[str, Any] = row[0][0]["Plan"]
        assert plan["Actual Rows"] == BATCH
        return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def started(dsn: str) -> PostgresBroker:
    broker = PostgresBroker(PostgresStorage.model_validate({"url": dsn}), open_context())
    await broker.start()
    return broker


async def add(broker: PostgresBroker) -> None:
    await broker.push("q", [JobSpec("n", b"\x01") for _ in range(BATCH)])


async def work(broker: PostgresBroker) -> float:
    """Claim and complete a batch; gives the seconds that the claim took."""
    began = time.perf_counter()
    deliveries = await broker.pull(PullRequest("q", BATCH, "w"))
    took = time.perf_counter() - began
    assert len(deliveries) == BATCH
    await broker.ack([Ack(delivery.job.id, delivery.token) for delivery in deliveries])
    return took


# -- in the suite: by work, on a clock that the test moves --------------------------------------------------------------------


class Paced:
    """A broker that gets and completes :data:`RATE` jobs a second of the database's clock."""

    def __init__(self, broker: PostgresBroker, claims: Claims, admin: psycopg.Connection[Any]) -> None:
        self._broker, self._claims, self._admin = broker, claims, admin
        admin.execute(f"CREATE SEQUENCE public.test_clock START {int(time.time() * 1000)}")
        admin.execute(
            "CREATE OR REPLACE FUNCTION bunqueue.now_ms() RETURNS int8 LANGUAGE sql VOLATILE PARALLEL SAFE "
            "AS $$ SELECT last_value FROM public.test_clock $$"
        )

    async def run(self, seconds: int) -> list[int]:
        """Work for so long; gives the cost of a claim every :data:`LOOK_S`."""
        costs: list[int] = []
        for step in range(1, seconds * RATE // BATCH + 1):
            self._admin.execute(
                "SELECT setval('public.test_clock', (SELECT last_value FROM public.test_clock) + %s)",
                (1_000 * BATCH // RATE,),
            )
            await add(self._broker)
            if step % (LOOK_S * RATE // BATCH) == 0:
                costs.append(self._claims.blocks(self._broker.marks.take("q")))
            await work(self._broker)
        return costs

    async def from_the_head(self) -> int:
        """Cost of a claim that begins at the head of the queue."""
        await add(self._broker)
        blocks = self._claims.blocks(())
        await work(self._broker)
        return blocks


@pytest.mark.timeout(300)
async def test_claims_cost_no_more_for_a_minute_in_which_no_dead_row_can_go(dsn: str) -> None:
    broker = await started(dsn)
    try:
        with (
            closing(Claims(dsn, broker)) as claims,
            closing(psycopg.connect(dsn, autocommit=True)) as admin,
        ):
            paced = Paced(broker, claims, admin)
            normal = statistics.median(await paced.run(NORMAL_S))
            with held_open(dsn):
                held = await paced.run(HELD_S)
                head = await paced.from_the_head()
        print(f"normal {normal}, held {held}, from the head {head}")
        assert max(held) <= MOST * normal
        # It is not that there was nothing to step over.
        assert head > 2 * max(held)
    finally:
        await broker.close()


# -- the campaign: on the real clock, for long --------------------------------------------------------------------------------


class Side:
    """A broker on a database of its own, and how long its claims took, seconds."""

    def __init__(self, dsn: str, broker: PostgresBroker) -> None:
        self._broker = broker
        self._claims = Claims(dsn, broker)
        self.close = self._claims.close
        self.took: list[float] = []
        self.blocks = 0  #: that a claim touched when it was last looked

    async def step(self) -> None:
        await add(self._broker)
        self.took.append(await work(self._broker))

    async def look(self) -> None:
        await add(self._broker)
        self.blocks = self._claims.blocks(self._broker.marks.take("q"))
        await work(self._broker)

    def report(self, last: int) -> str:
        """The ``last`` claims in words."""
        took = self.took[-last:]
        return (
            f"a claim took {1_000 * statistics.median(took):.2f} ms in the median, {p99_ms(took):.2f} ms at the 99th "
            f"percentile, and touched {self.blocks:,} blocks"
        )


def p99_ms(took: Sequence[float]) -> float:
    return 1_000 * statistics.quantiles(took, n=100)[-1]


async def run(sides: Sequence[Side], seconds: float) -> None:
    """Have each side work at :data:`RATE` for ``seconds``, taking turns, so that both meet the same machine."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    steps = 0
    while (due := began + steps * BATCH / RATE) < began + seconds:
        await asyncio.sleep(max(0.0, due - loop.time()))
        for side in sides if steps % 2 else reversed(sides):
            await side.step()
        steps += 1
    for side in sides:
        await side.look()


@pytest.mark.campaign
@pytest.mark.timeout(0)
async def test_claims_take_no_longer_while_a_transaction_is_held_open_for_long(
    dsn: str, open_broker: Callable[..., PostgresBroker]
) -> None:
    """Ten minutes at 1,000 jobs a second, beside as much in a database without such a transaction.

    The times are printed; what is held to is the work.
    """
    seconds = float(os.environ.get("BUNQUEUE_TEST_SECONDS", "600"))
    part = max(5.0, seconds / 10)
    brokers = [await started(dsn), open_broker()]
    await brokers[1].start()
    try:
        with (
            closing(Side(dsn, brokers[0])) as side,
            closing(Side(brokers[1].settings.url.get_secret_value(), brokers[1])) as other,
        ):
            await run([side, other], part / 2)
            side.took.clear()
            other.took.clear()
            most = 0.0
            with held_open(dsn):
                for n in range(max(1, round(seconds / part))):
                    before = len(side.took)
                    await run([side, other], part)
                    last = len(side.took) - before
                    print(
                        f"held for {(n + 1) * part:.0f} s: {side.report(last)}; without: {other.report(last)}",
                        flush=True,
                    )
                    most = max(most, side.blocks / other.blocks)
        ratio = p99_ms(side.took) / p99_ms(other.took)
        print(
            f"{BATCH * len(side.took):,} jobs: the 99th percentile of a claim was {ratio:.2f} x that without, the work {most:.2f} x"
        )
        assert most <= MOST
    finally:
        for broker in brokers:
            await broker.close()
