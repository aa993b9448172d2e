-- Locks a queue's row for a claim that has to look after limits or groups, and gives what that takes.
SELECT
    bunqueue.now_ms(), q.paused, q.features, q.rate_limit, q.rate_duration, q.rate_expires_at, q.rate_tokens, q.rate_at,
    q.concurrency_limit,
    CASE WHEN q.concurrency_limit IS NOT NULL THEN (
        SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 3 AND j.lease_until > bunqueue.now_ms()
    ) END
FROM bunqueue.queues q
WHERE q.id = $1::int4
FOR UPDATE OF q
