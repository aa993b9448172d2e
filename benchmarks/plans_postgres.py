"""What the hot statements of the PostgreSQL broker cost on a large backlog with many dead rows; writes ``docs/postgres-plans.md``.

    python -m benchmarks.plans_postgres [--jobs 1000000] [--dead 200000] [--rounds 7] [--page docs/postgres-plans.md]

Starts a PostgreSQL of its own with ``fsync`` and ``synchronous_commit`` on, builds the schema, and runs the statements as brokers
do: prepared, with generic plans that were made while the tables were still empty. Autovacuum is off, so that dead rows stay. Four
backlogs are measured, one after the other: a thousand jobs; ``--jobs``; these with the dead rows of ``--dead`` / 2 jobs that
were claimed and completed in front of them (two a job); and the same while a transaction is open that may still see those rows,
so that nothing can get rid of them. Each figure is the median of ``--rounds`` runs; the runs are real, each claims other jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
from bunqueue_postgres.schema import initialise
from bunqueue_postgres.sqlfiles import load_queries
from bunqueue_postgres.testing import PostgresServer
from psycopg import AsyncConnection, AsyncRawCursor

ROOT: Final = Path(__file__).resolve().parents[1]

#: Statements that are prepared, by the names of their files.
STATEMENTS: Final = (
    *("push", "claim", "ack_plain", "ack", "renew", "lock", "rewrite", "expired", "next_expiry"),
    *("probe", "behind", "states", "feed", "hold_queue", "active", "beat"),
)

#: Jobs a call of the gathered measurements.
BATCH: Final = 50

_FILL: Final = """
INSERT INTO bunqueue.jobs
    (ns, id, queue_id, name, data, priority, created_at, run_at, admitted_at, status, admitted_as, flags, lifo)
SELECT 1, 'f' || lpad(i::text, 9, '0'), 1, 'send', decode(repeat('2a', 90), 'hex'), 0, 1000 + i, 1000 + i, 1000 + i, 0, 0, 0, false
FROM generate_series(%s::int8, %s::int8) i
"""

#: Claims and completes the first jobs, in two statements, each of which leaves one dead row a job.
_USE: Final = (
    """
