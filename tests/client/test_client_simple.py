# Written by tools/async_to_sync.py from test_client_simple_async.py: edit that file and run the tool, not this one.
"""The simple mode: queue and worker in one object, and each of its features."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from bunqueue_core.client._acompat import Event
from bunqueue_core.client._simple_base import Breaker, expired_ms, merged_options, retry_delay_ms
from bunqueue_core.client.job import Job
from bunqueue_core.client.simple import Bunqueue
from bunqueue_core.model.errors import UnrecoverableError

Target = dict[str, Any]

PATIENCE = 20.0


class Ends:
    """Collects the ends of jobs."""

    def __init__(self, app: Bunqueue) -> None:
        self.entries: list[tuple[str, Any]] = []
        self._changed = Event()
        app.on("completed", lambda job, result: self._add("completed", result))
        app.on("failed", lambda job, error: self._add("failed", error))

    def _add(self, event: str, value: Any) -> None:
        self.entries.append((event, value))
        self._changed.set()

    def first(self, count: int) -> list[tuple[str, Any]]:
        """Wait for that many."""
        while len(self.entries) < count:
            self._changed.clear()
            if len(self.entries) < count:
                assert self._changed.wait(PATIENCE), f"only {self.entries}"
        return self.entries


def echo(job: Job) -> Any:
    return job.data


def test_a_processor(target: Target, name: str) -> None:
    with Bunqueue(name, processor=echo, concurrency=2, **target) as app:
        ends = Ends(app)
        assert app.is_running()
        job = app.add("a", {"n": 1})
        (id,) = app.add_bulk([{"name": "b", "data": 2}])
        ends.first(2)
        assert app.queue.get_result(job.id) == {"n": 1}
        assert app.queue.get_result(id) == 2
        assert (app.get_job_counts())["completed"] == 2
        assert app.count() == 0
        found = app.get_job(id)
        assert found is not None
        app.pause()
        assert app.is_paused()
        assert app.queue.is_paused()
        app.resume()
        assert not app.is_paused()
    assert app.is_closed()
    app.close()


def test_routes(target: Target, name: str) -> None:
    def shout(job: Job) -> str:
        return job.data.upper()

    with Bunqueue(name, routes={"shout": shout, "echo": echo}, **target) as app:
        ends = Ends(app)
        app.add("shout", "quiet")
        ends.first(1)
        app.add("other", "x", attempts=1)
        (first, second) = ends.first(2)
        assert first == ("completed", "QUIET")
        assert str(second[1]) == f'No route for job "other" in queue "{name}"'


def test_middleware_wraps_in_order(target: Target, name: str) -> None:
    order: list[str] = []

    def around(label: str) -> Callable[..., Any]:
        def middleware(job: Job, following: Callable[[], Any]) -> Any:
            order.append(f"before {label}")
            result = following()
            order.append(f"after {label}")
            return f"{label}({result})"

        return middleware

    with Bunqueue(name, processor=echo, **target) as app:
        ends = Ends(app)
        app.use(around("outer")).use(around("inner"))
        app.add("a", "x")
        assert ends.first(1) == [("completed", "outer(inner(x))")]
        assert order == ["before outer", "before inner", "after inner", "after outer"]


def test_retries_within_a_delivery(target: Target, name: str) -> None:
    attempts: list[int] = []

    def moody(job: Job) -> str:
        attempts.append(job.attempts)
        if job.name == "final":
            raise UnrecoverableError("never")
        if job.name == "refused" or len(attempts) < 3:
            raise ValueError(job.name)
        return "at last"

    retry = {
        "maxAttempts": 5,
        "delay": 1,
        "strategy": "fixed",
        "retry_if": lambda error, attempt: str(error) != "refused",
    }
    with Bunqueue(name, processor=moody, retry=retry, concurrency=1, **target) as app:
        ends = Ends(app)
        app.add("a", {})
        assert ends.first(1) == [("completed", "at last")]
        assert attempts == [0, 0, 0]
        app.add("final", {})
        app.add("refused", {}, attempts=1)
        ends.first(3)
        assert len(attempts) == 5


def test_a_circuit_breaker(target: Target, name: str) -> None:
    told: list[Any] = []
    half_open, closed = Event(), Event()
    healthy = threading.Event()

    def process(job: Job) -> str:
        if not healthy.is_set():
            raise ValueError("down")
        return "up"

    def opened(failures: int) -> None:
        told.append(failures)
        healthy.set()

    breaker = {
        "threshold": 2,
        "resetTimeout": 20,
        "onOpen": opened,
        "onHalfOpen": lambda: told.append("half-open"),
        "onClose": lambda: told.append("closed"),
    }
    with Bunqueue(name, processor=process, circuit_breaker=breaker, concurrency=1, **target) as app:
        ends = Ends(app)
        assert app.get_circuit_state() == "closed"
        app.add_bulk([{"name": "a", "attempts": 1} for _ in range(2)])
        ends.first(2)
        app.add("a", {})
        entries = ends.first(3)
        assert [event for event, _ in entries] == ["failed", "failed", "completed"]
        assert told == [2, "half-open", "closed"]
        assert app.get_circuit_state() == "closed"
        app.reset_circuit()
        assert not half_open.is_set()
        assert not closed.is_set()


def test_batches(target: Target, name: str) -> None:
    sizes: list[int] = []

    def together(jobs: list[Job]) -> list[Any]:
        sizes.append(len(jobs))
        if any(job.data == "bad" for job in jobs):
            raise ValueError("all of them")
        return [job.data * 10 for job in jobs][: len(jobs) - (len(jobs) == 3)]

    with Bunqueue(name, batch={"size": 4, "timeout": 400, "processor": together}, concurrency=8, **target) as app:
        ends = Ends(app)
        app.add_bulk([{"name": "a", "data": n} for n in range(4)])
        assert sorted(result for _, result in ends.first(4)) == [0, 10, 20, 30]
        app.add_bulk([{"name": "a", "data": n} for n in range(3)])
        entries = ends.first(7)
        assert sum(result is None for _, result in entries[4:]) == 1  # fewer results than jobs
        app.add_bulk([{"name": "a", "data": "bad", "attempts": 1} for _ in range(2)])
        entries = ends.first(9)
        assert [(event, str(error)) for event, error in entries[7:]] == [("failed", "all of them")] * 2
        assert sizes == [4, 3, 2]


def test_jobs_that_are_too_old(target: Target, name: str) -> None:
    with Bunqueue(name, processor=echo, ttl={"perName": {"short": 10}}, **target) as app:
        ends = Ends(app)
        app.add("short", 1, timestamp=1_000, attempts=1)
        ((event, error),) = ends.first(1)
        assert event == "failed"
        assert str(error).startswith("Job expired (age: ")
        app.set_default_ttl(10)
        app.set_name_ttl("short", 0)
        app.add("short", "kept", timestamp=1_000)
        app.add("other", "gone", timestamp=1_000, attempts=1)
        entries = ends.first(3)
        assert sorted(event for event, _ in entries[1:]) == ["completed", "failed"]


def test_priorities_rise_with_age(target: Target, name: str) -> None:
    aging = {"interval": 10, "min_age": 1, "boost": 3, "max_priority": 5}
    app = Bunqueue(name, processor=echo, priority_aging=aging, autorun=False, **target)
    app.worker.pause()
    job = app.add("a", {}, timestamp=1_000)
    app.start()
    while True:
        aged = app.get_job(job.id)
        assert aged is not None
        if aged.priority == 5:
            break
        Event().wait(0.01)
    app.close()


def test_deduplication_and_debounce_by_default(target: Target, name: str) -> None:
    with Bunqueue(name, processor=echo, deduplication=True, autorun=False, **target) as app:
        app.queue.pause()
        first = app.add("a", {"n": 1})
        second = app.add("a", {"n": 1})
        third = app.add("a", {"n": 2})
        fourth = app.add("a", {"n": 1}, unique_key="own")
        assert first.id == second.id
        assert len({first.id, third.id, fourth.id}) == 3
        assert app.add_bulk([{"name": "a", "data": {"n": 1}}]) == [first.id]


def test_triggers(target: Target, name: str) -> None:
    def process(job: Job) -> Any:
        if job.name == "bad":
            raise UnrecoverableError("no")
        return job.data

    with Bunqueue(name, processor=process, concurrency=1, **target) as app:
        ends = Ends(app)
        app.trigger(
            {
                "on": "order",
                "create": "mail",
                "data": lambda result, job: {"for": result["id"]},
                "condition": lambda result, job: result["id"] > 1,
            }
        )
        app.trigger({"on": "bad", "event": "failed", "create": "alert", "data": lambda error, job: str(error)})
        app.add_bulk([{"name": "order", "data": {"id": 1}}, {"name": "order", "data": {"id": 2}}, {"name": "bad"}])
        entries = ends.first(5)
        assert ("completed", {"for": 2}) in entries
        assert ("completed", "no") in entries
        with pytest.raises(TypeError, match="trigger needs 'create'"):
            app.trigger({"on": "a"})
        with pytest.raises(ValueError, match="trigger event must be"):
            app.trigger({"on": "a", "create": "b", "event": "started"})


def test_cancelling(target: Target, name: str) -> None:
    started = Event()
    apps: list[Bunqueue] = []

    def long(job: Job) -> None:
        signal = apps[0].get_signal(job.id)
        assert signal is not None
        stopped = Event()
        signal.on_abort(lambda reason: stopped.set())
        started.set()
        assert stopped.wait(PATIENCE)
        raise UnrecoverableError(signal.reason)

    with Bunqueue(name, processor=long, **target) as app:
        apps.append(app)
        ends = Ends(app)
        app.cancel("nobody")
        app.cancel("nobody", 10)
        job = app.add("long", {})
        assert started.wait(PATIENCE)
        assert not app.is_cancelled(job.id)
        app.cancel(job.id, 60_000)
        app.cancel(job.id, 10)
        ((event, error),) = ends.first(1)
        assert (event, str(error)) == ("failed", "Job cancelled")


def test_schedules_and_dead_letters(target: Target, name: str) -> None:
    with Bunqueue(name, processor=echo, dlq={"maxEntries": 7}, **target) as app:
        app.worker.wait_until_ready()
        app.every("tick", 3_600_000, {"n": 1}, limit=5)
        app.cron("nightly", "0 3 * * *", timezone="UTC")
        assert sorted(schedule["id"] for schedule in app.list_crons()) == ["nightly", "tick"]
        app.remove_cron("tick")
        app.remove_cron("nightly")
        assert app.list_crons() == []
        while (app.get_dlq_config())["maxEntries"] != 7:
            Event().wait(0.01)
        app.set_dlq_config({"max_entries": 8})
        assert app.get_dlq() == []
        assert (app.get_dlq_stats())["total"] == 0
        assert app.retry_dlq() == app.purge_dlq() == 0
        app.set_global_rate_limit(100, 1000)
        app.remove_global_rate_limit()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({}, ValueError, 'Bunqueue requires "processor", "routes", or "batch"'),
        ({"processor": echo, "routes": {"a": echo}}, ValueError, "use only one of"),
        ({"processor": echo, "colour": 1}, TypeError, "Bunqueue has no option 'colour'"),
        ({"processor": echo, "retry": {"tries": 3}}, TypeError, "retry has no option 'tries'"),
        ({"processor": echo, "retry": {"strategy": "never"}}, ValueError, "retry.strategy must be one of"),
        ({"processor": echo, "retry": {"strategy": "custom"}}, ValueError, "needs custom_backoff"),
        ({"processor": echo, "ttl": 5}, TypeError, "ttl must be a mapping"),
        ({"batch": {"processor": echo}}, ValueError, "batch.size must be a positive integer"),
    ],
)
def test_wrong_options(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        Bunqueue("q", **options)


def test_pauses_between_retries() -> None:
    def pauses(**config: Any) -> list[float]:
        full = {"delay": 100, "strategy": "exponential", "custom_backoff": None, **config}
        return [retry_delay_ms(full, attempt, ValueError(), lambda: 0.25) for attempt in range(1, 6)]

    assert pauses() == [100, 200, 400, 800, 1600]
    assert pauses(strategy="fixed") == [100] * 5
    assert pauses(strategy="jitter") == [75, 150, 300, 600, 1200]
    assert pauses(strategy="fibonacci") == [100, 200, 300, 500, 800]
    assert pauses(custom_backoff=lambda attempt, error: attempt * 7) == [7, 14, 21, 28, 35]


def test_a_breaker_by_itself() -> None:
    breaker = Breaker(2)
    assert [breaker.failed(), breaker.state] == [False, "closed"]
    assert [breaker.failed(), breaker.state] == [True, "open"]
    assert breaker.half_open(0) is False
    assert breaker.half_open(1) is True
    assert [breaker.failed(), breaker.state] == [True, "open"]
    assert breaker.half_open(2) is True
    assert [breaker.succeeded(), breaker.state, breaker.failures] == [True, "closed", 0]
    assert breaker.reset() is False


def test_small_rules() -> None:
    config = {"default_ttl": 0, "per_name": {"a": 10}}
    assert [expired_ms(config, name, 100, 111) for name in ("a", "b")] == [11, None]
    assert expired_ms(config, "a", None, 111) is None
    assert merged_options("a", {"x": [1]}, {}, None, {"ttl": 5}) == {"debounce": {"id": "a", "ttl": 5}}
    assert merged_options("a", {"x": [1]}, {}, {"ttl": 5}, None) == {"deduplication": {"id": 'a:{"x":[1]}', "ttl": 5}}
