"""WebSockets: commands, subscriptions, ownership, bounds."""

from __future__ import annotations

import asyncio
import json

import pytest
from fixtures.http_site import Open, Site, within
from fixtures.inprocess_server import until
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bunqueue_core.server.http.catalogue import PATTERNS, matches, public_name
from bunqueue_core.server.http.sockets import MAX_MESSAGE_BYTES
from bunqueue_core.server.http.streams import StreamLimits
from bunqueue_core.server.limits import BAD_REQ_ID


class TestCommands:
    async def test_answers_may_overtake_each_other(self, site: Site) -> None:
        async with within(), site.socket() as socket:
            await socket.send({"cmd": "PULL", "queue": "q", "timeout": 20_000, "reqId": "slow"})
            assert (await socket.ask({"cmd": "Ping", "reqId": "fast"}))["reqId"] == "fast"
            added = await socket.ask({"cmd": "PUSH", "queue": "q", "data": 1, "reqId": {"any": ["thing", None]}})
            answers = [added, await socket.ask({"cmd": "Ping", "reqId": 3})]
            while len(answers) < 3:
                if "ok" in (got := await socket.receive()):
                    answers.append(got)
            by_id = {json.dumps(answer["reqId"]): answer for answer in answers}
            assert by_id['"slow"']["job"]["data"] == 1
            assert by_id['{"any": ["thing", null]}']["ok"] is True

    async def test_commands_beyond_those_at_once_wait_in_order(self, site: Site) -> None:
        async with within(), site.socket() as socket:
            await socket.ask({"cmd": "Subscribe", "events": ["server:*"]})
            for number in range(50):
                await socket.send({"cmd": "PULL", "queue": "q", "timeout": 20_000, "reqId": number})
            for number in range(50, 60):
                await socket.send({"cmd": "Ping", "reqId": number})
            await site.post("/queues/q/jobs", {"data": 1})
            seen = [(await socket.receive())["reqId"] for _ in range(11)]
            assert seen == [0, *range(50, 60)]

    async def test_binary_messages_are_text(self, site: Site) -> None:
        async with within(), site.socket() as socket:
            await socket.connection.send(b'{"cmd":"Ping","reqId":"b"}')
            assert (await socket.receive())["reqId"] == "b"
            await socket.connection.send(b"\xff")
            assert await socket.receive() == {"ok": False, "error": "Invalid JSON"}

    async def test_refusals(self, site: Site) -> None:
        deep = '{"cmd":"Ping","reqId":' + "[" * 100 + "]" * 100 + "}"
        async with within(), site.socket() as socket:
            for message, error in (
                ('{"cmd":5}', "Unknown command: 5"),
                ('{"cmd":true}', "Unknown command: true"),
                ('{"cmd":["Ping"]}', "Unknown command: ['Ping']"),
                ('{"cmd":"Update","id":"x"}', "data is required"),
                (deep, BAD_REQ_ID),
                ("[" * 100_000, "Invalid JSON"),
            ):
                answer = await socket.ask(message)
                assert (answer["ok"], answer["error"]) == (False, error)
            assert (await socket.ask({"cmd": "Ping"}))["ok"] is True

    async def test_a_wrong_token_changes_nothing(self, site: Site) -> None:
        async with within(), site.socket() as socket:
            assert (await socket.ask({"cmd": "Auth", "token": "x"}))["error"] == "Invalid token"
            assert (await socket.ask({"cmd": "ListQueues"}))["ok"] is True


class TestOwnership:
    async def test_what_a_socket_waits_for_is_given_back(self, site: Site) -> None:
        async with within():
            async with site.socket() as socket:
                await socket.send({"cmd": "PULL", "queue": "q", "timeout": 20_000})
                await socket.ask({"cmd": "Ping"})

            async def gone() -> bool:
                return (await site.get("/health"))["connections"]["ws"] == 0

            await until(gone)
            await site.post("/queues/q/jobs", {"data": 1})
            assert (await site.get("/queues/q/counts"))["counts"]["waiting"] == 1


