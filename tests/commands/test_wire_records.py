"""Replies, job records and events as MessagePack: every member under its name, payloads untouched, numbers as clients need them."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from bunqueue_core.model.job import DEFAULT_OPTIONS, Job, JobOptions, Retention, append_timeline
from bunqueue_core.model.payload import NULL, Packed, Packer
from bunqueue_core.model.requests import DlqEntry, Event, JobView
from bunqueue_core.model.wire import MAX_CACHED_OPTIONS, ViewWithoutState, WireEncoder

NOW = 1_796_053_967_293
PAYLOAD = Packer().pack({"to": "user@example.com", "n": 1, "at": NOW})


def a_job(**changes: Any) -> Job:
    options = changes.pop("options", DEFAULT_OPTIONS)
    job = Job("id-1", "mail", "send", PAYLOAD, options, 0, NOW, NOW, "waiting", NOW)
    for name, value in changes.items():
        setattr(job, name, value)
    return job


def record(job: Job) -> dict[str, Any]:
    """The members of a job record, written out one by one."""
    options = job.options
    members = {
        "id": job.id,
        "queue": job.queue,
        "name": job.name,
        "priority": job.priority,
        "createdAt": float(job.created_at),
        "runAt": float(job.run_at),
        "startedAt": None if job.started_at is None else float(job.started_at),
        "completedAt": job.completed_at,
        "attempts": job.attempts,
        "maxAttempts": options.max_attempts,
        "backoff": options.backoff_ms,
        "backoffConfig": None
        if options.backoff is None
        else {"type": options.backoff["type"], "delay": options.backoff["delay"]},
        "ttl": options.ttl_ms,
        "timeout": options.timeout_ms,
        "stallTimeout": options.stall_timeout_ms,
        "uniqueKey": job.unique_key,
        "customId": job.custom_id,
        "parentId": job.parent_id,
        "groupId": job.group_id,
        "dependsOn": list(job.depends_on),
        "childrenIds": list(job.children_ids),
        "childrenCompleted": 0,
        "tags": list(job.tags),
        "progress": job.progress,
        "progressMessage": job.progress_message,
        "stacktrace": job.stacktrace,
        "lifo": options.lifo,
        "removeOnComplete": options.remove_on_complete.as_flag,
        "removeOnFail": options.remove_on_fail.as_flag,
        "durable": options.durable,
        "repeat": options.repeat,
        "lastHeartbeat": float(job.last_heartbeat),
        "stallCount": job.stall_count,
        "stackTraceLimit": options.stack_trace_limit,
        "keepLogs": options.keep_logs,
        "sizeLimit": options.size_limit,
        "failParentOnFailure": options.fail_parent_on_failure,
        "removeDependencyOnFailure": options.remove_dependency_on_failure,
        "continueParentOnFailure": options.continue_parent_on_failure,
        "ignoreDependencyOnFailure": options.ignore_dependency_on_failure,
        "deduplicationTtl": options.dedup_ttl_ms,
        "deduplicationExtend": options.dedup_extend,
        "deduplicationReplace": options.dedup_replace,
        "debounceId": options.debounce_id,
        "debounceTtl": options.debounce_ttl_ms,
        "timeline": [
            {key: float(value) if key == "timestamp" else value for key, value in entry.items()}
            for entry in (job.timeline or [{"state": job.admitted_as, "timestamp": job.admitted_at}])
        ],
    }
    if job.data is not None:
        members["data"] = msgpack.unpackb(job.data)
    return members


def unpack(blob: bytes) -> Any:
    return msgpack.unpackb(blob, strict_map_key=False)


def tried_job() -> Job:
    job = a_job(
        started_at=NOW + 5,
        completed_at=NOW + 9,
        attempts=2,
        stall_count=1,
        progress=50.5,
        progress_message="half",
        stacktrace=["at a", "at b"],
        priority=-7,
    )
    append_timeline(job, {"state": "active", "timestamp": NOW + 1})
    append_timeline(job, {"state": "failed", "timestamp": NOW + 2, "error": "boom", "attempt": 1})
    append_timeline(job, {"state": "waiting", "timestamp": NOW + 3, "attempt": 2})
    return job


def related_job() -> Job:
    return a_job(
        custom_id="c",
        unique_key="u",
        parent_id="p",
        group_id="g",
        depends_on=("a", "b"),
        children_ids=("x",) * 20,
        tags=("t", "ünï"),
        data=None,
        options=JobOptions(
            max_attempts=7,
            backoff_ms=250,
            backoff={"type": "fixed", "delay": 250, "maxDelay": 9},
            ttl_ms=31_536_000_000,
            timeout_ms=10,
            lifo=True,
            durable=True,
            remove_on_complete=Retention(count=3),
            remove_on_fail=Retention(remove=True),
            keep_logs=1,
            size_limit=2,
            dedup_ttl_ms=5,
            dedup_replace=True,
            debounce_id="d",
            debounce_ttl_ms=77,
            repeat={"every": 1000, "count": 0},
        ),
    )


class TestJobs:
    @pytest.mark.parametrize("job", [a_job(), a_job(data=NULL), tried_job(), related_job()])
    def test_a_record_holds_exactly_its_members(self, job: Job) -> None:
        assert unpack(WireEncoder().job(job)) == record(job)

    def test_an_active_job(self) -> None:
        job = a_job(started_at=NOW + 1, last_heartbeat=NOW + 1)
        append_timeline(job, {"state": "active", "timestamp": NOW + 1})
        assert unpack(WireEncoder().job(job)) == record(job)

    def test_times_are_float64_and_small_numbers_integers(self) -> None:
        got = unpack(WireEncoder().job(a_job(started_at=NOW)))
        assert {type(got[key]) for key in ("createdAt", "runAt", "startedAt", "lastHeartbeat")} == {float}
        assert {type(got[key]) for key in ("priority", "attempts", "maxAttempts")} == {int}

    def test_the_payload_is_spliced_in_as_it_is(self) -> None:
        odd = b"\xcf" + (5).to_bytes(8, "big")  # a 64-bit form that an encoder of ours would not choose
        assert odd in WireEncoder().job(a_job(data=odd))

    def test_option_sets_beyond_the_cache_are_encoded_right(self) -> None:
        encoder = WireEncoder()
        for attempts in range(1, MAX_CACHED_OPTIONS + 20):
            options = JobOptions(max_attempts=attempts)
            assert unpack(encoder.job(a_job(options=options)))["maxAttempts"] == attempts


class TestViews:
    def test_a_view_adds_state_result_and_reason(self) -> None:
        job = tried_job()
        got = unpack(WireEncoder().value(JobView(job, "failed", NULL, "boom")))
        assert got == {**record(job), "state": "failed", "returnvalue": None, "failedReason": "boom"}

    def test_no_result_and_no_reason_are_left_out(self) -> None:
        got = unpack(WireEncoder().value(JobView(a_job(), "waiting")))
        assert got == {**record(a_job()), "state": "waiting"}

    def test_without_state(self) -> None:
        got = unpack(WireEncoder().value(ViewWithoutState(JobView(a_job(), "waiting"))))
        assert got == record(a_job())

    def test_a_dead_letter(self) -> None:
        attempt = {
            "attempt": 1,
            "startedAt": NOW,
            "failedAt": NOW + 1,
            "reason": "explicit_fail",
            "error": None,
            "duration": 1,
        }
        entry = DlqEntry(tried_job(), NOW, "stalled", "e", [attempt], 1, None, NOW + 5, None)
        assert unpack(WireEncoder().value(entry)) == {
            "job": record(entry.job),
            "enteredAt": float(NOW),
            "reason": "stalled",
            "error": "e",
            "attempts": [attempt],
            "retryCount": 1,
            "lastRetryAt": None,
            "nextRetryAt": float(NOW + 5),
            "expiresAt": None,
        }


class TestReplies:
    def test_forms(self) -> None:
        encoder = WireEncoder()
        assert unpack(encoder.reply(None, "r", True)) == {"ok": True, "reqId": "r"}
        assert unpack(encoder.reply(None, None, False)) == {"ok": True}
        assert unpack(encoder.reply({"id": "x"}, 17, True)) == {"ok": True, "id": "x", "reqId": 17}
        assert unpack(encoder.failure("no", {"k": [1]}, True)) == {"ok": False, "error": "no", "reqId": {"k": [1]}}
        assert unpack(encoder.failure("no", None, False)) == {"ok": False, "error": "no"}

    def test_many_members(self) -> None:
        members = {f"m{index}": index for index in range(40)}
        assert unpack(WireEncoder().reply({**members, "all": members}, "r", True)) == {
            "ok": True,
            "reqId": "r",
            **members,
            "all": members,
        }

    def test_lists_of_records_and_of_plain_values(self) -> None:
        jobs = [a_job() for _ in range(20)]
        got = unpack(
            WireEncoder().reply({"jobs": jobs, "ids": ["a"] * 70_000, "none": [], "mixed": [[NOW]]}, "r", True)
        )
        assert got["jobs"] == [record(job) for job in jobs]
        assert (len(got["ids"]), got["none"], got["mixed"]) == (70_000, [], [[float(NOW)]])

    def test_nested_payloads(self) -> None:
        got = unpack(
            WireEncoder().reply({"data": {"values": {"q:1": Packed(PAYLOAD), "q:2": Packed(NULL)}}}, "r", True)
        )
        assert got["data"]["values"] == {"q:1": msgpack.unpackb(PAYLOAD), "q:2": None}

    @pytest.mark.parametrize(
        ("value", "first_byte"),
        [
            (2**32 - 1, 0xCE),
            (2**32, 0xCB),
            (-(2**31), 0xD2),
            (-(2**31) - 1, 0xCB),
            (2**53, 0xCB),
            (2**53 + 1, 0xCF),
            (-(2**53) - 1, 0xD3),
        ],
    )
    def test_integers_beyond_32_bits_are_float64_while_that_is_exact(self, value: int, first_byte: int) -> None:
        blob = WireEncoder().value(value)
        assert (blob[0], unpack(blob)) == (first_byte, value)
        assert WireEncoder().value([value]) == b"\x91" + blob

    def test_a_request_id_with_a_lone_surrogate_goes_back_as_it_came(self) -> None:
        blob = WireEncoder().reply(None, "\ud800", True)
        assert msgpack.unpackb(blob, unicode_errors="surrogatepass")["reqId"] == "\ud800"


def test_events() -> None:
    encoder = WireEncoder()
    event = Event("completed", "mail", "id-1", NOW, {"data": Packed(PAYLOAD), "terminal": True})
    expected = {
        "type": "event",
        "event": {
            "eventType": "completed",
            "queue": "mail",
            "jobId": "id-1",
            "timestamp": float(NOW),
            "data": msgpack.unpackb(PAYLOAD),
            "terminal": True,
        },
    }
    assert unpack(encoder.event(event)) == unpack(encoder.event(event)) == expected
    assert unpack(encoder.event(Event("paused", "mail", "", NOW)))["event"] == {
        "eventType": "paused",
        "queue": "mail",
        "jobId": "",
        "timestamp": float(NOW),
    }


def test_events_whose_fields_are_many_or_named_like_its_own() -> None:
    encoder = WireEncoder()
    many = {f"field{n}": n for n in range(20)}
    own = {"eventType": "stalled", "queue": "mail", "jobId": "id-1", "timestamp": float(NOW)}
    assert unpack(encoder.event(Event("stalled", "mail", "id-1", NOW, many)))["event"] == {**own, **many}
    named = {"queue": "other", "data": None}
    assert unpack(encoder.event(Event("stalled", "mail", "id-1", NOW, named)))["event"] == {**own, **named}


def test_events_of_many_queues() -> None:
    encoder = WireEncoder()
    for n in [*range(2_000), 0, 1]:
        told = unpack(encoder.event(Event("pushed", f"q{n}", str(n), NOW + n)))["event"]
        assert (told["queue"], told["jobId"], told["timestamp"]) == (f"q{n}", str(n), NOW + n)
