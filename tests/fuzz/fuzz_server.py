"""A server in the test's own event loop, what the fuzz test sends to it, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgpack
from fixtures.scripted_broker import Sink
from fuzz_requests import SHORT_WAIT_MS, STATES, Fuzzer, pack

from bunqueue_core.broker.local import LocalBroker
from bunqueue_core.commands import COMMANDS
from bunqueue_core.config import load_settings
from bunqueue_core.logging import Logger
from bunqueue_core.plugins.manager import PluginManager
from bunqueue_core.server.lifecycle import Server
from bunqueue_core.testing.invariants import check_broker

#: Seconds until an answer, or the end of a connection, must have come.
PATIENCE_S: Final = 30.0

#: Jobs that a listing may hold at most here.
ALL: Final = 1_000_000


class Client:
    """One connection: bodies out, answers in, events counted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.events = 0

    def send(self, *bodies: bytes) -> None:
        """Send bodies as frames, in one write."""
        self.send_raw(b"".join(struct.pack(">I", len(body)) + body for body in bodies))

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    async def answers(self, count: int) -> list[dict[Any, Any]]:
        """The next ``count`` answers."""
        found: list[dict[Any, Any]] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                (length,) = struct.unpack(">I", await self._reader.readexactly(4))
                answer = _read(await self._reader.readexactly(length))
                if answer.get("type") == "event" and "ok" not in answer:
                    self.events += 1
                else:
                    found.append(answer)
        return found

    async def rest(self) -> list[dict[Any, Any]]:
        """Close our side, and take what comes until the server closes its own."""
        found: list[dict[Any, Any]] = []
        if self._writer.can_write_eof():
            self._writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            try:
                while True:
                    found += await self.answers(1)
            except (asyncio.IncompleteReadError, ConnectionError):
                return found

    async def close(self) -> None:
        """End the connection."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return


class Target:
    """A server under fuzz, with a receiver for its webhooks.

    Args:
        data_path: database; None serves from memory.
    """

    def __init__(self, data_path: Path | None) -> None:
        self._data_path = data_path
        self.log = Sink()
        self.requests = 0
        self.refusals: Counter[str] = Counter()
        self._internal: list[dict[Any, Any]] = []
        self._last: Sequence[dict[str, Any]] = ()

    async def start(self) -> None:
        """Start it, on free ports."""
        plugins = PluginManager()
        environ = {
            "HOST": "127.0.0.1",
            "TCP_PORT": "0",
            "HTTP_PORT": "0",
            "SHUTDOWN_TIMEOUT_MS": "0",
            "WEBHOOK_ALLOW_PRIVATE_NETWORKS": "true",
        }
        if self._data_path is not None:
            environ["BUNQUEUE_DATA_PATH"] = str(self._data_path)
        settings = load_settings(plugins, environ=environ)
        self._receiver = await asyncio.start_server(_receive, "127.0.0.1", 0)
        self.receiver = f"http://127.0.0.1:{self._receiver.sockets[0].getsockname()[1]}/hook"
        self._server = Server(settings, plugins, Logger(format="json", out=self.log))  # type: ignore[arg-type]
        self.listening = await self._server.start()

    async def stop(self) -> None:
        """Stop it in an orderly way."""
        assert await self._server.stop()
        self._receiver.close()
        await self._receiver.wait_closed()

    async def connect(self) -> Client:
        """A new connection."""
        assert isinstance(self.listening.tcp, tuple)
        return Client(*await asyncio.open_connection(*self.listening.tcp))

    # -- sending ------------------------------------------------------------------------------------------------------

    def note(self, fuzzer: Fuzzer, answers: Sequence[dict[Any, Any]]) -> None:
        """Take answers in."""
        self.requests += len(answers)
        for answer in answers:
            if answer.get("ok") is True:
                fuzzer.learn(answer)
                continue
            assert answer.get("ok") is False, answer
            error = answer.get("error")
            assert isinstance(error, str), answer
            assert error, answer
            self.refusals[error] += 1
            if error == "Internal server error":
                self._internal.append(answer)

    async def send_batch(self, fuzzer: Fuzzer, client: Client, requests: Sequence[dict[str, Any]]) -> None:
        """Send requests in one write: each gets one answer, and the connection stays open."""
        last, self._last = self._last, requests
        status = {"cmd": "StorageStatus", "reqId": "the state of the storage"}
        client.send(*(pack(request) for request in (*requests, status)))
        try:
            answers = await client.answers(len(requests) + 1)
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            self.check_log(requests)
            raise AssertionError(f"{type(error).__name__} after {str(requests)[:20_000]}") from error
        (state,) = (answer for answer in answers if answer.get("reqId") == status["reqId"])
        answers.remove(state)
        self.note(fuzzer, answers)
        self.check_log(requests)
        assert state["data"]["error"] is None, f"{state} after {str((last, requests))[:40_000]}"

    async def send_and_leave(self, fuzzer: Fuzzer, data: bytes, *, reset: bool = False) -> None:
        """Send bytes on a connection of their own, close our side, and wait for the server to close its own.

        Args:
            reset: end the connection without reading anything.
        """
        client = await self.connect()
        client.send_raw(data)
        if not reset:
            self.note(fuzzer, await client.rest())
        await client.close()
        self.check_log(data)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check_log(self, sent: Any) -> None:
        """Fail if the server met an error that nobody had foreseen."""
        records = [json.loads(line) for line in self.log.text.splitlines()]
        self.log.text = ""
        unforeseen = [record for record in records if record["level"] == "error"]
        problems = [*unforeseen, *self._internal]
        assert not problems, f"{problems} after {str(sent)[:4000]}"

    async def quiet(self) -> None:
        """End what goes on by itself: schedulers and limits."""
        client = await self.connect()
        crons = (await self.ask(client, "CronList"))["crons"]
        for cron in crons:
            await self.ask(client, "CronDelete", name=cron["name"])
        await client.close()

    async def ask(self, client: Client, command: str, **fields: Any) -> dict[Any, Any]:
        """A command that must succeed."""
        client.send(msgpack.packb({"cmd": command, **fields}))
        (answer,) = await client.answers(1)
        assert answer["ok"], (command, fields, answer)
        return answer

    def check_engine(self) -> None:
        """Check every counter and index of the engine against the jobs that it holds."""
        broker = self._server._broker
        assert isinstance(broker, LocalBroker)
        check_broker(broker)

    async def check_state(self) -> dict[str, dict[str, str]]:
        """Check that counts, listings and single jobs tell the same of every queue.

        Returns:
            the state of every job by id, by queue.
        """
        self.check_engine()
        client = await self.connect()
        queues = (await self.ask(client, "ListQueues"))["queues"]
        assert len(set(queues)) == len(queues)
        states: dict[str, dict[str, str]] = {}
        for queue in queues:
            for attempt in range(10):
                problem, states[queue] = await self._check_queue(client, queue)
                if not problem:
                    break
                assert attempt < 9, problem  # what becomes due between two answers may differ; not every time
        await client.close()
        ids = Counter(id for jobs in states.values() for id in jobs)
        assert [id for id, times in ids.items() if times > 1] == [], "a job in two queues"
        return states

    async def _check_queue(self, client: Client, queue: str) -> tuple[str, dict[str, str]]:
        requests: list[dict[str, Any]] = [
            {"cmd": "GetJobCounts", "queue": queue},
            {"cmd": "Count", "queue": queue},
            {"cmd": "GetCountsPerPriority", "queue": queue},
            {"cmd": "IsPaused", "queue": queue},
            {"cmd": "Dlq", "queue": queue, "count": ALL},
            *({"cmd": "GetJobs", "queue": queue, "state": state, "limit": ALL} for state in STATES),
            {"cmd": "GetJobs", "queue": queue, "limit": ALL},
        ]
        client.send(*(msgpack.packb({**request, "reqId": n}) for n, request in enumerate(requests)))
        answers = {answer["reqId"]: answer for answer in await client.answers(len(requests))}
        for n, request in enumerate(requests):
            assert answers[n]["ok"], (request, answers[n])
        counts, count, priorities, paused, letters = (answers[n] for n in range(5))
        listed = {state: [job["id"] for job in answers[5 + n]["jobs"]] for n, state in enumerate(STATES)}
        everything = [job["id"] for job in answers[5 + len(STATES)]["jobs"]]
        found = counts["counts"]
        problems = [
            f"{state}: counted {found[state]}, listed {len(ids)}"
            for state, ids in listed.items()
            if found[state] != len(ids)
        ]
        ready = found["waiting"] + found["prioritized"] + found["paused"]
        if count["count"] != ready + found["delayed"]:
            problems.append(f"Count {count['count']} of {found}")
        if sum(priorities["counts"].values()) != ready + found["delayed"]:
            problems.append(f"by priority {priorities['counts']} of {found}")
        if (found["waiting"] + found["prioritized"] if paused["paused"] else found["paused"]) != 0:
            problems.append(f"paused {paused['paused']}, yet {found}")
        if len(letters["jobs"]) != found["failed"]:
            problems.append(f"{len(letters['jobs'])} dead letters, {found['failed']} failed")
        if Counter(everything) != Counter(id for ids in listed.values() for id in ids):
            problems.append("the listing of all differs from those by state")
        if max(Counter(everything).values(), default=1) > 1:
            problems.append("a job is listed twice")
        states = {id: state for state, ids in listed.items() for id in ids}
        client.send(*(msgpack.packb({"cmd": "GetState", "id": id, "reqId": id}) for id in states))
        for answer in await client.answers(len(states)):
            expected = states[answer["id"]]
            own = answer["state"]
            # A paused queue's ready jobs are listed as such, and what was delayed may be due by now.
            if own != expected and not (expected in ("paused", "delayed") and own in ("waiting", "prioritized")):
                problems.append(f"{answer['id']} is listed as {expected} and says {own}")
        return (f"queue {queue!r}: {problems}" if problems else ""), states


def shared(fuzzer: Fuzzer, request: dict[str, Any]) -> bool:
    """Whether a request may go on a connection with others: it does not wait for long. Some that would are shortened."""
    command = COMMANDS[request["cmd"]]
    timeout = request.get("timeout", 30_000 if command.name == "WaitJob" else 0)
    if not command.waits or timeout is False:
        return True
    if isinstance(timeout, int | float) and 0 <= timeout <= SHORT_WAIT_MS:
        return True
    if fuzzer.random.random() < 0.7:
        request["timeout"] = SHORT_WAIT_MS
        return True
    return False


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept the call of a webhook."""
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def _read(body: bytes) -> dict[Any, Any]:
    try:
        # a reqId with lone surrogates comes back as it was sent
        answer = msgpack.unpackb(body, strict_map_key=False, ext_hook=lambda *_: None, unicode_errors="surrogatepass")
    except ValueError as error:
        raise AssertionError(f"an answer cannot be read: {error}: {body[:2000]!r}") from None
    assert isinstance(answer, dict), answer
    return answer
