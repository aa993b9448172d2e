"""One connection's logic, without sockets: a transport and an event loop that the test drives by hand."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack
import pytest
from fixtures.scripted_broker import ScriptedBroker, Sink, services_of

from bunqueue_core.answer import Answer
from bunqueue_core.commands import COMMANDS
from bunqueue_core.commands.session import Services
from bunqueue_core.model.errors import NotFound
from bunqueue_core.model.job import DEFAULT_OPTIONS, Job
from bunqueue_core.model.requests import Acknowledged, Counts, Delivery, Event, Pushed
from bunqueue_core.model.wire import WireEncoder
from bunqueue_core.server.limits import ConnectionLimits, RateLimiter
from bunqueue_core.server.tcp.connection import Connection
from bunqueue_core.server.tcp.requests import RequestDecoder
from bunqueue_core.testing import SettableClock


def nested(levels: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


class Handle:
    def __init__(self, when: float, run: Callable[[], Any]) -> None:
        self.when, self.run, self.cancelled = when, run, False

    def cancel(self) -> None:
        self.cancelled = True


class HandLoop:
    """An event loop whose time and turns are the test's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[Callable[[], Any]] = []
        self.timers: list[Handle] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, run: Callable[..., Any], *args: Any) -> None:
        self.soon.append(partial(run, *args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, run: Callable[..., Any], *args: Any) -> Handle:
        handle = Handle(self.now + delay, partial(run, *args))
        self.timers.append(handle)
        return handle

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for run in soon:
            run()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [handle for handle in self.timers if handle.when <= self.now]
        self.timers = [handle for handle in self.timers if handle.when > self.now]
        for handle in due:
            if not handle.cancelled:
                handle.run()


class HandTransport:
    """Keeps what is written; ``unread`` stands for what the client has not read."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.reading = True
        self.closed = self.aborted = self.eof_written = False
        self.unread = 0
        self.high = 0

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof_written = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str) -> None:
        return None


class Owner:
    def __init__(self, services: Services, limits: ConnectionLimits, limiter: RateLimiter | None = None) -> None:
        self.services = services
        self.commands = COMMANDS
        self.encoder = WireEncoder()
        self.decoder = RequestDecoder()
        self.limits = limits
        self.limiter = limiter
        self.connections: list[Connection] = []
        self.reasons: list[str] = []

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.remove(connection)

    def cut_off(self, reason: str) -> None:
        self.reasons.append(reason)


class Client:
    """Speaks to one connection."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        tokens: tuple[str, ...] = (),
        limiter: RateLimiter | None = None,
    ) -> None:
        self.broker = ScriptedBroker()
        self.sink = Sink()
        self.loop = HandLoop()
        self.transport = HandTransport()
        self.owner = Owner(
            services_of(self.broker, tokens=tokens, sink=self.sink), limits or ConnectionLimits(), limiter
        )
        self.connection = Connection(self.owner, self.loop)  # type: ignore[arg-type]
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def feed(self, *requests: Any) -> None:
        """Bring requests in one read: maps, or bodies as bytes."""
        bodies = [
            body if isinstance(body, bytes) else msgpack.packb(body, unicode_errors="surrogatepass")
            for body in requests
        ]
        self.connection.data_received(b"".join(struct.pack(">I", len(body)) + body for body in bodies))

    def ask(self, **request: Any) -> Any:
        self.feed(request)
        (answer,) = self.answers()
        return answer

    def answers(self) -> list[Any]:
        """What was written since, decoded."""
        data = b"".join(self.transport.writes)
        self.transport.writes.clear()
        found = []
        while data:
            length = int.from_bytes(data[:4], "big")
            found.append(msgpack.unpackb(data[4 : 4 + length]))
            data = data[4 + length :]
        return found


@pytest.fixture
def client() -> Client:
    return Client()


