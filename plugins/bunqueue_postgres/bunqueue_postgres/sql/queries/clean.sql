-- Deletes up to $5 jobs of a queue in status $3 (queued, completed or dead) that no live job depends on and that are at least $4 ms
-- old, oldest first; gives their ids. Age: since creation for queued jobs, since the end for the others; a null $4 takes any.
-- What they leave behind (edges, keys, logs) goes with them.
-- Locks: the rows, passing by held ones. Index: jobs_ended, or jobs_fifo, jobs_lifo and jobs_group; primary key.
WITH old AS MATERIALIZED (
    SELECT j.ns, j.id, j.at
    FROM bunqueue.queues q CROSS JOIN (SELECT bunqueue.now_ms() AS now OFFSET 0) clock CROSS JOIN LATERAL (
        SELECT d.ns, d.id, d.finished_at AS at FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status IN (4, 5) AND d.status = $3::int2 AND (d.flags & 4 = 0 OR NOT EXISTS (SELECT FROM bunqueue.edges e WHERE e.ns = d.ns AND e.dependency_id = d.id))
        UNION ALL
        SELECT k.ns, k.id, k.created_at FROM (
        SELECT d.ns, d.id, d.created_at, d.flags FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND NOT d.lifo
        UNION ALL
        SELECT d.ns, d.id, d.created_at, d.flags FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND d.lifo
        UNION ALL
        SELECT d.ns, d.id, d.created_at, d.flags FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NOT NULL
        ) AS k
        WHERE $3::int2 = 0
            AND (k.flags & 4 = 0 OR NOT EXISTS (SELECT FROM bunqueue.edges e WHERE e.ns = k.ns AND e.dependency_id = k.id))
    ) AS j
    WHERE q.ns = $1::int4 AND q.name = $2::text AND ($4::int8 IS NULL OR j.at <= clock.now - $4::int8)
    ORDER BY j.at, j.id
    LIMIT $5::int8
), held AS MATERIALIZED (
    SELECT k.place, o.at
    FROM old o CROSS JOIN LATERAL (
        SELECT j.ctid AS place FROM bunqueue.jobs j WHERE j.ns = o.ns AND j.id = o.id AND j.status = $3::int2 FOR UPDATE SKIP LOCKED
    ) AS k
), removed AS (
    DELETE FROM bunqueue.jobs j USING held h WHERE j.ctid = h.place
    RETURNING j.ns, j.id, j.queue_id, j.flags, j.unique_key, h.at
), unlinked AS (
    DELETE FROM bunqueue.edges e USING removed r WHERE r.flags & 8 <> 0 AND e.ns = r.ns AND e.job_id = r.id
), freed AS (
    DELETE FROM bunqueue.keys k USING removed r
    WHERE r.unique_key IS NOT NULL AND k.queue_id = r.queue_id AND k.key = r.unique_key AND k.job_id = r.id AND NOT k.windowed
), unlogged AS (
    DELETE FROM bunqueue.logs l USING removed r WHERE l.ns = r.ns AND l.id = r.id
)
SELECT r.id FROM removed r ORDER BY r.at, r.id
