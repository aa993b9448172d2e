"""Several server processes on one namespace, and the database's own log of what became of each job.

The log is filled by triggers, in the transactions that make a change true, so that it does not depend on what any broker says. Its
rows have numbers in the order of the changes; times are the database's.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from bunqueue_postgres.schema import initialise
from fixtures.server import ServerProcess
from fixtures.wire import Wire

#: Longest wait for something that has to come about, seconds.
PATIENCE_S: Final = 45.0

#: Values of ``jobs.status``.
QUEUED, ACTIVE, COMPLETED, DEAD = 0, 3, 4, 5

_LOG: Final = """
CREATE SCHEMA IF NOT EXISTS audit;
CREATE TABLE IF NOT EXISTS audit.log (
    n int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at int8 NOT NULL DEFAULT bunqueue.now_ms(),
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    queue_id int4 NOT NULL,
    id text NOT NULL,
    group_id text,
    before int2,
    after int2,
    token text,
    lease_until int8
);
CREATE TABLE IF NOT EXISTS audit.buckets (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    queue_id int4 NOT NULL,
    at int8 NOT NULL
);
CREATE OR REPLACE FUNCTION audit.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO audit.log (queue_id, id, group_id, after) VALUES (NEW.queue_id, NEW.id, NEW.group_id, NEW.status);
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO audit.log (queue_id, id, group_id, before) VALUES (OLD.queue_id, OLD.id, OLD.group_id, OLD.status);
    ELSE
        INSERT INTO audit.log (queue_id, id, group_id, before, after, token, lease_until)
        VALUES (NEW.queue_id, NEW.id, NEW.group_id, OLD.status, NEW.status, NEW.lease_token,
            CASE WHEN NEW.status = 3 THEN NEW.lease_until ELSE OLD.lease_until END);
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION audit.note_bucket() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.buckets (queue_id, at) VALUES (NEW.id, NEW.rate_at);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER audit_rows AFTER INSERT OR DELETE ON bunqueue.jobs FOR EACH ROW EXECUTE FUNCTION audit.note();
CREATE OR REPLACE TRIGGER audit_changes AFTER UPDATE OF status ON bunqueue.jobs FOR EACH ROW
    WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION audit.note();
CREATE OR REPLACE TRIGGER audit_buckets AFTER UPDATE OF rate_at ON bunqueue.queues FOR EACH ROW
    WHEN (NEW.rate_at IS NOT NULL) EXECUTE FUNCTION audit.note_bucket();
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of a job's state.

    Attributes:
        n: its number, increasing in the order of the changes.
        at: when, ms on the database's clock.
        id: the job.
        group: its group.
        before: status before; None when the job was admitted.
        after: status after; None when it was removed.
        token: token of the delivery that began, or ended, with it.
        lease_until: when that delivery's lease ends, or would have ended.
    """

    n: int
    at: int
    id: str
    group: str | None
    before: int | None
    after: int | None
    token: str | None
    lease_until: int | None


class Cluster:
    """Server processes of one database and namespace.

    Args:
        dsn: the database.
        namespace: of all servers; a new one if None.
        settings: environment variables of all servers, without their prefix ``BUNQUEUE_POSTGRES_``.
    """

    def __init__(self, dsn: str, namespace: str | None = None, **settings: object) -> None:
        self.dsn = dsn
        self.namespace = namespace or f"multi-{uuid.uuid4()}"
        self._settings = settings
        self.servers: list[ServerProcess] = []

    async def prepare(self) -> None:
        """Build the schema, and the log."""
        async with await psycopg.AsyncConnection.connect(
            self.dsn, autocommit=True, cursor_factory=psycopg.AsyncRawCursor
        ) as connection:
            await initialise(connection)
            await connection.execute(_LOG)

    def start(self, name: str, **settings: object) -> ServerProcess:
        """Start one server, and wait until it listens."""
        chosen = {"URL": self.dsn, "NAMESPACE": self.namespace, **self._settings, **settings}
        variables = {f"BUNQUEUE_POSTGRES_{key}": str(value) for key, value in chosen.items()}
        server = ServerProcess(environment={**variables, "BUNQUEUE_BROKER_ID": name})
        self.servers.append(server)
        return server

    def start_all(self, names: Iterable[str]) -> list[ServerProcess]:
        """Start servers beside each other."""
        with ThreadPoolExecutor() as threads:
            return list(threads.map(self.start, names))

    def close(self) -> None:
        """Kill what still runs."""
        for server in self.servers:
            server.kill()

    async def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Ask the database."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            return await (await connection.execute(query, parameters)).fetchall()

    async def log(self, queue: str) -> list[Entry]:
        """All changes of a queue's jobs, in order."""
        rows = await self.rows(
            "SELECT l.n, l.at, l.id, l.group_id, l.before, l.after, l.token, l.lease_until FROM audit.log l "
            "JOIN bunqueue.queues q ON q.id = l.queue_id JOIN bunqueue.namespaces n ON n.id = q.ns "
            "WHERE n.name = %s AND q.name = %s ORDER BY l.n",
            self.namespace,
            queue,
        )
        return [Entry(*row) for row in rows]

    async def rated_claims(self, queue: str) -> list[tuple[int, int]]:
        """Claims under a rate limit, in order: when each was decided (ms on the database's clock), and how many jobs it took."""
        rows = await self.rows(
            "SELECT b.at, count(*) FROM audit.buckets b JOIN audit.log l ON l.xid = b.xid AND l.queue_id = b.queue_id "
            "JOIN bunqueue.queues q ON q.id = l.queue_id JOIN bunqueue.namespaces n ON n.id = q.ns "
            "WHERE l.after = 3 AND n.name = %s AND q.name = %s GROUP BY b.xid, b.at ORDER BY b.at",
            self.namespace,
            queue,
        )
        return [(int(at), int(count)) for at, count in rows]

    async def count(self, queue: str, status: int) -> int:
        """Jobs of a queue in a state."""
        rows = await self.rows(
            "SELECT count(*) FROM bunqueue.jobs j JOIN bunqueue.queues q ON q.id = j.queue_id "
            "JOIN bunqueue.namespaces n ON n.id = q.ns WHERE n.name = %s AND q.name = %s AND j.status = %s",
            *(self.namespace, queue, status),
        )
        return int(rows[0][0])


