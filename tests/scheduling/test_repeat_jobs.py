"""Repeat jobs: what is refused, when the next generation runs, what it takes over, and when the chain ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import recorded

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.job import Job
from bunqueue_core.model.options import JobReader
from bunqueue_core.scheduling.repeat import Repeats

NOW = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
DAY = 86_400_000


def generation(repeats: Repeats, now: int = NOW, **request: Any) -> Job:
    """A job as the engine would hold it after a push of ``request``."""
    spec = JobReader(check_pattern=repeats.check_pattern).read({"name": "r", "data": {"x": 1}, **request})
    job = Job("id", "q", spec.name, spec.data, spec.options, spec.priority, now, now + spec.delay, "waiting", now)
    job.unique_key, job.group_id, job.tags = spec.unique_key, spec.group_id, spec.tags
    return job


@pytest.fixture
def repeats() -> Repeats:
    return Repeats()


def test_requests_as_recorded(repeats: Repeats) -> None:
    requests: list[dict[str, Any]] = [
        {"repeat": {}},
        {"repeat": {"every": 1000, "pattern": "* * * * *"}},
        {"repeat": {"every": 0}},
        {"repeat": {"every": -1}},
        {"repeat": {"pattern": "nope"}},
        {"repeat": {"pattern": "60 * * * *"}},
        {"repeat": {"pattern": "  "}},
        {"repeat": {"pattern": "0 0 29 2 *", "tz": "Nowhere/City"}},
        {"repeat": {"every": 1000, "startDate": "x"}},
        {"repeat": {"every": 1000, "endDate": float("nan")}},
        {"repeat": {"every": 1000}, "jobId": "j"},
        {"repeat": {"every": 1000}, "parentId": "p"},
        {"repeat": {"every": 1000, "offset": 5}},
    ]
    reader = JobReader(check_pattern=repeats.check_pattern)

    def outcome(request: dict[str, Any]) -> str:
        try:
            reader.read({"name": "r", "data": {}, **request})
        except ValidationError as error:
            return str(error)
        return "accepted"

    assert [outcome(request) for request in requests] == recorded("cron.repeat_job_rules")


def test_a_pattern_may_be_an_alias(repeats: Repeats) -> None:
    repeats.check_pattern(" @Daily ", "Europe/Rome")
    with pytest.raises(ValidationError, match=r"^Cron expression has no future occurrences$"):
        repeats.check_pattern("0 0 30 2 *", None)


@pytest.mark.parametrize(
    ("repeat", "expected"),
    [
        ({"every": 1000}, NOW + 1000),
        ({"every": 1000, "offset": 300}, NOW + 1300),
        ({"every": 1000, "prevMillis": NOW - 400}, NOW + 600),
        ({"every": 1000, "prevMillis": NOW - 1000}, NOW + 1000),
        ({"every": 1000, "prevMillis": NOW - 5400}, NOW + 600),
        ({"every": 1000, "prevMillis": NOW - 400, "offset": 50}, NOW + 600),
        ({"every": 1000, "startDate": NOW + 5000}, NOW + 5000),
        ({"every": 1000, "startDate": NOW + 5000, "offset": 200}, NOW + 5200),
        ({"every": 1000, "startDate": NOW + 5000, "prevMillis": NOW - 400}, NOW + 5600),
        ({"every": 1000, "startDate": NOW - 5000}, NOW + 1000),
        ({"every": 1000, "endDate": NOW + 1000}, NOW + 1000),
        ({"every": 1000, "endDate": NOW + 999}, None),
        ({"every": 1000.0, "prevMillis": float(NOW - 400)}, NOW + 600),
        ({"pattern": "0 0 * * *", "tz": "UTC"}, 1_700_006_400_000),
        ({"pattern": "0 0 * * *", "tz": "UTC", "prevMillis": 1_700_006_400_000}, 1_700_006_400_000 + DAY),
        ({"pattern": "0 0 * * *", "tz": "UTC", "offset": 1000}, 1_700_006_401_000),
        ({"pattern": "0 0 * * *", "tz": "UTC", "offset": -1000}, 1_700_006_399_000),
        ({"pattern": "0 0 * * *", "tz": "UTC", "startDate": NOW + 3 * DAY}, 1_700_006_400_000 + 3 * DAY),
        ({"pattern": "0 0 * * *", "tz": "UTC", "startDate": 1_700_006_400_000}, 1_700_006_400_000),
        ({"pattern": "0 0 * * *", "tz": "UTC", "endDate": 1_700_006_399_999}, None),
    ],
)
def test_when_the_next_generation_runs(repeats: Repeats, repeat: dict[str, Any], expected: int | None) -> None:
    assert repeats.next_run(repeat, NOW) == expected


@settings(deadline=None)
@given(
    st.integers(1, 10**8),
    st.none() | st.integers(NOW - 10**9, NOW + 10**9),
    st.none() | st.integers(NOW - 10**9, NOW + 10**9),
    st.integers(-(10**6), 10**6),
)
def test_an_interval_is_never_in_the_past_nor_before_its_start(
    every: int, previous: int | None, start: int | None, offset: int
) -> None:
    repeat = {"every": every, "prevMillis": previous, "startDate": start, "offset": offset}
    run = Repeats().next_run(repeat, NOW)
    assert run is not None
    assert run > NOW
    assert start is None or run >= start
    if previous is not None:
        assert (run - previous) % every == 0


def test_the_successor_takes_everything_over(repeats: Repeats) -> None:
    job = generation(
        repeats,
        priority=2,
        repeat={"every": 150, "limit": 2, "jobId": "mine", "immediately": True},
        maxAttempts=7,
        backoff={"type": "fixed", "delay": 50},
        timeout=1234,
        ttl=99,
        lifo=True,
        removeOnComplete={"count": 5},
        uniqueKey="k",
        dedup={"ttl": 10},
        groupId="g",
        tags=["t"],
        durable=True,
    )
    job.attempts, job.progress = 3, 50
    successor = repeats.successor(job, NOW)
    assert successor is not None
    assert (successor.name, successor.data, successor.priority) == (job.name, job.data, 2)
    assert (successor.unique_key, successor.group_id, successor.tags) == ("k", "g", ("t",))
    assert (successor.timestamp, successor.delay, successor.custom_id) == (NOW, 150, None)
    assert successor.options.repeat == {
        "every": 150,
        "limit": 2,
        "count": 1,
        "prevMillis": NOW + 150,
        "jobId": "mine",
        "immediately": True,
    }
    for option in (
        "max_attempts",
        "backoff",
        "timeout_ms",
        "ttl_ms",
        "lifo",
        "remove_on_complete",
        "dedup_ttl_ms",
        "durable",
    ):
        assert getattr(successor.options, option) == getattr(job.options, option)


@pytest.mark.parametrize(("limit", "generations"), [(0, 1), (1, 2), (2, 3)])
def test_a_chain_has_one_run_more_than_its_limit(repeats: Repeats, limit: int, generations: int) -> None:
    job: Job | None = generation(repeats, repeat={"every": 100, "limit": limit})
    count, now = 0, NOW
    while job is not None and count < 10:
        count += 1
        successor = repeats.successor(job, now)
        if successor is None:
            break
        now += successor.delay
        job = Job("id", "q", "r", None, successor.options, 0, now, now, "waiting", now)
    assert count == generations


def test_jobs_without_repeat_have_no_successor(repeats: Repeats) -> None:
    assert repeats.successor(generation(repeats), NOW) is None


def test_many_patterns_are_read_and_not_all_kept(repeats: Repeats) -> None:
    for minute in range(60):
        for hour in range(24):
            repeats.check_pattern(f"{minute} {hour} * * *", "UTC")
    assert repeats.next_run({"pattern": "5 5 * * *", "tz": "UTC"}, NOW) is not None
