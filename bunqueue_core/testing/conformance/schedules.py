"""Schedulers: definitions, runs, restarts (rules S-400 to S-419)."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue_core.model.errors import NotFound, ValidationError
from bunqueue_core.testing.conformance.harness import Harness, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


class ScheduleCases(Kit):
    """Intervals and cron expressions."""

    def _every(self, h: Harness, units: float = 1, **more: Any) -> dict[str, Any]:
        """A scheduler that runs every so many units of time."""
        return {"name": "s", "queue": "q", "data": {"v": 1}, "repeatEvery": round(units * h.unit), **more}

    @rule("S-400")
    def test_a_scheduler_is_kept_and_shown(self, h: Harness) -> None:
        entry = h.call("upsert_schedule", self._every(h, jobName="tick", priority=3, maxLimit=5))
        view = entry.view()
        assert {
            key: view[key] for key in ("name", "queue", "jobName", "repeatEvery", "executions", "maxLimit", "priority")
        } == {
            "name": "s",
            "queue": "q",
            "jobName": "tick",
            "repeatEvery": h.unit,
            "executions": 0,
            "maxLimit": 5,
            "priority": 3,
        }
        assert h.call("schedule", "s").view() == view
        assert [entry.view() for entry in h.call("schedules")] == [view]

    @rule("S-400")
    def test_unknown_schedulers(self, h: Harness) -> None:
        h.refused("schedule", "none", error=NotFound, text="Cron job not found")
        h.refused("remove_schedule", "none", error=NotFound)
        assert h.call("schedules") == []

    @rule("S-401")
    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"repeatEvery": 0},
            {"repeatEvery": -5},
            {"repeatEvery": 1.5},
            {"schedule": "not a schedule"},
            {"schedule": "* * * * *", "timezone": "Nowhere/City"},
            {"schedule": "0 0 30 2 *"},
        ],
        ids=str,
    )
    def test_a_refused_definition_changes_nothing(self, h: Harness, fields: dict[str, Any]) -> None:
        h.refused("upsert_schedule", {"name": "s", "queue": "q", "data": 1, **fields}, error=ValidationError)
        assert h.call("schedules") == []

    @rule("S-402")
    def test_an_interval_makes_jobs(self, h: Harness) -> None:
        h.call("upsert_schedule", self._every(h, 2, jobName="tick", preventOverlap=False))
        assert h.counts() == {}
        h.until(lambda: h.counts() == {"waiting": 2}, "two runs")
        first = h.take()
        assert (first.job.name, unpack(first.job.data)) == ("tick", {"v": 1})
        assert h.call("schedule", "s").executions >= 2

    @rule("S-402")
    def test_a_run_wakes_a_waiting_pull(self, h: Harness) -> None:
        h.call("upsert_schedule", self._every(h))
        waiting = h.park(wait_ms=600_000)
        h.until(lambda: not h.is_waiting(waiting), "a run")
        assert len(h.value(waiting)) == 1

    @rule("S-402")
    def test_a_cron_expression_makes_jobs(self, h: Harness) -> None:
        h.require("clock")
        entry = h.call("upsert_schedule", {"name": "s", "queue": "q", "schedule": "*/5 * * * *", "timezone": "UTC"})
        assert h.setup.clock is not None
        assert entry.next_run % 300_000 == 0
        assert 0 < entry.next_run - h.setup.clock.now_ms <= 300_000
        h.elapse(300_000)
        assert h.counts() == {"waiting": 1}

    @rule("S-403")
    def test_runs_do_not_overlap_unless_they_may(self, h: Harness) -> None:
        h.require("clock")
        h.call("upsert_schedule", self._every(h))
        for _ in range(4):
            h.elapse(h.unit)
        assert h.counts() == {"waiting": 1}
        h.complete(h.take())
        h.elapse(h.unit)
        assert h.counts() == {"waiting": 1, "completed": 1}

    @rule("S-404")
    def test_missed_slots_are_made_up_for_by_one_run(self, h: Harness) -> None:
        h.require("clock")
        h.call("upsert_schedule", self._every(h, preventOverlap=False))
        h.elapse(10.5 * h.unit)
        assert h.counts() == {"waiting": 1}
        # The next slot follows so closely that it would be the same run twice; the one after is its own.
        h.elapse(h.unit)
        h.elapse(h.unit)
        assert h.counts() == {"waiting": 2}

    @rule("S-405")
    def test_a_limit_ends_a_scheduler(self, h: Harness) -> None:
        h.call("upsert_schedule", self._every(h, maxLimit=2, preventOverlap=False))
        h.until(lambda: h.call("schedules") == [], "the end of the scheduler")
        assert h.counts() == {"waiting": 2}

    @rule("S-406")
    def test_the_first_run_may_be_now(self, h: Harness) -> None:
        h.call("upsert_schedule", self._every(h, 1_000, immediately=True))
        h.until(lambda: h.counts() == {"waiting": 1}, "a run at once")

    @rule("S-407")
    def test_an_unchanged_definition_changes_nothing(self, h: Harness) -> None:
        h.require("clock")
        before = h.call("upsert_schedule", self._every(h, 10)).view()
        h.elapse(3 * h.unit)
        assert h.call("upsert_schedule", self._every(h, 10)).view() == before
        changed = h.call("upsert_schedule", self._every(h, 20)).view()
        assert changed["repeatEvery"] == 20 * h.unit
        assert changed["nextRun"] != before["nextRun"]

    @rule("S-408")
    def test_a_removed_scheduler_makes_no_more_jobs(self, h: Harness) -> None:
        h.call("upsert_schedule", self._every(h))
        h.until(lambda: h.counts() == {"waiting": 1}, "a run")
        h.call("remove_schedule", "s")
        h.complete(h.take())
        h.elapse(3 * h.unit)
        assert h.counts() == {"completed": 1}
        assert h.call("schedules") == []

    @rule("S-409")
    def test_options_reach_the_jobs(self, h: Harness) -> None:
        options = {"maxAttempts": 7, "backoff": {"type": "fixed", "delay": 5}, "timeout": 60_000}
        h.call("upsert_schedule", self._every(h, jobOptions=options))
        h.until(lambda: h.counts() == {"waiting": 1}, "a run")
        found = h.take().job.options
        assert (found.max_attempts, found.backoff, found.timeout_ms) == (7, {"type": "fixed", "delay": 5}, 60_000)

    @rule("S-410")
    def test_runs_can_be_previewed(self, h: Harness) -> None:
        h.require("clock")
        assert h.setup.clock is not None
        now = h.setup.clock.now_ms
        runs = h.call("preview_schedule", {"name": "p", "queue": "q", "schedule": "0 * * * *", "timezone": "UTC"}, 3)
        assert [run % 3_600_000 for run in runs] == [0, 0, 0]
        assert [run - runs[0] for run in runs] == [0, 3_600_000, 7_200_000]
        assert runs[0] > now
        assert h.call("schedules") == []
        h.call("upsert_schedule", self._every(h))
        assert h.call("preview_schedule", "s", 2) == [now + h.unit, now + 2 * h.unit]

    @rule("S-411")
    def test_without_a_worker_runs_may_be_left_out(self, h: Harness) -> None:
        h.require("clock")
        h.call("upsert_schedule", self._every(h, skipIfNoWorker=True))
        h.elapse(3 * h.unit)
        assert h.counts() == {}
        h.broker.has_worker = lambda queue: queue == "q"
        h.elapse(h.unit)
        assert h.counts() == {"waiting": 1}

    @rule("S-412")
    def test_schedulers_survive_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        before = h.call("upsert_schedule", self._every(h, 100, jobName="tick", maxLimit=9)).view()
        h.reopen()
        assert h.call("schedule", "s").view() == before

    @rule("S-412")
    def test_a_run_that_was_missed_while_nobody_was_there(self, h: Harness) -> None:
        h.require("persistent", "clock")
        assert h.setup.clock is not None
        h.call("upsert_schedule", self._every(h, name="made up", queue="m", skipMissedOnRestart=False))
        h.call("upsert_schedule", self._every(h, name="left out", queue="l", skipMissedOnRestart=True))
        h.stop(h.broker)
        h.setup.clock.advance(round(5.5 * h.unit))
        h.broker = h.start(h.setup.open())
        h.run_due()
        assert (h.counts("m"), h.counts("l")) == ({"waiting": 1}, {})
        h.elapse(h.unit)
        assert h.counts("l") == {"waiting": 1}
