# Written by tools/async_to_sync.py from test_client_token_async.py: edit that file and run the tool, not this one.
"""What clients say when the server does not take their token."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from client_servers import Reply, ScriptedConnection, ScriptedServer, obliging

from bunqueue_core.client._acompat import Event
from bunqueue_core.client.job import Job
from bunqueue_core.client.queue import Queue
from bunqueue_core.client.queue_events import QueueEvents
from bunqueue_core.client.worker import Worker
from bunqueue_core.model.errors import AuthenticationError

#: Nothing here takes longer, seconds.
PATIENCE = 20.0

MakeServer = Callable[..., ScriptedServer]


def _locked(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
    if command["cmd"] == "Auth" and command["token"] != "right":
        return {"ok": False, "error": "Invalid token"}
    return obliging(command, connection)


def _open_to_none(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
    return {"ok": False, "error": "Not authenticated"}


def _nothing(job: Job) -> None:
    return None


def test_every_call_with_a_wrong_token_says_so(scripted: MakeServer) -> None:
    server = scripted(_locked)
    with Queue("q", **server.address, token="wrong") as queue:
        for _ in range(3):
            with pytest.raises(AuthenticationError, match="Invalid token"):
                queue.add("job")


def test_a_worker_with_a_wrong_token_ends_with_that_error(
    scripted: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = scripted(_locked)
    caplog.set_level(logging.WARNING, "bunqueue")
    worker = Worker("q", _nothing, **server.address, token="wrong", autorun=False)
    with pytest.raises(AuthenticationError, match="Invalid token"):
        worker.run()
    assert worker.is_closed()
    assert [record.getMessage() for record in caplog.records] == ["worker of 'q': stopped: Invalid token"]


def test_a_worker_without_the_token_that_is_needed_ends_with_that_error(scripted: MakeServer) -> None:
    server = scripted(_open_to_none)
    worker = Worker("q", _nothing, **server.address, autorun=False)
    with pytest.raises(AuthenticationError, match="Not authenticated"):
        worker.run()
    with pytest.raises(AuthenticationError, match="Not authenticated"):
        worker.wait_until_ready()


def test_a_worker_whose_errors_are_heard_tries_again(scripted: MakeServer) -> None:
    server = scripted(_locked)
    twice = Event()
    errors: list[Exception] = []

    def heard(error: Exception) -> None:
        errors.append(error)
        if len(errors) == 2:
            twice.set()

    worker = Worker("q", _nothing, **server.address, token="wrong", autorun=False)
    worker.on("error", heard)
    worker.start()
    assert twice.wait(PATIENCE)
    assert [(type(error), str(error)) for error in errors[:2]] == [(AuthenticationError, "Invalid token")] * 2
    server.script = obliging
    worker.wait_until_ready(PATIENCE)
    worker.close()


def test_a_worker_that_has_worked_outlives_a_token_that_is_refused(scripted: MakeServer) -> None:
    server = scripted(obliging)
    refused, again = Event(), Event()

    def heard(event: dict[str, Any]) -> None:
        if event["type"] == "auth" and not event["ok"]:
            server.script = obliging
            refused.set()
        elif event["type"] == "command" and event["cmd"] == "RegisterWorker" and refused.is_set():
            again.set()

    worker = Worker("q", _nothing, **server.address, token="old", on_telemetry=heard, autorun=False)
    worker.start()
    worker.wait_until_ready(PATIENCE)
    server.script = _locked
    server.connections[0].drop()
    assert again.wait(PATIENCE)
    worker.close()
    worker.run()


def test_events_with_a_wrong_token_are_never_ready(scripted: MakeServer) -> None:
    server = scripted(_locked)
    events = QueueEvents("q", **server.address, token="wrong")
    with pytest.raises(AuthenticationError, match="Invalid token"):
        events.wait_until_ready()
    events.close()
