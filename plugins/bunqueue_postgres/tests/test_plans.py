"""Hot statements stay on their index: on a queue of 100,000 jobs, most of them not claimable, they look at what they need only.

The plans are the generic ones that brokers run, made while the tables are still empty, as they are on a new installation.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from bunqueue_postgres.sqlfiles import load_queries, load_schema
from bunqueue_postgres.testing import PostgresServer

WAITING, DELAYED, DONE, ACTIVE = 60_000, 30_000, 10_000, 100

_FILL = """
INSERT INTO bunqueue.jobs
    (ns, id, queue_id, priority, created_at, run_at, admitted_at, status, admitted_as, flags, lifo, started_at, finished_at,
     lease_until, lease_ttl, lease_owner, lease_token)
SELECT 1, {prefix} || lpad(i::text, 8, '0'), 1, {priority}, 1000 + i, {run_at}, 1000, {status}, 0, 0, false,
    CASE WHEN {status} >= 3 THEN 2000 END, CASE WHEN {status} > 3 THEN 3000 + i END,
    CASE WHEN {status} = 3 THEN 4000000000000 END, CASE WHEN {status} = 3 THEN 30000 END,
    CASE WHEN {status} = 3 THEN 'w' END, CASE WHEN {status} = 3 THEN 't' END
FROM generate_series(1, {count}) i
"""


class Plans:
    """A filled database with every statement prepared."""

    def __init__(self, dsn: str) -> None:
        self.session = uuid.uuid4()
        self.connection = psycopg.connect(dsn, autocommit=True)
        run = self.connection.execute
        run(load_schema())
        run("SET plan_cache_mode = force_generic_plan")
        for refused in ("seqscan", "hashjoin", "mergejoin"):
            run(f"SET enable_{refused} = off")
        run("INSERT INTO bunqueue.namespaces (name) VALUES ('n')")
        run("INSERT INTO bunqueue.queues (ns, name, listed, priorities) VALUES (1, 'q', true, '{5,0}')")
        run("INSERT INTO bunqueue.brokers VALUES (1, 'b', %s, 0, bunqueue.now_ms(), 0)", (self.session,))
        queries = load_queries()
        for name in (
            "claim",
            "ack_plain",
            "ack",
            "renew",
            "lock",
            "read",
            "states",
            "expired",
            "probe",
            "rewrite",
            "push",
        ):
            run(b"PREPARE " + name.encode() + b" AS " + getattr(queries, name))
        self.touch()
        for fill in (
            {"prefix": "'w'", "priority": 0, "run_at": "1000 + i / 100", "status": 0, "count": WAITING},
            {"prefix": "'d'", "priority": 5, "run_at": "4000000000000 + i", "status": 0, "count": DELAYED},
            {"prefix": "'c'", "priority": 0, "run_at": "1000", "status": 4, "count": DONE},
            {"prefix": "'a'", "priority": 0, "run_at": "1000", "status": 3, "count": ACTIVE},
        ):
            run(_FILL.format(**fill))

    def touch(self) -> None:
        """Have every plan made while there is nothing."""
        for statement in (self.claim(1), *self.others("x")):
            self.connection.execute(statement)

    def claim(self, count: int) -> str:
        tokens = ",".join(f"'t{n}'" for n in range(count))
        return (
            f"EXECUTE claim(1, 1, 'b', '{self.session}', '{{}}', '{{}}', '{{}}', {count}, ARRAY[{tokens}], "
            f"array_fill('w'::text, ARRAY[{count}]), array_fill(30000::int8, ARRAY[{count}]), false)"
        )

    def others(self, prefix: str) -> list[str]:
        ids = "ARRAY[" + ",".join(f"'{prefix}{n:08}'" for n in range(1, 51)) + "]"
        return [
            f"EXECUTE renew(1, {ids}, array_fill('t'::text, ARRAY[50]), array_fill(true, ARRAY[50]), array_fill(true, ARRAY[50]), "
            f"array_fill(NULL::int8, ARRAY[50]), 'b', '{self.session}')",
            f"EXECUTE states(1, {ids})",
            f"EXECUTE read(1, {ids})",
            f"EXECUTE lock(1, {ids})",
            "EXECUTE expired(1, 100)",
            "EXECUTE probe(1, ARRAY['q'], ARRAY[-9223372036854775808]::int8[])",
            f"EXECUTE ack_plain(1, {ids}, array_fill('t'::text, ARRAY[50]), array_fill(NULL::bytea, ARRAY[50]), 129::int2)",
            f"EXECUTE ack(1, {ids}, array_fill('t'::text, ARRAY[50]), array_fill(NULL::bytea, ARRAY[50]), "
            "array_fill(false, ARRAY[50]), array_fill(0, ARRAY[50]), 131::int2)",
        ]

    def explain(self, statement: str) -> tuple[set[str], int]:
        """Ways in which the table of jobs is read, and rows of it that were looked at."""
        row = self.connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}").fetchone()
        assert row is not None
        ways: set[str] = set()
        looked_at = 0

        def visit(node: dict[str, Any]) -> None:
            nonlocal looked_at
            kind = node["Node Type"]
            index = str(node.get("Index Name", ""))
            if kind.endswith("Scan") and (node.get("Relation Name") == "jobs" or index.startswith("jobs_")):
                ways.add(index or kind)
                removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
                looked_at += int((node["Actual Rows"] + removed) * node["Actual Loops"])
            for child in node.get("Plans", ()):
                visit(child)

        visit(row[0][0]["Plan"] if not isinstance(row[0], str) else json.loads(row[0])[0]["Plan"])
        return ways, looked_at


@pytest.fixture(scope="module")
def plans(postgres: PostgresServer) -> Iterator[Plans]:
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        plans = Plans(postgres.dsn.rsplit("/", 1)[0] + f"/{name}")
        yield plans
        plans.connection.close()
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_a_claim_looks_at_what_it_takes(plans: Plans) -> None:
    ways, looked_at = plans.explain(plans.claim(50))
    assert {"jobs_fifo", "jobs_lifo"} <= ways <= {"jobs_fifo", "jobs_lifo", "Tid Scan"}
    assert looked_at <= 200


@pytest.mark.parametrize("position", range(8))
def test_other_hot_statements_look_at_what_they_are_about(plans: Plans, position: int) -> None:
    statement = plans.others("a")[position]
    ways, looked_at = plans.explain(statement)
    assert "Seq Scan" not in ways
    assert looked_at <= 500, statement