UPDATE bunqueue.jobs SET status = 3, started_at = 2000, lease_until = 3000, lease_ttl = 1000, lease_token = 't', lease_owner = 'w'
WHERE ns = 1 AND id IN (SELECT id FROM bunqueue.jobs WHERE queue_id = 1 AND status = 0 ORDER BY run_at, id LIMIT %s)
""",
    "UPDATE bunqueue.jobs SET status = 4, finished_at = 3000, lease_until = NULL WHERE queue_id = 1 AND status = 3",
)


async def build(dsn: str) -> None:
    """Build the schema in an empty database."""
    async with await AsyncConnection.connect(dsn, autocommit=True, cursor_factory=AsyncRawCursor) as connection:
        await initialise(connection)


class Backlog:
    """A database with every statement prepared while it was empty."""

    def __init__(self, dsn: str) -> None:
        self._session = uuid.uuid4()
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._tokens = 0
        run = self._connection.execute
        asyncio.run(build(dsn))
        run("SET plan_cache_mode = force_generic_plan")
        for refused in ("seqscan", "hashjoin", "mergejoin"):
            run(f"SET enable_{refused} = off")
        run("INSERT INTO bunqueue.namespaces (name) VALUES ('plans')")
        run("INSERT INTO bunqueue.queues (ns, name, listed, priorities) VALUES (1, 'q', true, '{0}')")
        run(
            "INSERT INTO bunqueue.brokers (ns, broker_id, session, started_at, heartbeat_at, version) "
            "SELECT 1, 'b', %s, 0, bunqueue.now_ms(), max(version) FROM bunqueue.schema_versions",
            (self._session,),
        )
        queries = load_queries()
        for name in STATEMENTS:
            run(b"PREPARE " + name.encode() + b" AS " + getattr(queries, name))
        for _, statement in self.statements():
            run(statement)  # type: ignore[call-overload]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def fill(self, first: int, last: int) -> None:
        """Add waiting jobs with these numbers."""
        for start in range(first, last + 1, 100_000):
            self._connection.execute(_FILL, (start, min(last, start + 99_999)))

    def use(self, jobs: int) -> None:
        """Claim and complete so many jobs: two dead rows each."""
        self._connection.execute(_USE[0], (jobs,))
        self._connection.execute(_USE[1])  # type: ignore[arg-type]

    def vacuum(self) -> None:
        """Have neither dead rows nor old statistics."""
        self._connection.execute("VACUUM ANALYZE bunqueue.jobs, bunqueue.events")

    def dead(self) -> int:
        """Dead rows of the table of jobs, as the database counts them."""
        self._connection.execute("SELECT pg_stat_force_next_flush()")
        row = self._connection.execute(
            "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'bunqueue.jobs'::regclass"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def version(self) -> str:
        row = self._connection.execute("SHOW server_version").fetchone()
        assert row is not None
        return str(row[0])

    def mark(self) -> tuple[int, str]:
        """Where a broker that has claimed everything up to here begins to look (its low-water mark)."""
        row = self._connection.execute(
            "SELECT run_at, id FROM bunqueue.jobs WHERE queue_id = 1 AND status = 0 AND group_id IS NULL AND NOT lifo "
            "ORDER BY run_at, id LIMIT 1"
        ).fetchone()
        return (0, "") if row is None else (int(row[0]), str(row[1]))

    def push(self, count: int) -> str:
        self._tokens += 1

        def filled(value: str) -> str:
            return f"array_fill({value}, ARRAY[{count}])"

        ids = f"ARRAY{[f'p{uuid.uuid4().hex}' for _ in range(count)]}"
        values = [
            *("1", ids, filled("1"), filled("'send'::text"), filled("decode(repeat('2a', 90), 'hex')")),
            *(filled("NULL::bytea"), filled("NULL::bytea"), filled("0"), filled("NULL::int8"), filled("0::int8")),
            *(filled("0::int2"), filled("false"), *(filled("NULL::int8") for _ in range(3))),
            *(filled("NULL::text") for _ in range(3)),
            filled("false"),
        ]
        return f"EXECUTE push({', '.join(values)})"

    def claim(self, count: int, mark: tuple[int, str] | None = None) -> str:
        self._tokens += 1
        tokens = f"ARRAY{[f't{self._tokens}-{n}' for n in range(count)]}"
        marks = "'{}', '{}', '{}'" if mark is None else f"'{{0}}', ARRAY[{mark[0]}]::int8[], ARRAY['{mark[1]}']"
        return (
            f"EXECUTE claim(1, 1, 'b', '{self._session}', {marks}, {count}, {tokens}, "
            f"array_fill('w'::text, ARRAY[{count}]), array_fill(600000::int8, ARRAY[{count}]), false)"
        )

    def held(self, count: int) -> tuple[str, str]:
        """Ids and tokens of claimed jobs, by id, as arrays."""
        rows = self._connection.execute(
            "SELECT id, lease_token FROM bunqueue.jobs WHERE queue_id = 1 AND status = 3 ORDER BY id LIMIT %s", (count,)
        ).fetchall()
        ids, tokens = ([str(row[n]) for row in rows] or [""] for n in (0, 1))
        return f"ARRAY{ids}", f"ARRAY{tokens}"

    def statements(self, mark: tuple[int, str] | None = None) -> Iterator[tuple[str, str]]:
        """(label, statement) of one round, in the order in which a job meets them."""
        yield f"add {BATCH} jobs (`push`)", self.push(BATCH)
        yield "add 1 job (`push`)", self.push(1)
        yield f"claim {BATCH} jobs (`claim`)", self.claim(BATCH, mark)
        yield "claim 1 job (`claim`)", self.claim(1, mark)
        ids, tokens = self.held(BATCH)
        count = ids.count("'") // 2
        true, none = f"array_fill(true, ARRAY[{count}])", f"array_fill(NULL::int8, ARRAY[{count}])"
        yield (
            f"renew {BATCH} leases (`renew`)",
            f"EXECUTE renew(1, {ids}, {tokens}, {true}, {true}, {none}, 'b', '{self._session}')",
        )
        half = BATCH // 2
        yield f"complete {half} plain jobs (`ack_plain`)", self.ack_plain(*self.held(half))
        yield f"complete {half} jobs of any kind (`ack`)", self.ack(*self.held(half))
        ids, tokens = self.held(1)
        yield "fail 1 job: lock it (`lock`)", f"EXECUTE lock(1, {ids})"
        yield "fail 1 job: write it back (`rewrite`)", self.rewrite(ids)
        yield "look for leases that have ended (`expired`)", "EXECUTE expired(1, 1000)"
        yield "when the next lease ends (`next_expiry`)", "EXECUTE next_expiry(1)"
        floor = -(2**63) if mark is None else mark[0]
        yield "look for work of waiting pulls (`probe`)", f"EXECUTE probe(1, ARRAY['q'], ARRAY['{floor}'::int8])"
        place = (floor, "") if mark is None else mark
        yield (
            "look behind the low-water mark (`behind`)",
            f"EXECUTE behind(ARRAY[1], ARRAY[0], ARRAY['{place[0]}'::int8], ARRAY['{place[1]}'])",
        )
        yield f"states of {BATCH} jobs (`states`)", f"EXECUTE states(1, {self.sample(BATCH)})"
        yield "read new events (`feed`)", f"EXECUTE feed(1, '{self.snapshot()}', '{{}}', NULL)"
        yield "hold a limited queue (`hold_queue`)", "EXECUTE hold_queue(1)"
        yield "count its active jobs (`active`)", "EXECUTE active(1)"
        yield "heartbeat of a broker (`beat`)", f"EXECUTE beat(1, 'b', '{self._session}', 30000)"

    def sample(self, count: int) -> str:
        """Ids of jobs all over the backlog, as an array."""
        rows = self._connection.execute(
            "SELECT 'f' || lpad((1 + n * greatest(1, (SELECT reltuples::int8 FROM pg_class "
            "WHERE oid = 'bunqueue.jobs'::regclass) / %s))::text, 9, '0') FROM generate_series(1, %s) n",
            (count, count),
        ).fetchall()
        return f"ARRAY{[str(row[0]) for row in rows]}"

    def snapshot(self) -> str:
        """Where a reader of events stands who has read all but the last few commits."""
        row = self._connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 - 5").fetchone()
        assert row is not None
        return str(row[0])

    @staticmethod
    def ack_plain(ids: str, tokens: str) -> str:
        count = ids.count("'") // 2
        return f"EXECUTE ack_plain(1, {ids}, {tokens}, array_fill(decode('c0', 'hex'), ARRAY[{count}]), 129::int2)"

    @staticmethod
    def ack(ids: str, tokens: str) -> str:
        count = ids.count("'") // 2
        return (
            f"EXECUTE ack(1, {ids}, {tokens}, array_fill(decode('c0', 'hex'), ARRAY[{count}]), "
            f"array_fill(false, ARRAY[{count}]), array_fill(0, ARRAY[{count}]), 131::int2)"
        )

    def rewrite(self, ids: str) -> str:
        types = (
            "int2",
            "int8",
            "int4",
            "int4",
            *("int8",) * 3,
            "bytea",
            "bytea",
            "int8",
            "int4",
            "bool",
            "bytea",
            "bytea",
        )
        types += ("int2", "bytea", "text")
        values = {0: "0::int2", 1: "bunqueue.now_ms() + 1000", 2: "1", 3: "0", 10: "0", 11: "false", 14: "0::int2"}
        arrays = ", ".join(f"ARRAY[{values.get(n, 'NULL')}]::{type}[]" for n, type in enumerate(types))
        return f"EXECUTE rewrite(1, {ids}, {arrays})"

    def explain(self, statement: str) -> tuple[float, int]:
        """Run a statement: how long it took, ms, and how many blocks it touched."""
        row = self._connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}").fetchone()  # type: ignore[call-overload]
        assert row is not None
        found: dict[str, Any] = (row[0] if not isinstance(row[0], str) else json.loads(row[0]))[0]
        plan = found["Plan"]
        return found["Execution Time"], plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    def from_head(self, rounds: int) -> tuple[float, int]:
        """Median time and blocks of a claim that begins at the head of the queue."""
        looks = sorted(self.explain(self.claim(1)) for _ in range(rounds))
        return looks[len(looks) // 2]

    def plan(self, statement: str) -> str:
        """Run a statement, and give its plan as text."""
        rows = self._connection.execute(f"EXPLAIN (ANALYZE, BUFFERS) {statement}").fetchall()  # type: ignore[call-overload]
        return "\n".join(row[0] for row in rows)


Figures = dict[str, tuple[float, int]]

_HEAD: Final = """# What the hot statements cost on PostgreSQL

