"""What a start makes of what an earlier process left, in cases that random calls have brought up."""

from __future__ import annotations

import pytest
from fixtures.local import Bench

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.model.job import JobOptions, JobSpec, Retention
from bunqueue_core.model.requests import Ack, DlqConfig, Failure, FlowJob, PullRequest
from bunqueue_core.model.rules import BACKOFF_STRATEGIES
from bunqueue_core.plugins.drivers import JournalSettings
from bunqueue_core.testing import DictJournal, SettableClock, deterministic_ports


def opened(journal: DictJournal, clock: SettableClock) -> LocalBroker:
    broker = LocalBroker(
        journal,
        ports=deterministic_ports(clock),
        capabilities=Capabilities(driver="dict"),
        settings=JournalSettings(driver="dict"),
        strategies=BACKOFF_STRATEGIES,
        log=lambda *_, **__: None,
        role="manual",
    )
    broker.start().result(5)
    return broker


def test_a_parent_that_went_on_without_one_child_still_waits_for_a_later_one() -> None:
    """The failure that it went on without is remembered as long as it lives; a start must not apply it to other children."""
    clock, journal = SettableClock(), DictJournal()
    broker = opened(journal, clock)
    options = JobOptions(max_attempts=1, continue_parent_on_failure=True)
    child = FlowJob("child", "q", JobSpec("n", None, options, parent_id="parent"))
    parent = FlowJob("parent", "q", JobSpec("n", None, depends_on=("child",), children_ids=("child",)))
    broker.push_flow([child, parent]).result(5)
    broker.pull(PullRequest("q")).result(5)
    broker.fail([Failure("child")]).result(5)
    assert broker.states(["parent"]).result(5) == ["waiting"]
    later = broker.push("q", [JobSpec("n", None, parent_id="parent", parent_queue="q")]).result(5).ids[0]
    broker.flush()
    again = opened(journal.image(), clock)
    assert again.states(["parent", later]).result(5) == ["waiting-children", "waiting"]


def test_log_lines_go_with_a_dead_letter_that_a_start_has_no_room_for() -> None:
    """Else they are those of the next job with its id."""
    clock, journal = SettableClock(), DictJournal()
    broker = opened(journal, clock)
    once = JobOptions(max_attempts=1)
    broker.set_dlq_config("q", DlqConfig(max_entries=1)).result(5)
    broker.push("q", [JobSpec("n", None, once, custom_id="mine")]).result(5)
    (delivery,) = broker.pull(PullRequest("q")).result(5)
    broker.fail([Failure(delivery.job.id)]).result(5)
    broker.add_log("mine", "of the first", "info").result(5)
    broker.push("q", [JobSpec("n", None, once)]).result(5)
    broker.pull(PullRequest("q")).result(5)  # becomes a dead letter when the next process starts
    broker.flush()
    again = opened(journal.image(), clock)
    assert again.states(["mine"]).result(5) == ["unknown"]
    again.push("q", [JobSpec("n", None, once, custom_id="mine")]).result(5)
    assert again.logs("mine").result(5) == []


def test_a_window_without_an_end_ends_with_its_job_after_a_restart_too() -> None:
    """A key whose scope is a window, but without a time to live, is free once its owner has ended, whatever is retained of it."""
    clock, journal = SettableClock(), DictJournal()
    broker = opened(journal, clock)
    options = JobOptions(max_attempts=1, dedup_scope="window")
    broker.push("q", [JobSpec("n", None, options, unique_key=key) for key in ("done", "dead")]).result(5)
    done, dead = broker.pull(PullRequest("q", 2)).result(5)
    broker.ack([Ack(done.job.id)]).result(5)
    broker.fail([Failure(dead.job.id)]).result(5)
    again = opened(journal.image(), clock)
    pushed = again.push("q", [JobSpec("n", None, options, unique_key=key) for key in ("done", "dead")]).result(5)
    assert pushed.outcomes == ["created", "created"]


@pytest.mark.parametrize("gone", ["only in the journal", "outlived its age"])
@pytest.mark.parametrize("how", ["a further child", "parked by its worker"])
def test_a_dependency_that_was_met_stays_met(gone: str, how: str) -> None:
    """A parent that waits again waits for what is new, whatever has become of the records of what it waited for before."""
    bench = Bench(DictJournal(), max_completed_jobs=2)
    retention = Retention(age_ms=1_000) if gone == "outlived its age" else Retention()
    first = bench.add(queue="children", remove_on_complete=retention)
    parent = bench.add(queue="p", depends_on=(first,))
    bench.complete(bench.take("children"))
    for _ in range(20):
        bench.add(queue="others")
        bench.complete(bench.take("others"))
        bench.run(1_000)
    assert first not in bench.broker._engine.jobs
    if how == "parked by its worker":
        delivery = bench.take("p")
        bench.done(bench.broker.move_to_waiting_children(parent, delivery.token))
    bench.add(queue="children", parent_id=parent, parent_queue="p")
    assert bench.state(parent) == "waiting-children"
    bench.run()
    bench.crash()
    bench.complete(bench.take("children"))
    assert bench.state(parent) == "waiting"


def test_a_parent_that_a_start_releases_goes_behind_those_who_waited_before() -> None:
    """A policy starts a parent at the time when it takes effect, at a start of the broker, too: not where its old row stood."""
    clock, journal = SettableClock(), DictJournal()
    broker = opened(journal, clock)
    once = {"max_attempts": 1}
    first = FlowJob("a", "q", JobSpec("n", None, JobOptions(**once, fail_parent_on_failure=True), parent_id="parent"))
    second = FlowJob(
        "b", "q", JobSpec("n", None, JobOptions(**once, ignore_dependency_on_failure=True), parent_id="parent")
    )
    parent = FlowJob("parent", "p", JobSpec("n", None, depends_on=("a", "b"), children_ids=("a", "b")))
    broker.push_flow([first, second, parent]).result(5)
    broker.pull(PullRequest("q", 2)).result(5)
    broker.fail([Failure("a")]).result(5)
    assert broker.retry_dead_letters("p").result(5) == 1
    broker.fail([Failure("b")]).result(5)
    assert broker.retry_dead_letters("q", "a").result(5) == 1
    broker.pull(PullRequest("q")).result(5)
    broker.ack([Ack("a")]).result(5)
    (delivery,) = broker.pull(PullRequest("p", owner="w")).result(5)
    clock.advance(1_000)
    (before,) = broker.push("p", [JobSpec("n", None)]).result(5).ids
    clock.advance(1_000)
    broker.move_to_waiting_children("parent", delivery.token).result(5)
    assert broker.states(["parent"]).result(5) == ["waiting-children"]
    broker.flush()
    again = opened(journal.image(), clock)
    assert [found.job.id for found in again.pull(PullRequest("p", 2)).result(5)] == [before, "parent"]
