-- Events that have become visible since an earlier snapshot, and the snapshot of this look. At least one row.
--
-- $2 is the earlier snapshot's xmax, $3 its transactions that were in progress: an event is new if and only if its transaction is one
-- of them or began later, and is visible now. Nothing is missed or given twice, however commits and ids interleave, and no transaction
-- that stays open keeps others' events back. Events of one job come in its order: whoever changes a job holds its row, so the
-- next event of it gets a higher id.
-- Locks nothing. Index: events_feed, one range and one probe a transaction that was open.
WITH look AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot)
SELECT
    pg_snapshot_xmax(look.snapshot)::text, ARRAY(SELECT pg_snapshot_xip(look.snapshot)::text), e.type, e.name, e.at, e.ids, e.extra, e.skipped
FROM look LEFT JOIN (
    SELECT e.id, e.type, q.name, e.at, e.ids, e.extra, e.skipped
    FROM bunqueue.events e CROSS JOIN LATERAL (
        SELECT k.name FROM bunqueue.queues k WHERE k.id = e.queue_id LIMIT 1
    ) AS q
    WHERE e.ns = $1::int4 AND (e.xid >= $2::text::xid8 OR e.xid = ANY ($3::text[]::xid8[]))
) AS e ON true
ORDER BY e.id
