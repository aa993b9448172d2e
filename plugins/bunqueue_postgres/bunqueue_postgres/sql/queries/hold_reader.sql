-- Takes a shared reader's row, creating it at the present if it is new; no row: another broker reads.
WITH made AS (
    INSERT INTO bunqueue.readers (ns, name, next_xid, open)
    SELECT $1::int4, $2::text, pg_snapshot_xmax(s)::text, ARRAY(SELECT pg_snapshot_xip(s)::text) FROM pg_current_snapshot() AS s
    ON CONFLICT (ns, name) DO NOTHING
)
SELECT next_xid, open FROM bunqueue.readers WHERE ns = $1::int4 AND name = $2::text FOR UPDATE SKIP LOCKED