def claims(log: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Deliveries of each job."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in log:
        if entry.after == ACTIVE:
            found[entry.id].append(entry)
    return found


def completions(log: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Completions of each job."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in log:
        if entry.after == COMPLETED:
            found[entry.id].append(entry)
    return found


def most_active(log: Iterable[Entry]) -> int:
    """The largest number of jobs that were active at once."""
    active = most = 0
    for entry in log:
        active += (entry.after == ACTIVE) - (entry.before == ACTIVE)
        most = max(most, active)
    return most


def surplus(claimed: list[tuple[int, int]], limit: int, duration_ms: int) -> float:
    """By how many jobs claims exceed a rate limit at most, over all stretches of time: ``limit`` at once, ``limit`` a duration."""
    worst = best = 0.0
    taken, rate = 0, limit / duration_ms
    for at, count in claimed:
        # The best stretch to end here begins where what was taken before it lies lowest under what had become allowed by then.
        best = min(best, taken - (at - claimed[0][0]) * rate)
        taken += count
        worst = max(worst, taken - (at - claimed[0][0]) * rate - best - limit)
    return worst


async def until(condition: Callable[[], Awaitable[Any]], patience_s: float = PATIENCE_S) -> None:
    """Wait until ``condition()`` is true."""
    async with asyncio.timeout(patience_s):
        while not await condition():  # noqa: ASYNC110 - other processes' doing
            await asyncio.sleep(0.05)


async def ready(server: ServerProcess) -> bool:
    """Whether ``GET /ready`` says so."""
    status, _ = await get(server, "/ready")
    return status == 200


async def get(server: ServerProcess, path: str) -> tuple[int, str]:
    """Status and text of a page."""

    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}{path}", timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


class Load:
    """Producers and consumers that go on whatever happens.

    An add whose answer is an error, or never comes, may have been done or not. An acknowledgement is sent to any of the brokers.

    Args:
        wires: gives a connection to one of the brokers, or None if none can be had at the moment.
        queue: where.
        batch: jobs a bulk, and a pull at most.
        lease_ms: of the pulls.
    """

    def __init__(
        self, wires: Callable[[], Awaitable[Wire | None]], queue: str, *, batch: int = 10, lease_ms: int = 1_500
    ) -> None:
        self._wires = wires
        self._queue = queue
        self._batch = batch
        self._lease_ms = lease_ms
        self._producing = True
        self._consuming = True
        self._tasks: list[asyncio.Task[None]] = []
        self.added: set[str] = set()
        self.acknowledged: set[str] = set()
        self.errors: set[str] = set()

    def start(self, producers: int, consumers: int) -> None:
        self._tasks = [asyncio.ensure_future(self._produce()) for _ in range(producers)]
        self._tasks += [asyncio.ensure_future(self._consume()) for _ in range(consumers)]

    async def _call(self, cmd: str, **fields: Any) -> dict[str, Any] | None:
        wire = await self._wires()
        if wire is None:
            await asyncio.sleep(0.05)
            return None
        try:
            answer = await asyncio.wait_for(wire.send(cmd, **fields), 15)
        except (ConnectionError, TimeoutError):
            return None
        if answer["ok"]:
            return answer
        self.errors.add(str(answer["error"]).partition(" for job ")[0])
        await asyncio.sleep(0.02)
        return None

    async def _produce(self) -> None:
        jobs = [{"name": "n", "data": {}, "backoff": 0, "maxAttempts": 1_000} for _ in range(self._batch)]
        while self._producing:
            answer = await self._call("PUSHB", queue=self._queue, jobs=jobs)
            if answer is not None:
                self.added.update(answer["ids"])
            await asyncio.sleep(0.02)

    async def _consume(self) -> None:
        while self._consuming:
            pull = {"count": self._batch, "owner": "w", "lockTtl": self._lease_ms, "timeout": 200}
            pulled = await self._call("PULLB", queue=self._queue, **pull)
            if pulled is None or not pulled["jobs"]:
                continue
            ids = [job["id"] for job in pulled["jobs"]]
            answer = await self._call("ACKB", ids=ids, tokens=pulled["tokens"])
            if answer is not None and "data" not in answer:
                self.acknowledged.update(ids)

    async def stop(self) -> None:
        """Stop at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def finish(self, done: Callable[[], Awaitable[bool]], patience_s: float = PATIENCE_S) -> None:
        """Add no more; consume until ``done()``, then stop."""
        self._producing = False
        await until(done, patience_s)
        self._consuming = False
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)


def check(load: Load, log: list[Entry]) -> None:
    """What must hold after any faults: nothing accepted is lost, nothing completes twice, nothing that has completed runs again."""
    admitted = {entry.id for entry in log if entry.before is None}
    completed = completions(log)
    assert load.added <= admitted
    assert load.acknowledged <= set(completed)
    assert set(completed) == admitted
    assert all(len(entries) == 1 for entries in completed.values())
    for id, entries in claims(log).items():
        assert entries[-1].n < completed[id][0].n
        assert completed[id][0].token == entries[-1].token
        assert len({entry.token for entry in entries}) == len(entries)


class Connections:
    """A connection to each of several servers, made anew when it is gone; picks in turn."""

    def __init__(self, servers: list[ServerProcess]) -> None:
        self.servers = servers
        self._wires: dict[int, Wire] = {}
        self._turn = 0
        self._connecting = asyncio.Lock()

    async def any(self) -> Wire | None:
        """A connection to the next server that can be reached."""
        for _ in range(len(self.servers)):
            self._turn += 1
            server = self.servers[self._turn % len(self.servers)]
            async with self._connecting:
                wire = self._wires.get(server.port)
                if wire is not None and not wire.ended:
                    return wire
                if wire is not None:
                    await wire.close()
                    del self._wires[server.port]
                with suppress(OSError, TimeoutError):
                    self._wires[server.port] = await asyncio.wait_for(Wire.connect(server.port), 5)
                    return self._wires[server.port]
        return None

    async def close(self) -> None:
        for wire in self._wires.values():
            await wire.close()


@asynccontextmanager
async def loaded(
    servers: list[ServerProcess], queue: str, *, producers: int = 0, consumers: int = 0, lease_ms: int = 1_500
) -> AsyncIterator[Load]:
    """A load on ``servers`` (whose list may change meanwhile), with this many producers and consumers."""
    connections = Connections(servers)
    load = Load(connections.any, queue, lease_ms=lease_ms)
    load.start(producers, consumers)
    try:
        yield load
    finally:
        await load.stop()
        await connections.close()
