# Written by tools/async_to_sync.py from test_client_connection_async.py: edit that file and run the tool, not this one.
"""A connection: lazily made, pipelined, given up when it is dead, made again at the next call."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from client_servers import Reply, ScriptedConnection, ScriptedServer, obliging, wire_job

from bunqueue_core.client._acompat import Event, settled, spawn
from bunqueue_core.client.connection import Connection
from bunqueue_core.client.queue import Queue
from bunqueue_core.model.errors import (
    AuthenticationError,
    BackendBusy,
    CapabilityError,
    CommandError,
    CommandTimeoutError,
    ConnectionClosedError,
    LeaseLost,
    NotFound,
    SerializationError,
    StorageUnavailable,
)
from bunqueue_core.model.requests import Ack, PullRequest, Renewal

Scripted = Callable[..., ScriptedServer]


def test_a_server_says_what_it_is(remote: dict[str, Any]) -> None:
    with Connection(**remote) as connection:
        assert not connection.connected
        assert connection.generation == 0
        assert connection.ping()
        assert connection.connected
        assert connection.generation == 1
        connection.connect()
        assert connection.generation == 1
        hello = connection.hello()
        assert (hello["protocolVersion"], hello["server"]) == (3, "bunqueue")


def test_fields_without_a_value_are_left_out(scripted: Scripted) -> None:
    server = scripted(obliging)
    with Connection(**server.address) as connection:
        connection.call({"cmd": "Some", "kept": 0, "empty": "", "gone": None})
    (command,) = server.named("Some")
    assert {key: value for key, value in command.items() if key != "reqId"} == {"cmd": "Some", "kept": 0, "empty": ""}


def test_answers_in_any_order_find_their_callers(scripted: Scripted) -> None:
    held: list[dict[str, Any]] = []

    def backwards(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        held.append(command)
        if len(held) == 5:
            return [{"ok": True, "n": other["n"], "reqId": other["reqId"]} for other in reversed(held)]
        return None

    server = scripted(backwards)
    with Connection(**server.address) as connection:
        answers = [connection.verbs.command("Echo", {"n": n}) for n in range(5)]
        assert [(settled(answer))["n"] for answer in answers] == [0, 1, 2, 3, 4]


def test_numbers_leave_as_every_server_reads_them(scripted: Scripted) -> None:
    server = scripted(lambda command, connection: {"ok": True, "id": "1"})
    with Queue("q", **server.address) as queue:
        queue.add("a", {"small": 7, "large": 2**40, "negative": -(2**33), "exact": 2**60})
    data = server.named("PUSH")[0]["data"]
    assert data == {"small": 7, "large": 2**40, "negative": -(2**33), "exact": 2**60}
    assert [type(value) for value in data.values()] == [int, float, float, int]


def test_undefined_is_read_as_none(scripted: Scripted) -> None:
    body = b"\x83\xa2ok\xc3\xa6result\xd4\x00\x00\xa5reqId\xa1"

    def undefined(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        frame = body + command["reqId"].encode()
        return struct.pack(">I", len(frame)) + frame

    server = scripted(undefined)
    with Queue("q", **server.address) as queue:
        assert queue.get_result("x") is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Job not found", NotFound),
        ("Job not found or not in processing state: 1", NotFound),
        ("Invalid or expired lock token for job 1", LeaseLost),
        ("Storage unavailable: disk full", StorageUnavailable),
        ("Backend busy: too much; retry later", BackendBusy),
        ("Cron is not offered by storage driver 'x'", CapabilityError),
        ("Not authenticated", AuthenticationError),
        ("anything else", CommandError),
    ],
)
def test_a_refusal_has_the_servers_text_and_a_class_of_its_own(
    scripted: Scripted, text: str, kind: type[CommandError]
) -> None:
    server = scripted(lambda command, connection: {"ok": False, "error": text})
    with Connection(**server.address) as connection:
        with pytest.raises(kind) as caught:
            connection.call({"cmd": "Some"})
        assert str(caught.value) == text
        assert type(caught.value) is kind


def test_no_answer_in_time(scripted: Scripted) -> None:
    release = []

    def silent(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        return {"ok": True} if command["cmd"] == "Loud" or release else None

    server = scripted(silent)
    with Connection(command_timeout=0.05, **server.address) as connection:
        with pytest.raises(CommandTimeoutError, match="no response for Quiet within timeout"):
            connection.call({"cmd": "Quiet"})
        assert connection.call({"cmd": "Loud"}, timeout=5.0)
        assert connection.generation == 1


def test_a_server_that_never_answers_is_given_up(scripted: Scripted) -> None:
    server = scripted(lambda command, connection: {"ok": True} if len(server.connections) > 1 else None)
    with Connection(command_timeout=0.03, **server.address) as connection:
        for _ in range(3):
            with pytest.raises(CommandTimeoutError):
                connection.call({"cmd": "Quiet"})
        assert not connection.connected
        assert connection.call({"cmd": "Quiet"}, timeout=5.0)
        assert connection.generation == 2


def test_a_lost_connection_fails_what_waits_and_is_made_again(scripted: Scripted) -> None:
    def moody(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if command["cmd"] == "Bye":
            connection.drop()
            return None
        return {"ok": True}

    events: list[str] = []
    server = scripted(moody)
    with Connection(on_telemetry=lambda event: events.append(event["type"]), **server.address) as connection:
        connection.call({"cmd": "Fine"})
        with pytest.raises(ConnectionClosedError, match="connection lost"):
            connection.call({"cmd": "Bye"})
        assert not connection.connected
        assert connection.call({"cmd": "Fine"})
        assert connection.generation == 2
    assert events == ["connect", "command", "disconnect", "connect", "command", "disconnect"]
    assert len(server.named("Bye")) == 1  # nothing is sent twice


def test_after_a_failed_connect_calls_fail_at_once(scripted: Scripted) -> None:
    server = scripted(obliging)
    server.close()
    events: list[dict[str, Any]] = []
    with Connection(on_telemetry=events.append, **server.address) as connection:
        with pytest.raises(
            ConnectionClosedError, match=rf"connect failed: .* \(127\.0\.0\.1:{server.address['port']}\)"
        ):
            connection.call({"cmd": "Some"})
        with pytest.raises(ConnectionClosedError, match=r"server unreachable, retry in \d+ms"):
            connection.call({"cmd": "Some"})
        assert not connection.ping()
    scheduled = [event for event in events if event["type"] == "reconnect_scheduled"]
    assert [(event["attempt"], event["delay_ms"]) for event in scheduled] == [(1, 500)]


def test_closing_fails_what_waits_and_what_comes(scripted: Scripted) -> None:
    server = scripted(lambda command, connection: None)
    connection = Connection(**server.address)
    answer = connection.verbs.command("Some", {})
    failed = Event()

    def wait() -> None:
        with pytest.raises(ConnectionClosedError, match="connection closed by client"):
            settled(answer)
        failed.set()

    task = spawn("waiter", wait)
    connection.connect()
    server.saw("Some")
    connection.close()
    connection.close()
    assert failed.wait(10)
    assert task is not None
    with pytest.raises(ConnectionClosedError, match="connection closed by client"):
        connection.call({"cmd": "Some"})


def test_the_token_goes_first(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    server = scripted(lambda command, connection: {"ok": True})
    events: list[dict[str, Any]] = []
    with Connection(token="secret", on_telemetry=events.append, **server.address) as connection:
        connection.call({"cmd": "Some"})
    assert [(command["cmd"], command.get("token")) for command in server.commands] == [
        ("Auth", "secret"),
        ("Some", None),
    ]
    assert {"type": "auth", "ok": True} in events
    assert "secret" not in repr(events)
    monkeypatch.setenv("BUNQUEUE_TOKEN", "from the environment")
    with Connection(**server.address) as connection:
        connection.connect()
    assert server.named("Auth")[-1]["token"] == "from the environment"


def test_a_refused_token(scripted: Scripted) -> None:
    server = scripted(lambda command, connection: {"ok": False, "error": "Invalid token"})
    with Connection(token="wrong", **server.address) as connection:
        with pytest.raises(AuthenticationError, match="Invalid token"):
            connection.call({"cmd": "Some"})
        assert not connection.connected


def test_what_is_no_frame_ends_the_connection(scripted: Scripted) -> None:
    replies: list[bytes] = [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x01\x05"]
    server = scripted(lambda command, connection: replies.pop())
    with Connection(**server.address) as connection:
        for generation in range(1, 4):
            with pytest.raises(ConnectionClosedError, match="Invalid response from server"):
                connection.call({"cmd": "Some"})
            assert connection.generation == generation


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "it speaks HTTP; clients need the server's TCP port, and {port} is another",
        ),
        (b"\x15\x03\x03\x00\x02\x02\x46", "it speaks TLS; pass tls=True"),
    ],
)
def test_a_port_of_another_protocol_is_pointed_out(scripted: Scripted, answer: bytes, hint: str) -> None:
    server = scripted(lambda command, connection: answer)
    with Connection(**server.address) as connection:
        text = f"Invalid response from server: {hint.format(port=server.port)}"
        with pytest.raises(ConnectionClosedError, match=text):
            connection.call({"cmd": "Some"})


def test_frames_arrive_in_pieces(scripted: Scripted) -> None:
    def piecemeal(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        frame = b"\x82\xa2ok\xc3\xa5reqId\xa1" + command["reqId"].encode()
        for byte in struct.pack(">I", len(frame)) + frame:
            connection.send(bytes([byte]))
        return None

    server = scripted(piecemeal)
    with Connection(**server.address) as connection:
        assert (connection.call({"cmd": "Some"}))["ok"] is True


def test_too_large_a_frame_is_not_sent(scripted: Scripted) -> None:
    server = scripted(obliging)
    with Connection(**server.address) as connection:
        with pytest.raises(SerializationError, match=r"frame size \d+ exceeds maximum 67108864"):
            connection.call({"cmd": "Some", "data": b"x" * (64 * 1024 * 1024)})
        assert connection.ping()
    assert server.named("Some") == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"command_timeout": 0}, "command_timeout must be a positive number of seconds"),
        ({"command_timeout": float("nan")}, "command_timeout must be a positive number of seconds"),
        ({"connect_timeout": -1}, "connect_timeout must be a positive number of seconds"),
        ({"port": 0}, "port must be an integer between 1 and 65535"),
        ({"tls": {"cert": "x"}}, "tls has no option 'cert'"),
        ({"host": ""}, "host must not be empty"),
    ],
)
def test_wrong_options_of_a_connection(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Connection(**options)


def test_a_shared_connection_stays_open(remote: dict[str, Any], name: str) -> None:
    with Connection(**remote) as connection:
        with Queue(name, connection=connection) as queue:
            queue.add("a", {})
        assert connection.connected
        with Queue(name, connection=connection) as queue:
            assert queue.count() == 1
        assert connection.generation == 1
    with Queue(name, connection=remote) as queue:
        assert queue.count() == 1


def test_contradictions_are_refused(remote: dict[str, Any]) -> None:
    servers: list[dict[str, Any]] = [{"host": "db"}, {"port": 7000}, {"token": "t"}, {"tls": True}]
    for server in servers:
        with pytest.raises(ValueError, match="either embedded or has a server"):
            Queue("a", embedded=True, **server)
    with pytest.raises(ValueError, match="either embedded or has a connection"):
        Queue("q", embedded=True, connection=remote)
    with pytest.raises(ValueError, match="data_path is for embedded clients only"):
        Queue("q", embedded=False, data_path="x.db")
    with pytest.raises(ValueError, match="data_path must not be empty"):
        Queue("q", data_path="")
    with pytest.raises(ValueError, match="connection has no option 'hostname'"):
        Queue("q", connection={"hostname": "x"})


# -- verbs ----------------------------------------------------------------------------------------------------------------


def test_a_cancelled_pull_gives_back_what_still_comes(scripted: Scripted) -> None:
    def late(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if command["cmd"] == "PULLB":
            return None
        if command["cmd"] == "Now":
            jobs = {"ok": True, "jobs": [wire_job("1"), wire_job("2")], "tokens": ["t1", "t2"]}
            connection.answer(server.named("PULLB")[0], jobs)
        return {"ok": True}

    server = scripted(late)
    with Connection(**server.address) as connection:
        connection.connect()
        pull = connection.verbs.pull(PullRequest("q", 5, "me", 1000, 5000))
        connection.ping()
        pull.cancel()
        assert pull.value == []
        connection.call({"cmd": "Now"})
        connection.ping()
        moved = server.saw("MoveToWait", 2)
        assert [(command["id"], command["token"]) for command in moved] == [("1", "t1"), ("2", "t2")]


def test_a_pull_that_is_cancelled_too_late_gives_back_its_jobs(scripted: Scripted) -> None:
    def generous(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if command["cmd"] == "PULL":
            return {"ok": True, "job": wire_job("1"), "token": "t1"}
        return {"ok": True}

    server = scripted(generous)
    with Connection(**server.address) as connection:
        pull = connection.verbs.pull(PullRequest("q", 1, "me"))
        ((source, token),) = settled(pull)
        assert (source["id"], token) == ("1", "t1")
        pull.cancel()
        connection.ping()
        (moved,) = server.saw("MoveToWait")
        assert (moved["id"], moved["token"]) == ("1", "t1")


def test_a_refused_batch_of_acknowledgements_is_sorted_out(scripted: Scripted) -> None:
    states = {"applied": "completed", "gone": "unknown"}

    def fussy(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        refusal = {"ok": False, "error": f"Job not found or not in processing state: {command.get('id')}"}
        if command["cmd"] == "ACKB":
            return {"ok": False, "error": "Job not found or not in processing state: gone"}
        if command["cmd"] == "ACK":
            if command["id"] == "final":
                return {"ok": True, "data": {"applied": False, "reason": "already-finalized"}}
            return {"ok": True} if command["id"] == "fresh" else refusal
        return {"ok": True, "state": states[command["id"]]}

    server = scripted(fussy)
    with Connection(**server.address) as connection:
        acks = [Ack(id, "t", b"\x01" if id == "fresh" else None) for id in ("applied", "gone", "fresh", "final")]
        result = settled(connection.verbs.ack(acks))
        assert result.outcomes == ["applied", "applied", "applied", "already-finalized"]
        assert list(result.errors) == [1]
        assert isinstance(result.errors[1], NotFound)
    assert server.named("ACKB")[0]["results"][2] == 1
    assert server.named("ACK")[2]["result"] == 1
    assert "result" not in server.named("ACK")[0]


def test_ignored_positions_of_a_batch(scripted: Scripted) -> None:
    server = scripted(lambda command, connection: {"ok": True, "data": {"ignoredIndices": [1.0], "ignoredIds": ["b"]}})
    with Connection(**server.address) as connection:
        result = settled(connection.verbs.ack([Ack("a", "t"), Ack("b", "t", remove=True)]))
        assert result.outcomes == ["applied", "already-finalized"]
    (command,) = server.named("ACKB")
    assert command["removeOnCompletes"] == [False, True]
    assert len(command["results"]) == 2


def test_lost_leases_are_found_out(scripted: Scripted) -> None:
    def forgetful(command: dict[str, Any], connection: ScriptedConnection) -> Reply:
        if command["cmd"] == "JobHeartbeatB":
            return {"ok": True, "data": {"ok": True, "count": 1}}
        if command["id"] == "lost":
            return {"ok": False, "error": "Job not found or not active (or invalid token)"}
        return {"ok": True, "data": {"ok": True}}

    server = scripted(forgetful)
    with Connection(**server.address) as connection:
        beats = connection.verbs.heartbeat([Renewal("kept", "t"), Renewal("lost", "t")])
        assert settled(beats) == [True, False]
        assert settled(connection.verbs.heartbeat([Renewal("lost", "t")])) == [False]