<!-- written by benchmarks/plans_postgres.py -->

Time, and blocks touched (8 kB, of index and table, wherever they were), of one run of each statement that a busy queue lives
on. Medians, PostgreSQL {version} with `fsync` and `synchronous_commit` on, payloads of 90 bytes. How it was measured stands at
the [head of the script](../benchmarks/plans_postgres.py). Times include what `EXPLAIN ANALYZE` costs, and are those of a small
machine that did other things, too: compare the columns with each other, nothing else.
"""

_REASONS: Final = """
What a statement costs follows from the jobs that it is about, not from the size of the backlog:

- Every index is partial, on the state that it serves, and each statement reads one range of one of them.
- Brokers remember the last job that they claimed (the low-water mark), and go on from there, so that the remains of what was
  claimed before are not even met. Apart from the claims, they look every 2 s whether something came in behind the mark.
- The first look that meets index entries of dead rows which nobody can see any more marks them as dead, once ({first}
  here, as a claim from the head of the queue; {look} the next); later ones pass them by without looking at rows.
- While a transaction is open that may still see those rows, they cannot be marked: looks behind the mark and at leases that have
  ended step over them (a claim from the head took {seen}). When a look takes long the next one comes later, so
  that looks take a twentieth of the time at most. No other statement is touched: they go by keys, or by ranges without remains.

