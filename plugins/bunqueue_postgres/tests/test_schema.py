"""The schema's life, in databases of their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from bunqueue_postgres import schema
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.records import OptionsCodec
from bunqueue_postgres.sqlfiles import load_queries
from bunqueue_postgres.testing import PostgresServer

from bunqueue_core.model.errors import BunqueueError, ConfigurationError
from bunqueue_core.model.job import JobOptions, JobSpec
from bunqueue_core.model.requests import PullRequest

OpenBroker = Callable[..., PostgresBroker]

#: The schema as version 1 built it, and the statement by which its brokers registered.
SCHEMA_1 = (Path(__file__).parent / "schemas" / "version_1.sql").read_text("utf-8")
REGISTER_1 = (
    "INSERT INTO bunqueue.brokers (ns, broker_id, session, started_at, heartbeat_at) "
    "VALUES (1, 'old', gen_random_uuid(), bunqueue.now_ms(), bunqueue.now_ms())"
)


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """URL of an empty database."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        yield postgres.dsn.rsplit("/", 1)[0] + f"/{name}"
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


async def test_brokers_that_start_at_once_build_it_once(database: str, open_broker: OpenBroker) -> None:
    brokers = [open_broker(url=database) for _ in range(4)]
    await asyncio.gather(*(broker.start() for broker in brokers))
    with psycopg.connect(database) as look:
        assert look.execute("SELECT version FROM bunqueue.schema_versions").fetchall() == [(schema.VERSION,)]
    for broker in brokers:
        await broker.close()


async def test_a_broker_that_joins_changes_nothing(database: str, open_broker: OpenBroker) -> None:
    objects = (
        "SELECT oid, relname, relfilenode FROM pg_class WHERE relnamespace = 'bunqueue'::regnamespace ORDER BY oid"
    )
    first = open_broker(url=database)
    await first.start()
    with psycopg.connect(database, autocommit=True) as look:
        before = look.execute(objects).fetchall()
        second = open_broker(url=database)
        await second.start()
        assert look.execute(objects).fetchall() == before
    await first.close()
    await second.close()


async def test_a_newer_schema_is_refused(database: str, open_broker: OpenBroker) -> None:
    first = open_broker(url=database)
    await first.start()
    await first.push("q", [JobSpec("n", None)])
    await first.close()
    newer = schema.VERSION + 1
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("INSERT INTO bunqueue.schema_versions (version) VALUES (%s)", (newer,))
    second = open_broker(url=database)
    with pytest.raises(ConfigurationError) as caught:
        await second.start()
    assert str(caught.value) == f"PostgreSQL schema version {newer} is newer than supported version {schema.VERSION}"
    await second.close()


async def test_every_statement_can_be_prepared(database: str, open_broker: OpenBroker) -> None:
    broker = open_broker(url=database)
    await broker.start()
    queries = load_queries()
    with psycopg.connect(database, autocommit=True) as connection:
        for name in queries.__slots__:
            connection.execute(b"PREPARE " + name.encode() + b"_ AS " + getattr(queries, name))
    await broker.close()


# -- migrations -----------------------------------------------------------------------------------------------------------


class OldDatabase:
    """A database of version 1 with a queue ``q`` of namespace ``default``, a live broker, and what the test adds."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._codec = OptionsCodec()
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(SCHEMA_1)
            admin.execute("INSERT INTO bunqueue.schema_versions (version) VALUES (1)")
            admin.execute("INSERT INTO bunqueue.namespaces (name) VALUES ('default')")
            admin.execute("INSERT INTO bunqueue.queues (ns, name, listed, priorities) VALUES (1, 'q', true, '{0}')")
            admin.execute(REGISTER_1)

    def add(self, id: str, *, status: int = 0, key: str | None = None, attempts: int = 0, **options: Any) -> None:
        """Add a job, and its ownership of ``key``."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(
                "INSERT INTO bunqueue.jobs (created_at, run_at, admitted_at, ns, queue_id, priority, attempts, status, "
                "admitted_as, flags, lifo, id, options, unique_key) VALUES (1, 1, 1, 1, 1, 0, %s, %s, 0, 0, false, %s, %s, %s)",
                (attempts, status, id, self._codec.pack(JobOptions(**options)) if options else None, key),
            )
            if key is not None:
                admin.execute("INSERT INTO bunqueue.keys (queue_id, key, job_id) VALUES (1, %s, %s)", (key, id))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        with psycopg.connect(self.url) as look:
            return look.execute(query).fetchall()


@pytest.fixture
def old(database: str) -> OldDatabase:
    """A database as version 1 left it."""
    return OldDatabase(database)


_CATALOG = """
    SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'bunqueue'::regnamespace AND c.relkind IN ('r', 'S')
    UNION ALL
    SELECT i.indexrelid::regclass::text, '', pg_get_indexdef(i.indexrelid), i.indisunique, '', ''
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = 'bunqueue'::regnamespace
    UNION ALL
    SELECT sequencename, '', cache_size::text, cycle, '', '' FROM pg_sequences WHERE schemaname = 'bunqueue'
    ORDER BY 1, 2, 3
"""


