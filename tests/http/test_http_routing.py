"""How a request finds its route, and what of it becomes the command's request."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from bunqueue_core.commands import COMMANDS
from bunqueue_core.model.errors import ValidationError
from bunqueue_core.server.http.routes import ROUTES, integer_prefix
from bunqueue_core.server.http.routing import Body, Route, Routes, decoded, parse_query

ALL = Routes(ROUTES)


def found(method: str, path: str) -> tuple[str, dict[str, str]] | None:
    match = ALL.find(method, path)
    return None if match is None else (match[0].command or match[0].run.__name__, match[1])


class TestFinding:
    @pytest.mark.parametrize(
        ("method", "path", "route"),
        [
            ("GET", "/jobs/a:b", ("GetJob", {"id": "a:b"})),
            ("GET", "/jobs/custom", ("GetJob", {"id": "custom"})),
            ("GET", "/jobs/custom/state", ("GetJobByCustomId", {"customId": "state"})),
            ("GET", "/jobs/ack-batch", ("GetJob", {"id": "ack-batch"})),
            ("POST", "/jobs/ack-batch", ("ACKB", {})),
            ("POST", "/jobs/custom/ack", ("ACK", {"id": "custom"})),
            ("GET", "/queues/summary", ("queue_summaries", {})),
            ("GET", "/queues/summary/count", ("Count", {"queue": "summary"})),
            ("POST", "/queues/jobs/jobs/bulk", ("PUSHB", {"queue": "jobs"})),
            ("DELETE", "/workers/w%2F1", ("UnregisterWorker", {"workerId": "w%2F1"})),
            ("GET", "/dashboard/queues/q", ("DashboardQueue", {"queue": "q"})),
        ],
    )
    def test_a_literal_segment_goes_before_a_parameter(self, method: str, path: str, route: Any) -> None:
        assert found(method, path) == route

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/"),
            ("GET", "queues"),
            ("GET", "/queues/"),
            ("GET", "//queues"),
            ("GET", "/Queues"),
            ("GET", "/queues//count"),
            ("GET", "/queues/q/count/"),
            ("GET", "/queues/q"),
            ("POST", "/queues"),
            ("PATCH", "/queues"),
            ("GET", "/jobs/a/ack"),
            ("GET", "/workers/w"),
        ],
    )
    def test_everything_else_has_none(self, method: str, path: str) -> None:
        assert found(method, path) is None

    def test_two_routes_for_the_same_requests_are_refused(self) -> None:
        def run(session: Any, request: Any) -> None:
            return None

        with pytest.raises(ValueError, match="GET /a/:y stands for the same requests"):
            Routes([Route("GET", "/a/:x", run), Route("GET", "/a/:y", run)])


class TestTheTable:
    @pytest.mark.parametrize("route", [route for route in ROUTES if route.command], ids=lambda each: each.command)
    def test_a_route_passes_on_what_its_command_takes(self, route: Route) -> None:
        command = COMMANDS[route.command]
        fields = {field.name for field in command.fields}
        parameters = {segment[1:] for segment in route.path.split("/") if segment.startswith(":")}
        assert parameters <= fields
        assert command.job_input or set(route.takes) <= fields
        assert route.waits == command.waits

    def test_a_get_reads_no_body(self) -> None:
        assert all(route.body is Body.NONE for route in ROUTES if route.method in ("GET", "DELETE"))

    def test_every_route_says_what_it_does(self) -> None:
        assert all(route.summary for route in ROUTES)


class TestTheDocumentation:
    def test_it_lists_every_route_with_the_status_of_its_refusals(self) -> None:
        text = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
        rows = re.findall(r"^\| `([A-Z]+) (/[^`]*)` .*\| (\S+) \|$", text, re.MULTILINE)
        listed = {(method, path): status for method, path, status in rows}
        special = {("GET", "/prometheus"), ("POST", "/gc"), ("GET", "/heapstats")}
        assert {(route.method, route.path): str(route.status.value) for route in ROUTES} == {
            route: status for route, status in listed.items() if route not in special
        }
        assert special <= listed.keys()

    def test_it_lists_the_members_that_a_body_may_have(self) -> None:
        text = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
        for route in ROUTES:
            if route.command in ("PUSH", "Cron") or not route.takes:
                continue
            (row,) = re.findall(rf"^\| `{route.method} {re.escape(route.path)}` \| ([^|]*) \|", text, re.MULTILINE)
            assert set(re.findall(r"`(\w+)\??`", row)) >= set(route.takes), route.path


class TestDecoding:
    @pytest.mark.parametrize(
        ("segment", "text"), [("a", "a"), ("a%20b", "a b"), ("%E2%82%AC", "€"), ("a%2Fb", "a/b"), ("a+b", "a+b")]
    )
    def test_percent_encoding(self, segment: str, text: str) -> None:
        assert decoded(segment) == text

    @pytest.mark.parametrize("segment", ["%", "%2", "%zz", "%FF", "a%ED%A0%80"])
    def test_what_cannot_be_decoded_is_refused(self, segment: str) -> None:
        with pytest.raises(ValidationError, match="URI error"):
            decoded(segment)

    def test_parameters_keep_their_order_and_repeat(self) -> None:
        query = parse_query("state=waiting&state=a%2Cb&limit=&x+y=1+2&flag&%ff=1")
        assert query == {"state": ["waiting", "a,b"], "limit": [""], "x y": ["1 2"], "flag": [""], "\ufffd": ["1"]}

    @pytest.mark.parametrize(
        ("text", "number"), [("5000ms", 5000), ("1e3", 1), (" 7", 7), ("-5", -5), ("+3", 3), ("1.9", 1), ("0x10", 0)]
    )
    def test_an_integer_at_the_beginning_counts(self, text: str, number: int) -> None:
        assert integer_prefix(text) == number

    @pytest.mark.parametrize("text", ["", "abc", "ms5", "-"])
    def test_without_one_there_is_no_number(self, text: str) -> None:
        assert math.isnan(integer_prefix(text))