Vacuum then removes the rows; see [vacuum](postgres-operations.md#vacuum).

## Plans

`EXPLAIN (ANALYZE, BUFFERS)` of each statement, with {dead:,} dead rows in the table of jobs. They are the generic plans that
brokers use, made before there was any row, so that the estimates of rows say nothing.
"""


def measure(backlog: Backlog, rounds: int) -> Figures:
    """Median time and blocks of each statement, by its label; claims begin at the low-water mark, as a broker's do."""
    times: dict[str, list[float]] = {}
    blocks: dict[str, list[int]] = {}
    for _ in range(rounds):
        for label, statement in backlog.statements(backlog.mark()):
            took, touched = backlog.explain(statement)
            times.setdefault(label, []).append(took)
            blocks.setdefault(label, []).append(touched)
    return {label: (statistics.median(times[label]), int(statistics.median(blocks[label]))) for label in times}


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print the figures and write the page; ``words`` in place of the process's."""
    parser = argparse.ArgumentParser(description="Cost and plans of the PostgreSQL broker's hot statements.")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="waiting jobs of the large backlog")
    parser.add_argument("--dead", type=int, default=200_000, help="dead rows in front of them")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "postgres-plans.md")
    arguments = parser.parse_args(words)
    options = ("autovacuum=off", "shared_buffers=2GB", "max_wal_size=8GB", "checkpoint_timeout=1h")
    with (
        closing(PostgresServer(durable=True, options=options)) as server,
        closing(Backlog(server.dsn)) as backlog,
    ):
        text = measure_all(backlog, server.dsn, arguments.jobs, arguments.dead, arguments.rounds)
    arguments.page.write_text(text, encoding="utf-8")
    sys.stdout.write(text[: text.index("## Plans")])


def measure_all(backlog: Backlog, dsn: str, jobs: int, dead: int, rounds: int) -> str:
    """Measure the four backlogs; gives the page."""
    columns: list[tuple[str, Figures]] = []
    backlog.fill(1, 1_000)
    backlog.vacuum()
    columns.append(("1,000 jobs", measure(backlog, rounds)))
    backlog.fill(1_001, jobs + dead // 2)
    backlog.vacuum()
    columns.append((f"{jobs:,} jobs", measure(backlog, rounds)))
    with closing(psycopg.connect(dsn)) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM bunqueue.queues")
        backlog.use(dead // 2)
        rows = backlog.dead()
        seen = backlog.from_head(rounds)
        held = measure(backlog, rounds)
    first = backlog.explain(backlog.claim(1))
    look = backlog.from_head(rounds)
    columns.append((f"and {rows:,} dead rows", measure(backlog, rounds)))
    columns.append(("and a transaction that may see them", held))
    plans = [(label, backlog.plan(statement)) for label, statement in backlog.statements(backlog.mark())]
    return page(columns, plans, backlog.version(), {"first": first, "look": look, "seen": seen}, backlog.dead())


def page(
    columns: list[tuple[str, Figures]],
    plans: list[tuple[str, str]],
    version: str,
    looks: dict[str, tuple[float, int]],
    dead: int,
) -> str:
    """The page, as Markdown."""
    lines = [_HEAD.format(version=version)]
    lines.append("| statement | " + " | ".join(name for name, _ in columns) + " |")
    lines.append("| --- |" + " --- |" * len(columns))
    for label in columns[0][1]:
        cells = [f"{figures[label][0]:.2f} ms, {figures[label][1]:,}" for _, figures in columns]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    costs = {name: f"{took:.1f} ms and {blocks:,} blocks" for name, (took, blocks) in looks.items()}
    lines.append(_REASONS.format(dead=dead, **costs))
    for label, plan in plans:
        lines += [f"### {label[0].upper()}{label[1:]}", "", "```text", plan, "```", ""]
    return "\n".join(lines[:-1]) + "\n"


if __name__ == "__main__":
    main()
