-- Removes what a queue has beside its jobs, and its settings; it is not listed any more until it is used again.
-- Locks: the queue's row.
WITH keys AS (
    DELETE FROM bunqueue.keys WHERE queue_id = $1::int4
), debounces AS (
    DELETE FROM bunqueue.debounces WHERE queue_id = $1::int4
), groups AS (
    DELETE FROM bunqueue.groups WHERE queue_id = $1::int4
), metrics AS (
    DELETE FROM bunqueue.metrics WHERE queue_id = $1::int4
), proofs AS (
    DELETE FROM bunqueue.proofs p
    WHERE p.queue_id = $1::int4 AND NOT EXISTS (SELECT FROM bunqueue.edges e WHERE e.ns = p.ns AND e.dependency_id = p.id)
), events AS (
    DELETE FROM bunqueue.events WHERE queue_id = $1::int4
)
UPDATE bunqueue.queues
SET listed = false, paused = false, limited = false, features = 0, priorities = '{}', rate_limit = NULL, rate_duration = NULL,
    rate_expires_at = NULL, rate_tokens = NULL, rate_at = NULL, concurrency_limit = NULL, stall_config = NULL, stall_after = NULL,
    dlq_config = NULL
WHERE id = $1::int4