class TestEnvelope:
    @pytest.mark.parametrize("body", [b"\x81\xa3cmd", b"", b"\xc0", b"\x00", b"\xc2", b"\xa0", b"\xca\x7f\xc0\x00\x00"])
    def test_what_is_no_value(self, client: Client, body: bytes) -> None:
        client.feed(body)
        assert client.answers() == [{"ok": False, "error": "Invalid command format"}]

    @pytest.mark.parametrize("body", [b"\x90", b"\x91\xa4Ping", b"\xa4Ping", b"\x05", b"\xc3", b"\xc1", b"\xc4\x00"])
    def test_what_is_no_map(self, client: Client, body: bytes) -> None:
        client.feed(body)
        assert client.answers() == [{"ok": False, "error": "Invalid command"}]

    @pytest.mark.parametrize("extra", [{}, {"cmd": None}, {"cmd": ""}, {"cmd": 0}, {"CMD": "Ping"}])
    def test_what_is_no_command(self, client: Client, extra: dict[str, Any]) -> None:
        assert client.ask(reqId="q7", **extra) == {"ok": False, "error": "Invalid command", "reqId": "q7"}
        assert client.ask(reqId=7, **extra) == {"ok": False, "error": "Invalid command"}

    @pytest.mark.parametrize(
        ("name", "shown"), [("ping", "ping"), (" Ping", " Ping"), (5, "5"), (True, "true"), ("x" * 300, "x" * 256)]
    )
    def test_unknown_commands(self, client: Client, name: Any, shown: str) -> None:
        assert client.ask(cmd=name, reqId="1") == {"ok": False, "error": f"Unknown command: {shown}", "reqId": "1"}

    @pytest.mark.parametrize("req_id", ["abc", "", 17, {"k": [1]}, None, b"\x01"])
    def test_the_request_id_comes_back_as_it_is(self, client: Client, req_id: Any) -> None:
        assert client.ask(cmd="Ping", reqId=req_id)["reqId"] == req_id
        assert client.ask(cmd="PULL", reqId=req_id)["reqId"] == req_id

    @pytest.mark.parametrize("req_id", [nested(33), {"k": nested(32)}, ["x\udfff"], {"\ud800": 1}])
    def test_a_request_id_that_no_answer_can_carry_is_refused_before_anything_runs(
        self, client: Client, req_id: Any
    ) -> None:
        answer = client.ask(cmd="Pause", queue="q", reqId=req_id)
        assert answer == {
            "ok": False,
            "error": "reqId must be well-formed Unicode, without integers beyond 64 bits, and not nested deeper than 32 levels",
        }
        assert client.broker.calls == []
        assert "error" not in client.sink.text.lower()

    def test_a_nested_request_id_comes_back(self, client: Client) -> None:
        assert client.ask(cmd="Ping", reqId=nested(32))["reqId"] == nested(32)

    def test_no_request_id_no_answer_id(self, client: Client) -> None:
        assert "reqId" not in client.ask(cmd="Ping")

    def test_answers_of_one_read_leave_in_one_write(self, client: Client) -> None:
        client.feed({"cmd": "Ping", "reqId": "1"}, b"\xc0", {"cmd": "Ping", "reqId": "2"})
        assert len(client.transport.writes) == 1
        assert [answer.get("reqId") for answer in client.answers()] == ["1", None, "2"]

    def test_a_broken_frame_leaves_the_others_alone(self, client: Client) -> None:
        client.broker.on("queues", RuntimeError("at 10.0.0.1:5432: relation jobs does not exist"))
        assert client.ask(cmd="ListQueues", reqId="1") == {"ok": False, "error": "Internal server error", "reqId": "1"}
        assert "RuntimeError" in client.sink.text
        assert client.ask(cmd="Ping")["ok"]

    def test_a_refusal_of_the_broker_goes_out_word_by_word(self, client: Client) -> None:
        client.broker.on("job", NotFound("Job not found"))
        assert client.ask(cmd="GetJob", id="x")["error"] == "Job not found"


class TestAuthentication:
    def test_everything_else_waits_for_it(self) -> None:
        client = Client(tokens=("secret", "other"))
        for request in (
            {"cmd": "Ping"},
            {"cmd": "Hello"},
            {"cmd": "Nonsense"},
            {"cmd": "SubscribeEvents", "queue": "q"},
        ):
            assert client.ask(**request)["error"] == "Not authenticated"
        for token in ("secre", "secrets", "", 5, None, "\ud800"):
            assert client.ask(cmd="Auth", token=token)["error"] == "Invalid token"
        assert client.ask(cmd="Auth")["error"] == "Invalid token"
        client.feed({"cmd": "Ping"}, {"cmd": "Auth", "token": "other"}, {"cmd": "Ping"})
        assert [answer["ok"] for answer in client.answers()] == [False, True, True]
        assert client.ask(cmd="Auth", token="wrong")["error"] == "Invalid token"
        assert client.ask(cmd="Ping")["ok"]

    def test_malformed_frames_are_named_before(self) -> None:
        client = Client(tokens=("secret",))
        client.feed(b"\xc0")
        assert client.answers()[0]["error"] == "Invalid command format"

    def test_an_open_server_refuses_every_token_and_needs_none(self, client: Client) -> None:
        assert client.ask(cmd="Auth", token="x")["error"] == "Invalid token"
        assert client.ask(cmd="Ping")["ok"]


