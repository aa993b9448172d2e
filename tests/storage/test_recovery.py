"""What a start makes of what a crash left, in a real file: the order of the steps, the counting rules, the limits, the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from fixtures.sqlite_bench import DURABLE, Bench, Log, open_broker, payload

from bunqueue_core.broker import recovery
from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.engine.engine import Engine
from bunqueue_core.model.job import JobOptions, JobSpec
from bunqueue_core.model.requests import Ack, DlqConfig, FlowJob, PullRequest, StallConfig
from bunqueue_core.testing import SettableClock

IMMEDIATELY = JobOptions(durable=True, backoff_ms=0, max_attempts=10)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "jobs.db")
    yield bench
    bench.broker.close().result()


class Crash:
    """What another process would find if the broker died now, opened by a second broker on a copy."""

    def __init__(self, bench: Bench, folder: Path, *statements: str, **settings: Any) -> None:
        path = bench.crash_image(folder)
        connection = sqlite3.connect(path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        self.log = Log()
        self.clock = SettableClock(bench.clock.now_ms + 1_000)
        self.broker, self.journal = open_broker(path, clock=self.clock, log=self.log, **settings)

    def __enter__(self) -> Crash:
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.close().result()

    def state(self, id: str) -> str:
        return self.broker.states([id]).value[0]

    def letter(self, queue: str) -> Any:
        (letter,) = self.broker.dead_letters(queue, None, None).value
        return letter


def take_all(broker: LocalBroker, queue: str) -> list[str]:
    answer = broker.pull(PullRequest(queue, count=1_000, owner="w", lock_ttl_ms=86_400_000))
    broker.run_due()
    return [job.id for job, _ in answer.value]


# -- jobs that were active --------------------------------------------------------------------------------------------


def test_an_interrupted_job_is_charged_and_retried_with_back_off(bench: Bench, tmp_path: Path) -> None:
    (id,) = bench.add("q", 1, JobOptions(durable=True, backoff_ms=5_000, max_attempts=5))
    bench.take("q", 1)
    with Crash(bench, tmp_path / "crash") as crash:
        view = crash.broker.job(id).value
        assert view is not None
        job = view.job
        assert (view.state, job.attempts, job.stall_count, job.started_at) == ("delayed", 1, 1, None)
        assert 5_000 <= job.run_at - crash.clock.now_ms <= 15_000
        assert job.history is not None
        (attempt,) = job.history.attempts
        assert (attempt["attempt"], attempt["reason"], attempt["error"]) == (
            1,
            "stalled",
            "Interrupted during recovery",
        )
        assert crash.journal.read_jobs([id])[id].state != "active"


def test_attempts_and_stalls_bound_how_often(bench: Bench, tmp_path: Path) -> None:
    bench.finish(bench.broker.set_stall_config("patient", StallConfig(True, 30_000, 0, 5_000)))
    bench.finish(bench.broker.set_stall_config("strict", StallConfig(True, 30_000, 1, 5_000)))
    for queue, options in (
        ("attempts", JobOptions(durable=True, max_attempts=1)),
        ("strict", IMMEDIATELY),
        ("patient", IMMEDIATELY),
    ):
        bench.add(queue, 1, options)
        bench.take(queue, 1)
    with Crash(bench, tmp_path / "crash") as crash:
        letter = crash.letter("attempts")
        assert letter.reason == "max_attempts_exceeded"
        assert letter.error == "Job reached max attempts (1) during startup recovery"
        letter = crash.letter("strict")
        assert letter.reason == "stalled"
        assert letter.error == "Job stalled 1 times (recovered at startup)"
        assert letter.job.started_at is None
        assert crash.broker.counts("patient").value.failed == 0
        for queue in ("attempts", "strict"):
            assert crash.broker.counts(queue).value.failed == 1
        assert len(list(crash.journal.load_active(10))) == 0


def test_a_job_of_a_schedule_that_must_not_overlap_is_dropped(bench: Bench, tmp_path: Path) -> None:
    bench.finish(
        bench.broker.upsert_schedule({"name": "s", "queue": "q", "repeatEvery": 60_000, "preventOverlap": True})
    )
    bench.finish(
        bench.broker.upsert_schedule({"name": "t", "queue": "r", "repeatEvery": 60_000, "preventOverlap": False})
    )
    bench.run(60_000)
    bench.run()
    assert len(bench.take("q", 1)) == len(bench.take("r", 1)) == 1
    with Crash(bench, tmp_path / "crash") as crash:
        assert crash.broker.count("q").value == 0
        assert crash.broker.counts("r").value.delayed == 1


def test_many_are_read_in_batches_each_of_which_is_stored(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "LOAD_BATCH", 10)
    bench.add("q", 35, IMMEDIATELY)
    bench.add("r", 35, JobOptions(durable=True, max_attempts=1))
    bench.take("q", 35)
    bench.take("r", 35)
    with Crash(bench, tmp_path / "crash") as crash:
        assert crash.broker.counts("q").value.waiting == 35
        assert crash.broker.counts("r").value.failed == 35
        (summary,) = [fields for _, message, fields in crash.log if message == "Completed recovery"]
        assert (summary["interrupted"], summary["pending"], summary["queues"]) == (70, 0, 2)
        assert crash.journal.load_active(100) == []


# -- jobs that waited -------------------------------------------------------------------------------------------------


def test_waiting_jobs_keep_their_order_among_interrupted_ones(bench: Bench, tmp_path: Path) -> None:
    first = bench.add("q", 3, IMMEDIATELY)
    bench.clock.advance(10)
    second = bench.add("q", 3, IMMEDIATELY)
    urgent = bench.finish(bench.broker.push("q", [JobSpec("n", payload(1), DURABLE, priority=5)])).ids
    bench.take("q", 2)  # the urgent one, then the oldest
    with Crash(bench, tmp_path / "crash") as crash:
        # an interrupted job is retried now, and so comes after those that waited before
        assert take_all(crash.broker, "q") == [*first[1:], *second, first[0]]
        crash.clock.advance(5_000)
        crash.broker.run_due()
        assert take_all(crash.broker, "q") == urgent


def test_waits_for_other_jobs_are_rebuilt(bench: Bench, tmp_path: Path) -> None:
    done, removed, open_, dead = (bench.add(queue, 1)[0] for queue in ("done", "removed", "open", "dead"))
    waiting = {
        name: bench.finish(bench.broker.push("w", [JobSpec(name, payload(1), DURABLE, depends_on=depends)])).ids[0]
        for name, depends in {"one": (done, open_), "two": (removed, open_), "three": (open_, dead)}.items()
    }
    bench.complete(bench.take("done", 1))
    ((job, token),) = bench.take("removed", 1)
    bench.finish(bench.broker.ack([Ack(job.id, token, remove=True)]))
    bench.bury(bench.take("dead", 1))
    with Crash(bench, tmp_path / "crash", max_completed_jobs=1) as crash:
        assert {crash.state(id) for id in waiting.values()} == {"waiting-children"}
        assert take_all(crash.broker, "w") == []
        answer = crash.broker.pull(PullRequest("open", owner="w"))
        crash.broker.run_due()
        ((job, token),) = answer.value
        crash.broker.ack([Ack(job.id, token)])
        crash.broker.run_due()
        assert sorted(take_all(crash.broker, "w")) == sorted([waiting["one"], waiting["two"]])


def test_unreadable_dependencies_are_no_missing_dependencies(bench: Bench, tmp_path: Path) -> None:
    (wanted,) = bench.add("q", 1)
    specs = [JobSpec("n", payload(1), DURABLE, depends_on=(wanted,)) for _ in range(2)]
    ids = bench.finish(bench.broker.push("w", specs)).ids
    corrupt = f"UPDATE jobs SET depends_on = X'92a1' WHERE id = '{ids[0]}'"
    no_list = f"UPDATE jobs SET depends_on = X'01' WHERE id = '{ids[1]}'"
    with Crash(bench, tmp_path / "crash", corrupt, no_list) as crash:
        letters = crash.broker.dead_letters("w", None, None).value
        assert {letter.job.id for letter in letters} == set(ids)
        assert {(letter.reason, letter.error) for letter in letters} == {("unknown", "corrupt-dependency-metadata")}
        assert crash.log.messages.count("Job with unreadable dependencies goes to the dead letters") == 2
        assert crash.journal.read_jobs(ids) == {}


def test_a_damaged_value_stops_nothing_and_is_named(bench: Bench, tmp_path: Path) -> None:
    (active, waiting) = bench.add("q", 2, JobOptions(durable=True, max_attempts=7, stack_trace_limit=3))
    bench.take("q", 1)
    bench.add("d", 1)
    bench.bury(bench.take("d", 1))
    statements = [
        "UPDATE jobs SET timeline = X'c1', extended_options = X'c1', stacktrace = X'c1', dlq_retry_state = X'c1',"
        " tags = X'c1', children_ids = X'01'",
        "UPDATE dlq SET entry = X'c1'",
        f"INSERT INTO job_logs VALUES('{active}', X'c1')",
        "INSERT INTO webhooks VALUES('w', X'c1')",
    ]
    with Crash(bench, tmp_path / "crash", *statements) as crash:
        assert crash.state(waiting) == "waiting"
        assert crash.state(active) == "delayed"
        assert crash.broker.logs(active).value == []
        ((_, _, fields),) = [record for record in crash.log if "cannot be read" in record[1]]
        assert fields["count"] == 2 * 6 + 3
        assert f"{active}.timeline" in fields["values"]
        # a new dead letter does not take the place of the one that cannot be read
        answer = crash.broker.pull(PullRequest("q", owner="w"))
        crash.broker.run_due()
        crash.broker.discard(answer.value[0].job.id, answer.value[0].token)
        crash.broker.run_due()
        assert len([row for batch in crash.journal.load_dlq(10) for row in batch]) == 2


def test_a_damaged_payload_can_still_be_buried(bench: Bench, tmp_path: Path) -> None:
    (id,) = bench.add("q", 1)
    with Crash(bench, tmp_path / "crash", "UPDATE jobs SET data = X'c1'") as crash:
        crash.broker.discard(id)
        crash.broker.run_due()
        assert crash.broker.health().ready
        assert crash.letter("q").job.id == id


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters_come_before_those_of_this_start_and_their_bound_holds(bench: Bench, tmp_path: Path) -> None:
    once = JobOptions(durable=True, max_attempts=1)
    old = bench.add("q", 3, once)
    bench.bury(bench.take("q", 3))
    new = bench.add("q", 2, once)
    bench.take("q", 2)
    bench.finish(bench.broker.set_dlq_config("q", DlqConfig(max_entries=4)))
    with Crash(bench, tmp_path / "crash") as crash:
        letters = [letter.job.id for letter in crash.broker.dead_letters("q", None, None).value]
        assert letters == [*old[1:], *new]
        rows = [row.job_id for batch in crash.journal.load_dlq(10) for row in batch]
        assert rows == letters


def test_a_dead_letter_wins_over_a_row_of_the_same_job(bench: Bench, tmp_path: Path) -> None:
    _, active, waiting = bench.add("q", 3)
    bench.bury(bench.take("q", 1))
    bench.take("q", 1)
    for id in (active, waiting):
        with Crash(bench, tmp_path / id, f"UPDATE dlq SET job_id = '{id}'") as crash:
            assert crash.journal.read_jobs([id]) == {}
            assert id not in take_all(crash.broker, "q")


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_the_steps_come_in_their_order(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def watch(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def called(*arguments: Any, **more: Any) -> Any:
            order.append(name)
            return original(*arguments, **more)

        monkeypatch.setattr(owner, name, called)

    for name in ("load_schedules", "restore_queue", "restore_active", "restore_pending", "restore_dead_letters"):
        watch(Engine, name)
    for name in ("restore_group", "restore_completed", "start_schedules"):
        watch(Engine, name)
    bench.finish(bench.broker.pause("q"))
    bench.add("q", 2)
    bench.finish(bench.broker.resume("q"))
    bench.complete(bench.take("q", 1))
    bench.finish(bench.broker.set_concurrency("q", 5))
    bench.finish(bench.broker.set_group_concurrency("q", "g", 1))
    bench.take("q", 1)
    bench.add("q", 1)
    bench.broker.close().result()
    bench.broker, bench.journal = open_broker(bench.path)
    steps = list(dict.fromkeys(order))
    assert steps == [
        "load_schedules",
        "restore_queue",
        "restore_pending",
        "restore_dead_letters",
        "restore_group",
        "restore_completed",
        "start_schedules",
    ]


def test_progress_is_told_when_it_takes_long(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "LOAD_BATCH", 10)
    monkeypatch.setattr(recovery, "REPORT_S", 0.0)
    bench.add("q", 25)
    with Crash(bench, tmp_path / "crash") as crash:
        told = [fields for _, message, fields in crash.log if message == "Recovery progress"]
        assert [fields["rows"] for fields in told if fields["phase"] == "pending"] == [10, 20, 25]
        assert crash.log[-1][1] == "Completed recovery"
        assert crash.log[-1][2]["pending"] == 25


def test_an_invalid_schedule_stops_the_start_before_anything_is_changed(bench: Bench, tmp_path: Path) -> None:
    bench.finish(bench.broker.upsert_schedule({"name": "s", "queue": "q", "schedule": "* * * * *"}))
    bench.add("q", 1)
    bench.take("q", 1)
    with pytest.raises(Exception, match='Persisted cron "s"'):
        Crash(bench, tmp_path / "crash", "UPDATE cron_jobs SET schedule = 'never'")
    with sqlite3.connect(tmp_path / "crash" / "jobs.db") as connection:
        assert connection.execute("SELECT state FROM jobs").fetchall() == [("active",)]
    connection.close()


def test_flows_go_on(bench: Bench, tmp_path: Path) -> None:
    parent, child = (bench.broker._ports.new_id() for _ in range(2))
    flow = [
        FlowJob(child, "c", JobSpec("child", payload(1), DURABLE, parent_id=parent)),
        FlowJob(parent, "p", JobSpec("parent", payload(1), DURABLE, depends_on=(child,), children_ids=(child,))),
    ]
    bench.finish(bench.broker.push_flow(flow))
    bench.complete(bench.take("c", 1), msgpack.packb("done"))
    with Crash(bench, tmp_path / "crash") as crash:
        assert take_all(crash.broker, "p") == [parent]
        assert crash.broker.children_values(parent).value == {f"c:{child}": msgpack.packb("done")}
