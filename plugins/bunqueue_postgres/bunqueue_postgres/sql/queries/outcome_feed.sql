-- Completions and failures since a snapshot, as feed.sql, for metrics; and the snapshot of this look. At least one row.
WITH look AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot)
SELECT
    pg_snapshot_xmax(look.snapshot)::text, ARRAY(SELECT pg_snapshot_xip(look.snapshot)::text),
    e.queue_id, e.type, e.at, e.size, e.skipped, e.extra
FROM look LEFT JOIN bunqueue.events e
    ON e.ns = $1::int4 AND (e.xid >= $2::text::xid8 OR e.xid = ANY ($3::text[]::xid8[])) AND e.type IN ('completed', 'failed')