class TestWaitingAnswers:
    def test_ready_ones_overtake_waiting_ones(self, client: Client) -> None:
        later: Answer[Acknowledged] = Answer()
        client.broker.on("ack", later)
        client.feed({"cmd": "ACK", "id": "a", "reqId": "1"}, {"cmd": "Ping", "reqId": "2"})
        assert [answer["reqId"] for answer in client.answers()] == ["2"]
        later.settle(Acknowledged(["applied"], {}))
        client.loop.turn()
        assert client.answers() == [{"ok": True, "reqId": "1"}]

    def test_answers_that_settle_in_one_turn_leave_in_one_write(self, client: Client) -> None:
        later: list[Answer[Acknowledged]] = [Answer() for _ in range(5)]
        client.broker.on("ack", *later)
        client.feed(*({"cmd": "ACK", "id": "a", "reqId": str(n)} for n in range(5)))
        for answer in reversed(later):
            answer.settle(Acknowledged(["applied"], {}))
        client.loop.turn()
        assert len(client.transport.writes) == 1
        assert [answer["reqId"] for answer in client.answers()] == ["4", "3", "2", "1", "0"]

    def test_an_answer_that_fails_later(self, client: Client) -> None:
        later: Answer[Acknowledged] = Answer()
        client.broker.on("ack", later)
        client.feed({"cmd": "ACK", "id": "a", "reqId": "1"})
        later.fail(NotFound("no"))
        client.loop.turn()
        assert client.answers() == [{"ok": False, "error": "no", "reqId": "1"}]

    def test_fifty_run_at_once_and_the_next_wait_their_turn(self, client: Client) -> None:
        pulls: list[Answer[list[Delivery]]] = [Answer() for _ in range(51)]
        client.broker.on("pull", *pulls)
        client.feed(*({"cmd": "PULL", "queue": "q", "timeout": 1000, "reqId": str(n)} for n in range(50)))
        client.feed({"cmd": "Ping", "reqId": "ping"}, {"cmd": "PULL", "queue": "q", "reqId": "50"})
        assert client.answers() == []
        assert len(client.broker.calls) == 50
        pulls[7].settle([])
        client.loop.turn()
        assert [answer["reqId"] for answer in client.answers()] == ["7", "ping"]
        assert len(client.broker.calls) == 51

    def test_forty_nine_leave_room(self, client: Client) -> None:
        client.broker.on("pull", *(Answer() for _ in range(49)))
        client.feed(*({"cmd": "PULL", "queue": "q", "timeout": 1000} for _ in range(49)))
        assert client.ask(cmd="Ping")["ok"]

    def test_reading_pauses_while_too_much_waits(self) -> None:
        client = Client(ConnectionLimits(concurrent_commands=1, waiting_frames=4))
        pull: Answer[list[Delivery]] = Answer()
        client.broker.on("pull", pull)
        client.feed({"cmd": "PULL", "queue": "q", "timeout": 1000}, *({"cmd": "Ping"} for _ in range(4)))
        assert client.transport.reading
        client.feed({"cmd": "Ping"})
        assert not client.transport.reading
        pull.settle([])
        client.loop.turn()
        assert client.transport.reading
        assert len(client.answers()) == 6

    def test_reading_pauses_while_too_many_bytes_wait(self) -> None:
        client = Client(ConnectionLimits(concurrent_commands=1, waiting_bytes=1000))
        client.broker.on("pull", Answer())
        client.feed({"cmd": "PULL", "queue": "q", "timeout": 1000}, {"cmd": "Ping", "padding": "x" * 1000})
        assert not client.transport.reading


