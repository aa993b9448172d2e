-- Queues with dead letters, and their policies. Locks nothing. Index: jobs_ended.
SELECT q.id, q.dlq_config
FROM bunqueue.queues q
WHERE q.ns = $1::int4 AND EXISTS (SELECT FROM bunqueue.jobs j WHERE j.queue_id = q.id AND j.status IN (4, 5) AND j.status = 5)
