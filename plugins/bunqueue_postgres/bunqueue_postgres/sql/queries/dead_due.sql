-- Locks up to $2 ended jobs of the namespace that are due to be removed or retried, and gives their ids.
-- Locks: the rows, passing by held ones. Index: jobs_due, one range a queue.
SELECT j.id
FROM bunqueue.queues q CROSS JOIN LATERAL (
    SELECT j.id
    FROM bunqueue.jobs j
    WHERE j.queue_id = q.id AND j.status IN (4, 5) AND j.due_at IS NOT NULL AND j.due_at <= (SELECT bunqueue.now_ms())
    ORDER BY j.due_at
    LIMIT $2::int4
    FOR UPDATE SKIP LOCKED
) AS j
WHERE q.ns = $1::int4
LIMIT $2::int4