class TestEvents:
    def test_the_event_of_a_command_precedes_its_answer(self, client: Client) -> None:
        client.ask(cmd="SubscribeEvents", queue="q")
        event = Event("pushed", "q", "id", 5)

        def push(*_: Any) -> Answer[Pushed]:
            client.broker.emit(event)
            return Answer.of(Pushed(["id"], ["created"]))

        client.broker.push = push  # type: ignore[method-assign]
        client.feed({"cmd": "PUSH", "queue": "q", "data": 1, "reqId": "1"})
        first, second = client.answers()
        assert first == {"type": "event", "event": {"eventType": "pushed", "queue": "q", "jobId": "id", "timestamp": 5}}
        assert second == {"ok": True, "id": "id", "reqId": "1"}

    def test_one_queue_at_a_time(self, client: Client) -> None:
        client.ask(cmd="SubscribeEvents", queue="one")
        client.ask(cmd="SubscribeEvents", queue="two")
        client.broker.emit(Event("pushed", "one", "a", 5))
        client.broker.emit(Event("pushed", "two", "b", 5))
        client.loop.turn()
        assert [answer["event"]["jobId"] for answer in client.answers()] == ["b"]
        client.ask(cmd="UnsubscribeEvents")
        client.broker.emit(Event("pushed", "two", "c", 5))
        client.loop.turn()
        assert client.answers() == []

    def test_a_bad_queue_name_keeps_the_subscription(self, client: Client) -> None:
        client.ask(cmd="SubscribeEvents", queue="one")
        assert client.ask(cmd="SubscribeEvents", queue="a b")["error"] == "Queue name contains invalid characters"
        assert len(client.broker.listeners["one"]) == 1


class TestEnd:
    def test_a_lost_connection_ends_its_session(self, client: Client) -> None:
        cancelled: list[Any] = []
        pull: Answer[list[Delivery]] = Answer(None, cancelled.append)
        client.broker.on("pull", pull)
        client.ask(cmd="SubscribeEvents", queue="q")
        client.ask(cmd="RegisterWorker", name="w", queues=["q"], workerId="w1")
        client.feed({"cmd": "PULL", "queue": "q", "timeout": 1000})
        client.connection.connection_lost(None)
        assert cancelled == [pull]
        assert client.broker.released == [client.connection.session.id]
        assert client.broker.listeners["q"] == []
        assert len(client.owner.services.workers) == 0
        assert client.owner.connections == []

    def test_a_job_that_arrives_after_the_end_is_given_back(self, client: Client) -> None:
        cancelled: list[Any] = []
        pull: Answer[list[Delivery]] = Answer(None, cancelled.append)
        client.broker.on("pull", pull)
        client.feed({"cmd": "PULL", "queue": "q", "timeout": 1000})
        client.connection._parked.clear()  # as if the job had come between
        client.connection.connection_lost(None)
        job = Job("id", "q", "n", None, DEFAULT_OPTIONS, 0, 1, 1, "waiting", 1)
        pull.settle([Delivery(job, None)])
        assert cancelled == [pull]
        assert client.transport.writes == []

    def test_after_a_half_close_what_is_ready_is_answered_and_parked_pulls_are_not(self, client: Client) -> None:
        pull: Answer[list[Delivery]] = Answer()
        client.broker.on("pull", pull)
        client.feed({"cmd": "PULL", "queue": "q", "timeout": 1000}, {"cmd": "Ping", "reqId": "1"})
        assert client.connection.eof_received() is False
        assert [answer["reqId"] for answer in client.answers()] == ["1"]
        assert client.broker.released == [client.connection.session.id]
        pull.settle([])
        client.loop.turn()
        assert client.answers() == []

    def test_after_a_half_close_a_commit_under_way_is_still_answered(self, client: Client) -> None:
        later: Answer[Acknowledged] = Answer()
        client.broker.on("ack", later)
        client.feed({"cmd": "ACK", "id": "a", "reqId": "1"})
        assert client.connection.eof_received() is True
        later.settle(Acknowledged(["applied"], {}))
        client.loop.turn()
        assert client.answers() == [{"ok": True, "reqId": "1"}]
        assert client.transport.closed

    def test_a_half_closed_connection_does_not_wait_for_ever(self, client: Client) -> None:
        client.broker.on("ack", Answer())
        client.feed({"cmd": "ACK", "id": "a", "reqId": "1"})
        client.connection.eof_received()
        client.loop.advance(5)
        assert client.transport.closed

    def test_an_oversized_frame_is_named_and_ends_the_stream(self, client: Client) -> None:
        client.connection.data_received(struct.pack(">I", 64 * 1024 * 1024 + 1))
        text = "Frame too large: 67108865 bytes exceeds maximum 67108864"
        assert client.answers() == [{"ok": False, "error": text}]
        assert client.transport.eof_written
        client.connection.data_received(b"more of it")
        client.feed({"cmd": "Ping"})
        assert client.answers() == []
        client.loop.advance(1)
        assert client.transport.closed


