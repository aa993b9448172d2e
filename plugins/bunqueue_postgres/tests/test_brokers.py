"""Several brokers on one namespace: names, fences, leases of others, wake-ups, and what one connection may do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from bunqueue_postgres import beats as beats_module
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.testing import PostgresServer
from pg_waiting import until

from bunqueue_core.model.errors import (
    BackendBusy,
    BrokerClosed,
    BunqueueError,
    CommandError,
    ConfigurationError,
    LeaseLost,
    NotFound,
    StorageUnavailable,
)
from bunqueue_core.model.job import JobSpec
from bunqueue_core.model.requests import Ack, Delivery, Event, Failure, PullRequest, Renewal

OpenBroker = Callable[..., PostgresBroker]


async def push(broker: PostgresBroker, count: int = 1, queue: str = "q", **settings: Any) -> list[str]:
    return (await broker.push(queue, [JobSpec("n", b"\x01", **settings) for _ in range(count)])).ids


async def pull(broker: PostgresBroker, count: int = 1, queue: str = "q", **settings: Any) -> list[Delivery]:
    return await broker.pull(PullRequest(queue, count, "w", **settings))


async def test_a_live_name_cannot_be_taken(start: Any) -> None:
    await start(broker_id="a")
    with pytest.raises(ConfigurationError, match='brokerId "a" is already active'):
        await start(broker_id="a")
    await start(broker_id="b")


async def test_a_name_is_free_after_an_orderly_stop(start: Any) -> None:
    first = await start(broker_id="a")
    await first.close()
    assert (await start(broker_id="a")).health().ready


async def test_a_silent_broker_loses_its_name_and_its_claims(start: Any, postgres: PostgresServer) -> None:
    old = await start(broker_id="a")
    await push(old)
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as admin:
        await admin.execute("UPDATE bunqueue.brokers SET heartbeat_at = 0 WHERE ns = %s", (old.ns,))
        new = await start(broker_id="a")
    with pytest.raises(StorageUnavailable, match="taken over"):
        await pull(old)
    health = old.health()
    assert (health.ready, health.degraded) == (False, True)
    assert len(await pull(new)) == 1


async def test_a_broker_acknowledges_what_another_delivered(start: Any) -> None:
    one, other = await start(), await start()
    (id,) = await push(one)
    (delivery,) = await pull(one)
    assert await other.extend([Renewal(id, delivery.token)]) == [True]
    done = await other.ack([Ack(id, delivery.token, b"\x05")])
    assert (done.outcomes, done.errors) == (["applied"], {})
    assert await one.states([id]) == ["completed"]


async def test_an_expired_owner_cannot_acknowledge(start: Any) -> None:
    one, other = await start(), await start()
    (id,) = await push(one)
    (delivery,) = await pull(one, lock_ttl_ms=200)

    async def recovered() -> bool:
        return bool((await other.states([id])) != ["active"])

    await until(recovered)
    (again,) = await pull(other)
    for broker in (one, other):
        with pytest.raises(LeaseLost, match=f"Invalid or expired lock token for job {id}"):
            await broker.ack([Ack(id, delivery.token)])
        with pytest.raises(LeaseLost):
            await broker.fail([Failure(id, "late", delivery.token)])
    assert (await other.ack([Ack(id, again.token)])).errors == {}


async def test_a_lease_is_over_when_its_time_is(start: Any) -> None:
    broker = await start()
    (id,) = await push(broker)
    (delivery,) = await pull(broker, lock_ttl_ms=1)
    await asyncio.sleep(0.05)
    with pytest.raises(CommandError):  # refused as a whole, or, once it was recovered, for this job
        (await broker.ack([Ack(id, delivery.token)])).raise_first()
    assert await broker.extend([Renewal(id, delivery.token)]) == [False]
    assert await broker.states([id]) != ["completed"]


async def test_a_notification_wakes_another_brokers_pull(start: Any) -> None:
    one = await start(poll_interval_ms=600_000)
    other = await start(poll_interval_ms=600_000)

    async def both_known() -> bool:
        return bool(one.statistics()["liveBrokers"] >= 2)

    await until(both_known)
    waiting = asyncio.ensure_future(pull(other, wait_ms=600_000))
    await asyncio.sleep(0.05)
    (id,) = await push(one)
    async with asyncio.timeout(10):
        (delivery,) = await waiting
    assert delivery.job.id == id


async def test_pause_holds_for_all(start: Any) -> None:
    one, other = await start(), await start()
    await push(one)
    await one.pause("q")
    assert await pull(other) == []
    assert await other.is_paused("q")
    await other.resume("q")
    assert len(await pull(one)) == 1


async def test_an_orderly_stop_hands_back_only_its_own(start: Any) -> None:
    one, other = await start(), await start()
    await push(one, 2)
    (mine,) = await pull(one)
    (theirs,) = await pull(other)
    await one.extend([Renewal(mine.job.id, mine.token)])
    await one.close()
    assert await other.states([mine.job.id, theirs.job.id]) == ["waiting", "active"]
    (again,) = await pull(other)
    assert (again.job.id, again.job.attempts) == (mine.job.id, 0)


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("turns", range(6))
async def test_a_pull_that_came_before_the_stop_is_answered_empty(
    open_broker: OpenBroker, turns: int, registered: bool
) -> None:
    broker = open_broker()
    await broker.start()
    if registered:
        await broker.resume("q")
    pulls = [broker.pull(PullRequest("q", 1, "w", wait_ms=wait_ms)) for wait_ms in (0, 600_000)]
    for _ in range(turns):  # of the loop: the look for the queue, or the claim, may have begun or not
        await asyncio.sleep(0)
    closed = broker.close()
    assert [await pull for pull in pulls] == [[], []]
    await closed
    with pytest.raises(BrokerClosed):
        await broker.pull(PullRequest("q", 1, "w"))


async def test_namespaces_never_meet(start: Any) -> None:
    one, other = await start(), await start(namespace="another-of-this-test")
    await push(one, custom_id="x")
    assert (await other.push("q", [JobSpec("n", None, custom_id="x")])).outcomes == ["created"]
    assert await other.counts("q") == await one.counts("q")
    await one.pause("q")
    assert len(await pull(other)) == 1
    await other.obliterate("q")
    assert await one.states(["x"]) == ["waiting"]


async def test_same_ids_pushed_at_once_are_admitted_once(start: Any) -> None:
    brokers = [await start() for _ in range(3)]
    ids = [f"id-{n}" for n in range(40)]
    pushes = [
        brokers[n % 3].push("q", [JobSpec("n", None, custom_id=id) for id in (ids if n % 2 else reversed(ids))])
        for n in range(12)
    ]
    outcomes = [outcome for pushed in pushes for outcome in (await pushed).outcomes]
    assert outcomes.count("created") == 40
    assert (await brokers[0].counts("q")).waiting == 40


async def test_gathered_calls_fail_apart(start: Any) -> None:
    broker = await start()
    ids = await push(broker, 3)
    one, two, three = await pull(broker, 3)
    good = broker.ack([Ack(one.job.id, one.token)])
    bad = broker.ack([Ack(two.job.id, "wrong"), Ack(three.job.id, three.token)])
    missing = broker.ack([Ack("never", "t")])
    assert (await good).errors == {}
    with pytest.raises(LeaseLost):
        await bad
    assert list((await missing).errors) == [0]
    assert await broker.states(ids) == ["completed", "active", "active"]


async def test_more_statements_than_may_wait_are_busy(start: Any) -> None:
    broker = await start(max_concurrent_operations=1, max_queued_operations=2)
    answers = [broker.logs(f"job-{n}") for n in range(20)]
    outcomes = await asyncio.gather(*(_awaited(answer) for answer in answers), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert 0 < len(refused) < 20
    assert {type(error) for error in refused} == {BackendBusy}
    assert {str(error)[:14] for error in refused} == {"Backend busy: "}
    assert (await broker.counts("q")).waiting == 0


async def quiet(start: Any) -> PostgresBroker:
    """A broker that runs no statement by itself for the time of a test."""
    broker: PostgresBroker = await start(lease_duration_ms=600_000, poll_interval_ms=600_000)

    async def checked() -> bool:
        return broker.checked

    await until(checked)
    return broker


async def test_a_lone_job_costs_one_statement_a_step(start: Any) -> None:
    broker = await quiet(start)
    await push(broker)
    (delivery,) = await pull(broker)
    await broker.ack([Ack(delivery.job.id, delivery.token)])
    before = broker.database.statements
    await push(broker, 500)
    deliveries = await pull(broker, 500)
    await broker.ack([Ack(d.job.id, d.token, b"\x01") for d in deliveries])
    after = broker.database.statements
    assert after - before <= 4  # push, claim, acknowledge, and the statistics' own look


async def test_concurrent_single_calls_share_statements(start: Any) -> None:
    broker = await quiet(start)
    await push(broker)
    before = broker.database.statements
    answers = [broker.push("q", [JobSpec("n", None)]) for _ in range(200)]
    ids = [(await answer).ids[0] for answer in answers]
    assert len(set(ids)) == 200
    assert broker.database.statements - before <= 5


async def test_a_database_that_cannot_be_reached_stops_the_start(open_broker: OpenBroker) -> None:
    broker = open_broker(url="postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(BunqueueError) as caught:
        await broker.start()
    assert "start the database, or correct host and port in storage.url" in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    await broker.close()


async def _awaited(answer: Any) -> Any:
    return await answer


async def test_an_outcome_takes_the_signs_of_life_before_it_along(
    start: Any, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beats_module, "PATIENCE_S", 30.0)  # whatever the acknowledgement takes
    broker = await start()
    await push(broker, 3)
    jobs = await pull(broker, 3, session="s")
    beats = broker.heartbeat([Renewal(job.job.id, job.token) for job in jobs])
    assert (await broker.ack([Ack(job.job.id, job.token) for job in jobs])).errors == {}
    assert await beats == [True, True, True]
    with psycopg.connect(postgres.dsn) as connection:
        ids = [job.job.id for job in jobs]
        cursor = connection.execute("SELECT sum(lease_renewals) FROM bunqueue.jobs WHERE id = ANY (%s)", (ids,))
        assert cursor.fetchone() == (0,)


async def test_signs_of_life_without_an_outcome_are_written(start: Any) -> None:
    broker = await start()
    await push(broker, 3)
    jobs = await pull(broker, 3, session="s")
    beats = broker.heartbeat(
        [Renewal(jobs[0].job.id, jobs[0].token), Renewal(jobs[1].job.id, "another"), Renewal("gone")]
    )
    more = broker.heartbeat([Renewal(jobs[2].job.id, jobs[2].token), Renewal(jobs[1].job.id, "another")])
    await broker.ack([Ack(jobs[0].job.id, jobs[0].token)])
    with pytest.raises(LeaseLost):
        await broker.ack([Ack(jobs[1].job.id, "another")])
    # What is not this broker's delivery, or comes again, is written at once; the rest a moment later.
    assert (await beats)[1:] == [False, False]
    assert await more == [True, False]
    renewed = (await broker.job(jobs[2].job.id)).job
    assert renewed.lease is not None
    assert renewed.lease.renewals == 1


async def test_signs_of_life_are_written_when_a_broker_closes(start: Any) -> None:
    broker = await start()
    await push(broker)
    (job,) = await pull(broker, session="s")
    beat = broker.heartbeat([Renewal(job.job.id, job.token)])
    await broker.close()
    assert await beat == [True]


async def test_events_of_completions_carry_results_of_kept_and_removed_jobs(start: Any) -> None:
    one, two = await start(broker_id="a"), await start(broker_id="b")
    heard: list[tuple[str, Any]] = []
    done = asyncio.Event()

    def listen(event: Event) -> None:
        if event.type == "completed":
            heard.append((event.job_id, event.extra))
            if len(heard) == 3:
                done.set()

    two.subscribe(listen, "q")
    await push(one, 3)
    await push(one, 1, queue="other")
    jobs = await pull(one, 3)
    (other,) = await pull(one, 1, queue="other")
    ids = [job.job.id for job in jobs]
    await one.ack([Ack(other.job.id, other.token, b"\x07")])
    await one.ack(
        [
            Ack(ids[0], jobs[0].token, b"\x01"),
            Ack(ids[1], jobs[1].token, b"\x02", remove=True),
            Ack(ids[2], jobs[2].token),
        ]
    )
    async with asyncio.timeout(15):
        await done.wait()
    extras = dict(heard)
    assert extras[ids[0]]["data"] == b"\x01"
    assert extras[ids[1]]["data"] == b"\x02"
    assert extras[ids[2]] is None


async def test_subscriptions_that_come_together_begin_together(start: Any) -> None:
    broker = await start(poll_interval_ms=60_000)
    heard: list[list[str]] = []

    def subscribe() -> None:
        ids: list[str] = []
        heard.append(ids)
        broker.subscribe(lambda event: ids.append(event.job_id), "q")

    subscribe()
    await push(broker)
    before = broker.database.statements
    for _ in range(100):  # whoever sends a hundred of them keeps nobody waiting a hundred times
        subscribe()
    (id,) = await push(broker)
    assert broker.database.statements < before + 10
    await broker.heard()
    assert [ids[-1:] for ids in heard] == [[id]] * 101
    assert {len(ids) for ids in heard[1:]} == {1}


async def test_an_unknown_job_is_not_found_whatever_looks_for_ends_meanwhile(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    look = broker._ends

    async def look_after_a_round(ids: Sequence[str]) -> Any:
        monkeypatch.undo()
        await broker.look_at_waits()
        return await look(ids)

    monkeypatch.setattr(broker, "_ends", look_after_a_round)
    with pytest.raises(NotFound):
        await broker.wait("never-existed", 60_000)


async def test_a_refusal_spoils_no_later_statement(start: Any) -> None:
    broker = await start(pool_size=2)
    for round in range(6):
        await push(broker)
        with pytest.raises(CommandError, match="Dependency job not found"):
            await push(broker, depends_on=("never",))  # its transaction is rolled back
        (delivery,) = await pull(broker)
        assert (await broker.ack([Ack(delivery.job.id, delivery.token)])).errors == {}
        assert (await broker.counts("q")).completed == round + 1
