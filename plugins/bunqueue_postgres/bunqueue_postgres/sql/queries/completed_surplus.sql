-- Deletes the oldest completed jobs of a queue beyond $2 that no live job needs. Locks the deleted rows. Index: jobs_ended.
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
