-- Adds outcomes to webhooks' counters. Locks: their rows, by id.
UPDATE bunqueue.webhooks w
SET successes = w.successes + i.successes, failures = w.failures + i.failures,
    last_success_at = greatest(w.last_success_at, i.last_success_at)
FROM (
    SELECT t.id, sum(t.successes)::int8 AS successes, sum(t.failures)::int8 AS failures, max(t.last_success_at) AS last_success_at
    FROM unnest($2::text[], $3::int8[], $4::int8[], $5::int8[]) AS t (id, successes, failures, last_success_at)
    GROUP BY t.id
) i
WHERE w.ns = $1::int4 AND w.id = i.id
