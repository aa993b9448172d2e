# Written by tools/async_to_sync.py from test_client_auto_batch_async.py: edit that file and run the tool, not this one.
"""Adds that come while others are under way leave together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from client_servers import Reply, ScriptedConnection, ScriptedServer, obliging

from bunqueue_core.client._acompat import settled
from bunqueue_core.client.add_batcher import AddBatcher
from bunqueue_core.client.connection import Connection
from bunqueue_core.client.queue import Queue
from bunqueue_core.model.errors import CommandError, ConnectionClosedError, SerializationError

MakeServer = Callable[..., ScriptedServer]

#: Longer than any test takes: a delay that never ends, ms.
NEVER = 3_600_000


def taking(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
    """Takes jobs; their ids are their data."""
    if command["cmd"] == "PUSH":
        return {"ok": True, "id": str(command.get("data"))}
    if command["cmd"] == "PUSHB":
        return {"ok": True, "ids": [str(job.get("data")) for job in command["jobs"]]}
    return obliging(command, connection)


def silent_about_single_ones(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
    return None if command["cmd"] == "PUSH" else taking(command, connection)


def connected(server: ScriptedServer) -> Connection:
    connection = Connection(**server.address)
    connection.connect()
    return connection


def pushes(server: ScriptedServer) -> list[Any]:
    """What was pushed: data for single ones, lists of data for batches."""
    return [
        command["data"] if command["cmd"] == "PUSH" else [job["data"] for job in command["jobs"]]
        for command in server.commands
        if command["cmd"] in ("PUSH", "PUSHB")
    ]


def test_a_lone_add_leaves_at_once_and_others_together(scripted: MakeServer) -> None:
    server = scripted(taking)
    batcher = AddBatcher("q", {"max_delay_ms": NEVER})
    with connected(server) as connection:
        answers = [batcher.add(connection.verbs, "job", n, {"priority": n} if n == 2 else None) for n in range(4)]
        ids = [(settled(answer)).ids for answer in answers]
        assert ids == [["0"], ["1"], ["2"], ["3"]]
        assert pushes(server) == [0, [1, 2, 3]]
        assert server.named("PUSHB")[0]["jobs"][1]["priority"] == 2
        settled(batcher.add(connection.verbs, "job", 4, None))
        assert pushes(server)[2:] == [4]
        batcher.stop()


def test_a_full_batch_does_not_wait(scripted: MakeServer) -> None:
    server = scripted(silent_about_single_ones)
    batcher = AddBatcher("q", {"maxSize": 2, "maxDelayMs": NEVER})
    with connected(server) as connection:
        answers = [batcher.add(connection.verbs, "job", n, None) for n in range(5)]
        for answer in answers[1:]:
            settled(answer)
        assert pushes(server) == [0, [1, 2], [3, 4]]
        batcher.stop()


def test_nobody_waits_longer_than_the_delay(scripted: MakeServer) -> None:
    server = scripted(silent_about_single_ones)
    batcher = AddBatcher("q", {"max_delay_ms": 1})
    with connected(server) as connection:
        batcher.add(connection.verbs, "job", 0, None)
        for n in (1, 2):
            assert (settled(batcher.add(connection.verbs, "job", n, None))).ids == [str(n)]
        assert pushes(server) == [0, [1], [2]]
        batcher.stop()


def test_a_refused_batch_fails_all_of_it(scripted: MakeServer) -> None:
    def refusing(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        return {"ok": False, "error": "jobs[1]: bad"} if command["cmd"] == "PUSHB" else taking(command, connection)

    batcher = AddBatcher("q", {"max_delay_ms": NEVER})
    with connected(scripted(refusing)) as connection:
        answers = [batcher.add(connection.verbs, "job", n, None) for n in range(3)]
        assert (settled(answers[0])).ids == ["0"]
        for answer in answers[1:]:
            with pytest.raises(CommandError, match=r"jobs\[1\]: bad"):
                settled(answer)
        batcher.stop()


def test_what_cannot_be_encoded_fails_alone(scripted: MakeServer) -> None:
    server = scripted(taking)
    batcher = AddBatcher("q", {"max_delay_ms": NEVER})
    with connected(server) as connection:
        answers = [batcher.add(connection.verbs, "job", data, None) for data in (0, object(), 2)]
        assert (settled(answers[2])).ids == ["2"]
        with pytest.raises(SerializationError):
            settled(answers[1])
        with pytest.raises(TypeError, match="unknown job option 'nonsense'"):
            batcher.add(connection.verbs, "job", 3, {"nonsense": 1})
        assert (settled(batcher.add(connection.verbs, "job", 4, None))).ids == ["4"]
        batcher.stop()


def test_stopping_and_flushing(scripted: MakeServer) -> None:
    server = scripted(silent_about_single_ones)
    batcher = AddBatcher("q", {"max_delay_ms": NEVER})
    with connected(server) as connection:
        batcher.add(connection.verbs, "job", 0, None)
        flushed = batcher.add(connection.verbs, "job", 1, None)
        batcher.flush(connection.verbs)
        assert flushed.value.ids == ["1"]
        waiting = batcher.add(connection.verbs, "job", 2, None)
        batcher.stop()
        for answer in (waiting, batcher.add(connection.verbs, "job", 3, None)):
            with pytest.raises(ConnectionClosedError, match="AddBatcher stopped"):
                settled(answer)
        assert pushes(server) == [0, [1]]


def test_a_queue_with_batches_is_a_queue(remote: dict[str, Any], name: str) -> None:
    with Queue(name, **remote, auto_batch=True, default_job_options={"priority": 2}) as queue:
        first = queue.add("a", 1)
        durable = queue.add("b", 2, durable=True, job_id="mine")
        assert durable.id == "mine"
        job = queue.get_job(first.id)
        assert job is not None
        assert (job.name, job.data, job.priority) == ("a", 1, 2)
        with pytest.raises(CommandError):
            queue.add("", 1)
        queue.disconnect()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size": 5}, "auto_batch has no option 'size'"),
        ({"max_size": 0}, "auto_batch.max_size must be an integer between 1 and 1000, got 0"),
        ({"max_delay_ms": -1}, "auto_batch.max_delay_ms must be a number of at least 0, got -1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Queue("q", auto_batch=options)


def test_it_can_be_switched_off_and_is_of_no_use_when_embedded() -> None:
    for queue in (Queue("q", auto_batch={"enabled": False}), Queue("q", embedded=True, auto_batch=True)):
        assert queue._batcher is None
