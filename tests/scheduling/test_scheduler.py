"""The scheduler's decisions: upserts, starts, due runs, limits, duplicates, previews. Time is a number that the tests choose."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue_core.model.errors import ConfigurationError, NotFound, ValidationError
from bunqueue_core.model.options import JobReader
from bunqueue_core.plugins.drivers import ScheduleKind
from bunqueue_core.scheduling import KINDS
from bunqueue_core.scheduling.definition import DefinitionReader, Entry
from bunqueue_core.scheduling.service import Decision, Scheduler, decide, preview, settle

NOW = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


def has_worker(_: str) -> bool:
    return True


def nobody(_: str) -> bool:
    return False


class Dates:
    """A schedule that ends: a list of dates."""

    def __init__(self, dates: list[int]) -> None:
        self.dates = dates

    def next_after(self, instant_ms: int) -> int | None:
        return next((date for date in self.dates if date > instant_ms), None)


def new_scheduler() -> Scheduler:
    dates = ScheduleKind("dates", "dates", lambda value, _: Dates(value))
    return Scheduler(DefinitionReader(JobReader(), (*KINDS, dates)))


@pytest.fixture
def scheduler() -> Scheduler:
    return new_scheduler()


def request(name: str = "c", **fields: Any) -> dict[str, Any]:
    return {"name": name, "queue": "q", "data": {"x": 1}, **fields}


class Clock:
    """Drives a scheduler as its host would: jumps from deadline to deadline and keeps what happened."""

    def __init__(self, scheduler: Scheduler, now: int = NOW, workers: Callable[[str], bool] = has_worker) -> None:
        self.scheduler = scheduler
        self.now = now
        self.workers = workers
        self.decisions: list[tuple[int, Decision]] = []

    def until(self, end: int) -> list[tuple[int, str]]:
        """Run everything due up to ``end``; returns (when, action or reason) of what happened, relative to the start."""
        first = len(self.decisions)
        while True:
            due = min(self.scheduler.entries(), key=lambda entry: entry.next_run, default=None)
            if due is None or due.next_run > end:
                break
            self.now = max(self.now, due.next_run)
            decision = self.scheduler.run(due.definition.name, self.now, self.workers)
            assert decision is not None
            self.decisions.append((self.now, decision))
        self.now = max(self.now, end)
        return [(when, decision.reason or decision.action) for when, decision in self.decisions[first:]]


# -- upserts ------------------------------------------------------------------------------------------------------------


def test_a_new_scheduler_waits_for_its_first_slot(scheduler: Scheduler) -> None:
    entry, created, changed, displaced = scheduler.upsert(request(repeatEvery=1000), NOW)
    assert (entry.next_run, entry.executions, created, changed, displaced) == (NOW + 1000, 0, True, True, None)
    entry = scheduler.upsert(request("d", schedule="0 0 * * *", timezone="UTC"), NOW).entry
    assert entry.next_run == 1_700_006_400_000
    assert scheduler.get("c").view()["repeatEvery"] == 1000
    assert [entry.definition.name for entry in scheduler.entries()] == ["c", "d"]
    assert len(scheduler) == scheduler.pending == 2


def test_an_unchanged_definition_changes_nothing(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=1000, immediately=True), NOW)
    Clock(scheduler).until(NOW + 1500)
    before = scheduler.get("c")
    state = (before.next_run, before.executions)
    for later in range(1, 50):
        upserted = scheduler.upsert(
            request(repeatEvery=1000, immediately=True, preventOverlap=True), NOW + 1500 + later
        )
        assert upserted == (before, False, False, None)
    assert (before.next_run, before.executions) == state == (NOW + 2000, 2)


def test_a_changed_definition_starts_over_but_keeps_executions_and_place(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=1000), NOW)
    scheduler.upsert(request("d", repeatEvery=1000), NOW)
    Clock(scheduler).until(NOW + 1000)
    upserted = scheduler.upsert(request(repeatEvery=HOUR, priority=3, immediately=True), NOW + 1100)
    assert (upserted.created, upserted.changed, upserted.displaced) == (False, True, None)
    assert (upserted.entry.next_run, upserted.entry.executions) == (NOW + 1100 + HOUR, 1)
    assert [entry.definition.name for entry in scheduler.entries()] == ["c", "d"]
    assert scheduler.upsert(request(repeatEvery=MINUTE), NOW + 1200).entry.next_run == NOW + 1200 + MINUTE


def test_a_refused_upsert_changes_nothing(scheduler: Scheduler) -> None:
    scheduler.upsert(request(schedule="0 0 29 2 *", priority=1), NOW)
    before = scheduler.get("c").view()
    for bad in ({"schedule": "nonsense"}, {"schedule": "0 0 29 2 *", "timezone": "Nowhere/City"}, {"dates": [NOW - 1]}):
        with pytest.raises(ValidationError):
            scheduler.upsert(request(priority=2, **bad), NOW)
    assert scheduler.get("c").view() == before
    with pytest.raises(ValidationError, match="no future occurrences"):
        scheduler.upsert(request("new", dates=[NOW]), NOW)
    assert len(scheduler) == 1


def test_saying_prevent_overlap_displaces_the_queued_job(scheduler: Scheduler) -> None:
    assert scheduler.upsert(request(repeatEvery=1000), NOW).displaced is None
    assert scheduler.upsert(request(repeatEvery=1001, preventOverlap=True), NOW).displaced == "cron:c"
    assert scheduler.upsert(request(repeatEvery=1002, preventOverlap=True, uniqueKey="k"), NOW).displaced == "k"
    assert scheduler.upsert(request(repeatEvery=1003), NOW).displaced is None


def test_look_ups_of_what_is_not_there(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=1000), NOW)
    assert scheduler.remove("c").definition.name == "c"
    for name in ("c", None, 5, ["c"]):
        with pytest.raises(NotFound, match=r"^Cron job not found$"):
            scheduler.get(name)
        with pytest.raises(NotFound, match=r"^Cron job not found$"):
            scheduler.remove(name)
    assert scheduler.run("c", NOW + DAY, has_worker) is None


# -- due runs -----------------------------------------------------------------------------------------------------------


def test_a_run_pushes_the_job_and_moves_on(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=1000, jobName="tick", priority=6), NOW)
    assert scheduler.run("c", NOW + 999, has_worker) is None
    decision = scheduler.run("c", NOW + 1003, has_worker)
    assert decision is not None
    assert (decision.action, decision.name, decision.queue, decision.slot) == ("fire", "c", "q", NOW + 1000)
    assert (decision.next_run, decision.removes, decision.reason) == (NOW + 2000, False, None)
    assert decision.job is not None
    assert (decision.job.name, decision.job.priority, decision.job.unique_key) == ("tick", 6, "cron:c")
    entry = scheduler.get("c")
    assert (entry.next_run, entry.executions) == (NOW + 2000, 1)
    assert scheduler.run("c", NOW + 1004, has_worker) is None


def test_intervals_do_not_drift(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=1000), NOW)
    for slot in range(1, 200):
        decision = scheduler.run("c", NOW + slot * 1000 + slot % 7, has_worker)
        assert decision is not None
        assert (decision.action, decision.slot) == ("fire", NOW + slot * 1000)


def test_deciding_changes_nothing_until_it_is_settled(scheduler: Scheduler) -> None:
    entry = scheduler.upsert(request(repeatEvery=1000), NOW).entry
    first = decide(entry, NOW + 1000, has_worker)
    assert (entry.next_run, entry.executions) == (NOW + 1000, 0)
    assert decide(entry, NOW + 1000, has_worker).next_run == first.next_run
    settle(entry, first, NOW + 1000)
    assert (entry.next_run, entry.executions) == (NOW + 2000, 1)


def test_immediately_is_a_run_at_creation_only(scheduler: Scheduler) -> None:
    entry = scheduler.upsert(request(repeatEvery=HOUR, immediately=True), NOW).entry
    assert entry.next_run == NOW
    clock = Clock(scheduler)
    assert clock.until(NOW + HOUR) == [(NOW, "fire"), (NOW + HOUR, "fire")]
    scheduler.upsert(request(repeatEvery=HOUR, immediately=True, priority=1), NOW + HOUR + 5)
    assert scheduler.get("c").next_run == NOW + 2 * HOUR + 5


def test_a_scheduler_goes_when_the_run_after_its_last_is_due(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=1000, maxLimit=2), NOW)
    clock = Clock(scheduler)
    assert clock.until(NOW + 2999) == [(NOW + 1000, "fire"), (NOW + 2000, "fire")]
    assert scheduler.get("c").executions == 2
    assert (len(scheduler), scheduler.pending) == (1, 0)
    assert clock.until(NOW + 10_000) == [(NOW + 3000, "remove")]
    last = clock.decisions[-1][1]
    assert last.removes
    assert last.job is None
    assert len(scheduler) == 0
    assert scheduler.upsert(request(repeatEvery=1000, maxLimit=2), NOW + 5000).entry.executions == 0


def test_a_schedule_that_ends_goes_with_its_last_run(scheduler: Scheduler) -> None:
    scheduler.upsert(request(dates=[NOW + 1000, NOW + 5000]), NOW)
    clock = Clock(scheduler)
    assert clock.until(NOW + DAY) == [(NOW + 1000, "fire"), (NOW + 5000, "fire")]
    assert clock.decisions[-1][1].removes
    assert len(scheduler) == 0


def test_runs_without_a_worker_are_skipped_and_not_counted(scheduler: Scheduler) -> None:
    asked = []

    def workers(queue: str) -> bool:
        asked.append(queue)
        return len(asked) > 3

    scheduler.upsert(request(repeatEvery=1000, skipIfNoWorker=True, maxLimit=1), NOW)
    clock = Clock(scheduler, workers=workers)
    assert [what for _, what in clock.until(NOW + 5000)] == ["no-worker", "no-worker", "no-worker", "fire", "remove"]
    assert asked == ["q"] * 4
    assert [decision.job is None for _, decision in clock.decisions] == [True, True, True, False, True]


def test_workers_do_not_matter_otherwise(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=1000), NOW)
    assert [what for _, what in Clock(scheduler, workers=nobody).until(NOW + 2000)] == ["fire", "fire"]


# -- six fields and the window for duplicates ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "gaps"),
    [
        ("*/10 * * * * *", {10 * SECOND}),
        ("* * * * * *", {SECOND}),
        ("0,5 * * * * *", {5 * SECOND, 55 * SECOND}),
        ("*/20 */2 * * * *", {20 * SECOND, 80 * SECOND}),
        ("* * * * *", {MINUTE}),
    ],
)
def test_expressions_fire_when_they_say(scheduler: Scheduler, expression: str, gaps: set[int]) -> None:
    scheduler.upsert(request(schedule=expression, timezone="UTC"), NOW)
    happened = Clock(scheduler).until(NOW + 10 * MINUTE)
    assert {what for _, what in happened} == {"fire"}
    assert {later - earlier for (earlier, _), (later, _) in itertools.pairwise(happened)} == gaps


def test_lateness_below_an_interval_costs_no_run(scheduler: Scheduler) -> None:
    scheduler.upsert(request(schedule="* * * * * *", timezone="UTC"), NOW)
    scheduler.upsert(request("d", repeatEvery=SECOND), NOW)
    for slot in range(1, 60):
        late = slot * 37 % 990
        for name in ("c", "d"):
            decision = scheduler.run(name, NOW + slot * SECOND + late, has_worker)
            assert decision is not None
            assert (decision.action, decision.slot, decision.out_of_turn) == ("fire", NOW + slot * SECOND, False)


@pytest.mark.parametrize(
    ("expression", "before_slot", "expected"),
    [
        ("* * * * *", 47 * SECOND, "overlap"),
        ("* * * * *", 49 * SECOND, "fire"),
        ("0 0 * * *", 47 * SECOND, "overlap"),
        ("0 0 * * *", 49 * SECOND, "fire"),
        ("0 0 * * *", HOUR, "fire"),
        ("*/10 * * * * *", 7 * SECOND, "overlap"),
        ("*/10 * * * * *", 9 * SECOND, "fire"),
        ("0,5 * * * * *", 3 * SECOND, "overlap"),
    ],
)
def test_a_slot_just_after_the_run_at_creation_is_the_same_run(
    scheduler: Scheduler, expression: str, before_slot: int, expected: str
) -> None:
    midnight = 1_700_006_400_000
    scheduler.upsert(request(schedule=expression, timezone="UTC", immediately=True), midnight - before_slot)
    clock = Clock(scheduler, midnight - before_slot)
    assert clock.until(midnight) == [(midnight - before_slot, "fire"), (midnight, expected)]
    assert scheduler.get("c").executions == (1 if expected == "overlap" else 2)
    # Only that one slot: the next fires.
    assert clock.until(scheduler.get("c").next_run)[-1][1] == "fire"


@pytest.mark.parametrize("timing", [{"repeatEvery": MINUTE}, {"schedule": "*/10 * * * * *", "timezone": "UTC"}])
def test_a_slot_that_is_noticed_late_is_not_taken_for_the_run_at_creation(
    scheduler: Scheduler, timing: dict[str, Any]
) -> None:
    scheduler.upsert(request(immediately=True, **timing), NOW)
    first = scheduler.run("c", NOW, has_worker)
    late = scheduler.run("c", NOW + 10 * MINUTE + 5 * SECOND, has_worker)
    assert first is not None
    assert late is not None
    assert (first.action, late.action) == ("fire", "fire")


def test_several_slots_that_have_passed_are_made_up_for_by_one_run(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=HOUR), NOW)
    scheduler.upsert(request("d", schedule="0 * * * *", timezone="UTC"), NOW)
    late = NOW + 5 * HOUR + 10 * MINUTE  # 03:23:20
    decision = scheduler.run("c", late, has_worker)
    assert decision is not None
    assert (decision.action, decision.slot, decision.next_run) == ("fire", NOW + HOUR, NOW + 6 * HOUR)
    assert decision.out_of_turn
    decision = scheduler.run("d", late, has_worker)
    assert decision is not None
    assert (decision.action, decision.next_run) == ("fire", 1_700_020_800_000)
    assert scheduler.get("c").executions == scheduler.get("d").executions == 1


def test_a_slot_close_after_such_a_run_is_skipped(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=HOUR), NOW)
    assert scheduler.run("c", NOW + 2 * HOUR + 30 * MINUTE, has_worker) is not None
    clock = Clock(scheduler, NOW + 2 * HOUR + 30 * MINUTE)
    assert [what for _, what in clock.until(NOW + 5 * HOUR)] == ["overlap", "fire", "fire"]


def test_a_changed_definition_forgets_what_ran(scheduler: Scheduler) -> None:
    scheduler.upsert(request(schedule="* * * * *", immediately=True), NOW)
    clock = Clock(scheduler)
    clock.until(NOW)
    scheduler.upsert(request(schedule="*/1 * * * *", immediately=True), NOW + SECOND)
    assert [what for _, what in clock.until(NOW + 41 * SECOND)] == ["fire"]


def test_a_clock_that_is_set_back_fires_nothing_twice(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=1000), NOW)
    assert scheduler.run("c", NOW + 1000, has_worker) is not None
    assert scheduler.run("c", NOW + 1000 - HOUR, has_worker) is None
    assert scheduler.run("c", NOW + 1999, has_worker) is None
    assert scheduler.run("c", NOW + 2000, has_worker) is not None


# -- starts -------------------------------------------------------------------------------------------------------------


def stored(scheduler: Scheduler) -> list[tuple[Any, ...]]:
    return [scheduler.reader.to_row(entry) for entry in scheduler.entries()]


@pytest.mark.parametrize(
    ("fields", "overdue", "moved", "next_run"),
    [
        ({"repeatEvery": HOUR}, True, True, HOUR),
        ({"repeatEvery": HOUR, "skipMissedOnRestart": False}, True, False, None),
        ({"repeatEvery": HOUR, "skipMissedOnRestart": False, "skipIfNoWorker": True}, True, True, HOUR),
        ({"repeatEvery": HOUR}, False, False, None),
        ({"schedule": "13 * * * *", "timezone": "UTC"}, True, True, HOUR - 20 * SECOND),
        ({"schedule": "13 * * * *", "timezone": "UTC", "skipMissedOnRestart": False}, True, False, None),
    ],
)
def test_runs_that_were_missed(fields: dict[str, Any], overdue: bool, moved: bool, next_run: int | None) -> None:
    before = new_scheduler()
    entry = before.upsert(request(**fields), NOW).entry
    entry.executions = 4
    start = NOW + 25 * HOUR if overdue else entry.next_run
    scheduler = new_scheduler()
    loaded = scheduler.load(stored(before), start)
    again = scheduler.get("c")
    assert again.executions == 4
    assert loaded == ([again] if moved else [], [])
    assert again.next_run == (start + next_run if next_run is not None else entry.next_run)


def test_an_overdue_run_fires_once_at_the_start(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=HOUR, skipMissedOnRestart=False, immediately=True), NOW)
    scheduler.get("c").next_run = NOW + HOUR
    restarted = new_scheduler()
    start = NOW + 3 * HOUR + MINUTE
    assert restarted.load(stored(scheduler), start) == ([], [])
    clock = Clock(restarted, start)
    assert clock.until(NOW + 4 * HOUR) == [(start, "fire"), (NOW + 4 * HOUR, "fire")]


def test_schedules_that_ended_meanwhile_are_gone(scheduler: Scheduler) -> None:
    scheduler.upsert(request(dates=[NOW + 1000]), NOW)
    scheduler.upsert(request("d", dates=[NOW + 1000], skipMissedOnRestart=False), NOW)
    restarted = new_scheduler()
    assert restarted.load(stored(scheduler), NOW + HOUR) == ([], ["c"])
    assert Clock(restarted, NOW + HOUR).until(NOW + HOUR) == [(NOW + HOUR, "fire")]
    assert len(restarted) == 0


def test_stored_schedules_are_taken_over_all_or_none(scheduler: Scheduler) -> None:
    scheduler.upsert(request(repeatEvery=HOUR), NOW)
    good = stored(scheduler)
    bad = [("x", *good[0][1:4], "0 0 * * 5L", *good[0][5:]), ("y", *good[0][1:5], None, *good[0][6:])]
    restarted = new_scheduler()
    with pytest.raises(ConfigurationError) as caught:
        restarted.load(good + bad, NOW)
    assert len(caught.value.problems) == 2
    assert caught.value.problems[0].startswith('Persisted cron "x" uses unsupported schedule "0 0 * * 5L".')
    assert caught.value.problems[1].startswith('Persisted cron "y" has invalid timing: ')
    assert len(restarted) == 0


def test_an_upsert_after_a_start_is_still_unchanged(scheduler: Scheduler) -> None:
    fields = request(
        schedule="*/5 * * * *",
        timezone="Europe/Rome",
        data={"big": 2**40, "nested": {"a": [1, 2.5, None]}},
        dedup={"ttl": 5000},
        jobOptions={"timeout": 90, "removeOnComplete": {"age": 5}, "backoff": {"type": "fixed", "delay": 5}},
        immediately=True,
    )
    scheduler.upsert(fields, NOW)
    restarted = new_scheduler()
    restarted.load(stored(scheduler), NOW)
    assert not restarted.upsert(fields, NOW + 1).changed


# -- previews -----------------------------------------------------------------------------------------------------------


def test_previews(scheduler: Scheduler) -> None:
    entry = scheduler.upsert(request(repeatEvery=1000), NOW).entry
    assert preview(entry, 3) == [NOW + 1000, NOW + 2000, NOW + 3000]
    entry = scheduler.upsert(request("d", schedule="0 0 * * *", timezone="UTC", maxLimit=2), NOW).entry
    assert preview(entry, 5) == [1_700_006_400_000, 1_700_006_400_000 + DAY]
    entry.executions = 2
    assert preview(entry, 5) == []
    assert preview(entry, 0) == []
    entry = scheduler.upsert(request("e", dates=[NOW + 5, NOW + 7]), NOW).entry
    assert preview(entry, 5) == [NOW + 5, NOW + 7]
    assert len(preview(scheduler.get("c"), 10**9)) == 1000


def test_a_request_can_be_previewed_before_it_is_sent(scheduler: Scheduler) -> None:
    assert scheduler.preview_request(request(repeatEvery=1000, immediately=True), NOW, 2) == [NOW, NOW + 1000]
    assert len(scheduler) == 0
    with pytest.raises(ValidationError, match=r"^Invalid cron expression: "):
        scheduler.preview_request(request(schedule="x"), NOW, 2)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["*/7 * * * *", "*/20 * * * * *", "30 2 * * *", "0 0 1 * *"]) | st.integers(1, 10**6),
    st.integers(1, 6),
)
def test_a_preview_is_what_happens(timing: str | int, count: int) -> None:
    scheduler = new_scheduler()
    fields = {"schedule": timing, "timezone": "Europe/Rome"} if isinstance(timing, str) else {"repeatEvery": timing}
    entry = scheduler.upsert(request(**fields), NOW).entry
    expected = preview(entry, count)
    assert Clock(scheduler).until(expected[-1]) == [(run, "fire") for run in expected]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["* * * * * *", "*/13 * * * * *", "*/2 * * * *"]) | st.integers(50, 10**6),
    st.booleans(),
    st.lists(st.integers(0, 10**6), min_size=5, max_size=40),
)
def test_whatever_the_lateness_runs_go_forward_and_counts_are_right(
    timing: str | int, immediately: bool, delays: list[int]
) -> None:
    scheduler = new_scheduler()
    fields = {"schedule": timing, "timezone": "UTC"} if isinstance(timing, str) else {"repeatEvery": timing}
    entry: Entry = scheduler.upsert(request(immediately=immediately, **fields), NOW).entry
    fired, now, skipped_before = 0, NOW, False
    for delay in delays:
        now = max(now, entry.next_run) + delay
        decision = scheduler.run("c", now, has_worker)
        assert decision is not None
        assert decision.slot <= now
        assert entry.next_run > now
        if decision.action == "fire":
            fired += 1
            skipped_before = False
        else:
            assert decision.reason == "overlap"
            assert not skipped_before  # one run out of turn costs at most one slot
            skipped_before = True
    assert entry.executions == fired
