-- Deletes up to $3 queued jobs of a queue that no live job depends on; gives their number.
-- What they leave behind (edges, keys, logs) goes with them.
-- Locks: the rows, passing by those that are being claimed. Index: jobs_fifo, jobs_lifo, jobs_group; primary key.
WITH found AS MATERIALIZED (
    SELECT j.ns, j.id
    FROM bunqueue.queues q CROSS JOIN LATERAL (
        SELECT d.ns, d.id FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND NOT d.lifo AND (d.flags & 4 = 0 OR NOT EXISTS (SELECT FROM bunqueue.edges e WHERE e.ns = d.ns AND e.dependency_id = d.id))
        UNION ALL
        SELECT d.ns, d.id FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND d.lifo AND (d.flags & 4 = 0 OR NOT EXISTS (SELECT FROM bunqueue.edges e WHERE e.ns = d.ns AND e.dependency_id = d.id))
        UNION ALL
        SELECT d.ns, d.id FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NOT NULL AND (d.flags & 4 = 0 OR NOT EXISTS (SELECT FROM bunqueue.edges e WHERE e.ns = d.ns AND e.dependency_id = d.id))
    ) AS j
    WHERE q.ns = $1::int4 AND q.name = $2::text
    LIMIT $3::int8
), held AS MATERIALIZED (
    SELECT k.place
    FROM found f CROSS JOIN LATERAL (
        SELECT j.ctid AS place FROM bunqueue.jobs j WHERE j.ns = f.ns AND j.id = f.id AND j.status = 0 FOR UPDATE SKIP LOCKED
    ) AS k
), removed AS (
    DELETE FROM bunqueue.jobs j USING held h WHERE j.ctid = h.place
    RETURNING j.ns, j.id, j.queue_id, j.flags, j.unique_key
), unlinked AS (
    DELETE FROM bunqueue.edges e USING removed r WHERE r.flags & 8 <> 0 AND e.ns = r.ns AND e.job_id = r.id
), freed AS (
    DELETE FROM bunqueue.keys k USING removed r
    WHERE r.unique_key IS NOT NULL AND k.queue_id = r.queue_id AND k.key = r.unique_key AND k.job_id = r.id AND NOT k.windowed
), unlogged AS (
    DELETE FROM bunqueue.logs l USING removed r WHERE l.ns = r.ns AND l.id = r.id
)
SELECT (SELECT count(*) FROM removed), (SELECT count(*) FROM found)
