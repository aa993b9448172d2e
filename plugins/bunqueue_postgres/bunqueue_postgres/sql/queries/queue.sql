-- Controls of one queue.
SELECT id, paused, stall_config, dlq_config FROM bunqueue.queues WHERE ns = $1::int4 AND name = $2::text
