"""Jobs and dead letters come back from their rows as they were."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bunqueue_core.model.job import (
    DEFAULT_OPTIONS,
    Job,
    JobOptions,
    Location,
    Retention,
    RetryHistory,
    append_timeline,
    timeline_of,
)
from bunqueue_core.model.payload import Packer
from bunqueue_core.model.requests import DlqEntry
from bunqueue_core.storage.records import RowBuilder, dlq_from_row, job_from_row

NOW = 1_796_000_000_000
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
IDS = st.lists(TEXT.filter(bool), max_size=3, unique=True).map(tuple)
MS = st.integers(0, 2**45)
OPTIONS = st.builds(
    JobOptions,
    max_attempts=st.integers(1, 1000),
    backoff_ms=st.integers(0, 86_400_000),
    backoff=st.none() | st.just({"type": "fixed", "delay": 5_000_000_000}),
    ttl_ms=st.none() | MS,
    timeout_ms=st.none() | MS,
    stall_timeout_ms=st.none() | MS,
    lifo=st.booleans(),
    remove_on_complete=st.sampled_from([Retention(), Retention(True), Retention(age_ms=2**40, count=3)]),
    remove_on_fail=st.sampled_from([Retention(), Retention(True), Retention(count=0)]),
    stack_trace_limit=st.integers(0, 20),
    keep_logs=st.none() | st.integers(0, 100),
    fail_parent_on_failure=st.booleans(),
    dedup_ttl_ms=st.none() | MS,
    dedup_replace=st.booleans(),
    dedup_scope=st.sampled_from([None, "waiting", "unfinished", "window"]),
    durable=st.booleans(),
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    created = NOW - draw(st.integers(0, 10**9))
    job = Job(
        draw(TEXT.filter(bool)),
        "q",
        draw(TEXT.filter(bool)),
        Packer().pack(draw(st.dictionaries(TEXT, st.integers() | TEXT, max_size=3).filter(_fits))),
        draw(OPTIONS | st.just(DEFAULT_OPTIONS)),
        draw(st.integers(-10, 10)),
        created,
        created + draw(st.integers(0, 10**9)),
        "waiting",
        draw(st.sampled_from([created, NOW])),
    )
    job.attempts = draw(st.integers(0, 5))
    job.stall_count = draw(st.integers(0, 5))
    job.progress = draw(st.integers(0, 99))
    job.progress_message = draw(st.none() | TEXT)
    job.custom_id = draw(st.none() | TEXT)
    job.unique_key = draw(st.none() | TEXT)
    job.group_id = draw(st.none() | TEXT)
    job.group_order = draw(st.integers(1, 2**40)) if job.group_id is not None else 0
    job.parent_id = draw(st.none() | TEXT.filter(bool))
    job.depends_on = draw(IDS)
    job.children_ids = draw(IDS)
    job.tags = draw(IDS)
    job.stacktrace = draw(st.none() | st.lists(TEXT, max_size=3))
    if draw(st.booleans()):
        append_timeline(job, {"state": "active", "timestamp": NOW})
        append_timeline(job, {"state": "failed", "timestamp": NOW, "error": draw(TEXT), "attempt": 1})
    if draw(st.booleans()):
        history = job.history = RetryHistory()
        history.losses = draw(st.integers(0, 3))
        history.attempts.append(
            {"attempt": 1, "startedAt": NOW, "failedAt": NOW, "reason": "stalled", "error": draw(TEXT), "duration": 5}
        )
    return job


def _fits(data: dict) -> bool:
    return all(not isinstance(value, int) or -(2**63) <= value < 2**64 for value in data.values())


def same(one: Job, other: Job, *, but: frozenset[str] = frozenset()) -> None:
    marks = {"stored", "dirty", "where", "timer", "lease", "session", "location", "timeline", "history", "admitted_as"}
    for name in Job.__slots__:
        if name not in marks | but:
            assert getattr(one, name) == getattr(other, name), name
    assert timeline_of(one) == timeline_of(other)
    for name in RetryHistory.__slots__:
        assert getattr(one.history, name, None) == getattr(other.history, name, None)


@given(jobs())
def test_a_job_comes_back_from_its_whole_row(job: Job) -> None:
    back = job_from_row(RowBuilder().put(job))
    same(job, back)
    assert back.location == Location.READY


@given(jobs())
def test_a_dead_letter_comes_back_with_its_job(job: Job) -> None:
    job.location = Location.DEAD
    attempts = job.history.attempts if job.history is not None else []
    job.history = None
    entry = DlqEntry(job, NOW, "stalled", "why", attempts, 2, NOW, None, NOW + 1)
    back = dlq_from_row(RowBuilder().dlq(7, entry), Packer())
    same(job, back.job)
    assert replace(back, job=job) == entry


def test_a_plain_job_needs_only_the_plain_columns() -> None:
    job = Job("i", "q", "n", b"\x01", DEFAULT_OPTIONS, 3, NOW, NOW + 5, "delayed", NOW)
    row = RowBuilder.put_plain(job)
    assert row.rest is None
    same(job, job_from_row(row))
    assert timeline_of(job_from_row(row)) == [{"state": "delayed", "timestamp": NOW}]
