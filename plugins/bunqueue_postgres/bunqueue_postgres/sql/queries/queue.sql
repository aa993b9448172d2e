-- Controls of queues.
SELECT name, id, paused, stall_config, dlq_config FROM bunqueue.queues WHERE ns = $1::int4 AND name = ANY ($2::text[])