class TestUnfinishedFrames:
    def test_a_stalled_one_resets_the_connection(self) -> None:
        client = Client(ConnectionLimits(stall_ms=60_000))
        client.connection.data_received(b"\x00")
        client.loop.advance(59.9)
        assert not client.transport.aborted
        client.loop.advance(0.2)
        assert client.transport.aborted
        assert client.owner.reasons == ["incomplete frame"]

    def test_a_trickle_survives(self) -> None:
        client = Client(ConnectionLimits(stall_ms=60_000))
        body = msgpack.packb({"cmd": "Ping"})
        for byte in struct.pack(">I", len(body)) + body:
            client.loop.advance(59)
            client.connection.data_received(bytes((byte,)))
        assert not client.transport.aborted
        assert client.answers()[0]["ok"]
        client.loop.advance(1000)
        assert not client.transport.aborted

    def test_it_can_be_switched_off(self) -> None:
        client = Client(ConnectionLimits(stall_ms=0))
        client.connection.data_received(b"\x00")
        client.loop.advance(100_000)
        assert not client.transport.aborted

    def test_time_in_which_nothing_is_read_does_not_count(self) -> None:
        client = Client(ConnectionLimits(stall_ms=60_000, concurrent_commands=1, waiting_frames=0))
        pull: Answer[list[Delivery]] = Answer()
        client.broker.on("pull", pull)
        client.feed({"cmd": "PULL", "queue": "q", "timeout": 60000}, {"cmd": "Ping"})
        client.connection.data_received(b"\x00")
        assert not client.transport.reading
        client.loop.advance(61)
        assert not client.transport.aborted
        pull.settle([])
        client.loop.turn()
        client.loop.advance(59)
        assert not client.transport.aborted
        client.loop.advance(2)
        assert client.transport.aborted


class TestSlowReaders:
    def test_more_unread_than_the_bound_resets_the_connection(self) -> None:
        client = Client(ConnectionLimits(unsent_bytes=1000))
        client.transport.unread = 1000
        client.ask(cmd="Ping")
        assert not client.transport.aborted
        client.transport.unread = 1001
        client.ask(cmd="Ping")
        assert client.transport.aborted
        assert client.owner.reasons == ["unread answers"]

    def test_at_half_of_it_nothing_more_is_read(self) -> None:
        client = Client(ConnectionLimits(unsent_bytes=1000, stall_ms=60_000))
        assert client.transport.high == 500
        client.connection.pause_writing()
        assert not client.transport.reading
        client.connection.resume_writing()
        assert client.transport.reading
        client.loop.advance(61)
        assert not client.transport.aborted

    def test_who_reads_nothing_at_all_is_cut_off(self) -> None:
        client = Client(ConnectionLimits(unsent_bytes=1000, stall_ms=60_000))
        client.connection.pause_writing()
        client.loop.advance(61)
        assert client.transport.aborted

    def test_without_a_bound_nobody_is_cut_off(self) -> None:
        client = Client(ConnectionLimits(unsent_bytes=0))
        client.transport.unread = 10**12
        client.ask(cmd="Ping")
        assert not client.transport.aborted


def test_the_request_limit_counts_every_frame() -> None:
    client = Client(limiter=RateLimiter(2, 1000, SettableClock()))
    client.feed({"cmd": "Ping"}, b"\xc0", {"cmd": "Ping", "reqId": "x"}, {"cmd": "Ping", "reqId": 5}, b"\xc0")
    assert [answer.get("error") for answer in client.answers()] == [
        None,
        "Invalid command format",
        *["Rate limit exceeded"] * 3,
    ]


def test_an_answer_beyond_the_frame_limit_is_refused() -> None:
    client = Client(ConnectionLimits(frame_bytes=200))
    client.broker.on("queues", ["q" * 300])
    answer = client.ask(cmd="ListQueues", reqId="1")
    assert answer["error"].startswith("Answer too large: ")
    assert answer["reqId"] == "1"


def test_large_answers_are_not_copied_together() -> None:
    client = Client()
    client.broker.on("queues", ["q" * 300_000])
    client.broker.on("counts", Counts())
    client.feed({"cmd": "Count", "queue": "q"}, {"cmd": "ListQueues"}, {"cmd": "Ping"})
    assert len(client.transport.writes) == 3
    assert [len(answer) for answer in client.answers()] == [2, 2, 2]
