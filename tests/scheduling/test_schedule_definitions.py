"""Definitions of schedulers: what a request may say, what is shown and stored of it, and when two say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack
import pytest
from recordings import recorded

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.job import KEEP, REMOVE, Retention
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.payload import decode
from bunqueue_core.plugins.drivers import ScheduleKind
from bunqueue_core.scheduling import KINDS
from bunqueue_core.scheduling.definition import DefinitionReader, Entry, StoredScheduleError, Upsert
from bunqueue_core.scheduling.interval import IntervalSchedule
from bunqueue_core.storage.changes import CRON_TABLE

NOW = 1_700_000_000_000


class Hourly:
    """A kind of a plugin: runs so many hours apart."""

    def __init__(self, hours: int) -> None:
        self.hours = hours

    def next_after(self, instant_ms: int) -> int:
        return instant_ms + self.hours * 3_600_000


def parse_hours(value: Any, timezone: str | None) -> Hourly:
    if not isinstance(value, Mapping) or not isinstance(value.get("count"), int):
        raise ValidationError("hours must be an object with a count")
    return Hourly(value["count"])


PLUGIN_KINDS = (*KINDS, ScheduleKind("hours", "hours", parse_hours))


@pytest.fixture
def reader() -> DefinitionReader:
    return DefinitionReader(JobReader())


def request(**fields: Any) -> dict[str, Any]:
    return {"name": "c", "queue": "q", "data": {"x": 1}, "repeatEvery": 60_000, **fields}


def read(reader: DefinitionReader, **fields: Any) -> Upsert:
    return reader.read(request(**fields))


def outcome(reader: DefinitionReader, fields: Mapping[str, Any]) -> str:
    try:
        reader.read(fields)
    except ValidationError as error:
        return str(error)
    return "accepted"


# -- requests -----------------------------------------------------------------------------------------------------------


def test_refusals_as_recorded(reader: DefinitionReader) -> None:
    base = {"name": "c", "queue": "q", "data": {}}
    requests: list[dict[str, Any]] = [
        {**base, "repeatEvery": every} for every in (0, -5, 1.5, "1000", True, 9007199254740993.0)
    ]
    requests += [{**base, "repeatEvery": 60000, "jobName": name} for name in ("", 5, "n" * 257)]
    requests.append({**base, "data": {"name": ""}, "repeatEvery": 60000})
    requests.append({**base, "schedule": "0 0 29 2 *", "repeatEvery": 0})
    assert [outcome(reader, fields) for fields in requests] == recorded("cron.refused_records")
    for fields in (base, {**base, "schedule": ""}):
        assert outcome(reader, fields) == "Cron job must have either schedule or repeatEvery"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": None}, "Cron name is required"),
        ({"name": ""}, "Cron name is required"),
        ({"name": 5}, "Cron name must be a string"),
        ({"name": "a\0b"}, "Cron name must not contain NUL characters"),
        ({"name": "\ud800"}, "Cron name must be well-formed Unicode"),
        ({"name": "n" * 1020}, "Cron name must be at most 1019 characters"),
        ({"queue": None}, "Queue name is required"),
        ({"queue": 7}, "Queue name must be a string"),
        ({"queue": "a b"}, "Queue name contains invalid characters"),
        ({"jobName": None}, "Job name must be a non-empty string of at most 256 characters"),
        ({"schedule": 5, "repeatEvery": None}, "Invalid cron expression: Cron expression must be a string"),
        ({"timezone": 5}, "timezone must be a string"),
        ({"priority": 1.5}, "priority must be an integer"),
        ({"priority": float("nan")}, "priority must be a finite number"),
        ({"priority": "1"}, "priority must be a number"),
        ({"priority": 1_000_001}, "priority must be at most 1000000"),
        ({"maxLimit": float("inf")}, "maxLimit must be a finite number"),
        ({"maxLimit": 2.5}, "maxLimit must be an integer"),
        ({"maxLimit": "3"}, "maxLimit must be a number"),
        ({"uniqueKey": 5}, "uniqueKey must be a string"),
        ({"uniqueKey": "k" * 1025}, "uniqueKey must be at most 1024 characters"),
        ({"dedup": 5}, "dedup must be an object"),
        ({"dedup": {"ttl": float("nan")}}, "dedup.ttl must be a finite number"),
        ({"jobOptions": []}, "jobOptions must be an object"),
        ({"jobOptions": {"maxAttempts": 0}}, "maxAttempts must be at least 1"),
        ({"jobOptions": {"backoff": {"type": "never", "delay": 1}}}, "backoff.type must be 'fixed' or 'exponential'"),
        ({"jobOptions": {"timeout": float("inf")}}, "timeout must be a finite number"),
        ({"immediately": "yes"}, "immediately must be a boolean"),
        ({"preventOverlap": "yes"}, "preventOverlap must be a boolean"),
    ],
)
def test_refused(reader: DefinitionReader, fields: dict[str, Any], reason: str) -> None:
    assert outcome(reader, request(**fields)) == reason


def test_the_first_violation_is_reported(reader: DefinitionReader) -> None:
    fields: dict[str, Any] = {"name": 5, "queue": 5, "jobName": 5, "repeatEvery": 0, "schedule": "x", "priority": "x"}
    repairs = {"name": "c", "queue": "q", "jobName": "j", "repeatEvery": None, "schedule": "@daily", "priority": 1}
    seen = []
    for field, value in repairs.items():
        seen.append(outcome(reader, fields))
        fields[field] = value
    assert seen == [
        "Cron name must be a string",
        "Queue name must be a string",
        "Job name must be a non-empty string of at most 256 characters",
        "Cron repeatEvery must be a positive safe integer number of milliseconds",
        "Invalid cron expression: Cron expression must have 5 fields, or 6 fields with leading seconds",
        "priority must be a number",
    ]
    assert outcome(reader, fields) == "accepted"


def test_defaults(reader: DefinitionReader) -> None:
    upsert = read(reader)
    definition = upsert.definition
    assert (upsert.immediately, upsert.replaces_queued) == (False, False)
    assert (definition.skip_missed_on_restart, definition.skip_if_no_worker, definition.prevent_overlap) == (
        True,
        False,
        True,
    )
    assert (definition.job_name, definition.priority, definition.max_limit, definition.delay) == ("default", 0, None, 0)
    assert (definition.unique_key, definition.job_key) == (None, "cron:c")
    assert decode(definition.data or b"") == {"x": 1}


def test_null_is_not_given(reader: DefinitionReader) -> None:
    names = ("schedule", "timezone", "priority", "maxLimit", "uniqueKey", "dedup", "skipMissedOnRestart", "immediately")
    names += ("skipIfNoWorker", "preventOverlap", "jobOptions")
    assert read(reader).definition.same_as(read(reader, **dict.fromkeys(names)).definition)


@pytest.mark.parametrize(("limit", "expected"), [(0, None), (-1, None), (None, None), (7, 7), (7.0, 7)])
def test_useless_limits_are_none(reader: DefinitionReader, limit: Any, expected: int | None) -> None:
    assert read(reader, maxLimit=limit).definition.max_limit == expected


def test_the_name_of_the_jobs(reader: DefinitionReader) -> None:
    def named(**fields: Any) -> tuple[str, Any]:
        definition = read(reader, **fields).definition
        return definition.job_name, decode(definition.data or b"")

    assert named(data={"name": "old", "v": 1}) == ("old", {"v": 1})
    assert named(data={"v": 1}) == ("default", {"v": 1})
    assert named(data={"name": 5}) == ("default", {"name": 5})
    assert named(data={"name": "kept"}, jobName="own") == ("own", {"name": "kept"})
    assert named(data=[1]) == ("default", [1])


def test_a_request_without_data_makes_jobs_without_data(reader: DefinitionReader) -> None:
    fields = request()
    del fields["data"]
    definition = reader.read(fields).definition
    assert definition.data is None
    assert definition.job().data is None


def test_unique_keys_of_the_jobs(reader: DefinitionReader) -> None:
    assert read(reader, uniqueKey="mine").definition.job_key == "mine"
    assert read(reader, uniqueKey="mine", preventOverlap=False).definition.job_key == "mine"
    assert read(reader, preventOverlap=False).definition.job_key is None
    assert read(reader, uniqueKey="").definition.job_key is None
    assert read(reader, preventOverlap=True).replaces_queued


def test_only_some_job_options_count(reader: DefinitionReader) -> None:
    options = {
        "maxAttempts": 7,
        "backoff": {"type": "fixed", "delay": 50},
        "timeout": 1234,
        "stallTimeout": 5678,
        "delay": 9,
        "removeOnComplete": True,
        "removeOnFail": {"count": 3},
        "priority": 9,
        "ttl": 5,
        "lifo": True,
        "tags": ["t"],
    }
    job = read(reader, priority=2, jobOptions=options, dedup={"ttl": 10, "replace": True}).definition.job()
    assert (job.name, job.priority, job.delay, job.unique_key, job.tags) == ("default", 2, 9, "cron:c", ())
    assert (job.options.max_attempts, job.options.backoff_ms, job.options.backoff) == (
        7,
        50,
        {"type": "fixed", "delay": 50},
    )
    assert (job.options.timeout_ms, job.options.stall_timeout_ms, job.options.ttl_ms, job.options.lifo) == (
        1234,
        5678,
        None,
        False,
    )
    assert (job.options.remove_on_complete, job.options.remove_on_fail) == (REMOVE, Retention(count=3))
    assert (job.options.dedup_ttl_ms, job.options.dedup_replace) == (10, True)


# -- what is shown ------------------------------------------------------------------------------------------------------


def test_the_projection_as_recorded(reader: DefinitionReader) -> None:
    fields = {"schedule": "0 0 29 2 *", "timezone": "Europe/Rome", "jobName": "report", "priority": 4, "maxLimit": 3}
    entry = Entry(read(reader, **fields).definition, NOW)
    view = entry.view()
    assert sorted(view) == recorded("cron.full_record")[0]
    assert view == {
        "name": "c",
        "jobName": "report",
        "queue": "q",
        "schedule": "0 0 29 2 *",
        "repeatEvery": 60_000,
        "nextRun": NOW,
        "executions": 0,
        "maxLimit": 3,
        "timezone": "Europe/Rome",
        "priority": 4,
    }


def test_event_fields(reader: DefinitionReader) -> None:
    assert Entry(read(reader).definition, 5).event() == {"name": "c", "queue": "q", "every": 60_000, "nextRun": 5}
    pattern = read(reader, schedule=" @Yearly", repeatEvery=None).definition
    assert Entry(pattern, 5).event() == {"name": "c", "queue": "q", "pattern": " @Yearly", "nextRun": 5}


# -- rows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"schedule": "0 0 29 2 *", "timezone": "Europe/Rome", "repeatEvery": None},
        {"schedule": "@Yearly", "timezone": ""},
        {"data": None},
        {"data": {"wide": 2**40, "deep": [1.5, None, True, "é"], "b": b"\0"}, "jobName": "j"},
        {
            "uniqueKey": "k",
            "dedup": {"ttl": 5000, "extend": True},
            "preventOverlap": False,
            "maxLimit": 3,
            "priority": -5,
        },
        {"jobOptions": {"timeout": 2**33 // 200, "removeOnComplete": {"age": 1.5}}, "skipMissedOnRestart": False},
        {"skipIfNoWorker": True, "timezone": "Nowhere/City", "dedup": {}, "jobOptions": {}},
    ],
)
def test_rows_come_back_as_the_same_scheduler(reader: DefinitionReader, fields: dict[str, Any]) -> None:
    entry = Entry(read(reader, **fields).definition, NOW, 12)
    row = reader.to_row(entry)
    assert len(row) == len(CRON_TABLE.columns)
    back = reader.from_row(row)
    assert back.definition.same_as(entry.definition)
    assert (back.next_run, back.executions) == (NOW, 12)
    assert (back.definition.options, back.definition.delay) == (entry.definition.options, entry.definition.delay)
    assert back.view() == entry.view()
    assert reader.to_row(back) == row


def test_the_columns_of_a_row(reader: DefinitionReader) -> None:
    entry = Entry(
        read(reader, uniqueKey="k", dedup={"ttl": 5}, jobOptions={"maxAttempts": 2}, maxLimit=9).definition, NOW, 1
    )
    assert dict(zip(CRON_TABLE.column_names, reader.to_row(entry), strict=True)) == {
        "name": "c",
        "queue": "q",
        "job_name": "default",
        "data": msgpack.packb({"x": 1}),
        "schedule": None,
        "repeat_every": 60_000,
        "priority": 0,
        "next_run": NOW,
        "executions": 1,
        "max_limit": 9,
        "timezone": None,
        "unique_key": "k",
        "dedup": msgpack.packb({"ttl": 5}),
        "skip_missed_on_restart": 1,
        "skip_if_no_worker": 0,
        "prevent_overlap": 1,
        "job_options": msgpack.packb({"maxAttempts": 2}),
    }


def stored(**columns: Any) -> tuple[Any, ...]:
    """A row as another program may have written it."""
    row: dict[str, Any] = dict.fromkeys(CRON_TABLE.column_names)
    row |= {"name": "c", "queue": "q", "data": msgpack.packb({}), "repeat_every": 1000, "priority": 0, "next_run": NOW}
    row |= {"executions": 0, "skip_missed_on_restart": 1, "skip_if_no_worker": 0, "prevent_overlap": 1, **columns}
    return tuple(row[name] for name in CRON_TABLE.column_names)


def test_rows_of_the_reference(reader: DefinitionReader) -> None:
    undefined = msgpack.ExtType(0, b"\0")
    entry = reader.from_row(
        stored(
            data=msgpack.packb(undefined),
            dedup=msgpack.packb({"ttl": 1000, "extend": undefined, "replace": None}),
            job_options=msgpack.packb({"maxAttempts": 5, "unknown": 1}),
            max_limit=0,
            next_run=float(NOW),
        )
    )
    assert entry.definition.data is None
    assert (entry.definition.job_name, entry.definition.max_limit, entry.next_run) == ("default", None, NOW)
    assert (entry.definition.dedup, entry.definition.job_options) == ({"ttl": 1000}, {"maxAttempts": 5})


def test_job_options_that_were_stored_unchecked_do_not_stop_a_start(reader: DefinitionReader) -> None:
    options = {"maxAttempts": 0, "timeout": 5, "backoff": "soon", "removeOnFail": True, "delay": -1}
    entry = reader.from_row(
        stored(job_options=msgpack.packb(options), unique_key="k", dedup=msgpack.packb({"ttl": "x"}))
    )
    assert (entry.definition.options.max_attempts, entry.definition.options.timeout_ms) == (3, 5)
    assert (entry.definition.options.remove_on_fail, entry.definition.options.remove_on_complete) == (REMOVE, KEEP)
    assert entry.definition.delay == 0
    assert entry.definition.job_key == "k"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (
            {"repeat_every": None},
            'Persisted cron "c" has invalid timing: Cron job must have either schedule or repeatEvery. '
            "Update or remove it before upgrading to bunqueue 2.9.0.",
        ),
        (
            {"repeat_every": 0, "name": 'é"'},
            'Persisted cron "é\\"" has invalid timing: Cron repeatEvery must be a positive safe integer number of milliseconds. '
            "Update or remove it before upgrading to bunqueue 2.9.0.",
        ),
        (
            {"schedule": "0 0 * * 5L"},
            'Persisted cron "c" uses unsupported schedule "0 0 * * 5L". Update or remove it before upgrading to bunqueue 2.9.0. '
            "Bun.cron validation failed: Invalid cron expression: value out of range for field",
        ),
        (
            {"schedule": "0 0 * * *", "timezone": "Nowhere/City"},
            'Persisted cron "c" uses unsupported schedule "0 0 * * *". Update or remove it before upgrading to bunqueue 2.9.0. '
            "Bun.cron validation failed: Bun.cron: unknown time zone 'Nowhere/City'",
        ),
        (
            {"schedule": 'hours:{"count":2}'},
            "Persisted cron \"c\" runs by 'hours', which no installed plugin offers (known: schedule, repeatEvery). "
            "Install the plugin, or remove the scheduler.",
        ),
    ],
)
def test_rows_that_make_no_scheduler(reader: DefinitionReader, columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(StoredScheduleError) as caught:
        reader.from_row(stored(**columns))
    assert str(caught.value) == reason


# -- kinds of plugins -----------------------------------------------------------------------------------------------------


def test_a_kind_of_a_plugin_is_read_shown_and_stored() -> None:
    reader = DefinitionReader(JobReader(), PLUGIN_KINDS)
    entry = Entry(read(reader, repeatEvery=None, hours={"count": 2}).definition, NOW)
    assert entry.definition.timing.next_after(0) == 7_200_000
    assert entry.view()["hours"] == {"count": 2}
    assert (entry.view()["schedule"], entry.view()["repeatEvery"]) == (None, None)
    row = reader.to_row(entry)
    assert row[CRON_TABLE.column_names.index("schedule")] == 'hours:{"count":2}'
    back = reader.from_row(row)
    assert back.definition.same_as(entry.definition)
    assert back.view() == entry.view()
    assert back.definition.timing.next_after(0) == 7_200_000


def test_a_kind_of_a_plugin_refuses_in_its_own_words() -> None:
    reader = DefinitionReader(JobReader(), PLUGIN_KINDS)
    assert outcome(reader, request(repeatEvery=None, hours=2)) == "hours must be an object with a count"
    assert (
        outcome(reader, request(repeatEvery=None, hours={"count": 2, "x": b"1"})) == "hours must be JSON serializable"
    )
    with pytest.raises(StoredScheduleError, match="has invalid timing: hours must be"):
        reader.from_row(stored(repeat_every=None, schedule="hours:3"))


def test_the_first_kind_that_is_named_wins() -> None:
    reader = DefinitionReader(JobReader(), PLUGIN_KINDS)
    definition = read(reader, hours={"count": 2}).definition
    assert isinstance(definition.timing, IntervalSchedule)
    assert definition.other is None


# -- the same -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"data": {"a": 1, "b": 2}}, {"data": {"b": 2, "a": 1}}),
        ({"data": {"a": [1, {"x": None}]}}, {"data": {"a": [1.0, {"x": None}]}}),
        ({"data": {"a": float("nan")}}, {"data": {"a": float("nan")}}),
        ({"jobOptions": {"timeout": 5, "delay": 1}}, {"jobOptions": {"delay": 1, "timeout": 5.0, "unknown": 7}}),
        ({"repeatEvery": 1000}, {"repeatEvery": 1000.0}),
        ({}, {"preventOverlap": True, "skipMissedOnRestart": True, "immediately": True, "maxLimit": 0, "priority": 0}),
    ],
)
def test_definitions_that_say_the_same(reader: DefinitionReader, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert read(reader, **one).definition.same_as(read(reader, **other).definition)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"data": {"a": 1}}, {"data": {"a": True}}),
        ({"data": {"a": 1}}, {"data": {"a": "1"}}),
        ({"data": [1, 2]}, {"data": [2, 1]}),
        ({"data": None}, {"data": {}}),
        ({"queue": "q"}, {"queue": "r"}),
        ({}, {"jobName": "j"}),
        ({}, {"schedule": "@daily"}),
        ({"schedule": "@daily"}, {"schedule": "0 0 * * *"}),
        ({}, {"timezone": "UTC"}),
        ({}, {"repeatEvery": 60_001}),
        ({}, {"priority": 1}),
        ({}, {"maxLimit": 1}),
        ({}, {"uniqueKey": "cron:c"}),
        ({}, {"dedup": {"ttl": 1}}),
        ({}, {"jobOptions": {"timeout": 1}}),
        ({}, {"skipMissedOnRestart": False}),
        ({}, {"skipIfNoWorker": True}),
        ({}, {"preventOverlap": False}),
    ],
)
def test_definitions_that_do_not(reader: DefinitionReader, one: dict[str, Any], other: dict[str, Any]) -> None:
    assert not read(reader, **one).definition.same_as(read(reader, **other).definition)
