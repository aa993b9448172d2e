-- Completions and failures since a snapshot, as feed.sql, for metrics; and the snapshot of this look. At least one row.
WITH look AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot)
SELECT
    pg_snapshot_xmax(look.snapshot)::text, ARRAY(SELECT pg_snapshot_xip(look.snapshot)::text),
    e.queue_id, e.type, e.at, e.size, e.skipped, e.extra
FROM look LEFT JOIN (
    SELECT a.queue_id, a.type, a.at, a.size, a.skipped, a.extra
    FROM bunqueue.events a
    WHERE a.ns = $1::int4 AND a.xid >= $2::text::xid8
    UNION ALL
    SELECT b.queue_id, b.type, b.at, b.size, b.skipped, b.extra
    FROM unnest($3::text[]) AS open (xid) CROSS JOIN LATERAL (
        SELECT * FROM bunqueue.events k WHERE k.ns = $1::int4 AND k.xid = open.xid::xid8 OFFSET 0
    ) AS b
) AS e ON e.type IN ('completed', 'failed')
