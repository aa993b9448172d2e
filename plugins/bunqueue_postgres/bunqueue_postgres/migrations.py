"""Steps from one version of the schema to the next: statements on tables, and the rows that have to follow.

A step's tables change in one transaction (``sql/migrations/<version>.sql``, then ``sql/schema.sql``). Rows follow in
transactions of a bounded number of jobs, each of which notes how far it came; see ``schema.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection
from psycopg.types.numeric import Int4

from bunqueue_core.model.job import Location
from bunqueue_postgres import arrays
from bunqueue_postgres.keys import to_key
from bunqueue_postgres.records import OptionsCodec

#: Jobs that one transaction brings to the new version.
ROWS: Final = 1_000


class Place(NamedTuple):
    """A job in the order in which rows are brought to the new version: the namespace's number and the job's key."""

    ns: int
    id: str


#: The place before all jobs.
BEGINNING: Final = Place(-(2**31), "")

#: Brings up to so many jobs after a place to the new version; gives the last of them, None if there are none.
Follow = Callable[[AsyncConnection[Any], Place, int], Awaitable[Place | None]]


async def _follow_2(connection: AsyncConnection[Any], after: Place, rows: int) -> Place | None:
    """Note which keys are windows, and which queued jobs take over what comes under their debounce id."""
    cursor = await connection.execute(
        "SELECT j.ns, j.id, j.queue_id, j.status, j.attempts, j.options, j.unique_key FROM bunqueue.jobs j "
        "WHERE (j.ns, j.id) > ($1, $2) ORDER BY j.ns, j.id LIMIT $3",
        (Int4(after.ns), after.id, Int4(rows)),
        prepare=False,
    )
    codec = OptionsCodec()
    windows: list[tuple[int, str, str]] = []
    debounced: dict[tuple[int, str], str] = {}
    last: Place | None = None
    for ns, id, queue_id, status, attempts, blob, unique_key in await cursor.fetchall():
        last = Place(ns, id)
        if blob is None:
            continue
        options = codec.read(blob)
        if unique_key is not None and options.dedup_scope == "window" and options.dedup_ttl_ms is not None:
            windows.append((queue_id, unique_key, id))
        if options.debounce_id is not None and not attempts and status in (Location.READY, Location.GATED):
            # The last one counts, as it would have when they were added: keys of jobs grow with time.
            debounced[queue_id, to_key(options.debounce_id)] = id
    if windows:
        queue_ids, keys, owners = zip(*windows, strict=True)
        await connection.execute(
            "UPDATE bunqueue.keys k SET windowed = true "
            "FROM unnest($1::int4[], $2::text[], $3::text[]) AS i (queue_id, key, job_id) "
            "WHERE k.queue_id = i.queue_id AND k.key = i.key AND k.job_id = i.job_id",
            (arrays.int4s(queue_ids), arrays.texts(keys), arrays.texts(owners)),
            prepare=False,
        )
    if debounced:
        await connection.execute(
            "INSERT INTO bunqueue.debounces (queue_id, key, job_id) SELECT * FROM unnest($1::int4[], $2::text[], $3::text[]) "
            "ON CONFLICT (queue_id, key) DO UPDATE SET job_id = excluded.job_id",
            (
                arrays.int4s([queue_id for queue_id, _ in debounced]),
                arrays.texts([key for _, key in debounced]),
                arrays.texts(list(debounced.values())),
            ),
            prepare=False,
        )
    return last


#: What rows need, by the version that they are brought to. A version that is not here changes tables only.
FOLLOWS: Final[Mapping[int, Follow]] = {2: _follow_2}

#: The oldest version from which there is a way.
OLDEST: Final = 1
