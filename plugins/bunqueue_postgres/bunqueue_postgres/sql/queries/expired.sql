-- Locks up to $2 active jobs whose lease is over, passing by those that others hold, and gives their ids.
--
-- Locks: the rows; never waits, so any order will do.
-- Index: jobs_leased, one range a queue.
SELECT j.id
FROM bunqueue.queues q CROSS JOIN LATERAL (
    SELECT j.id
    FROM bunqueue.jobs j
    WHERE j.queue_id = q.id AND j.status = 3 AND j.lease_until <= (SELECT bunqueue.now_ms())
    ORDER BY j.lease_until
    LIMIT $2::int4
    FOR UPDATE SKIP LOCKED
) AS j
WHERE q.ns = $1::int4
LIMIT $2::int4
