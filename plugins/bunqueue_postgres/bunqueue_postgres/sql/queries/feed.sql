-- Events that have become visible since an earlier snapshot, and the snapshot of this look. At least one row.
--
-- $2 is the earlier snapshot's xmax, $3 its transactions that were in progress: an event is new if and only if its transaction is one
-- of them or began later, and is visible now. Nothing is missed or given twice, however commits and ids interleave, and no transaction
-- that stays open keeps others' events back. Events of one job come in its order: whoever changes a job holds its row, so the
-- next event of it gets a higher id.
-- $4: names of the queues whose events are wanted, NULL for all. Completions come with their jobs' results, in the order of the ids.
-- Locks nothing. Index: events_feed, one range and one probe a transaction that was open (two branches: of a condition with OR a
-- plan that was made before the table's first ANALYZE reads all events of the namespace); primary keys for results (+ 0: not the
-- index of completed jobs).
WITH look AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot)
SELECT
    pg_snapshot_xmax(look.snapshot)::text, ARRAY(SELECT pg_snapshot_xip(look.snapshot)::text),
    e.type, e.name, e.at, e.ids, e.extra, e.skipped,
    CASE WHEN e.type = 'completed' THEN ARRAY(
        SELECT coalesce(
            (SELECT j.result FROM bunqueue.jobs j WHERE j.ns = $1::int4 AND j.id = i.id AND j.status + 0 = 4),
            (SELECT p.result FROM bunqueue.proofs p WHERE p.ns = $1::int4 AND p.id = i.id)
        )
        FROM unnest(e.ids) WITH ORDINALITY AS i (id, n)
        ORDER BY i.n
    ) END
FROM look LEFT JOIN (
    SELECT e.id, e.type, q.name, e.at, e.ids, e.extra, e.skipped
    FROM (
        SELECT a.id, a.type, a.queue_id, a.at, a.ids, a.extra, a.skipped
        FROM bunqueue.events a
        WHERE a.ns = $1::int4 AND a.xid >= $2::text::xid8
        UNION ALL
        SELECT b.id, b.type, b.queue_id, b.at, b.ids, b.extra, b.skipped
        FROM unnest($3::text[]) AS open (xid) CROSS JOIN LATERAL (
            SELECT * FROM bunqueue.events k WHERE k.ns = $1::int4 AND k.xid = open.xid::xid8 OFFSET 0
        ) AS b
    ) AS e CROSS JOIN LATERAL (
        SELECT k.name FROM bunqueue.queues k WHERE k.id = e.queue_id LIMIT 1
    ) AS q
    WHERE $4::text[] IS NULL OR q.name = ANY ($4::text[])
) AS e ON true
ORDER BY e.id
