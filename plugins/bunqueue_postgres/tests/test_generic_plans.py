"""No statement reads all jobs of a namespace, whatever the statistics said when its plan was made.

Brokers make generic plans once a connection, often while the tables are empty, when reading "all" of them seems cheapest. So the
statements must leave the planner no such choice, on any major.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.schema import initialise
from bunqueue_postgres.sqlfiles import Queries, load_queries
from bunqueue_postgres.testing import PostgresServer

#: Repairs go through everything, in portions and off the way of commands.
REPAIRS = ("mend_", "sweep_")

STATEMENTS = [field.name for field in fields(Queries) if not field.name.startswith(REPAIRS)]

QUERIES = load_queries()


async def _build(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, cursor_factory=psycopg.AsyncRawCursor
    ) as connection:
        await initialise(connection)


@pytest.fixture(scope="module")
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection with the planner's settings of a broker, to an empty database."""
    name = f"generic_{uuid.uuid4().hex}"
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        dsn = postgres.dsn.rsplit("/", 1)[0] + f"/{name}"
        asyncio.run(_build(dsn))
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SET plan_cache_mode = force_generic_plan")
            for refused in ("seqscan", "hashjoin", "mergejoin"):
                connection.execute(f"SET enable_{refused} = off")
            yield connection
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize("name", STATEMENTS)
def test_jobs_are_looked_up_by_more_than_their_namespace(connection: psycopg.Connection[Any], name: str) -> None:
    query: bytes = getattr(QUERIES, name)
    connection.execute(b"PREPARE " + name.encode() + b"_ AS " + query)
    count = max((int(number) for number in re.findall(rb"\$(\d+)", query)), default=0)
    arguments = f"({', '.join(['NULL'] * count)})" if count else ""
    row = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE {name}_{arguments}").fetchone()
    assert row is not None
    for node in nodes(row[0][0]["Plan"]):
        assert node["Node Type"] != "Seq Scan", node
        if node.get("Relation Name") == "jobs" and "Index Name" in node:
            assert node.get("Index Cond") not in (None, "(ns = $1)"), node
        # A table of all that a subquery gives, made at its first use.
        assert "hashed SubPlan" not in node.get("Filter", ""), node
