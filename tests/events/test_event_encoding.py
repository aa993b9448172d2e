"""Events as JSON."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from bunqueue_core.events.encoding import event_document, event_size, to_json, webhook_body
from bunqueue_core.model.payload import NULL, Packed, Packer
from bunqueue_core.model.requests import Event


def packed(value: Any) -> Packed:
    return Packed(Packer().pack(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, "é\u2028", None, True]}, '{"a":[1,2.5,"é\u2028",null,true]}'),
        ([float("nan"), float("inf"), -float("inf")], "[null,null,null]"),
        (b"ab", '{"0":97,"1":98}'),
        ({1: 2, None: 3, b"k": 4}, '{"1":2,"null":3,"k":4}'),
        ({True: float("nan"), False: 1.5}, '{"true":null,"false":1.5}'),
        (msgpack.Timestamp(5, 0), '"1970-01-01T00:00:05.000Z"'),
        (msgpack.ExtType(5, b"x"), "null"),
        (2**63 + 5, "9223372036854775813"),
        ("\ud800", '"\\ud800"'),
        ("\0\n", '"\\u0000\\n"'),
    ],
)
def test_values_become_json(value: Any, text: str) -> None:
    assert to_json(value) == text.encode()


def test_deep_payloads_become_json_whatever_is_in_them() -> None:
    value: Any = float("nan")
    for _ in range(499):
        value = [value]
    assert to_json(value) == b"[" * 499 + b"null" + b"]" * 499


def test_an_event_is_told_as_subscribers_get_it() -> None:
    event = Event(
        "failed", "q", "j1", 1_700_000_000_000, {"terminal": False, "error": "no", "data": packed({"x": 2**40})}
    )
    assert list(event_document(event).items()) == [
        ("eventType", "failed"),
        ("queue", "q"),
        ("jobId", "j1"),
        ("timestamp", 1_700_000_000_000),
        ("terminal", False),
        ("error", "no"),
        ("data", {"x": 2**40}),
    ]


def test_a_damaged_payload_costs_only_itself() -> None:
    event = Event("completed", "q", "j1", 1, {"data": Packed(b"\xa5abc")})
    assert event_document(event)["data"] is None


@pytest.mark.parametrize(
    ("event", "body"),
    [
        (
            Event("pushed", "q", "j1", 5),
            '{"event":"job.pushed","timestamp":5,"jobId":"j1","queue":"q"}',
        ),
        (
            Event("pulled", "q", "j1", 5),
            '{"event":"job.started","timestamp":5,"jobId":"j1","queue":"q"}',
        ),
        (
            Event("completed", "q", "j1", 5, {"data": packed({"r": 1})}),
            '{"event":"job.completed","timestamp":5,"jobId":"j1","queue":"q","data":{"r":1}}',
        ),
        (
            Event("completed", "q", "j1", 5, {"data": Packed(NULL)}),
            '{"event":"job.completed","timestamp":5,"jobId":"j1","queue":"q","data":null}',
        ),
        (
            Event("completed", "q", "j1", 5),
            '{"event":"job.completed","timestamp":5,"jobId":"j1","queue":"q"}',
        ),
        (
            Event("failed", "q", "j1", 5, {"terminal": True, "error": "no", "data": packed([1])}),
            '{"event":"job.failed","timestamp":5,"jobId":"j1","queue":"q","data":[1],"error":"no"}',
        ),
        (
            Event("progress", "q", "j1", 5, {"progress": 40, "data": {"progress": 40, "message": "m"}}),
            '{"event":"job.progress","timestamp":5,"jobId":"j1","queue":"q","progress":40}',
        ),
    ],
)
def test_a_webhook_gets_the_members_in_their_order(event: Event, body: str) -> None:
    assert webhook_body(event) == body.encode()
    assert json.loads(webhook_body(event))["jobId"] == "j1"


def test_the_size_of_an_event_follows_its_payload() -> None:
    small = event_size(Event("pushed", "q", "j", 1))
    assert event_size(Event("completed", "q", "j", 1, {"data": packed("x" * 10_000)})) >= small + 10_000
