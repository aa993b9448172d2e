-- Stores a queue's token bucket, or (all null) removes its rate limit. The caller holds the row.
UPDATE bunqueue.queues q
SET rate_tokens = $2::float8, rate_at = $3::int8,
    rate_limit = CASE WHEN $2::float8 IS NULL THEN NULL ELSE q.rate_limit END,
    rate_duration = CASE WHEN $2::float8 IS NULL THEN NULL ELSE q.rate_duration END,
    rate_expires_at = CASE WHEN $2::float8 IS NULL THEN NULL ELSE q.rate_expires_at END,
    limited = $2::float8 IS NOT NULL OR q.concurrency_limit IS NOT NULL
WHERE q.id = $1::int4
