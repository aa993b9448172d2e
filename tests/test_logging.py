"""The log's two formats, byte for byte."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from bunqueue_core.logging import Format, Level, Logger

INSTANT = 1_767_225_600_123  # 2026-01-01T00:00:00.123Z


def logger(level: Level = "debug", format: Format = "text") -> tuple[Logger, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Logger("Server", level=level, format=format, out=out, err=err, now=lambda: INSTANT), out, err


def test_text_puts_mild_records_to_out_and_severe_ones_to_err() -> None:
    log, out, err = logger()

    log.debug("one")
    log.info("two", port=1, path="ü")
    log.warn("three")
    log.error("four", error="x")

    assert out.getvalue() == '[Server] one\n[Server] two {"port":1,"path":"ü"}\n'
    assert err.getvalue() == '[Server] three\n[Server] four {"error":"x"}\n'


def test_json_puts_every_record_to_out() -> None:
    log, out, err = logger(format="json")

    log.error("failed", error="x")
    log.component("TCP").info("plain")

    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {
            "timestamp": "2026-01-01T00:00:00.123Z",
            "level": "error",
            "component": "Server",
            "message": "failed",
            "data": {"error": "x"},
        },
        {"timestamp": "2026-01-01T00:00:00.123Z", "level": "info", "component": "TCP", "message": "plain"},
    ]
    assert err.getvalue() == ""


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["debug", "info", "warn", "error"]),
        ("info", ["info", "warn", "error"]),
        ("warn", ["warn", "error"]),
        ("error", ["error"]),
    ],
)
def test_a_level_hides_what_is_milder(level: Level, written: list[str]) -> None:
    log, out, _ = logger(level, "json")
    levels: tuple[Level, ...] = ("debug", "info", "warn", "error")

    for each in levels:
        log.write(each, "x")

    assert [json.loads(line)["level"] for line in out.getvalue().splitlines()] == written
    assert [each for each in levels if log.enabled(each)] == written


def test_a_record_is_one_line_whatever_its_message_holds() -> None:
    log, out, _ = logger()

    log.info("first\nsecond\r")

    assert out.getvalue() == "[Server] first\\nsecond\\r\n"


def test_what_cannot_be_encoded_is_written_in_escapes() -> None:
    raw = io.BytesIO()
    log = Logger("Server", out=io.TextIOWrapper(raw, encoding="utf-8"))

    log.info("name \ud800")

    assert raw.getvalue() == b"[Server] name \\ud800\n"


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    log, out, _ = logger()

    log.info("x", value={1})

    assert out.getvalue() == '[Server] x {"value":"{1}"}\n'


def test_a_closed_stream_does_not_stop_the_caller() -> None:
    log, out, _ = logger()
    out.close()

    log.info("x")


def test_drivers_call_it_with_level_message_and_fields() -> None:
    log, out, _ = logger()
    call: Any = log

    call("info", "opened", {"rows": 1})
    call("info", "opened", rows=2)

    assert out.getvalue() == '[Server] opened {"rows":1}\n[Server] opened {"rows":2}\n'
