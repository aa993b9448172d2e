"""Replies as JSON, and requests' JSON."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from bunqueue_core.commands.table import ABSENT
from bunqueue_core.model.job import DEFAULT_OPTIONS, Job
from bunqueue_core.model.payload import NULL, Packed, Packer
from bunqueue_core.model.requests import DlqEntry, JobView
from bunqueue_core.model.wire import ViewWithoutState, WireEncoder
from bunqueue_core.server.http.bodies import (
    BodyTooLarge,
    ClientGone,
    InvalidJson,
    members_of,
    parse_json,
    read_body,
)
from bunqueue_core.server.http.rendering import JsonReplies
from bunqueue_core.server.http.routing import Body

NOW = 1_750_000_000_000


def make_job(data: Any = None) -> Job:
    payload = None if data is None else Packer().pack(data)
    return Job("j1", "q", "n", payload, DEFAULT_OPTIONS, 0, NOW, NOW, "waiting", NOW)


def rendered(members: Any, **more: Any) -> Any:
    return json.loads(JsonReplies().reply(members, **more))


class TestReplies:
    def test_bare_success(self) -> None:
        assert JsonReplies().reply(None) == b'{"ok":true}'
        assert JsonReplies().reply(None, "r1") == b'{"ok":true,"reqId":"r1"}'

    def test_plain_members_are_compact(self) -> None:
        assert JsonReplies().reply({"id": "é", "n": None}, 7) == '{"ok":true,"id":"é","n":null,"reqId":7}'.encode()

    def test_a_refusal_with_members(self) -> None:
        answer = JsonReplies().failure("no", {"data": {"failedIds": ["a"]}}, None)
        assert json.loads(answer) == {"ok": False, "error": "no", "data": {"failedIds": ["a"]}, "reqId": None}

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda job: job,
            lambda job: JobView(job, "waiting", b"\x01", "why"),
            lambda job: DlqEntry(job, NOW, "unknown"),
        ],
    )
    def test_records_have_the_members_of_the_protocol(self, wrap: Any) -> None:
        record = wrap(make_job({"a": 1}))
        on_the_wire = msgpack.unpackb(WireEncoder().value(record))
        assert rendered({"record": record})["record"] == on_the_wire

    def test_a_view_may_hide_its_state(self) -> None:
        shown = rendered({"job": ViewWithoutState(JobView(make_job(), "waiting"))})["job"]
        assert "state" not in shown
        assert "data" not in shown

    def test_whole_numbers_are_integers(self) -> None:
        text = JsonReplies().reply({"job": make_job({"a": 1.0, "b": 2**40, "c": 1.5, "d": [3.0]})})
        assert b'"createdAt":1750000000000,' in text
        assert b'"data":{"a":1,"b":1099511627776,"c":1.5,"d":[3]}' in text

    def test_integers_beyond_what_a_float_holds_are_exact(self) -> None:
        assert rendered({"result": Packed(Packer().pack(2**63 + 1))})["result"] == 2**63 + 1

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (float("nan"), None),
            (float("inf"), None),
            (b"\x01\x02", {"0": 1, "1": 2}),
            ({1: "a", None: "b"}, {"1": "a", "null": "b"}),
        ],
    )
    def test_what_json_does_not_have(self, value: Any, shown: Any) -> None:
        assert rendered({"result": Packed(msgpack.packb(value))})["result"] == shown

    def test_undefined_is_null(self) -> None:
        assert rendered({"result": Packed(msgpack.packb([msgpack.ExtType(0, b"\0")]))})["result"] == [None]

    def test_a_lone_surrogate_is_escaped(self) -> None:
        assert JsonReplies().failure("\ud800") == b'{"ok":false,"error":"\\ud800"}'

    def test_deep_payloads(self) -> None:
        deep: Any = 2**40
        for _ in range(499):
            deep = [deep]
        assert rendered({"result": Packed(Packer().pack(deep))})["result"] == deep

    def test_an_absent_request_id_stays_absent(self) -> None:
        assert "reqId" not in rendered({}, req_id=ABSENT)


class TestRequests:
    @pytest.mark.parametrize("text", ["", "{", "{nope", "NaN", "[Infinity]", "1" * 5000, "[" * 100_000, b"\xff"])
    def test_no_json(self, text: str | bytes) -> None:
        with pytest.raises(ValueError):
            parse_json(text)

    def test_a_byte_order_mark_is_passed_over(self) -> None:
        assert parse_json(b"\xef\xbb\xbf{}") == {}

    @pytest.mark.parametrize(
        ("body", "required", "optional", "lenient"),
        [
            (b'{"a":1}', {"a": 1}, {"a": 1}, {"a": 1}),
            (b"", InvalidJson, {}, {}),
            (b" \n", InvalidJson, {}, {}),
            (b"{", InvalidJson, InvalidJson, {}),
            (b"null", InvalidJson, InvalidJson, {}),
            (b"[]", InvalidJson, InvalidJson, {}),
            (b'"x"', InvalidJson, InvalidJson, {}),
            (b"5", InvalidJson, InvalidJson, {}),
        ],
    )
    def test_what_a_route_wants(self, body: bytes, required: Any, optional: Any, lenient: Any) -> None:
        for wanted, expected in ((Body.REQUIRED, required), (Body.OPTIONAL, optional), (Body.LENIENT, lenient)):
            if expected is InvalidJson:
                with pytest.raises(InvalidJson, match="Invalid JSON body"):
                    members_of(body, wanted)
            else:
                assert members_of(body, wanted) == expected

    @staticmethod
    def receive(*messages: dict[str, Any]) -> Any:
        left = list(messages)

        async def receive() -> dict[str, Any]:
            return left.pop(0)

        return receive

    async def test_a_body_may_come_in_parts(self) -> None:
        first = {"type": "http.request", "body": b"ab", "more_body": True}
        assert await read_body(self.receive(first, {"type": "http.request", "body": b"c"})) == b"abc"

    async def test_a_client_may_leave_in_between(self) -> None:
        first = {"type": "http.request", "body": b"ab", "more_body": True}
        with pytest.raises(ClientGone):
            await read_body(self.receive(first, {"type": "http.disconnect"}))

    async def test_a_body_that_was_not_announced_is_bounded_too(self) -> None:
        part = {"type": "http.request", "body": bytes(43 * 1024 * 1024), "more_body": True}
        with pytest.raises(BodyTooLarge):
            await read_body(self.receive(part, part, part))


def test_a_request_id_that_is_no_unicode_comes_back_as_it_was_sent() -> None:
    replies = JsonReplies()

    for members in ({"count": 1}, {"result": Packed(NULL)}):
        assert replies.reply(members, "x\udfff").endswith(rb'"reqId":"x\udfff"}')
