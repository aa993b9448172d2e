"""What this project does otherwise than bunqueue 2.9.5, on purpose: a test for each decision, failing on what that does.

Every test names in its first line what it was like. The hostile-input table is the conformance kit's (``hostile``).
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from fixtures.local import Bench, job, pack, unpack

from bunqueue_core.config import resolve
from bunqueue_core.config.settings import LimitSettings
from bunqueue_core.model.errors import BrokerClosed, StorageUnavailable, ValidationError
from bunqueue_core.model.job import REMOVE, JobOptions, Retention
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.payload import decode
from bunqueue_core.model.requests import Ack, GroupDefaults, PullRequest, Renewal
from bunqueue_core.model.rules import BACKOFF_STRATEGIES, backoff_delay
from bunqueue_core.plugins import PluginManager
from bunqueue_core.storage.changes import RATE_TABLE
from bunqueue_core.testing import DictJournal
from bunqueue_core.testing.invariants import check_broker

MINUTE = 60_000


@pytest.fixture
def bench() -> Bench:
    return Bench(DictJournal())


# -- connections that end -----------------------------------------------------------------------------------------------


def lose(bench: Bench, session: str = "s") -> None:
    """The connection of whoever holds jobs ends."""
    bench.done(bench.broker.release(session))


def test_a_lost_delivery_wakes_a_waiting_pull_and_costs_no_attempt(bench: Bench) -> None:
    """It was requeued without waking anybody."""
    id = bench.add()
    bench.take(session="s")
    waiting = bench.park()
    lose(bench)
    bench.run()
    assert [delivery.job.id for delivery in waiting.value] == [id]
    assert waiting.value[0].job.attempts == 0


def test_a_lost_delivery_is_on_disk(bench: Bench) -> None:
    """It was requeued in memory only: a crash then charged an attempt."""
    id = bench.add(max_attempts=1)
    bench.take(session="s")
    lose(bench)
    bench.crash()
    assert bench.state(id) == "waiting"
    assert bench.view(id).job.attempts == 0


def test_a_job_that_kills_its_workers_ends(bench: Bench) -> None:
    """It came back at once, for ever."""
    poison = bench.add(max_attempts=50)
    bench.clock.advance(1)
    peer = bench.add()
    bench.take(session="s", count=1)
    lose(bench)
    assert bench.state(poison) == "waiting"  # the first time as after a deploy: at once, in its place
    assert bench.take(session="s").job.id == poison
    lose(bench)
    assert bench.state(poison) == "delayed"  # from then on with back-off, behind its peers
    assert bench.take(session="t").job.id == peer
    bench.crash()  # losses are not forgotten
    bench.run(5 * MINUTE)
    for delivery in bench.pull(count=5, session="s"):
        if delivery.job.id != poison:
            bench.complete(delivery)
    lose(bench)
    (letter,) = bench.done(bench.broker.dead_letters("q", None, None))
    assert (letter.job.id, letter.reason) == (poison, "stalled")
    assert letter.error == "Job lost with its connection 3 times; last worker: w"
    assert letter.job.attempts <= 1


def test_a_failure_in_between_is_no_loss(bench: Bench) -> None:
    """Losses and failures were not told apart."""
    id = bench.add(max_attempts=50, backoff_ms=0)
    for _ in range(4):
        bench.take(session="s")
        lose(bench)
        bench.run(MINUTE)
        bench.fail(bench.take())
    assert bench.state(id) == "waiting"


# -- stops and starts ---------------------------------------------------------------------------------------------------


def test_an_orderly_stop_charges_nothing(bench: Bench) -> None:
    """Every job that was active when the server was stopped lost an attempt."""
    id = bench.add(max_attempts=1)
    bench.take()
    bench.restart()
    assert bench.state(id) == "waiting"
    assert (bench.view(id).job.attempts, bench.view(id).job.stall_count) == (0, 0)


def test_a_crash_charges_an_attempt_and_a_stall(bench: Bench) -> None:
    """As it was."""
    id = bench.add()
    bench.take()
    bench.crash()
    assert (bench.view(id).job.attempts, bench.view(id).job.stall_count) == (1, 1)


def test_a_stop_takes_outcomes_until_its_end(bench: Bench) -> None:
    """Connections were closed first, so that work could not be acknowledged any more."""
    bench.add()
    delivery = bench.take()
    bench.add()
    bench.broker.drain()
    assert bench.pull() == []
    refused = bench.broker.push("q", [job()])
    assert isinstance(refused.error, BrokerClosed)
    assert str(refused.error) == "Server is shutting down; no new jobs are accepted"
    bench.complete(delivery, "done")
    assert bench.state(delivery.job.id) == "completed"


# -- waiting for a job --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["fail", "remove", "cancel", "discard", "drain", "obliterate", "expire"])
def test_whoever_waits_for_a_job_is_told_at_once_that_it_will_not_complete(bench: Bench, end: str) -> None:
    """WaitJob noticed nothing but a completion: it ran into its time-out."""
    id = bench.add(max_attempts=1, ttl_ms=1_000)
    waiting = bench.broker.wait(id, 600_000)
    assert not waiting.ready
    broker = bench.broker
    if end in ("fail", "remove"):
        bench.fail(bench.take(), remove=end == "remove")
    elif end == "expire":
        bench.clock.advance(2_000)
        bench.pull()
    else:
        ways: dict[str, Any] = {
            "cancel": lambda: broker.cancel(id),
            "discard": lambda: broker.discard(id),
            "drain": lambda: broker.drain_queue("q"),
            "obliterate": lambda: broker.obliterate("q"),
        }
        bench.done(ways[end]())
    bench.run()
    assert waiting.value == (False, None)
    again = broker.wait(id, 600_000)
    assert again.ready


# -- families -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["fail", "timeout", "stall", "lease", "loss", "crash"])
def test_a_policy_holds_whatever_ended_the_child(bench: Bench, end: str) -> None:
    """Only failures that a worker reported reached the parent."""
    parent = bench.add({})
    spec = job(
        {"__parentId": parent, "__parentQueue": "q"},
        parent_id=parent,
        parent_queue="q",
        max_attempts=1,
        timeout_ms=5_000 if end == "timeout" else None,
        stall_timeout_ms=1_000,
        fail_parent_on_failure=True,
    )
    bench.push(spec, queue="c")
    lease = 1_000 if end == "lease" else 3_600_000
    delivery = bench.take("c", lock_ttl_ms=lease, session="s")
    if end == "fail":
        bench.fail(delivery)
    elif end == "loss":
        from bunqueue_core.model.requests import StallConfig

        bench.done(bench.broker.set_stall_config("c", StallConfig(max_stalls=1)))
        lose(bench)
    elif end == "crash":
        bench.crash()
    else:
        bench.run(MINUTE)
    assert bench.state(delivery.job.id) == "failed"
    assert bench.state(parent) == "failed"


def test_a_parent_that_cannot_start_says_so(bench: Bench) -> None:
    """It waited in silence, and after an hour it was deleted."""
    child = bench.add(max_attempts=1)
    parent = bench.add(queue="p", depends_on=(child,))
    bench.fail(bench.take())
    assert bench.view(parent).blocked_by == (child,)
    assert [view.blocked_by for view in bench.done(bench.broker.jobs("p", (), _everything()))] == [(child,)]
    assert bench.told("blocked") == [parent]
    assert bench.broker.statistics()["blockedJobs"] == 1
    bench.run(25 * 60 * MINUTE)
    assert bench.state(parent) == "waiting-children"
    bench.done(bench.broker.retry_dead_letters("q", child))
    bench.complete(bench.take())
    assert bench.state(parent) == "waiting"


def _everything() -> Any:
    from bunqueue_core.model.requests import Page

    return Page(limit=None)


# -- schedules ----------------------------------------------------------------------------------------------------------


def test_upserting_an_unchanged_schedule_changes_nothing(bench: Bench) -> None:
    """Every upsert moved the next run: a fleet that upserts at start kept it from ever running."""
    request = {"name": "s", "queue": "q", "repeatEvery": 10_000, "data": {}}
    first = bench.done(bench.broker.upsert_schedule(request)).next_run
    bench.run(9_000)
    assert bench.done(bench.broker.upsert_schedule(request)).next_run == first
    bench.run(1_100)
    assert bench.counts().waiting == 1


def test_a_field_of_seconds_means_seconds(bench: Bench) -> None:
    """Expressions with six fields ran about once in fifty seconds."""
    bench.done(
        bench.broker.upsert_schedule({"name": "s", "queue": "q", "schedule": "*/5 * * * * *", "preventOverlap": False})
    )
    for _ in range(60):
        bench.run(1_000)
    assert bench.counts().waiting == 12


# -- options that were accepted and ignored -----------------------------------------------------------------------------


def test_retention_by_age_and_number(bench: Bench) -> None:
    """Any object meant: remove at once."""
    reader = JobReader()
    spec = reader.read({"data": 1, "removeOnComplete": {"age": 60, "count": 2}})
    assert spec.options.remove_on_complete == Retention(age_ms=60_000, count=2)
    ids = []
    for _ in range(3):
        ids += bench.push(reader.read({"data": 1, "removeOnComplete": {"age": 60, "count": 2}}))
        bench.complete(bench.take())
    assert bench.states(*ids) == ["unknown", "completed", "completed"]
    bench.run(MINUTE + 1)  # by the clock, not only when the next job finishes
    assert bench.states(*ids) == ["unknown"] * 3


def test_keep_logs(bench: Bench) -> None:
    """Every job kept a hundred lines."""
    id = bench.add(keep_logs=2)
    for number in range(5):
        bench.done(bench.broker.add_log(id, f"line {number}", "info"))
    assert [line.message for line in bench.done(bench.broker.logs(id))] == ["line 3", "line 4"]


def test_size_limit(bench: Bench) -> None:
    """It was stored."""
    reader = JobReader()
    text = {"text": "ä" * 10}  # {"text":"…"}: 11 bytes and 20
    with pytest.raises(ValidationError, match=r"^Job data exceeds its sizeLimit of 30 bytes$"):
        reader.read({"data": text, "sizeLimit": 30})
    with pytest.raises(ValidationError, match=r"^jobs\[1\]: Job data exceeds its sizeLimit of 0 bytes$"):
        reader.read_batch([{"data": 1}, {"data": 1, "sizeLimit": 0}])
    (id,) = bench.push(reader.read({"data": text, "sizeLimit": 31}))
    larger = bench.broker.update_data(id, pack({"text": "ä" * 11}))
    assert str(larger.error) == "Job data exceeds its sizeLimit of 31 bytes"
    assert unpack(bench.view(id).job.data) == text


def test_longest_backoff() -> None:
    """``maxDelay`` was dropped at admission."""
    spec = JobReader().read({"data": 1, "backoff": {"type": "exponential", "delay": 1_000, "maxDelay": 5_000}})
    assert backoff_delay(spec.options, 10, lambda: 0.5, BACKOFF_STRATEGIES) == 5_000


# -- what a restart forgot ----------------------------------------------------------------------------------------------


def test_logs_and_webhooks_outlive_a_restart(bench: Bench) -> None:
    """They were in memory."""
    from bunqueue_core.model.webhook import Webhook

    id = bench.add()
    bench.done(bench.broker.add_log(id, "a line", "info"))
    hook = Webhook("h", "https://example.com/", ("job.completed",), None, None, bench.now)
    bench.done(bench.broker.add_webhook(hook))
    bench.crash()
    assert [line.message for line in bench.done(bench.broker.logs(id))] == ["a line"]
    assert bench.done(bench.broker.webhooks()) == [hook]


def test_a_restart_refills_no_bucket(bench: Bench) -> None:
    """Buckets were full again, and groups had used nothing."""
    hour = 60 * MINUTE
    limited = GroupDefaults(limit_max=2, limit_duration_ms=hour)
    bench.push(*(job() for _ in range(5)))
    bench.push(*(job(group_id=group) for group in "ggggh"), queue="g")
    bench.done(bench.broker.set_rate_limit("q", 2, hour))
    assert len(bench.pull(count=5)) == 2
    assert len(bench.pull("g", 5, group=limited)) == 3
    bench.done(bench.broker.rate_limit_group("g", "h", hour))
    bench.add(queue="g", group_id="h")
    for stop in (bench.crash, bench.restart):
        bench.run(10 * MINUTE)
        stop()
        assert bench.pull(count=5) == []
        assert bench.pull("g", 5, group=limited) == []
        check_broker(bench.broker)
    bench.run(10 * MINUTE)
    assert len(bench.pull(count=5)) == 1  # two an hour: one each half hour
    bench.run(30 * MINUTE)
    assert len(bench.pull("g", 5, group=limited)) == 4  # a new window of each
    bench.run(2 * hour)
    bench.restart()
    assert bench.journal is not None
    assert [row for row in bench.journal.load_table(RATE_TABLE) if row[1]] == []


def test_a_finished_job_is_found_by_its_custom_id(bench: Bench) -> None:
    """It was forgotten as soon as it had ended."""
    for name, end in (("done", bench.complete), ("dead", bench.fail)):
        bench.add(custom_id=name, max_attempts=1)
        end(bench.take())
        view = bench.done(bench.broker.job_by_custom_id(name))
        assert view is not None
        assert view.state == ("completed" if name == "done" else "failed")


# -- waking -------------------------------------------------------------------------------------------------------------


def test_a_retried_dead_letter_wakes(bench: Bench) -> None:
    """It did not."""
    id = bench.add(max_attempts=1)
    bench.fail(bench.take())
    waiting = bench.park()
    bench.done(bench.broker.retry_dead_letters("q", id))
    bench.run()
    assert waiting.value[0].job.id == id


def test_a_token_that_is_refilled_wakes(bench: Bench) -> None:
    """The pull slept until its time was over."""
    bench.push(job(), job())
    bench.done(bench.broker.set_rate_limit("q", 1, 300))
    bench.take()
    waiting = bench.park(wait_ms=10_000)
    bench.run(300)
    assert len(waiting.value) == 1


def test_a_raised_limit_wakes(bench: Bench) -> None:
    """SetConcurrency did not."""
    bench.push(job(), job())
    bench.done(bench.broker.set_concurrency("q", 1))
    bench.take()
    waiting = bench.park()
    bench.done(bench.broker.set_concurrency("q", 2))
    bench.run()
    assert len(waiting.value) == 1


def test_a_resumed_group_and_a_resumed_queue_wake_whoever_waits(bench: Bench) -> None:
    """A resumed queue woke one of all who waited."""
    bench.push(job(group_id="g"), job(), job())
    bench.done(bench.broker.pause_group("q", "g"))
    bench.done(bench.broker.pause("q"))
    waiting = [bench.park() for _ in range(3)]
    bench.done(bench.broker.resume("q"))
    bench.run()
    assert [answer.ready for answer in waiting] == [True, True, False]
    bench.done(bench.broker.resume_group("q", "g"))
    bench.run()
    assert waiting[2].ready


# -- what clean-up dropped ----------------------------------------------------------------------------------------------


def test_a_job_may_be_active_for_hours(bench: Bench) -> None:
    """After thirty minutes it was dropped, renewed or not."""
    bench.add()
    delivery = bench.take()
    for _ in range(12 * 60):
        bench.clock.advance(10_000)
        assert bench.done(bench.broker.heartbeat([Renewal(delivery.job.id, delivery.token)])) == [True]
        bench.broker.run_due()
    assert bench.state(delivery.job.id) == "active"
    bench.complete(delivery)
    assert bench.state(delivery.job.id) == "completed"


def test_gated_jobs_outlive_any_number_of_others() -> None:
    """Beyond 100,000 jobs, those that waited for others were swept away."""
    bench = Bench()
    first = bench.add()
    parent = bench.add(queue="p", depends_on=(first,))
    for _ in range(10):
        bench.push(*(job() for _ in range(1_000)), queue="other")
    bench.run(2 * MINUTE)
    bench.complete(bench.take())
    assert bench.state(parent) == "waiting"


def test_a_parked_job_keeps_its_custom_id(bench: Bench) -> None:
    """Pushing its id again made a second generation beside it."""
    bench.add(custom_id="c")
    delivery = bench.take()
    bench.done(bench.broker.move_to_waiting_children("c", delivery.token))
    pushed = bench.done(bench.broker.push("q", [job(custom_id="c")]))
    assert (pushed.ids, pushed.outcomes) == (["c"], ["found"])
    assert bench.counts().waiting_children == 1
    assert bench.counts().waiting == 0


# -- deduplication ------------------------------------------------------------------------------------------------------


def test_a_scope_says_how_long_a_key_is_taken(bench: Bench) -> None:
    """The first failure freed it, whatever was meant."""

    def outcome(**settings: Any) -> str:
        pushed = bench.done(bench.broker.push("q", [job(unique_key="k", backoff_ms=0, **settings)]))
        return str(pushed.outcomes[0])

    assert outcome() == "created"
    bench.fail(bench.take())
    assert outcome() == "created"
    bench.done(bench.broker.obliterate("q"))
    assert outcome(dedup_scope="unfinished") == "created"
    bench.fail(bench.take())
    assert outcome(dedup_scope="unfinished") == "found"
    bench.complete(bench.take())
    assert outcome(dedup_scope="window", dedup_ttl_ms=MINUTE) == "created"
    bench.complete(bench.take())
    assert outcome(dedup_scope="window", dedup_ttl_ms=MINUTE) == "found"
    assert outcome(dedup_replace=True) == "created"


def test_debounce_is_real(bench: Bench) -> None:
    """Two pushes with one debounce id made two jobs."""
    reader = JobReader()
    ids = set()
    for number in range(4):
        request = {"data": number, "debounceId": "d", "debounceTtl": 5_000, "debounceMaxWait": 12_000}
        ids.update(bench.push(reader.read(request)))
        bench.run(4_000)
    (id,) = ids
    assert unpack(bench.view(id).job.data) == 3
    assert bench.state(id) == "waiting"  # the longest wait is over


# -- bulks --------------------------------------------------------------------------------------------------------------


def test_a_bulk_of_acknowledgements_applies_what_can_be(bench: Bench) -> None:
    """It applied a part and told of one error, without saying whose."""
    bench.push(job(), job())
    first, second = bench.pull(count=2)
    acks = [Ack(first.job.id, first.token), Ack("stranger", "t"), Ack(second.job.id, second.token)]
    done = bench.done(bench.broker.ack(acks))
    assert list(done.errors) == [1]
    assert bench.states(first.job.id, second.job.id) == ["completed", "completed"]
    bench.push(job(), job())
    first, second = bench.pull(count=2)
    refused = bench.broker.ack([Ack(first.job.id, first.token), Ack(second.job.id, "wrong")])
    assert refused.error is not None
    assert bench.states(first.job.id, second.job.id) == ["active", "active"]


def test_a_bulk_push_is_all_or_nothing(bench: Bench) -> None:
    """Jobs before the refused one stayed."""
    specs = [job(custom_id="c"), job(group_id="g", group_max_size=1), job(group_id="g", group_max_size=1)]
    refused = bench.broker.push("q", specs)
    assert str(refused.error) == "Group g has reached its maximum size of 1"
    assert bench.counts() == Bench().counts()
    assert bench.state("c") == "unknown"


# -- numbers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", ["delay", "priority", "ttl", "timeout", "maxAttempts", "backoff", "keepLogs", "timestamp"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused_at_the_edge(field: str, value: float) -> None:
    """They reached arithmetic."""
    with pytest.raises(ValidationError, match=rf"^{field} must be a finite number$"):
        JobReader().read({"data": 1, field: value})


def test_fractions_are_floored() -> None:
    """They were kept."""
    spec = JobReader().read({"data": 1, "delay": 1.9, "timeout": 2.5})
    assert (spec.delay, spec.options.timeout_ms) == (1, 2)


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**64 - 1, -(2**63)])
def test_large_integers_are_kept(bench: Bench, number: int) -> None:
    """Beyond 2^53 they lost their last digits."""
    (id,) = bench.push(JobReader().read({"data": {"n": number}}))
    bench.run()
    bench.crash()
    data = bench.view(id).job.data
    assert data is not None
    assert decode(data) == {"n": number}


def test_integers_beyond_64_bits_are_refused_by_name() -> None:
    """They became infinity or another number."""
    with pytest.raises(ValidationError, match=r"integer at \$\.n exceeds 64 bits"):
        JobReader().read({"data": {"n": 2**64}})


def test_no_limit_of_commands_unless_configured() -> None:
    """10,000 a minute and connection."""
    assert LimitSettings().rate_limit_max_requests is None


@pytest.mark.parametrize(
    ("file", "environ"),
    [
        ({"server": {"tcpPrt": 1}}, {}),
        ({"server": {"tcpPort": 70_000}}, {}),
        ({}, {"TCP_PORT": "many"}),
        ({"limits": {"rateLimitMaxRequests": -1}}, {}),
    ],
)
def test_unknown_keys_and_odd_values_stop_the_start(file: dict[str, Any], environ: dict[str, str]) -> None:
    """An unknown key was a warning, an odd value fell back to the default."""
    found = resolve(PluginManager(entry_points=[]), file=file, environ=environ)
    assert len(found.problems) == 1


# -- errors -------------------------------------------------------------------------------------------------------------


def test_storage_that_fails_is_named(bench: Bench) -> None:
    """The answer read ``Internal server error``."""
    assert bench.journal is not None
    bench.journal.fail_commits = 1_000
    bench.journal.disk_full = True
    answer = bench.broker.push("q", [job(durable=True)])
    for _ in range(20):
        bench.run(30_000)
    assert isinstance(answer.error, StorageUnavailable)
    assert str(answer.error) == "Storage unavailable: disk full"
    refused = bench.broker.push("q", [job()])
    assert str(refused.error) == "Storage unavailable: disk full"
    bench.journal.fail_commits = 0
    bench.run(30_000)
    assert bench.counts().waiting == 1  # nothing that was accepted is lost
    check_broker(bench.broker)


# -- groups of one kind with many names ---------------------------------------------------------------------------------


def test_affinity_to_a_group_without_jobs_takes_nothing(bench: Bench) -> None:
    """It took jobs of no group where a queue had no grouped ones."""
    bench.add()
    assert bench.done(bench.broker.pull(PullRequest("q", group=GroupDefaults(affine=True, affinity="g")))) == []


def test_removed_children_count_as_done(bench: Bench) -> None:
    """A parent whose other children had been removed on completion before one was ignored stayed stuck until a restart."""
    parent = bench.add({})

    def child(**settings: Any) -> Any:
        return job({"__parentId": parent, "__parentQueue": "q"}, parent_id=parent, parent_queue="q", **settings)

    bench.push(child(remove_on_complete=REMOVE), child(max_attempts=1, ignore_dependency_on_failure=True), queue="c")
    bench.complete(bench.take("c"))
    bench.fail(bench.take("c"))
    assert bench.state(parent) == "waiting"


def test_options_of_equal_jobs_are_shared() -> None:
    """No behaviour, but what a million jobs cost."""
    reader = JobReader()
    first, second = (reader.read({"data": 1, "maxAttempts": 5}) for _ in range(2))
    assert first.options is second.options
    assert reader.read({"data": 1, "maxAttempts": 3}).options == JobOptions()
