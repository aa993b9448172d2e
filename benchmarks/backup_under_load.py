"""What a scheduled backup costs a server under load: throughput, latency of adds, and memory, before and while it is made.

    python benchmarks/backup_under_load.py --jobs 1000000

Starts a server on a database with that many waiting jobs, finds its maximum of adds answered a second, then adds at half of that
rate on an open loop while a consumer takes and acknowledges what is added, so that the database keeps its size. The first backup is
due a minute after the start. Three windows are looked at: before it, the backup alone (and each of its phases), and the minute that
begins with it. Prints JSON with the configuration, and how the windows compare with what is aimed at. Takes three minutes.
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

#: The window that is held against the time before the backup, from the backup's begin.
WINDOW_S = 60.0

#: Time between two looks at the server's memory and files, s.
LOOK_S = 0.1

#: What a backup may change at most: throughput by a fifth, the 99th percentile of the latency to three times, memory by 100 MB.
MOST_THROUGHPUT_LOST, MOST_LATENCY_TIMES, MOST_MEMORY_BYTES = 0.2, 3.0, 100_000_000


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
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/prometheus", timeout=120) as answer:
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


def scratch_in(folder: Path) -> dict[str, int]:
    """What a running backup has beside the database: sizes of the copy and of the compressed payload."""
    sizes = {}
    for path in folder.iterdir():
        if ".backup-snapshot-" in path.name and path.name.endswith(".tmp"):
            with contextlib.suppress(FileNotFoundError):
                sizes["payload" if path.name.endswith(".gz.tmp") else "copy"] = path.stat().st_size
    return sizes


def phase_of(now: dict[str, int], earlier: dict[str, int]) -> str:
    """What it does: the copy grows, is checked, is compressed, the payload is published."""
    if now.get("payload"):
        return "compress" if "copy" in now else "publish"
    return "check" if now.get("copy") and now.get("copy") == earlier.get("copy") else "snapshot"


def memory_of(process: psutil.Process) -> tuple[int, int]:
    """Resident bytes of a process, and those of them that belong to no file."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        resident = process.memory_info().rss
        return resident, resident
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if line.startswith("Rss"))
    anonymous, *others = (int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile", "RssShmem"))
    return anonymous + sum(others), anonymous


async def measure(tcp: int, http: int, process: psutil.Process, rate: float | None, folder: Path) -> dict[str, Any]:
    connections = [await Connection().open(tcp) for _ in range(CONNECTIONS)]
    consumers = [await Connection().open(tcp) for _ in range(2)]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(consume(connection, stop)) for connection in consumers]
    most = await maximum(connections)
    rate = rate or most / 2
    seen: list[tuple[float, float]] = []
    tasks.append(asyncio.create_task(produce(connections, rate, stop, seen)))
    await asyncio.sleep(WARM_S)
    begun = time.perf_counter()
    backup_begun = backup_ended = 0.0
    phases: list[tuple[float, str]] = []
    sizes: list[dict[str, int]] = []
    memory: list[tuple[float, int, int]] = []
    asked = 0.0
    while not backup_ended or time.perf_counter() < backup_begun + WINDOW_S:
        await asyncio.sleep(LOOK_S)
        now = time.perf_counter()
        memory.append((now, *memory_of(process)))
        if backup_ended:
            continue
        sizes.append(scratch_in(folder))
        # The backup has begun when its files are there. Asking the server is work for it, so seldom.
        if sizes[-1]:
            backup_begun = backup_begun or now
            phase = phase_of(sizes[-1], sizes[max(0, len(sizes) - 10)])
            if not phases or phases[-1][1] != phase:
                phases.append((now, phase))
        if backup_begun and now - asked > 1.0:
            asked = now
            series = await asyncio.to_thread(gauges, http)
            if series["bunqueue_backup_attempts_total"] and not series["bunqueue_backup_in_progress"]:
                backup_ended = max(now, backup_begun + series["bunqueue_backup_last_duration_seconds"])
    until = max(backup_ended, backup_begun + WINDOW_S)
    stop.set()
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
    series = gauges(http)
    before, during = summary(seen, begun, backup_begun), summary(seen, backup_begun, backup_ended)
    window = summary(seen, backup_begun, until)
    resident = [max(size for at, size, _ in memory if (at >= backup_begun) is late) for late in (False, True)]
    anonymous = [max(size for at, _, size in memory if (at >= backup_begun) is late) for late in (False, True)]
    compared = {
        name: {
            "throughput_lost": round(1 - each["adds_per_second"] / before["adds_per_second"], 3),
            "p99_times": round(each["p99_ms"] / before["p99_ms"], 2),
        }
        for name, each in (("during", during), ("minute", window))
    }
    growth = resident[1] - resident[0]
    return {
        "maximum_adds_per_second": round(most),
        "asked_adds_per_second": round(rate),
        "before": before,
        "during": during,
        "minute": window,
        "phases": {
            phase: summary(seen, at, ended)
            for (at, phase), ended in zip(phases, [*(at for at, _ in phases[1:]), backup_ended], strict=True)
        },
        "resident_mib_before": round(resident[0] / 2**20),
        "resident_mib_after_begin": round(resident[1] / 2**20),
        "anonymous_mib_before": round(anonymous[0] / 2**20),
        "anonymous_mib_after_begin": round(anonymous[1] / 2**20),
        "backup_succeeded": bool(series["bunqueue_backup_successes_total"]),
        "backup_mib": round(series["bunqueue_backup_last_size_bytes"] / 2**20, 1),
        "compared": compared,
        "memory_growth_mb": round(growth / 1e6, 1),
        "goals_met": {
            "throughput": compared["minute"]["throughput_lost"] < MOST_THROUGHPUT_LOST,
            "p99": compared["minute"]["p99_times"] < MOST_LATENCY_TIMES,
            "memory": growth < MOST_MEMORY_BYTES,
        },
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
                result = asyncio.run(measure(tcp, http, psutil.Process(process.pid), arguments.rate, folder))
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