class TestSubscriptions:
    async def test_both_kinds_of_listeners(self, site: Site) -> None:
        async with within(), site.socket("/ws/queues/q") as raw, site.socket() as named:
            await raw.ask({"cmd": "Ping"})
            await named.ask({"cmd": "Subscribe", "events": ["job:completed", "queue:*"]})
            await site.post("/queues/other/jobs", {"data": 1})
            added = await site.post("/queues/q/jobs", {"data": {"n": 2**40}})
            await site.get("/queues/q/jobs")
            await site.post(f"/jobs/{added['id']}/ack", {"result": 2**41})
            assert (await named.until("queue:created"))["data"] == {"queue": "other"}
            completed = await named.until("job:completed")
            assert completed["data"] == {"queue": "q", "jobId": added["id"]}
            told = await raw.until("completed")
            assert (told["queue"], told["data"], told["timestamp"]) == ("q", 2**41, completed["ts"])

    async def test_the_same_pattern_twice_counts_once(self, site: Site) -> None:
        async with within(), site.socket() as socket:
            for _ in range(2):
                answer = await socket.ask({"cmd": "Subscribe", "events": ["dlq:*", "*"]})
                assert answer["subscribed"] == ["dlq:*", "*"]
            assert (await socket.ask({"cmd": "Unsubscribe", "events": []}))["subscribed"] == []
            assert (await socket.ask({"cmd": "Subscribe", "events": [5, "x"]}))["error"] == "Invalid: 5, x"

    def test_the_names_of_events(self) -> None:
        assert public_name("pulled") == "job:active"
        assert public_name("waiting-children") == "job:waiting-children"
        assert {"*", "job:*", "job:active", "config:dlq-changed"} <= PATTERNS
        assert not {"job:duplicated", "flow:pushed", "nope:*"} & PATTERNS
        assert matches({"job:*"}, "job:duplicated")
        assert matches({"*"}, "flow:pushed")
        assert not matches({"job:*", "queue:paused"}, "queue:resumed")


class TestBounds:
    async def test_a_message_may_be_that_long(self, site: Site) -> None:
        async with within(), site.socket() as socket:
            head = '{"cmd":"Ping","x":"'
            longest = head + "x" * (MAX_MESSAGE_BYTES - len(head) - 2) + '"}'
            assert (await socket.ask(longest))["ok"] is True
            await socket.send(longest + " ")
            with pytest.raises(ConnectionClosed):
                await socket.receive()
            assert socket.connection.close_code == 1009

    async def test_a_client_that_does_not_read_misses_events_and_keeps_its_connection(self, open_site: Open) -> None:
        site = await open_site(StreamLimits(backlog_bytes=100_000))
        assert isinstance(site.listening.http, tuple)
        async with within(60), site.socket("/ws") as socket:
            socket.connection.transport.pause_reading()
            ids = []
            for _ in range(40):
                added = await site.post("/queues/q/jobs", {"data": "x" * 200_000, "backoff": 600_000})
                ids.append(added["id"])
                await site.get("/queues/q/jobs")
                await site.post(f"/jobs/{added['id']}/fail", {"error": "no"})
            await socket.send({"cmd": "Ping", "reqId": "still"})
            socket.connection.transport.resume_reading()
            failed = 0
            while (got := await socket.receive()).get("reqId") != "still":
                failed += got["eventType"] == "failed"
            assert 0 < failed < 40

    async def test_a_full_server_refuses(self, open_site: Open) -> None:
        site = await open_site(StreamLimits(clients=1))
        async with within(), site.socket():
            with pytest.raises(InvalidStatus) as refused:
                async with site.socket():
                    pass
            answer = refused.value.response
            assert answer.status_code == 503
            assert json.loads(answer.body) == {"ok": False, "error": "Too many WebSocket connections"}

    async def test_who_may_connect(self, open_site: Open) -> None:
        site = await open_site(auth={"tokens": ("tok1",)})
        token = {"authorization": "tok1"}
        cases: list[tuple[str, dict[str, str], int]] = [("/ws", {}, 401), ("/nope", {}, 401), ("/nope", token, 404)]
        async with within():
            for path, headers, status in cases:
                with pytest.raises(InvalidStatus) as refused:
                    async with site.socket(path, **headers):
                        pass
                assert refused.value.response.status_code == status
            async with site.socket("/ws/x", authorization="Bearer tok1") as socket:
                assert (await socket.ask({"cmd": "ListQueues"}))["ok"] is True


async def test_a_stopping_server_lets_sockets_finish_their_jobs(open_site: Open) -> None:
    site = await open_site(timeouts={"shutdown": 20_000})
    async with within(), site.socket() as socket:
        await socket.ask({"cmd": "Subscribe", "events": ["server:shutdown"]})
        added = await socket.ask({"cmd": "PUSH", "queue": "q", "data": 1})
        pulled = await socket.ask({"cmd": "PULL", "queue": "q", "owner": "w"})
        stopping = asyncio.create_task(site.server.stop())
        assert (await socket.until("server:shutdown"))["data"] == {"signal": ""}
        assert (await site.ask("GET", "/ready"))[0] == 503
        assert (await site.ask("GET", "/events"))[0] == 503
        assert (await socket.ask({"cmd": "PUSH", "queue": "q", "data": 1}))["ok"] is False
        assert (await socket.ask({"cmd": "ACK", "id": added["id"], "token": pulled["token"]}))["ok"] is True
        assert await stopping
