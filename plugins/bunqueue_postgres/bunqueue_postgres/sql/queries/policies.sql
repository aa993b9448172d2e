-- Dead-letter policy of a queue by its number.
SELECT dlq_config FROM bunqueue.queues WHERE id = $1::int4
