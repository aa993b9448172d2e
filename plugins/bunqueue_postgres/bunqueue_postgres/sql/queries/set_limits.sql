-- Sets a queue's rate limit ($3 true: limit $4 in $5 ms, gone after $6 ms, a null limit clears) or concurrency limit ($3 false, $4).
-- Registers the queue if it is new and the limit is not null. Locks: the queue's row.
INSERT INTO bunqueue.queues AS q (ns, name, listed, limited, rate_limit, rate_duration, rate_expires_at, rate_tokens, rate_at, concurrency_limit)
SELECT
    $1::int4, $2::text, true, true, CASE WHEN $3::bool THEN $4::float8 END, $5::int8, bunqueue.now_ms() + $6::int8,
    CASE WHEN $3::bool THEN $4::float8 END, bunqueue.now_ms(), CASE WHEN NOT $3::bool THEN $4::float8 END
WHERE $4::float8 IS NOT NULL OR EXISTS (SELECT FROM bunqueue.queues k WHERE k.ns = $1::int4 AND k.name = $2::text)
ON CONFLICT (ns, name) DO UPDATE SET
    listed = q.listed OR $4::float8 IS NOT NULL,
    limited = $4::float8 IS NOT NULL OR CASE WHEN $3::bool THEN q.concurrency_limit ELSE q.rate_limit END IS NOT NULL,
    rate_limit = CASE WHEN $3::bool THEN excluded.rate_limit ELSE q.rate_limit END,
    rate_duration = CASE WHEN $3::bool THEN excluded.rate_duration ELSE q.rate_duration END,
    rate_expires_at = CASE WHEN $3::bool THEN excluded.rate_expires_at ELSE q.rate_expires_at END,
    rate_tokens = CASE WHEN $3::bool THEN excluded.rate_tokens ELSE q.rate_tokens END,
    rate_at = CASE WHEN $3::bool THEN excluded.rate_at ELSE q.rate_at END,
    concurrency_limit = CASE WHEN $3::bool THEN q.concurrency_limit ELSE excluded.concurrency_limit END
