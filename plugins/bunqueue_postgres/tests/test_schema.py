"""The schema's life, in databases of their own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from bunqueue_postgres import schema
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.sqlfiles import load_queries
from bunqueue_postgres.testing import PostgresServer

from bunqueue_core.model.errors import ConfigurationError
from bunqueue_core.model.job import JobSpec

OpenBroker = Callable[..., PostgresBroker]


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
