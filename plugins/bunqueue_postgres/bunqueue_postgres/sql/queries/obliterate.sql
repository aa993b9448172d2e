-- Deletes up to $2 jobs of a queue, whatever their state, but none that live jobs of other queues depend on; gives their number.
-- What they leave behind (edges, keys, logs) goes with them.
-- Locks: the rows; one that changes meanwhile is left to the next step.
-- Index: the partial index of each state; primary key.
WITH doomed AS MATERIALIZED (
    SELECT j.place
    FROM (SELECT $1::int4 AS id OFFSET 0) q CROSS JOIN LATERAL (
        SELECT d.ctid AS place, d.ns, d.id, d.flags FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND NOT d.lifo
        UNION ALL
        SELECT d.ctid AS place, d.ns, d.id, d.flags FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND d.lifo
        UNION ALL
        SELECT d.ctid AS place, d.ns, d.id, d.flags FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NOT NULL
        UNION ALL
        SELECT d.ctid AS place, d.ns, d.id, d.flags FROM bunqueue.jobs d WHERE d.queue_id = q.id AND d.status IN (1, 2)
        UNION ALL
        SELECT d.ctid AS place, d.ns, d.id, d.flags FROM bunqueue.jobs d WHERE d.queue_id = q.id AND d.status = 3
        UNION ALL
        SELECT d.ctid AS place, d.ns, d.id, d.flags FROM bunqueue.jobs d WHERE d.queue_id = q.id AND d.status IN (4, 5)
    ) AS j
    WHERE j.flags & 4 = 0 OR NOT EXISTS (
        SELECT FROM bunqueue.edges e JOIN bunqueue.jobs w ON w.ns = e.ns AND w.id = e.job_id AND w.queue_id <> $1::int4 AND w.status < 4
        WHERE e.ns = j.ns AND e.dependency_id = j.id
    )
    LIMIT $2::int8
), removed AS (
    DELETE FROM bunqueue.jobs j USING doomed d WHERE j.ctid = d.place
    RETURNING j.ns, j.id, j.queue_id, j.flags, j.unique_key
), unlinked AS (
    DELETE FROM bunqueue.edges e USING removed r WHERE r.flags & 8 <> 0 AND e.ns = r.ns AND e.job_id = r.id
), freed AS (
    DELETE FROM bunqueue.keys k USING removed r
    WHERE r.unique_key IS NOT NULL AND k.queue_id = r.queue_id AND k.key = r.unique_key AND k.job_id = r.id AND NOT k.windowed
), unlogged AS (
    DELETE FROM bunqueue.logs l USING removed r WHERE l.ns = r.ns AND l.id = r.id
)
SELECT count(*) FROM removed
