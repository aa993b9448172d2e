"""What a start makes of what an earlier process left, in cases that random calls have brought up."""

from __future__ import annotations

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.broker.protocol import Capabilities
from bunqueue_core.model.job import JobOptions, JobSpec
from bunqueue_core.model.requests import Failure, FlowJob, PullRequest
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
