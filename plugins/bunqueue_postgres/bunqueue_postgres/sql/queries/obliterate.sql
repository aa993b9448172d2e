-- Deletes up to $2 jobs of a queue, whatever their state; gives their number. Locks: the rows; one that changes meanwhile is left to
-- the next step.
-- Index: the partial index of each state; primary key.
WITH doomed AS MATERIALIZED (
    SELECT j.place
    FROM (SELECT $1::int4 AS id OFFSET 0) q CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND NOT d.lifo
        UNION ALL
        SELECT d.ctid AS place FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND d.lifo
        UNION ALL
        SELECT d.ctid AS place FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NOT NULL
        UNION ALL
        SELECT d.ctid AS place FROM bunqueue.jobs d WHERE d.queue_id = q.id AND d.status IN (1, 2)
        UNION ALL
        SELECT d.ctid AS place FROM bunqueue.jobs d WHERE d.queue_id = q.id AND d.status = 3
        UNION ALL
        SELECT d.ctid AS place FROM bunqueue.jobs d WHERE d.queue_id = q.id AND d.status IN (4, 5)
    ) AS j
    LIMIT $2::int8
), removed AS (
    DELETE FROM bunqueue.jobs j USING doomed d WHERE j.ctid = d.place RETURNING 1
)
SELECT count(*) FROM removed
