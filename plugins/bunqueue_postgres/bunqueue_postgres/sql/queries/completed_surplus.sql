-- Deletes the oldest completed jobs of a queue beyond $2 that no live job needs; that they completed stays known.
-- Locks the deleted rows. Index: jobs_ended.
WITH removed AS (
    DELETE FROM bunqueue.jobs j
    USING (
        SELECT c.ctid AS place
        FROM bunqueue.jobs c
        WHERE c.queue_id = $1::int4 AND c.status = 4
            AND (c.flags & 4 = 0 OR NOT EXISTS (SELECT FROM bunqueue.edges e WHERE e.ns = c.ns AND e.dependency_id = c.id))
        ORDER BY c.finished_at DESC, c.id DESC
        OFFSET $2::int8
        FOR UPDATE SKIP LOCKED
    ) AS surplus
    WHERE j.ctid = surplus.place
    RETURNING j.ns, j.id, j.queue_id, j.finished_at, j.result
), unlogged AS (
    DELETE FROM bunqueue.logs l USING removed r WHERE l.ns = r.ns AND l.id = r.id
)
INSERT INTO bunqueue.proofs (ns, id, queue_id, completed_at, result)
SELECT r.ns, r.id, r.queue_id, r.finished_at, r.result FROM removed r
ON CONFLICT (ns, id) DO UPDATE SET completed_at = excluded.completed_at, result = excluded.result, queue_id = excluded.queue_id
