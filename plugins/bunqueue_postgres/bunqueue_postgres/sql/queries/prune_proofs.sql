-- Removes the oldest proofs that no live job needs, beyond the newest $2, at most $3, with an event of each queue that had one.
-- Locks: the removed rows. Index: proofs_age.
WITH removed AS (
    DELETE FROM bunqueue.proofs p
    USING (
        SELECT o.ns, o.id FROM bunqueue.proofs o
        WHERE o.ns = $1::int4 AND NOT EXISTS (SELECT FROM bunqueue.edges e WHERE e.ns = o.ns AND e.dependency_id = o.id)
        ORDER BY o.completed_at DESC, o.id DESC
        OFFSET $2::int8 LIMIT $3::int8
    ) AS old
    WHERE p.ns = old.ns AND p.id = old.id
    RETURNING p.ns, p.queue_id
), journal AS (
    INSERT INTO bunqueue.events (at, ns, queue_id, size, type, ids)
    SELECT bunqueue.now_ms(), r.ns, r.queue_id, 1, 'queue-completions-pruned', '{}' FROM removed r GROUP BY r.ns, r.queue_id
)
SELECT count(*) FROM removed