async def test_a_migrated_database_is_like_a_new_one(
    old: OldDatabase, postgres: PostgresServer, open_broker: OpenBroker
) -> None:
    broker = open_broker(url=old.url, namespace="default")
    await broker.start()
    await broker.close()
    new = open_broker()
    await new.start()
    await new.close()
    with psycopg.connect(postgres.dsn) as look:
        expected = look.execute(_CATALOG).fetchall()
    assert old.rows(_CATALOG) == expected
    assert old.rows("SELECT version FROM bunqueue.schema_versions ORDER BY 1") == [
        (version,) for version in range(1, schema.VERSION + 1)
    ]
    assert old.rows("SELECT count(*) FROM bunqueue.schema_progress") == [(0,)]


async def test_jobs_and_keys_follow_a_migration(old: OldDatabase, open_broker: OpenBroker) -> None:
    old.add("a", key="window", dedup_scope="window", dedup_ttl_ms=1_000)
    old.add("b", key="plain", dedup_ttl_ms=1_000)
    old.add("c", debounce_id="d", debounce_ttl_ms=60_000)
    old.add("d", debounce_id="d", debounce_ttl_ms=60_000)
    old.add("e", debounce_id="tried", debounce_ttl_ms=60_000, attempts=1)
    old.add("f", debounce_id="ended", debounce_ttl_ms=60_000, status=4)
    broker = open_broker(url=old.url, namespace="default")
    await broker.start()
    assert old.rows("SELECT key, windowed FROM bunqueue.keys ORDER BY 1") == [("plain", False), ("window", True)]
    assert old.rows("SELECT key, job_id FROM bunqueue.debounces") == [("d", "d")]
    deliveries = await broker.pull(PullRequest("q", 10, "w"))
    assert [delivery.job.id for delivery in deliveries] == ["a", "b", "c", "d", "e"]
    await broker.close()


async def test_brokers_that_start_at_once_migrate_once(old: OldDatabase, open_broker: OpenBroker) -> None:
    for n in range(50):
        old.add(f"job-{n:02}", debounce_id=str(n), debounce_ttl_ms=1)
    brokers = [open_broker(url=old.url, namespace="default") for _ in range(4)]
    await asyncio.gather(*(broker.start() for broker in brokers))
    assert old.rows("SELECT count(*) FROM bunqueue.debounces") == [(50,)]
    for broker in brokers:
        assert broker.health().ready
        await broker.close()


#: Migrates with one job a transaction, and stops for good, in the middle, after the third.
_KILLED = """
import asyncio, sys, time
import psycopg
from bunqueue_postgres import arrays, schema

def log(level, message, **fields):
    if fields.get("jobs") == 3:
        print("three", flush=True)
        time.sleep(600)

async def main():
    adapters = psycopg.adapt.AdaptersMap(psycopg.adapters)
    arrays.register(adapters)
    connection = await psycopg.AsyncConnection.connect(
        sys.argv[1], autocommit=True, cursor_factory=psycopg.AsyncRawCursor, context=adapters
    )
    await schema.initialise(connection, log, rows=1)

asyncio.run(main())
"""


async def test_a_killed_migration_is_finished_by_the_next_broker(old: OldDatabase, open_broker: OpenBroker) -> None:
    for n in range(10):
        old.add(f"job-{n}", debounce_id=str(n), debounce_ttl_ms=1)
    migrating = await asyncio.create_subprocess_exec(sys.executable, "-c", _KILLED, old.url, stdout=subprocess.PIPE)
    assert migrating.stdout is not None
    assert await migrating.stdout.readline() == b"three\n"
    migrating.kill()
    await migrating.wait()
    assert old.rows("SELECT max(version) FROM bunqueue.schema_versions") == [(2,)]
    assert old.rows("SELECT version, id FROM bunqueue.schema_progress") == [(2, "job-2")]
    assert old.rows("SELECT count(*) FROM bunqueue.debounces") == [(3,)]
    broker = open_broker(url=old.url, namespace="default")
    await broker.start()
    assert old.rows("SELECT count(*) FROM bunqueue.debounces") == [(10,)]
    assert old.rows("SELECT count(*) FROM bunqueue.schema_progress") == [(0,)]
    await broker.close()


async def test_a_broker_of_the_old_version_is_fenced(old: OldDatabase, open_broker: OpenBroker) -> None:
    broker = open_broker(url=old.url, namespace="default", broker_id="new")
    await broker.start()
    assert old.rows("SELECT broker_id FROM bunqueue.brokers") == [("new",)]
    with psycopg.connect(old.url, autocommit=True) as admin, pytest.raises(psycopg.errors.NotNullViolation):
        admin.execute(REGISTER_1)
    await broker.close()


async def test_a_broker_is_fenced_by_a_later_migration(database: str, open_broker: OpenBroker) -> None:
    broker = open_broker(url=database)
    await broker.start()
    await broker.push("q", [JobSpec("n", None)])
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("INSERT INTO bunqueue.schema_versions (version) VALUES (%s)", (schema.VERSION + 1,))
        admin.execute("DELETE FROM bunqueue.brokers")
    with pytest.raises(BunqueueError, match="taken over"):
        await broker.pull(PullRequest("q", 1, "w"))
    assert not broker.health().ready
    await broker.close()


