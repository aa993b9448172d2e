"""What a start makes of what an earlier process left, in cases that random calls have brought up."""

from __future__ import annotations

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.model.job import JobOptions, JobSpec
from bunqueue_core.model.requests import Ack, Failure, FlowJob, PullRequest
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
