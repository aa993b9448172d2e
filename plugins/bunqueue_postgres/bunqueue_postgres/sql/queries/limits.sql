-- Limits of a queue and its active jobs. Index: jobs_leased.
SELECT
    bunqueue.now_ms(), q.rate_limit, q.rate_duration, q.rate_expires_at, q.rate_tokens, q.rate_at, q.concurrency_limit,
    (SELECT count(*) FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status = 3 AND j.lease_until > bunqueue.now_ms())
FROM bunqueue.queues q
WHERE q.ns = $1::int4 AND q.name = $2::text
