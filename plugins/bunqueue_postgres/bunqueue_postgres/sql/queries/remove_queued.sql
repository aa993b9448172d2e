-- Deletes up to $3 queued jobs of a queue that no live job depends on; gives their number.
-- Locks: the rows, passing by those that are being claimed. Index: jobs_fifo, jobs_lifo, jobs_group, by status.
WITH removed AS (
    DELETE FROM bunqueue.jobs j
    USING (
        SELECT d.ns, d.id
        FROM bunqueue.queues q JOIN bunqueue.jobs d ON d.queue_id = q.id AND d.status = 0
        WHERE q.ns = $1::int4 AND q.name = $2::text AND (d.flags & 4 = 0 OR NOT EXISTS (
            SELECT FROM bunqueue.edges e WHERE e.ns = d.ns AND e.dependency_id = d.id
        ))
        LIMIT $3::int8
        FOR UPDATE OF d SKIP LOCKED
    ) AS queued
    WHERE j.ns = queued.ns AND j.id = queued.id
    RETURNING 1
)
SELECT count(*) FROM removed
