"""Hostile input: accepted or refused the same on every storage; what is accepted comes back equal (rules S-190 to S-199).

Job input passes the core's own reader first (:class:`bunqueue_core.model.options.JobReader`), as it does in a server and in
embedded use; a driver has to carry whatever that reader lets through.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from bunqueue_core.model.errors import BunqueueError, LeaseLost
from bunqueue_core.model.job import timeline_of
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.requests import Ack, Failure
from bunqueue_core.testing.conformance.harness import Harness, ids_of, job, pack, unpack
from bunqueue_core.testing.conformance.rules import Kit, rule


def _nested(depth: int) -> Any:
    value: Any = "core"
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


#: Payloads that are accepted as job data and as results.
PAYLOADS: Final[dict[str, Any]] = {
    "nul": {"text": "a\0b", "\0": "\0"},
    "not-a-number": [float("nan"), float("inf"), float("-inf"), -0.0, 5e-324],
    "wide-integers": [2**31, -(2**31) - 1, 2**53, -(2**53), 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**64 - 1],
    "unicode": {"text": "h\u00e9llo \u2713 \U0001f407 \u202e\ufeff\uffff", "\U0001f407": 1},
    "odd-keys": {"__proto__": {"x": 1}, "constructor": 2, "": 3, " ": 4, "a.b": 5, "$where": 6},
    "quotes": "'; DROP TABLE jobs; -- \" \\ %s {} $1",
    "bytes": b"\x00\xff" * 100,
    "empty": [{}, [], "", b"", None, False],
    "deep": _nested(400),
    "long": "x" * 1_000_000,
    "wide": list(range(50_000)),
}

#: Texts that are accepted as error, stack line and progress message.
TEXTS: Final[dict[str, str]] = {
    "nul": "before\0after",
    "unicode": "\u2713 \U0001f407 \ufeff\uffff",
    "lines": "one\r\ntwo\n\tthree",
    "quotes": "'; DROP TABLE jobs; -- \" \\ %s {} $1",
    "ten-megabytes": "e" * (10 * 1024 * 1024),
}

#: Texts that are in no encoding; nothing can store them.
ILL_FORMED: Final = "lone \ud800 surrogate"


class HostileCases(Kit):
    """Values at the edge of every type, in every field that takes them."""

    @rule("S-190")
    @pytest.mark.parametrize("case", sorted(PAYLOADS))
    def test_job_data_comes_back_equal(self, h: Harness, case: str) -> None:
        spec = JobReader().read({"name": "n", "data": PAYLOADS[case]})
        h.call("push", "q", [spec])
        found = h.take()
        assert found.job.data == spec.data
        assert repr(unpack(found.job.data)) == repr(PAYLOADS[case])
        h.complete(found)

    @rule("S-190")
    @pytest.mark.parametrize("case", sorted(PAYLOADS))
    def test_a_result_comes_back_equal(self, h: Harness, case: str) -> None:
        delivery = h.taken()
        h.complete(delivery, PAYLOADS[case])
        assert h.results(delivery.job.id) == [pack(PAYLOADS[case])]

    @rule("S-190")
    def test_payloads_come_back_equal_after_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        ids = h.push("q", *(job(value, custom_id=case) for case, value in PAYLOADS.items()))
        done = h.push("d", *(job() for _ in PAYLOADS))
        h.ack(*(Ack(d.job.id, d.token, pack(v)) for d, v in zip(h.pull("d", 100), PAYLOADS.values(), strict=True)))
        h.reopen()
        deliveries = h.pull(count=100)
        assert sorted(ids_of(deliveries)) == sorted(ids)
        for delivery in deliveries:
            assert delivery.job.data == pack(PAYLOADS[delivery.job.id])
        assert h.results(*done) == [pack(value) for value in PAYLOADS.values()]

    @rule("S-191")
    @pytest.mark.parametrize("case", sorted(TEXTS))
    def test_an_error_comes_back_equal(self, h: Harness, case: str) -> None:
        delivery = h.taken(max_attempts=2, backoff_ms=0)
        h.lose(delivery, TEXTS[case], stack=[f"at {TEXTS[case]} end"])
        again = h.take()
        assert timeline_of(again.job)[-3].get("error") == TEXTS[case]
        assert again.job.stacktrace == [f"at {TEXTS[case]} end"]
        h.lose(again, TEXTS[case])
        assert h.state(delivery.job.id) == "failed"
        if h.offers("dead_letters"):
            (entry,) = h.dead_letters()
            assert entry.error == TEXTS[case]
            assert [record["error"] for record in entry.attempts] == [TEXTS[case]] * 2

    @rule("S-191")
    @pytest.mark.parametrize("case", sorted(TEXTS))
    def test_a_progress_message_comes_back_equal(self, h: Harness, case: str) -> None:
        id = h.taken().job.id
        h.call("progress", id, 50, TEXTS[case], False)
        assert h.call("progress_of", id).message == TEXTS[case]

    @rule("S-191")
    @pytest.mark.parametrize("case", sorted(TEXTS))
    def test_a_log_line_comes_back_equal(self, h: Harness, case: str) -> None:
        id = h.push_one()
        h.call("add_log", id, TEXTS[case], "info")
        h.call("add_log", id, "next", TEXTS["quotes"])
        assert [(line.message, line.level) for line in h.call("logs", id)] == [
            (TEXTS[case], "info"),
            ("next", TEXTS["quotes"]),
        ]

    @rule("S-191")
    def test_texts_come_back_equal_after_a_restart(self, h: Harness) -> None:
        h.require("persistent")
        ids = h.push("q", *(job(custom_id=case, max_attempts=1) for case in TEXTS))
        for delivery in h.pull(count=100):
            h.lose(delivery, TEXTS[delivery.job.id], stack=[f"at {TEXTS[delivery.job.id]} end"])
        h.reopen()
        assert h.states(*ids) == ["failed"] * len(ids)
        if h.offers("dead_letters"):
            assert {entry.job.id: entry.error for entry in h.dead_letters()} == TEXTS

    @rule("S-192")
    def test_an_ill_formed_error_is_refused_whole(self, h: Harness) -> None:
        h.push("q", job(), job())
        one, two = h.pull(count=2)
        with pytest.raises(BunqueueError):
            h.fail(Failure(one.job.id, "fine", one.token), Failure(two.job.id, ILL_FORMED, two.token))
        assert h.counts() == {"active": 2}
        with pytest.raises(BunqueueError):
            h.fail(Failure(one.job.id, "fine", one.token, stack=[ILL_FORMED]))
        assert h.counts() == {"active": 2}
        h.complete(one)

    @rule("S-192")
    def test_an_ill_formed_message_is_refused(self, h: Harness) -> None:
        id = h.taken().job.id
        h.call("progress", id, 10, "fine", False)
        with pytest.raises(BunqueueError):
            h.call("progress", id, 20, ILL_FORMED, False)
        assert h.call("progress_of", id).message == "fine"

    @rule("S-192")
    def test_an_ill_formed_log_line_is_refused(self, h: Harness) -> None:
        id = h.push_one()
        h.call("add_log", id, "fine", "info")
        for message, level in ((ILL_FORMED, "info"), ("x", ILL_FORMED)):
            with pytest.raises(BunqueueError):
                h.call("add_log", id, message, level)
        assert [line.message for line in h.call("logs", id)] == ["fine"]

    @rule("S-193")
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("name", "n" * 256),
            ("name", "\U0001f407" * 256),
            ("name", "'; DROP TABLE jobs; --"),
            ("jobId", "i" * 1024),
            ("jobId", "\U0001f407" * 1024),
            ("jobId", "../../etc/passwd"),
            ("jobId", " "),
            ("tags", ["", "\U0001f407" * 300, "a"]),
            ("timestamp", 0),
            ("timestamp", -(2**53) + 1),
            ("priority", -1_000_000),
            ("priority", 1_000_000),
        ],
        ids=lambda value: None if isinstance(value, list) else ascii(value)[:24],
    )
    def test_fields_at_their_bounds_come_back_equal(self, h: Harness, field: str, value: Any) -> None:
        h.call("push", "q", [JobReader().read({"name": "n", "data": 1, field: value})])
        found = h.take().job
        back = {
            "name": found.name,
            "jobId": found.custom_id,
            "tags": list(found.tags),
            "timestamp": found.created_at,
            "priority": found.priority,
        }
        assert back[field] == value
        assert h.state(found.id) == "active"

    @rule("S-193")
    @pytest.mark.parametrize(
        "text", ["k" * 1024, "\U0001f407" * 200, " ", "'; --", "a:b", "%"], ids=lambda text: ascii(text)[:12]
    )
    def test_keys_at_their_bounds_are_keys_like_any(self, h: Harness, text: str) -> None:
        wanted = {"name": "n", "uniqueKey": text, "debounceId": text, "debounceTtl": 1, "groupId": text[:256]}
        (first,) = h.call("push", "q", [JobReader().read(wanted)]).ids
        assert h.call("key_owner", "q", text) == first
        assert h.call("push", "q", [JobReader().read(wanted)]).ids == [first]
        if h.offers("group_jobs_count"):
            assert h.call("group_jobs_count", "q", text[:256]) == 1
        assert h.call("remove_key", "q", text) == 1
        assert h.call("key_owner", "q", text) is None

    @rule("S-193")
    def test_long_queue_names_are_apart(self, h: Harness) -> None:
        one, two = "q" * 255 + "1", "q" * 255 + "2"
        h.push(one, job(1))
        h.push(two, job(2))
        assert (h.drain_order(two), h.drain_order(one)) == ([2], [1])

    @rule("S-194")
    @pytest.mark.parametrize(
        "id", ["", "\0", "a\0b", ILL_FORMED, "x" * 100_000, "'; --"], ids=lambda id: ascii(id)[:12]
    )
    def test_an_odd_id_is_an_unknown_job(self, h: Harness, id: str) -> None:
        waiting = h.push_one()
        assert h.states(id, waiting) == ["unknown", "waiting"]
        assert h.results(id) == [None]
        assert h.extend(id, "t") is False
        for verb, item in (("ack", Ack(id, "t")), ("fail", Failure(id, "e", "t"))):
            done = h.call(verb, [item])
            assert list(done.errors) == [0]
            assert "not in processing state" in str(done.errors[0])
        if h.offers("job"):
            assert h.call("job", id) is None

    @rule("S-195")
    @pytest.mark.parametrize("token", ["\0", ILL_FORMED, "x" * 100_000], ids=lambda token: ascii(token)[:12])
    def test_an_odd_token_is_a_wrong_one(self, h: Harness, token: str) -> None:
        delivery = h.taken()
        h.refused("ack", [Ack(delivery.job.id, token)], error=LeaseLost)
        assert h.extend(delivery.job.id, token) is False
        h.complete(delivery)

    @rule("S-196")
    @pytest.mark.parametrize("owner", ["o" * 10_000, "\U0001f407", "a\0b"], ids=lambda owner: ascii(owner)[:12])
    def test_any_owner_gets_a_lease(self, h: Harness, owner: str) -> None:
        h.push_one()
        delivery = h.take(owner=owner)
        assert delivery.token
        h.complete(delivery)
