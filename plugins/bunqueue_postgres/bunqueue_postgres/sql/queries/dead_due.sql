-- Locks up to $2 dead letters of the namespace that are due to expire or to be retried, and gives their ids.
-- Locks: the rows, passing by held ones. Index: jobs_dead_due, one range a queue.
SELECT j.id
FROM bunqueue.queues q CROSS JOIN LATERAL (
    SELECT j.id
    FROM bunqueue.jobs j
    WHERE j.queue_id = q.id AND j.status = 5 AND j.due_at IS NOT NULL AND j.due_at <= (SELECT bunqueue.now_ms())
    ORDER BY j.due_at
    LIMIT $2::int4
    FOR UPDATE SKIP LOCKED
) AS j
WHERE q.ns = $1::int4
LIMIT $2::int4
