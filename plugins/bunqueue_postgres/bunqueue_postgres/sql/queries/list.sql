-- Ids of one page of a queue's jobs, by creation time, then id. Locks nothing.
--
-- $3..$9: which states are wanted: waiting, prioritized, delayed, waiting-children, active, completed, failed.
-- $10: ascending; $11, $12: offset and limit. Index: the partial index of each wanted state; sorts narrow rows.
WITH queue AS MATERIALIZED (
    SELECT q.id, bunqueue.now_ms() AS now FROM bunqueue.queues q WHERE q.ns = $1::int4 AND q.name = $2::text
), found AS (
    SELECT k.created_at, k.id
    FROM queue q CROSS JOIN LATERAL (
        SELECT d.created_at, d.id, d.run_at, d.priority FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND NOT d.lifo
        UNION ALL
        SELECT d.created_at, d.id, d.run_at, d.priority FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NULL AND d.lifo
        UNION ALL
        SELECT d.created_at, d.id, d.run_at, d.priority FROM bunqueue.jobs d
        WHERE d.queue_id = q.id AND d.status = 0 AND d.group_id IS NOT NULL
    ) AS k
    WHERE ($3::bool OR $4::bool OR $5::bool)
        AND CASE WHEN k.run_at > q.now THEN $5::bool WHEN k.priority > 0 THEN $4::bool ELSE $3::bool END
    UNION ALL
    SELECT j.created_at, j.id FROM queue q CROSS JOIN LATERAL (
        SELECT d.created_at, d.id FROM bunqueue.jobs d WHERE d.queue_id = q.id AND d.status IN (1, 2) OFFSET 0
    ) AS j WHERE $6::bool
    UNION ALL
    SELECT j.created_at, j.id FROM queue q CROSS JOIN LATERAL (
        SELECT d.created_at, d.id FROM bunqueue.jobs d WHERE d.queue_id = q.id AND d.status = 3 OFFSET 0
    ) AS j WHERE $7::bool
    UNION ALL
    SELECT j.created_at, j.id FROM queue q CROSS JOIN LATERAL (
        SELECT d.created_at, d.id FROM bunqueue.jobs d WHERE d.queue_id = q.id AND d.status = 4 OFFSET 0
    ) AS j WHERE $8::bool
    UNION ALL
    SELECT j.created_at, j.id FROM queue q CROSS JOIN LATERAL (
        SELECT d.created_at, d.id FROM bunqueue.jobs d WHERE d.queue_id = q.id AND d.status = 5 OFFSET 0
    ) AS j WHERE $9::bool
)
SELECT id
FROM found
ORDER BY
    CASE WHEN $10::bool THEN created_at END, CASE WHEN $10::bool THEN id END,
    CASE WHEN NOT $10::bool THEN created_at END DESC, CASE WHEN NOT $10::bool THEN id END DESC
OFFSET $11::int8 LIMIT $12::int8
