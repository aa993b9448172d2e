"""``bunqueue cron preview``."""

from __future__ import annotations

import json

from cli_call import Call


def test_runs_of_an_expression_around_a_change_of_the_clock(bunqueue: Call) -> None:
    outcome = bunqueue(
        "cron",
        "preview",
        "30 2 * * *",
        "--timezone",
        "Europe/Rome",
        "--count",
        "3",
        "--from",
        "2026-03-28T00:00:00+01:00",
    )
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "Sat 2026-03-28 02:30:00 +0100",
        "Sun 2026-03-29 03:30:00 +0200",
        "Mon 2026-03-30 02:30:00 +0200",
    ]


def test_json_tells_the_instants(bunqueue: Call) -> None:
    outcome = bunqueue(
        "--json", "cron", "preview", "--every", "60000", "--count", "2", "--from", "2026-01-01T00:00:00+00:00"
    )
    runs = json.loads(outcome.out)["runs"]
    assert [run["at"] for run in runs] == [1767225660000, 1767225720000]


def test_what_cannot_be_previewed_is_said(bunqueue: Call) -> None:
    for arguments, text in (
        ([], "Give either a cron expression in quotes or --every MS"),
        (["* * * *"], "Cron expression must have 5 fields"),
        (["0 0 30 2 *"], "Cron expression has no future occurrences"),
        (["--every", "0"], "Cron repeatEvery must be a positive safe integer"),
        (["@daily", "--timezone", "Mars/Olympus"], "unknown time zone 'Mars/Olympus'"),
        (["@daily", "--from", "yesterday"], '"yesterday" is no ISO 8601 time'),
    ):
        outcome = bunqueue("cron", "preview", *arguments)
        assert outcome.code != 0
        assert text in outcome.err