async def test_a_migration_that_waits_too_long_changes_nothing(old: OldDatabase, open_broker: OpenBroker) -> None:
    broker = open_broker(url=old.url, namespace="default", lock_timeout_ms=100)
    with psycopg.connect(old.url) as busy:
        busy.execute("SELECT 1 FROM bunqueue.keys")
        with pytest.raises(BunqueueError):
            await broker.start()
    assert old.rows("SELECT version FROM bunqueue.schema_versions") == [(1,)]
    again = open_broker(url=old.url, namespace="default")
    await again.start()
    await again.close()


async def test_a_schema_that_is_too_old_is_refused(old: OldDatabase, open_broker: OpenBroker, monkeypatch: Any) -> None:
    monkeypatch.setattr(schema, "OLDEST", 2)
    broker = open_broker(url=old.url, namespace="default")
    with pytest.raises(ConfigurationError, match="schema version 1 is older than 2"):
        await broker.start()
    assert old.rows("SELECT version FROM bunqueue.schema_versions") == [(1,)]


# -- drift ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "DROP INDEX bunqueue.jobs_fifo",
        "DROP INDEX bunqueue.jobs_fifo; CREATE INDEX jobs_fifo ON bunqueue.jobs (queue_id)",
        "ALTER TABLE bunqueue.keys DROP CONSTRAINT keys_pkey; CREATE INDEX keys_pkey ON bunqueue.keys (queue_id, key)",
        "ALTER TABLE bunqueue.keys DROP CONSTRAINT keys_pkey, ADD CONSTRAINT keys_pkey PRIMARY KEY (queue_id, key) DEFERRABLE",
        "ALTER SEQUENCE bunqueue.group_order CACHE 50 CYCLE",
        "ALTER TABLE bunqueue.jobs ALTER COLUMN attempts DROP DEFAULT, ALTER COLUMN attempts DROP NOT NULL",
        "ALTER TABLE bunqueue.events ALTER COLUMN xid SET DEFAULT '1'::xid8",
        "DROP TABLE bunqueue.debounces",
        "ALTER TABLE bunqueue.keys DROP COLUMN windowed",
    ],
)
async def test_a_changed_object_is_mended(database: str, open_broker: OpenBroker, change: str) -> None:
    first = open_broker(url=database)
    await first.start()
    await first.push("q", [JobSpec("n", None, unique_key="k")])
    await first.close()
    with psycopg.connect(database, autocommit=True) as admin:
        before = admin.execute(_CATALOG).fetchall()
        admin.execute(change)
        assert admin.execute(_CATALOG).fetchall() != before or "DEFERRABLE" in change
        second = open_broker(url=database)
        await second.start()
        assert admin.execute(_CATALOG).fetchall() == before
        assert admin.execute("SELECT count(*) FROM pg_constraint WHERE condeferrable").fetchall() == [(0,)]
    assert len(await second.pull(PullRequest("q", 1, "w"))) == 1
    await second.close()


async def test_what_operators_add_stays(database: str, open_broker: OpenBroker) -> None:
    first = open_broker(url=database)
    await first.start()
    await first.close()
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("CREATE INDEX own ON bunqueue.jobs (name)")
        admin.execute("ALTER TABLE bunqueue.jobs SET (autovacuum_vacuum_threshold = 7)")
        for _ in range(2):
            broker = open_broker(url=database)
            await broker.start()
            await broker.close()
        assert admin.execute("SELECT to_regclass('bunqueue.own') IS NOT NULL").fetchall() == [(True,)]
        assert admin.execute("SELECT to_regnamespace('bunqueue_model') IS NULL").fetchall() == [(True,)]


async def test_rows_that_a_key_forbids_stop_the_start_and_stay(database: str, open_broker: OpenBroker) -> None:
    first = open_broker(url=database)
    await first.start()
    await first.close()
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("ALTER TABLE bunqueue.keys DROP CONSTRAINT keys_pkey")
        admin.execute("INSERT INTO bunqueue.keys (queue_id, key, job_id) SELECT 1, 'k', 'j' FROM generate_series(1, 2)")
        second = open_broker(url=database)
        with pytest.raises(BunqueueError):
            await second.start()
        assert admin.execute("SELECT count(*) FROM bunqueue.keys").fetchall() == [(2,)]
        admin.execute("DELETE FROM bunqueue.keys WHERE ctid = (SELECT min(ctid) FROM bunqueue.keys)")
    third = open_broker(url=database)
    await third.start()
    await third.close()


async def test_a_column_of_another_type_stops_the_start(database: str, open_broker: OpenBroker) -> None:
    first = open_broker(url=database)
    await first.start()
    await first.close()
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("ALTER TABLE bunqueue.logs ALTER COLUMN id TYPE varchar(10)")
    second = open_broker(url=database)
    with pytest.raises(ConfigurationError, match=r"column logs\.id is not of type text"):
        await second.start()
    await second.close()
