-- Jobs of a namespace that have completed, and failed for good, as far as they are counted. Locks nothing. Index: primary key, two
-- probes a queue.
SELECT
    coalesce(sum((SELECT m.count FROM bunqueue.metrics m WHERE m.queue_id = q.id AND m.type = 'completed' AND m.minute = -1)), 0)::int8,
    coalesce(sum((SELECT m.count FROM bunqueue.metrics m WHERE m.queue_id = q.id AND m.type = 'failed' AND m.minute = -1)), 0)::int8
FROM bunqueue.queues q WHERE q.ns = $1::int4
