"""A server process on SQLite whose disk is full, or whose file is another's, newer or damaged: what it does, and what it says."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fixtures.server import PATIENCE_S, ServerProcess, clean_environment, running_server
from fixtures.sqlite_bench import Bench
from fixtures.wire import Wire

resource = pytest.importorskip("resource", reason="no file size limits here")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Requests of this process go to the server under test, whatever proxy the environment names."""
    monkeypatch.setenv("no_proxy", "*")


def get(server: ServerProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metric(server: ServerProcess, name: str) -> float:
    _, text = get(server, "/prometheus")
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")))


def start(path: Path) -> subprocess.CompletedProcess[str]:
    """Start a server that is expected to refuse."""
    return subprocess.run(
        [
            *(sys.executable, "-c", "from bunqueue_core.cli import main; main()", "start", "--host", "127.0.0.1"),
            *("--tcp-port", "0", "--http-port", "0", "--data-path", str(path)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(),
    )


@asynccontextmanager
async def connected(server: ServerProcess) -> AsyncIterator[Wire]:
    """A connection that is closed whatever happens, and on which nothing is waited for without end."""
    wire = await Wire.connect(server.port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield wire
    finally:
        await wire.close()


async def push(server: ServerProcess, count: int) -> list[str]:
    """Add durable jobs; their ids."""
    async with connected(server) as wire:
        answers = [await wire.call("PUSH", queue="q", data={"n": n}, durable=True) for n in range(count)]
    return [answer["id"] for answer in answers]


async def states(server: ServerProcess, ids: list[str]) -> set[str]:
    async with connected(server) as wire:
        return {(await wire.call("GetState", id=id))["state"] for id in ids}


def filled(path: Path, jobs: int) -> Path:
    """A database with some jobs."""
    bench = Bench(path)
    bench.add("q", jobs)
    bench.broker.close().result()
    return path


def fingerprints(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


# -- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no limits for other processes here")
def test_a_full_disk_is_told_everywhere_and_work_goes_on_once_there_is_room(tmp_path: Path) -> None:
    db = tmp_path / "jobs.db"

    async def use(server: ServerProcess) -> list[str]:
        async with connected(server) as wire:
            stored = [(await wire.call("PUSH", queue="q", data={}, durable=True))["id"]]
            status = (await wire.call("StorageStatus"))["data"]
            assert status == {"diskFull": False, "error": None, "since": None}
            for name in ("bunqueue_sqlite_database_size_bytes", "bunqueue_sqlite_log_size_bytes"):
                assert await asyncio.to_thread(metric, server, name) > 0
            assert await asyncio.to_thread(metric, server, "bunqueue_storage_degraded") == 0
            pid = server.process.pid
            limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            # Files in which nothing may be written are what a full disk is to a process. (A bound of their present size would not
            # do: the log may be cut meanwhile, and then has room.)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, limits[1]))
            waiting = wire.send("PUSH", queue="q", data={}, durable=True)
            while (status := (await wire.call("StorageStatus"))["data"])["diskFull"] is False:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert status["error"] == "disk full"
            assert status["since"] > 0
            buffered = (await wire.call("PUSH", queue="q", data={}))["id"]
            code, text = await asyncio.to_thread(get, server, "/health")
            health = json.loads(text)
            assert (code, health["ok"], health["status"]) == (503, False, "degraded")
            assert (health["storage"]["diskFull"], health["storage"]["error"]) == (True, "disk full")
            code, text = await asyncio.to_thread(get, server, "/ready")
            assert (code, json.loads(text)["ready"]) == (503, False)
            for name in ("bunqueue_storage_degraded", "bunqueue_storage_disk_full"):
                assert await asyncio.to_thread(metric, server, name) == 1
            assert await asyncio.to_thread(metric, server, "bunqueue_storage_unwritten_rows") >= 2
            assert await asyncio.to_thread(metric, server, "bunqueue_storage_commit_failures_total") >= 1
            assert not waiting.done()
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
            stored.append((await waiting)["id"])
            stored.append((await wire.call("PUSH", queue="q", data={}, durable=True))["id"])
            assert (await wire.call("StorageStatus"))["data"] == {"diskFull": False, "error": None, "since": None}
            code, _ = await asyncio.to_thread(get, server, "/ready")
            assert code == 200
            return [*stored, buffered]

    with running_server(db) as server:
        ids = asyncio.run(use(server))
        server.kill()
        assert "Commit failed, its changes are kept and tried again" in server.output
        assert "the disk is full" in server.output
        assert "Storage works again: everything is written" in server.output
        assert str(db) not in server.output.replace(str(server.announcement.get("storage", "")), "")
    with running_server(db) as server:
        assert asyncio.run(states(server, ids)) == {"waiting"}
        assert server.stop() == 0


# -- files that cannot be used ----------------------------------------------------------------------------------------


def test_a_second_server_is_told_who_has_the_file(tmp_path: Path) -> None:
    db = tmp_path / "jobs.db"
    with running_server(db) as server:
        ids = asyncio.run(push(server, 3))
        refused = start(db)
        assert refused.returncode == 1
        assert f"the database is in use by process {server.process.pid} on host" in refused.stderr + refused.stdout
        assert asyncio.run(states(server, ids)) == {"waiting"}
        assert server.stop() == 0


def test_a_newer_schema_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    db = filled(tmp_path / "jobs.db", 3)
    with sqlite3.connect(db) as connection:
        connection.execute("INSERT INTO bunqueue_schema VALUES(99, 1)")
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = fingerprints(tmp_path)
    refused = start(db)
    assert refused.returncode == 1
    assert (
        "has schema version 99, and this version of bunqueue_sqlite knows versions up to"
        in refused.stderr + refused.stdout
    )
    assert fingerprints(tmp_path) == before


def test_a_file_that_is_no_database_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    db = tmp_path / "jobs.db"
    db.write_text("notes\n" * 1_000)
    before = fingerprints(tmp_path)
    refused = start(db)
    assert refused.returncode == 1
    assert "is not a SQLite database; choose another file" in refused.stderr + refused.stdout
    assert fingerprints(tmp_path) == before


# -- damage -----------------------------------------------------------------------------------------------------------


def test_a_damaged_page_is_named_as_damage(tmp_path: Path) -> None:
    db = filled(tmp_path / "jobs.db", 300)
    content = bytearray(db.read_bytes())
    pages = len(content) // 4_096
    with sqlite3.connect(db) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'jobs'").fetchall()
    connection.close()
    assert pages > root
    content[(root - 1) * 4_096 : root * 4_096] = random.Random(1).randbytes(4_096)
    db.write_bytes(content)
    refused = start(db)
    assert refused.returncode == 1
    assert "the database file is damaged" in refused.stderr + refused.stdout
    assert "restore a backup" in refused.stderr + refused.stdout
    assert db.read_bytes() == content
