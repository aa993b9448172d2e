-- Deletes up to $5 jobs of a queue in status $3 (queued, completed or dead) that no live job depends on and that are at least $4 ms
-- old, oldest first; gives their ids. Age: since creation for queued jobs, since the end for the others; a null $4 takes any.
-- Locks: the rows, passing by held ones. Index: jobs_ended for ended jobs.
WITH old AS MATERIALIZED (
    SELECT d.ns, d.id, CASE WHEN $3::int2 = 0 THEN d.created_at ELSE d.finished_at END AS at
    FROM bunqueue.queues q JOIN bunqueue.jobs d ON d.queue_id = q.id AND d.status = $3::int2
    WHERE q.ns = $1::int4 AND q.name = $2::text AND (d.flags & 4 = 0 OR NOT EXISTS (
            SELECT FROM bunqueue.edges e WHERE e.ns = d.ns AND e.dependency_id = d.id
        ))
        AND ($4::int8 IS NULL OR CASE WHEN $3::int2 = 0 THEN d.created_at ELSE d.finished_at END <= (SELECT bunqueue.now_ms()) - $4::int8)
    ORDER BY 3, 2
    LIMIT $5::int8
    FOR UPDATE OF d SKIP LOCKED
), removed AS (
    DELETE FROM bunqueue.jobs j USING old WHERE j.ns = old.ns AND j.id = old.id RETURNING j.id
)
SELECT r.id FROM removed r JOIN old ON old.id = r.id ORDER BY old.at, old.id
