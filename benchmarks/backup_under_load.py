"""What a scheduled backup costs a server under load: throughput, latency of adds, and memory, before and while it is made.

    python benchmarks/backup_under_load.py --jobs 1000000

Starts a server on a database with that many waiting jobs, finds its maximum of adds answered a second, then adds at half of that
rate on an open loop while a consumer takes and acknowledges what is added, so that the database keeps its size. The first backup is
due a minute after the start; the windows are the time before it and the time it takes. Prints JSON with the configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgpack
import psutil

CONNECTIONS = 8

#: An S3 API as a process of its own; prints its address.
_S3 = """
import threading
import boto3
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
endpoint = "http://%s:%d" % server.get_host_and_port()
keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
boto3.client("s3", endpoint_url=endpoint, **keys).create_bucket(Bucket="backups")
print(endpoint, flush=True)
threading.Event().wait()
"""
WARM_S = 3.0
MAXIMUM_S = 8.0


class Connection:
    """A pipelined connection: answers settle by their request ids."""

    def __init__(self) -> None:
        self.pending: dict[str, asyncio.Future[Any]] = {}
        self.number = 0

    async def open(self, port: int) -> Connection:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        self.task = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        unpack = msgpack.unpackb
        try:
            while True:
                (length,) = struct.unpack(">I", await self.reader.readexactly(4))
                answer = unpack(await self.reader.readexactly(length), strict_map_key=False)
                self.pending.pop(answer["reqId"]).set_result(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def ask(self, **message: Any) -> asyncio.Future[Any]:
        self.number += 1
        id = str(self.number)
        body = msgpack.packb({**message, "reqId": id})
        self.writer.write(struct.pack(">I", len(body)) + body)
        future = self.pending[id] = asyncio.get_running_loop().create_future()
        return future


async def maximum(connections: list[Connection]) -> float:
    """Adds answered a second with 16 under way on each connection."""
    done = 0
    until = time.perf_counter() + MAXIMUM_S

    async def work(connection: Connection) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await connection.ask(cmd="PUSH", queue="load", data={"n": 1}, removeOnComplete=True)
            done += 1

    await asyncio.gather(*(work(connection) for connection in connections for _ in range(16)))
    return done / MAXIMUM_S


async def consume(connection: Connection, stop: asyncio.Event) -> None:
    while not stop.is_set():
        answer = await connection.ask(cmd="PULLB", queue="load", count=200, timeout=200, owner="consumer")
        jobs = answer.get("jobs") or []
        if jobs:
            tokens = answer.get("tokens") or []
            await connection.ask(cmd="ACKB", ids=[job["id"] for job in jobs], tokens=tokens)


async def produce(
    connections: list[Connection], rate: float, stop: asyncio.Event, seen: list[tuple[float, float]]
) -> None:
    """An open loop: each add is sent when it is due, and its latency counts from then."""
    begun = time.perf_counter()
    sent = 0
    while not stop.is_set():
        now = time.perf_counter()
        while sent < (now - begun) * rate:
            due = begun + sent / rate
            future = connections[sent % len(connections)].ask(
                cmd="PUSH", queue="load", data={"n": sent}, removeOnComplete=True
            )
            future.add_done_callback(lambda _, due=due: seen.append((due, time.perf_counter() - due)))  # type: ignore[misc]
            sent += 1
        await asyncio.sleep(0.001)


def gauges(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/prometheus", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value) for name, value in (line.split(" ") for line in lines if line.startswith("bunqueue_backup_"))
    }


def summary(seen: list[tuple[float, float]], begun: float, ended: float) -> dict[str, float]:
    latencies = sorted(latency for due, latency in seen if begun <= due < ended)
    if not latencies:
        return {}
    return {
        "seconds": round(ended - begun, 1),
        "adds_per_second": round(len(latencies) / (ended - begun)),
        "p50_ms": round(latencies[len(latencies) // 2] * 1000, 2),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1000, 2),
        "p999_ms": round(latencies[int(len(latencies) * 0.999)] * 1000, 2),
        "max_ms": round(latencies[-1] * 1000, 2),
    }


async def measure(tcp: int, http: int, process: psutil.Process, rate: float | None) -> dict[str, Any]:
    connections = [await Connection().open(tcp) for _ in range(CONNECTIONS)]
    consumers = [await Connection().open(tcp) for _ in range(2)]
    stop, memory = asyncio.Event(), []
    tasks = [asyncio.create_task(consume(connection, stop)) for connection in consumers]
    most = await maximum(connections)
    rate = rate or most / 2
    seen: list[tuple[float, float]] = []
    tasks.append(asyncio.create_task(produce(connections, rate, stop, seen)))
    await asyncio.sleep(WARM_S)
    begun = time.perf_counter()
    backup_begun = backup_ended = 0.0
    resident: dict[str, int] = {"before": 0, "during": 0}
    while not backup_ended:
        await asyncio.sleep(0.25)
        now = time.perf_counter()
        series = await asyncio.to_thread(gauges, http)
        memory = process.memory_info().rss
        if series["bunqueue_backup_in_progress"] and not backup_begun:
            backup_begun = now - 0.25
        if backup_begun:
            resident["during"] = max(resident["during"], memory)
        else:
            resident["before"] = max(resident["before"], memory)
        if series["bunqueue_backup_attempts_total"] and not series["bunqueue_backup_in_progress"]:
            backup_begun = backup_begun or now - 0.25
            backup_ended = now
    stop.set()
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
    return {
        "maximum_adds_per_second": round(most),
        "asked_adds_per_second": round(rate),
        "before": summary(seen, begun, backup_begun),
        "during": summary(seen, backup_begun, backup_ended),
        "resident_mib_before": round(resident["before"] / 2**20),
        "resident_mib_during": round(resident["during"] / 2**20),
        "backup_succeeded": bool(gauges(http)["bunqueue_backup_successes_total"]),
        "backup_mib": round(gauges(http)["bunqueue_backup_last_size_bytes"] / 2**20, 1),
    }


def fill(path: Path, jobs: int) -> None:
    from bunqueue_core import Queue

    with Queue("backlog", embedded=True, data_path=path) as queue:
        for start in range(0, jobs, 1000):
            queue.add_bulk(
                [
                    {
                        "name": "send",
                        "data": {"to": f"user{number}@example.com", "subject": "Hello", "token": os.urandom(8).hex()},
                    }
                    for number in range(start, min(jobs, start + 1000))
                ]
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, help="adds a second; half the maximum if absent")
    parser.add_argument(
        "--s3", action="store_true", help="back up to an S3 API on this machine (moto) instead of a folder"
    )
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        folder = Path(name)
        (folder / "kept").mkdir()
        fill(folder / "jobs.db", arguments.jobs)
        environment = {**os.environ, "S3_BACKUP_ENABLED": "1"}
        if arguments.s3:
            store = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", _S3], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(store.kill)
            assert store.stdout is not None
            endpoint = next(line for line in store.stdout if line.startswith("http")).strip()
            environment |= {"S3_BUCKET": "backups", "S3_ENDPOINT": endpoint}
            environment |= {"S3_ACCESS_KEY_ID": "key", "S3_SECRET_ACCESS_KEY": "secret"}
        else:
            environment |= {"BUNQUEUE_BACKUP_TARGET": "folder", "BUNQUEUE_BACKUP_FOLDER": str(folder / "kept")}
        command = [
            sys.executable,
            "-c",
            "from bunqueue_core.cli import main; main()",
            "--json",
            "start",
            "--host",
            "127.0.0.1",
        ]
        command += ["--tcp-port", "0", "--http-port", "0", "--data-path", str(folder / "jobs.db")]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                line = next(line for line in process.stdout if line.startswith("{"))
                document = json.loads(line)
                tcp, http = (int(document[name].rpartition(":")[2]) for name in ("tcp", "http"))
                result = asyncio.run(measure(tcp, http, psutil.Process(process.pid), arguments.rate))
            finally:
                process.terminate()
        result |= {
            "jobs": arguments.jobs,
            "target": "s3" if arguments.s3 else "folder",
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
        }
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
