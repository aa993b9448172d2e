-- All webhooks, oldest first (ids increase with time).
SELECT id, enabled, record, successes, failures, last_success_at FROM bunqueue.webhooks WHERE ns = $1::int4 ORDER BY id
