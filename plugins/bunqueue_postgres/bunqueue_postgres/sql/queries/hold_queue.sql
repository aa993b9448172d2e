-- Locks a queue's row for a claim that has to look after limits or groups, and gives what that takes. How many jobs are active is
-- asked for afterwards (active.sql): this statement's snapshot may be older than the lock for which it waited.
SELECT
    bunqueue.now_ms(), q.paused, q.features, q.rate_limit, q.rate_duration, q.rate_expires_at, q.rate_tokens, q.rate_at,
    q.concurrency_limit
FROM bunqueue.queues q
WHERE q.id = $1::int4
FOR UPDATE OF q
