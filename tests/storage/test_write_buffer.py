"""The write buffer: one commit for all who wait, retries that lose nothing, refusals while the storage is away, then recovery."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bunqueue_core.broker import frame
from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.model.errors import StorageUnavailable
from bunqueue_core.model.job import JobOptions, JobSpec
from bunqueue_core.model.requests import Ack, PullRequest
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.storage.buffer import (
    COMMAND_DEADLINE_MS,
    CRITICAL_TRIES,
    FIRST_RETRY_MS,
    MAX_RETRY_MS,
    MAX_UNWRITTEN_BYTES,
    MAX_UNWRITTEN_ROWS,
    CriticalFailure,
)
from bunqueue_core.testing.clock import SettableClock, deterministic_ports
from bunqueue_core.testing.journal import DictJournal

DURABLE = JobOptions(durable=True)


class Bench:
    """A broker over a journal with faults, under a clock that only the test moves."""

    def __init__(self) -> None:
        self.journal = DictJournal()
        self.clock = SettableClock()
        self.critical: list[CriticalFailure] = []
        self.log: list[tuple[str, str, dict[str, Any]]] = []
        self.broker = LocalBroker(
            self.journal,
            ports=deterministic_ports(self.clock),
            capabilities=Capabilities("dict"),
            settings=JournalSettings(driver="dict"),
            strategies={},
            log=lambda level, message, **fields: self.log.append((level, message, fields)),
            role="manual",
        )
        self.broker.on_critical = self.critical.append
        self.broker.start().result()

    def push(self, count: int = 1, durable: bool = False):
        specs = [JobSpec("n", b"\x01", DURABLE) if durable else JobSpec("n", b"\x01") for _ in range(count)]
        return self.broker.push("q", specs)

    def stored(self) -> int:
        return sum(len(batch) for batch in self.journal.image().load_pending(1000))

    def run(self, ms: int = 0) -> None:
        self.clock.advance(ms)
        self.broker.run_due()


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.journal.fail_commits = 0
    bench.broker.close().result(5)


def test_a_buffered_add_answers_before_it_is_written(bench: Bench) -> None:
    assert bench.push().ready
    assert bench.stored() == 0
    bench.run()
    assert bench.stored() == 1


def test_a_durable_add_answers_after_its_commit(bench: Bench) -> None:
    answer = bench.push(durable=True)
    assert not answer.ready
    bench.run()
    assert answer.ready
    assert bench.stored() == 1


def test_a_lone_caller_commits_for_all_who_wait(bench: Bench) -> None:
    first, second = bench.push(durable=True), bench.push(durable=True)
    before = bench.journal.commits
    second.result(1)
    assert first.ready
    assert bench.journal.commits == before + 1


def test_a_hundred_jobs_start_a_commit(bench: Bench) -> None:
    bench.push(99)
    assert bench.stored() == 0
    bench.push(1)
    assert bench.stored() == 100


def test_what_came_and_went_between_two_commits_is_never_written(bench: Bench) -> None:
    rows = bench.broker.statistics()["rowsWritten"]
    ids = bench.push(3).value.ids
    bench.broker.drain_queue("q")
    bench.run()
    assert bench.stored() == 0
    assert not bench.journal.image().read_jobs(ids)
    assert bench.broker.statistics()["rowsWritten"] == rows


def test_a_job_that_lived_and_ended_in_one_window_is_written_once(bench: Bench) -> None:
    (id,) = bench.push().value.ids
    pulled = bench.broker.pull(PullRequest("q", owner="w"))
    commits = bench.journal.commits
    delivery = pulled.result(1)[0]
    bench.broker.ack([Ack(id, delivery.token, b"\x01")]).result(1).raise_first()
    assert bench.journal.commits == commits + 2
    assert bench.journal.image().read_jobs([id])[id].state == "completed"


def test_a_failed_commit_is_tried_again_with_growing_pauses(bench: Bench) -> None:
    bench.journal.fail_commits = 4
    answer = bench.push(durable=True)
    bench.run()
    pause = FIRST_RETRY_MS
    for _ in range(3):
        assert not answer.ready
        left = bench.journal.fail_commits
        bench.run(pause - 1)
        assert bench.journal.fail_commits == left, "tried too early"
        bench.run(1)
        assert bench.journal.fail_commits == left - 1
        pause *= 2
    bench.run(pause)
    assert answer.ready
    assert bench.stored() == 1


def test_later_changes_gather_behind_a_stuck_commit_and_lose_nothing(bench: Bench) -> None:
    bench.journal.fail_commits = 1
    first = bench.push(durable=True)
    bench.run()
    second = bench.push(durable=True)
    pulled = bench.broker.pull(PullRequest("q", count=1, owner="w"))
    assert not pulled.ready
    bench.run(FIRST_RETRY_MS)
    assert first.ready
    assert second.ready
    assert pulled.ready
    stored = bench.journal.image().read_jobs([*first.value.ids, *second.value.ids])
    assert sorted(row.state for row in stored.values()) == ["active", "waiting"]


def test_a_job_removed_behind_a_stuck_commit_does_not_come_back(bench: Bench) -> None:
    bench.journal.fail_commits = 1
    ids = bench.push(durable=True)
    bench.run()
    bench.broker.drain_queue("q")
    bench.run(FIRST_RETRY_MS)
    bench.run()
    assert not bench.journal.image().read_jobs(ids.value.ids)


def test_the_tenth_failure_is_announced_once_and_adds_are_refused_until_it_works(bench: Bench) -> None:
    bench.journal.fail_commits = 1000
    bench.journal.disk_full = True
    ids = bench.push(2).value.ids
    bench.run()
    for _ in range(CRITICAL_TRIES + 2):
        bench.run(MAX_RETRY_MS)
    assert len(bench.critical) == 1
    assert sorted(bench.critical[0].job_ids) == sorted(ids)
    assert bench.critical[0].disk_full
    with pytest.raises(StorageUnavailable, match="Storage unavailable: disk full"):
        bench.push().result(0)
    health = bench.broker.health()
    assert (health.ready, health.degraded, health.disk_full) == (False, True, True)
    bench.journal.fail_commits = 0
    bench.run(MAX_RETRY_MS)
    assert bench.broker.health().ready
    assert bench.stored() == 2
    bench.push(durable=True).result(1)
    assert len(bench.critical) == 1


def test_an_answer_that_waits_too_long_gets_an_error_and_its_change_stays(bench: Bench) -> None:
    bench.journal.fail_commits = 1000
    answer = bench.push(durable=True)
    bench.run()
    while not answer.ready:
        bench.run(1000)
    with pytest.raises(StorageUnavailable):
        answer.result(0)
    assert bench.clock.now_ms - bench.broker._started_at >= COMMAND_DEADLINE_MS
    bench.journal.fail_commits = 0
    bench.run(MAX_RETRY_MS)
    assert bench.stored() == 1


def test_a_driver_that_raises_what_it_should_not_is_tried_again(bench: Bench) -> None:
    commit, bench.journal.commit = bench.journal.commit, _broken
    answer = bench.push(durable=True)
    bench.run()
    assert not answer.ready
    bench.journal.commit = commit
    bench.run(FIRST_RETRY_MS)
    assert answer.ready
    assert bench.stored() == 1


def _broken(changes) -> None:
    raise RuntimeError("a fault of the driver")


def test_a_change_that_makes_no_row_is_reported_and_loses_nothing(bench: Bench) -> None:
    (id,) = bench.push(durable=True).result(1).ids
    job = bench.broker._engine.jobs[id]
    job.tags = (object(),)
    progress = bench.broker.change_delay(id, 5, None)
    with pytest.raises(StorageUnavailable):
        progress.result(1)
    assert not bench.broker.health().ready
    job = bench.broker._engine.jobs[id]
    job.tags = ()
    bench.push(durable=True).result(1)
    assert bench.broker.health().ready
    assert bench.stored() == 2


def test_jobs_whose_delivery_could_not_be_written_go_to_somebody_else(bench: Bench) -> None:
    bench.push()
    bench.run()
    bench.journal.fail_commits = 1000
    pulled = bench.broker.pull(PullRequest("q", owner="w"))
    while not pulled.ready:
        bench.run(1000)
    with pytest.raises(StorageUnavailable):
        pulled.result(0)
    bench.journal.fail_commits = 0
    bench.run(MAX_RETRY_MS)
    (delivery,) = bench.broker.pull(PullRequest("q", owner="v")).result(1)
    assert delivery.job.attempts == 0


def test_a_pull_that_is_cancelled_while_its_commit_is_under_way_gives_its_jobs_back(bench: Bench) -> None:
    bench.push()
    bench.run()
    pulled = bench.broker.pull(PullRequest("q", owner="w"))
    assert not pulled.ready
    pulled.cancel()
    (delivery,) = bench.broker.pull(PullRequest("q", owner="v")).result(1)
    assert delivery.job.attempts == 0
    assert pulled.result(1) == []


def test_adds_wait_for_their_commit_when_too_much_is_unwritten(bench: Bench) -> None:
    bench.journal.fail_commits = 1000
    bench.push(100)
    bench.push(MAX_UNWRITTEN_ROWS)
    late = bench.push()
    assert not late.ready
    bench.journal.fail_commits = 0
    bench.run(MAX_RETRY_MS)
    bench.run()
    assert late.ready
    assert bench.stored() == MAX_UNWRITTEN_ROWS + 101


def test_adds_are_refused_before_memory_grows_without_bound(bench: Bench) -> None:
    bench.journal.fail_commits = 1000
    bench.push(100)
    waiting = [bench.push(1_000) for _ in range(2 * MAX_UNWRITTEN_ROWS // 1_000)]
    with pytest.raises(StorageUnavailable):
        bench.push().result(0)
    assert bench.critical == []  # long before the last try
    assert bench.broker.statistics()["unwrittenRows"] == 2 * MAX_UNWRITTEN_ROWS + 100
    bench.journal.fail_commits = 0
    bench.run(MAX_RETRY_MS)
    assert bench.push().ready
    assert all(answer.ready for answer in waiting)
    bench.run()
    assert bench.stored() == 2 * MAX_UNWRITTEN_ROWS + 101
    assert bench.broker.statistics()["unwrittenRows"] == 0


def test_adds_are_refused_before_payloads_fill_memory(bench: Bench) -> None:
    bench.journal.fail_commits = 1000
    large = JobSpec("n", bytes(MAX_UNWRITTEN_BYTES // 4))
    answers = [bench.broker.push("q", [large])]
    bench.run()
    while answers[-1].error is None:
        answers.append(bench.broker.push("q", [large]))
        assert len(answers) < 12
    assert len(answers) == 10  # twice the bound, the one that passed it, and the one that was refused
    bench.journal.fail_commits = 0
    bench.run(MAX_RETRY_MS)
    assert bench.stored() == 9


def test_the_critical_callback_names_what_gathered_behind_the_stuck_commit_too(bench: Bench) -> None:
    def broken(failure: CriticalFailure) -> None:
        bench.critical.append(failure)
        raise RuntimeError("placed here")

    bench.broker.on_critical = broken
    bench.journal.fail_commits = 1000
    first = bench.push().value.ids
    bench.run()
    second = bench.push().value.ids
    for _ in range(CRITICAL_TRIES):
        bench.run(MAX_RETRY_MS)
    assert bench.critical[0].job_ids == [*first, *second]
    assert bench.critical[0].attempts == CRITICAL_TRIES
    assert ("error", "Critical callback failed", {"error": "RuntimeError"}) in bench.log


def test_every_failed_commit_and_the_recovery_are_logged(bench: Bench) -> None:
    bench.journal.fail_commits = 3
    bench.journal.disk_full = True
    bench.push(2)
    bench.run()
    for pause in (100, 200, 400):
        bench.run(pause)
    told = [
        (level, message, fields) for level, message, fields in bench.log if "ommit" in message or "works" in message
    ]
    assert [fields["retryInMs"] for _, message, fields in told if message.startswith("Commit failed")] == [
        100,
        200,
        400,
    ]
    level, _, fields = told[0]
    assert (level, fields["attempt"], fields["rows"], fields["diskFull"]) == ("warn", 1, 2, True)
    assert fields["error"] == "a fault was placed here"
    assert told[-1] == ("info", "Storage works again: everything is written", {"attempts": 3, "durationMs": 700})


def test_a_clock_that_is_set_back_does_not_put_the_next_try_off(bench: Bench) -> None:
    bench.journal.fail_commits = 1
    bench.push()
    bench.run()
    bench.run(-3_600_000)
    assert bench.stored() == 1


def test_events_that_wait_for_a_commit_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "MAX_HELD_EVENTS", 50)
    seen: list[str] = []
    bench.broker.subscribe(lambda event: seen.append(event.type))
    bench.journal.fail_commits = 1
    bench.push(durable=True)
    bench.run()
    for _ in range(100):
        bench.push(durable=True)
    bench.run(FIRST_RETRY_MS)
    bench.run()
    assert len(seen) == 51  # of the stuck commit, and of those behind it
    assert bench.broker.statistics()["eventsDropped"] == 50


def test_closing_writes_everything(bench: Bench) -> None:
    bench.push(5)
    bench.broker.close().result(5)
    assert bench.stored() == 5


def test_threads_share_commits() -> None:
    bench = Bench()
    barrier = threading.Barrier(8)
    errors: list[BaseException] = []

    def produce() -> None:
        try:
            barrier.wait()
            for _ in range(50):
                bench.push(durable=True).result(10)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=produce) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert bench.stored() == 400
    bench.broker.close().result(5)
