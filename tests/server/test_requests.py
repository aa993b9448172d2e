"""Bodies into requests: what JavaScript clients send, and what spoils a frame."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from bunqueue_core.commands.table import ABSENT
from bunqueue_core.server.tcp.requests import RequestDecoder

UNDEFINED = msgpack.ExtType(0, b"\x00")


def decode(value: Any) -> Any:
    return RequestDecoder().decode(msgpack.packb(value))


def test_plain_values() -> None:
    value = {"cmd": "PUSH", "data": {"list": [1, 2.5, None, True, b"\x00"], "é": "✓"}, "n": 2**63}
    assert decode(value) == value


def test_undefined_members_are_not_given() -> None:
    assert decode({"cmd": "PUSH", "name": UNDEFINED, "data": {"a": UNDEFINED, "b": [UNDEFINED, 1]}}) == {
        "cmd": "PUSH",
        "data": {"b": [None, 1]},
    }
    assert decode(UNDEFINED) is None


def test_undefined_results_stay_apart_from_null() -> None:
    assert decode({"results": [UNDEFINED, None, [UNDEFINED]]})["results"] == [ABSENT, None, [None]]


def test_the_decoder_forgets_the_frame_before() -> None:
    decoder = RequestDecoder()
    decoder.decode(msgpack.packb({"a": UNDEFINED}))
    assert decoder.decode(msgpack.packb({"results": [None]})) == {"results": [None]}


def test_keys_become_strings() -> None:
    value = {"data": {5: 1, -1: 2, 3.0: 3, 2.5: 4, None: 5, True: 6, b"\x01\x02": 7, "s": {7: UNDEFINED, 8: 9}}}
    got = decode({**value, 5: 1})
    assert got == {"5": 1, "data": {"5": 1, "-1": 2, "3": 3, "2.5": 4, "null": 5, "true": 6, "1,2": 7, "s": {"8": 9}}}


def test_timestamps_pass() -> None:
    assert decode({"at": msgpack.Timestamp(5)}) == {"at": msgpack.Timestamp(5)}


def test_lone_surrogates_pass_to_the_field_that_holds_them() -> None:
    body = msgpack.packb({"jobId": "a\ud800"}, unicode_errors="surrogatepass")
    assert RequestDecoder().decode(body) == {"jobId": "a\ud800"}


def test_the_reserved_byte_is_a_value_that_is_no_map() -> None:
    assert RequestDecoder().decode(b"\xc1") is True


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x81\xa3cmd",
        b"\xde\x00",
        msgpack.packb({"cmd": "Ping"}) + b"\xc0",
        msgpack.packb({"x": msgpack.ExtType(7, b"abc")}),
        b"\xa2\xff\xfe",
        b"\x81\x80\x01",  # a map as a key
        b"\xdd\xff\xff\xff\xff",  # a list that announces four thousand million members
        b"\x91" * 5000 + b"\xc0",
        b"\x81\x01" * 900 + b"\xc0",
    ],
)
def test_spoilt_frames(body: bytes) -> None:
    with pytest.raises(ValueError):
        RequestDecoder().decode(body)
