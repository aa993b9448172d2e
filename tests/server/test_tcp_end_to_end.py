"""The TCP side over real sockets, with the memory driver behind it."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
from fixtures.inprocess_server import Serve, Wire, until


async def push(wire: Wire, **job: Any) -> str:
    answer = await wire.cmd(cmd="PUSH", **{"queue": "q", "name": "n", "data": {"v": 1}, **job})
    assert answer["ok"], answer
    return str(answer["id"])


async def until_no_worker(wire: Wire) -> None:
    async def none_left() -> bool:
        return not (await wire.cmd(cmd="ListWorkers"))["data"]["workers"]

    await until(none_left)


async def test_one_job_through_its_life(serve: Serve) -> None:
    wire = await (await serve()).connect()
    id = await push(wire, data={"to": "a@example.com", "big": 2**40, "bin": b"\x00\xff"})
    got = await wire.cmd(cmd="PULL", queue="q", owner="w")
    assert got["job"]["data"] == {"to": "a@example.com", "big": float(2**40), "bin": b"\x00\xff"}
    assert (got["job"]["id"], got["job"]["startedAt"] > 0) == (id, True)
    assert await wire.cmd(cmd="JobHeartbeat", id=id, token=got["token"]) == {"ok": True, "data": {"ok": True}}
    assert (await wire.cmd(cmd="ACK", id=id, token="wrong"))["ok"] is False
    assert await wire.cmd(cmd="ACK", id=id, token=got["token"], result=None, reqId="r") == {"ok": True, "reqId": "r"}
    assert await wire.cmd(cmd="GetState", id=id) == {"ok": True, "id": id, "state": "completed"}
    assert await wire.cmd(cmd="GetResult", id=id) == {"ok": True, "id": id, "result": None}
    job = (await wire.cmd(cmd="GetJob", id=id))["job"]
    assert (job["returnvalue"], [entry["state"] for entry in job["timeline"]]) == (
        None,
        ["waiting", "active", "completed"],
    )


async def test_pipelined_pushes_keep_their_order(serve: Serve) -> None:
    wire = await (await serve()).connect()
    for number in range(500):
        wire.send(cmd="PUSH", queue="q", name="n", data=number, reqId=str(number))
    assert [(await wire.recv())["reqId"] for _ in range(500)] == [str(number) for number in range(500)]
    jobs = (await wire.cmd(cmd="PULLB", queue="q", count=1000))["jobs"]
    assert [job["data"] for job in jobs] == list(range(500))


async def test_a_parked_pull_gets_a_later_push(serve: Serve) -> None:
    server = await serve()
    waiting, producer = await server.connect(), await server.connect()
    waiting.send(cmd="PULL", queue="q", owner="w", timeout=60_000, reqId="pull")
    assert (await waiting.cmd(cmd="Ping", reqId="ping"))["reqId"] == "ping"
    id = await push(producer)
    got = await waiting.recv()
    assert (got["reqId"], got["job"]["id"]) == ("pull", id)


async def test_a_dropped_connection_hands_its_job_back(serve: Serve) -> None:
    server = await serve()
    worker, other = await server.connect(), await server.connect()
    id = await push(worker)
    await worker.cmd(cmd="PULL", queue="q", owner="w")
    other.send(cmd="PULL", queue="q", owner="w2", timeout=60_000)
    await worker.close()
    got = await other.recv()
    assert (got["job"]["id"], got["job"]["attempts"]) == (id, 0)


async def test_a_renewed_job_stays_with_its_worker(serve: Serve) -> None:
    server = await serve()
    worker, other = await server.connect(), await server.connect()
    id = await push(worker)
    token = (await worker.cmd(cmd="PULL", queue="q", owner="w"))["token"]
    await other.cmd(cmd="JobHeartbeat", id=id, token=token)
    worker.send(cmd="RegisterWorker", name="w", queues=["q"], workerId="w")
    await worker.recv()
    await worker.close()
    await until_no_worker(other)
    assert (await other.cmd(cmd="GetState", id=id))["state"] == "active"
    assert (await other.cmd(cmd="ACK", id=id, token=token))["ok"]


async def test_a_parked_pull_of_a_dropped_connection_takes_nothing(serve: Serve) -> None:
    server = await serve()
    gone, other = await server.connect(), await server.connect()
    gone.send(cmd="RegisterWorker", name="w", queues=["q"], workerId="w")
    await gone.recv()
    gone.send(cmd="PULL", queue="q", timeout=60_000)
    gone.send(cmd="PULL", queue="q", timeout=60_000, detach=True)
    await gone.cmd(cmd="Ping")
    await gone.close()
    await until_no_worker(other)
    id = await push(other)
    assert (await other.cmd(cmd="GetState", id=id))["state"] == "waiting"


async def test_a_half_closed_connection_is_answered_then_closed(serve: Serve) -> None:
    wire = await (await serve()).connect()
    wire.send(cmd="Ping")
    wire.send(cmd="PULL", queue="q", timeout=60_000)
    wire.writer.write_eof()
    assert (await wire.recv())["ok"]
    assert await wire.ended()


async def test_an_oversized_frame_disturbs_nobody_else(serve: Serve) -> None:
    server = await serve()
    bad, good = await server.connect(), await server.connect()
    bad.writer.write(struct.pack(">I", 67_108_865) + b"x" * 100_000)
    assert (await bad.recv())["error"] == "Frame too large: 67108865 bytes exceeds maximum 67108864"
    assert await bad.ended()
    assert (await good.cmd(cmd="Ping"))["ok"]


async def test_events_reach_every_subscriber(serve: Serve) -> None:
    server = await serve()
    producer, *subscribers = [await server.connect() for _ in range(3)]
    for wire in subscribers:
        assert (await wire.cmd(cmd="SubscribeEvents", queue="q"))["ok"]
    id = await push(producer)
    for wire in subscribers:
        event = await wire.recv()
        assert event["type"] == "event"
        assert (event["event"]["eventType"], event["event"]["jobId"]) == ("pushed", id)


async def test_tokens(serve: Serve) -> None:
    server = await serve(auth={"tokens": ("secret",)})
    wire = await server.connect()
    assert (await wire.cmd(cmd="Ping"))["error"] == "Not authenticated"
    assert (await wire.cmd(cmd="Auth", token="nope"))["error"] == "Invalid token"
    assert await wire.cmd(cmd="Auth", token="secret") == {"ok": True}
    assert (await wire.cmd(cmd="Ping"))["ok"]


async def test_the_request_limit_is_by_connection(serve: Serve) -> None:
    server = await serve(limits={"rate_limit_max_requests": 2, "rate_limit_window_ms": 3_600_000})
    first, second = await server.connect(), await server.connect()
    answers = [await first.cmd(cmd="Ping") for _ in range(3)]
    assert [answer["ok"] for answer in answers] == [True, True, False]
    assert answers[2]["error"] == "Rate limit exceeded"
    assert (await second.cmd(cmd="Ping"))["ok"]


async def test_a_client_that_does_not_read_is_cut_off(serve: Serve) -> None:
    server = await serve(limits={"tcp_max_write_queue_bytes": 200_000})
    producer = await server.connect()
    await push(producer, data="x" * 1_000_000, jobId="big")
    host, port = server.listening.tcp  # type: ignore[misc]
    with socket.create_connection((host, port)) as deaf:
        body = msgpack.packb({"cmd": "GetJob", "id": "big"})
        deaf.sendall((struct.pack(">I", len(body)) + body) * 40)

        async def cut_off() -> bool:
            return "unread answers" in server.log.text

        await until(cut_off)
    assert (await producer.cmd(cmd="Ping"))["ok"]


async def test_a_unix_socket_in_place_of_the_port(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "tcp.sock"
    server = await serve(server={"tcp_socket_path": str(path)})
    assert server.listening.tcp == path
    wire = await server.connect()
    assert (await wire.cmd(cmd="Ping"))["ok"]
    await wire.close()
    await server.server.stop()
    assert not path.exists()


@pytest.mark.parametrize("seed", range(3))
async def test_garbage_leaves_the_server_standing(serve: Serve, seed: int) -> None:
    import random

    chance = random.Random(seed)
    server = await serve()
    names = [
        "PUSH",
        "PUSHB",
        "PULL",
        "PULLB",
        "ACK",
        "ACKB",
        "FAIL",
        "GetJobs",
        "SetDlqConfig",
        "RegisterWorker",
        "Nope",
    ]
    values: list[Any] = [
        None,
        True,
        -1,
        2**63,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "q",
        "\0",
        "x" * 1000,
        b"\xff",
        [],
        [None],
        {},
        {"a": [1]},
        msgpack.ExtType(0, b"\x00"),
        msgpack.Timestamp(1),
    ]
    fields = [
        "queue",
        "id",
        "ids",
        "jobs",
        "data",
        "count",
        "timeout",
        "token",
        "state",
        "config",
        "name",
        "queues",
        "delay",
    ]
    wire = await server.connect()
    for number in range(300):
        message: dict[Any, Any] = {"cmd": chance.choice(names), "reqId": number}
        for field in chance.sample(fields, 4):
            message[field] = chance.choice(values)
        if message.get("timeout") not in (None, 0):
            message["timeout"] = "bad"
        body = bytearray(msgpack.packb(message))
        if chance.random() < 0.3:
            body[chance.randrange(len(body))] = chance.randrange(256)
        wire.writer.write(struct.pack(">I", len(body)) + bytes(body))
        assert (await asyncio.wait_for(wire.recv(), 30))["ok"] in (True, False)
    assert (await wire.cmd(cmd="Ping"))["ok"]
    assert "Traceback" not in server.log.text
    assert "unexpectedly" not in server.log.text, server.log.text
