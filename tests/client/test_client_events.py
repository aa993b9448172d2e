# Written by tools/async_to_sync.py from test_client_events_async.py: edit that file and run the tool, not this one.
"""Queue events against every kind of broker, and across lost connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from client_servers import Reply, ScriptedConnection, ScriptedServer

from bunqueue_core.client._acompat import Event
from bunqueue_core.client.job import Job
from bunqueue_core.client.queue import Queue
from bunqueue_core.client.queue_events import QueueEvents
from bunqueue_core.client.worker import Worker
from bunqueue_core.model.errors import CommandError, CommandTimeoutError, ConnectionClosedError, UnrecoverableError

Target = dict[str, Any]

PATIENCE = 10.0


class Heard:
    """What queue events told."""

    def __init__(self, events: QueueEvents, *names: str) -> None:
        self.entries: list[tuple[str, dict[str, Any]]] = []
        self._changed = Event()
        for name in names:
            events.on(name, self._listener(name))

    def _listener(self, name: str) -> Callable[[dict[str, Any]], None]:
        def told(payload: dict[str, Any]) -> None:
            self.entries.append((name, payload))
            self._changed.set()

        return told

    def until(self, name: str) -> dict[str, Any]:
        """Wait for an event; its payload."""
        while True:
            self._changed.clear()
            for other, payload in self.entries:
                if other == name:
                    return payload
            assert self._changed.wait(PATIENCE), f"{name} was not heard; {self.entries}"


def test_the_life_of_a_job(target: Target, name: str) -> None:
    def process(job: Job) -> Any:
        if job.name == "bad":
            raise UnrecoverableError("went wrong")
        job.update_progress(50)
        return {"n": job.data}

    with Queue(name, **target) as queue, QueueEvents(name, **target) as events:
        heard = Heard(events, "waiting", "active", "progress", "completed", "failed", "paused", "resumed")
        with Worker(name, process, **target):
            good = queue.add("good", 5)
            assert heard.until("completed") == {"jobId": good.id, "returnvalue": {"n": 5}}
            assert [entry[0] for entry in heard.entries] == ["waiting", "active", "progress", "completed"]
            assert {payload["jobId"] for _, payload in heard.entries} == {good.id}
            bad = queue.add("bad", {"k": 1})
            failed = heard.until("failed")
            assert failed == {"jobId": bad.id, "failedReason": "went wrong", "data": {"k": 1}, "terminal": True}
        queue.pause()
        assert heard.until("paused") == {}
        queue.resume()
        assert heard.until("resumed") == {}


def test_waiting_for_a_job_by_its_events(target: Target, name: str) -> None:
    def process(job: Job) -> Any:
        if job.name == "stubborn":
            raise ValueError(f"attempt {job.attempts + 1}")
        return job.data

    with Queue(name, **target) as queue, QueueEvents(name, **target) as events:
        early = queue.add("a", 1)
        with Worker(name, process, **target):
            assert early.wait_until_finished(events, 10_000) == 1
            assert queue.wait_job_until_finished(early.id, events) == 1
            stubborn = queue.add("stubborn", {}, attempts=2, backoff=1)
            with pytest.raises(CommandError, match="attempt 2"):
                stubborn.wait_until_finished(events, 10_000)
            with pytest.raises(CommandError, match="Job already failed"):
                stubborn.wait_until_finished(events, 10_000)
        late = queue.add("a", 2)
        with pytest.raises(CommandTimeoutError, match=f"Job {late.id} timed out after 20ms"):
            late.wait_until_finished(events, 20)


def test_events_of_other_queues_are_not_heard(target: Target, name: str) -> None:
    with Queue(name, prefix_key="x:", **target) as other, Queue(name, **target) as queue:
        with QueueEvents(name, **target) as events:
            heard = Heard(events, "waiting")
            other.add("a", {})
            mine = queue.add("a", {})
            heard.until("waiting")
            assert heard.entries == [("waiting", {"jobId": mine.id})]
        with pytest.raises(ConnectionClosedError, match="QueueEvents is closed"):
            events.wait_until_ready()


def test_a_lost_subscription_is_made_again(scripted: Callable[..., ScriptedServer]) -> None:
    def script(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if len(server.connections) == 1:
            connection.drop()
            return None
        event = {"eventType": "drained", "queue": "q", "jobId": "", "timestamp": 1}
        return [{"ok": True}, {"type": "event", "event": event}]

    server = scripted(script)
    events = QueueEvents("q", autorun=False, **server.address)
    heard = Heard(events, "drained")
    events.start()
    heard.until("drained")
    assert len(server.named("SubscribeEvents")) == 2
    events.close()
    events.close()


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"eventType": "stalled"}, ("stalled", {"jobId": "1"})),
        ({"eventType": "duplicated"}, ("duplicated", {"jobId": "1"})),
        ({"eventType": "removed"}, ("removed", {"jobId": "1", "prev": "unknown"})),
        ({"eventType": "retried", "prev": "failed"}, ("retried", {"jobId": "1", "prev": "failed"})),
        ({"eventType": "delayed", "delay": 50.0}, ("delayed", {"jobId": "1", "delay": 50.0})),
        ({"eventType": "waiting-children"}, ("waiting-children", {"jobId": "1"})),
        (
            {"eventType": "failed", "error": "no", "terminal": False},
            ("failed", {"jobId": "1", "failedReason": "no", "data": None, "terminal": False}),
        ),
    ],
)
def test_payloads(
    scripted: Callable[..., ScriptedServer], event: dict[str, Any], expected: tuple[str, dict[str, Any]]
) -> None:
    sent = {"queue": "q", "jobId": "1", "timestamp": 1, **event}
    server = scripted(lambda command, connection: [{"ok": True}, {"type": "event", "event": sent}])
    events = QueueEvents("q", autorun=False, **server.address)
    heard = Heard(events, expected[0])
    events.start()
    assert heard.until(expected[0]) == expected[1]
    events.close()
