-- Stall policies of queues, and how long a job without an owner may be silent as the queue knows it. Locks nothing.
SELECT q.id, q.name, q.stall_config, q.stall_after
FROM bunqueue.queues q
WHERE q.ns = $1::int4 AND (q.stall_config IS NOT NULL OR q.stall_after IS NOT NULL)
