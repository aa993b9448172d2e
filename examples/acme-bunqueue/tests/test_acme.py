"""Each hook at work, in a broker or a server. Nothing waits: the clock is the test's."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from acme_bunqueue.plugin import fibonacci
from acme_bunqueue.tally import TallySink
from acme_bunqueue.workdays import parse

from bunqueue_core.config import Settings
from bunqueue_core.logging import Logger
from bunqueue_core.model.errors import ConfigurationError, ValidationError
from bunqueue_core.model.options import JobReader
from bunqueue_core.model.requests import Event, Failure, PullRequest
from bunqueue_core.plugins import PluginManager
from bunqueue_core.testing import SettableClock, deterministic_ports, manual_broker

ROME = ZoneInfo("Europe/Rome")


def in_rome(text: str) -> int:
    """Epoch ms of a local time."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ROME).timestamp() * 1000)


def test_the_plugin_is_installed() -> None:
    (plugin,) = (plugin for plugin in PluginManager().plugins if plugin.name == "acme")

    assert plugin.provides == ("schedule kind workdays", "backoff strategy fibonacci")
    assert plugin.hooks == (
        "bunqueue_backoff_strategies",
        "bunqueue_configure",
        "bunqueue_event_sinks",
        "bunqueue_schedule_kinds",
    )


# -- schedule kind ----------------------------------------------------------------------------------------------------


def test_a_scheduler_runs_on_workdays() -> None:
    clock = SettableClock(in_rome("2025-06-05T12:00"))  # a Thursday
    broker = manual_broker(deterministic_ports(clock), plugins=PluginManager())
    broker.start().result()
    scheduler = {"name": "report", "queue": "reports", "workdays": {"at": "09:00"}, "timezone": "Europe/Rome"}
    broker.upsert_schedule({**scheduler, "preventOverlap": False}).result()

    assert broker.preview_schedule("report", 3).result() == [
        in_rome("2025-06-06T09:00"),
        in_rome("2025-06-09T09:00"),
        in_rome("2025-06-10T09:00"),
    ]
    for moment, jobs in (
        ("2025-06-06T08:59", 0),
        ("2025-06-06T09:00", 1),
        ("2025-06-08T23:00", 1),
        ("2025-06-09T09:00", 2),
    ):
        clock.now_ms = in_rome(moment)
        broker.run_due()
        assert broker.counts("reports").result().waiting == jobs, moment
    broker.close().result()


def test_a_time_that_the_clocks_skip_comes_later() -> None:
    # Most zones change their clocks on a Sunday, which is no workday; Egypt does it on a Friday.
    schedule = parse({"at": "00:30"}, "Africa/Cairo")
    cairo = ZoneInfo("Africa/Cairo")
    before = datetime(2024, 4, 25, 12, tzinfo=cairo)
    run = datetime.fromtimestamp(schedule.next_after(int(before.timestamp() * 1000)) / 1000, cairo)

    assert run.isoformat() == "2024-04-26T01:30:00+03:00"


@pytest.mark.parametrize("value", [None, "09:00", {}, {"at": 9}, {"at": "9 am"}, {"at": "24:00"}])
def test_what_is_no_time_of_day_is_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="workdays must be"):
        parse(value, None)


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="not known"):
        parse({"at": "09:00"}, "Mars/Olympus")


# -- backoff strategy -------------------------------------------------------------------------------------------------


def test_the_waits_grow_by_adding_the_last_two() -> None:
    assert [fibonacci(1000, attempts, lambda: 0.5) for attempts in range(1, 7)] == [1000, 1000, 2000, 3000, 5000, 8000]
    assert fibonacci(1000, 3, lambda: 0.0) == 1800


def test_a_failed_job_waits_by_the_strategy() -> None:
    clock = SettableClock()
    plugins = PluginManager()
    broker = manual_broker(deterministic_ports(clock), plugins=plugins)
    broker.start().result()
    job = JobReader(plugins.strategies).read(
        {"name": "n", "maxAttempts": 9, "backoff": {"type": "fibonacci", "delay": 1000}}
    )
    broker.push("q", [job]).result()

    for expected in (1000, 1000, 2000, 3000, 5000):
        (delivery,) = broker.pull(PullRequest("q", 1, "worker")).result()
        failed_at = clock.now_ms
        broker.fail([Failure(delivery.job.id, "no", delivery.token)]).result()
        view = broker.job(delivery.job.id).result()
        assert view is not None
        assert 0.9 * expected <= view.job.run_at - failed_at <= 1.1 * expected
        clock.now_ms = view.job.run_at
        broker.run_due()
    broker.close().result()


def test_an_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="'fixed', 'exponential' or 'fibonacci'"):
        JobReader(PluginManager().strategies).read({"name": "n", "backoff": {"type": "golden", "delay": 1}})


# -- event sink -------------------------------------------------------------------------------------------------------


def test_a_server_tells_the_sink_what_happens(tmp_path: Path) -> None:
    from bunqueue_core.asyncio import Queue
    from bunqueue_core.server.lifecycle import Server

    path = tmp_path / "tally.json"
    settings = Settings.model_validate(
        {
            "server": {"host": "127.0.0.1", "tcp_port": 0, "http_port": 0},
            "events": {"sinks": [{"type": "tally", "path": str(path)}]},
        }
    )

    async def serve() -> None:
        server = Server(settings, PluginManager(), Logger(level="error"))
        listening = await server.start()
        assert isinstance(listening.tcp, tuple)
        async with Queue("mail", host="127.0.0.1", port=listening.tcp[1]) as queue:
            await queue.add("welcome", {})
            await queue.add("welcome", {})
            await queue.pause()
        await server.stop()  # delivers what waits

    asyncio.run(serve())

    assert json.loads(path.read_text()) == {"mail paused": 1, "mail pushed": 2}


def test_what_was_missed_is_counted(tmp_path: Path) -> None:
    sink = TallySink(tmp_path / "tally.json")
    sink.write([Event("dropped", "", "", 0, {"count": 7}), Event("pushed", "q", "1", 0, None)])
    sink.close()

    assert json.loads((tmp_path / "tally.json").read_text()) == {"dropped": 7, "q pushed": 1}


def test_a_batch_that_fails_is_not_counted_twice(tmp_path: Path) -> None:
    sink = TallySink(tmp_path / "missing" / "tally.json")
    events = [Event("pushed", "q", "1", 0, None)]
    with pytest.raises(OSError):
        sink.write(events)
    (tmp_path / "missing").mkdir()
    sink.write(events)

    assert json.loads((tmp_path / "missing" / "tally.json").read_text()) == {"q pushed": 1}


@pytest.mark.parametrize("table", [{}, {"path": ""}, {"path": 1}, {"path": "x", "colour": "blue"}])
def test_a_table_that_makes_no_sense_stops_the_start(table: dict[str, object]) -> None:
    settings = Settings.model_validate({"events": {"sinks": [{"type": "tally", **table}]}})
    with pytest.raises(ConfigurationError, match=r"events\.sinks: the sink 'tally'"):
        PluginManager().sinks(settings)


# -- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "section", [{"server": {"host": "127.0.0.1"}}, {"server": {"host": "::1"}}, {"auth": {"tokens": ["t"]}}]
)
def test_what_the_rules_allow(section: dict[str, object]) -> None:
    PluginManager().configure(Settings.model_validate(section))


def test_a_server_that_anybody_can_use_does_not_start(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from bunqueue_core.cli import main; main()", "config", "check"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 1
    assert "auth.tokens is empty while server.host is '0.0.0.0'" in result.stdout + result.stderr
